"""SimulatedDisk: a disk in memory that loses power, tears writes, fails, fills up and forgets.

    disk = SimulatedDisk(seed)
    winkfs.create(f"{disk.path}/corpus")     # a path such as sim:3/corpus, for `locate`
    disk.arm("sync", 2)                      # the second sync from now on fails with EIO
    image = disk.crash(rng)                  # what another disk holds after a power cut now

What every file has twice: what programs see, in a file of memory, so that it can be mapped; and
what is on the disk, that is what was synced, with a list of the changes since. Directories: the
same. All that happens is in `log`.

    power cut       keeps what was synced and any subset of the changes since, in writes, pages or
                    sectors; one write is torn. A new size may be there without its bytes. A name
                    that no sync of its directory covers may be there or not, each on its own; a
                    rename is undone, done, or leaves both names, but never none
    failed sync     any subset of the changes reaches the disk, and none of the others ever will,
                    unless they are written again: the next sync succeeds. Programs see them until
                    they are evicted, at once (`evicts`) or by `evict`
    full            sizes of all files, as far as preallocated, add up to `capacity`
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from simulated.files import SECTOR, Bytes, Change, File, landed

from winkformats.disk.pagecache import BulkReader, Dropper
from winkformats.disk.posix import FileStorage
from winkformats.disk.schemes import register
from winkformats.disk.storage import Buffer, Directory, FileType, Info, Storage

SCHEME: Final = "sim"
CALLS: Final = (
    "write", "truncate", "preallocate", "sync", "create", "rename", "link", "unlink", "mkdir",
    "rmdir", "directory sync",
)  # fmt: skip

_numbers: Final = itertools.count(1)
_disks: Final[weakref.WeakValueDictionary[int, SimulatedDisk]] = weakref.WeakValueDictionary()


class Event(NamedTuple):
    """A call to the disk, in `SimulatedDisk.log`. `length` of a rename or link: 0."""

    call: str
    path: str
    offset: int = 0
    length: int = 0


class _Folder:
    """A directory: the entries that programs see, and those on the disk."""

    def __init__(self, number: int) -> None:
        self.number, self.mode = number, 0o755
        self.entries: dict[str, File | _Folder] = {}
        self.durable: dict[str, File | _Folder] = {}


_Node = File | _Folder


class _Naming(NamedTuple):
    """A change of a directory that it was not synced after. `node` None: the name is gone.

    after   of the old name of a rename: the new one, without which it does not go
    """

    folder: _Folder
    name: str
    node: _Node | None
    after: _Naming | None = None


class SimulatedDisk:
    """A disk whose faults follow from `seed` and from what is asked of it.

    capacity   bytes; None: no limit
    evicts     whether programs see at once what a failed sync has lost
    torn       bytes at whose multiples a write may be torn
    log        what was asked, except reads
    watch      is called before each of these, with what is about to happen; may call `crash`
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity: int | None = None,
        evicts: bool = False,
        torn: int = SECTOR,
    ) -> None:
        self.number, self.rng = next(_numbers), random.Random(seed)
        self.path = f"{SCHEME}:{self.number}"
        self.capacity, self.evicts, self.torn = capacity, evicts, torn
        self.log: list[Event] = []
        self.watch: Callable[[Event], object] | None = None
        self.lock = threading.RLock()
        self._faults: dict[str, tuple[int, int, bool]] = {}  # calls to go, errno, for good
        self.failed = 0  # calls that were armed and have failed
        self.nodes = itertools.count(1)
        self._namings: list[_Naming] = []
        self.root = _Folder(next(self.nodes))
        _disks[self.number] = self

    # --- faults ---

    def arm(
        self, call: str, nth: int = 1, error: int = errno.EIO, *, for_good: bool = False
    ) -> None:
        """Have the n-th call from now on fail, one of CALLS. nth 0: none of them any more.

        for_good   and all of them after it
        """
        if call not in CALLS:
            raise ValueError(f"{call!r} is none of {', '.join(CALLS)}")
        self._faults[call] = (nth, error, for_good)

    def evict(self) -> None:
        """Programs see no more what a failed sync has lost."""
        with self.lock:
            for _, file in self.files():
                if file.phantom:
                    file.show(file.seen())

    def crash(self, rng: random.Random | None = None) -> SimulatedDisk:
        """-> a disk with what this one may hold after a power cut. This one is not changed."""
        return self._image(rng or self.rng, cut=True)

    def clone(self) -> SimulatedDisk:
        """A disk with what programs see on this one, all of it synced."""
        return self._image(self.rng, cut=False)

    def _image(self, rng: random.Random, *, cut: bool) -> SimulatedDisk:
        with self.lock:
            image = SimulatedDisk(rng.getrandbits(32), capacity=self.capacity, evicts=self.evicts,
                                  torn=self.torn)  # fmt: skip
            made: dict[int, _Node] = {}
            namings = self._landed_namings(rng) if cut else None
            image.copy_into(self.root, image.root, namings, rng, made)
            image.nodes = itertools.count(max(made, default=1) + 1)
            return image

    # --- what is there ---

    def paths(self) -> list[str]:
        """Of all files that have a name, in order; relative to the disk."""
        with self.lock:
            return sorted(path for path, _ in self.files())

    def durable(self, path: str) -> bytes:
        """What is on the disk of a file, without what was not synced."""
        folder, name = self.find(path)
        file = folder.entries[name]
        assert isinstance(file, File)
        return bytes(file.durable.data).ljust(file.durable.size, b"\0")

    def find(self, path: str) -> tuple[_Folder, str]:
        """-> the directory that a path is in, and its name there. Raises OSError."""
        *parents, name = [part for part in path.split("/") if part not in ("", ".")] or [""]
        folder = self.root
        for parent in parents:
            entry = folder.entries.get(parent)
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not isinstance(entry, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            folder = entry
        return folder, name

    def files(self, folder: _Folder | None = None, prefix: str = "") -> Iterator[tuple[str, File]]:
        for name, node in (folder or self.root).entries.items():
            if isinstance(node, File):
                yield prefix + name, node
            else:
                yield from self.files(node, f"{prefix}{name}/")

    # --- what survives ---

    def _landed_namings(self, rng: random.Random) -> list[_Naming]:
        """Some of the names that were not synced."""
        chance = rng.choice((0.0, 0.5, 0.9, 1.0))
        first = rng.randint(0, len(self._namings)) if rng.random() < 0.5 else 0  # all up to here
        kept: list[_Naming] = []
        for i, naming in enumerate(self._namings):
            keep = i < first or rng.random() < chance
            if naming.after is not None:
                whole = isinstance(naming.after.node, _Folder)  # a directory has one name
                done = any(naming.after is other for other in kept)
                keep = done and (keep or whole)
            if keep:
                kept.append(naming)
        return kept

    def copy_into(
        self,
        source: _Folder,
        target: _Folder,
        namings: list[_Naming] | None,
        rng: random.Random,
        made: dict[int, _Node],
    ) -> None:
        """Fill a directory with copies. `namings` None: of all that programs see."""
        entries = dict(source.entries if namings is None else source.durable)
        for folder, name, node, _ in namings or ():
            if folder is source and node is None:
                entries.pop(name, None)
            elif folder is source and node is not None:
                entries[name] = node
        for name, node in sorted(entries.items()):
            copy = made.get(node.number)
            if copy is None and isinstance(node, File):
                content = node.seen() if namings is None else landed(node, rng, self.torn)
                copy = File(node.number, content, node.mode)
            elif copy is None:
                copy = _Folder(node.number)
            if isinstance(copy, File):
                copy.links += 1
            if isinstance(copy, _Folder) and isinstance(node, _Folder) and node.number not in made:
                made[node.number] = copy
                self.copy_into(node, copy, namings, rng, made)
            made[node.number] = copy
            target.entries[name] = target.durable[name] = copy

    # --- calls, of the classes below ---

    def begin(self, event: Event) -> None:
        """Something is about to be done. Raises what was armed."""
        if self.watch is not None:
            self.watch(event)
        self.log.append(event)
        count, error, for_good = self._faults.get(event.call, (0, 0, False))
        if count == 0:
            return
        self._faults[event.call] = (count - 1 or int(for_good), error, for_good)
        if count == 1:
            self.failed += 1
            raise OSError(error, os.strerror(error), f"{self.path}/{event.path}")

    def name(
        self, folder: _Folder, name: str, node: _Node | None, after: _Naming | None = None
    ) -> _Naming:
        """Give a name, or take one away."""
        old = folder.entries.pop(name, None)
        if isinstance(old, File):
            old.links -= 1
        if node is not None:
            folder.entries[name] = node
        if isinstance(node, File):
            node.links += 1
        self._namings.append(naming := _Naming(folder, name, node, after))
        return naming

    def new_file(self) -> File:
        return File(next(self.nodes), Bytes(), 0o644)

    def new_folder(self) -> _Folder:
        return _Folder(next(self.nodes))

    def sync_file(self, file: File, path: str) -> None:
        try:
            self.begin(Event("sync", path))
        except OSError:
            file.settle(landed(file, self.rng, self.torn))
            file.phantom = True
            if self.evicts:
                file.show(file.durable)
            raise
        file.settle(file.seen())

    def sync_folder(self, folder: _Folder, path: str) -> None:
        try:
            self.begin(Event("directory sync", path))
        except OSError:
            kept = self._landed_namings(self.rng)
            self._settle(folder, [naming for naming in kept if naming.folder is folder])
            raise
        self._settle(folder, [naming for naming in self._namings if naming.folder is folder])

    def _settle(self, folder: _Folder, settled: list[_Naming]) -> None:
        """These names are on the disk now; the others of the directory never will be.

        With the old name of a rename goes the new one, and with a directory's new one the old.
        """
        chosen = list(settled)
        for naming in self._namings:
            moved = naming.after is not None and isinstance(naming.after.node, _Folder)
            if moved and _among(naming.after, settled) and not _among(naming, chosen):
                chosen.append(naming)
        for naming in settled:
            if naming.after is not None and not _among(naming.after, chosen):
                chosen.insert(0, naming.after)
        for naming in chosen:
            if naming.node is None:
                naming.folder.durable.pop(naming.name, None)
            else:
                naming.folder.durable[naming.name] = naming.node
        places = {(id(naming.folder), naming.name) for naming in chosen}
        left: list[_Naming] = []
        for naming in self._namings:
            if naming.folder is folder or (id(naming.folder), naming.name) in places:
                continue
            if naming.after is not None and _among(naming.after, chosen):
                naming = naming._replace(after=None)
            elif naming.after is not None and naming.after.folder is folder:
                continue  # the new name is lost, so the old one stays
            left.append(naming)
        self._namings = left

    def fill(self, room: int | None) -> None:
        """Leave so many bytes for files to grow; None: any number."""
        with self.lock:
            used = sum(os.fstat(file.fd).st_size for _, file in self.files())
            self.capacity = None if room is None else used + room

    def room(self, file: File, size: int) -> int:
        """-> bytes up to which a file may grow, at most `size`."""
        if self.capacity is None:
            return size
        used = sum(os.fstat(other.fd).st_size for _, other in self.files() if other is not file)
        return max(min(size, self.capacity - used), os.fstat(file.fd).st_size)


def _among(naming: _Naming | None, namings: list[_Naming]) -> bool:
    return any(naming is other for other in namings)


class SimulatedStorage(FileStorage):
    """One open file of a simulated disk: reads, writes and mappings are those of the kernel."""

    def __init__(self, disk: SimulatedDisk, file: File, path: str, mode: str) -> None:
        flags = os.O_RDONLY if mode == "r" else os.O_RDWR
        fd = os.open(f"/proc/self/fd/{file.fd}", flags | os.O_CLOEXEC)
        super().__init__(f"{disk.path}/{path}", fd=fd)  # nothing here would leave the page cache
        self._disk, self._file, self._path, self._mode = disk, file, path, mode

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        disk = self._disk
        with disk.lock:
            disk.begin(Event("write", self._path, offset, len(data)))
            room = disk.room(self._file, offset + len(data)) - offset
            kept = data[: max(room, 0)]
            if kept or not data:
                os.pwrite(self.fd, kept, offset)
                self._file.changes.append(Change(offset, kept))
        if len(kept) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        return len(data)

    def patch(self, offset: int, data: Buffer) -> None:
        self.write(offset, [data])

    def truncate(self, length: int) -> None:
        with self._disk.lock:
            self._disk.begin(Event("truncate", self._path, length))
            super().truncate(length)
            self._file.changes.append(Change(length, None))

    def preallocate(self, length: int) -> None:
        with self._disk.lock:
            self._disk.begin(Event("preallocate", self._path, length))
            if length <= self.size():
                return
            if self._disk.room(self._file, length) < length:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
            os.ftruncate(self.fd, length)
            self._file.changes.append(Change(length, None))

    def sync(self) -> None:
        with self._disk.lock:
            self._disk.sync_file(self._file, self._path)

    def info(self) -> Info:
        return _info(self._disk, self._file)

    def dropper(self, start: int, stop: int) -> Dropper | None:
        return None

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        return BulkReader(self.read_into, None)

    def duplicate(self) -> Self:
        return type(self)(self._disk, self._file, self._path, self._mode)


class SimulatedDirectory(Directory):
    """A directory of a simulated disk. There are no symbolic links on it."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        head, _, self._inside = self.path.partition("/")
        number = head.removeprefix(f"{SCHEME}:")
        disk = _disks.get(int(number)) if number.isdecimal() else None
        if disk is None:
            raise FileNotFoundError(errno.ENOENT, "no such simulated disk", path)
        self._disk = disk

    def _relative(self, name: str) -> str:
        return f"{self._inside}/{name}".strip("/")

    def _find(self, name: str) -> tuple[_Folder, str, _Node | None]:
        """-> directory, name in it, what has it. Raises OSError: there is no such directory."""
        folder, short = self._disk.find(self._relative(name))
        return folder, short, folder.entries.get(short) if short else self._disk.root

    def _there(self, name: str) -> tuple[_Folder, str, _Node]:
        folder, short, node = self._find(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._full(name))
        return folder, short, node

    def _full(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _folder(self, name: str = "") -> _Folder:
        node = self._there(name)[2]
        if isinstance(node, File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._full(name))
        return node

    def _begin(self, call: str, name: str) -> None:
        self._disk.begin(Event(call, self._relative(name)))

    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> SimulatedStorage:
        with self._disk.lock:
            if mode == "x":
                return self.create_new(name)
            node = self._there(name)[2]
            if isinstance(node, _Folder):
                raise IsADirectoryError(errno.EISDIR, "a directory, not a file", self._full(name))
            return SimulatedStorage(self._disk, node, self._relative(name), mode)

    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> SimulatedStorage:
        with self._disk.lock:
            folder, short, node = self._find(name)
            self._free(node, name)
            self._begin("create", name)
            file = self._disk.new_file()
            file.mode = 0o644 if like is None else like.info().mode & 0o666
            self._disk.name(folder, short, file)
            return SimulatedStorage(self._disk, file, self._relative(name), "w")

    def _free(self, node: _Node | None, name: str) -> None:
        if node is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._full(name))

    def rename(self, old: str, new: str) -> None:
        with self._disk.lock:
            folder, short, node = self._there(old)
            target, final, there = self._find(new)
            if there is node:
                return
            if isinstance(there, _Folder) and (isinstance(node, File) or there.entries):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self._full(new))
            if isinstance(there, File) and isinstance(node, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._full(new))
            if self._relative(new).startswith(f"{self._relative(old)}/"):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._full(new))
            self._begin("rename", old)
            named = self._disk.name(target, final, node)
            self._disk.name(folder, short, None, named)

    def link(self, old: str, new: str) -> None:
        with self._disk.lock:
            node = self._there(old)[2]
            folder, short, there = self._find(new)
            self._free(there, new)
            if isinstance(node, _Folder):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), self._full(old))
            self._begin("link", new)
            self._disk.name(folder, short, node)

    def unlink(self, name: str) -> None:
        with self._disk.lock, contextlib.suppress(FileNotFoundError):
            folder, short, node = self._there(name)
            if isinstance(node, _Folder):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._full(name))
            self._begin("unlink", name)
            self._disk.name(folder, short, None)

    def list(self) -> list[str]:
        with self._disk.lock:
            return list(self._folder().entries)

    def sync(self) -> None:
        with self._disk.lock:
            self._disk.sync_folder(self._folder(), self._inside)

    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        with self._disk.lock:
            try:
                return _info(self._disk, self._there(name)[2])
            except (FileNotFoundError, NotADirectoryError):
                return None

    def mkdir(self, name: str) -> None:
        with self._disk.lock:
            folder, short, node = self._find(name)
            self._free(node, name)
            self._begin("mkdir", name)
            self._disk.name(folder, short, self._disk.new_folder())

    def rmdir(self, name: str) -> None:
        with self._disk.lock:
            folder, short, _ = self._there(name)
            if self._folder(name).entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self._full(name))
            self._begin("rmdir", name)
            self._disk.name(folder, short, None)

    def subdirectory(self, name: str) -> Self:
        self._folder(name)
        return type(self)(self._full(name))

    def scratch(self) -> SimulatedStorage:
        return SimulatedStorage(self._disk, self._disk.new_file(), "(scratch file)", "w")

    def lock(self, name: str, *, shared: bool = False) -> SimulatedLock | None:
        with self._disk.lock:
            node = self._there(name)[2]
            if isinstance(node, _Folder):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._full(name))
            if node.locked < 0 or (node.locked and not shared):
                return None
            return SimulatedLock(self._disk, node, shared=shared)


class SimulatedLock:
    """A lock on a file of a simulated disk; a power cut lets go of it."""

    def __init__(self, disk: SimulatedDisk, file: File, *, shared: bool = False) -> None:
        self._file: File | None = file
        self.identity = (disk.number, file.number)
        file.locked = file.locked + 1 if shared else -1

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file is not None:
            self._file.locked = max(self._file.locked - 1, 0)
            self._file = None


def _info(disk: SimulatedDisk, node: _Node) -> Info:
    identity = (disk.number, node.number)
    if isinstance(node, _Folder):
        return Info(FileType.DIRECTORY, identity, 0, 0.0, node.mode, os.getuid(), os.getgid())
    found = os.fstat(node.fd)
    return Info(FileType.FILE, identity, found.st_size, found.st_mtime, node.mode,
                os.getuid(), os.getgid(), node.links)  # fmt: skip


register(SCHEME, SimulatedDirectory)
