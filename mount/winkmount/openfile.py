"""Open files whose names libfuse has hidden.

libfuse answers an unlink of an open file, and a rename onto one, by a rename of it to
`.fuse_hidden...`. Behind the first nothing else comes; behind the second the rename that was asked
for, as the very next call. So the hidden file keeps its name in the Source until the next call
tells which of the two it is: a rename that is refused, or a crash, takes nothing away.

Open files, and the small writes gathered in each.

There is one OpenFile per file, however many descriptors and processes have it open, so all of them
see the same bytes. What it holds back are runs: a write that begins in the last run, or at its end,
goes into it, any other begins a new one. They are passed on in this order.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Container
from typing import Final

from winkmount.source import Attr, Source

_PATTERN: Final = re.compile(r"/\.fuse_hidden[0-9a-f]{16}\Z")
_KEPT: Final = 1000  # hidden paths of files that were not removed after all
_SOON: Final = 0.1  # seconds within which the next call comes, if it is a part of this one


class Hidden:
    """What is behind the paths that libfuse made up.

    ids     of files without a name
    names   path and id of files that still have theirs; libfuse goes on with the hidden path after
            a rename was refused, also when they are opened later
    waiting the hidden path of the file of which only the next call tells what becomes of it
    """

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.names: dict[str, tuple[str, int]] = {}
        self.waiting: str | None = None
        self._since = 0.0

    @staticmethod
    def is_hidden(path: str) -> bool:
        return _PATTERN.search(path) is not None

    def hide(self, path: str, hidden: str, id: int) -> None:
        if len(self.names) >= _KEPT:
            del self.names[next(iter(self.names))]
        self.names[hidden] = path, id
        self.waiting, self._since = hidden, time.monotonic()

    @property
    def is_new(self) -> bool:
        """Whether the call that tells more may be under way."""
        return self.waiting is not None and time.monotonic() - self._since < _SOON

    def name(self, path: str) -> str:
        """The path that the Source knows."""
        return self.names[path][0] if path in self.names else path

    def removed(self, path: str, opened: Container[int]) -> None:
        """The file that had this name has none any more. opened: ids of files that live on."""
        for hidden, (name, id) in list(self.names.items()):
            if name == path:
                del self.names[hidden]
                if id in opened:
                    self.ids[hidden] = id

    def released(self, id: int) -> None:
        """It is not open any more."""
        self.ids = {path: other for path, other in self.ids.items() if other != id}

    def moved(self, old: str, new: str) -> None:
        """A file or directory has another path: libfuse's paths below it have, too."""

        def move(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(old + "/") else path

        self.ids = {move(path): id for path, id in self.ids.items()}
        self.names = {move(path): (move(name), id) for path, (name, id) in self.names.items()}


log = logging.getLogger("winkmount")

GATHER: Final = 1 << 20  # bytes held back per file before they are passed on
RUNS: Final = 256  # held back per file
ALL_WAITING: Final = 64 << 20  # bytes held back over all open files


class OpenFile:
    """One open file: its users, and its bytes in waiting.

    An error while bytes are passed on behind the writer's back (a broken disk; that they have room
    was promised) drops them. It is raised once, at the next write, flush or fsync of the file, as
    Linux does for its page cache.
    """

    __slots__ = (
        "_end",
        "_error",
        "_files",
        "_runs",
        "_source",
        "_written_ns",
        "id",
        "mappers",
        "users",
    )

    def __init__(self, files: OpenFiles, id: int) -> None:
        self.id = id
        self.users = 0
        self.mappers = 0  # users that may write through a mapping
        self._files = files
        self._source = files.source
        self._runs: list[tuple[int, bytearray]] = []  # (offset, data)
        self._end = 0  # where in the file the last byte in waiting lies, plus one
        self._written_ns = 0
        self._error: OSError | None = None

    @property
    def waiting(self) -> int:
        """Bytes in waiting."""
        return sum(len(run) for _, run in self._runs)

    def write(self, offset: int, data: bytes) -> None:
        """Take `data`; it is in the Source at the latest after `pass_on`. Raises OSError."""
        if self._error is not None:
            self.raise_error()
        now = time.time_ns()
        if not self._source.gather or (len(data) >= GATHER and not self._runs):
            self._source.write(self.id, [(offset, data)], now)
            return
        start, run = self._runs[-1] if self._runs else (-1, bytearray())
        at = offset - start
        if start < 0 or not 0 <= at <= len(run):
            start, run, at = offset, bytearray(), 0
        grown = max(at + len(data) - len(run), 0)
        if grown and not self._source.promise(self.id, grown):
            self.pass_on()
            self.raise_error()
            self._source.write(self.id, [(offset, data)], now)
            return
        if not run:
            self._runs.append((start, run))
        run[at : at + len(data)] = data
        self._files.waiting += grown
        self._written_ns, self._end = now, max(self._end, offset + len(data))
        if len(run) >= GATHER or len(self._runs) > RUNS:
            self.pass_on()
            self.raise_error()
        elif self._files.waiting > ALL_WAITING:
            self._files.pass_on()

    def read(self, offset: int, size: int) -> bytes:
        """Bytes as the last write left them."""
        if self._runs:
            stop = offset + size
            if any(start < stop and offset < start + len(run) for start, run in self._runs):
                self.pass_on()
            data = self._source.read(self.id, offset, size)
            if len(data) == size or offset + len(data) >= self._end:
                return data
            self.pass_on()  # bytes in waiting lie behind the end, and zeros before them
        return self._source.read(self.id, offset, size)

    def shown(self, attr: Attr) -> Attr:
        """The attributes of the file as of its last write."""
        if not self._runs:
            return attr
        written = self._written_ns
        ctime_ns = attr.ctime_ns if attr.ctime_ns > written else 0
        return attr._replace(size=max(attr.size, self._end), mtime_ns=written, ctime_ns=ctime_ns)

    def pass_on(self) -> None:
        """Give the Source what waits. Never raises: see the class."""
        if not self._runs:
            return
        runs = [(start, bytes(run)) for start, run in self._runs]
        size = self.waiting
        self._runs, self._end = [], 0
        self._files.waiting -= size
        try:
            self._source.write(self.id, runs, self._written_ns)
        except Exception as error:
            log.error("%d bytes of file %d are lost: %s", size, self.id, error)
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))

    def raise_error(self) -> None:
        """Report a failed `pass_on`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class OpenFiles:
    """All open files by their ids. `waiting`: bytes that all of them hold back."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waiting = 0
        self._files: dict[int, OpenFile] = {}

    def __getitem__(self, id: int) -> OpenFile:
        return self._files[id]

    def __contains__(self, id: object) -> bool:
        return id in self._files

    def __len__(self) -> int:
        return len(self._files)

    def get(self, id: int) -> OpenFile | None:
        return self._files.get(id)

    def add(self, id: int) -> OpenFile:
        """One user more. The Source has the file open."""
        file = self._files.get(id)
        if file is None:
            file = self._files[id] = OpenFile(self, id)
        file.users += 1
        return file

    def remove(self, file: OpenFile) -> bool:
        """One user less -> whether it was the last."""
        file.users -= 1
        if file.users:
            return False
        del self._files[file.id]
        return True

    def raise_error(self) -> None:
        """Report a failed `pass_on` of any of them."""
        for file in self._files.values():
            file.raise_error()

    def pass_on(self) -> None:
        """Give the Source what waits in any of them."""
        if self.waiting:
            for file in self._files.values():
                file.pass_on()
