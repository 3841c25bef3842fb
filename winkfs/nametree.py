"""NameTree: the names of a container as directories, in memory, for a mount.

A directory is there because of an entry of ftype DIR, or because a name below it is (implied); an
implied one stays until it is removed or the mount ends, also when it has become empty. Where a name
is both a file and the prefix of others, the directory wins and the file is not shown until the
directory is removed. Names that no path can have are left out. What is left out is in `left_out`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from winkfs.entry import Entry, to_bytes, to_str
from winkfs.errors import NoSuchFile
from winkfs.inode import FileType
from winkfs.names import path_fault

OWN_IDS: Final = 1 << 62  # ids from here on are made here, for what has no file id in the container
MAX_PATH: Final = 4095  # bytes of a name: more, no program could say


class Directory:
    """One directory.

    files       name -> id
    real        it has an entry of its own in the container
    mtime_ns    nanoseconds; None: as its entry says
    """

    __slots__ = ("dirs", "files", "id", "mtime_ns", "name", "parent", "real")

    def __init__(self, id: int, name: bytes, parent: Directory | None) -> None:
        self.id, self.name, self.parent = id, name, parent
        self.dirs: dict[bytes, Directory] = {}
        self.files: dict[bytes, int] = {}
        self.real = False
        self.mtime_ns: int | None = 0

    @property
    def empty(self) -> bool:
        return not self.dirs and not self.files

    def path(self, name: bytes = b"") -> bytes:
        """Name in the container of this directory, or of a file in it."""
        parts = [name] if name else []
        at: Directory | None = self
        while at is not None and at.parent is not None:
            parts.append(at.name)
            at = at.parent
        return b"/".join(reversed(parts))

    def walk(self) -> Iterator[Directory]:
        """This directory and all below it."""
        waiting = [self]  # a name may have 32,000 components: no recursion
        while waiting:
            directory = waiting.pop()
            waiting += directory.dirs.values()
            yield directory


class NameTree:
    """All names of a container.

    entries     of a scan
    left_out    (name, reason) of what a mount cannot show
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._last = OWN_IDS
        self.root = Directory(OWN_IDS, b"", None)
        self._dirs = {self.root.id: self.root}
        self._files: dict[int, tuple[Directory, bytes]] = {}  # id -> place, of files looked up
        self.links: set[int] = set()
        self._hidden: dict[bytes, tuple[int, bool]] = {}  # name of a file behind a directory
        self.left_out: list[tuple[bytes, str]] = []
        self.newest_ns = 0
        self._fill(entries)

    def _fill(self, entries: Iterable[Entry]) -> None:
        used: set[int] = set()
        last: tuple[bytes, Directory] = b"", self.root  # names come in runs of one directory
        for entry in entries:
            name = to_bytes(entry.name)
            fault = "it is too long for a path" if len(name) > MAX_PATH else path_fault(name)
            if fault:
                self.left_out.append((name, fault))
                continue
            self.newest_ns = max(self.newest_ns, entry.mtime_ns)
            if entry.ftype == FileType.DIR:
                directory = self._make(name)
                directory.real, directory.mtime_ns = True, None
                continue
            above, _, short = name.rpartition(b"/")
            if above != last[0]:
                last = above, self._make(above)
            id = entry.fileid
            if id in used or id >= OWN_IDS:
                id = self.new_id()
            used.add(id)
            self._show(last[1], short, id, entry)
        for directory in reversed(list(self.root.walk())):
            above_it = directory.parent
            if above_it and above_it.mtime_ns is not None:
                above_it.mtime_ns = max(above_it.mtime_ns, directory.mtime_ns or 0)

    def _show(self, directory: Directory, name: bytes, id: int, entry: Entry) -> None:
        link = entry.ftype == FileType.LINK
        if name in directory.dirs:
            self._hide(directory.path(name), id, link)
            return
        self._put(directory, name, id, link=link)
        if directory.mtime_ns is not None:
            directory.mtime_ns = max(directory.mtime_ns, entry.mtime_ns)

    def _make(self, path: bytes) -> Directory:
        """The directory of this name, with all above it."""
        found = self.root
        for name in path.split(b"/") if path else ():
            below = found.dirs.get(name)
            if below is None:
                if name in found.files:
                    id = found.files.pop(name)
                    self._hide(found.path(name), id, id in self.links)
                below = self.add_directory(found, name)
            found = below
        return found

    def _hide(self, name: bytes, id: int, link: bool) -> None:
        self._hidden[name] = id, link
        self.left_out.append((name, "there are names below it, so it shows as a directory"))

    def new_id(self) -> int:
        self._last += 1
        return self._last

    # looking

    def directory(self, id: int) -> Directory:
        try:
            return self._dirs[id]
        except KeyError:
            raise NoSuchFile("no such directory") from None

    def is_directory(self, id: int) -> bool:
        return id in self._dirs

    def find(self, parent: int, name: bytes) -> tuple[Directory, int | None]:
        """-> the directory `parent`, and the id of the file or directory `name` in it, if any."""
        directory = self.directory(parent)
        below = directory.dirs.get(name)
        if below is not None:
            return directory, below.id
        id = directory.files.get(name)
        if id is not None:
            self._files[id] = directory, name
        return directory, id

    def place_of(self, id: int) -> tuple[Directory, bytes]:
        """Where a file is that `find` or `add_file` met. Raises NoSuchFile."""
        try:
            return self._files[id]
        except KeyError:
            raise NoSuchFile("no such file") from None

    def name_of(self, id: int) -> bytes:
        """Its name in the container."""
        directory, name = self.place_of(id)
        return directory.path(name)

    # changing

    def add_directory(self, parent: Directory, name: bytes) -> Directory:
        directory = Directory(self.new_id(), name, parent)
        self._dirs[directory.id] = parent.dirs[name] = directory
        return directory

    def add_file(self, directory: Directory, name: bytes, id: int, *, link: bool = False) -> None:
        self._put(directory, name, id, link=link)
        self._files[id] = directory, name

    def _put(self, directory: Directory, name: bytes, id: int, *, link: bool) -> None:
        directory.files[name] = id
        if link:
            self.links.add(id)

    def remove_file(self, directory: Directory, name: bytes) -> None:
        id = directory.files.pop(name)
        self._files.pop(id, None)
        self.links.discard(id)

    def remove_directory(self, directory: Directory) -> None:
        """An empty one."""
        parent = directory.parent
        assert parent is not None and directory.empty
        del parent.dirs[directory.name], self._dirs[directory.id]
        self._uncover(parent, directory.name)

    def move_file(self, old: Directory, name: bytes, new: Directory, new_name: bytes) -> None:
        """Over a file of that name, if there is one."""
        if new_name in new.files:
            self.remove_file(new, new_name)
        id = old.files.pop(name)
        new.files[new_name] = id
        self._files[id] = new, new_name

    def names_below(self, directory: Directory) -> list[bytes]:
        """Names in the container of all entries at and below a directory."""
        names = []
        for at in directory.walk():
            path = at.path()
            if at.real:
                names.append(path)
            names += [path + b"/" + name for name in at.files]
        prefix = directory.path() + b"/"
        return names + [name for name in self._hidden if name.startswith(prefix)]

    def move_directory(self, directory: Directory, new: Directory, new_name: bytes) -> None:
        """Over an empty directory of that name, if there is one."""
        parent, old = directory.parent, directory.path()
        assert parent is not None
        if new_name in new.dirs:
            del self._dirs[new.dirs[new_name].id]
        del parent.dirs[directory.name]
        new.dirs[new_name] = directory
        self._uncover(parent, directory.name)
        directory.parent, directory.name = new, new_name
        prefix = old + b"/"
        for name in [name for name in self._hidden if name.startswith(prefix)]:
            self._hidden[directory.path() + name[len(old) :]] = self._hidden.pop(name)

    def _uncover(self, parent: Directory, name: bytes) -> None:
        """A directory has gone: a file of the same name that it hid comes to light."""
        hidden = self._hidden.pop(parent.path(name), None)
        if hidden is not None:
            self._put(parent, name, hidden[0], link=hidden[1])

    def summary(self, shown: int = 5) -> list[str]:
        """Lines that say what is left out."""
        lines = [f"not shown: {to_str(name)}: {reason}" for name, reason in self.left_out[:shown]]
        if len(self.left_out) > shown:
            lines.append(f"not shown: {len(self.left_out) - shown:,} more names")
        return lines
