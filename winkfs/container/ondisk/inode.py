"""Inode: what a file is and where its bytes lie. The value of the entry "<name>/I0".

    offset  size  type  field    meaning
    0       8     Q     cksum    checksum of all that follows, up to the last pair
    8       8     q     nexti    0 (one inode per file)
    16      8     q     fileid   never reused, survives a rename
    24      8     q     lsize    file size, bytes
    32      8     q     ftype    FileType, 0..255
    40      8     q     fmtime   seconds since the epoch; nanoseconds under MTIMENS
    48      8     q     dcount   number of pairs
    56      16n   qq    pairs    (kv_pointer of a data entry, bytes of its value that count)
    56      24n   qqq   triples  the same under PAIROFF: (kv_pointer, bytes skipped, bytes)

Big-endian. Zero padding up to the inode's size, a multiple of 8. kv_pointer 0 is a hole. A first
pair with a negative size names the attribute entry "<fileid>/A0", whose first -size bytes are

    0       24    qqq   mode (permission bits), uid, gid
    24      ..          extended attributes: uint16 length, name, uint32 length, value, repeated

The extended attribute `system.winkfs.ctime` is the time of the last change, int64 nanoseconds; a
file without it was last changed at its mtime.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import xxhash

from winkformats.errors import CorruptError
from winkfs.container.ondisk.extent import FEW, Extent, ExtentArray

HEAD: Final = struct.Struct(">Q6q")
assert HEAD.size == 56
ATTRS: Final = struct.Struct(">qqq")
CTIME: Final = b"system.winkfs.ctime"  # no extended attribute to anybody above
CTIME_VALUE: Final = struct.Struct(">q")
ISZ: Final = 128  # bytes of the smallest inode of new containers

PERMISSIONS: Final = 0o7777
UINT32: Final = (1 << 32) - 1
INT64: Final = (1 << 63) - 1

CK_MD5: Final = 1
CK_XXH3: Final = 2


class FileType(enum.IntEnum):
    """FTYPE: ASCII codes; never renumbered."""

    FILE = 102  # f
    EXEC = 112  # p, mode 0755
    DIR = 100  # d
    LINK = 108  # l, the content is the target
    GZIP = 99  # c
    ARCHIVE = 97  # a
    UNKNOWN = 120  # x
    ZSTD = 122  # z


DEFAULT_MODE: Final = {FileType.EXEC: 0o755, FileType.DIR: 0o755, FileType.LINK: 0o777}


def default_mode(ftype: int) -> int:
    """Permission bits of a file without attributes."""
    return DEFAULT_MODE.get(ftype, 0o644)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True)
class Attrs:
    """Attributes that differ from the defaults.

    ctime_ns  when the file was last changed, nanoseconds since the epoch; None: at its mtime
    """

    mode: int
    uid: int
    gid: int
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    ctime_ns: int | None = None

    def encode(self) -> bytes:
        parts, named = [ATTRS.pack(self.mode, self.uid, self.gid)], dict(self.xattrs)
        if self.ctime_ns is not None:
            named[CTIME] = CTIME_VALUE.pack(self.ctime_ns)
        for name, value in named.items():
            parts += [struct.pack(">H", len(name)), name, struct.pack(">I", len(value)), value]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, file: str, offset: int) -> Self:
        """Raises CorruptError, naming `offset`, for bytes that no attributes have."""
        try:
            mode, uid, gid = ATTRS.unpack_from(data)
            at, xattrs = ATTRS.size, {}
            while at < len(data):
                (n,) = struct.unpack_from(">H", data, at)
                name = data[at + 2 : at + 2 + n]
                (m,) = struct.unpack_from(">I", data, at + 2 + n)
                at += 6 + n
                xattrs[name] = data[at : at + m]
                at += m
            ctime = xattrs.pop(CTIME, None)
            ctime_ns = None if ctime is None else CTIME_VALUE.unpack(ctime)[0]
        except struct.error:
            raise CorruptError("attributes cut short", file=file, offset=offset) from None
        if at != len(data):
            raise CorruptError("attributes cut short", file=file, offset=offset)
        owned = 0 <= uid <= UINT32 and 0 <= gid <= UINT32
        if not (owned and 0 <= mode <= PERMISSIONS) or b"" in xattrs:
            found = f"mode {mode:#o}, uid {uid}, gid {gid}"
            raise CorruptError("attributes no file has", file=file, offset=offset, found=found)
        return cls(mode, uid, gid, xattrs, ctime_ns)


class InodeForm(NamedTuple):
    """What the superblock says of inodes."""

    pairoff: bool
    ckalgo: int

    @property
    def pair(self) -> int:
        """Bytes of a pair or triple."""
        return 24 if self.pairoff else 16

    def sum(self, data: bytes | memoryview) -> int:
        """CKSUM of the bytes from NEXTI to the last pair."""
        if self.ckalgo == CK_XXH3:
            return xxhash.xxh3_64_intdigest(data)
        return int.from_bytes(hashlib.md5(data, usedforsecurity=False).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Inode:
    """A decoded, checked inode.

    lsize   bytes
    mtime   as stored: seconds, or nanoseconds under MTIMENS
    attrs   (kv_pointer, bytes) of the attribute entry
    extents in file order; their sizes add up to at least lsize
    size    bytes the inode's value takes in the container
    """

    fileid: int
    lsize: int
    ftype: int
    mtime: int
    extents: Sequence[Extent] = ()
    attrs: tuple[int, int] | None = None
    size: int = 0

    @property
    def pointers(self) -> list[int]:
        """kv_pointers of all entries the file owns, its attributes first."""
        owned = [self.attrs[0]] if self.attrs else []
        if isinstance(self.extents, ExtentArray):
            many: list[int] = self.extents.pointers.tolist()
            return owned + many
        return owned + list(dict.fromkeys(e.pointer for e in self.extents if e.pointer))

    def encode(self, form: InodeForm, least: int) -> bytes:
        """-> the inode's value, at least `least` bytes, as long as its pairs need.

        raises  ValueError for an extent with a skip where there is no PAIROFF
        """
        pairs: list[int] = []
        if self.attrs:
            pairs += [self.attrs[0], 0, -self.attrs[1]] if form.pairoff else [
                self.attrs[0], -self.attrs[1],
            ]  # fmt: skip
        many = b""
        if form.pairoff and isinstance(self.extents, ExtentArray):
            many = self.extents.rows.astype(">i8").tobytes()
        else:
            for extent in self.extents:
                if form.pairoff:
                    pairs += extent
                elif extent.skip:
                    raise ValueError("an extent with a skip needs PAIROFF")
                else:
                    pairs += [extent.pointer, extent.size]
        count = (len(pairs) * 8 + len(many)) // form.pair
        body = struct.pack(
            f">6q{len(pairs)}q", 0, self.fileid, self.lsize, self.ftype, self.mtime, count, *pairs
        )
        body += many
        value = form.sum(body).to_bytes(8, "big") + body
        return value.ljust(max(-(-least // 8) * 8, len(value)), b"\0")

    @classmethod
    def decode(cls, value: bytes | memoryview, form: InodeForm, *, file: str, offset: int) -> Self:
        """Parse and check. `offset`: of the entry, for the error. Raises CorruptError."""
        if len(value) < HEAD.size:
            raise CorruptError("inode cut short", file=file, offset=offset, found=len(value))
        cksum, nexti, fileid, lsize, ftype, mtime, dcount = HEAD.unpack_from(value)
        end = HEAD.size + dcount * form.pair
        if not 0 <= dcount <= len(value) or end > len(value):
            raise CorruptError("DCOUNT", file=file, offset=offset, found=dcount)
        found = form.sum(value[8:end])
        if found != cksum:
            raise CorruptError(
                "inode checksum", file=file, offset=offset,
                expected=f"{cksum:016x}", found=f"{found:016x}",
            )  # fmt: skip
        extents, attrs = _extents(value, dcount, form)
        bad = nexti or fileid < 1 or lsize < 0
        if bad or _impossible(extents, lsize):
            raise CorruptError("inode fields do not fit together", file=file, offset=offset)
        return cls(fileid, lsize, ftype or FileType.FILE, mtime, extents, attrs, len(value))


def _extents(
    value: bytes | memoryview, count: int, form: InodeForm
) -> tuple[Sequence[Extent], tuple[int, int] | None]:
    """-> the extents of an inode, and its attribute entry."""
    extents: Sequence[Extent]
    if form.pairoff and count > FEW:
        words = np.frombuffer(value, ">i8", 3 * count, HEAD.size)
        extents = ExtentArray(words.astype(np.int64).reshape(-1, 3))
    else:
        numbers = struct.unpack_from(f">{count * form.pair // 8}q", value, HEAD.size)
        if form.pairoff:
            extents = list(map(Extent, numbers[::3], numbers[1::3], numbers[2::3]))
        else:
            extents = [Extent(p, 0, n) for p, n in zip(numbers[::2], numbers[1::2], strict=True)]
    if extents and extents[0].size < 0:
        return extents[1:], (extents[0].pointer, -extents[0].size)
    return extents, None


def _impossible(extents: Sequence[Extent], lsize: int) -> bool:
    """Whether no file of `lsize` bytes can have these extents."""
    if isinstance(extents, ExtentArray):
        skips, sizes = extents.rows[:, 1], extents.rows[:, 2]
        if not len(sizes) or min(skips.min(), sizes.min()) < 0:
            return bool(len(sizes)) or lsize > 0
        total = int(extents.ends[-1])
        beyond = (skips > INT64 - sizes) | (extents.ends < 0)  # a sum beyond int64 wraps
        return total < lsize or bool(beyond.any())
    sizes_of = [e.size for e in extents]
    return (
        sum(sizes_of) < lsize
        or min(sizes_of, default=0) < 0
        or min((e.skip for e in extents), default=0) < 0
        or max((e.skip + e.size for e in extents), default=0) > INT64
    )


def inode_key(name: bytes) -> bytes:
    """The key of a file's inode."""
    return name + b"/I0"


def data_key(fileid: int, number: int) -> bytes:
    """The key of a file's data entry `number`."""
    return b"%x/D%d" % (fileid, number)


def attr_key(fileid: int) -> bytes:
    """The key of a file's attribute entry."""
    return b"%x/A0" % fileid
