"""Writing a zip file: deflate, zip64 where it is needed, to a file or a pipe.

    local header    before each member: its name, CRC-32, sizes
    data            deflated; as they are if they are compressed already, or not made smaller
    descriptor      CRC-32 and sizes behind the data, of a file too large to be held in memory
    directory       a record a member, with its mode, at the end of the file

A member has its mtime in seconds (extra field UT). Links are members whose content is the target,
as Info-ZIP writes them.
"""

from __future__ import annotations

import struct
import tempfile
import time
import zlib
from functools import lru_cache
from itertools import chain
from typing import Final

from winkformats.errors import FormatError
from winkfs.archive.archivewriter import HELD_BYTES, Output, Writes, body_of
from winkfs.archive.items import (
    PERMISSIONS,
    SPARSE_BYTES,
    Allowance,
    Note,
    Notes,
    UnpackReport,
)
from winkfs.entry import Entry, FileType
from winkfs.units import NANO

LOCAL: Final = struct.Struct("<4s5H3I2H")
CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
DESCRIPTOR: Final = struct.Struct("<4sIQQ")
END64: Final = struct.Struct("<4sQ2H2I4Q")
LOCATOR: Final = struct.Struct("<4sIQI")
END: Final = struct.Struct("<4s4H2IH")
UT: Final = struct.Struct("<2sHBi")
STORED, DEFLATED = 0, 8
UTF8, BEHIND = 1 << 11, 1 << 3  # flags: the name is UTF-8; a descriptor follows
MADE_BY: Final = 3 << 8 | 45  # Unix, version 4.5: zip64
NEEDS, NEEDS64 = 20, 45
MOST16, MOST32 = 0xFFFF, 0xFFFFFFFF
KINDS: Final = {FileType.DIR: 0o040000, FileType.LINK: 0o120000}
REGULAR: Final = 0o100000
DIRECTORY: Final = 0x10  # attribute of MS-DOS
LEVEL: Final = 6
COMPRESSED: Final = (
    b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh91AY&SY", b"\xff\xd8\xff",
)  # fmt: skip
"""The first bytes of files that deflate makes hardly smaller: gzip, zstd, xz, bzip2, JPEG."""
TIMES_KEPT: Final = 1024  # times of members that are remembered: many files have the same
DIRECTORY_BYTES: Final = 64 << 20  # of the directory that are held in memory
EARLIEST: Final = (1980, 1, 1, 0, 0, 0)
LAST: Final = (2107, 12, 31, 23, 59, 58)
INT32: Final = (1 << 31) - 1
LESS: Final = (
    "without what a zip file cannot have: owners, attributes, holes, fractions of a second of its "
    "time"
)


class ZipWriter:
    """A zip file as a Sink.

    out        file or pipe that it is written to
    allowance  limit of the contents
    owner      uid and gid that count as nothing to be kept
    scratch    directory for a temporary file; None: that of the system
    """

    def __init__(
        self,
        out: Writes,
        allowance: Allowance,
        report: UnpackReport,
        note: Notes,
        *,
        owner: tuple[int, int],
        scratch: str | None,
    ) -> None:
        self._out = Output(out)
        self._allowance, self._report, self._note = allowance, report, note
        self._owner = owner
        self._directory = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # until `finish`
            DIRECTORY_BYTES, dir=scratch
        )
        self._count = 0

    def put(self, entry: Entry, path: bytes) -> bool:
        """Write a member; see `Sink`."""
        if len(path) >= MOST16:
            self._note(
                Note(path, f"its name has {len(path):,} bytes, too many for a zip file", True)
            )
            return False
        try:
            if entry.ftype == FileType.DIR:
                self._member(entry, path + b"/", b"")
                self._report.directories += 1
            elif entry.ftype == FileType.LINK:
                self._member(entry, path, entry.read())
                self._report.links += 1
            else:
                self._file(entry, path)
                self._report.files += 1
                self._report.bytes += entry.size
        except FormatError as error:
            self._note(Note(path, str(error), True))
            return False
        return True

    def _file(self, entry: Entry, path: bytes) -> None:
        if entry.size < SPARSE_BYTES:
            self._allowance.claim(entry.size)
            self._member(entry, path, entry.read())
            return
        body = body_of(entry, self._allowance, holes=True)
        holes = sum(size for _, size in body.ranges) < entry.size
        data = body.data(holes=True, note=self._note)
        if entry.size <= HELD_BYTES:
            self._member(entry, path, b"".join(data), holes=holes)
            return
        at = self._out.at
        extra64 = struct.pack("<2H2Q", 1, 16, 0, 0)  # 8 bytes a size in the descriptor
        self._local(entry, path, DEFLATED, BEHIND, 0, MOST32, MOST32, extra64)
        start = self._out.at
        first = next(data)
        level = 0 if first.startswith(COMPRESSED) else LEVEL  # 0: not made smaller
        press, crc = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS), 0
        for piece in chain((first,), data):
            crc = zlib.crc32(piece, crc)
            self._out.write(press.compress(piece))
        self._out.write(press.flush())
        packed = self._out.at - start
        self._out.write(DESCRIPTOR.pack(b"PK\7\b", crc, packed, entry.size))
        self._record(entry, path, DEFLATED, BEHIND, (crc, packed, entry.size), at, holes=holes)

    def _member(self, entry: Entry, path: bytes, data: bytes, *, holes: bool = False) -> None:
        """Write a member whose content is in memory."""
        at, crc, method, packed = self._out.at, zlib.crc32(data), STORED, data
        if len(data) > 2 and not data.startswith(COMPRESSED):
            press = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            found = press.compress(data) + press.flush()
            if len(found) < len(data):
                method, packed = DEFLATED, found
        self._local(entry, path, method, 0, crc, len(packed), len(data), b"")
        self._out.write(packed)
        self._record(entry, path, method, 0, (crc, len(packed), len(data)), at, holes=holes)

    def _local(
        self, entry: Entry, path: bytes, method: int, flags: int, crc: int, packed: int, size: int,
        extra: bytes,
    ) -> None:  # fmt: skip
        extra = _time_field(entry) + extra
        head = LOCAL.pack(
            b"PK\3\4", NEEDS64 if flags & BEHIND else NEEDS, flags | _utf8(path), method,
            *_dos_time(entry.mtime_ns // NANO), crc, packed, size, len(path), len(extra),
        )  # fmt: skip
        self._out.write(head, path, extra)

    def _record(
        self, entry: Entry, path: bytes, method: int, flags: int, sums: tuple[int, int, int],
        at: int, *, holes: bool,
    ) -> None:  # fmt: skip
        """Add a member to the directory. sums: CRC-32, bytes in the archive, bytes of content."""
        crc, packed, size = sums
        numbers = [size, packed, at]  # in the order of zip64
        large = b"".join(struct.pack("<Q", one) for one in numbers if one >= MOST32)
        if large:
            large = struct.pack("<2H", 1, len(large)) + large
        size, packed, at = (min(one, MOST32) for one in numbers)
        extra = _time_field(entry) + large
        mode = KINDS.get(entry.ftype, REGULAR) | entry.mode & PERMISSIONS  # type: ignore[call-overload]
        directory = DIRECTORY if entry.ftype == FileType.DIR else 0
        self._directory.write(
            CENTRAL.pack(
                b"PK\1\2", MADE_BY, NEEDS64 if large or flags & BEHIND else NEEDS,
                flags | _utf8(path), method, *_dos_time(entry.mtime_ns // NANO), crc, packed, size,
                len(path), len(extra), 0, 0, 0, mode << 16 | directory, at,
            ) + path + extra
        )  # fmt: skip
        self._count += 1
        odd = entry.mtime_ns % NANO or not -INT32 - 1 <= entry.mtime_ns // NANO <= INT32
        if holes or odd or entry.xattrs or (entry.uid, entry.gid) != self._owner:
            self._note(Note(path, LESS, False, often=1))

    def finish(self) -> None:
        """Write the directory and the end."""
        start, size = self._out.at, self._directory.tell()
        self._directory.seek(0)
        while data := self._directory.read(1 << 20):
            self._out.write(data)
        self._directory.close()
        count, at = self._count, self._out.at
        if count >= MOST16 or start >= MOST32 or size >= MOST32:
            numbers = count, count, size, start
            self._out.write(
                END64.pack(b"PK\6\6", END64.size - 12, MADE_BY, NEEDS64, 0, 0, *numbers),
                LOCATOR.pack(b"PK\6\7", 0, at, 1),
            )
        few = min(count, MOST16)
        self._out.write(
            END.pack(b"PK\5\6", 0, 0, few, few, min(size, MOST32), min(start, MOST32), 0)
        )
        self._out.flush()

    def abort(self) -> None:
        """Remove the temporary file; the output is not published."""
        self._directory.close()


def _utf8(path: bytes) -> int:
    """Return the flag of a name in UTF-8; 0 for other bytes, and for ASCII."""
    try:
        return 0 if path.isascii() else UTF8 * bool(path.decode())
    except UnicodeDecodeError:
        return 0


def _time_field(entry: Entry) -> bytes:
    """Return the extra field with the mtime; b"": it has no such time."""
    seconds = entry.mtime_ns // NANO
    if not -INT32 - 1 <= seconds <= INT32:
        return b""
    return UT.pack(b"UT", 5, 1, seconds)


@lru_cache(TIMES_KEPT)
def _dos_time(seconds: int) -> tuple[int, int]:
    """Return an mtime as MS-DOS has it, in local time: two numbers of 16 bits."""
    try:
        year, month, day, hour, minute, second = time.localtime(seconds)[:6]
    except (ValueError, OverflowError, OSError):
        year, month, day, hour, minute, second = EARLIEST if seconds < 0 else LAST
    if year < EARLIEST[0]:
        year, month, day, hour, minute, second = EARLIEST
    elif year > LAST[0]:
        year, month, day, hour, minute, second = LAST
    return (
        hour << 11 | minute << 5 | min(second, 59) // 2,
        (year - EARLIEST[0]) << 9 | month << 5 | day,
    )
