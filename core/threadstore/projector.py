"""Making the derived files of one thread: from its head to projections.

What they are made from are passes over its log (`incremental`) and its older generations. Each is asked for once, by
the first file that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from threadstore import diagnosis, dropped, prompt, views
from threadstore.calls import match_calls
from threadstore.catalog import Catalog
from threadstore.effects import Effect
from threadstore.errors import LineageError, Problem, TooLargeError, UnreadableError
from threadstore.extents import Extents, ExtentsBuilder
from threadstore.generations import Generations
from threadstore.heads import Subject
from threadstore.incremental import Passes
from threadstore.lineages import Lineages, is_large
from threadstore.metas import Metas
from threadstore.opened import OpenLineage
from threadstore.openings import created
from threadstore.passes import Pass, packed, unpacked
from threadstore.projection import Basis, Projection, View, digest
from threadstore.records import Json
from threadstore.replay import Replay
from threadstore.replaying import whole_lines
from threadstore.scan import FullScan
from threadstore.texts import Hearer, Listener, Text, texts_of

_AT_HAND = 16 << 20  # up to which items are kept while derived files are made: some three bytes of memory for each

_HISTORIES = frozenset((View.EFFECTIVE_HISTORY, View.MODEL_INPUT, View.PENDING_CALLS))
_DROPPED = frozenset((View.DROPPED, View.DROPPED_TURNS))
_ANEW = frozenset((View.DROPPED,))  # made from the records themselves each time
#: Files that can't be made when the lineage is broken; the others tell what there is.
_NEED_LINEAGE = _HISTORIES | _DROPPED | {View.WORLD_STATE, View.TURNS, View.USAGE, View.LINEAGE, View.TRANSCRIPT}


class Projector:
    """See the module text. Raises StoreError and OSError."""

    def __init__(self, lineages: Lineages, passes: Passes, catalog: Catalog, metas: Metas) -> None:
        self._lineages = lineages
        self._passes = passes
        self._catalog = catalog
        self._metas = metas
        self._generations = Generations(lineages, metas)

    def project(self, subject: Subject, view: View) -> Projection:
        """Make one derived file."""
        rollout = subject.head.rollout
        try:
            segments, error = self._lineages.segments(rollout), None
        except LineageError as broken:
            segments, error = self._lineages.alone(rollout), broken
        except (UnreadableError, TooLargeError) as shut:
            if view is not View.PROBLEMS:
                raise
            extents, generation = _rendered(diagnosis.closed(subject, shut))
            return Projection(extents, (), generation)
        with self._lineages.open(segments) as lineage:
            material = self._material(subject, lineage, error)
            if error is not None and view in _NEED_LINEAGE:
                return Projection(None, (), b"", error.message)
            material.keep = view is View.TRANSCRIPT and _fits(lineage)
            extents, generation = self._make(material, view)
            return Projection(extents, material.basis(view), generation)

    def project_all(self, subject: Subject, hearer: Hearer | None = None) -> dict[View, Projection]:
        """Every derived file, for less than one by one costs. What can't be made of a closed file is left out, and of a
        large log what would read it again although only a turn was added. The `hearer` is told what was said.
        """
        try:
            lineage = self._lineages.open_thread(subject.head.rollout)
        except LineageError:
            return {view: self.project(subject, view) for view in View}
        except (UnreadableError, TooLargeError):
            return {View.PROBLEMS: self.project(subject, View.PROBLEMS)}
        with lineage:
            material = self._material(subject, lineage, None)
            material.keep = _fits(lineage)
            if hearer is not None:
                self._tell(material, hearer)
            first = (View.THREAD, *View)  # from the scan, which makes the others quicker
            anew = _ANEW if is_large(lineage) else frozenset()
            made = {view: self._make(material, view) for view in dict.fromkeys(first) if view not in anew}
            self._passes.note_read(subject.thread_id, lineage)
            return {view: Projection(made[view][0], material.basis(view), made[view][1]) for view in made}

    def _material(self, subject: Subject, lineage: OpenLineage, error: LineageError | None) -> _Material:
        return _Material(self._passes, self._generations, self._catalog, subject, lineage, error)

    def _make(self, material: _Material, view: View) -> tuple[Extents, bytes]:
        subject, lineage, error = material.subject, material.lineage, material.error
        if view in _HISTORIES:
            return _history_view(view, lineage, material.history)
        if view is View.WORLD_STATE:
            return _rendered(views.world_state(material.state))
        if view is View.DROPPED_TURNS:
            return _rendered(self._generations.dropped_turns(material.ends))
        if view is View.DROPPED:
            return self._generations.dropped_text(material.ends)
        if view is View.LINEAGE:
            return _rendered(views.lineage(subject.thread_id, subject.head, subject.rollouts, lineage))
        scan = material.scan
        if view is View.TURNS:
            return _rendered(views.turns(scan))
        if view is View.USAGE:
            return _rendered(views.page(material.usage))
        if view is View.PROBLEMS:
            return _rendered(views.problem_lines(material.problems, scan.hidden_problems))
        if view is View.THREAD:
            replay = None if error is not None else material.state
            preview = subject.row.preview if subject.row is not None else None
            began = created(subject.rollouts, self._metas)
            summary = views.Summary(subject.thread_id, subject.head, subject.name, preview, began)
            usage = None if error is not None else material.usage
            return _rendered(views.thread(summary, lineage.segments, scan, replay, material.problems, usage, error))
        if view is View.TRANSCRIPT:
            return self._passes.transcript(subject.thread_id, lineage, scan, material.effect)
        builder = ExtentsBuilder()
        views.full_history(scan, material.effect, lineage.files, builder)
        return builder.build(), digest(*lineage.identities(), *_marks(None if error is not None else material.history))

    # What was said

    def texts(self, subject: Subject) -> Iterator[Text]:
        """What was said in the thread's own rollouts; also what was dropped by reverts."""
        with self._lineages.open_thread(subject.head.rollout) as lineage:
            ends = self._generations.ends(subject, lineage)
            yield from texts_of(lineage, subject.thread_id, (0, 0))
        yield from self._generations.texts(subject, ends)

    def _tell(self, material: _Material, hearer: Hearer) -> None:
        """What was said, from where the hearer has it if it can go on, else from the beginning. The scan that comes
        first anyway tells it, unless it has other lines to read.
        """
        subject, lineage, ends = material.subject, material.lineage, material.ends
        now, last = Pass.over(lineage), len(lineage.files) - 1
        grown = [file.basis for file in lineage.files[:-1]] if ends.ends else []  # the ends may lie in these, too
        mark = f"{ends.mark()}{grown}"
        start = None
        if hearer.known is not None and is_large(lineage) and self._passes.is_proven(subject.thread_id, lineage):
            before = unpacked(hearer.known)
            if isinstance(before, tuple) and before[1] == mark and before[0].continues(now, lineage):
                start = before[0].consumed or 0
        hearer.begin(goes_on=start is not None)
        listener = Listener(subject.thread_id, lineage, hearer, (0, 0) if start is None else (last, start))
        material.listener = listener
        _ = material.scan
        if not listener.has_heard:
            for text in texts_of(lineage, subject.thread_id, listener.start):
                hearer.take(text)
        if start is None:
            for text in self._generations.texts(subject, ends):
                hearer.take(text)
        now.consumed = whole_lines(lineage.files[-1].log)
        hearer.end(packed((now, mark)) if is_large(lineage) else None)


class _Material:
    """What the derived files of one thread are made from; each part is made when it is asked for first.

    `error` says that the lineage is broken: then there is neither `history` nor `state`.
    """

    def __init__(
        self,
        passes: Passes,
        generations: Generations,
        catalog: Catalog,
        subject: Subject,
        lineage: OpenLineage,
        error: LineageError | None,
    ) -> None:
        self._passes = passes
        self._generations = generations
        self._catalog = catalog
        self.subject = subject
        self.lineage = lineage
        self.error = error
        self.keep = False  # what a scan has decoded, for the passes that follow
        self.listener: Listener | None = None  # to what the scan reads

    @cached_property
    def history(self) -> Replay:
        """The replay for the histories."""
        return self._passes.history(self.subject.thread_id, self.lineage)

    @cached_property
    def state(self) -> Replay:
        """The replay that tells settings, world state and window, too."""
        return self._passes.state(self.subject.thread_id, self.lineage)

    @cached_property
    def scan(self) -> FullScan:
        """Everything that happened. What is replayed after it needn't find out once more which lines are records."""
        scan = self._passes.scan(self.subject.thread_id, self.lineage, self.listener, keep=self.keep)
        self.lineage.is_sound = scan.is_sound
        return scan

    @cached_property
    def effect(self) -> Effect:
        """Which records count."""
        return Effect(self.scan, None if self.error is not None else self.history)

    @cached_property
    def usage(self) -> Json:
        """The content of `usage.json`."""
        return self.scan.usage.render(self._generations.spent(self.subject, self.lineage))

    @cached_property
    def ends(self) -> dropped.Ends:
        """What reverts dropped."""
        return self._generations.ends(self.subject, self.lineage)

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong."""
        listed = self._catalog.problems_of(self.subject.thread_id)
        return diagnosis.problems(self.subject, listed, self.lineage, self.scan, self.error)

    def basis(self, view: View) -> tuple[Basis, ...]:
        """The files that a derived file was made from, but for the thread's own older rollouts, which the store adds. A
        broken lineage may be mended by a file that we have not seen, so what is said of it holds only now.
        """
        if self.error is not None or (view in _DROPPED and not self.ends.lasts):
            return ()
        own = tuple(file.basis for file in reversed(self.lineage.files))
        if view not in _DROPPED:
            return own
        rollouts = {rollout.path for rollout in self.subject.rollouts}
        return own + tuple(one for one in self.ends.basis if one.path not in rollouts)


def _fits(lineage: OpenLineage) -> bool:
    """True for a log of medium size, of which what a scan has decoded is kept for the passes that follow."""
    return is_large(lineage) and sum(lineage.ends()) <= _AT_HAND


def _history_view(view: View, lineage: OpenLineage, replay: Replay) -> tuple[Extents, bytes]:
    history = replay.history
    if view is View.PENDING_CALLS:
        pending = match_calls(history).pending
        documents = [prompt.excerpt(history[at], lineage.fetch, lineage.look) for at in pending]
        return _rendered(views.pending_calls(history, pending, lineage.files, documents))
    builder = ExtentsBuilder()
    sources = [builder.source(file.source) for file in lineage.files]
    generation = [*lineage.identities(), *_marks(replay)]
    if view is View.EFFECTIVE_HISTORY:
        prompt.effective(history, builder, sources, lineage.fetch, lineage.look)
    else:
        prompt.model_input(history, builder, sources, lineage.fetch, lineage.look)
        state = match_calls(history)
        generation.append(repr((state.pending, sorted(state.orphans))).encode())
    return builder.build(), digest(*generation)


def _rendered(content: bytes) -> tuple[Extents, bytes]:
    """Rendered content is replaced as a whole whenever it changes."""
    return Extents.of_bytes(content), digest(content)


def _marks(replay: Replay | None) -> list[bytes]:
    """What tells that a history is more than the extension of another one."""
    if replay is None:
        return [b"none"]
    base = b"start" if replay.base is None else f"{replay.base.segment}:{replay.base.offset}".encode()
    return [base, repr(replay.ops).encode()]
