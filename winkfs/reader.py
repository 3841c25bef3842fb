"""Reader: the read API of every kind of store that has files with names.

A store implements `scan`, `stat` and `read`; `Reader` builds the rest on them.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeVar, overload

from winkformats.closing import Closing
from winkformats.errors import CorruptError
from winkfs.entry import Entry, FileReader, FileType, Stat
from winkfs.errors import NoSuchFile, NoSuchKey, NotDirectory, Refusal, need
from winkfs.names import NO_NAME, OWN, SELF, Name, name_at, name_below, path_of, to_bytes, to_str
from winkfs.pythonic.files import (
    FileWriter,
    Mode,
    TextWriter,
    check_options,
    check_text,
    parse_mode,
)
from winkfs.pythonic.views import Items, Values
from winkfs.units import Time, as_int

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.pythonic.path import WinkPath

T = TypeVar("T")
ReadBytes = Literal["rb", "br"]
WriteBytes = Literal["wb", "bw", "xb", "bx", "ab", "ba"]
Text = Literal["r", "rt", "tr", "w", "wt", "tw", "x", "xt", "tx", "a", "at", "ta"]
Problem = Callable[[CorruptError], None]
Content = bool | Literal["ref"]
Order = Literal["disk", "name"] | None
BATCH_BYTES: Final = 4 << 20  # of content in an Arrow batch
BUFFER: Final = 1 << 30  # bytes of the largest buffer of a file object


class Part(Protocol):
    """A share of the files of a store, see `Reader.parts`. It can be pickled, and opens the store
    where it is read. Any consumer of Arrow takes it as a stream."""

    @property
    def schema(self) -> pa.Schema: ...

    def to_batches(self) -> pa.RecordBatchReader:
        """Return its files in batches. Raises, while they are read, CorruptError; StalePlan if the
        store was replaced; OSError."""

    def to_arrow(self) -> pa.Table:
        """Return its files as a table."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class Reader(Closing):
    """Files by name. A name is str, bytes or a Path; slashes separate directories."""

    changed_by: ClassVar[str] = "another program"  # the methods that write, for a message
    takes_where: ClassVar[bool] = False  # `where` chooses files: of containers and data sets

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

    # --- as a dict ---

    @overload
    def get(self, name: Name) -> bytes | None: ...
    @overload
    def get(self, name: Name, default: T) -> bytes | T: ...
    def get(self, name: Name, default: Any = None) -> Any:
        """Return the content; `default` if there is no such file. Raises CorruptError."""
        try:
            return self.read(name)
        except FileNotFoundError:
            return default

    def keys(self) -> KeysView[str]:
        """Return a view of the names, as that of a dict."""
        return KeysView(self)  # it needs len, iteration and `in`

    def items(self) -> Items:
        """Return a view of (name, content), in the order of the names, which reads in bulk.

        A file that is deleted while others are read is left out. Memory: 8 MiB of contents, 32 MiB
        of a store on a network, or the largest file.
        """
        return Items(self)

    def values(self) -> Values:
        """Return a view of the contents, as `items`."""
        return Values(self)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file, in the order of `names`, as of the call."""
        return ((entry.name, entry.size) for entry in self.scan())

    # --- as files ---

    @overload
    def open_file(  # type: ignore[overload-overlap]  # of all ints 0 alone makes no buffer
        self, name: Name, mode: ReadBytes = ..., *, buffering: Literal[0]
    ) -> FileReader: ...
    @overload
    def open_file(
        self, name: Name, mode: ReadBytes = ..., buffering: int = ...
    ) -> io.BufferedReader: ...
    @overload
    def open_file(
        self, name: Name, mode: WriteBytes, buffering: int = ..., **options: Any
    ) -> FileWriter: ...
    @overload
    def open_file(
        self, name: Name, mode: Text, buffering: int = ..., encoding: str | None = ...,
        errors: str | None = ..., newline: str | None = ..., **options: Any,
    ) -> io.TextIOWrapper: ...  # fmt: skip
    @overload
    def open_file(self, name: Name, mode: str, buffering: int = ..., **options: Any) -> Any: ...
    def open_file(
        self,
        name: Name,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **options: Any,
    ) -> FileReader | io.BufferedReader | io.TextIOWrapper | FileWriter:
        """Open a file as a seekable file object, as `open` does.

        mode       rb, wb, xb, ab; r, w, x, a: text. What is written is stored at once by `close`,
                   as `put` does it; a `with` block that ends with an exception stores nothing
        buffering  bytes of the buffer of a binary file that is read; 0: none, each read goes to the
                   store; -1: the best size
        encoding   of text, "utf-8" by default; errors, newline: as those of `open`
        options    of a file that is written whole: mtime, permissions, columns, as `put` has them
        raises     FileNotFoundError; CorruptError; FileExistsError (x; also from `close`);
                   ReadOnly; ValueError
        """
        if mode == "rb" and not (encoding or errors or newline or options):
            return self._open_to_read(name, buffering)
        how = parse_mode(mode)
        check_text(how, buffering, encoding, errors, newline)
        text = {"encoding": encoding or "utf-8", "errors": errors, "newline": newline}
        if how.action != "r":
            return self._open_to_write(name, how, text, check_options(options))
        if options:
            raise TypeError(f"{next(iter(options))} is of a file that is written")
        file = self._open_to_read(name, buffering)
        return io.TextIOWrapper(file, **text) if how.text else file  # type: ignore[arg-type]

    def _open_to_read(self, name: Name, buffering: int) -> FileReader | io.BufferedReader:
        buffering = as_int(buffering, "buffering", -1, BUFFER)
        raw = FileReader(self, to_str(name), self.stat(name).size)
        if buffering == 0:
            return raw
        return io.BufferedReader(raw, buffering if buffering > 1 else raw.best_buffer)

    def _open_to_write(
        self,
        name: Name,
        mode: Mode,
        text: Mapping[str, str | None],
        options: Mapping[str, Any],
    ) -> FileWriter | TextWriter:
        raise ValueError(f"mode must be 'rb' or 'r', not {mode.action!r}: use {self.changed_by}")

    def __truediv__(self, path: str | os.PathLike[str]) -> WinkPath:
        """Return a path in the store, with the methods of `pathlib.Path`."""
        from winkfs.pythonic.path import WinkPath  # late: most programs need none

        return WinkPath(self, path)

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

    # --- Arrow ---

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: str | None = None,
        prefix: Name = "",
        since: Time | None = None,
        until: Time | None = None,
        content: Content = True,
        batch_bytes: int = BATCH_BYTES,
        order: Order = None,
        include_dirs: bool = False,
        problem: Callable[[str], None] | None = None,
    ) -> pa.RecordBatchReader:
        """Return the files as of the call, in Arrow batches.

        columns      `path`, `size`, `mtime` (microseconds, UTC), `content`, columns of the user, or
                     `name_raw` (bytes), `mtime_ns`, `ftype`, `mode`, `ref`; None: path, size,
                     mtime, those of the user, and what `content` has
        where, prefix, since, until  see `Container.scan`
        content      with `columns` None: True adds `content`, False does not; "ref" adds `ref`, a
                     number for `read_rows`
        batch_bytes  bytes of content in a batch; a larger file is alone in its batch
        order        "disk": as the files lie, which is fastest; "name": byte order; None: disk if
                     contents are read. A writer reads by name
        include_dirs directories and symbolic links, too
        problem      called with a line for each damaged or too large file, which is left out; None:
                     it raises
        raises       ValueError; Refusal without pyarrow; while batches are read: CorruptError;
                     StalePlan if a compaction replaced the container; OSError
        cost         `where` is evaluated on the catalog; memory: two batches, and 8 bytes a file
                     in disk order
        """
        reading = need_arrow()
        asked = reading.wanted(
            self, columns, where, prefix, since, until, content, batch_bytes, include_dirs, problem
        )
        found: pa.RecordBatchReader = reading.to_batches(self, asked, order)
        return found

    def to_arrow(self, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        """Return the files as an Arrow table: see `to_batches` for the options."""
        return self.to_batches(columns, **options).read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all files as a stream, for Arrow, Polars, DuckDB and others: see `to_batches`."""
        reading = need_arrow()
        asked = reading.wanted(self, None, None, "", None, None, True, BATCH_BYTES, False)
        return reading.stream(self, asked).__arrow_c_stream__(requested_schema)

    def parts(
        self,
        n: int,
        columns: Sequence[str] | None = None,
        *,
        where: str | None = None,
        prefix: Name = "",
        since: Time | None = None,
        until: Time | None = None,
        content: Content = True,
        batch_bytes: int = BATCH_BYTES,
        include_dirs: bool = False,
        problem: Callable[[str], None] | None = None,
    ) -> list[Part]:
        """Divide the files into at most n parts of about equal bytes, for as many processes.

        A part can be pickled; it has `to_batches()`, `to_arrow()` and `schema`, and opens the store
        where it is read, at the state of this call; there `problem` is called. For the options see
        `to_batches`. A part of a data set may have no file, where a file is larger than a part.
        """
        reading = need_arrow()
        asked = reading.wanted(
            self, columns, where, prefix, since, until, content, batch_bytes, include_dirs, problem
        )
        found: list[Part] = reading.parts(self, asked, n)
        return found

    def read_rows(
        self, refs: Any, columns: Sequence[str] | None = None, *, content: bool = True
    ) -> pa.Table:
        """Return files by their references, in the order of these: numbers of the column `ref`
        that `to_batches(content="ref")` of this reader had.

        columns, content  see `to_batches`
        raises            ValueError for a reference to no file; CorruptError; OSError
        cost              files that lie together are read together
        """
        reading = need_arrow()
        asked = reading.wanted(self, columns, None, "", None, None, content, BATCH_BYTES, True)
        return reading.read_rows(self, refs, asked)

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
        directories, files = self.below(to_str(path).strip("/"))
        return sorted(directories | files)

    def walk(self, top: Name = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """(directory, its directories, its files) of `top` and all below, as os.walk yields them.

        cost  one scan of all that is below; memory: the names
        """
        root = to_str(top).strip("/")
        name = to_str(name_below(to_bytes(root)))
        tree: dict[str, tuple[set[str], set[str]]] = {root: (set(), set())}
        for path, is_directory in self.paths_below(f"{name}/" if root else ""):
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

    def paths_below(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
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

    def below(self, path: str = "") -> tuple[set[str], set[str]]:
        """Return the names of directories and of other files directly below a directory: see
        `listdir`."""
        name = to_str(name_below(to_bytes(path)))
        cut = len(path) + 1 if path else 0
        directories: set[str] = set()
        files: set[str] = set()
        for below, is_directory in self.paths_below(f"{name}/" if path else ""):
            short, slash, _ = below[cut:].partition("/")
            (directories if slash or is_directory else files).add(short)
        files -= directories
        if path and (directories or files):
            if self._is_file(name):
                files.add(to_str(SELF))
        elif path and self._stat_at(path).ftype != FileType.DIR:
            raise NotDirectory("not a directory", path)
        return directories, files


def each_once(problem: Problem) -> Problem:
    """Return a callback that passes on each damage once, by its text."""
    known = set[str]()

    def report(error: CorruptError) -> None:
        if str(error) not in known:
            known.add(str(error))
            problem(error)

    return report


def need_arrow() -> ModuleType:
    """Return the module that reads as Arrow batches. Raises Refusal without pyarrow."""
    need("pyarrow", "reading as Arrow", "arrow")
    return import_module("winkfs.arrow.reading")
