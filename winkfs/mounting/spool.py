"""Spool: the content of a file that is open in a mount but not (or no longer) in the container."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

IN_MEMORY: Final = 1 << 20  # bytes from which a spool is a temporary file
COPIED_AT_ONCE: Final = 1 << 20  # bytes read at a time from what a spool lies over


class Spool:
    """Bytes to read and write anywhere, and what else will be stored with them.

    directory   for the temporary file, which has no name in it
    mtime_ns    set by hand; None: the time of the commit
    xattrs      what the file had when it lost its name, and since
    stored      the container has a file of this name, an earlier state
    dirty       the container does not have these bytes
    fileid      that the file is to have when it is stored for the first time
    orphan      unlinked: it ends with its last user
    """

    def __init__(self, directory: str, mode: int, uid: int, gid: int) -> None:
        self._directory = directory or "."
        self.file: io.BytesIO | io.FileIO = io.BytesIO()
        self.mode, self.uid, self.gid = mode, uid, gid
        self.size = self.fileid = 0
        self.mtime_ns: int | None = None
        self.xattrs: Mapping[bytes, bytes] = {}
        self.changed_ns = time.time_ns()
        self.stored = self.dirty = self.orphan = False
        self._below: Callable[[int, int], bytes] | None = None
        self._need_room: Callable[[int], None]

    def lay_over(
        self, below: Callable[[int, int], bytes], size: int, need_room: Callable[[int], None]
    ) -> None:
        """Begin with `size` bytes that lie elsewhere. They are copied when they are to change.

        below       offset, size -> bytes, the same each time; raises OSError, FormatError
        need_room   bytes; raises OSError where the disk has no room for them
        """
        self._below, self.size, self._need_room = below, size, need_room

    @property
    def shown_ns(self) -> int:
        """Return the mtime that a stat shows."""
        return self.changed_ns if self.mtime_ns is None else self.mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        if self._below is not None:
            return self._below(offset, min(size, max(self.size - offset, 0)))
        self.file.seek(offset)
        return self.file.read(size)

    def _copy(self, size: int) -> None:
        """Have the first `size` bytes of what is below here, zeros as holes, and be done with it.

        Raises what `below` and `need_room` raise; then all is as it was.
        """
        if self._below is None:
            return
        copy = Spool(self._directory, self.mode, self.uid, self.gid)
        try:
            for offset in range(0, size, COPIED_AT_ONCE):
                data = self._below(offset, min(COPIED_AT_ONCE, size - offset))
                if data.count(0) < len(data):
                    self._need_room(len(data))
                    copy.write(offset, data)
            copy.truncate(size)
        except BaseException:
            copy.close()
            raise
        self.file, self.size, self._below = copy.file, size, None

    def _leave_memory(self) -> None:
        """Go on in a temporary file. On a full disk nothing changes."""
        if isinstance(self.file, io.BytesIO):
            with self.file.getbuffer() as data, ExitStack() as undo:
                file = undo.enter_context(tempfile.TemporaryFile(buffering=0, dir=self._directory))
                _write_all(file, data)
                undo.pop_all()
            self.file = file

    def write(self, offset: int, data: bytes) -> None:
        self._copy(self.size)
        if offset > self.size:
            self.truncate(offset)
        if offset + len(data) > IN_MEMORY:
            self._leave_memory()
        self.file.seek(offset)
        _write_all(self.file, data)
        self.size = max(self.size, offset + len(data))
        self._changed()

    def truncate(self, size: int) -> None:
        self._copy(min(size, self.size))
        if self.size < size <= IN_MEMORY:
            self.file.seek(self.size)
            self.file.write(bytes(size - self.size))
        else:
            if size > IN_MEMORY:
                self._leave_memory()  # so that a hole takes no room
            self.file.truncate(size)
        self.size = size
        self._changed()

    def punch(self, offset: int, size: int) -> None:
        """Zeros in the place of `size` bytes inside the file."""
        for at in range(offset, offset + size, IN_MEMORY):
            self.write(at, bytes(min(IN_MEMORY, offset + size - at)))

    def _changed(self) -> None:
        self.dirty = True
        self.mtime_ns, self.changed_ns = None, time.time_ns()

    def close(self) -> None:
        self.file.close()


def _write_all(file: io.BytesIO | io.FileIO, data: bytes | memoryview) -> None:
    """Unbuffered, so that it is this call that a full disk refuses."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
