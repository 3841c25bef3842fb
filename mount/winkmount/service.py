"""Serving a mount: in the foreground, or as a process of its own in the background.

A Source may hold locks and threads that do not survive a fork, so the background process is forked
first and opens the Source itself; the caller waits until the kernel has the mount, or for the
reason why not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import IO, Final

from winkmount.binding import LibfuseError, MountError, choose, run
from winkmount.mounts import canonical, mount_at
from winkmount.operations import Caching, Operations
from winkmount.options import Options
from winkmount.source import Source

log = logging.getLogger("winkmount")

DEVICE: Final = "/dev/fuse"
_ENDED: Final = "the server ended before the mount was there"


@dataclass(frozen=True, slots=True)
class Request:
    """A mount to be made.

    open        -> the Source; called in the process that serves
    name        kind of mount: `fuse.NAME` in the mount table
    origin      what is mounted, as the mount table shows it
    directory   where
    binding     "mfusepy", "fusepy" or None: see `choose`
    """

    open: Callable[[], Source]
    name: str
    origin: str
    directory: str
    options: Options
    binding: str | None = None


def check(request: Request) -> str:
    """-> the mount point, resolved. Raises MountError: what is missing, and how to get it."""
    directory = request.directory
    binding = choose(request.binding)
    try:
        os.statvfs(directory)  # asks the server of a mount; a stat may come from the kernel's cache
        found = os.stat(directory)
    except FileNotFoundError:
        raise MountError(f"{directory}: no such directory: mkdir {directory}") from None
    except OSError as error:
        hint = "a dead mount, unmount it first" if error.errno == errno.ENOTCONN else error.strerror
        raise MountError(f"{directory}: {hint}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise MountError(f"{directory}: not a directory")
    point = canonical(directory)
    mount = mount_at(point)
    if mount is not None and mount.kind == f"fuse.{request.name}":
        raise MountError(f"{directory}: {mount.origin} is already mounted here")
    if not Path(DEVICE).exists():
        raise MountError(
            f"{DEVICE} is missing: modprobe fuse (in a container: --device {DEVICE}"
            " --cap-add SYS_ADMIN)"
        )
    if os.path.commonpath([point, os.path.realpath(request.origin)]) == point:
        raise MountError(f"{directory}: holds {request.origin} itself, which it would hide")
    helper = "fusermount3" if binding == "mfusepy" else "fusermount"
    if os.geteuid() != 0 and shutil.which(helper) is None:
        raise MountError(f"{helper} is not installed: apt install fuse3")
    return point


def serve(request: Request, on_start: Callable[[], None] | None = None) -> None:
    """Mount, and answer the kernel until the mount is gone (umount, SIGTERM, SIGINT).

    Everything is synced and the Source closed on return.
    raises      MountError; OSError and others from opening the Source
    """
    binding = choose(request.binding)
    point = check(request)
    source = request.open()
    options = request.options
    caching = Caching.of(source, pages=options.cache == "kernel", follow=options.follow)
    operations = Operations(source, request.name, on_start, caching)
    stop = threading.Event()
    syncer = threading.Thread(
        target=_sync_loop, args=(operations, request.options.sync_every, stop), daemon=True
    )
    with _signals(signal.SIG_DFL):  # libfuse takes over those nobody else has
        try:
            syncer.start()
            run(binding, operations, point, _fuse_options(request, source))
        finally:
            with _signals(signal.SIG_IGN):  # a second SIGTERM must not cut the last sync short
                stop.set()
                syncer.join()
                operations.close()


def _fuse_options(request: Request, source: Source) -> dict[str, str | bool]:
    origin = os.fsencode(request.origin).decode("latin-1")
    options: dict[str, str | bool] = {
        "fsname": origin.replace("\\", "\\\\").replace(",", "\\,"),
        "subtype": request.name,
        **request.options.fuse,
    }
    if not source.writable:
        options["ro"] = True
    return options


def _sync_loop(operations: Operations, every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        if operations.changed.is_set():
            try:
                operations.sync()
            except Exception as error:  # a full disk may get room again; fsync tells the writers
                log.error("background sync: %s", error)


@contextlib.contextmanager
def _signals(action: signal.Handlers) -> Iterator[None]:
    """Handle the signals that end a server so."""
    before = {
        number: signal.signal(number, action)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve_in_background(request: Request) -> str:
    """Start a server process and return when its mount answers.

    ->          what it had to say meanwhile (warnings, a line each)
    raises      MountError with the reason why there is no mount
    """
    request = replace(request, directory=check(request))  # absolute: the server changes to /
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # 3.12 warns of numpy's sleeping threads; we use none
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(reader)
            _background(request, writer, said)
        os.close(writer)
        try:
            with os.fdopen(reader, "rb") as pipe:
                answer = pipe.read()  # until the server has closed it: it serves, or has ended
        except BaseException:  # interrupted: then there shall be no mount either
            os.kill(pid, signal.SIGTERM)
            raise
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    reason, with_said = json.loads(answer) if answer else (f"{request.origin}: {_ENDED}", True)
    if reason:
        os.waitpid(pid, 0)
        raise MountError(f"{reason}: {text.splitlines()[-1]}" if with_said and text else reason)
    try:
        os.stat(request.directory)  # the kernel holds this back until the mount answers
    except OSError as error:
        raise MountError(f"{request.directory}: {error.strerror}: the server has ended") from None
    return text


class _Caller:
    """The end of the pipe to the process that started the server; it can be answered once."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def answer(self, reason: str, *, with_said: bool = False) -> None:
        """reason: why there is no mount, or empty; with_said: libfuse said more on stderr."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.write(pipe, json.dumps([reason, with_said]).encode())
            os.close(pipe)
        elif reason:
            log.error("%s", reason)


def _background(request: Request, pipe: int, said: IO[bytes]) -> None:
    """The server process. Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        caller = _Caller(_keep_only(pipe, said.fileno()))

        def started() -> None:
            _silence(request.name)
            caller.answer("")

        try:
            serve(request, started)
            code = 0
        except Exception as error:
            caller.answer(_one_line(error), with_said=isinstance(error, LibfuseError))
    finally:
        logging.shutdown()
        os._exit(code)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, OSError | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _keep_only(pipe: int, said: int) -> int:
    """Close what was inherited: a server must hold no file, lock or pipe of who started it.

    ->      the pipe, as descriptor 3; what is said on 1 and 2 goes to `said`
    """
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD, 4)
    said = fcntl.fcntl(said, fcntl.F_DUPFD, 4)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.dup2(pipe, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def _silence(name: str) -> None:
    """From here on nobody reads stderr: syslog takes what there is to say, where there is one."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):
        os.dup2(null, standard)
    os.close(null)
    handler: logging.Handler = logging.NullHandler()
    with contextlib.suppress(OSError):
        syslog = SysLogHandler("/dev/log")
        syslog.ident = f"{name}[{os.getpid()}]: "
        handler = syslog
    logging.getLogger().handlers[:] = [handler]
