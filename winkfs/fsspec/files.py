"""Open files of the fsspec filesystem, and the transaction that they are written in."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from fsspec.transaction import Transaction

from winkfs.entry import BUFFER_BYTES, FileReader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# `fs` is a WinkFileSystem, whose module imports this one.
SPOOLED_BYTES: Final = 8 << 20  # of a file that is written, up to which it is kept in memory


class ReadFile(io.BufferedReader):
    """A file that is read: seekable, buffered; it can be pickled, at its position."""

    def __init__(self, fs: Any, path: str, raw: FileReader, block: int | None) -> None:
        best = min(block, BUFFER_BYTES) if block else BUFFER_BYTES
        super().__init__(raw, max(min(best, raw.best_buffer), 1))
        self.fs, self.path, self.size = fs, path, raw.seek(0, os.SEEK_END)
        self.blocksize = best
        raw.seek(0)

    @property
    def details(self) -> dict[str, Any]:
        """Metadata of the file: see `WinkFileSystem.info`."""
        found: dict[str, Any] = self.fs.info(self.path)
        return found

    def info(self) -> dict[str, Any]:
        """Return `details`."""
        return self.details

    @property
    def full_name(self) -> str:
        found: str = self.fs.unstrip_protocol(self.path)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.fs, self.path, self.tell())


def _reopened(fs: Any, path: str, at: int) -> ReadFile:
    """Open a file that was pickled."""
    found: ReadFile = fs.open(path, "rb")
    found.seek(at)
    return found


class WriteFile(io.BufferedIOBase):
    """A file that is written. It is seekable; the store gets it, as a whole, when it is closed.

    Memory: SPOOLED_BYTES; beyond that a temporary file.
    """

    def __init__(
        self,
        fs: Any,
        path: str,
        mode: str,
        keep: Callable[[WriteFile], None],
        begin: Iterable[bytes] = (),
        before: int = 0,
    ) -> None:
        """Begin with some content.

        keep    takes the file when it is closed
        before  bytes before the first one that is written, which the store has already
        """
        self.fs, self.path, self.mode, self._keep, self._before = fs, path, mode, keep, before
        self.spool = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115  # closed below
        self.spool.writelines(begin)

    @property
    def name(self) -> str:
        return self.path

    def writable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Add bytes, or change those that are there."""
        self._check()
        return self.spool.write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        if whence == os.SEEK_SET:
            offset -= self._before
            if offset < 0:
                raise io.UnsupportedOperation(f"{self.path}: only what is added can be changed")
        return self.spool.seek(offset, whence) + self._before

    def tell(self) -> int:
        self._check()
        return self.spool.tell() + self._before

    def truncate(self, size: int | None = None) -> int:
        self._check()
        at = self.tell() if size is None else size
        self.spool.truncate(max(at - self._before, 0))
        return at

    @property
    def size(self) -> int:
        """Bytes so far, with those that the store has already."""
        at = self.spool.tell()
        try:
            return self.spool.seek(0, os.SEEK_END) + self._before
        finally:
            self.spool.seek(at)

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def close(self) -> None:
        """Put the file into the store. Idempotent. Raises OSError; the file is closed then, too."""
        if self.closed:
            return
        try:
            self._keep(self)
        finally:
            self.discard()

    def commit(self) -> None:
        """Close the file, at the end of its transaction."""
        self.close()

    def discard(self) -> None:
        """Close the file without putting it into the store. Idempotent."""
        self.spool.close()
        super().close()


class WinkTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """Changes that become one commit of a data set, or one sync of a container.

    An exception in the block discards them. Before that, only this filesystem sees them.
    """

    def start(self) -> None:
        """Begin. Raises ReadOnly."""
        self.fs.begin_changes()
        super().start()

    def complete(self, commit: bool = True) -> None:
        """Commit the changes, or discard them. Raises OSError; DatasetConflict."""
        fs, files = self.fs, list(self.files)
        try:
            super().complete(commit)
        except BaseException:
            commit = False
            raise
        finally:
            for file in files:
                file.discard()
            fs.end_changes(commit=commit)
