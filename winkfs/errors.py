"""Errors of the filesystem layer, each with its errno, so that a mount can pass it on; errors of
formats are raised by `winkformats`. Also the signals that end a program."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, Final

from winkformats.errors import CorruptError as CorruptError
from winkformats.errors import DerivedDamage as DerivedDamage
from winkformats.errors import FormatError as FormatError
from winkformats.errors import WinkError as WinkError

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESEND_SECONDS: Final = 0.01  # between two attempts to send a signal again


class Refusal(WinkError, OSError):
    """A refusal of the filesystem layer. `errno` and `filename` are set; str() is one line."""

    number = errno.EIO

    def __init__(self, message: str, filename: str | None = None, *, number: int | None = None):
        super().__init__(number or self.number, message)
        self.filename = filename

    def __reduce__(self) -> tuple[Any, ...]:  # OSError's own loses the filename
        return _made, (type(self), self.strerror, self.filename, self.errno)

    def __str__(self) -> str:
        text = self.strerror or os.strerror(self.errno or errno.EIO)
        line = f"{self.filename}: {text}" if self.filename else text
        return re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", line)


def _made(kind: type[Refusal], message: str, filename: str | None, number: int) -> Refusal:
    return kind(message, filename, number=number)


class NoSuchFile(Refusal, FileNotFoundError):
    """There is no file of that name, or no container."""

    number = errno.ENOENT


class NoSuchKey(NoSuchFile, KeyError):
    """There is no file of that name, in a subscript: `container[name]`. Also a KeyError."""


class NotDirectory(Refusal, NotADirectoryError):
    """A directory is needed, and the path is that of a file."""

    number = errno.ENOTDIR


class IsDirectory(Refusal, IsADirectoryError):
    """A file is needed, and the path is that of a directory."""

    number = errno.EISDIR


class FileExists(Refusal, FileExistsError):
    """The name, or the container, exists already."""

    number = errno.EEXIST


class NameTooLong(Refusal):
    """The container cannot hold a name of that length."""

    number = errno.ENAMETOOLONG


class NotAllowed(Refusal, PermissionError):
    """The variant of the container forbids it; the message has the reason."""

    number = errno.EPERM


class ReadOnly(Refusal):
    """The handle was opened for reading."""

    number = errno.EROFS


class Locked(Refusal, BlockingIOError):
    """Another writer holds the container."""

    number = errno.EAGAIN


class Closed(Refusal, ValueError):
    """The handle is closed, or is a writer of the parent process."""

    number = errno.EBADF


class Busy(Refusal, RuntimeError):
    """The call was made from within a running call of the same handle, which forbids it."""

    number = errno.EBUSY


class StalePlan(Refusal):
    """The files that were planned have changed: a shard was replaced or vacuumed. Plan anew."""

    number = errno.ESTALE


class LostShard(StalePlan, CorruptError):
    """A shard that the newest generation has is missing, cut short or damaged: its files cannot be
    read. To a pass over all files it is damage, and costs only them; to a plan it has changed."""

    def __init__(self, message: str, filename: str, *, number: int | None = None) -> None:
        OSError.__init__(self, number or self.number, message)
        self.filename = self.file = filename
        self.what, self.offset, self.expected, self.found = message, 0, None, None


class DatasetConflict(Refusal):
    """Another commit came first: files to be removed are gone, or columns conflict."""

    number = errno.EBUSY


class DamageWarning(UserWarning):
    """A container that was opened is damaged: files may be missing, `problems` lists the places."""


def warn_caller(what: str, kind: type[Warning]) -> None:
    """Warn at the line of the caller of this library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "winkfs":
        frame, level = frame.f_back, level + 1
    warnings.warn(what, kind, stacklevel=level)


def warn_of_damage(base: str, problems: Sequence[str]) -> None:
    """Emit a DamageWarning at the caller's line that opened `base`, if there are any problems."""
    if not problems:
        return
    more = f" (and {len(problems) - 1} more: see `problems`)" if len(problems) > 1 else ""
    what = f"{base} is damaged, files may be missing: {problems[0]}{more}"
    warn_caller(what, DamageWarning)


class Stopped(BaseException):
    """A signal that ends the program, after it has cleaned up."""

    def __init__(self, number: int) -> None:
        self.number = number


def stop(number: int, _: FrameType | None) -> None:
    """Raise Stopped: a signal handler."""
    raise Stopped(number)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the signals that end a program until the end of the block: by then new files have an
    owner that removes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_of(error: BaseException | None) -> int:
    """Return the signal that raised an exception; 0: none did."""
    if isinstance(error, Stopped):
        return error.number
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0


def deliver_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception Python dropped, as it does in callbacks of its own, such
    as that of an import lock. For `sys.unraisablehook`."""
    if number := signal_of(dropped.exc_value):
        threading.Thread(target=_send_later, args=(number,), daemon=True).start()
    else:
        sys.__unraisablehook__(dropped)


def _send_later(number: int) -> None:
    """Send a signal to this process once its main thread has left `deliver_again`, in which it
    would be lost."""
    frame: FrameType | None
    while True:
        time.sleep(RESEND_SECONDS)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame and frame.f_code is not deliver_again.__code__:
            frame = frame.f_back
        if frame is None:
            return os.kill(os.getpid(), number)


# --- packages that come with an extra of winkfs ---

EXTRAS: Final = {
    "pyspark": "pipeline", "pyspark_winkfs": "pipeline", "py4j": "pipeline", "pyarrow": "pipeline",
    "grpc": "connect", "grpc_status": "connect", "google": "connect",
    "pandas": "pipeline", "fastwarc": "pipeline", "matplotlib": "pipeline",
    "zstandard": "compress", "fsspec": "fsspec", "polars": "polars", "duckdb": "query",
    "ratarmountcore": "ratarmount", "obstore": "cloud", "urllib3": "cloud", "datasets": "hf",
    "ray": "ray", "dissect": "archives",
}  # fmt: skip


def advice(package: str | None, extra: str | None = None) -> str | None:
    """Return what to do about a package that is missing; None: it comes with no extra."""
    extra = extra or EXTRAS.get((package or "").partition(".")[0])
    return extra and f"needs winkfs[{extra}]: pip install 'winkfs[{extra}]'"


def need_installed(what: str, *packages: str) -> None:
    """Look for packages of an extra, without the cost of importing them.

    raises  Refusal, which names the extra
    """
    from importlib.util import find_spec

    for package in packages:
        try:
            found = find_spec(package)
        except ImportError:
            found = None
        if found is None:
            raise Refusal(f"{what} {advice(package)}")


def need(package: str, what: str, extra: str | None = None) -> Any:
    """Import a package for something -> the module. extra: with which it comes; None: see EXTRAS.

    raises  Refusal, which names the extra
    """
    try:
        return import_module(package)
    except ImportError:
        raise Refusal(f"{what} {advice(package, extra)}") from None
