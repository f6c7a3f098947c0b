"""The count of threads that agree with Codex, shown at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


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
