"""docs/limits.md and docs/control-files.md name the bounds and the answers that the program has."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from threadstore import (
    filestates,
    lineage,
    lines,
    metas,
    mtimes,
    passages,
    patches,
    scan,
    schema,
    search,
    spool,
    texts,
    transcript,
    turnfiles,
    turns,
)

from rolloutfs import (
    answers,
    content,
    control,
    findings,
    outlines,
    packs,
    searches,
    shelves,
    summarizer,
    turnfolders,
    versions,
)

DOCS = Path(__file__).parents[2] / "docs"
MIB, GIB = 1 << 20, 1 << 30


def row(page: str, begin: str) -> str:
    """The row of a table that begins so."""
    (found,) = [line for line in (DOCS / page).read_text().split("\n") if line.startswith(f"| {begin}")]
    return found


@pytest.mark.parametrize(
    ("begin", "bounds"),
    [
        ("a compressed log, decoded", [f"{spool.LARGEST_COPY // GIB} GiB", f"{spool.LARGEST_RATIO} times"]),
        ("a compressed log, decoded", [f"{spool.DEFAULT_LIMIT // GIB} GiB"]),
        ("a line", [f"{lines.LONG // MIB} MiB", f"{lines.LARGEST // MIB} MiB"]),
        ("nesting", [f"| {schema.DEEPEST},"]),
        ("logs that a thread", [f"| {lineage.DEEPEST:,} |"]),
        ("problems of a thread", [f"| {scan.MOST_PROBLEMS:,} |"]),
        ("`transcript.md`", [f"{transcript.LARGEST // MIB} MiB"]),
        ("a text in them", [f"{passages.SAID >> 10} KiB of a message", f"{passages.PRINTED >> 10} KiB of the output"]),
        ("`user.md`", [f"{turnfiles.LARGEST // MIB} MiB each", f"{patches.LARGEST // MIB} MiB each"]),
        ("`user` in `turns.jsonl`", [f"{turns.LONGEST_TEXT >> 10} KiB"]),
        ("`recent/`", [f"the {shelves.RECENT} threads"]),
        ("what is searched", [f"{texts.LONGEST['user']:,} characters of a message", f"{texts.LONGEST['output']:,} of"]),
        ("a query", [f"{search._MOST} words", f"{findings.LONGEST:,} characters"]),
        ("a folder below", [f"{findings._THREADS} threads", f"{findings._MOST:,} hits", f"{findings._TEXTS:,} texts"]),
        ("a folder below", [f"{findings._CATCH_UP:g} s to bring", f"{findings._ASK:g} s to ask"]),
        ("sizes and times of files", [f"{outlines.KNOWN:,} files", f"of {outlines.OUTLINED} threads"]),
        ("where the bytes", [f"{versions.PROJECTIONS // MIB} MiB", f"{packs.ROWS // MIB} MiB of its rows"]),
        ("answers to the kernel", [f"{answers.THREADS} threads"]),
        ("times of threads", [f"| {mtimes._MOST:,},", f"; {filestates._MOST:,},", f"; {metas._MOST:,},"]),
        ("names in views", [f"{shelves._NAMED // MIB} MiB"]),
        ("answers of searches", [f"{searches._KEPT // MIB} MiB; {turnfolders._KEPT // MIB} MiB;"]),
        ("answers of searches", [f"; {turnfolders._LISTS // MIB} MiB |"]),
    ],
)
def test_bounds(begin: str, bounds: list[str]) -> None:
    """Each is the one in the code."""
    assert [bound for bound in bounds if bound not in row("limits.md", begin)] == []


def test_bounds_of_requests() -> None:
    """Of a request, a summarizer, passthrough; and how much of a request is kept."""
    text = " ".join((DOCS / "limits.md").read_text().split())
    assert f"{control.LARGEST >> 10} KiB for one request" in text
    assert f"may take {summarizer._SECONDS:g} s" in text
    assert f"raw logs of {content.LARGE // MIB} MiB and more" in text
    assert f"the first {control._SHOWN} characters of a summary" in (DOCS / "security.md").read_text()


def test_the_answer_that_is_shown() -> None:
    """It has the members that answers have."""
    page = (DOCS / "control-files.md").read_text()
    (shown,) = re.findall(r"^\$ jq \. revert\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    refused = json.loads(shown)
    made = control.answer(
        "revert", refused["source_thread_id"], "refused", error=errno.ENOENT, message=refused["message"], dry_run=False
    )
    assert made == refused
