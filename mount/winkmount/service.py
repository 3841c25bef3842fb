"""Serving a mount until it is gone, in this process or in one of its own in the background.

A Source may hold locks and threads that do not survive a fork, so the background process is forked
first and opens the Source itself; the caller waits until the kernel has the mount, or for the
reason why not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import os
import shutil
import signal
import socket
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

from winkmount.binding import FUSEPY, KERNEL, LIBFUSE, MountError, choose
from winkmount.kernel.device import DEVICE, ENDS, Pace, handled
from winkmount.mounts import ask, canonical, detach, mount_at
from winkmount.options import Options
from winkmount.served import Caching, Served
from winkmount.source import Source

FOLLOW_EVERY: Final = 1.0  # seconds
ENDING: Final = "winkmount-ends"  # at most 15 characters
SERVING: Final = "."  # the answer of a server that serves; any other is the reason why it does not

log = logging.getLogger("winkmount")


@dataclass(frozen=True, slots=True)
class Request:
    """A mount to be made.

    open        -> the Source; called in the process that serves
    name        kind of mount: `fuse.NAME` in the mount table
    origin      what is mounted, as the mount table shows it
    directory   where
    folder      that has all of it, "": where `origin` is
    binding     one of BINDINGS, or None: see `choose`
    """

    open: Callable[[], Source]
    name: str
    origin: str
    directory: str
    options: Options
    binding: str | None = None
    folder: str = ""


def check(request: Request) -> str:
    """Return the mount point, resolved. A dead mount of the same kind there is cleared away.

    raises      MountError: what is missing, and how to get it
    """
    directory = request.directory
    binding = choose(request.binding)
    point = canonical(directory)
    _check_mounted(request, point)
    try:
        found = os.stat(directory)
        os.statvfs(directory)  # asks the server of a mount; a stat may come from the kernel's cache
    except FileNotFoundError:
        raise MountError(f"{directory}: no such directory: mkdir {directory}") from None
    except OSError as error:
        hint = "a dead mount, unmount it first" if error.errno == errno.ENOTCONN else error.strerror
        raise MountError(f"{directory}: {hint}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise MountError(f"{directory}: not a directory")
    if not Path(DEVICE).exists():
        raise MountError(
            f"{DEVICE} is missing: modprobe fuse (in a container: --device {DEVICE}"
            " --cap-add SYS_ADMIN)"
        )
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise MountError(f"{DEVICE}: not for this user: chmod a+rw {DEVICE}")
    folder = os.path.realpath(request.folder or os.path.dirname(request.origin))
    if os.path.commonpath([point, folder]) == point:
        raise MountError(f"{directory}: holds {request.origin} itself, which it would hide")
    helper = "fusermount" if binding == FUSEPY else "fusermount3"
    if os.geteuid() != 0 and shutil.which(helper) is None:
        raise MountError(f"{helper} is not installed: apt install fuse3")
    return point


def _check_mounted(request: Request, point: str) -> None:
    """Refuse a second mount of one kind on a directory; clear away one whose server was killed."""
    mount = mount_at(point)
    if mount is None or mount.kind != f"fuse.{request.name}":
        return
    try:
        ask(point, f"user.{request.name}.pid")
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            detach(mount, lazy=True)
            return
        if error.errno == errno.ETIMEDOUT:
            raise MountError(f"{request.directory}: {error.strerror}") from None
    raise MountError(f"{request.directory}: {mount.origin} is already mounted here")


def serve(request: Request, on_start: Callable[[], None] | None = None) -> None:
    """Mount, and answer the kernel until the mount is gone (umount, SIGTERM, SIGINT).

    Everything is synced and the Source closed on return.
    raises      MountError; OSError and others from opening the Source
    """
    binding = choose(request.binding)
    point = check(request)
    _warn_of_the_hidden(point)
    source = request.open()
    options = request.options
    caching = Caching.of(
        source, pages=options.cache == "kernel", follow=options.follow, sync="sync" in options.fuse
    )
    if binding == FUSEPY:
        caching = replace(caching, fixed=False)  # it asks by handles
    served = Served(source, request.name, caching, on_start or (lambda: None))
    stop = threading.Event()
    task, every = _task(served, options)
    beside = threading.Thread(target=_repeat, args=(task, every, stop), daemon=True)
    with handled(signal.SIG_DFL):  # libfuse takes over those without a handler
        try:
            beside.start()
            fuse = _fuse_options(request, source)
            if binding == KERNEL:
                from winkmount.kernel import server

                nodes = source.numbered() if caching.fixed else None
                pace = Pace(options.spin * 1e-6, options.timeout)
                server.serve(served, nodes, point, fuse, pace)
            else:
                from winkmount import fusepy

                fusepy.serve(served, point, fuse)
        finally:
            # a second SIGTERM must not cut the last sync short
            with handled(signal.SIG_IGN), ending():
                stop.set()
                beside.join()
                served.close()


def _warn_of_the_hidden(point: str) -> None:
    # a user with the right to mount on a directory may not always list it
    with contextlib.suppress(OSError), os.scandir(point) as found:
        if any(found):
            log.warning("%s is not empty: what it holds is hidden by the mount", point)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Let `is_ending` be true of this process."""
    comm = Path("/proc/self/comm")
    before = comm.read_text().rstrip("\n")
    comm.write_text(ENDING)
    try:
        yield
    finally:
        comm.write_text(before)


def is_ending(pid: int) -> bool:
    """Return whether the process is a server that lost its mount and closes its Source: it ends
    soon."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{ENDING}\n"
    except OSError:
        return False


def notify_systemd() -> None:
    """Notify systemd that the mount answers, which a unit of Type=notify waits for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    if address:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.sendto(b"READY=1", address)
        except OSError as error:
            log.warning("NOTIFY_SOCKET: %s", error)


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


def _task(served: Served, options: Options) -> tuple[Callable[[], None], float]:
    """Return what is to be done in the background, and every how many seconds."""

    def sync() -> None:
        if served.changed.is_set():
            with contextlib.suppress(Exception):  # it is in the log
                served.sync()

    def follow() -> None:
        with served.mutex:
            served.version += served.source.refresh()

    return (follow, FOLLOW_EVERY) if options.follow else (sync, options.sync_every)


def _repeat(task: Callable[[], None], every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        try:
            task()
        except Exception as error:
            log.error("background: %s", error)


def serve_in_background(request: Request) -> str:
    """Start a server process and return when its mount answers.

    ->          its warnings until then, a line each
    raises      MountError with the reason why there is no mount
    """
    request = replace(request, directory=check(request))  # absolute: the server changes to /
    reader, writer = os.pipe()
    # an exception closes the pipe at once: a server that comes up without its caller ends again
    with os.fdopen(reader, "rb") as pipe, tempfile.TemporaryFile() as output:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():  # 3.12 warns of numpy's sleeping threads; we use none
                warnings.simplefilter("ignore", DeprecationWarning)
                with _held_back():
                    pid = os.fork()
            if pid == 0:
                os.close(reader)
                _background(request, writer, output)
        finally:
            os.close(writer)
        os.waitpid(pid, 0)
        read = pipe.read()  # until the server has closed it: it serves, or has ended
        answer = read.decode(errors="surrogatepass")
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    lines = text.splitlines()
    if not answer:
        reason = f"{request.origin}: the server ended before the mount was there"
        raise MountError(": ".join([reason, *lines[-1:]]))
    if answer.startswith(LIBFUSE):  # its own lines are "fuse: ..." and "fusermount: ..."
        lines = [line for line in lines if line.startswith("fuse")]
        raise MountError(": ".join([answer, *lines[-1:]]))
    if answer != SERVING:
        raise MountError(answer)
    try:
        os.stat(request.directory)  # the kernel holds this back until the mount answers
    except OSError as error:
        raise MountError(f"{request.directory}: {error.strerror}: the server has ended") from None
    return text


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Signals come after this: what a handler raises inside of fork, Python drops."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Caller:
    """The end of the pipe to the process that started the server; it can be answered once.

    name  for the log of the server, see `_silence`
    """

    def __init__(self, pipe: int, name: str) -> None:
        self._pipe, self._name = pipe, name

    def serving(self) -> None:
        """Report that the mount answers; nothing reads what is logged to stderr from then on."""
        _silence(self._name)
        pipe, self._pipe = self._pipe, -1
        try:
            os.write(pipe, SERVING.encode())
        except BrokenPipeError:  # it was interrupted: then there shall be no mount either
            os.kill(os.getpid(), signal.SIGTERM)
        os.close(pipe)

    def failed(self, reason: str) -> None:
        """Report why there is no mount. The pipe stays open until the process ends."""
        if self._pipe < 0:
            log.error("%s", reason)
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, reason.encode(errors="surrogatepass"))


def _background(request: Request, pipe: int, output: IO[bytes]) -> None:
    """Run the server process. Never returns."""
    code = 1
    gc.freeze()  # what is garbage here would close files by numbers that are others' by then
    try:
        os.setsid()
        if os.fork():  # the process that started the server does not have to wait for its end
            os._exit(0)
        os.chdir("/")
        caller = _Caller(_keep_only(pipe, output.fileno()), request.name)
        try:
            serve(request, caller.serving)
            code = 0
        except Exception as error:
            caller.failed(_one_line(error))
    finally:
        logging.shutdown()
        os._exit(code)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, OSError | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _keep_only(pipe: int, output: int) -> int:
    """Close what was inherited: a server must hold no file, lock or pipe of its caller.

    ->      the pipe, as descriptor 3; descriptors 1 and 2 write to `output`
    """
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD, 4)
    output = fcntl.fcntl(output, fcntl.F_DUPFD, 4)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(pipe, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def _silence(name: str) -> None:
    """Log to syslog from here on, if there is one: stderr is not read any more."""
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
