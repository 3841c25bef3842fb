"""Inode: type, size, mtime and extents of a file. The value of the entry "<name>/I0".

    offset  size  type  field    meaning
    0       8     Q     cksum    checksum of all that follows, up to the last pair
    8       8     q     nexti    0, or position of the inode below: see `chain`
    16      8     q     fileid   never reused, survives a rename
    24      8     q     lsize    file size, bytes
    32      8     q     ftype    FileType, 0..255
    40      8     q     fmtime   seconds since the epoch; nanoseconds under MTIMENS
    48      8     q     dcount   number of pairs
    56      16n   qq    pairs    (kv_pointer of a data entry, bytes of its value that count)
    56      24n   qqq   triples  the same under PAIROFF: (kv_pointer, bytes skipped, bytes)

Big-endian. Zero padding up to the inode's size, a multiple of 8. kv_pointer 0 is a hole. A triple
with bit 62 of its second number set (FRAME) belongs to an entry whose value is a compressed frame:
skip and size then count bytes of its decompressed content, see `ondisk.compressed`. A first pair
with a negative size names the attribute entry "<fileid>/A0", whose first -size bytes are

    0       24    qqq   mode (permission bits), uid, gid
    24      ..          extended attributes: uint16 length, name, uint32 length, value, repeated

The extended attribute `system.winkfs.ctime` is the time of the last change, int64 nanoseconds; a
file without it was last changed at its mtime.

In this module, pairs are extents: a list or, if there are many, as after many small overwrites,
columns (`ExtentArray`).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Self, overload

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkformats.kv.entry import KVEntry
from winkfs.entry import FileType, default_mode
from winkfs.errors import Refusal
from winkfs.names import Name, to_bytes, to_str
from winkfs.units import NANO, as_int, checked_ns

ALWAYS_READ_BYTES: Final = 1 << 30  # content that is read at once, however small the container
FRAME: Final = 1 << 62  # in `skip`: the value of the entry is a compressed frame
MAX_READ_RATIO: Final = 16  # of larger content to its container, for it to be read at once
LIST_EXTENTS: Final = 64  # up to which a list is faster than columns
HEAD: Final = struct.Struct(">Q6q")
assert HEAD.size == 56
ATTRS: Final = struct.Struct(">qqq")
HIGHEST: Final = (1 << 63) // NANO  # seconds that int64 holds as nanoseconds
CTIME: Final = b"system.winkfs.ctime"  # not shown as an extended attribute
CTIME_VALUE: Final = struct.Struct(">q")
JUST_CTIME: Final = struct.pack(">H19sI", len(CTIME), CTIME, CTIME_VALUE.size)
"""The bytes between owner and ctime of attributes without further extended ones."""
NAMED_CTIME: Final = len(JUST_CTIME) + CTIME_VALUE.size
ISZ: Final = 128  # bytes of the smallest inode of new containers
PERMISSIONS: Final = 0o7777
UINT32: Final = (1 << 32) - 1
INT64: Final = (1 << 63) - 1
CK_MD5: Final = 1
CK_XXH3: Final = 2


class Extent(NamedTuple):
    """`size` bytes of the value at `pointer` after its first `skip`; pointer 0: a hole.

    With FRAME added to `skip`, the value is a compressed frame, and they are bytes of its content.
    """

    pointer: int
    skip: int
    size: int


BELOW: Final = -1
"""The pointer of an extent that is the same in the inode below: see `chain`."""
ValueAt = Callable[[int, int, bool], bytes]


class ExtentArray(Sequence[Extent]):
    """Extents in file order, immutable. `rows`: int64[n, 3], (pointer, skip, size)."""

    __slots__ = ("_ends", "_pointers", "rows")

    def __init__(self, rows: Int64) -> None:
        self.rows = rows
        self._ends: Int64 | None = None
        self._pointers: Int64 | None = None

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> Self:
        if isinstance(extents, cls):
            return extents
        rows = np.array(list(extents), np.int64)
        return cls(rows.reshape(-1, 3))

    @property
    def ends(self) -> Int64:
        """End of each extent in the file, bytes, int64[n]."""
        if self._ends is None:
            self._ends = np.cumsum(self.rows[:, 2])
        return self._ends

    @property
    def pointers(self) -> Int64:
        """kv_pointers of their entries, ascending, each once; holes have none."""
        if self._pointers is None:
            found = np.sort(self.rows[:, 0])
            self._pointers = found[(found > 0) & (np.diff(found, prepend=0) != 0)]
        return self._pointers

    def part(self, start: int, stop: int) -> Self:
        """Return the extents of the bytes [start, stop) of the file."""
        ends = self.ends
        if not len(ends) or start >= stop or start >= ends[-1]:
            return type(self)(self.rows[:0])
        if start <= 0 and stop == ends[-1]:
            return self
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(ends, stop, "left"))
        rows = self.rows[first : last + 1].copy()
        before = start - int(ends[first] - self.rows[first, 2])
        rows[0, 1:] += (before, -before) if rows[0, 0] > 0 else (0, -before)
        if last < len(ends):
            rows[-1, 2] -= int(ends[last]) - stop
        return type(self)(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Extent]:
        return map(Extent._make, self.rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Extent: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Extent | Self:
        if isinstance(index, slice):
            return type(self)(self.rows[index])
        return Extent._make(self.rows[index].tolist())


def cut(extents: Sequence[Extent], start: int, stop: int) -> Sequence[Extent]:
    """Return the extents of the bytes [start, stop) of a file."""
    if isinstance(extents, ExtentArray):
        return extents.part(start, stop)
    found, at = [], 0
    for extent in extents:
        a, b = max(start - at, 0), min(stop - at, extent.size)
        if a < b:
            skip = extent.skip + a if extent.pointer > 0 else 0
            found.append(Extent(extent.pointer, skip, b - a))
        at += extent.size
        if at >= stop:
            break
    return found


def joined(*parts: Sequence[Extent]) -> Sequence[Extent]:
    """Concatenate extents."""
    if sum(map(len, parts)) <= LIST_EXTENTS:
        return [extent for part in parts for extent in part]
    return ExtentArray(np.concatenate([ExtentArray.of(part).rows for part in parts]))


def check_size(size: int, container: int, file: str) -> None:
    """Raise Refusal EFBIG for content far larger than its container, by holes or repeated entries,
    which must not be held in memory.

    size, container  bytes of the content, and of the container's data file
    """
    if size > ALWAYS_READ_BYTES and size > MAX_READ_RATIO * container:
        raise Refusal(
            f"{size:,} bytes in a container of {container:,}: too many to be read at once, read "
            "them in parts", file, number=errno.EFBIG,
        )  # fmt: skip


def is_filler(entry: KVEntry) -> bool:
    """Return whether an entry can be a filler, which repairs of older versions wrote over damage:
    zeros, marked deleted. A live inode points to one only after such a repair was killed: a writer
    that replaces content marks the inode first."""
    return entry.deleted and 0 < len(entry.value) == entry.value.count(0)


def check_lives(entry: KVEntry, holder: int, read: Callable[[int, int], bytes], file: str) -> None:
    """Raise CorruptError for a filler in place of content: see `is_filler`.

    holder  position of the inode that points to the entry; 0: the file may be deleted
    read    see `Storage.read`
    """
    if entry.deleted and holder and is_filler(entry) and read(holder, 1) == b"\0":
        what = "its content is lost, zeros fill its place (winkfs repair removes the file)"
        raise CorruptError(what, file=file, offset=entry.pos)


def assemble(extents: Sequence[Extent], value_at: ValueAt, file: str) -> bytes:
    """Return the bytes of extents, concatenated. See `resolved`."""
    parts = list(resolved(extents, value_at, file))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def resolved(extents: Iterable[Extent], value_at: ValueAt, file: str) -> Iterator[bytes]:
    """Yield the bytes of each extent.

    value_at    position of an entry, bytes of its value that are needed, and whether it is a frame
                -> its verified value, or the content of the frame
    file        the name of the data file, for the error
    raises      CorruptError; Refusal EFBIG for a hole that is larger than the memory
    """
    for pointer, skip, size in extents:
        if pointer == 0:
            yield _zeros(size, file)
            continue
        framed, skip = skip >= FRAME, skip & ~FRAME
        value = value_at(pointer, skip + size, framed)
        if skip + size > len(value):
            raise CorruptError("extent is longer than its entry", file=file, offset=pointer)
        yield value[skip : skip + size]


def _zeros(size: int, file: str) -> bytes:
    try:
        return bytes(size)
    except MemoryError:
        what = f"a file with a hole of {size} bytes is too large to be read at once: open_file"
        raise Refusal(what, file, number=errno.EFBIG) from None


def assemble_into(into: memoryview, extents: Sequence[Extent], value_at: ValueAt, file: str) -> int:
    """Read the bytes of extents into a buffer that is large enough -> bytes."""
    at = 0
    for part in resolved(extents, value_at, file):
        into[at : at + len(part)] = part
        at += len(part)
    return at


def joined_rows(rows: Int64) -> Int64:
    """Join neighbours that are contiguous in an entry, or are both holes. int64[n, 3]"""
    pointer, skip, size = rows.T
    goes_on = (pointer[1:] == pointer[:-1]) & (
        (pointer[1:] <= 0) | (skip[1:] == skip[:-1] + size[:-1])
    )
    if not goes_on.any():
        return rows
    heads = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    found = rows[heads]
    found[:, 2] = np.add.reduceat(size, heads)
    return found


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

    @property
    def size(self) -> int:
        """Bytes of the encoded attributes."""
        own = ATTRS.size if self.ctime_ns is None else ATTRS.size + NAMED_CTIME
        return own + sum(6 + len(name) + len(value) for name, value in self.xattrs.items())

    def encode(self) -> bytes:
        parts = [ATTRS.pack(self.mode, self.uid, self.gid)]
        for name, value in self.xattrs.items():
            parts += [struct.pack(">H", len(name)), name, struct.pack(">I", len(value)), value]
        if self.ctime_ns is not None:
            parts += [JUST_CTIME, CTIME_VALUE.pack(self.ctime_ns)]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, *, file: str, offset: int) -> Self:
        """Decode attributes. Raises CorruptError, naming `offset`."""
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
    """The form of inodes, as the superblock sets it. `chains`: INCHAIN, so NEXTI may be set."""

    pairoff: bool
    ckalgo: int
    chains: bool = False

    @property
    def pair(self) -> int:
        """Bytes of a pair or triple."""
        return 24 if self.pairoff else 16

    def sum(self, data: bytes | memoryview) -> int:
        """Return CKSUM of the bytes from NEXTI to the last pair."""
        if self.ckalgo == CK_XXH3:
            return xxhash.xxh3_64_intdigest(data)
        from hashlib import md5  # late: only classic containers use it

        return int.from_bytes(md5(data, usedforsecurity=False).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Inode:
    """A decoded, checked inode.

    lsize   bytes
    mtime   as stored: seconds, or nanoseconds under MTIMENS
    attrs   (kv_pointer, bytes) of the attribute entry
    extents in file order; their sizes add up to at least lsize
    size    bytes of the inode's value in the container
    nexti   position of the inode below, on whose extents `extents` build; 0: none
    links   the inodes that `chain.whole` joined to this one, from the newest on
    """

    fileid: int
    lsize: int
    ftype: int
    mtime: int
    extents: Sequence[Extent] = ()
    attrs: tuple[int, int] | None = None
    size: int = 0
    nexti: int = 0
    links: tuple[Link, ...] = ()

    @property
    def pointers(self) -> list[int]:
        """kv_pointers of all entries the file owns, its attributes first."""
        owned = [self.attrs[0]] if self.attrs else []
        if isinstance(self.extents, ExtentArray):
            many: list[int] = self.extents.pointers.tolist()
            return owned + many
        return owned + list(dict.fromkeys([e.pointer for e in self.extents if e.pointer > 0]))

    @property
    def owned(self) -> frozenset[int]:
        """`pointers` as a set."""
        return frozenset(self.pointers)

    @property
    def triples(self) -> list[Sequence[int]]:
        """Its attributes and extents as they are stored."""
        named = [] if self.attrs is None else [(self.attrs[0], 0, -self.attrs[1])]
        if isinstance(self.extents, ExtentArray):
            return [*named, *self.extents.rows.tolist()]
        return [*named, *self.extents]

    def encode(self, form: InodeForm, least: int) -> bytes:
        """Return the inode's value, of `least` bytes or as many as its pairs need.

        raises  ValueError for an extent with a skip without PAIROFF
        """
        pairs = self.triples
        if not form.pairoff:
            if any(skip for _, skip, _ in pairs):
                raise ValueError("an extent with a skip needs PAIROFF")
            pairs = [(pointer, size) for pointer, _, size in pairs]
        words = [*chain.from_iterable(pairs)]
        fields = self.nexti, self.fileid, self.lsize, self.ftype, self.mtime, len(pairs)
        body = struct.pack(f">6q{len(words)}q", *fields, *words)
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
        bad = nexti < 0 or (nexti > 0 and not form.chains) or fileid < 1 or lsize < 0
        if bad or _impossible(extents, lsize, whole=nexti == 0):
            raise CorruptError("inode fields do not fit together", file=file, offset=offset)
        ftype = ftype or FileType.FILE
        return cls(fileid, lsize, ftype, mtime, extents, attrs, len(value), nexti)


class Link(NamedTuple):
    """An inode of a chain: its position, the bytes of its value, its extents up to LSIZE."""

    pos: int
    size: int
    extents: ExtentArray


def _extents(
    value: bytes | memoryview, count: int, form: InodeForm
) -> tuple[Sequence[Extent], tuple[int, int] | None]:
    """Return the extents of an inode, and its attribute entry."""
    extents: Sequence[Extent]
    if form.pairoff and count > LIST_EXTENTS:
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


def _impossible(extents: Sequence[Extent], lsize: int, *, whole: bool) -> bool:
    """Return whether no file of `lsize` bytes can have these extents.

    whole  the inode builds on no other, so that none may be BELOW
    """
    if isinstance(extents, ExtentArray):
        skips, sizes = extents.rows[:, 1], extents.rows[:, 2]
        if not len(sizes) or min(skips.min(), sizes.min()) < 0:
            return bool(len(sizes)) or lsize > 0
        total = int(extents.ends[-1])
        beyond = (skips > INT64 - sizes) | (extents.ends < 0)  # a sum beyond int64 wraps
        beyond |= whole & (extents.rows[:, 0] == BELOW)
        return total < lsize or bool(beyond.any())
    for pointer, skip, size in extents:
        if skip < 0 or size < 0 or skip + size > INT64 or (whole and pointer == BELOW):
            return True
        lsize -= size
    return lsize > 0


def attributes(
    inode: Inode, owner: tuple[int, int], entry_at: Callable[[int], KVEntry], file: str
) -> Attrs:
    """Return the attributes of a file, or the defaults. Raises CorruptError."""
    word = stored(inode, entry_at, file)
    if inode.attrs is None or word is None:
        return Attrs(default_mode(inode.ftype), *owner)
    return Attrs.decode(word, file=file, offset=inode.attrs[0])


def stored(inode: Inode, entry_at: Callable[[int], KVEntry], file: str) -> bytes | None:
    """Return the stored bytes of a file's attributes; None: it has none. Raises CorruptError."""
    if inode.attrs is None:
        return None
    pos, size = inode.attrs
    value = entry_at(pos).value
    if size > len(value):
        raise CorruptError("attribute size", file=file, offset=pos)
    return value[:size]


def data_key(fileid: int, number: int) -> bytes:
    """Return the key of a file's data entry `number`."""
    return b"%x/D%d" % (fileid, number)


def attr_key(fileid: int) -> bytes:
    """Return the key of a file's attribute entry."""
    return b"%x/A0" % fileid


# --- arguments: refused, before anything is changed, if an inode cannot store them ---


def check_ftype(ftype: int) -> int:
    return as_int(ftype, "an ftype", 0, 255)


def check_mode(mode: int) -> int:
    return as_int(mode, "a mode", 0, PERMISSIONS)


def check_directory(ftype: int, name: Name, size: int) -> None:
    """Raise Refusal EISDIR for a directory with content, or with a slash at the end of its name."""
    if ftype == FileType.DIR and (size or to_bytes(name).endswith(b"/")):
        what = "a directory has no content, and no / at the end of its name"
        raise Refusal(what, to_str(name), number=errno.EISDIR)


def check_length(size: int, name: Name) -> None:
    if size > INT64:
        raise Refusal("a file cannot be that large", to_str(name), number=errno.EFBIG)


def check_attrs(attrs: Attrs) -> Attrs:
    """Return attributes; raise ValueError or TypeError if they cannot be stored."""
    check_mode(attrs.mode)
    as_int(attrs.uid, "a uid", 0, UINT32)
    as_int(attrs.gid, "a gid", 0, UINT32)
    checked_ns(attrs.ctime_ns)
    if CTIME in attrs.xattrs:
        raise ValueError(f"{CTIME.decode()} is no extended attribute: the time of the last change")
    for name, value in attrs.xattrs.items():
        if not isinstance(name, bytes) or not isinstance(value, bytes):
            raise TypeError("names and values of extended attributes are bytes")
        if not 1 <= len(name) <= 65_535 or len(value) > UINT32:
            raise ValueError(f"extended attribute {name[:40]!r} is too long")
    return attrs


# --- times of many inodes ---


def nanoseconds(mtimes: Int64, unit: int) -> Int64:
    """Convert FMTIMEs of `unit` nanoseconds to nanoseconds, the nearest in int64, int64[n]."""
    if unit == 1:
        return mtimes
    exact = np.clip(mtimes, -HIGHEST, HIGHEST) * NANO
    return np.where(mtimes > HIGHEST, INT64, np.where(mtimes < -HIGHEST, -INT64 - 1, exact))
