"""Oracle, layer 2: inodes, their pairs and attributes, and the kinds of keys."""

import hashlib
import re
import struct
from dataclasses import dataclass, field

import xxhash
from oracle_format import Entry, OracleError, Superblock, equal, expect, int64

HEAD = 56  # CKSUM, NEXTI, FILEID, LSIZE, FTYPE, FMTIME, DCOUNT
DIRECTORY = 100
MAX_NAME = 65_000


@dataclass(frozen=True)
class Pair:
    pointer: int
    skip: int  # 0 where the container has no PAIROFF
    size: int

    @property
    def is_attributes(self) -> bool:
        return self.size < 0

    @property
    def is_hole(self) -> bool:
        return self.pointer == 0

    @property
    def is_below(self) -> bool:
        """As the inode at NEXTI has these bytes."""
        return self.pointer == -1


@dataclass(frozen=True)
class Inode:
    """nexti: 0, or the position of an older inode. pairs: as stored."""

    nexti: int
    fileid: int
    lsize: int
    ftype: int
    fmtime: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Attributes:
    mode: int
    uid: int
    gid: int
    xattrs: dict[bytes, bytes]


@dataclass
class FileView:
    """A live file. mode, uid, gid are None where it has no attribute entry: FTYPE says the rest."""

    name: bytes
    fileid: int
    lsize: int
    ftype: int
    mtime_ns: int
    inode_pos: int
    pairs: tuple[Pair, ...]
    values: dict[int, bytes] = field(repr=False)  # kv_pointer -> value
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    xattrs: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """Bytes 0 .. LSIZE-1 of the data part; a sparse file is written out in full."""
        parts: list[bytes] = []
        left = self.lsize
        for pair in self.pairs:
            if pair.is_attributes:
                continue
            size = min(pair.size, left)
            if pair.is_hole:
                parts.append(bytes(size))
            else:
                parts.append(self.values[pair.pointer][pair.skip : pair.skip + size])
            left -= size
        return b"".join(parts)


# --- keys: the part behind the last "/" decides ------------------------------------------------


@dataclass(frozen=True)
class Key:
    kind: str  # "I", "D", "A", or "" for keys that are kept and ignored
    name: bytes = b""  # of an inode
    fileid: int = 0  # of a data or attribute entry
    number: int = 0


def read_key(where: str, key: bytes) -> Key:
    front, slash, last = key.rpartition(b"/")
    if not slash or not re.fullmatch(rb"[IDA](0|[1-9][0-9]*)", last):
        return Key("")
    kind, number = last[:1].decode(), int(last[1:])
    if kind == "I":
        equal("one inode per file", where, 0, number)
        good = 1 <= len(front) <= MAX_NAME and b"\0" not in front
        expect(good, "file name", where, "1 to 65000 bytes but NUL", f"{len(front)} bytes")
        return Key("I", name=front)
    good = re.fullmatch(rb"[1-9a-f][0-9a-f]*", front) is not None
    expect(good, "data key", where, "FILEID in lowercase hex without leading zeros", front)
    fileid = int(front, 16)
    expect(fileid < 1 << 63, "data key", where, "a FILEID of 63 bits", front)
    return Key(kind, fileid=fileid, number=number)


# --- inodes ------------------------------------------------------------------------------------


def read_inode(sb: Superblock, entry: Entry) -> Inode:
    value = entry.value
    where = f"{sb.label} inode {entry.key!r} at {entry.pos}"
    expect(len(value) >= HEAD, "inode size", where, f">= {HEAD}", len(value))
    equal("inode size multiple of 8", where, 0, len(value) % 8)
    if "CONTID" in sb.variables and sb.get("HAVEAO", 0) == 0:
        least = sb.get("ISZ", HEAD)
        expect(len(value) >= least, "ISZ", where, f"an inode of {least} bytes or more", len(value))
    nexti, fileid, lsize, ftype, fmtime, dcount = (int64(value, 8 * i) for i in range(1, 7))
    width = 24 if sb.get("PAIROFF", 0) == 1 else 16
    good = dcount >= 0 and HEAD + dcount * width <= len(value)
    expect(good, "DCOUNT", where, f"0 to {(len(value) - HEAD) // width}", dcount)
    end = HEAD + dcount * width
    equal("CKSUM", where, checksum(sb, value[8:end]).hex(), value[:8].hex())
    if sb.get("INCHAIN", 0) == 1:
        expect(0 <= nexti < entry.pos, "NEXTI", where, f"0 to {entry.pos - 1}", nexti)
    else:
        equal("NEXTI", where, 0, nexti)
    expect(fileid >= 1, "FILEID", where, "1 or more", fileid)
    expect(0 <= ftype <= 255, "FTYPE", where, "0 to 255", ftype)
    expect(lsize >= 0, "LSIZE", where, "0 or more", lsize)
    if ftype == DIRECTORY:
        equal("directory LSIZE", where, 0, lsize)
        good = not entry.key.endswith(b"//I0")
        expect(good, "directory name", where, "no / at the end", entry.key)
    equal("inode padding", f"{where} offset {end}", b"", value[end:].strip(b"\0"))
    pairs = tuple(read_pair(value, HEAD + i * width, width) for i in range(dcount))
    return Inode(nexti, fileid, lsize, ftype, fmtime, pairs)


def checksum(sb: Superblock, covered: bytes) -> bytes:
    algorithm = sb.get("CKALGO", 1)
    expect(algorithm in (1, 2), "CKALGO", sb.label, "1 or 2", algorithm)
    if algorithm == 1:
        return hashlib.md5(covered).digest()[:8]
    return xxhash.xxh3_64_intdigest(covered).to_bytes(8, "big")


def read_pair(value: bytes, offset: int, width: int) -> Pair:
    if width == 16:
        return Pair(int64(value, offset), 0, int64(value, offset + 8))
    return Pair(int64(value, offset), int64(value, offset + 8), int64(value, offset + 16))


def check_pairs(sb: Superblock, entry: Entry, inode: Inode, by_pos: dict[int, Entry]) -> None:
    """Every pair points into an entry of the same FILEID, and together they hold LSIZE bytes."""
    total = 0
    for number, pair in enumerate(inode.pairs):
        where = f"{sb.label} inode {entry.key!r} at {entry.pos} pair {number}"
        if pair.is_attributes:
            check_attribute_pair(sb, where, number, pair, inode, by_pos)
            continue
        total += pair.size
        if pair.is_below:
            expect(inode.nexti > 0, "pair pointer", where, "no -1 where NEXTI is 0", pair.pointer)
            equal("skip of a pair that is below", where, 0, pair.skip)
            if entry.delflag:  # a repair may have taken out what it builds on
                continue
            reach = below(sb, entry, inode, by_pos).lsize
            expect(total <= reach, "pair size", where, f"up to {reach} below", total)
            continue
        if pair.is_hole:
            bit = sb.get("INCOMPAT", 0) & 4
            equal("INCOMPAT", f"{where}, bit 4, hole", 4, bit)
            equal("hole skip", where, 0, pair.skip)
            continue
        target = target_of(where, inode, pair, by_pos, "D")
        good = pair.skip >= 0 and pair.skip + pair.size <= len(target.value)
        found = f"{pair.skip} + {pair.size}"
        expect(good, "pair size", where, f"inside a value of {len(target.value)}", found)
    where = f"{sb.label} inode {entry.key!r} at {entry.pos}"
    expect(total >= inode.lsize, "LSIZE", where, f"<= sum of sizes {total}", inode.lsize)


def below(sb: Superblock, entry: Entry, inode: Inode, by_pos: dict[int, Entry]) -> Inode:
    """The inode at NEXTI: an older one of the same file."""
    where = f"{sb.label} inode {entry.key!r} at {entry.pos}"
    target = by_pos.get(inode.nexti)
    good = target is not None and read_key(where, target.key).kind == "I" and target.value != b""
    if target is None or not good:
        raise OracleError("NEXTI", where, "the position of an inode", inode.nexti)
    found = read_inode(sb, target)
    equal("NEXTI", f"{where}, FILEID", inode.fileid, found.fileid)
    return found


def all_pairs(
    sb: Superblock, entry: Entry, inode: Inode, by_pos: dict[int, Entry], depth: int = 1
) -> tuple[Pair, ...]:
    """The pairs of a file, with those of older inodes in the place of what is below."""
    expect(depth <= 64, "NEXTI", sb.label, "64 inodes at most", depth)
    if not inode.nexti:
        return inode.pairs
    try:
        older = below(sb, entry, inode, by_pos)
    except OracleError:
        if depth == 1 and entry.delflag:
            return tuple(pair for pair in inode.pairs if not pair.is_below)
        raise
    low = all_pairs(sb, by_pos[inode.nexti], older, by_pos, depth + 1)
    found, at = list[Pair](), 0
    for pair in inode.pairs:
        if pair.is_attributes:
            found.append(pair)
            continue
        if pair.is_below:
            found += part_of(low, at, at + pair.size)
        else:
            found.append(pair)
        at += pair.size
    return tuple(found)


def part_of(pairs: tuple[Pair, ...], start: int, stop: int) -> list[Pair]:
    """The pairs that hold the bytes [start, stop) of a file."""
    found, at = [], 0
    for pair in pairs:
        if pair.is_attributes:
            continue
        first, last = max(start, at), min(stop, at + pair.size)
        if first < last:
            skip = 0 if pair.is_hole else pair.skip + first - at
            found.append(Pair(pair.pointer, skip, last - first))
        at += pair.size
    return found


def check_attribute_pair(
    sb: Superblock, where: str, number: int, pair: Pair, inode: Inode, by_pos: dict[int, Entry]
) -> None:
    equal("ATTRS", f"{where}, size {pair.size}", 1, sb.get("ATTRS", 0))
    equal("INCOMPAT", f"{where}, bit 16, ATTRS", 16, sb.get("INCOMPAT", 0) & 16)
    equal("attribute pair first", where, 0, number)
    equal("attribute pair skip", where, 0, pair.skip)
    target = target_of(where, inode, pair, by_pos, "A")
    size = -pair.size
    expect(size <= len(target.value), "pair size", where, f"<= {len(target.value)}", size)
    read_attributes(where, target.value[:size])


def target_of(where: str, inode: Inode, pair: Pair, by_pos: dict[int, Entry], kind: str) -> Entry:
    target = by_pos.get(pair.pointer)
    if target is None:
        raise OracleError("pair pointer", where, "the position of an entry", pair.pointer)
    key = read_key(where, target.key)
    good = (key.kind, key.fileid) == (kind, inode.fileid) and (kind == "D" or key.number == 0)
    wanted = f"{inode.fileid:x}/{kind}{'0' if kind == 'A' else '<n>'}"
    expect(good, "pair target", where, f"an entry {wanted}", target.key)
    return target


def read_attributes(where: str, data: bytes) -> Attributes:
    expect(len(data) >= 24, "attributes", where, "24 bytes or more", len(data))
    mode, uid, gid = struct.unpack(">3q", data[:24])
    expect(0 <= mode <= 0o7777, "attributes mode", where, "permission bits", oct(mode))
    xattrs: dict[bytes, bytes] = {}
    pos = 24
    while pos < len(data):
        name, pos = read_sized(where, data, pos, 2)
        value, pos = read_sized(where, data, pos, 4)
        expect(name not in xattrs, "attributes", where, "each xattr once", name)
        xattrs[name] = value
    return Attributes(mode, uid, gid, xattrs)


def read_sized(where: str, data: bytes, pos: int, width: int) -> tuple[bytes, int]:
    start = pos + width
    end = start + int.from_bytes(data[pos:start], "big")
    expect(end <= len(data), "attributes", where, f"an xattr that ends by {len(data)}", end)
    return data[start:end], end
