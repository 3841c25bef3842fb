"""Files of a store as `open` returns them: modes, text, and files that are written.

What is written is collected, in memory and then in a temporary file without a name. `close` stores
it in one call, so other readers see all of it or nothing.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from winkfs.errors import Refusal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

IN_MEMORY_BYTES: Final = 1 << 20  # of written content, before it goes to a temporary file
MODES: Final = "r, w, x or a, with b for bytes or t for text"
OPTIONS: Final = ("mtime", "mtime_ns", "permissions", "columns")
Store = Callable[[IO[bytes], int], None]
"""Stores the content of a file, which is at its start, and has so many bytes."""


class Mode(NamedTuple):
    """A mode of `open`. `action`: r, w, x or a."""

    action: str
    text: bool


def parse_mode(mode: str) -> Mode:
    """Return a mode from its text. Raises ValueError; TypeError."""
    if not isinstance(mode, str):
        raise TypeError(f"a mode is a text, not {type(mode).__name__}")
    actions = [letter for letter in mode if letter in "rwxa"]
    kinds = mode.replace(actions[0], "", 1) if actions else mode
    if "+" in mode:
        raise ValueError(f"mode {mode!r}: a file is read or written, not both at once")
    if len(actions) != 1 or kinds not in ("", "b", "t"):
        raise ValueError(f"mode must be {MODES}, such as 'rb', not {mode!r}")
    return Mode(actions[0], kinds != "b")


def check_text(mode: Mode, buffering: int, *options: str | None) -> None:
    """Check options that only a text file has. Raises ValueError."""
    if not mode.text and any(option is not None for option in options):
        raise ValueError("encoding, errors and newline are for text: a mode without b")
    if mode.text and buffering == 0:
        raise ValueError("a text file is buffered: buffering must not be 0")
    check_coding(*options)


def check_coding(encoding: str | None, errors: str | None, newline: str | None) -> None:
    """Check options of a text file before one is opened: a writer that is dropped because they are
    wrong may be stored. Raises LookupError; ValueError; TypeError."""
    io.TextIOWrapper(io.BytesIO(), encoding, errors, newline)


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a file that is written. Raises TypeError for others."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"open_file has no option {name!r}: {', '.join(OPTIONS)}")
    return options


class FileWriter(io.BufferedIOBase):
    """A file that is being written, seekable. `close` stores it; until then the store has nothing
    of it. A `with` block that ends with an exception discards it, as does `discard`.

    store   called by `close`
    folder  for the temporary file
    """

    def __init__(self, name: str, mode: str, store: Store, folder: str) -> None:
        self.name, self.mode = name, mode
        import tempfile  # late, because its import is slow

        self._store, self._wanted, self._failed = store, True, False
        where = folder if os.path.isdir(folder) else None
        self._spool: tempfile.SpooledTemporaryFile[bytes]
        self._spool = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=where)  # noqa: SIM115

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Write bytes -> how many."""
        self._check()
        try:
            return self._spool.write(data)
        except (OSError, MemoryError):
            self._failed = True
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        self._spool.seek(offset, whence)
        return self._spool.tell()

    def tell(self) -> int:
        self._check()
        return self._spool.tell()

    def truncate(self, size: int | None = None) -> int:
        """Cut or grow the file to `size` bytes; None: to the position."""
        self._check()
        at = self._spool.tell()
        size = at if size is None else size
        self._spool.truncate(size)
        if (short := size - self._end()) > 0:  # one in memory does not grow
            self._spool.seek(0, io.SEEK_END)
            self._spool.write(bytes(short))
            self._spool.seek(at)
        return size

    def _end(self) -> int:
        """Return how many bytes it has; the position stays."""
        at = self._spool.tell()
        self._spool.seek(0, io.SEEK_END)
        end = self._spool.tell()
        self._spool.seek(at)
        return end

    def read(self, size: int | None = -1) -> bytes:
        raise io.UnsupportedOperation("not open for reading")

    read1 = read

    def readinto(self, buffer: WriteableBuffer) -> int:
        raise io.UnsupportedOperation("not open for reading")

    readinto1 = readinto

    def discard(self) -> None:
        """Close it, and store nothing."""
        self._wanted = False
        self.close()

    def close(self) -> None:
        """Store what was written, and close. Idempotent.

        raises  as `put`; OSError if a write has failed before: nothing is stored then
        """
        if self.closed:
            return
        try:
            if self._wanted and self._failed:
                raise Refusal("a write to it has failed: nothing of it is stored", self.name)
            if self._wanted:
                size = self._end()
                self._spool.seek(0)
                self._store(self._spool, size)
        finally:
            self._spool.close()
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        drop(self)

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class TextWriter(io.TextIOWrapper):
    """A `FileWriter` that takes text."""

    buffer: FileWriter

    def discard(self) -> None:
        """Close it, and store nothing."""
        self.buffer.discard()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        drop(self)


def drop(file: FileWriter | TextWriter) -> None:
    """Discard a file that was garbage-collected before it was closed, with a ResourceWarning."""
    try:
        if file.closed:
            return
        what = f"unclosed file {file.name!r}: what was written to it is not stored"
        file.discard()
    except (ValueError, AttributeError):  # its constructor has raised
        return
    warnings.warn(what, ResourceWarning, stacklevel=3)
