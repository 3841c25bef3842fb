"""WinkFileSystem: the files of a store as an fsspec filesystem, protocol `wink`."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, Final

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import glob_translate, isfilelike, stringify_path

from winkfs.container.container import Container
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.entry import FileReader
from winkfs.errors import (
    Closed,
    CorruptError,
    DamageWarning,
    FileExists,
    IsDirectory,
    NoSuchFile,
    ReadOnly,
    need,
    warn_caller,
)
from winkfs.fsspec.changes import PIECE_BYTES, Changes
from winkfs.fsspec.files import ReadFile, WinkTransaction, WriteFile, WriteText
from winkfs.fsspec.listing import Info, clashing
from winkfs.fsspec.opened import Opened, Turn, close_at_end, drop
from winkfs.fsspec.target import Copied, find
from winkfs.names import is_glob, literal_prefix, to_str
from winkfs.pythonic.files import check_coding
from winkfs.reader import Reader
from winkfs.registry import AsOf

# An old fsspec has none. Its own look-up of `wink` imports this module, too.
ChainedFileSystem: Any = need("fsspec.implementations.chained", "winkfs.fs").ChainedFileSystem
GIVEN: Final = ("columns", "mtime")  # options of a file that is written
TEXT: Final = ("encoding", "errors", "newline")  # options of a text file


class _Pinned(type(ChainedFileSystem)):  # type: ignore[misc]  # fsspec has no types
    """Makes instances: a reader of a data set gets its generation as an argument, so that it is in
    the key of fsspec's cache of instances, and in a pickled one. A writer is not cached."""

    def __call__(
        cls,
        fo: Any = None,
        mode: str = "r",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        as_of: AsOf | None = None,
        where: str | None = None,
        **options: Any,
    ) -> Any:
        there, path = find(fo, target_protocol, target_options, fs)
        given: dict[str, Any] = {"as_of": as_of, "where": where}
        if there is not None:
            given |= {"target_protocol": target_protocol, "target_options": target_options,
                      "fs": fs}  # fmt: skip
        elif mode == "r" and is_dataset(path):
            given["as_of"] = Log(path).at(as_of).generation
        if mode != "r":
            given["skip_instance_cache"] = True
        kept = {key: value for key, value in given.items() if value is not None}
        where_it_is = path if there is None else os.fspath(fo)
        return super().__call__(fo=where_it_is, mode=mode, **kept, **options)


class WinkFileSystem(ChainedFileSystem, metaclass=_Pinned):  # type: ignore[misc]
    """The files of a container, data set or other store.

    fo              path of the store
    mode            "r" to read; "a" to read and write a container or data set
    target_protocol, target_options, fs  the filesystem that has the store. If it is not of this
                    machine, the store is copied to a temporary folder first, which `close`
                    removes, and can only be read
    as_of           of a data set: a generation, or a time
    where           only files for which this condition is true; for reading

    Paths are those of `winkfs.path_of`. A reader of a container follows its writer, one of a data
    set stays at its generation. Each call that writes, and the `close` of a file, is one sync of a
    container or one commit of a data set; so is a block `with fs.transaction`. Threads may share
    an instance.

    raises  what `winkfs.open` raises
    """

    protocol: ClassVar[str] = "wink"
    root_marker: ClassVar[str] = ""
    transaction_type = WinkTransaction

    def __init__(
        self,
        fo: str,
        mode: str = "r",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        as_of: AsOf | None = None,
        where: str | None = None,
        **options: Any,
    ) -> None:
        if self._cached:
            return
        super().__init__(**options)
        if mode not in ("r", "a"):
            raise ValueError(f"mode must be 'r' or 'a', not {mode!r}")
        if mode == "a" and where is not None:
            raise ValueError("where is for reading: a writer has all files")
        self.fo, self.mode, self.as_of, self.where = fo, mode, as_of, where
        self.cachable = mode == "r"
        self._turn, self._closed = Turn(), False
        self._copied: Copied | None = None
        there, self._path = find(fo, target_protocol, target_options, fs)
        if there is not None:
            if mode == "a":
                raise ReadOnly("a store of another filesystem can only be read: copy it first", fo)
            self._copied = Copied(there, self._path)
            self._path = self._copied.path
        self._opened = self._open_store()

    # --- the store ---

    def _open_store(self) -> Opened:
        opened = Opened(self._path, self.mode, self.as_of, self.where)
        self._end = weakref.finalize(self, drop, opened.reader)
        close_at_end(self._end)
        return opened

    @property
    def _store(self) -> Opened:
        if self._closed:
            raise Closed("the filesystem is closed", self._path)
        return self._opened

    @property
    def reader(self) -> Reader:
        """The open store."""
        return self._store.reader

    def close(self) -> None:
        """Close the store. Idempotent. Raises OSError."""
        with self._turn.lock:
            if self._closed:
                return
            self._closed = True
            kept, token = type(self)._cache, self._fs_token
            if kept.get(token) is self:  # else the next caller would get a closed one
                del kept[token]
            self._end.detach()
            try:
                if self._intrans and isinstance(self._opened.reader, Dataset):
                    self._opened.reader.abort()
                self._opened.reader.close()
            finally:
                if self._copied is not None:
                    self._copied.remove()

    def __enter__(self) -> WinkFileSystem:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def fsid(self) -> str:
        return f"wink-{self._fs_token}"

    # --- writing, and when it is kept ---

    def _changes(self) -> Changes:
        """Return the changes of the open store. Raises Closed; ReadOnly."""
        changes = self._store.changes
        if changes is None:
            how = "open it with mode='a'; as an option of a URL: wink={'mode': 'a'}"
            raise ReadOnly(f"the filesystem was opened for reading: {how}", self._path)
        return changes

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Changes]:
        """Have a block change the store; then sync it, unless the block is inside another one, or
        in a transaction."""
        with self._turn.lock:
            changes = self._changes()
            self._turn.depth += 1
            try:
                yield changes
            finally:
                self._turn.depth -= 1
                if not self._turn.depth and not self._intrans:
                    changes.sync()

    def begin_changes(self) -> None:
        """Begin a transaction. Raises ReadOnly; Closed."""
        self._changes()

    def end_changes(self, *, commit: bool) -> None:
        """End a transaction: sync or discard. Raises OSError; DatasetConflict."""
        with self._turn.lock:
            changes = self._changes()
            if commit:
                changes.sync()
                return
            changes.store.abort()
            if isinstance(changes.store, Dataset):
                changes.forget()
            else:
                self._end.detach()
                self._opened = self._open_store()

    # --- paths ---

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text: str = to_str(path) if isinstance(path, bytes) else stringify_path(path)
        text = text.removeprefix("wink://").removeprefix("wink::").strip("/")
        if "//" in text or "/." in text or text[:1] == ".":
            text = posixpath.normpath("/" + text).strip("/")
        return text

    def info(self, path: str, **_: Any) -> Info:
        """Return the metadata of a file or directory, also the values of its columns.

        A symbolic link has `islink` and `destination`, and type and size of what it leads to.
        raises  FileNotFoundError
        cost    of a file one look-up; of a directory without an entry one block of the catalog
        """
        return self._store.paths.info(self._strip_protocol(path))

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file or directory."""
        return self._type(path) != ""

    def lexists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file, directory or symbolic link."""
        return self.exists(path)

    def isfile(self, path: str) -> bool:
        """Return whether there is a file."""
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        """Return whether there is a directory."""
        return self._type(path) == "directory"

    def _type(self, path: str) -> str:
        return self._store.paths.kind(self._strip_protocol(path))

    def created(self, path: str) -> datetime:
        """Return the time of the last change, in UTC. Raises FileNotFoundError."""
        return self._time(path, "created")

    def modified(self, path: str) -> datetime:
        """Return the mtime, in UTC. Raises FileNotFoundError."""
        return self._time(path, "mtime")

    def _time(self, path: str, field: str) -> datetime:
        info = self.info(path)
        if field not in info:
            raise IsDirectory("a directory without an entry has no time", info["name"] or "/")
        return datetime.fromtimestamp(info[field], UTC)

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        """Raise NotImplementedError: files in a store have no URLs."""
        raise NotImplementedError(
            f"{self._strip_protocol(path)}: a file in a store has no signed URL: copy it with `get`"
        )

    # --- many paths: one pass over a part of the catalog ---

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what is in a directory, sorted; of a file, itself. Raises FileNotFoundError."""
        path, paths = self._strip_protocol(path), self._store.paths
        tree = paths.tree(path, 1, detail=detail)
        found: dict[str, Any] = tree.directories | tree.files
        if not found and path:
            info = paths.info(path)
            if info["type"] != "directory":
                found = {path: info}
            elif (real := paths.real(path)) != path:
                there = self.ls(real) if real != path else []
                names = [f"{path}/{each['name'].rpartition('/')[2]}" for each in there]
                found = {n: each | {"name": n} for n, each in zip(names, there, strict=True)}
        return [found[name] for name in sorted(found)] if detail else sorted(found)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        columns: bool = True,
        **_: Any,
    ) -> Any:
        """Return the files below a path, sorted; with `withdirs` directories and itself, too.

        columns  whether the metadata have the values of the columns

        ->       paths; with `detail` a dict of their metadata
        """
        _check_depth(maxdepth)
        path, paths = self._strip_protocol(path), self._store.paths
        tree = paths.tree(path, maxdepth, detail=detail, columns=columns)
        found: dict[str, Any] = dict(tree.files)
        if withdirs:
            found |= tree.directories
        if path and (withdirs or not (tree.files or tree.directories)):
            with contextlib.suppress(NoSuchFile):
                info = paths.info(path)
                if withdirs or info["type"] != "directory":
                    found[path] = info
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        **options: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield (directory, its directories, its files) of a path and all below: see `os.walk`.

        on_error  of what is damaged: "raise"; "omit": it is left out, with a DamageWarning; or a
                  function that is called with each error
        cost  one pass over the part of the catalog; memory: the paths
        """
        _check_depth(maxdepth)
        path, paths = self._strip_protocol(path), self._store.paths
        detail = bool(options.get("detail"))
        report = on_error if callable(on_error) else _warn_of
        problem = None if on_error == "raise" else report
        tree = paths.tree(path, maxdepth, detail=detail, problem=problem)
        inside: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {path: ({}, {})}
        if path and not (tree.files or tree.directories):
            try:
                info = paths.info(path)
            except OSError as error:
                if on_error == "raise":
                    raise
                if callable(on_error):
                    on_error(error)
                return
            if info["type"] != "directory":
                inside[path][1][""] = info
        inside |= {each: ({}, {}) for each in tree.directories}
        for which, some in enumerate((tree.directories, tree.files)):
            for each in sorted(some):
                above, _, name = each.rpartition("/")
                inside[above][which][name] = some[each]
        yield from _walked(path, inside, maxdepth, topdown=topdown, detail=detail)

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **_: Any,
    ) -> Any:
        """Return the bytes of all files below a path, or of each, as a dict."""
        found = self.find(path, maxdepth, withdirs, detail=True, columns=False)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def glob(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        """Return the paths that match a pattern, sorted; with `detail` a dict of their metadata.

        cost  reads the part of the catalog with the literal beginning of the pattern
        """
        _check_depth(maxdepth)
        detail, only_directories = bool(options.get("detail")), path.endswith("/")
        path, paths = self._strip_protocol(path), self._store.paths
        if not is_glob(path):
            there = [path] if self.exists(path) else []
            return {name: self.info(name) for name in there} if detail else there
        start = literal_prefix(path)
        rest = path[start.rfind("/") + 1 :]
        depth: int | None = rest.count("/") + 1
        if "**" in rest:
            above = rest[: rest.find("**")].count("/")
            depth = None if maxdepth is None else above + maxdepth
        tree = paths.listing.matching(start, depth, detail=detail)
        clashing(tree)
        paths.finished(tree, detail=detail)
        top = start[:-1] if start.endswith("/") else ""
        if top and (tree.files or tree.directories or paths.is_directory(top)):
            tree.directories[top] = self.info(top) if detail else None
        matches = re.compile(glob_translate(path + ("/" if only_directories else ""))).match
        slash = "/" if only_directories or path == "**" or path.endswith("/**") else ""
        found: dict[str, Any] = {name: info for name, info in tree.files.items() if matches(name)}
        found |= {name: info for name, info in tree.directories.items() if matches(name + slash)}
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    # --- content ---

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Return the content of a file, or a part of it; negative numbers count from its end.

        raises  FileNotFoundError; IsADirectoryError; CorruptError
        """
        return self._store.contents.one(self._strip_protocol(path), (start, end))

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any
    ) -> Any:
        """Return the contents of files, {path: bytes}; of one path that is a file, its bytes.

        on_error  "raise"; "omit": leave out what cannot be read; "return": the exception
        cost      the contents of all are read in bulk
        """
        paths = self.expand_path(path, recursive=recursive)
        one = None if isinstance(path, list) else self._strip_protocol(path)
        if paths == [one]:
            return self.cat_file(paths[0], **options)
        if recursive or one is not None:  # of a pattern or a directory, only its files
            paths = [each for each in paths if not self.isdir(each)]
        contents, part = self._store.contents, (options.get("start"), options.get("end"))
        found: Iterable[bytes | Exception] = contents.many(paths)
        if part != (None, None):
            found = (contents.caught(each, part) for each in paths)
        result = {}
        for each, value in zip(paths, found, strict=True):
            if isinstance(value, Exception) and on_error == "raise":
                raise value
            if not isinstance(value, Exception) or on_error == "return":
                result[each] = value
        return result

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Return parts of files, in the order of the arguments.

        starts, ends  a list, or one number or None for all; as in `cat_file`
        max_gap       ranges of a file with at most so many bytes between them are read as one
        on_error      "return": the exception in place of the bytes; "raise"
        cost          whole files in bulk; a file of at most 8 MiB is read once
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths is a list, not {type(paths).__name__}")
        low, high = (x if isinstance(x, list) else [x] * len(paths) for x in (starts, ends))
        if not len(low) == len(high) == len(paths):
            raise ValueError(f"{len(paths)} paths, {len(low)} starts and {len(high)} ends")
        ranges = list(zip(low, high, strict=True))
        found = self._store.contents.parts(self._strip_protocol(paths), ranges, max_gap or 0)
        if on_error == "raise":
            for value in found:
                if isinstance(value, Exception):
                    raise value
        return found

    def expand_path(self, path: Any, *how: Any, rooted: bool = False, **options: Any) -> list[str]:
        """Return the paths that patterns match, or, with `recursive`, all below directories.

        rooted  each with a / before it, without which fsspec takes a path of one part for the
                directory that it is in
        raises  FileNotFoundError
        """
        try:
            found: list[str] = super().expand_path(path, *how, **options)
        except NoSuchFile:
            raise
        except FileNotFoundError as error:  # its own has a list in place of a message
            some = error.args[0] if error.args else path
            first = some[0] if isinstance(some, list) and some else some
            raise NoSuchFile("no such file", str(first)) from None
        return [f"/{each}" for each in found] if rooted else found

    def get(self, rpath: Any, lpath: Any, recursive: bool = False, **options: Any) -> None:
        """Copy files to local paths: see fsspec."""
        super().get(rpath, lpath, recursive=recursive, rooted=True, **options)

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **_: Any,
    ) -> None:
        """Copy a file to a local path or an open file; for a directory make a local one."""
        into = lpath if isfilelike(lpath) else outfile
        if into is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(self.open(rpath))
            if into is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                into = stack.enter_context(Path(lpath).open("wb"))
            callback.set_size(source.size)
            while data := source.read(PIECE_BYTES):
                into.write(data)
                callback.relative_update(len(data))

    # --- open files ---

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Open a file: r, w, x or a, with b for bytes.

        What is written is stored when the file is closed, and not if its `with` block ends with an
        exception.
        """
        encoding, errors, newline = (options.get(key) for key in TEXT)
        if "b" not in mode:
            check_coding(encoding, errors, newline)
        if "b" in mode or "r" in mode or compression is not None:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        binary = {key: value for key, value in options.items() if key not in TEXT}
        file = self.open(path, f"{mode.replace('t', '')}b", **binary)
        return WriteText(file, encoding, errors, newline)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Open a file: rb, wb, xb or ab. See `open`.

        cache_type      to read through one of fsspec's caches
        columns, mtime  of a file that is written: its values; seconds since the epoch
        """
        if mode == "rb":
            return self._open_to_read(path, block_size, options.get("cache_type"), cache_options)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"{path}: mode must be rb, wb, xb or ab, not {mode!r}")
        with self._turn.lock:
            changes = self._changes()
            path = self._store.paths.real(path)
            if mode == "ab" and changes.there(path):
                return self._open_to_append(changes, path)
            if mode == "xb" and changes.there(path):
                raise FileExists("exists already", path)
            changes.room(path)
        given = {key: options[key] for key in GIVEN if options.get(key) is not None}
        put = partial(self._put, path, exclusive=mode == "xb", **given)
        return WriteFile(self, path, mode, put)

    def _open_to_read(
        self,
        path: str,
        block_size: int | None,
        cache: str | None,
        cache_options: dict[str, Any] | None,
    ) -> Any:
        real, stat = self._store.paths.followed(path)
        if cache is not None or cache_options:
            return AbstractBufferedFile(
                self, path, "rb", block_size or "default", cache_type=cache or "readahead",
                cache_options=cache_options, size=stat.size,
            )  # fmt: skip
        name = to_str(self._store.paths.listing.name(real))
        return ReadFile(self, path, FileReader(self.reader, name, stat.size), block_size)

    def _open_to_append(self, changes: Changes, path: str) -> WriteFile:
        """Open a file to add to it. What it has stays where it is, or else is copied first."""
        if changes.is_directory(path):
            raise IsDirectory("is a directory", path)
        if isinstance(changes.store, Container) and not changes.store.ao:
            before = changes.stat(path).size
            return WriteFile(self, path, "ab", partial(self._append, path), before=before)
        put = partial(self._put, path, keep=changes.kept(path))
        old = changes.store.open_file(self._store.paths.listing.name(path))
        return WriteFile(self, path, "ab", put, iter(partial(old.read, PIECE_BYTES), b""))

    def _append(self, path: str, file: IO[bytes], _: int) -> None:
        """Add what was written to the end of a file."""
        with self._changing() as changes:
            changes.append_from(path, file)

    def _put(
        self, path: str, file: IO[bytes], _: int, exclusive: bool = False, **given: Any
    ) -> None:
        """Put a file that was written."""
        with self._changing() as changes:
            if exclusive and changes.there(path):
                raise FileExists("exists already", path)
            changes.put_from(path, file, **given)

    # --- changes: each call is one sync or commit ---

    def pipe(self, path: Any, value: Any = None, **options: Any) -> None:
        """Put a file, or those of a dict {path: bytes}: see `pipe_file`."""
        with self._changing():
            super().pipe(path, value, **options)

    def pipe_file(
        self,
        path: str,
        value: Any,
        mode: str = "overwrite",
        columns: Mapping[str, Any] | None = None,
        mtime: float | None = None,
        **_: Any,
    ) -> None:
        """Put a file.

        mode    "overwrite", or "create": raise FileExistsError if there is one
        mtime   seconds since the epoch; None: now
        """
        with self._changing() as changes:
            path = self._store.paths.real(self._strip_protocol(path))
            if mode == "create" and changes.there(path):
                raise FileExists("exists already", path)
            changes.put(path, value, columns, mtime)

    def put(self, lpath: Any, rpath: Any, recursive: bool = False, **options: Any) -> None:
        """Copy local files into the store: see fsspec."""
        with self._changing():
            super().put(lpath, rpath, recursive=recursive, **options)

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        columns: Mapping[str, Any] | None = None,
        mtime: float | None = None,
        **_: Any,
    ) -> None:
        """Copy a local file, or make a directory for a local one: see `pipe_file`."""
        with self._changing() as changes:
            path = self._store.paths.real(self._strip_protocol(rpath))
            if mode == "create" and changes.there(path):
                raise FileExists("exists already", path)
            if os.path.isdir(lpath):
                changes.make_directories(path)
                return
            size = os.stat(lpath).st_size
            callback.set_size(size)
            with Path(lpath).open("rb") as source:
                changes.put_from(path, source, columns, mtime)
            callback.relative_update(size)

    def copy(self, path1: Any, path2: Any, recursive: bool = False, **options: Any) -> None:
        """Copy files within the store: see fsspec."""
        with self._changing():
            super().copy(path1, path2, recursive=recursive, rooted=True, **options)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file with its mode, attributes and columns; of a directory only itself."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        with self._changing() as changes:
            if self.isdir(source):
                changes.make_directories(target)
                return
            source = self._store.paths.followed(source)[0]
            with changes.store.open_file(self._store.paths.listing.name(source)) as content:
                changes.put_from(target, content, keep=changes.kept(source))

    def mv(
        self,
        path1: str,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Move a file, or with `recursive` a directory; into `path2` if that is a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        with self._changing() as changes:
            if is_glob(source) or maxdepth is not None:
                super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
                return
            if not changes.there(source):
                raise NoSuchFile("no such file", source)
            directory = changes.is_directory(source)
            if directory and not recursive:
                raise IsDirectory("is a directory: recursive=True moves it", source)
            contents = directory and str(path1).endswith("/")  # into it, not below its name
            if not contents and (str(path2).endswith("/") or changes.is_directory(target)):
                target = f"{target}/{source.rpartition('/')[2]}".strip("/")
            changes.move(source, target)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, with `recursive` directories.

        raises  FileNotFoundError; OSError (ENOTEMPTY)
        """
        with self._changing() as changes:
            paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
            missing = [each for each in paths if not changes.there(each)]
            if missing:
                raise NoSuchFile("no such file", missing[0])
            for each in reversed(paths):
                if changes.there(each):  # else it was there for what was below it
                    changes.remove(each)

    def rm_file(self, path: str) -> None:
        """Remove a file, a link or an empty directory. Raises FileNotFoundError."""
        with self._changing() as changes:
            changes.remove(self._strip_protocol(path))

    _rm = rm_file

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a directory. Raises FileExistsError; FileNotFoundError; NotADirectoryError."""
        with self._changing() as changes:
            changes.make_directory(self._strip_protocol(path), parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it. Raises FileExistsError; NotADirectoryError."""
        path = self._strip_protocol(path)
        with self._changing() as changes:
            if not (exist_ok and (not path or changes.is_directory(path))):
                changes.make_directory(path, parents=True)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory. Raises FileNotFoundError; OSError (ENOTEMPTY)."""
        with self._changing() as changes:
            changes.remove_directory(self._strip_protocol(path))

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Make a file empty; without `truncate` set the mtime of one that exists to now."""
        with self._changing() as changes:
            if truncate or not self.exists(path):
                self.pipe_file(path, b"", **options)
                return
            real = self._store.paths.followed(self._strip_protocol(path))[0]
            changes.store.utime(self._store.paths.listing.name(real))


def _check_depth(maxdepth: int | None) -> None:
    if maxdepth is not None and maxdepth < 1:
        raise ValueError(f"maxdepth must be at least 1, not {maxdepth}")


def _warn_of(error: CorruptError) -> None:
    warn_caller(f"left out: {error}", DamageWarning)


def _walked(
    path: str, inside: Mapping[str, Any], depth: int | None, *, topdown: bool, detail: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield as `walk`, from what is inside each directory."""
    directories, files = inside.get(path, ({}, {}))
    if not detail:
        directories, files = list(directories), list(files)
    if topdown:
        yield path, directories, files
    below = None if depth is None else depth - 1
    for name in list(directories) if below != 0 else ():
        inner = f"{path}/{name}" if path else name
        yield from _walked(inner, inside, below, topdown=topdown, detail=detail)
    if not topdown:
        yield path, directories, files
