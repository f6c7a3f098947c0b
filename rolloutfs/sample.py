"""The sample store that comes with rolloutfs: threads that Codex wrote, for who has none at hand.

`scripts/sample_archive.py` makes the archive from tests/corpus. Long texts in it are masked with `x`.
"""

from __future__ import annotations

import os
import tarfile
from importlib import resources
from io import BytesIO
from pathlib import Path

import zstandard

ARCHIVE = "sample.tar.zst"

_TOOLS = "by-name/List_the_files-55ed7780"

#: What is worth a look, and what is typed for it in a mount of the sample store.
TOUR = (
    ("What there is: a folder for each thread, and views with links to them", "ls . by-name"),
    ("What was said and done in a thread", f"less {_TOOLS}/transcript.md"),
    ("What one of its turns changed", f"cat {_TOOLS}/turns/2/diff.patch"),
    ("After a compaction the model remembers less than the log", "wc -l by-name/first_task-bbe9489a/*_history.jsonl"),
    ("Where two forks part", "diff by-name/p1-02007e88/transcript.md by-name/p1-d8a7ead1/transcript.md"),
    ("A revert leaves the older log where it was", "ls by-name/t1-5cb9d093/rollouts"),
    ("Sub-agents that worked for a thread", "ls by-name/use_sub-agents_please-ded5975c/lineage/agents"),
    ("Codex was killed here: what is damaged, and what follows", "cat by-name/before-77054b88/problems.jsonl"),
    ("Where something was said", "cat 'search/echo p2/hits.jsonl'"),
    (
        "Make a fork without the last turn, and look at the answer",
        f"cd {_TOOLS} && echo 'before -1' > fork && cat fork",
    ),
)


def unpack(folder: Path) -> None:
    """Make the store at `folder`, which must not be there. Raises OSError."""
    packed = (resources.files("rolloutfs") / ARCHIVE).read_bytes()
    with tarfile.open(fileobj=BytesIO(zstandard.ZstdDecompressor().decompress(packed)), mode="r:") as archive:
        folder.mkdir()
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, "there are but files in it"
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
            os.utime(path, (member.mtime, member.mtime))  # that of a compressed log is the time of its thread
