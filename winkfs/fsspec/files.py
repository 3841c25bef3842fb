"""Open files of the fsspec filesystem, and the transaction that they are written in."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any

from fsspec.transaction import Transaction

from winkfs.entry import BUFFER_BYTES, FileReader
from winkfs.pythonic.files import FileWriter, Store, TextWriter

# `fs` is a WinkFileSystem, whose module imports this one.


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


class WriteFile(FileWriter):
    """A file that is written. The store gets it, as a whole, when it is closed.

    One that is dropped without a close is stored, too: compressed files of fsspec close nothing.
    """

    def __init__(
        self,
        fs: Any,
        path: str,
        mode: str,
        store: Store,
        begin: Iterable[bytes] = (),
        before: int = 0,
    ) -> None:
        """Begin with some content.

        store   called by `close`
        before  bytes before the first one that is written, which the store has already
        """
        super().__init__(path, mode, store, os.path.dirname(fs.reader.base) or ".")
        self.fs, self.path, self._before = fs, path, before
        try:
            for data in begin:
                self.write(data)
        except BaseException:
            self.discard()
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET:
            offset -= self._before
            if offset < 0:
                raise io.UnsupportedOperation(f"{self.path}: only what is added can be changed")
        return super().seek(offset, whence) + self._before

    def tell(self) -> int:
        return super().tell() + self._before

    def truncate(self, size: int | None = None) -> int:
        at = self.tell() if size is None else size
        return super().truncate(max(at - self._before, 0)) + self._before

    @property
    def size(self) -> int:
        """Bytes so far, with those that the store has already."""
        return self._end() + self._before

    def commit(self) -> None:
        """Close the file, at the end of its transaction."""
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_spool"):  # its constructor has not raised
            self.close()


class WriteText(TextWriter):
    """A `WriteFile` that takes text."""

    def __del__(self) -> None:
        self.close()


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
