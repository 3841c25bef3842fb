"""Reader: the read API of every kind of store that has files with names.

A store implements `scan`, `stat` and `read`; `Reader` builds the rest on them.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Literal, overload

from winkformats.closing import Closing
from winkformats.errors import CorruptError
from winkfs.entry import Entry, FileReader, FileType, Stat
from winkfs.errors import NoSuchFile, NoSuchKey, NotDirectory, Refusal
from winkfs.names import NO_NAME, OWN, SELF, Name, name_at, name_below, path_of, to_bytes, to_str
from winkfs.units import Time, as_int

Problem = Callable[[CorruptError], None]
BUFFER: Final = 1 << 30  # bytes of the largest buffer of a file object


class Reader(Closing):
    """Files by name. A name is str, bytes or a Path; slashes separate directories."""

    changed_by: ClassVar[str] = "another program"  # the methods that write, for a message

    def __init__(self, base: str) -> None:
        self._base = base

    # --- what a store implements ---

    @abstractmethod
    def scan(
        self,
        since: Time | None = None,
        until: Time | None = None,
        prefix: Name = "",
        *,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        """Yield the files, as of the call.

        since, until  mtime in seconds, or a datetime, inclusive and exclusive
        prefix        only names that start with it
        problem       called with each damaged file, which is skipped; None: raises CorruptError
        """

    @abstractmethod
    def stat(self, name: Name) -> Stat:
        """Return the metadata of a file. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        """Return the content, or `size` bytes of it from `offset`; fewer at the end of the file.

        raises  FileNotFoundError; CorruptError if a checksum is wrong
        """

    # --- built on them ---

    def getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Return the extended attributes. Raises FileNotFoundError."""
        self.stat(name)
        return {}

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the user that files can have: name -> type."""
        return {}

    def getcolumns(self, name: Name) -> dict[str, Any]:
        """Return the values of a file's columns, None: null. Raises FileNotFoundError."""
        self.stat(name)
        return {}

    @property
    def base(self) -> str:
        """The path of the store."""
        return self._base

    @property
    def problems(self) -> list[str]:
        """Damage that was found and skipped, a line each."""
        return []

    @property
    def stored_bytes(self) -> int:
        """Approximate bytes that the contents take on the disk."""
        return sum(entry.size for entry in self.scan())

    @property
    def most_content(self) -> int:
        """Bytes of content that it can have, if no entry is content of two files."""
        return self.stored_bytes

    def close(self) -> None:
        """Close what is open. Idempotent."""

    def __contains__(self, name: object) -> bool:
        try:
            self.stat(name)  # type: ignore[arg-type]  # raises TypeError for what is no name
        except FileNotFoundError:
            return False
        return True

    def __getitem__(self, name: Name) -> bytes:
        """Return the content. Raises NoSuchKey, which is a KeyError, for a missing file."""
        try:
            return self.read(name)
        except NoSuchFile as error:
            raise NoSuchKey(error.strerror or "", error.filename) from None

    def __len__(self) -> int:
        return sum(1 for _ in self.scan())

    def __iter__(self) -> Iterator[str]:
        return self.names()

    def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        """Fill a buffer of bytes from `offset` -> how many, fewer only at the end of the file."""
        data = self.read(name, offset, len(into))
        into[: len(data)] = data
        return len(data)

    def get_many(self, names: Iterable[Name]) -> Iterator[bytes]:
        """Yield the contents of many files, in the order of the names. Raises as `read` does."""
        return map(self.read, names)

    @overload
    def open_file(  # type: ignore[overload-overlap]  # of all ints 0 alone makes no buffer
        self, name: Name, mode: str = ..., *, buffering: Literal[0]
    ) -> FileReader: ...
    @overload
    def open_file(self, name: Name, mode: str = ..., buffering: int = ...) -> io.BufferedReader: ...
    def open_file(
        self, name: Name, mode: str = "rb", buffering: int = -1
    ) -> FileReader | io.BufferedReader:
        """Open a file as a seekable binary file object for reading.

        buffering  bytes of its buffer; 0: none, each read goes to the store; -1: the best size
        raises     FileNotFoundError; CorruptError; ValueError for any mode but "rb"
        """
        if mode not in ("rb", "br"):
            use = f"use {self.changed_by}" if set(mode) & set("wax+") else "text: io.TextIOWrapper"
            raise ValueError(f"mode must be 'rb', not {mode!r}: {use}")
        buffering = as_int(buffering, "buffering", -1, BUFFER)
        raw = FileReader(self, to_str(name), self.stat(name).size)
        if buffering == 0:
            return raw
        return io.BufferedReader(raw, buffering if buffering > 1 else raw.best_buffer)

    def readlink(self, name: Name) -> str:
        """Return the target of a symbolic link.

        raises  FileNotFoundError; OSError (EINVAL) if it is not a symbolic link
        """
        if self.stat(name).ftype != FileType.LINK:
            raise Refusal("not a symbolic link", to_str(name), number=errno.EINVAL)
        return to_str(self.read(name))

    def names(self, glob: str | None = None, *, problem: Problem | None = None) -> Iterator[str]:
        """Yield the names in the order of `scan`; `glob`: only those that match, * crosses /.

        problem  called with each damaged inode, which is skipped; None: raises CorruptError
        """
        match = re.compile(fnmatch.translate(glob)).match if glob is not None else None
        for entry in self.scan(problem=problem):
            if match is None or match(entry.name):
                yield entry.name

    # --- names as paths, see `winkfs.path_of` ---

    def exists(self, path: Name) -> bool:
        """Return whether there is a file of this name, or a file or directory with this path.

        cost  a file: one `stat`; otherwise a scan up to the first name below it
        """
        given = to_bytes(path)
        known, name = given.strip(b"/"), name_at(given.strip(b"/"))
        if not known or given in self:
            return True
        if NO_NAME in name:
            return False
        if name in self and not known.endswith(OWN):
            return True
        below = any(True for _ in self.scan(prefix=name + b"/"))
        return below and (not known.endswith(OWN) or self._is_file(name))

    def listdir(self, path: Name = "") -> list[str]:
        """Return the names directly below a directory, sorted, as os.listdir returns them.

        raises  FileNotFoundError; NotADirectoryError
        cost    a scan of all that is below
        """
        directories, files = self._below(to_str(path).strip("/"))
        return sorted(directories | files)

    def walk(self, top: Name = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """(directory, its directories, its files) of `top` and all below, as os.walk yields them.

        cost  one scan of all that is below; memory: the names
        """
        root = to_str(top).strip("/")
        name = to_str(name_below(to_bytes(root)))
        tree: dict[str, tuple[set[str], set[str]]] = {root: (set(), set())}
        for path, is_directory in self._listed(f"{name}/" if root else ""):
            parent, _, short = path.rpartition("/")
            here, known = parent, parent in tree
            while not known:
                tree.setdefault(here, (set(), set()))
                here, _, last = here.rpartition("/")
                known = here in tree
                tree.setdefault(here, (set(), set()))[0].add(last)
            tree[parent][not is_directory].add(short)
        if root and any(tree[root]) and self._is_file(name):
            tree[root][1].add(to_str(SELF))
        left = [root]
        while left:
            here = left.pop()
            directories, files = tree.get(here, (set(), set()))
            for both in directories & files:
                files.remove(both)
                tree[f"{here}/{both}" if here else both][1].add(to_str(SELF))
            yield here, sorted(directories), sorted(files)
            below_here = sorted(directories, reverse=True)
            left += [f"{here}/{each}" if here else each for each in below_here]

    def _listed(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Yield the paths of names with a prefix, and whether each is a directory."""
        return ((path_of(e.name), e.ftype == FileType.DIR) for e in self.scan(prefix=prefix))

    def _is_file(self, name: Name) -> bool:
        """Return whether there is a file of this name that is not a directory."""
        return name in self and self.stat(name).ftype != FileType.DIR

    def _stat_at(self, path: str) -> Stat:
        """Return the metadata of the file at a path. Raises FileNotFoundError."""
        name = name_at(to_bytes(path))
        if NO_NAME in name:
            raise NoSuchFile("no such file", path)
        return self.stat(name)

    def _below(self, path: str) -> tuple[set[str], set[str]]:
        """Return the names of directories and of other files directly below a directory."""
        name = to_str(name_below(to_bytes(path)))
        cut = len(path) + 1 if path else 0
        directories: set[str] = set()
        files: set[str] = set()
        for below, is_directory in self._listed(f"{name}/" if path else ""):
            short, slash, _ = below[cut:].partition("/")
            (directories if slash or is_directory else files).add(short)
        files -= directories
        if path and (directories or files):
            if self._is_file(name):
                files.add(to_str(SELF))
        elif path and self._stat_at(path).ftype != FileType.DIR:
            raise NotDirectory("not a directory", path)
        return directories, files
