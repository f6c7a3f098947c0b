"""The life of a mount: from the command line to the unmount.

    check -> spool folder -> pyfuse3.init (the kernel has the mount) -> [background: fork] -> serve -> unmount

In the background the fork comes after `init`, so that errors still reach the terminal, and before trio and any
thread or worker.  The command returns 0 only once the mount answers.  For that the first process must let go of its
copy of the FUSE descriptor: as long as anybody holds it, a server that died leaves requests waiting for ever
instead of failing.

The mount is taken away when the server was asked to end.  After an error of ours it is left dead (FUSE 6.5): an
empty folder would look like a store whose threads were all deleted.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import string
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import pyfuse3
import trio
from threadstore import databases
from threadstore.errors import StoreError
from threadstore.filestates import RememberedStates
from threadstore.index import IndexReader
from threadstore.masking import Masker
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from rolloutfs import (
    __version__,
    checks,
    gate,
    identity,
    indexing,
    journal,
    logs,
    masks,
    notify,
    passthrough,
    readme,
    requestloop,
    spoolfolder,
    zones,
)
from rolloutfs.config import MountSettings
from rolloutfs.engine import Engine
from rolloutfs.errors import Exit, MountError
from rolloutfs.gate import Gate
from rolloutfs.guarding import REQUESTS, WAITING
from rolloutfs.harmless import json_line
from rolloutfs.invalidating import Pages
from rolloutfs.journal import Journal
from rolloutfs.mounttable import SUBTYPE
from rolloutfs.operations import Operations
from rolloutfs.passthrough import Door
from rolloutfs.pool import Pool, open_pool
from rolloutfs.spoolfolder import SpoolFolder
from rolloutfs.watch import open_watch
from rolloutfs.worker import UNNOTICED, Place

log = logging.getLogger(__name__)

_FILES = 8192  # open files that we would like to be allowed
_PATIENCE = 30.0  # seconds for a mount to answer for the first time
_READY = b"ready"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # each asks for the end
_PLAIN = frozenset(f"{string.ascii_letters}{string.digits}/._-")
_PRIVATE_JOURNAL = "operations.partial"  # where there is no state folder; the spool doesn't remove what is called so


@dataclass(frozen=True, slots=True)
class Request:
    """A mount that was asked for."""

    store: str
    mountpoint: str
    foreground: bool = False
    replace: bool = False
    options: frozenset[str] = frozenset()  # for FUSE, besides the ones that are always set
    read_only: bool = False
    with_index: bool = True
    passthrough: bool = False
    zone: str = "UTC"
    mask_secrets: bool = False
    xattrs: bool = True

    @classmethod
    def of(cls, store: str, mountpoint: str, settings: MountSettings) -> Request:
        """A mount with settings from the command line, the environment and the config."""
        options = frozenset({"allow_other"} if settings.allow_other else ())
        how = (settings.foreground, settings.replace, options, settings.read_only, settings.index, settings.passthrough)
        xattrs = not settings.read_only if settings.xattrs is None else settings.xattrs
        return cls(store, mountpoint, *how, zone=settings.zone, mask_secrets=settings.mask_secrets, xattrs=xattrs)


def mount(request: Request, say: Callable[[str], None]) -> None:
    """Mount and, in the foreground, serve until the end. Raises MountError.

    In the background it returns in the process that called it once the mount can be used; `say` takes lines for the
    user.
    """
    logs.to_terminal()
    manager = notify.take()
    zones.find(request.zone)
    if request.mask_secrets:
        masks.check()
    root = checks.store_root(request.store)
    checks.fuse()
    place = checks.mountpoint(request.mountpoint, root, replace=request.replace)
    log = (-1, None) if request.foreground else logs.open_file(place, root)
    spool = spoolfolder.make(root, os.path.join(root, "sessions"), os.path.join(root, "archived_sessions"), place)
    try:
        kept = journal.place(root, avoid=place)
        if kept is None or not journal.is_usable(kept):
            kept = os.path.join(spool.path, _PRIVATE_JOURNAL)
            say("There is no folder for operations.jsonl ($XDG_STATE_HOME): it is kept until the unmount.")
        states = RememberedStates(root)
        index = indexing.place(root, root, place) if request.with_index else None
        mask = Masker(masks.folder(root, place)) if request.mask_secrets else None
        store = _open_store(root, spool.path, states, index, mask)
        server = _Server(store, states, spool, place, Journal(kept), request, index)
    except BaseException:
        spool.remove()
        raise
    if request.foreground:

        def ready() -> None:
            say(f"{root} is mounted on {place}. Ctrl-C unmounts it.")
            manager.ready(f"{root} is mounted on {place}")

        server.serve(ready, manager.stopping)
        return
    log_target, log_path = log
    _in_background(server, place, log_target)
    say(f"{root} is mounted on {place}. Unmount it with: {checks.clear_command(place)}")
    if log_path is None:
        say("There is no folder for a log ($XDG_STATE_HOME): the server writes none.")


def _told(root: str, index: str | None, request: Request, *, passes: bool) -> bytes:
    """How this is mounted, as it turned out, for `rolloutfs status`."""
    told: dict[str, object] = {
        "version": __version__,
        "store": root,
        "index": index,
        "read_only": request.read_only,
        "passthrough": passes,
        "allow_other": "allow_other" in request.options,
        "zone": request.zone,
        "mask_secrets": request.mask_secrets,
        "xattrs": request.xattrs,
    }
    return json_line(told).encode() + b"\n"


def _open_store(root: str, spool: str, states: RememberedStates, index: str | None, mask: Masker | None) -> ThreadStore:
    try:
        return ThreadStore(root, Spool(spool), states, None if index is None else IndexReader(index), mask)
    except StoreError as error:
        raise MountError(error.message, Exit.STORE) from error


class _Server:
    """A mount that the kernel knows; `serve` answers for it, once, and ends it and the spool."""

    def __init__(
        self,
        store: ThreadStore,
        states: RememberedStates,
        spool: SpoolFolder,
        mountpoint: str,
        past: Journal,
        request: Request,
        index: str | None,
    ) -> None:
        self._index = index
        self._states = states
        self._spool = spool
        zone = zones.find(request.zone)
        patterns = masks.folder(store.root, mountpoint) if request.mask_secrets else None
        self._place = Place(store.root, spool.path, index, zone, request.mask_secrets, patterns)
        self._engine = Engine(store, None)
        how = {"read_only": request.read_only, "xattrs": request.xattrs}
        self._operations = Operations(self._engine, readme.text(), past, **how, zone=zone)
        self._mountpoint = mountpoint
        self._door = _door(store.root, mountpoint, request) if request.passthrough else None
        source = f"fsname={_escaped(store.root)}"  # as in fstab, so that `mount -a` knows what is mounted already
        wanted = {*pyfuse3.default_options, source, f"subtype={SUBTYPE}", *request.options}
        if request.read_only:
            wanted.add("ro")
        if self._door is not None:  # which has mounted already
            self._operations.serve_through(self._door)
            mountpoint, wanted = self._door.path, set()
        self._operations.contents.say_how(_told(store.root, index, request, passes=self._door is not None))
        self._gate: Gate | None = None
        before = gate.devices()
        try:
            with identity.while_mounting():
                pyfuse3.init(self._operations, mountpoint, wanted)
        except RuntimeError as error:
            if self._door is not None:
                self._door.close(unmount=True)
            raise MountError(
                f"The mount was refused ({error}); the reason stands above.{_hint(request.options)}", Exit.FUSE
            ) from error

        self._devices = gate.devices() - before

    def _open_gate(self) -> Gate | None:
        """Where requests for folders are answered without pyfuse3; None where that isn't possible."""
        if self._door is not None or requestloop.obstacle() is not None or len(self._devices) != 1:
            return None
        (device,) = self._devices
        opened = Gate(device, self._operations.shortcuts)
        WAITING.begin = opened.settle
        self._operations.reach(Pages(opened.device))
        self._operations.shortcuts.keep_names()
        return opened

    def abandon(self) -> None:
        """Let go of the mount without ending it: another process serves it."""
        self._close(unmount=False)

    def _close(self, *, unmount: bool) -> None:
        if self._door is not None:
            self._door.close(unmount=unmount)
        if self._gate is not None:
            self._gate.close()
        pyfuse3.close(unmount=unmount and self._door is None)

    def serve(self, ready: Callable[[], None], ending: Callable[[], None] = lambda: None) -> None:
        """Answer until the mount is gone or a signal asks for the end; `ready` is called before the first answer, and
        `ending` after the last.

        Raises whatever went wrong inside; the mount is then left dead.
        """
        clean = False
        try:
            _allow_files()
            self._gate = self._open_gate()
            requestloop.enable(WAITING, self._door or self._gate)
            gc.freeze()  # what is here stays: each look for garbage among it takes as long as some hundred requests
            trio.run(self._main, ready, ending)
            clean = True
        finally:
            for number in _SIGNALS:  # a second one, as of a service manager after its ExecStop, would leave the spool
                signal.signal(number, signal.SIG_IGN)
            self._close(unmount=clean)
            self._spool.remove()

    async def _main(self, ready: Callable[[], None], ending: Callable[[], None]) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with open_pool(self._place, self._mountpoint) as pool:
                self._engine.use(pool)

                async def end_on_signal() -> None:
                    async for _ in signals:
                        pool.close()
                        pyfuse3.terminate()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(end_on_signal)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._keep_index, pool)
                    nursery.start_soon(self._operations.notices.run)
                    if self._door is not None:
                        nursery.start_soon(self._door.attend)
                    await nursery.start(pool.warm, REQUESTS.total)
                    self._operations.controls.use(nursery)
                    if self._gate is not None:
                        self._gate.use(nursery)
                    ready()
                    try:
                        await _answer()
                    finally:
                        ending()
                    await self._operations.controls.finish()
                    nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Hear of changes to the store, where that can be done."""
        beside = databases.elsewhere(self._place.root)
        watch = open_watch(self._place.root, self._states, self._operations.following.note, beside)
        if watch is not None:
            self._operations.following.use(watch)
            await watch.run()

    async def _keep_index(self, requests: Pool) -> None:
        """Let another process enter what the store holds into the index, behind those who wait for an answer."""
        if self._index is None:
            return
        watched = self._operations.is_watched
        keeping = indexing.Indexing(self._index, watched, requests.calm)
        self._operations.following.touched = keeping.note
        self._operations.searches.lagging = keeping.lagging
        unmasked = replace(self._place, mask=False)  # the index keeps what is in the logs
        async with open_pool(unmasked, niceness=UNNOTICED) as pool:
            await keeping.run(pool)


def _door(root: str, mountpoint: str, request: Request) -> Door | None:
    """Mount so that the kernel may read files by itself; None, and a line in the log, when it can't be done."""
    reason = passthrough.obstacle()
    door = None
    if reason is None:
        try:
            allow_other = "allow_other" in request.options
            door = Door(root, mountpoint, read_only=request.read_only, allow_other=allow_other)
        except OSError as error:
            reason = f"the mount was refused ({error.strerror})"
        else:
            reason = "the kernel can't do that (it takes Linux 6.9 or later)" if door.backings is None else None
    if reason is not None:
        log.warning("Without passthrough, as in a mount that wasn't asked for it: %s.", reason)
    return door


def _escaped(path: str) -> str:
    """A path as the value of an option of libfuse: pyfuse3 takes ASCII only, and a comma would end it."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(path))


async def _answer() -> None:
    """Answer requests until the mount ends.

    When the connection goes while a request is on its way out of the kernel, read(2) fails with ECONNABORTED instead of
    ENODEV (fs/fuse/dev.c, fuse_dev_do_read), which libfuse takes for a failure. It is the same end.
    """
    try:
        await pyfuse3.main()
    except* ConnectionAbortedError:
        log.debug("The connection ended while a request was being read.")


def _hint(options: frozenset[str]) -> str:
    if "allow_other" in options and os.geteuid() != 0:
        return " With allow_other, /etc/fuse.conf must contain the line user_allow_other."
    return ""


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _in_background(server: _Server, mountpoint: str, log_target: int) -> None:
    """Serve in a process of its own; returns once the mount answers. MountError when it won't."""
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(reading)
        os.setsid()
        if os.fork():
            os._exit(0)
        _daemon(server, writing, log_target)
    os.close(writing)
    os.close(log_target)
    server.abandon()
    os.waitpid(first, 0)
    with open(reading, "rb") as pipe:
        said = pipe.read(len(_READY))
        if said != _READY:
            raise MountError(f"The server ended at once: {os.fsdecode(said + pipe.read())}", Exit.INTERNAL)
    _wait_for_answer(mountpoint)


def _daemon(server: _Server, writing: int, log_target: int) -> NoReturn:
    code = Exit.INTERNAL
    try:
        os.chdir("/")
        logs.to_file(log_target)

        def ready() -> None:
            os.write(writing, _READY)
            os.close(writing)

        server.serve(ready)
        code = Exit.DONE
    except BaseException as error:
        log.exception("The server ended; its mount is left dead")
        with contextlib.suppress(OSError):
            os.write(writing, os.fsencode(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(code)


def _wait_for_answer(mountpoint: str) -> None:
    """Ask the mount for something; in a thread, since an answer that never comes can't be interrupted."""
    result: list[OSError | None] = []

    def ask() -> None:
        try:
            os.stat(os.path.join(mountpoint, "README.md"))
            result.append(None)
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if not result:
        raise MountError(f"The mount on {mountpoint} does not answer. See {logs.log_file(mountpoint)}.", Exit.INTERNAL)
    if result[0] is not None:
        raise MountError(
            f"The mount on {mountpoint} failed: {result[0].strerror}. See {logs.log_file(mountpoint)}.", Exit.INTERNAL
        )
