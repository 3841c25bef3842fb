"""What the filesystem layer refuses, each with its errno, so that a mount can pass it on; and what
is wrong with bytes, which is said by the formats below. Also the signals that end a program."""

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
SOON: Final = 0.01  # seconds


class Refusal(WinkError, OSError):
    """A refusal of the filesystem layer. `errno` and `filename` are set; str() is one line."""

    number = errno.EIO

    def __init__(self, message: str, filename: str | None = None, *, number: int | None = None):
        super().__init__(number or self.number, message)
        self.filename = filename

    def __reduce__(self) -> tuple[Any, ...]:  # that of OSError loses the file
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
    """The same, asked for as of a dict: `container[name]`."""


class NotDirectory(Refusal, NotADirectoryError):
    """A directory is asked for, and the name is that of a file."""

    number = errno.ENOTDIR


class FileExists(Refusal, FileExistsError):
    """The name, or the container, exists already."""

    number = errno.EEXIST


class NameTooLong(Refusal):
    """The container cannot hold a name of that length."""

    number = errno.ENAMETOOLONG


class NotAllowed(Refusal, PermissionError):
    """The variant of the container forbids it; the message says why."""

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
    """A call is running on the handle that this one, made from within it, would get in the way."""

    number = errno.EBUSY


class StalePlan(Refusal):
    """What was planned is no more: a shard is another, or was vacuumed. Plan anew."""

    number = errno.ESTALE


class DatasetConflict(Refusal):
    """Somebody committed first: what this was to remove is gone, or columns do not go together."""

    number = errno.EBUSY


class DamageWarning(UserWarning):
    """A container that was opened is damaged: files may be missing, `problems` says where."""


def warn_caller(what: str, kind: type[Warning]) -> None:
    """Warn at the line of the caller of this library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "winkfs":
        frame, level = frame.f_back, level + 1
    warnings.warn(what, kind, stacklevel=level)


def warn_of_damage(base: str, problems: Sequence[str]) -> None:
    """A DamageWarning at the line of the user's that opened `base`, if there are any problems."""
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
    """A signal's handler."""
    raise Stopped(number)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What comes meanwhile raises at the end of the block: by then what was made has an owner, who
    removes it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_of(error: BaseException | None) -> int:
    """The signal that raised an exception; 0: none did."""
    if isinstance(error, Stopped):
        return error.number
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0


def deliver_again(dropped: sys.UnraisableHookArgs) -> None:
    """`sys.unraisablehook`: Python drops what a signal raises in a callback of its own, as in that
    of an import's lock. So it comes again."""
    if number := signal_of(dropped.exc_value):
        threading.Thread(target=_send_later, args=(number,), daemon=True).start()
    else:
        sys.__unraisablehook__(dropped)


def _send_later(number: int) -> None:
    """Send a signal to this process once its main thread is out of the hook above, which would
    drop it for good."""
    frame: FrameType | None
    while True:
        time.sleep(SOON)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame and frame.f_code is not deliver_again.__code__:
            frame = frame.f_back
        if frame is None:
            return os.kill(os.getpid(), number)


# --- packages that come with an extra of winkfs ---

EXTRAS: Final = {
    "pyspark": "pipeline", "pyspark_winkfs": "pipeline", "py4j": "pipeline", "pyarrow": "pipeline",
    "pandas": "pipeline", "fastwarc": "pipeline", "matplotlib": "pipeline",
    "zstandard": "compress",
}  # fmt: skip


def advice(package: str | None) -> str | None:
    """Return what to do about a package that is missing; None: it comes with no extra."""
    extra = EXTRAS.get((package or "").partition(".")[0])
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


def need(package: str, what: str) -> Any:
    """Import a package of an extra for something -> the module.

    raises  Refusal, which names the extra
    """
    try:
        return import_module(package)
    except ImportError:
        raise Refusal(f"{what} {advice(package)}") from None
