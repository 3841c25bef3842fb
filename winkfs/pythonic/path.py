"""WinkPath: a path in a store, with the methods of `pathlib.Path`; an importlib `Traversable`.

It is the path that a mount shows, see `winkfs.path_of`. Directories are there through the names
below them. A symbolic link is followed inside the store.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, overload

from winkfs.entry import FileType, Stat
from winkfs.errors import FileExists, IsDirectory, NoSuchFile, NotDirectory, Refusal
from winkfs.names import OWN, name_below, name_of_path, to_bytes, to_str
from winkfs.pythonic.patterns import ANY_DEPTH, WILD, expression
from winkfs.units import NANO, as_content, shown

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OWN_TEXT: Final = to_str(OWN)  # after the path of a directory: its file
MAX_LINKS: Final = 40  # that are followed for a path, as Linux does
PARENT: Final = ".."
KIND: Final[dict[int, int]] = {FileType.DIR: stat.S_IFDIR, FileType.LINK: stat.S_IFLNK}
NOT_OF_THE_SYSTEM: Final = (
    "a path in a store is no path of the operating system: use its open or read_bytes, its "
    "stored_name in a call of the store, or a mount"
)
Pure = PurePosixPath


class WinkPath:
    """A path in a store: `c / "docs" / "a.txt"`. It does not change, and can be a key of a dict.

    reader  the store. Paths are equal if their reader is the same object
    """

    # _text: the path, "" for the top; _alone: a listing had it as a file that is not a directory of
    # other names, too

    __slots__ = ("_alone", "_pure", "_text", "reader")

    def __init__(self, reader: Any, *parts: str | os.PathLike[str]) -> None:
        """Join parts; one that begins with / begins at the top of the store.

        raises  ValueError for a part `..`, and for NUL
        """
        if not hasattr(reader, "paths_below"):
            raise TypeError(f"a path is in a store, c / 'dir', which {shown(reader)} is not")
        pure = Pure(*parts)
        if pure.is_absolute():
            pure = pure.relative_to("/")
        text = str(pure)
        if PARENT in text and PARENT in pure.parts:
            raise ValueError(f"a path in a store has no part {PARENT}: {text!r}")
        if "\0" in text:
            raise ValueError("a path has no NUL in it")
        self.reader, self._pure, self._alone = reader, pure, False
        self._text = text if pure.parts else ""

    # --- the path itself ---

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reader!r}, {str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise TypeError(f"{self}: {NOT_OF_THE_SYSTEM}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WinkPath):
            return NotImplemented
        return self.reader is other.reader and self._pure == other._pure

    def __hash__(self) -> int:
        return hash((id(self.reader), self._pure))

    def __lt__(self, other: WinkPath) -> bool:
        return self._pure < other._pure if isinstance(other, WinkPath) else NotImplemented

    def __le__(self, other: WinkPath) -> bool:
        return self._pure <= other._pure if isinstance(other, WinkPath) else NotImplemented

    def __gt__(self, other: WinkPath) -> bool:
        return self._pure > other._pure if isinstance(other, WinkPath) else NotImplemented

    def __ge__(self, other: WinkPath) -> bool:
        return self._pure >= other._pure if isinstance(other, WinkPath) else NotImplemented

    def __truediv__(self, part: str | os.PathLike[str]) -> Self:
        return self.joinpath(part)

    def joinpath(self, *parts: str | os.PathLike[str]) -> Self:
        """Return the path with parts added."""
        return type(self)(self.reader, self._pure, *parts)

    def _with(self, pure: Pure) -> Self:
        return type(self)(self.reader, pure)

    def _listed(self, pure: Pure, is_directory: bool) -> Self:
        """Return a path that was found in a listing."""
        made = object.__new__(type(self))
        made.reader, made._pure, made._alone = self.reader, pure, not is_directory
        made._text = str(pure)
        return made

    @property
    def name(self) -> str:
        """The last part; empty for the top of the store."""
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        return self._pure.parts

    @property
    def parent(self) -> Self:
        return self._with(self._pure.parent)

    @property
    def parents(self) -> tuple[Self, ...]:
        return tuple(map(self._with, self._pure.parents))

    def as_posix(self) -> str:
        return str(self)

    def with_name(self, name: str) -> Self:
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> Self:
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> Self:
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: WinkPath | str) -> PurePosixPath:
        """Return the path below another one. Raises ValueError if it is not below it."""
        return self._pure.relative_to(_pure(other))

    def is_relative_to(self, other: WinkPath | str) -> bool:
        return self._pure.is_relative_to(_pure(other))

    def match(self, pattern: str) -> bool:
        """Return whether the path matches a pattern, from its end: see `PurePath.match`."""
        return self._pure.match(pattern)

    @property
    def stored_name(self) -> str:
        """The name of the file with this path, as `read` and `put` of the store take it."""
        return name_of_path(self._text)

    # --- what is there ---

    def _found(self, path: str) -> Stat | None:
        """Return the file with a path, None: there is none."""
        name = name_of_path(path) if path else ""
        if not name or name not in self.reader:  # faster than an exception
            return None
        try:
            found: Stat = self.reader.stat(name)
        except FileNotFoundError:
            return None
        return found

    def _has_names(self, path: str) -> bool:
        """Return whether names are below a directory."""
        if not path:
            return True
        return any(True for _ in self.reader.paths_below(_prefix(path)))

    def _look(self, *, follow: bool = True) -> tuple[str, Stat | None]:
        """Return the path after symbolic links, and the file there; without `follow` the last part
        is not followed.

        raises  NoSuchFile if a link leads out of the store; Refusal ELOOP
        """
        path = self._text
        for _ in range(MAX_LINKS + 1):
            found = self._found(path)
            if found is not None and (found.ftype != FileType.LINK or not follow):
                return path, found
            link = path if found is not None else self._link_above(path)
            if not link:
                return path, None
            target = to_str(self.reader.read(name_of_path(link)))
            path = _joined(link, target, path[len(link) :])
        raise Refusal("too many symbolic links", self._text, number=errno.ELOOP)

    def _link_above(self, path: str) -> str:
        """Return the first symbolic link that a path leads through, "": none."""
        for parent in _above(path):
            found = self._found(parent)
            if found is not None and found.ftype == FileType.LINK:
                return parent
        return ""

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is a file or a directory."""
        path, found = self._led(follow=follow_symlinks)
        return found is not None or (path is not None and self._has_names(path))

    def _led(self, *, follow: bool = True) -> tuple[str | None, Stat | None]:
        """Return as `_look`; None and None: links lead nowhere."""
        try:
            return self._look(follow=follow)
        except Refusal as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            return None, None

    def is_file(self) -> bool:
        """Return whether there is a file that is no directory."""
        return self._kind() == FileType.FILE

    def is_dir(self) -> bool:
        """Return whether there is a directory: an entry for one, or names below it."""
        return self._kind() == FileType.DIR

    def is_symlink(self) -> bool:
        """Return whether there is a symbolic link with this path."""
        _, found = self._led(follow=False)
        return found is not None and found.ftype == FileType.LINK

    def _kind(self) -> FileType | None:
        """Return FILE, DIR, or None: there is nothing."""
        path, found = self._led()
        if path is None:
            return None
        if found is None or found.ftype == FileType.DIR or not self._is_own(path):
            there = found is not None or self._has_names(path)
            return FileType.DIR if there else None
        return FileType.FILE

    def _is_own(self, path: str) -> bool:
        """Return whether a file's path is not that of a directory of other names, too."""
        return self._alone or path.endswith(OWN_TEXT) or not self._has_names(path)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size, times, mode and owner as `os.stat` does; st_ino is the FILEID. A directory
        without an entry has time 0.

        raises  FileNotFoundError
        """
        path, found = self._look(follow=follow_symlinks)
        if found is None:
            if not self._has_names(path):
                raise self._missing(path)
            found = Stat(path, 0, 0, 0, FileType.DIR, 0o755, os.getuid(), os.getgid(), 0)
        mode = KIND.get(found.ftype, stat.S_IFREG) | found.mode
        ns = found.mtime_ns, found.mtime_ns, found.ctime_ns
        whole = [each // NANO for each in ns]
        fields = (mode, found.fileid, 0, 1, found.uid, found.gid, found.size, *whole)
        names = ("st_atime", "st_mtime", "st_ctime")
        exact: dict[str, Any] = {f"{name}_ns": each for name, each in zip(names, ns, strict=True)}
        exact |= dict(zip(names, (each / NANO for each in ns), strict=True))
        return os.stat_result(fields, exact)

    def lstat(self) -> os.stat_result:
        """Return as `stat`, of a symbolic link itself."""
        return self.stat(follow_symlinks=False)

    def readlink(self) -> PurePosixPath:
        """Return the target of a symbolic link. Raises FileNotFoundError; OSError (EINVAL)."""
        path, found = self._look(follow=False)
        if found is None and not self._has_names(path):
            raise self._missing(path)
        if found is None or found.ftype != FileType.LINK:
            raise Refusal("not a symbolic link", self._text, number=errno.EINVAL)
        return Pure(self.reader.readlink(name_of_path(path)))

    # --- directories ---

    def iterdir(self) -> Iterator[Self]:
        """Yield the paths in a directory, in order. Raises FileNotFoundError; NotADirectoryError.

        cost  reads the names of all that is below it
        """
        path, _ = self._look()
        try:
            directories, files = self.reader.below(path)
        except NoSuchFile:
            raise self._missing(path) from None
        names = sorted(directories | files)
        return (self._listed(self._pure / name, name in directories) for name in names)

    def walk(self) -> Iterator[tuple[Self, list[str], list[str]]]:
        """Yield (directory, its directories, its files), as `os.walk`."""
        for path, directories, files in self.reader.walk(self._text):
            yield self._with(Pure(path)), directories, files

    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield the paths below that match, in the order of their names; symbolic links are not
        followed.

        pattern  parts with *, ? and [...], which do not cross /; a part ** is any number of
                 directories, or at the end all that is below. A / at the end: directories only
        raises   ValueError for an empty pattern, or one with a part `..`; NotImplementedError for
                 one from the top
        cost     reads the names below the first part with a wildcard, from the catalog
        """
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern is a text, not {type(pattern).__name__}")
        if not pattern or PARENT in pattern.split("/"):
            raise ValueError(f"not a pattern: {pattern!r}")
        if pattern.startswith("/"):
            raise NotImplementedError("a pattern from the top: use glob of the store's top path")
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        return self._matching(parts, pattern.endswith("/"))

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Yield the paths that match at any depth: see `glob`."""
        if isinstance(pattern, str) and not pattern.startswith("/"):
            pattern = f"{ANY_DEPTH}/{pattern}"
        return self.glob(pattern)

    def _matching(self, parts: list[str], only_directories: bool) -> Iterator[Self]:
        plain = 0
        while plain < len(parts) and not WILD.search(parts[plain]):
            plain += 1
        top = self._pure.joinpath(*parts[:plain])
        start = self.joinpath(*parts[:plain])
        if not start.exists():
            return
        rest = parts[plain:]
        if set(rest) <= {ANY_DEPTH} and (not only_directories or start.is_dir()):
            yield start
        if not rest:
            return
        matches = re.compile(expression(rest)).fullmatch
        for path, is_directory in _all_below(self.reader, start._text):
            if (is_directory or not only_directories) and matches(path):
                yield self._listed(top / path, is_directory)

    # --- contents ---

    def _file(self) -> str:
        """Return the name of the file to read. Raises IsDirectory; NoSuchFile."""
        path, found = self._look()
        if found is not None and found.ftype != FileType.DIR:
            return name_of_path(path)
        if found is not None or self._has_names(path):
            raise IsDirectory("is a directory", self._text)
        raise self._missing(path)

    def _missing(self, path: str) -> Refusal:
        """Return the error for a path at which nothing is."""
        if above := self._file_above(path):
            return NotDirectory("not a directory", above)
        return NoSuchFile("no such file or directory", self._text)

    def _file_above(self, path: str) -> str:
        """Return the first file that a path leads through, "": none."""
        for parent in _above(path):
            found = self._found(parent)
            if found is not None and found.ftype != FileType.DIR:
                return parent
        return ""

    def _target(self) -> str:
        """Return the name of the file to write. Raises IsDirectory for the entry of a directory;
        NotDirectory for a path below a file."""
        path, found = self._look()
        if not path or (found is not None and found.ftype == FileType.DIR):
            raise IsDirectory("is a directory", self._text)
        if found is None and (above := self._file_above(path)):
            raise NotDirectory("not a directory", above)
        return name_of_path(path)

    def read_bytes(self) -> bytes:
        """Return the content. Raises FileNotFoundError; IsADirectoryError; CorruptError."""
        content: bytes = self.reader.read(self._file())
        return content

    def read_text(
        self, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """Return the content as text, UTF-8 by default. Raises as `read_bytes`; UnicodeError."""
        with self.open("r", -1, encoding, errors, newline) as file:
            return str(file.read())

    @overload
    def open(self, mode: Literal["rb", "br"], buffering: int = ...) -> io.BufferedReader: ...
    @overload
    def open(
        self, mode: str = ..., buffering: int = ..., encoding: str | None = ...,
        errors: str | None = ..., newline: str | None = ..., **options: Any,
    ) -> Any: ...  # fmt: skip
    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **options: Any,
    ) -> Any:
        """Open the file, as text by default: see `open_file` of the store."""
        name = self._file() if "r" in mode else self._target()
        return self.reader.open_file(name, mode, buffering, encoding, errors, newline, **options)

    def write_bytes(self, data: ReadableBuffer) -> int:
        """Create or replace the file -> bytes. Raises ReadOnly; IsADirectoryError."""
        content = as_content(data)
        self._writer("put")(self._target(), content)
        return len(content)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Create or replace the file with text, UTF-8 by default -> characters."""
        if not isinstance(data, str):
            raise TypeError(f"text is a str, not {type(data).__name__}")
        with self.open("w", -1, encoding, errors, newline) as file:
            return int(file.write(data))

    # --- changes ---

    def _writer(self, what: str) -> Callable[..., Any]:
        """Return a method of the store that changes it. Raises Refusal if it has none."""
        found: Callable[..., Any] | None = getattr(self.reader, what, None)
        if found is None or not hasattr(self.reader, "setdefault"):
            raise Refusal("files of this store cannot be changed by name", self.reader.base)
        return found

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file, or the symbolic link. Raises FileNotFoundError; IsADirectoryError."""
        path, found = self._look(follow=False)
        if found is None or found.ftype == FileType.DIR:
            if found is not None or self._has_names(path):
                raise IsDirectory("is a directory: use rmdir", self._text)
            if missing_ok:
                return
            raise self._missing(path)
        self._writer("delete")(name_of_path(path))

    def rmdir(self) -> None:
        """Remove the entry of an empty directory. Raises FileNotFoundError; NotADirectoryError;
        OSError (ENOTEMPTY)."""
        path, found = self._look(follow=False)
        if self._has_names(path):
            raise Refusal("the directory is not empty", self._text, number=errno.ENOTEMPTY)
        if found is None:
            raise self._missing(path)
        if found.ftype != FileType.DIR:
            raise NotDirectory("not a directory", self._text)
        self._writer("delete")(name_of_path(path))

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Make an entry for a directory. Those above it need none.

        raises  FileExistsError, unless `exist_ok` and it is a directory
        """
        put, (path, found) = self._writer("put"), self._look()
        is_directory = found is not None and found.ftype == FileType.DIR
        if exist_ok and (is_directory or not self._text):
            return
        if found is not None or (not exist_ok and self._has_names(path)):
            raise FileExists("exists already", self._text)
        put(self._target(), b"", ftype=FileType.DIR, mode=None if mode == 0o755 else mode)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Make an empty file, or set the mtime of an existing one to now.

        raises  FileExistsError without `exist_ok`; PermissionError for a file of a data set, or of
                an append-only container
        """
        path, found = self._look()
        if found is None:
            self._writer("put")(self._target(), b"", mode=None if mode == 0o644 else mode)
        elif not exist_ok:
            raise FileExists("exists already", self._text)
        else:
            self._writer("utime")(name_of_path(path))

    def rename(self, target: WinkPath | str) -> Self:
        """Give the file, or the directory with all below it, another path -> that path. A file
        there is replaced.

        target  a str is a path from the top of the store
        raises  FileNotFoundError; FileExistsError for a directory that is not empty;
                IsADirectoryError; NotADirectoryError
        cost    of a directory: a rename for each file below it
        """
        new, rename = self._with(_pure(target)), self._writer("rename")
        path, found = self._look(follow=False)
        if found is not None and found.ftype != FileType.DIR:
            into, there = new._look(follow=False)
            if there is None and new._has_names(into):
                raise IsDirectory("is a directory", new._text)
            is_link = there is not None and there.ftype == FileType.LINK
            if path != into:
                rename(name_of_path(path), name_of_path(into) if is_link else new._target())
        elif found is None and not self._has_names(path):
            raise self._missing(path)
        elif new != self:
            self._move_all(path, new, rename, has_entry=found is not None)
        return new

    def _move_all(
        self, path: str, new: WinkPath, rename: Callable[..., Any], *, has_entry: bool
    ) -> None:
        """Rename all names below a directory, and its entry."""
        if not path:
            raise Refusal(
                "the top of a store cannot be moved", self.reader.base, number=errno.EBUSY
            )
        into, found = new._look()
        if f"{into}/".startswith(f"{path}/"):
            what = "a directory cannot be moved into itself"
            raise Refusal(what, self._text, number=errno.EINVAL)
        if found is not None and found.ftype != FileType.DIR:
            raise NotDirectory("not a directory", new._text)
        if new._has_names(into):
            raise FileExists("the directory is not empty", new._text, number=errno.ENOTEMPTY)
        if above := new._file_above(into):
            raise NotDirectory("not a directory", above)
        old, start = _prefix(path), _prefix(into)
        with self.reader.locked():
            for below, _ in list(self.reader.paths_below(old)):
                name = name_of_path(below)
                rename(name, start + name[len(old) :])
            if has_entry:
                rename(name_of_path(path), name_of_path(into))

    replace = rename


def _pure(path: WinkPath | str | os.PathLike[str]) -> Pure:
    if isinstance(path, WinkPath):
        return path._pure
    pure = Pure("/", path)
    return pure.relative_to(pure.anchor)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path, that at the top first."""
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _prefix(path: str) -> str:
    """Return how the names below a directory begin."""
    return f"{to_str(name_below(to_bytes(path)))}/" if path else ""


def _joined(link: str, target: str, rest: str) -> str:
    """Return where a link leads, with what follows it. Raises NoSuchFile: out of the store."""
    parts = [] if target.startswith("/") else link.split("/")[:-1]
    if target.startswith("/"):
        raise NoSuchFile(f"the symbolic link leads out of the store, to {target}", link)
    for part in f"{target}{rest}".split("/"):
        if part == PARENT:
            if not parts:
                raise NoSuchFile(f"the symbolic link leads out of the store, to {target}", link)
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _all_below(reader: Any, top: str) -> list[tuple[str, bool]]:
    """Return all paths below a directory, relative to it and sorted, and whether each is a
    directory; those without an entry, too."""
    cut = len(top) + 1 if top else 0
    directories: set[str] = set()
    files: list[str] = []
    for path, is_directory in reader.paths_below(_prefix(top)):
        short = path[cut:]
        if is_directory:
            directories.add(short)
        else:
            files.append(short)
        above = short.rpartition("/")[0]
        while above and above not in directories:
            directories.add(above)
            above = above.rpartition("/")[0]
    own = (f"{path}{OWN_TEXT}" if path in directories else path for path in files)
    return sorted([*((path, True) for path in directories), *((path, False) for path in own)])
