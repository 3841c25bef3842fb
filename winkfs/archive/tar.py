"""Tar files (plain, gzip, bzip2, xz, zstd; from a file or a pipe) as a stream of items.

A member that cannot be read becomes a Note, and reading continues after it; after a damaged header,
at the next valid one. The whole members of a truncated archive are read. Python's tarfile is not
used: it splits names of old GNU headers wrongly, and stops at unusual members or skips them
silently, depending on the version of Python.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Callable, Generator, Iterator
from typing import IO, Final

from winkformats.disk.pagecache import OnceFile
from winkformats.errors import FormatError
from winkfs.archive import tarheader as tar
from winkfs.archive.decompress import Decompressed, compression_of
from winkfs.archive.items import (
    SPARSE_BYTES,
    STDIN,
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
    Suspect,
    Unreadable,
    clamped,
    in_time_order,
)
from winkfs.archive.magic import PUT, beginning, is_text, kind_of_start
from winkfs.archive.members import LINK_TO_NOTHING, chosen, name_fault
from winkfs.archive.tarheader import BLOCK
from winkfs.archive.tarreader import BUFFER, LABEL, Member, NoTar, Reader
from winkfs.container.bulk import Row
from winkfs.container.ondisk.inode import CTIME, UINT32
from winkfs.entry import FileType
from winkfs.names import clean, to_str
from winkfs.units import nearest_ns

PLACE: Final = struct.Struct(">Q")  # offset of a member, bytes
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
            yield from chosen(items, update)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], Decompressed | None]]:
        """Open the tar file -> its uncompressed bytes, and the decompressor, if there is one."""
        with contextlib.ExitStack() as stack:
            path = 0 if self._path == STDIN else self._path
            opened = OnceFile(path, closefd=path != 0)
            raw = stack.enter_context(io.BufferedReader(opened, BUFFER))
            start, plain = beginning(raw)
            if (found := compression_of(start)) is not None:
                source = Decompressed(plain, found, self._ratio)
                file = io.BufferedReader(source, BUFFER)
                inner = file.peek(BLOCK)
                if not (may_be_tar(inner) or source.damage or source.cut):
                    what = (
                        kind_of_start(inner)
                        or f"something that is no tar file: {found.tool} it first"
                    )
                    raise NoTar(f"a {found.kind} file of {what}")
                yield file, source
                return
            if not start:
                raise NoTar("empty: not a tar file")
            # The mark of an image is among the zeros with which it begins; the magic of other files
            # may be the name of a member.
            if not any(start[:BLOCK]) or not may_be_tar(start):
                if kind := kind_of_start(start):
                    raise NoTar(kind)
                if not may_be_tar(start):
                    raise NoTar(f"not a tar file{', but text' * is_text(start)}: {PUT}")
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
        import tempfile  # late, because its import is slow

        with tempfile.TemporaryFile(dir=self._scratch, prefix=".winkfs-") as copy:
            while data := file.read(BUFFER):
                copy.write(data)
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
        if size >= STREAM_BYTES or holes is not None:
            content = Content(reader.take, size, member.holes)
            return Large(name, content, size, meta, holes is not None, reader.read)
        try:
            if member.holes is None:
                data = reader.take(size)
            else:
                data = Content(reader.take, size, member.holes).read()
            return Row(name, data, mtime, FileType.FILE, mode, *owner, xattrs)
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
    if fault := name_fault(name):
        return fault
    if member.kind == tar.CONTINUED:
        return "it is continued from another volume: join the volumes with tar -M first"
    if member.kind == tar.LINK and not member.link:
        return LINK_TO_NOTHING
    return None


def may_be_tar(start: bytes) -> bool:
    """Return whether a tar file may begin so, maybe one that is damaged or cut."""
    block = start[:BLOCK]
    return block == tar.ZEROS or block[257:262] == tar.OLD_GNU[:5] or tar.is_header(block)
