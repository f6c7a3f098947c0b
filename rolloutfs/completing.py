"""What a shell completes: thread ids, and names that every shell takes as they stand.

Shells insert what they are offered unquoted: bash would run what stands behind a `;` in it. So a name from a log is
offered only when it has no character that means something to bash, zsh, fish or readline (which ends words at `:`, `=`
and `@`); for other names that begin as typed their threads' ids are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")


def complete_thread(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names that begin so, else files where a path is typed. Never fails: who presses Tab wants no error."""
    from rolloutfs.meant import store_of

    try:
        found = _found(store_of(context.params.get("store"), incomplete if "/" in incomplete else None), incomplete)
        items = [CompletionItem(value) for value in dict.fromkeys(found)]
    except Exception:  # noqa: BLE001  a shell shows nothing else than completions
        items = []
    return items or [CompletionItem(incomplete, type="file")] * ("/" in incomplete)


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The files of a thread and of its family."""
    from threadstore.projection import FamilyView, View

    return [CompletionItem(one.value) for one in (*View, *FamilyView) if one.value.startswith(incomplete)]


def _found(store: str, incomplete: str) -> Iterator[str]:
    from threadstore.spool import Spool
    from threadstore.store import ThreadStore

    from rolloutfs.naming import begins, name_of
    from rolloutfs.spoolfolder import make

    spool = make(store)
    try:
        threads = ThreadStore(store, Spool(spool.path))
        threads.refresh()
        ids = threads.thread_ids()
        yield from begins(ids, incomplete.lower())
        named = ((name, thread) for thread in ids if (name := name_of(threads, thread)) is not None)
        for name, thread in sorted(one for one in named if one[0].startswith(incomplete)):
            yield name if _PLAIN.fullmatch(name) else thread
    finally:
        spool.remove()
