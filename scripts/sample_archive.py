"""Makes rolloutfs/sample.tar.zst, which `rolloutfs demo` unpacks: the store of scripts/sample_store.py.

    .venv/bin/python -m scripts.sample_archive        or: make sample

The time of a log is that of its last record, as Codex leaves it; other files have the latest of these. The same stores
give the same members, though not the same bytes: those depend on the releases of zstd and SQLite.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from datetime import datetime
from io import BytesIO
from pathlib import Path

import orjson
import zstandard

import rolloutfs
from rolloutfs.sample import ARCHIVE
from scripts.sample_store import build

PLACE = Path(rolloutfs.__file__).parent / ARCHIVE
_LEVEL = 19


def pack(home: Path) -> bytes:
    """The archive of a Codex home."""
    files = sorted(path for path in home.rglob("*") if path.is_file())
    times = {path: _last_record(path) for path in files if path.name.startswith("rollout-")}
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w:", format=tarfile.GNU_FORMAT) as archive:
        for path in files:
            member = tarfile.TarInfo(str(path.relative_to(home)))
            member.size, member.mtime = path.stat().st_size, times.get(path, max(times.values()))
            archive.addfile(member, BytesIO(path.read_bytes()))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(made.getvalue())


def _last_record(path: Path) -> int:
    """Its time (Unix, whole seconds). A line that was cut short has none."""
    data = path.read_bytes()
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.suffix == ".zst" else data
    lines = whole[: whole.rindex(b"\n")].split(b"\n")
    return int(datetime.fromisoformat(orjson.loads(lines[-1])["timestamp"]).timestamp())


def main() -> int:
    """Writes the archive."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        build(home)
        PLACE.write_bytes(pack(home))
    print(f"{PLACE}: {PLACE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
