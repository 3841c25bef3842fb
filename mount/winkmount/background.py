"""Serving a mount by a process of its own in the background.

A Source may hold locks and threads that do not survive a fork, so the background process is forked
first and opens the Source itself; the caller waits until the kernel has the mount, or for the
reason why not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from logging.handlers import SysLogHandler
from typing import IO, Final

from winkmount.binding import LibfuseError, MountError
from winkmount.service import Request, check, serve

log = logging.getLogger("winkmount")

_ENDED: Final = "the server ended before the mount was there"


def serve_in_background(request: Request) -> str:
    """Start a server process and return when its mount answers.

    ->          what it had to say meanwhile (warnings, a line each)
    raises      MountError with the reason why there is no mount
    """
    request = replace(request, directory=check(request))  # absolute: the server changes to /
    reader, writer = os.pipe()
    # an exception closes the pipe at once: a server that comes up without its caller ends again
    with os.fdopen(reader, "rb") as pipe, tempfile.TemporaryFile() as said:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():  # 3.12 warns of numpy's sleeping threads; we use none
                warnings.simplefilter("ignore", DeprecationWarning)
                with _held_back():
                    pid = os.fork()
            if pid == 0:
                os.close(reader)
                _background(request, writer, said)
        finally:
            os.close(writer)
        os.waitpid(pid, 0)
        answer = pipe.read()  # until the server has closed it: it serves, or has ended
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    reason, with_said = json.loads(answer) if answer else (f"{request.origin}: {_ENDED}", True)
    if reason:
        raise MountError(f"{reason}: {text.splitlines()[-1]}" if with_said and text else reason)
    try:
        os.stat(request.directory)  # the kernel holds this back until the mount answers
    except OSError as error:
        raise MountError(f"{request.directory}: {error.strerror}: the server has ended") from None
    return text


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Signals come after this: what a handler raises inside of fork, Python drops."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Caller:
    """The end of the pipe to the process that started the server; it can be answered once."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def serving(self) -> None:
        pipe, self._pipe = self._pipe, -1
        try:
            os.write(pipe, b'["", false]')
        except BrokenPipeError:  # it was interrupted: then there shall be no mount either
            os.kill(os.getpid(), signal.SIGTERM)
        os.close(pipe)

    def failed(self, reason: str, *, with_said: bool) -> None:
        """with_said: libfuse said more on stderr. The pipe stays open until the process ends."""
        if self._pipe < 0:
            log.error("%s", reason)
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, json.dumps([reason, with_said]).encode())


def _background(request: Request, pipe: int, said: IO[bytes]) -> None:
    """The server process. Never returns."""
    code = 1
    try:
        os.setsid()
        if os.fork():  # whoever started the server shall not have to wait for its end
            os._exit(0)
        os.chdir("/")
        caller = _Caller(_keep_only(pipe, said.fileno()))

        def started() -> None:
            _silence(request.name)
            caller.serving()

        try:
            serve(request, started)
            code = 0
        except Exception as error:
            caller.failed(_one_line(error), with_said=isinstance(error, LibfuseError))
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
