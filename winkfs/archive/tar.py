"""Tar files (plain, gzip, bzip2, xz; from a file or a pipe) as a stream of items.

A member that cannot be read becomes a Note, and reading continues after it; after a damaged header,
at the next valid one. The whole members of a truncated archive are read. Python's tarfile is not
used: it splits names of old GNU headers wrongly, and stops at unusual members or skips them
silently, depending on the version of Python.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, Final

from winkformats.disk.pagecache import OnceFile
from winkformats.errors import FormatError
from winkfs.archive import tarheader as tar
from winkfs.archive.decompress import COMPRESSION, Decompressed
from winkfs.archive.items import (
    SPARSE_BYTES,
    STREAM_BYTES,
    USER,
    Chooser,
    Content,
    Copy,
    Item,
    Large,
    Meta,
    Note,
    Notes,
    Ratio,
    Seen,
    Suspect,
    Unreadable,
    clamped,
    in_time_order,
)
from winkfs.archive.tarheader import BLOCK
from winkfs.archive.tarreader import BUFFER, LABEL, Member, NoTar, Reader, clean
from winkfs.container.bulk import Row
from winkfs.container.ondisk.inode import CTIME, UINT32
from winkfs.entry import FileType
from winkfs.names import MAX_NAME, to_bytes, to_str
from winkfs.units import nearest_ns

STDIN: Final = "-"
OTHERS: Final = {
    b"PK\3\4": "a zip file: unzip it, and pack the directory",
    b"PK\5\6": "an empty zip file",
    b"hsqs": "a squashfs: unsquashfs it, and pack the directory",
    b"\x28\xb5\x2f\xfd": "a zstd file: zstd -dc FILE | winkfs pack - BASE",
    b"\x04\x22\x4d\x18": "an lz4 file: lz4 -dc FILE | winkfs pack - BASE",
    b"LZIP": "an lzip file: lzip -dc FILE | winkfs pack - BASE",
    b"\x1f\x9d": "a compress file: zcat FILE | winkfs pack - BASE",
    b"7z\xbc\xaf\x27\x1c": "a 7z file: 7z x it, and pack the directory",
    b"Rar!": "a rar file: unrar it, and pack the directory",
    b"!<arch>\n": "an ar file: ar x it, and pack what is in it",
    b"0707": "a cpio file: cpio -i it, and pack the directory",
    b"\xc7\x71": "a cpio file: cpio -i it, and pack the directory",
    b"\x71\xc7": "a cpio file: cpio -i it, and pack the directory",
    b"WARC/": "a WARC file: winkfs pipeline ingest reads it",
    b"PAR1": "a Parquet file: winkfs pipeline ingest reads it",
    b"ARROW1": "an Arrow file: write it as Parquet, winkfs pipeline ingest reads that",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"SEQ\6": "a SequenceFile of Hadoop: write it as Parquet, winkfs pipeline ingest reads that",
    b"Obj\1": "an Avro file: write it as Parquet, winkfs pipeline ingest reads that",
    b"SQLite format 3": "an SQLite file",
    b"#!WINKME": "a file of a container: winkfs dataset add joins containers",
}
"""The first bytes of files that are mistaken for tar files, and what to do with them."""
PLACE: Final = struct.Struct(">Q")  # offset of a member, bytes
LOOKUP_MEMBERS: Final = 4096  # looked up at once
LOOKUP_BYTES: Final = 16 << 20  # content of them, about
MOST_ATTRIBUTE: Final = 255  # bytes of the name of an extended attribute
UNKNOWN_OWNER: Final = UINT32 - 1  # the owner of files whose own does not fit: never root
ODD_OWNER: Final = f"its owner does not fit into 32 bits: {UNKNOWN_OWNER} is stored"


class Tarball:
    """The members of a tar file, as a source of `pack`.

    path        a file, or "-" for standard input
    note        called with members that cannot be read or stored
    xattrs      take all extended attributes, not only those called user.*
    exclude     names to leave out, with all below them
    scratch     a directory for temporary files
    ignore_zeros  read on after the end, for archives that were concatenated
    ratio       limit of the bytes that a compressed file may become
    raises      OSError; FormatError if it is not a tar file, its compressed data are damaged, or it
                is truncated before a member is whole
    """

    def __init__(
        self,
        path: str,
        note: Notes,
        scratch: str,
        *,
        xattrs: bool = False,
        exclude: Callable[[str], object] | None = None,
        ignore_zeros: bool = False,
        ratio: Ratio | None = None,
    ) -> None:
        self._path = path
        self._where = "standard input" if path == STDIN else path
        self._note = note
        self._scratch = scratch
        self._xattrs = xattrs
        self._exclude = exclude
        self._ignore_zeros = ignore_zeros
        self._ratio = ratio or Ratio()

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        try:
            with self._opened() as (file, source):
                yield from (self._by_mtime if by_mtime else self._in_order)(file, source)
        except FormatError as error:
            raise type(error)(f"{self._where}: {error}") from None

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        with contextlib.closing(self.items(by_mtime=by_mtime)) as items:
            yield from _changed(items, update)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], Decompressed | None]]:
        """Open the tar file -> its uncompressed bytes, and the decompressor, if there is one."""
        with contextlib.ExitStack() as stack:
            path = 0 if self._path == STDIN else self._path
            opened = OnceFile(path, closefd=path != 0)
            plain = stack.enter_context(io.BufferedReader(opened, BUFFER))
            start = plain.peek(BLOCK)
            for magic, (_, kind, tool) in COMPRESSION.items():
                if start.startswith(magic):
                    source = Decompressed(plain, magic, self._ratio)
                    file = io.BufferedReader(source, BUFFER)
                    if not (_is_tar(file.peek(BLOCK)) or source.damage or source.cut):
                        what = f"a {kind} file of something that is no tar file: {tool} it first"
                        raise NoTar(what)
                    yield file, source
                    return
            if not start:
                raise NoTar("empty: not a tar file")
            if not _is_tar(start):  # a member may be called so
                for magic, what in OTHERS.items():
                    if start.startswith(magic):
                        raise NoTar(what)
            yield plain, None

    def _reader(self, file: IO[bytes], source: Decompressed | None) -> Reader:
        return Reader(file, self._note, ignore_zeros=self._ignore_zeros, source=source)

    def _in_order(self, file: IO[bytes], source: Decompressed | None) -> Iterator[Item]:
        reader = self._reader(file, source)
        while (member := reader.next()) is not None:
            if self._is_wanted(member) and (item := self._item(reader, member)):
                yield item

    def _by_mtime(self, file: IO[bytes], source: Decompressed | None) -> Iterator[Item]:
        with self._seekable(file, source) as plain:
            reader = self._reader(plain, source)
            for _, record in in_time_order(self._scratch, self._placed(reader)):
                (offset,) = PLACE.unpack_from(record)
                pairs = tar.pax_records(record[PLACE.size :])
                reader.go(offset, dict(filter(None, pairs)))
                again = reader.next()
                if again is None:
                    self._note(Note(b"byte %d" % offset, "changed while it was read", True))
                elif item := self._item(reader, again):
                    yield item

    def _placed(self, reader: Reader) -> Iterator[tuple[int, bytes]]:
        """Yield the mtime of each member, and a record by which it can be read again."""
        while (member := reader.next()) is not None:
            known = tar.pax_bytes(reader.globals)
            if not self._is_wanted(member):
                continue
            if reader.drain():
                yield nearest_ns(member.mtime_ns), PLACE.pack(member.at) + known
            else:
                self._note(Note(member.name, reader.cut(), True))

    @contextlib.contextmanager
    def _seekable(self, file: IO[bytes], source: Decompressed | None) -> Iterator[IO[bytes]]:
        """Yield a file with the same bytes that can be read at any offset, if necessary a copy in a
        temporary file."""
        if source is None and file.seekable():
            yield file
            return
        with tempfile.TemporaryFile(dir=self._scratch, prefix=".winkfs-") as copy:
            shutil.copyfileobj(file, copy, BUFFER)
            copy.seek(0)
            yield copy

    def _is_wanted(self, member: Member) -> bool:
        """Return whether a member is wanted and can be packed; note one that cannot."""
        name = clean(member.name)
        if self._exclude and name and self._exclude(to_str(name)):
            return False
        if what := left_out(member):
            self._note(Note(name, what, False))
            return False
        what = member.failed or fault_of(member, name)
        if what:
            shown = name or b"byte %d" % member.at
            self._note(Note(shown, what, True))
        return what is None and bool(name)

    def _item(self, reader: Reader, member: Member) -> Item | None:
        name = clean(member.name)
        if member.faults:
            self._note(Note(name, "; ".join(member.faults), True))
        mtime, mode = nearest_ns(member.mtime_ns), member.mode
        if mtime != member.mtime_ns:
            self._note(clamped(name))
        owner = self._owner(name, member)
        xattrs = self._kept(name, member.xattrs)
        meta = Meta(mtime, mode, *owner, xattrs)
        if member.kind in (tar.DIR, tar.DUMPDIR):
            return Row(name, b"", mtime, FileType.DIR, mode, *owner, xattrs)
        if member.kind == tar.LINK:
            return Row(name, member.link, mtime, FileType.LINK, None, *owner, xattrs)
        if member.kind == tar.HARD_LINK:
            return Copy(name, clean(member.link), meta, reader.read)
        if member.kind not in tar.FILES and member.kind != tar.SPARSE_GNU:
            kind = to_str(member.kind)
            self._note(Note(name, f"of an unknown type {kind}: stored as a file", False))
        size, holes = member.size, member.holes if member.size >= SPARSE_BYTES else None
        content = Content(reader.take, size, member.holes)
        if size >= STREAM_BYTES or holes is not None:
            return Large(name, content, size, meta, holes is not None, reader.read)
        try:
            return Row(name, content.read(), mtime, FileType.FILE, mode, *owner, xattrs)
        except Unreadable as error:
            self._note(Note(name, str(error), True))
            return None

    def _owner(self, name: bytes, member: Member) -> tuple[int, int]:
        owner = member.uid, member.gid
        if all(0 <= one <= UINT32 for one in owner):
            return owner
        self._note(Note(name, ODD_OWNER, True, often=1))
        uid, gid = (one if 0 <= one <= UINT32 else UNKNOWN_OWNER for one in owner)
        return uid, gid

    def _kept(self, name: bytes, given: dict[bytes, bytes]) -> dict[bytes, bytes] | None:
        """Return the extended attributes that are taken, as GNU tar, star and bsdtar write them."""
        found: dict[bytes, bytes] = {}
        for key, value in given.items():
            if not (self._xattrs or key.startswith(USER.encode())):
                continue
            if not 0 < len(key) <= MOST_ATTRIBUTE or b"\0" in key or key == CTIME:
                what = f"its attribute {to_str(key)} is left out: no file can have one called so"
                if len(key) > MOST_ATTRIBUTE:
                    what = f"its attribute {to_str(key[:40])}... is left out: its name has "
                    what += f"{len(key):,} bytes, at most {MOST_ATTRIBUTE} are possible"
                self._note(Note(name, what, True))
                continue
            found[key] = value
        return found or None


def left_out(member: Member) -> str | None:
    """Return why no container can hold a member, which is as expected; None: it can."""
    if member.kind == tar.LABEL:
        return LABEL
    if device := tar.DEVICES.get(member.kind):
        return f"{device}: left out"
    return None


def fault_of(member: Member, name: bytes) -> str | None:
    """Return why a member cannot be packed; None: it can, or is the root, which has no entry."""
    if not name and (member.kind not in (tar.DIR, tar.DUMPDIR) or not member.name):
        return "it has no name"
    if b".." in name.split(b"/"):
        return 'its name has a part ".."'
    if len(name) > MAX_NAME:
        return f"its name has {len(name):,} bytes, a container takes {MAX_NAME:,}"
    if member.kind == tar.CONTINUED:
        return "it is continued from another volume: join the volumes with tar -M first"
    if member.kind == tar.LINK and not member.link:
        return "a symbolic link to nothing"
    return None


def _is_tar(start: bytes) -> bool:
    """Return whether a tar file may begin so."""
    return start[:BLOCK] == tar.ZEROS or tar.is_header(start[:BLOCK])


def _changed(items: Iterator[Item], update: Chooser) -> Iterator[Item | Suspect]:
    """Yield the items that `update` chooses, in the same order. Small members are looked up many at
    a time; their content is in memory anyway."""
    rows: list[tuple[Item, Seen]] = []
    size = 0
    for item in items:
        if isinstance(item, Row):
            name, mtime = to_bytes(item.name), item.mtime_ns or 0
            rows.append((item, Seen(name, item.ftype, len(item.data), mtime, None)))
            size += len(item.data)
            if len(rows) < LOOKUP_MEMBERS and size < LOOKUP_BYTES:
                continue
        yield from _suspected(update.choose(rows))
        rows, size = [], 0
        if isinstance(item, Large):
            meta = item.meta
            seen = Seen(item.name, FileType.FILE, item.size, meta.mtime_ns, None)
            yield from _suspected(update.choose([(item, seen)]))
        elif isinstance(item, Copy):
            yield Suspect(item, True)
    yield from _suspected(update.choose(rows))


def _suspected(chosen: Iterable[tuple[Item, Seen, bool | None]]) -> Iterator[Item | Suspect]:
    for item, _, compare in chosen:
        yield item if compare is None else Suspect(item, compare)
