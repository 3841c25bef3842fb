"""Copying of containers as of their last sync, for `backup`, `push` and `pull`.

Synced entries below FILESIZE never change, except delflags, which do not decide what is live. So a
copy has the entries as they are, and a superblock of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory, Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.scan import scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock, read_superblock
from winkfs.container.frames import entries_of
from winkfs.container.ondisk.data import CUTID, PUSHED, UNNAMED
from winkfs.container.ondisk.lock import SUFFIX
from winkfs.container.ondisk.typed import KEY
from winkfs.container.reindex import reindex
from winkfs.errors import Refusal
from winkfs.names import DATA, DERIVED, PARTIAL

Progress = Callable[[int], None]
COPY_BYTES: Final = 8 << 20  # copied at a time
COMPARED: Final = 1 << 20  # bytes before the end of a state that are compared with another one


class Copying:
    """Copies bytes of data files, and verifies their checksums.

    base      of the source
    copied    bytes that were copied
    problems  damage of the source, a line each; it is copied as it is
    """

    def __init__(self, base: str, progress: Progress | None) -> None:
        self.base, self._progress = base, progress or (lambda _: None)
        self.copied, self.problems = 0, list[str]()

    def copy(
        self, storage: Storage, target: Storage, start: int, end: int, *, counted: bool = True
    ) -> None:
        """Copy a range. Raises Refusal: the source was cut short; OSError."""
        with contextlib.closing(storage.bulk(start, end)) as reader:
            for at in range(start, end, COPY_BYTES):
                size = min(COPY_BYTES, end - at)
                data = reader.read(at, size)
                if len(data) < size:
                    raise Refusal(f"{storage.name} was cut short meanwhile", self.base)
                target.write(at, [bytes(data)])
                self.copied += size if counted else 0
                self._progress(size)

    def check(self, copy: KVSeq, start: int, end: int) -> tuple[int, list[int]]:
        """Verify entries -> position of the last entry, 0: there is none; positions of those that
        declare columns."""
        last, columns = 0, list[int]()
        start = copy.layout.aligned(start)
        try:
            for batch in scan_intact(copy.storage, copy.layout, start, end, problem=self.note):
                last = int(batch.pos[-1])
                columns += batch.pos[entries_of(batch, KEY)].tolist()
        except CorruptError as error:  # without checksums, the next entry cannot be found
            self.note(error)
        return last, columns

    def note(self, problem: FormatError | str) -> None:
        """Record damage."""
        self.problems.append(str(problem))

    def make(
        self, storage: Storage, block: Superblock, end: int, base: str
    ) -> tuple[Superblock, int]:
        """Write a copy of a state with its derived files at `base`, durably.

        If an earlier call was stopped, it continues after the entries that are whole.

        ->      its superblock, and the position of its last entry
        raises  Refusal; OSError
        """
        directory, name = locate(base)
        new = published(block, end)
        with self.begun(directory, name, new, storage) as target:
            start = new["SBSIZE"]
            at = KVSeq(target, new, writable=False).whole_until(start, min(target.size(), end))
            try:
                target.preallocate(end)
            except OSError:  # a full disk
                if at == start:
                    directory.unlink(name + DATA)
                raise
            self._progress(at - start)
            self.copy(storage, target, at, end)
            if target.size() > end:  # of a longer state
                target.truncate(end)
            target.write(0, new.images())
            last, _ = self.check(KVSeq(target, new, writable=False), start, end)
            target.sync()
        reindex(base)
        with directory.open(name + DATA) as made:
            return read_superblock(made), last

    @staticmethod
    def begun(directory: Directory, name: str, new: Superblock, like: Storage) -> Storage:
        """Return the data file of a copy that was begun, or a new one. It has the identity of the
        container, but no entries yet, whatever bytes follow."""
        try:
            target = directory.open(name + DATA, "w", uncached=True)
            try:
                if is_same(read_superblock(target), new):
                    return target
            except FormatError:
                pass
            target.close()
            directory.unlink(name + DATA)
        except FileNotFoundError:
            pass
        target = directory.create_new(name + DATA, like=like, uncached=True)
        empty = Superblock(new)
        empty |= {"FILESIZE": new["SBSIZE"]}
        target.write(0, empty.images())
        return target


def is_same(one: Superblock, other: Superblock) -> bool:
    """Return whether two data files are of one container, and no rollback lies between: then what
    both have at a position is the same entry."""
    same = all(one.get(name) == other.get(name) for name in ("SBSIZE", "CONTID", CUTID))
    return same and "CONTID" in one and "KVCKSUM" in one


def published(block: Superblock, end: int) -> Superblock:
    """Return the superblock of a copy."""
    new = Superblock(block)
    new.pop(UNNAMED, None)
    new.pop(PUSHED, None)
    if "SYNCSIZE" in new:  # after a lost sync, counters are wrong: the next writer counts anew
        new["SYNCSIZE"] = end if new.get("FILESIZE") == end else new["SBSIZE"]
    new["FILESIZE"] = end
    return new


def remove_derived(directory: Directory, name: str) -> None:
    """Remove the derived files of a container, durably, before its data file is replaced."""
    for suffix in DERIVED:
        directory.unlink(name + suffix)
    directory.sync()


def take_place(directory: Directory, name: str) -> None:
    """Rename the files of a copy at NAME.partial, the data file first: then the derived files of
    no other are beside it. The caller has removed these."""
    part = name + PARTIAL
    directory.rename(part + DATA, name + DATA)
    directory.sync()
    for suffix in DERIVED:
        if directory.exists(part + suffix):
            directory.rename(part + suffix, name + suffix)
    directory.unlink(part + SUFFIX)
    directory.sync()
