"""The count of threads that agree with Codex, shown at the end of a run; stores made by random operations."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from tests.corpus_store import BUNDLED


@dataclass
class Agreement:
    """For each thread and way of reading: what differs from Codex."""

    differences: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def note(self, way: str, store: str, thread_id: str, differences: list[str]) -> list[str]:
        """Record a thread, and give the differences back with the thread's name before each."""
        self.differences[way, store, thread_id] = differences
        return [f"{store} {thread_id}: {difference}" for difference in differences]

    def lines(self) -> Iterator[str]:
        """One line for each way of reading."""
        for way in sorted({way for way, _, _ in self.differences}):
            threads = [found for (other, _, _), found in self.differences.items() if other == way]
            yield f"{sum(not found for found in threads)}/{len(threads)} threads agree ({way})"


_AGREEMENT = Agreement()


@pytest.fixture(scope="session")
def agreement() -> Agreement:
    """Where the comparisons with Codex write what they find."""
    return _AGREEMENT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the count."""
    for line in _AGREEMENT.lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the unpacked stores."""
    folder = tmp_path_factory.mktemp("generated")
    packed = (BUNDLED / "generated.tar.zst").read_bytes()
    data = zstandard.ZstdDecompressor(max_window_size=1 << 25).stream_reader(packed).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder
