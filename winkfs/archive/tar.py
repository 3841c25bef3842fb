"""A tar file (plain, gzip, bzip2, xz; from a file or a pipe) as a stream of items."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from typing import IO, Any, Final, Self

from winkformats.disk.pagecache import OnceFile
from winkformats.errors import FormatError
from winkformats.extsort import BIAS, SortedRecords
from winkfs.archive.items import (
    LARGE,
    PERMISSIONS,
    SPARSE,
    USER,
    Chooser,
    Copy,
    Item,
    Large,
    Meta,
    Note,
    Notes,
    Seen,
    Suspect,
)
from winkfs.container.ondisk.inode import FileType
from winkfs.container.writemany import Row
from winkfs.names import MAX_NAME, to_bytes, to_str
from winkfs.units import NANO, nearest_ns

STDIN: Final = "-"
BUFSIZE: Final = 16 << 10  # of tarfile, which copies what is left of it at each read
BUFFER: Final = 1 << 20  # bytes read from the file at a time
COMPRESSION: Final[dict[bytes, tuple[Callable[[Any], Any], str, str]]] = {
    b"\x1f\x8b": (gzip.open, "gzip", "gunzip"),
    b"BZh": (bz2.open, "bzip2", "bunzip2"),
    b"\xfd7zXZ\0": (lzma.open, "xz", "unxz"),
}
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
    b"070701": "a cpio file: cpio -i it, and pack the directory",
    b"WARC/": "a WARC file: winkfs pipeline ingest reads it",
    b"PAR1": "a Parquet file: winkfs pipeline ingest reads it",
    b"SQLite format 3": "an SQLite file",
    b"#!WINKME": "a file of a container: winkfs dataset add joins containers",
}
"""How files begin that people take for tar files, and what to do with them."""
HEADER: Final = 512  # bytes of a tar header
BY_MTIME: Final = struct.Struct(">QQ")  # mtime_ns + BIAS, offset of the member: bytes
FEW: Final = 4096  # members that are looked up at once
BATCH: Final = 16 << 20  # bytes of them, about
XATTR: Final = "SCHILY.xattr."
DEVICES: Final = {
    tarfile.CHRTYPE: "a device: left out",
    tarfile.BLKTYPE: "a device: left out",
    tarfile.FIFOTYPE: "a fifo: left out",
}


class Member(tarfile.TarInfo):
    """A member whose broken header is an error, also behind the first: tarfile takes it for the
    end of the archive, and what follows would be missing without a word."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except (_headers.InvalidHeaderError, _headers.TruncatedHeaderError) as error:
            raise _headers.ReadError(f"{error} at byte {tarfile.offset}") from None


_headers: Any = tarfile  # InvalidHeaderError and its kin have no place in the type stubs


class Tarball:
    """The members of a tar file.

    path        a file, or "-" for standard input
    note        hears of what cannot be held or read
    xattrs      take all extended attributes, not only those called user.*
    exclude     names to leave out, with all below them
    scratch     a directory for temporary files
    raises      OSError; FormatError where it is no tar file, or a damaged one
    """

    def __init__(
        self,
        path: str,
        note: Notes,
        scratch: str,
        *,
        xattrs: bool = False,
        exclude: Callable[[str], object] | None = None,
    ) -> None:
        self._path = path
        self._where = "standard input" if path == STDIN else path
        self._note = note
        self._scratch = scratch
        self._xattrs = xattrs
        self._exclude = exclude

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        with damage_named(self._where), self._opened() as file:
            yield from self._by_mtime(file) if by_mtime else self._in_order(file)

    def changed(self, update: Chooser, *, by_mtime: bool) -> Generator[Item | Suspect, None, None]:
        with contextlib.closing(self.items(by_mtime=by_mtime)) as items:
            yield from _changed(items, update)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The bytes of the tar file, decompressed."""
        with contextlib.ExitStack() as stack:
            path = 0 if self._path == STDIN else self._path
            opened = OnceFile(path, closefd=path != 0)
            plain = stack.enter_context(io.BufferedReader(opened, BUFFER))
            start = plain.peek(HEADER)
            for magic, (opener, kind, tool) in COMPRESSION.items():
                if start.startswith(magic):
                    file = io.BufferedReader(stack.enter_context(opener(plain)), BUFFER)
                    if not _is_tar(file.peek(HEADER)):
                        what = f"a {kind} file of something that is no tar file: {tool} it first"
                        raise FormatError(f"{self._where}: {what}")
                    yield file
                    return
            for magic, what in OTHERS.items():
                if start.startswith(magic) and not _is_tar(start):  # a member may be called so
                    raise FormatError(f"{self._where}: {what}")
            yield plain

    def _in_order(self, file: IO[bytes]) -> Iterator[Item]:
        with tarfile.open(
            fileobj=file, mode="r|", bufsize=BUFSIZE, tarinfo=Member,
            encoding="utf-8", errors="surrogateescape",
        ) as tar:  # fmt: skip
            while (member := following(tar)) is not None:
                if item := self._item(tar, member, None):
                    yield item
        while file.read(BUFFER):  # the end holds a checksum, and a pipe wants to be emptied
            pass

    def _by_mtime(self, file: IO[bytes]) -> Iterator[Item]:
        with (
            self._seekable(file) as plain,
            SortedRecords(self._scratch) as records,
            tarfile.open(
                fileobj=plain, mode="r:", tarinfo=Member,
                encoding="utf-8", errors="surrogateescape",
            ) as tar,
        ):  # fmt: skip
            while (member := following(tar)) is not None:
                records.add(BY_MTIME.pack(mtime_ns(member) + BIAS, member.offset))
            for record in records:
                mtime, tar.offset = BY_MTIME.unpack(record)
                plain.seek(tar.offset)  # next() itself would not go back to byte 0
                again = following(tar)
                assert again is not None
                if item := self._item(tar, again, mtime - BIAS):
                    yield item

    @contextlib.contextmanager
    def _seekable(self, file: IO[bytes]) -> Iterator[IO[bytes]]:
        """The same bytes where any can be read at any time: in a temporary file if need be."""
        raw_file = getattr(file, "raw", None)  # one that is decompressed goes back at a high price
        if isinstance(raw_file, io.FileIO) and raw_file.seekable():
            yield file
            return
        with tempfile.TemporaryFile(dir=self._scratch, prefix=".winkfs-") as copy:
            shutil.copyfileobj(file, copy, BUFFER)
            copy.seek(0)
            yield copy

    def _item(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, mtime: int | None
    ) -> Item | None:
        name = self._name(member)
        if name is None:
            return None
        mtime = mtime_ns(member) if mtime is None else mtime
        mode, owner = member.mode & PERMISSIONS, (member.uid, member.gid)
        xattrs = xattrs_of(member, everything=self._xattrs)
        meta = Meta(mtime, mode, *owner, xattrs)
        if member.isdir():
            return Row(name, b"", mtime, FileType.DIR, mode, *owner, xattrs)
        if member.issym():
            return Row(name, to_bytes(member.linkname), mtime, FileType.LINK, None, *owner, xattrs)
        if member.islnk():
            return Copy(name, clean(to_bytes(member.linkname)), meta)
        if member.type in DEVICES:
            self._note(Note(name, DEVICES[member.type], False))
            return None
        file: Any = tar.extractfile(member)
        holes: Any = member.sparse if member.size >= SPARSE else None
        if member.size >= LARGE or holes is not None:
            whole = Whole(file, member.size, self._where, holes)
            return Large(name, whole, member.size, meta, holes is not None)
        data = file.read()
        if len(data) != member.size:
            raise tarfile.ReadError("unexpected end of data")
        return Row(name, data, mtime, FileType.FILE, mode, *owner, xattrs)

    def _name(self, member: tarfile.TarInfo) -> bytes | None:
        """The name in the container; None, and a note if a person should know, to leave it out."""
        name = clean(to_bytes(member.name))
        if not name or (self._exclude and self._exclude(to_str(name))):
            return None
        if b".." in name.split(b"/"):
            self._note(Note(name, 'its name has a part ".."', True))
            return None
        if len(name) > MAX_NAME:
            what = f"its name has {len(name):,} bytes, a container takes {MAX_NAME:,}"
            self._note(Note(name, what, True))
            return None
        return name


def _is_tar(start: bytes) -> bool:
    """Whether a tar file may begin so. What is cut short in its first header is left to tarfile."""
    if len(start) < HEADER or not any(start[:HEADER]):
        return True
    try:
        return bool(_headers.nti(start[148:156]) in _headers.calc_chksums(start[:HEADER]))
    except _headers.InvalidHeaderError:
        return False


def _changed(items: Iterator[Item], update: Chooser) -> Iterator[Item | Suspect]:
    """What `update` chooses, in the same order. Members that are read at once are asked about many
    at a time; their content is there in any case."""
    rows: list[tuple[Item, Seen]] = []
    size = 0
    for item in items:
        if isinstance(item, Row):
            rows.append((item, _seen(item)))
            size += len(item.data)
            if len(rows) < FEW and size < BATCH:
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


def _seen(row: Row) -> Seen:
    return Seen(to_bytes(row.name), row.ftype, len(row.data), row.mtime_ns or 0, None)


def _suspected(chosen: Iterable[tuple[Item, Seen, bool | None]]) -> Iterator[Item | Suspect]:
    for item, _, compare in chosen:
        yield item if compare is None else Suspect(item, compare)


class Whole:
    """A member that is streamed: its end before its size is an error.

    sparse   (offset, bytes) of what is no hole
    raises   ReadError where these make no sense
    """

    def __init__(
        self, file: Any, size: int, where: str, sparse: Sequence[tuple[int, int]] | None
    ) -> None:
        # tarfile's buffer asks a stream whether it can seek, which it does not know.
        self._file = file if sparse is None else file.raw
        self._size, self._where = size, where
        self._at = 0
        self._stop = size  # where the next hole begins; not before `skip_hole` is called
        self._data = deque([(0, size)] if sparse is None else [pair for pair in sparse if pair[1]])
        end = 0
        for start, length in self._data:
            if not end <= start <= start + length <= size:
                raise tarfile.ReadError("its map of holes makes no sense")
            end = start + length

    def read(self, size: int = -1, /) -> bytes:
        with damage_named(self._where):
            room = self._stop - self._at
            data: bytes = self._file.read(min(size, room) if size >= 0 else room)
            self._at += len(data)
            if self._at < self._size and not data and size:
                raise tarfile.ReadError("unexpected end of data")
            return data

    def skip_hole(self) -> int:
        while self._data and sum(self._data[0]) <= self._at:
            self._data.popleft()
        start, length = self._data[0] if self._data else (self._size, 0)
        gap = max(start - self._at, 0)
        if gap:
            self._file.seek(start)
            self._at = start
        self._stop = start + length
        return gap

    def rewind(self) -> bool:
        return False

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Whatever tarfile and the decompressors raise at wrong bytes becomes a FormatError."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FormatError(f"{where}: not a whole tar file: {error}") from error
    except OSError as error:
        if error.errno is None:  # gzip and bz2 say so of wrong bytes
            raise FormatError(f"{where}: not a whole tar file: {error}") from error
        raise


def following(tar: Any) -> tarfile.TarInfo | None:
    """The next member. The archive forgets it: it would keep them all."""
    member: tarfile.TarInfo | None = tar.next()
    tar.members.clear()
    return member


def clean(name: bytes) -> bytes:
    """The name without empty and `.` parts: tar files have `./a`, `/a` and `a/` for a."""
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def xattrs_of(member: tarfile.TarInfo, *, everything: bool) -> dict[bytes, bytes] | None:
    """Extended attributes, those called user.* or all, as GNU tar, star and bsdtar write them."""
    prefix = XATTR if everything else XATTR + USER
    found = {
        to_bytes(key.removeprefix(XATTR).replace("%3D", "=").replace("%25", "%")): to_bytes(value)
        for key, value in member.pax_headers.items()
        if key.startswith(prefix)
    }
    return found or None


def mtime_ns(member: tarfile.TarInfo) -> int:
    """To the nanosecond, which tarfile's float has lost; the nearest that a file can have."""
    exact = member.pax_headers.get("mtime")
    if exact is not None:
        with contextlib.suppress(InvalidOperation):
            return nearest_ns(int((Decimal(exact) * NANO).to_integral_value(ROUND_FLOOR)))
    return nearest_ns(int(member.mtime) * NANO)
