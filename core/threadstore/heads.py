"""Which rollout of a thread is selected (FORMAT 11.4), and whether what was made from it still holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from threadstore.catalog import Catalog, preference
from threadstore.errors import Problem, StoreError
from threadstore.filestates import FileStates
from threadstore.names import RolloutFile, parse_rollout
from threadstore.projection import OF_GENERATIONS, SELECTION, Basis, View, digest
from threadstore.statedb import Row, StateDatabase
from threadstore.titles import Titles


@dataclass(frozen=True, slots=True)
class Head:
    """The selected rollout of a thread. `by` is `index` or `name`; `problem` is set when the database was
    overruled.
    """

    rollout: RolloutFile
    by: str
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """The thread that a file is made of: its id, its rollouts, the selected one, the database's row, its name."""

    thread_id: str
    rollouts: tuple[RolloutFile, ...]
    head: Head
    row: Row | None
    name: str | None


def select(rollouts: tuple[RolloutFile, ...], row: Row | None) -> Head:
    """The selected one of a thread's rollouts (FORMAT 11.4).

    The database's path is matched by its last part: the absolute path of a store that was moved is stale, the
    file's name is not. A row whose file is gone loses against the files that are there, where Codex 0.171.0 would
    find nothing.
    """
    newest = max(rollouts, key=preference)
    if row is None:
        return Head(newest, "name")
    name = row.rollout_path.replace("\\", "/").rpartition("/")[2].removesuffix(".zst")
    matches = [rollout for rollout in rollouts if rollout.name.removesuffix(".zst") == name]
    if matches:
        return Head(max(matches, key=preference), "index")
    problem = Problem(
        "index_ghost",
        newest.path,
        None,
        None,
        f"the database selects {name or 'no file'}, which is not in the store",
        "the newest file of the thread is used; Codex 0.171.0 finds this thread only after its row is repaired",
    )
    return Head(newest, "name", problem)


class Heads(Mapping[str, RolloutFile]):
    """The selected rollout of each thread of a store, found when it is asked for: there may be 100,000. KeyError for an
    unknown thread.
    """

    def __init__(self, catalog: Catalog, database: StateDatabase, titles: Titles, states: FileStates) -> None:
        self._catalog = catalog
        self._database = database
        self._titles = titles
        self._states = states

    def __getitem__(self, thread_id: str) -> RolloutFile:
        rollouts = self._catalog.threads[thread_id]
        return rollouts[0] if len(rollouts) == 1 else self.head(thread_id)[0].rollout

    def __contains__(self, thread_id: object) -> bool:
        return thread_id in self._catalog.threads

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._catalog.threads))

    def __len__(self) -> int:
        return len(self._catalog.threads)

    def head(self, thread_id: str) -> tuple[Head, Row | None]:
        """How the rollout was selected, and the row of the database."""
        rollouts = self._catalog.threads[thread_id]
        row = self._database.row(thread_id)
        return select(rollouts, row), row

    def subject(self, thread_id: str, *, named: bool = True) -> Subject:
        """A thread as it is now, `named` with its name."""
        head, row = self.head(thread_id)
        name = self._titles.name(thread_id, row) if named else None
        return Subject(thread_id, self._catalog.threads[thread_id], head, row, name)

    # What was made from them

    def others(self, thread_id: str) -> tuple[Basis, ...]:
        """All rollouts of a thread that has several."""
        rollouts = self._catalog.threads[thread_id]
        return () if len(rollouts) == 1 else tuple(self._states.basis(rollout.path) for rollout in rollouts)

    def beside(self, thread_id: str, view: View) -> tuple[Basis, ...]:
        """The files besides its lineage that a derived file tells of: those that name or select a thread, or tell when
        it began, without a new record in its log; all generations.
        """
        if view in SELECTION:
            return (*self._titles.basis(), *self.others(thread_id))
        return self.others(thread_id) if view in OF_GENERATIONS else ()

    def facts(self, subject: Subject) -> bytes:
        """What derived files depend on besides the content of the thread's lineage: rollouts, selection, names, and
        when the oldest rollout began.
        """
        others = self.others(subject.thread_id)
        facts = (subject.rollouts, subject.head, subject.row, subject.name, others)
        return digest(repr(facts).encode("utf-8", "surrogatepass"))

    def is_made_from(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while the thread's head is the first of these files, and each of them as it was."""
        if not basis:
            return False
        try:
            return self[thread_id].path == basis[0].path and self.are_same(thread_id, basis)
        except (KeyError, StoreError, OSError):
            return False

    def are_same(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while each of these files is as it was, and one of another thread what is taken for its rollout."""
        return all(map(self._is_same, basis)) and self._is_chosen(thread_id, basis)

    def _is_same(self, basis: Basis) -> bool:
        return self._states.basis(basis.path) == basis

    def _is_chosen(self, thread_id: str, basis: tuple[Basis, ...]) -> bool:
        """True while each file of another thread is still what is taken for its rollout: a twin may have come."""
        for inherited in basis[1:]:
            rollout = parse_rollout(inherited.path)
            if rollout is None or rollout.thread_id == thread_id:
                continue
            files = self._catalog.of_rollout(rollout.rollout_id)
            if not files or files[-1].path != inherited.path:
                return False
        return True
