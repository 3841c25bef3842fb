"""Container: the handle that a user opens, with files by name."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any

from winkformats.disk.storage import Storage
from winkformats.kv.superblock import Superblock
from winkfs.container.arrow import arrow_parts
from winkfs.container.bulk import BulkPut, Row
from winkfs.container.datafile import create_files, remove_files
from winkfs.container.handle import Handle, check_columns, consumes, reads, writes
from winkfs.container.ondisk.compressed import MAX_FRAME_CONTENT, MIN_FRAME_ENTRY, level_for
from winkfs.container.ondisk.data import new_superblock
from winkfs.container.ondisk.inode import (
    INT64,
    ISZ,
    Attrs,
    Extent,
    check_attrs,
    check_directory,
    check_ftype,
    check_length,
)
from winkfs.container.ondisk.typed import USER, check_schema, to_attributes, to_values
from winkfs.container.read import FAR_ROWS, KEPT_BYTES
from winkfs.container.scan import scan
from winkfs.container.table import FileTable
from winkfs.entry import Entry, FileType, Stat
from winkfs.errors import FileExists, NameTooLong, NoSuchFile
from winkfs.names import (
    Name,
    base_of,
    literal_prefix,
    matcher,
    name_of,
    to_bytes,
    to_str,
    to_strs,
)
from winkfs.pythonic.writer import Writer
from winkfs.reader import Problem
from winkfs.stores.kinds import refuse_other
from winkfs.units import Time, as_content, as_int, checked_ns, shown, to_ns

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Data


def create(
    base: str | os.PathLike[str],
    ao: bool = False,
    timemp: int = 60,
    classic: bool = False,
    htalgo: int | None = None,
    like: Storage | None = None,
    columns: Mapping[str, str] | None = None,
    compress: str | None = None,
    isz: int = ISZ,
    havedups: bool = False,
    exist_ok: bool = False,
) -> Container:
    """Create an empty container and open it for writing.

    ao       append only: files in mtime order, with a time index
    timemp   seconds between time marks (ao)
    classic  the oldest variant: MD5, whole seconds, no checksums of entries
    htalgo   1 MD5, 2 XXH3-64, 3 MurmurHash3; None: 2, classic 1
    like     a file whose mode and owner its files get, if permitted
    columns  columns that files can have: name -> string, binary, bool, int64, float64, timestamp,
             date, datetime, decimal(p,s), list<string>, list<int64> or list<float64>; see
             `Container.add_columns`
    compress "zstd" or "zstd:LEVEL", 1 to 22: content is stored compressed, if that makes it
             smaller; a dictionary is trained on the first files, and used if it saves enough. Needs
             `winkfs[compress]`. "none" or None: it is stored as it is
    isz      bytes of an inode, at least: a multiple of 8 up to 1 MiB. It limits the appends to an
             append-only file, to (isz - 56) / 16 pieces of content
    havedups do not mark older inodes of a replaced file deleted. That saves writes; the first
             delete or rename of a handle then reads the whole container, to mark them
    exist_ok open an existing container instead, as `open` does with "a", if it is of the same
             variant and has these columns
    raises   FileExistsError; Locked; ValueError; OSError
    """
    path, schema = base_of(base), check_schema(columns or {})
    refuse_other(path, "container")
    if schema and classic:
        raise ValueError("a classic container has no attributes, so no columns")
    level = level_for(compress, path, classic=classic)
    block = new_superblock(
        ao=ao, timemp=timemp, classic=classic, htalgo=htalgo, compressed=level > 0,
        isz=as_int(isz, "isz", 56), havedups=bool(havedups),
    )  # fmt: skip
    try:
        create_files(path, block, like)
    except FileExistsError:
        if not exist_ok:
            raise
        return _opened_alike(path, block, schema)
    made = Container(path, "a")
    if schema or level:
        try:
            if schema:
                made.add_columns(schema)
            if level:
                made.change(made.changes.set_compression, level)
            made.sync()  # with the container: a block that raises drops what comes after it
        except BaseException:
            made.abort()
            remove_files(path)
            raise
    return made


def _opened_alike(path: str, block: Superblock, schema: Mapping[str, str]) -> Container:
    """Open an existing container for writing. Raises FileExists if it is of another variant, or
    lacks a column."""
    found = Container(path, "a")
    there = found.store.kv.superblock
    variant = [name for name in ("HAVEAO", "KVCKSUM") if there.get(name, 0) != block.get(name, 0)]
    missing = [name for name, kind in schema.items() if found.columns.get(name) != kind]
    if variant or missing:
        found.abort()
        what = f"the column {missing[0]}" if missing else "the same variant (append-only, classic)"
        raise FileExists(f"the container exists already, without {what}", path)
    return found


def open(base: str | os.PathLike[str], mode: str = "r") -> Container:
    """Open a container: "r" to read, "a" to read and write.

    raises   FileNotFoundError; Locked (mode "a", another writer); FormatError (not a container)
    cost     the index is mapped, not read; entries that were added after it are replayed
    """
    if mode not in ("r", "a"):
        raise ValueError(f"mode must be 'r' or 'a', not {mode!r}")
    return Container(base_of(base), mode)


def _missing(name: Name) -> NoSuchFile:
    return NoSuchFile("no such file in the container", to_str(name))


def _offset(offset: int) -> int:
    return as_int(offset, "an offset", 0)


class Container(Handle, Writer):
    """A filesystem in a few files. One writer, any number of readers; threads may share a handle.

    Names are str (surrogateescape) or bytes. Changes are durable, and seen by other processes,
    after `sync` or `close`. Readers follow the writer: each call sees the last sync.

    A `with` block that ends with an exception drops what was changed since the last sync. `close`
    syncs in any case. After some 100,000 changes the handle may sync by itself.

    What it has of `Handle` besides is for this library only: no part of the public interface.
    """

    changed_by = "put, write and append"
    takes_where = True

    # --- the handle ---

    @property
    def ao(self) -> bool:
        """True for the append-only variant."""
        return self.store.settings.ao

    @property
    def classic(self) -> bool:
        return self.store.settings.classic

    @property
    def superblock(self) -> dict[str, int]:
        """The variables of the data file, as of the last sync."""
        return dict(self.store.kv.superblock)

    @property
    def problems(self) -> list[str]:
        """Damage that was found and skipped, a line each: what, in which file, at which byte.

        Files whose inodes are damaged are not listed. Empty does not mean sound: see `verify`.
        """
        return list(self.store.notes)

    @property
    def notes(self) -> list[str]:
        """`problems`, and what was found wrong with derived files; that loses no user file."""
        return self.store.notes + self.store.remarks

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Close; after an exception without a sync: the container stays as of the last one."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = self.closed or ("writing" if self.writable else "reading")
        return f"<winkfs container {self.base} ({state})>"

    @property
    def stored_bytes(self) -> int:
        return self.store.kv.end

    @property
    def most_content(self) -> int:
        end = self.store.kv.end
        return end // MIN_FRAME_ENTRY * MAX_FRAME_CONTENT if self.store.settings.compressed else end

    # --- content ---

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        """Return the content, or `size` bytes of it from `offset`; fewer at the end of the file.

        raises  FileNotFoundError; CorruptError if a checksum is wrong
        """
        found = None
        if size < 0 and offset == 0:
            found = self.short.read(name)
            if found:
                return found
        elif index(offset) >= 0 and (found := self.short.read(name, KEPT_BYTES)):
            return found[offset : offset + index(size) if size >= 0 else None]
        if found is None:
            return self._read(name, index(offset), index(size))
        if found is False:
            raise _missing(name)
        return found

    @reads
    def _read(self, name: Name, offset: int, size: int) -> bytes:
        """Read by a new short way, or else in the ordinary way."""
        most = INT64 if size < 0 and offset == 0 else KEPT_BYTES
        key = self.key(name)
        found = self.short_to(key).read(name_of(key), most)
        if isinstance(found, bytes) and offset >= 0:
            return found[offset : offset + size if size >= 0 else None]
        return self.files.read(key, offset, size)

    @reads
    def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        room, start = memoryview(into).cast("B"), _offset(offset)
        if room.readonly:
            raise TypeError("a buffer to read into must be writable")
        return self.files.read_into(self.key(name), start, room)

    def get_many(self, names: Iterable[Name]) -> Iterator[bytes]:
        """Yield the contents of many files, in the order of the names.

        raises  FileNotFoundError at a missing name; CorruptError
        cost    one look-up and one read a file, in batches of 1,024; of a container that is far
                larger ones
        """
        most = FAR_ROWS if self.store.kv.storage.far else 0
        for batch in self.bulkget.batches(names, most):
            for found, missing in self.portions(batch):
                yield from found
                if missing is not None:
                    raise _missing(missing)

    @reads
    def extents(self, name: Name) -> Sequence[Extent]:
        """Return the extents: (kv_pointer, bytes skipped, bytes); pointer 0: a hole, -1: in memory.

        If 2**62 is added to the bytes skipped, the entry is a compressed frame, and the numbers
        count bytes of its content.
        """
        return self.files.extents(self.key(name))

    # --- metadata ---

    def stat(self, name: Name) -> Stat:
        """Return the metadata of a file. Raises FileNotFoundError; CorruptError."""
        found = self.short.find(name)
        if found is None:
            return self._stat(name)
        if found is False:
            raise _missing(name)
        return self.files.stated(name, *found)

    @reads
    def _stat(self, name: Name) -> Stat:
        """Return the metadata by a new short way, or else in the ordinary way."""
        key = self.key(name)
        found = self.short_to(key).find(name_of(key))
        return self.files.stated(name, *found) if found else self.files.stat(key)

    def getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Return the extended attributes."""
        found = self.short.find(name)
        if found is None:
            return self._getxattrs(name)
        if found is False:
            raise _missing(name)
        return self.files.shown_xattrs(*found[4:6])

    @reads
    def _getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Return the extended attributes by a new short way, or else in the ordinary way."""
        key = self.key(name)
        found = self.short_to(key).find(name_of(key))
        if found:
            return self.files.shown_xattrs(*found[4:6])
        return dict(self.files.attrs(key).xattrs)

    # --- columns ---

    @property
    @reads
    def columns(self) -> dict[str, str]:
        """The columns that files can have: name -> type."""
        return dict(self.store.schema)

    @writes
    def add_columns(self, columns: Mapping[str, str]) -> None:
        """Add columns: name -> type, as in `create`.

        The extended attribute `user.NAME` of a file is then its value in the column.
        raises  ValueError for a name that is taken, or an unknown type
        """
        check_schema(columns)
        known = dict(self.store.schema)
        for name in columns:
            if name in known:
                raise ValueError(f"the container has a column {name!r}: {known[name]}")
        self.changes.metadata.declare(check_schema(known | dict(columns)))

    @writes
    def drop_columns(self, names: Iterable[str]) -> None:
        """Drop columns. Values stay extended attributes of the files: a column of that name that is
        added later has them.

        raises  ValueError if there is no column of that name
        """
        schema, gone = dict(self.store.schema), list(names)
        check_columns(gone, schema)
        self.changes.metadata.declare({n: kind for n, kind in schema.items() if n not in gone})

    @reads
    def getcolumns(self, name: Name) -> dict[str, Any]:
        """Return the values of a file: column -> value, None: null. Raises FileNotFoundError."""
        attrs = self.files.attrs(self.key(name))
        return to_values(attrs.xattrs, self.store.schema)

    @writes
    def setcolumns(self, name: Name, values: Mapping[str, Any]) -> None:
        """Set some of the values of a file; None: null.

        raises  FileNotFoundError; ValueError for an unknown column or a value of a wrong type;
                PermissionError (ao)
        """
        known = self.files.attrs(self.key(name)).xattrs
        given = to_attributes(self.store.schema, values)
        changed = {USER + column.encode() for column in values}
        kept = {key: value for key, value in known.items() if key not in changed}
        self.setxattrs(name, kept | given, ctime_ns=time.time_ns())

    # --- names ---

    def __contains__(self, name: object) -> bool:
        found = self.short.has(name)
        if found is None:
            return isinstance(name, str | bytes | os.PathLike) and self._has(name)
        return found

    @reads
    def _has(self, name: Name) -> bool:
        """Return whether a file exists, by a new short way, or else in the ordinary way."""
        try:
            key = self.key(name)
        except (ValueError, NameTooLong):
            return False
        found = self.short_to(key).has(name_of(key))
        return self.files.find(key) if found is None else found

    def __len__(self) -> int:
        with self.lock:
            return self.settled().index.count

    def scan(
        self,
        since: Time | None = None,
        until: Time | None = None,
        prefix: Name = "",
        *,
        where: str | None = None,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        """Yield the files in disk order, as of the call: later changes are not visible.

        since, until  mtime in seconds, or a datetime, inclusive and exclusive; the time index
                      narrows an ao scan
        prefix        only names that start with it
        where         a condition as in WHERE of SQL: "lang = 'de' and score > 0.5"; on columns,
                      path, size and mtime, evaluated on the catalog. Raises ValueError
        problem       called with each damaged inode, which is skipped; None: CorruptError is raised
        """
        known = None
        with self.lock:
            store = self.settled()
            if where is not None:
                times = to_ns(since), to_ns(until)
                known = self.positions(to_bytes(prefix), problem, times, where)
        return scan(store, self.lock, since, until, to_bytes(prefix), problem, known=known)

    def names(
        self,
        glob: str | None = None,
        *,
        where: str | None = None,
        problem: Problem | None = None,
    ) -> Iterator[str]:
        """Yield the names in byte order, as of the call; `glob`: only those that match; * crosses
        /.

        where    see `scan`
        problem  called with each damaged inode, which is skipped; None: CorruptError is raised
        cost     reads the part of the catalog with the literal prefix of the glob; without a
                 catalog, reads all inodes, and sorts the names
        """
        prefix = b"" if glob is None else to_bytes(literal_prefix(glob))
        found = self.rows(prefix, problem, where=where)
        names = chain.from_iterable(to_strs(rows.names) for rows in found)
        return names if glob is None else filter(matcher(glob), names)

    def sizes(self) -> Iterator[tuple[str, int]]:
        for rows in self.rows(b"", None):
            yield from zip(to_strs(rows.names), rows.size.tolist(), strict=True)

    def paths_below(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        return chain.from_iterable(map(FileTable.paths, self.rows(to_bytes(prefix), None)))

    # --- whole files ---

    @writes
    def put(
        self,
        name: Name,
        data: Data,
        mtime: Time | None = None,
        ftype: int = FileType.FILE,
        exclusive: bool = False,
        *,
        mtime_ns: int | None = None,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Create or replace a file with this content.

        data       bytes or any other buffer: bytearray, memoryview, array.array, mmap, an array of
                   numpy; what is not contiguous is copied in C order
        mtime      seconds since the epoch, or a datetime, in local time if it has no zone; None:
                   now. mtime_ns: the same in nanoseconds, exact. Beyond the years 1677 to 2262 the
                   nearest time in them is stored, of which `close` warns once
        mode, uid, gid  kept where they differ from the defaults (0644, the container's owner); mode
                   up to 07777
        columns    values: {"lang": "de", "score": 0.93}; those that are missing, or None, are null
        raises     FileExistsError (exclusive); PermissionError (ao: an older mtime); ValueError (a
                   name that is empty, too long or has NUL; columns that there are not); OSError
        cost       buffered; durable after `sync`
        """
        key = self.key(name)
        content = data if type(data) is bytes else as_content(data)
        if ftype is not FileType.FILE:
            ftype = check_ftype(ftype)
            check_directory(ftype, name, len(content))
        if mtime is not None or mtime_ns is not None:
            mtime_ns = to_ns(mtime) if mtime_ns is None else mtime_ns
            mtime_ns = self.changes.clamped.nearest(mtime_ns, name)
        if exclusive and self.files.find(key):
            raise FileExists("exists already", to_str(name))
        owner = None
        if columns or not (mode is None and uid is None and gid is None):
            xattrs = to_attributes(self.store.schema, columns) if columns else None
            owner = self.changes.metadata.attrs_for(ftype, mode, uid, gid, xattrs)
        self.changes.put(key, content, mtime_ns, ftype, owner)

    @consumes
    def put_many(self, files: Iterable[tuple[Any, ...]]) -> int:
        """Create or replace many files -> how many. Each is (name, data), (name, data, mtime) or
        (name, data, mtime, columns): see `put`.

        The fast path: names may repeat, the last one counts. On an error what came before it is
        kept, and synced as all else is. `files` may read this container, but not change it.

        raises  Busy where `files` does
        """
        return BulkPut(self.store, self.changes).put(files)

    @consumes
    def put_batch(self, batch: Any) -> int:
        """Create or replace the files of an Arrow RecordBatch or Table, or of anything that Arrow
        reads as a stream: a frame of Polars, a relation of DuckDB, another container -> how many.

        batch   with columns `path` (with escapes, see `Reader.to_batches`) or `name` (the name
                itself) and `content`, maybe `mtime` (a timestamp, or seconds) or `mtime_ns`, and
                columns that the container has; `size` is not looked at
        raises  ValueError for others, for nulls where there must be none, and for other types
        cost    as `put_many`
        """
        bulk = BulkPut(self.store, self.changes)
        parts = arrow_parts(batch, self.store.schema, self.changes.metadata.attribute_entries)
        return sum(bulk.put_columns(*part) for part in parts)

    @consumes
    def put_rows(self, rows: Iterable[Row]) -> int:
        """Create or replace many files with all their metadata -> how many. See `put_many`."""
        return BulkPut(self.store, self.changes).put_rows(rows)

    @consumes
    def put_file(
        self,
        name: Name,
        source: io.RawIOBase | io.BufferedIOBase | Any,
        *,
        mtime: Time | None = None,
        mtime_ns: int | None = None,
        ftype: int = FileType.FILE,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        xattrs: Mapping[bytes, bytes] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> int:
        """Create or replace a file with what `source.read` gives -> bytes. Memory: 1 MiB. For the
        rest see `put`.

        source  may have a method `skip_hole`, called before each read: it passes over a hole at
                this place -> its bytes, 0: there is none; the container keeps it as one, if it
                knows holes
        """
        key, ftype = self.key(name), check_ftype(ftype)
        ns = self.changes.clamped.nearest(to_ns(mtime) if mtime_ns is None else mtime_ns, name)
        check_directory(ftype, name, 0)
        if not hasattr(source, "read"):
            raise TypeError(f"a source has a method read, which {shown(source)} has not")
        if columns:
            xattrs = dict(xattrs or {}) | to_attributes(self.store.schema, columns)
        owner = self.changes.metadata.attrs_for(ftype, mode, uid, gid, xattrs)
        return self.changes.put_stream(key, source, ns, ftype, owner)

    def check_writable(
        self, name: Name, columns: Mapping[str, Any] | None = None, *, append: bool = False
    ) -> None:
        with self.lock:
            self.need_writable()
            self.key(name)
            to_attributes(self.store.schema, columns or {})

    def locked(self) -> AbstractContextManager[object]:
        return self.lock

    def _cut(self, name: Name, size: int) -> None:
        self.truncate(name, size)

    def mkdir(self, name: Name) -> None:
        """Make an entry for a directory. Directories also exist through the names below them."""
        self.put(to_bytes(name).rstrip(b"/"), b"", ftype=FileType.DIR, exclusive=True)

    def symlink(self, target: Name, name: Name) -> None:
        """Make a symbolic link `name` that points to `target`."""
        self.put(name, to_bytes(target), ftype=FileType.LINK, exclusive=True)

    # --- parts of files ---

    @writes
    def append(self, name: Name, data: Data) -> None:
        """Add to the end of a file.

        raises  FileNotFoundError; PermissionError (ao: not the last file, synced, or no room)
        """
        self.changes.append(self.key(name), as_content(data))

    @writes
    def write(self, name: Name, offset: int, data: Data, *, mtime_ns: int | None = None) -> None:
        """Write a part of a file; a gap behind its end reads as zeros.

        mtime_ns  of the file after that; None: now
        raises    FileNotFoundError; PermissionError (ao)
        """
        start, content = _offset(offset), as_content(data)
        ns = self.changes.clamped.nearest(mtime_ns, name)
        check_length(start + len(content), name)
        self.changes.write_many(self.key(name), [(start, content)], ns)

    @writes
    def write_many(
        self, name: Name, pieces: Sequence[tuple[int, Data]], *, mtime_ns: int | None = None
    ) -> None:
        """Write parts of a file, (offset, data) each, in this order; later ones win.

        mtime_ns  of the file after that; None: now
        raises    FileNotFoundError; PermissionError (ao)
        """
        contents = [(_offset(offset), as_content(data)) for offset, data in pieces]
        for offset, content in contents:
            check_length(offset + len(content), name)
        ns = self.changes.clamped.nearest(mtime_ns, name)
        self.changes.write_many(self.key(name), contents, ns)

    @writes
    def punch(self, name: Name, offset: int, size: int) -> None:
        """Zeros in the place of `size` bytes inside the file, as a hole where it knows holes.

        raises  ValueError where they are not inside it; FileNotFoundError; PermissionError (ao)
        """
        offset, size = _offset(offset), as_int(size, "a size", 0)
        key = self.key(name)
        if offset + size > self.files.stat(key).size:
            raise ValueError(f"no {size} bytes from {offset} on are inside the file")
        if size:
            self.changes.punch(key, offset, size)

    @writes
    def truncate(self, name: Name, size: int) -> None:
        """Cut or grow a file to `size` bytes; what grows is zeros."""
        size = as_int(size, "a size", 0)
        check_length(size, name)
        self.changes.truncate(self.key(name), size)

    # --- metadata ---

    @writes
    def utime(
        self,
        name: Name,
        mtime: Time | None = None,
        *,
        mtime_ns: int | None = None,
        ctime_ns: int | None = None,
    ) -> None:
        """Set the mtime: seconds or a datetime, or exact nanoseconds; None: now. Raises
        PermissionError (ao).

        ctime_ns  when it was set; None: now
        """
        now = time.time_ns()
        given, changed = to_ns(mtime) if mtime_ns is None else mtime_ns, checked_ns(ctime_ns)
        ns = self.changes.clamped.nearest(given, name)
        ns, changed = now if ns is None else ns, now if changed is None else changed
        self.changes.utime(self.key(name), ns, changed)

    def chmod(self, name: Name, mode: int, *, ctime_ns: int | None = None) -> None:
        """Set the permission bits. Raises PermissionError (ao), OSError ENOTSUP (no ATTRS),
        ValueError beyond 07777.

        ctime_ns  when that was, to be kept as `Stat.ctime_ns`; None: it is not noted
        """
        self._attributes(name, lambda old: replace(old, mode=mode), ctime_ns)

    def chown(self, name: Name, uid: int, gid: int, *, ctime_ns: int | None = None) -> None:
        """Set owner and group; -1 leaves one as it is. Raises ValueError beyond 32 bits."""
        given: dict[str, Any] = {field: n for field, n in (("uid", uid), ("gid", gid)) if n != -1}
        self._attributes(name, lambda old: replace(old, **given), ctime_ns)

    def setxattrs(
        self,
        name: Name,
        xattrs: dict[bytes, bytes],
        *,
        ctime_ns: int | None = None,
        strict: bool = True,
    ) -> None:
        """Replace all extended attributes.

        strict  refuse one that is new and no value of the column it is; else that is null
        raises  Refusal EINVAL (strict)
        """
        self._attributes(name, lambda old: replace(old, xattrs=dict(xattrs)), ctime_ns, strict)

    @writes
    def _attributes(
        self,
        name: Name,
        change: Callable[[Attrs], Attrs],
        ctime_ns: int | None,
        strict: bool = True,
    ) -> None:
        checked_ns(ctime_ns)
        key = self.key(name)
        attrs = check_attrs(change(self.files.attrs(key)))
        self.changes.set_attrs(key, attrs, ctime_ns, strict=strict)

    # --- names ---

    @writes
    def delete(self, name: Name) -> None:
        """Remove a file. Raises FileNotFoundError; PermissionError (no delflags)."""
        self.changes.delete(self.key(name))

    @writes
    def rename(self, old: Name, new: Name, *, ctime_ns: int | None = None) -> None:
        """Give a file another name, over a file of that name. Raises FileNotFoundError.

        ctime_ns  when that was; None: it is not noted
        """
        key, target = self.key(old), self.key(new)
        checked_ns(ctime_ns)
        if key != target:
            self.changes.rename(key, target, ctime_ns)
