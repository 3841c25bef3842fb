"""Reading: what can be asked of an open container, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from winkfs.container import fastread
from winkfs.container.entry import Entry, Stat, to_bytes
from winkfs.container.handle import Handle
from winkfs.container.ondisk.extent import Extent
from winkfs.container.scan import scan
from winkfs.errors import NameTooLong, NoSuchFile
from winkfs.reader import Face, Name, Problem

if TYPE_CHECKING:
    from winkfs.container.columns.columns import Columns


class Reading(Handle, Face):
    """The reading half of a container. A writer sees what it has not synced yet."""

    changed_by = "put, write and append"

    # --- content ---

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        """The content, or `size` bytes of it from `offset`; short at the end of the file.

        raises  FileNotFoundError; CorruptError where a checksum is wrong
        """
        fast = self._fast
        if fast is not None and size < 0 and offset == 0:
            try:
                key = (name + "/I0").encode()  # type: ignore[operator,union-attr]
            except (TypeError, UnicodeEncodeError):
                key = to_bytes(name) + b"/I0"
            found = fast(key)
            if found is not None:
                return found
        with self._lock:
            self._check()
            if not self._closed:
                self._fast = fastread.make(self._store, self._changes.drafts, often=True)
            return self._changes.read(self._key(name), offset, size)

    def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        with self._lock:
            self._check()
            return self._changes.read_into(self._key(name), offset, into)

    def get_many(self, names: Iterable[Name]) -> Iterator[bytes]:
        """The contents of many files, in the order of the names.

        raises  FileNotFoundError at a missing name; CorruptError
        cost    1.3 us a file of 1 KiB from warm memory, in batches of 1,024
        """
        for batch in self._bulkget.batches(names):
            with self._lock:
                self._check()
                if self.writable:
                    self._guard(self._changes.settle)
                found, missing = self._bulkget.get(batch)
            yield from found
            if missing is not None:
                raise NoSuchFile("no such file in the container", missing)

    def get_some(self, names: Sequence[Name]) -> list[bytes]:
        """The contents of a few thousand files at most, up to the first that is missing."""
        with self._lock:
            self._check()
            if self.writable:
                self._guard(self._changes.settle)
            return self._bulkget.get(list(names))[0]

    def extents(self, name: Name) -> Sequence[Extent]:
        """Where the content lies: (kv_pointer, bytes skipped, bytes), 0: a hole, -1: in memory."""
        with self._lock:
            self._check()
            return self._changes.extents(self._key(name))

    # --- metadata ---

    def stat(self, name: Name) -> Stat:
        """raises  FileNotFoundError; CorruptError"""
        with self._lock:
            self._check()
            return self._changes.stat(self._key(name))

    def getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Extended attributes."""
        with self._lock:
            self._check()
            return dict(self._changes.attrs(self._key(name)).xattrs)

    def columns_of(self, names: Sequence[bytes]) -> Columns:
        """What is to say of the files with these names, in order of their inodes; those that are
        not there, or damaged, are left out. Cost: 3 us a name."""
        from winkfs.container.select import by_paths

        with self._lock:
            self._check()
            if self.writable:
                self._guard(self._changes.settle)
            return by_paths(self._store, tuple(names), self._store.note)

    # --- names ---

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str | bytes):
            return False
        with self._lock:
            self._check()
            try:
                key = self._key(name)
            except (ValueError, NameTooLong):
                return False
            return self._changes.find(key)

    def __len__(self) -> int:
        with self._lock:
            self._check()
            if self.writable:
                self._guard(self._changes.settle)
            return self._store.index.count

    def scan(
        self,
        since: float | None = None,
        until: float | None = None,
        prefix: Name = "",
        *,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        """The files in disk order, as of the call: what happens later does not change it.

        since, until  mtime in seconds, inclusive and exclusive; the time index narrows an ao scan
        prefix        only names that start with it
        problem       is told of each damaged inode, which is passed over; None: CorruptError
        """
        with self._lock:
            self._check()
            if self.writable:
                self._guard(self._changes.settle)
        return scan(self._store, self._lock, since, until, to_bytes(prefix), problem)
