"""What a shell completes: thread ids, and names that a shell can be given as they are."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem


def complete_thread(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names that begin so. Never fails: whoever presses Tab wants no error."""
    from rolloutfs.invocation import default_store

    try:
        return list(_found(context.params.get("store") or default_store(), incomplete))
    except Exception:  # noqa: BLE001  a shell shows nothing else than completions
        return []


def _found(store: str, incomplete: str) -> Iterator[CompletionItem]:
    from threadstore.spool import Spool
    from threadstore.store import ThreadStore

    from rolloutfs.harmless import is_harmless
    from rolloutfs.naming import begins, name_of
    from rolloutfs.spoolfolder import make

    spool = make(store)
    try:
        threads = ThreadStore(store, Spool(spool.path))
        threads.refresh()
        ids = threads.thread_ids()
        for thread in begins(ids, incomplete.lower()):
            yield CompletionItem(thread)
        names = {name for thread in ids if (name := name_of(threads, thread)) and name.startswith(incomplete)}
        for name in sorted(filter(is_harmless, names)):
            yield CompletionItem(name)
    finally:
        spool.remove()
