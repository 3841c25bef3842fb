"""Changes: files and directories of a store that is written, by path."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from winkfs.container.container import Container
from winkfs.container.ondisk.typed import to_attributes
from winkfs.dataset.dataset import Dataset
from winkfs.entry import FileType, Stat
from winkfs.errors import FileExists, IsDirectory, NoSuchFile, NotAllowed, NotDirectory, Refusal
from winkfs.fsspec.directories import Directories
from winkfs.names import NO_NAME, name_at, name_below, to_bytes
from winkfs.units import NANO

if TYPE_CHECKING:
    from winkfs.fsspec.listing import Listing

PIECE_BYTES: Final = 1 << 20  # that are copied at a time
Keep = tuple[Stat, Mapping[bytes, bytes]]
"""Metadata and extended attributes that a new file gets."""


class Changes:
    """Changes of an open container or data set. The caller syncs."""

    def __init__(self, store: Container | Dataset, listing: Listing) -> None:
        self.store, self._listing = store, listing
        self._directories: Directories | None = None

    @property
    def directories(self) -> Directories:
        """The directories. Cost: at the first use, the catalog."""
        if self._directories is None:
            self._directories = Directories(self._listing, self.has_entry)
        return self._directories

    def sync(self) -> None:
        """Sync, or commit. Raises OSError; DatasetConflict."""
        before = getattr(self.store, "generation", 0)
        try:
            self.store.sync()
        except BaseException:  # a conflict discards the changes
            self.forget()
            raise
        if getattr(self.store, "generation", 0) > before + 1:  # others have committed, too
            self.forget()

    def forget(self) -> None:
        """Read the directories anew at their next use."""
        self._directories = None

    # --- what is there ---

    def has_entry(self, path: str) -> bool:
        """Return whether there is a file, or an entry of a directory."""
        try:
            return self._listing.name(path) in self.store
        except NoSuchFile:
            return False

    def has_below(self, path: str) -> bool:
        """Return whether there is a file or directory below a path."""
        return path in self.directories

    def there(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        return self.has_entry(path) or path in self.directories

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory."""
        return path in self.directories or (
            self.has_entry(path) and self.stat(path).ftype == FileType.DIR
        )

    def stat(self, path: str) -> Stat:
        """Return the metadata of a file. Raises NoSuchFile."""
        return self.store.stat(self._listing.name(path))

    def kept(self, path: str) -> Keep:
        """Return what a copy of a file keeps."""
        name = self._listing.name(path)
        return self.store.stat(name), self.store.getxattrs(name)

    def room(self, path: str) -> bytes:
        """Return the name for a file that is to be written.

        raises  IsDirectory; NotDirectory; ValueError: no file can have this path
        """
        if self.is_directory(path):
            raise IsDirectory("is a directory", path or "/")
        name = name_at(to_bytes(path))
        if not name or NO_NAME in name:
            raise ValueError(f"no file can have the path {path!r}")
        self._check_above(path)
        return name

    def _check_above(self, path: str) -> None:
        above = path.rpartition("/")[0]
        while above and above not in self.directories:
            if self.has_entry(above):
                if self.stat(above).ftype != FileType.DIR:
                    raise NotDirectory("not a directory", above)
                return
            above = above.rpartition("/")[0]

    # --- files ---

    def put(
        self, path: str, value: Any, columns: Mapping[str, Any] | None, mtime: float | None
    ) -> None:
        """Create or replace a file with these bytes."""
        name, new = self.room(path), not self.there(path)
        self.store.put(name, value, mtime, columns=columns)
        if new:
            self.directories.add(path)

    def put_from(
        self,
        path: str,
        source: Any,
        columns: Mapping[str, Any] | None = None,
        mtime: float | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Create or replace a file from a binary file. Memory: 1 MiB."""
        name, new, given = self.room(path), not self.there(path), dict[str, Any]()
        if keep is not None:
            stat, xattrs = keep
            given = {"ftype": stat.ftype, "mode": stat.mode, "uid": stat.uid, "gid": stat.gid,
                     "xattrs": xattrs}  # fmt: skip
        if columns:
            given["xattrs"] = to_attributes(self.store.columns, columns)
        if mtime is not None:
            given["mtime_ns"] = round(mtime * NANO)
        self.store.put_file(name, source, **given)
        if new:
            self.directories.add(path)

    def append_from(self, path: str, source: Any) -> None:
        """Add the content of a binary file to the end of a file."""
        name = self._listing.name(path)
        for data in iter(partial(source.read, PIECE_BYTES), b""):
            self.store.append(name, data)

    def delete(self, path: str) -> None:
        """Remove a file, or the entry of a directory. Raises NoSuchFile."""
        self.store.delete(self._listing.name(path))
        if not self.there(path):
            self.directories.remove(path)

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty directory. Raises NoSuchFile; Refusal (ENOTEMPTY)."""
        if self.is_directory(path):
            self.remove_directory(path)
        elif self.has_entry(path):
            self.delete(path)
        else:
            raise NoSuchFile("no such file", path)

    def move(self, source: str, target: str) -> None:
        """Rename a file, or a directory with all below it; over a file of that name.

        raises  NoSuchFile; Refusal (EINVAL: into itself)
        """
        if source == target:
            return
        if target.startswith(f"{source}/"):
            raise Refusal("a directory cannot be moved into itself", target, number=errno.EINVAL)
        if not self.is_directory(source):
            self._rename(source, target)
            return
        tree = self._listing.tree(source)
        self.make_directories(target)
        for path in sorted(tree.directories):
            self.make_directories(target + path[len(source) :])
        for path in sorted(tree.files):
            self._rename(path, target + path[len(source) :])
        for path in [*sorted(tree.directories, reverse=True), source]:
            if self.has_entry(path):
                self.delete(path)

    def _rename(self, source: str, target: str) -> None:
        name, new = self.room(target), not self.there(target)
        self.store.rename(self._listing.name(source), name)
        if new:
            self.directories.add(target)
        if not self.there(source):
            self.directories.remove(source)

    # --- directories ---

    def make_directory(self, path: str, *, parents: bool) -> None:
        """Make a directory.

        raises  FileExists; NoSuchFile: there is none above it; NotDirectory; Refusal (EINVAL): a
                path that only files can have
        """
        name = name_below(to_bytes(path))
        if path and (not name or name.endswith(b"/") or NO_NAME in name):
            raise Refusal("no directory can have this path", path, number=errno.EINVAL)
        if not path or self.there(path):
            raise FileExists("exists already", path or "/")
        self._check_above(path)
        above = path.rpartition("/")[0]
        if above and not self.is_directory(above):
            if not parents:
                raise NoSuchFile("no such directory", above)
            self.make_directory(above, parents=True)
        self.store.mkdir(name)
        self.directories.add(path)

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it, unless it exists. Raises FileExists."""
        if path and not self.is_directory(path):
            self.make_directory(path, parents=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises NoSuchFile; NotDirectory; Refusal (ENOTEMPTY)."""
        if not path:
            raise NotAllowed("the top directory cannot be removed", self.store.base)
        if path in self.directories:
            raise Refusal("the directory is not empty", path, number=errno.ENOTEMPTY)
        if not self.has_entry(path):
            raise NoSuchFile("no such directory", path)
        if not self.is_directory(path):
            raise NotDirectory("not a directory", path)
        self.delete(path)
