"""Zip files as entries: stored, deflate, bzip2, LZMA (zstd from Python 3.14), zip64.

The central directory counts. A member that is encrypted, compressed in another way, damaged, or
that shares bytes with another one costs only itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Final

from winkformats.errors import FormatError
from winkfs.archive.items import PERMISSIONS, STREAM_BYTES, Content, Meta, Unreadable
from winkfs.archive.magic import BSDTAR
from winkfs.archive.members import Entry
from winkfs.entry import FileType
from winkfs.units import NANO

UTF8: Final = 1 << 11  # flags of a member
ENCRYPTED: Final = 1 << 0
UNIX: Final = (3, 19)  # systems whose modes a member has: Unix, macOS
READ_ONLY: Final = 1  # attribute of MS-DOS
HEADER: Final = 30  # bytes of the header of a member, without its name
LOCAL: Final = struct.Struct("<4s22xHH")  # that header: magic, bytes of name and extra fields
ODD: Final = ENCRYPTED | 1 << 5 | 1 << 6  # or patched, or strongly encrypted
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
EXTRA_BYTES: Final = 256  # of its extra fields, for a member that is read at once
OWNERS_KEPT: Final = 64  # fields whose owners are remembered
FIELD: Final = struct.Struct("<HH")  # kind and bytes of an extra field
TIMES, NTFS, OWNER, PATH = 0x5455, 0x000A, 0x7875, 0x7075  # kinds
NTFS_TIMES: Final = struct.Struct("<4xHHQ")  # kind, bytes, mtime in 100 ns since 1601
NTFS_EPOCH: Final = 11_644_473_600 * NANO  # from 1601 to 1970, ns
OVERLAPS: Final = "its data are also those of another member"


@contextlib.contextmanager
def opened(path: str) -> Iterator[Iterable[Entry]]:
    """Open a zip file: see `members.Opener`."""
    try:
        archive = zipfile.ZipFile(path)
    except UnicodeDecodeError:
        raise FormatError(f"a name is marked as UTF-8, but is none: {BSDTAR}") from None
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
        what = f"not a whole zip file ({error}): zip -FF FILE --out NEW saves what is left"
        raise FormatError(what) from None
    with archive:
        shared = _shared(archive)
        yield (_entry(archive, info, info in shared) for info in archive.infolist())


def _shared(archive: zipfile.ZipFile) -> set[zipfile.ZipInfo]:
    """Return the members whose bytes are also those of another one, or of the directory."""
    ordered = sorted(archive.infolist(), key=lambda info: info.header_offset)
    starts = [*(info.header_offset for info in ordered), archive.start_dir]
    return {
        info
        for info, after in zip(ordered, starts[1:], strict=True)
        if info.header_offset + HEADER + len(info.orig_filename) + info.compress_size > after
    }


def _entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, shared: bool) -> Entry:
    fields = _fields(info.extra)
    name, unix = _name(info, fields), info.create_system in UNIX
    mode = info.external_attr >> 16 if unix else 0
    kind = stat.S_IFMT(mode)
    unheld = None
    if name.endswith(b"/") or kind == stat.S_IFDIR:
        ftype = FileType.DIR
    elif kind == stat.S_IFLNK:
        ftype = FileType.LINK
    else:
        ftype = FileType.FILE
        if kind not in (0, stat.S_IFREG):
            unheld = "a device, fifo or socket: left out"
    if not mode:
        mode = 0o755 if ftype == FileType.DIR else 0o644
        if not unix and info.external_attr & READ_ONLY:
            mode &= ~0o222
    owner = _owner(fields.get(OWNER, b""))
    meta = Meta(_mtime(info, fields), mode & PERMISSIONS, *owner)
    fault = None
    if info.flag_bits & ENCRYPTED:
        fault = "it is encrypted: 7z x extracts it"
    elif shared:
        fault = OVERLAPS
    elif not info.file_size and info.CRC:
        fault = "damaged: it has a checksum, and no bytes"
    size = 0 if ftype == FileType.DIR else info.file_size
    return Entry(name, ftype, size, meta, partial(_content, archive, info), fault, unheld)


def _fields(extra: bytes) -> dict[int, bytes]:
    """Return the extra fields of a member, by their kind."""
    found: dict[int, bytes] = {}
    at = 0
    while at + FIELD.size <= len(extra):
        kind, size = FIELD.unpack_from(extra, at)
        at += FIELD.size
        found.setdefault(kind, extra[at : at + size])
        at += size
    return found


def _name(info: zipfile.ZipInfo, fields: dict[int, bytes]) -> bytes:
    """Return the name of a member: its bytes if it is from Unix, else in UTF-8."""
    text = info.orig_filename
    if info.flag_bits & UTF8:
        return text.encode()
    raw = text.encode("ascii" if text.isascii() else "cp437")
    more = fields.get(PATH, b"")  # version, checksum of the name, name in UTF-8
    if more[:1] == b"\1" and more[1:5] == struct.pack("<I", zlib.crc32(raw)):
        return more[5:]
    return raw if info.create_system in UNIX else text.encode()


def _mtime(info: zipfile.ZipInfo, fields: dict[int, bytes]) -> int:
    """Return the mtime of a member, ns: of an extra field, else its local time of two seconds."""
    ntfs, times = fields.get(NTFS, b""), fields.get(TIMES, b"")
    if len(ntfs) >= NTFS_TIMES.size:
        kind, _, ticks = NTFS_TIMES.unpack_from(ntfs)
        if kind == 1 and ticks:
            return int(ticks) * 100 - NTFS_EPOCH
    if len(times) >= 5 and times[0] & 1:
        return int.from_bytes(times[1:5], "little", signed=True) * NANO
    try:
        return int(time.mktime((*info.date_time, 0, 0, -1))) * NANO
    except (ValueError, OverflowError):
        return 0


@lru_cache(OWNERS_KEPT)
def _owner(field: bytes) -> tuple[int, int]:
    """Return user and group of a member; without them, those of this process."""
    if field[:1] == b"\1" and len(field) >= 3:
        size = field[1]
        user, rest = field[2 : 2 + size], field[2 + size :]
        group = rest[1 : 1 + rest[0]] if rest else b""
        if 0 < len(user) <= 4 and 0 < len(group) <= 4:
            return int.from_bytes(user, "little"), int.from_bytes(group, "little")
    return os.geteuid(), os.getegid()


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[Content, bool]:
    small = read_small(archive, info)
    if small is not None:
        return Content(io.BytesIO(small).read, len(small), None), False
    try:
        file = archive.open(info)
    except NotImplementedError:
        what = f"compressed by method {info.compress_type}, which is not known: {BSDTAR}"
        raise Unreadable(what) from None
    except Exception as error:  # damage can raise anything
        raise Unreadable(f"damaged: {error}") from None
    return Content(_checked(file.read), info.file_size, None), False


def read_small(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes | None:
    """Return the content of a small member by one read; None: it is not such, or damaged, and
    `zipfile` reads it."""
    size, packed, name = info.file_size, info.compress_size, info.orig_filename
    if not 0 < size < STREAM_BYTES or not packed < STREAM_BYTES or not name.isascii():
        return None
    if info.compress_type not in METHODS or info.flag_bits & ODD:
        return None
    assert archive.fp is not None
    length = HEADER + len(name) + packed + EXTRA_BYTES
    try:
        data = os.pread(archive.fp.fileno(), length, info.header_offset)
    except (OSError, OverflowError):  # there is no such offset
        return None
    if len(data) < HEADER:
        return None
    magic, *lengths = LOCAL.unpack_from(data)
    start = HEADER + sum(lengths)
    if magic != b"PK\3\4" or data[HEADER : HEADER + lengths[0]] != name.encode():
        return None
    content = data[start : start + packed]
    if info.compress_type == zipfile.ZIP_DEFLATED:
        try:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size)
        except zlib.error:
            return None
    return content if len(content) == size and zlib.crc32(content) == info.CRC else None


def _checked(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return a function that reads so many bytes, or raises Unreadable."""

    def take(count: int) -> bytes:
        try:
            data = read(count)
        except Exception as error:  # damage can raise anything; the checksum is verified at the end
            raise Unreadable(f"damaged: {error}") from None
        if len(data) < count:
            raise Unreadable("damaged: its data end early")
        return data

    return take
