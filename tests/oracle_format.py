"""Oracle, layer 1: superblock, kvseq entries and key hashes, read strictly from the documents.

Test code only. It shares nothing with the product packages: slow, obvious, a second opinion.
"""

import functools
import hashlib
import struct
from dataclasses import dataclass

import mmh3
import xxhash

MAGIC = b"#!WINKME"
INT64 = struct.Struct(">q")
KVSEQ, HINDEX, PERM = 0x10, 0x20, 0x30
LOW63 = (1 << 63) - 1
LOW64 = (1 << 64) - 1
MAX_CHECKSUMMED_VARIABLES = 31  # so that all of them lie in one 512-byte sector
KNOWN_INCOMPAT = 1 | 2 | 4 | 8 | 16 | 32 | 64
ZERO_OR_ONE = ("KVCKSUM", "MTIMENS", "PAIROFF", "ATTRS", "HAVEDUPS", "HAVEAO")


class OracleError(Exception):
    """A deviation from the documents, in one line: which rule, where, expected, found."""

    def __init__(self, rule: str, where: str, expected: object, found: object) -> None:
        super().__init__(f"{rule}: {where}: expected {expected}, found {found}")
        self.rule = rule
        self.where = where


def expect(good: bool, rule: str, where: str, expected: object, found: object) -> None:
    if not good:
        raise OracleError(rule, where, expected, found)


def equal(rule: str, where: str, expected: object, found: object) -> None:
    if expected != found:
        raise OracleError(rule, where, repr(expected), repr(found))


def int64(data: bytes, offset: int) -> int:
    return int(INT64.unpack_from(data, offset)[0])


@dataclass
class Superblock:
    label: str  # the file's name, for messages
    raw: bytes  # the whole file
    variables: dict[str, int]
    purpose: str

    def get(self, name: str, default: int) -> int:
        return self.variables.get(name, default)

    def need(self, name: str) -> int:
        expect(name in self.variables, name, self.label, "the variable", "none")
        return self.variables[name]

    @property
    def sbsize(self) -> int:
        return self.variables["SBSIZE"]

    @functools.cached_property
    def filesize(self) -> int:
        return self.get("FILESIZE", len(self.raw))


def read_superblock(label: str, raw: bytes, file_format: int, purpose: str | None) -> Superblock:
    equal("magic", f"{label} byte 0", MAGIC, raw[:8])
    equal("variable order", f"{label} byte 8", b"SBSIZE  ", raw[8:16])
    expect(len(raw) >= 64, "SBSIZE", label, "64 bytes or more", f"{len(raw)} bytes")
    sbsize = int64(raw, 16)
    expect(64 <= sbsize <= len(raw), "SBSIZE", label, f"64 to {len(raw)}", sbsize)
    variables, end = read_variables(label, raw[:sbsize])
    if "SBSEQ" in variables:
        equal("SBSIZE of two superblocks", label, 8192, sbsize)
        sbsize = 4096
        second, _ = read_variables(label, raw[4096:8192])
        equal("variables of the second superblock", label, list(variables), list(second))
        late = variables["SBSEQ"] - second["SBSEQ"]
        expect(0 <= late <= 1, "SBSEQ of the second", label, "0 or 1 less", f"{late} less")
        check_sbcksum(Superblock(label, raw[4096:], second, ""))
    equal("variable order", label, ["SBSIZE", "FORMAT", "PURPOSE"], list(variables)[:3])
    equal("FORMAT", label, file_format, variables["FORMAT"])
    equal("superblock rest zero", f"{label} byte {end}", b"", raw[end:sbsize].strip(b"\0"))
    sb = Superblock(label, raw, variables, purpose_text(label, raw[48:56]))
    if purpose is not None:
        equal("PURPOSE", label, purpose, sb.purpose)
    check_sbcksum(sb)
    check_sizes(sb)
    for name in ZERO_OR_ONE:
        expect(sb.get(name, 0) in (0, 1), name, label, "0 or 1", sb.get(name, 0))
    unknown = sb.get("INCOMPAT", 0) & ~KNOWN_INCOMPAT
    expect(unknown == 0, "INCOMPAT", label, "known bits only", f"unknown {unknown:#x}")
    return sb


def read_variables(label: str, block: bytes) -> tuple[dict[str, int], int]:
    """The variables in their order, and the offset behind the eight zero bytes that end them."""
    variables: dict[str, int] = {}
    pos = 8
    while True:
        where = f"{label} byte {pos}"
        name = block[pos : pos + 8]
        expect(len(name) == 8, "superblock terminator", where, "eight zero bytes", "end of SBSIZE")
        if name == b"\0" * 8:
            return variables, pos + 8
        printable = all(0x20 <= byte <= 0x7E for byte in name) and name[:1] != b" "
        expect(printable, "variable name", where, "ASCII padded right with spaces", name)
        text = name.decode("ascii").rstrip(" ")
        expect(text not in variables, "variable name", where, "each name once", f"{text} again")
        expect(pos + 16 <= len(block), "superblock terminator", where, "a value", "end of SBSIZE")
        variables[text] = int64(block, pos + 8)
        pos += 16


def purpose_text(label: str, eight: bytes) -> str:
    text = eight.rstrip(b"\0 ")
    good = all(0x20 <= byte <= 0x7E for byte in text)
    expect(good, "PURPOSE", label, "ASCII padded right with NUL or spaces", eight)
    return text.decode("ascii")


def check_sbcksum(sb: Superblock) -> None:
    if "SBCKSUM" not in sb.variables:
        # else a flipped bit in the name of SBCKSUM would take the checksum away unseen
        expect("CONTID" not in sb.variables, "SBCKSUM", sb.label, "one beside CONTID", "none")
        return
    count = len(sb.variables)
    most = MAX_CHECKSUMMED_VARIABLES
    expect(count <= most, "at most 31 variables", sb.label, f"<= {most}", count)
    block = bytearray(sb.raw[: 4096 if "SBSEQ" in sb.variables else sb.sbsize])
    value = 8 + 16 * list(sb.variables).index("SBCKSUM") + 8
    block[value : value + 8] = bytes(8)
    stored = sb.variables["SBCKSUM"] & LOW64
    equal("SBCKSUM", sb.label, hex(xxhash.xxh3_64_intdigest(bytes(block))), hex(stored))


def check_sizes(sb: Superblock) -> None:
    real = len(sb.raw)
    good = sb.sbsize <= sb.filesize <= real
    expect(good, "FILESIZE", sb.label, f"{sb.sbsize} to real size {real}", sb.filesize)
    syncsize = sb.get("SYNCSIZE", sb.filesize)
    good = syncsize <= sb.filesize
    expect(good, "SYNCSIZE", sb.label, f"<= FILESIZE {sb.filesize}", syncsize)


# --- kvseq -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    pos: int  # the kv_pointer
    end: int
    delflag: int  # 0 where the file has no KVDELFL 1
    key: bytes
    value: bytes


def read_entries(sb: Superblock) -> list[Entry]:
    """All entries in file order; FILESIZE must be the end of the last one."""
    align = sb.get("ALIGN", 0)
    has_checksums = sb.get("KVCKSUM", 0) == 1
    bit = sb.get("INCOMPAT", 0) & 1
    equal("INCOMPAT", f"{sb.label} bit 1, KVCKSUM", int(has_checksums), bit)
    entries: list[Entry] = []
    pos = sb.sbsize
    while pos < sb.filesize:
        start = pos
        if align > 0 and pos % align != 0:
            start = pos + align - pos % align
        skipped = sb.raw[pos : min(start, sb.filesize)]
        equal("ALIGN skip bytes", f"{sb.label} byte {pos}", b"", skipped.strip(b"\0"))
        where = f"{sb.label} byte {pos}"
        expect(start < sb.filesize, "FILESIZE", where, "end of the last entry", sb.filesize)
        entry = read_entry(sb, start)
        entries.append(entry)
        pos = entry.end
    return entries


def check_entry_counters(sb: Superblock, entries: list[Entry]) -> None:
    dead = sum(entry.delflag for entry in entries)
    if "ENTRIES" in sb.variables:
        equal("ENTRIES", sb.label, len(entries), sb.variables["ENTRIES"])
    if "AENTRIES" in sb.variables:
        equal("AENTRIES", sb.label, len(entries) - dead, sb.variables["AENTRIES"])


def read_entry(sb: Superblock, pos: int) -> Entry:
    where = f"{sb.label} byte {pos}"
    after = pos
    delflag = 0
    if sb.get("KVDELFL", 0) == 1:
        delflag = sb.raw[pos]
        expect(delflag in (0, 1), "delflag", where, "0 or 1", delflag)
        after = pos + 1
    body = after
    key, after = read_string(sb, after, sb.need("KEYREPR"), "KEYREPR")
    value, after = read_string(sb, after, sb.need("VALREPR"), "VALREPR")
    if sb.get("KVCKSUM", 0) == 1:
        stored = take(sb, after, 4, "KVCKSUM")
        seed = (sb.get("CONTID", 0) + pos) & LOW64
        digest = xxhash.xxh3_64_intdigest(sb.raw[body:after], seed=seed)
        equal("KVCKSUM", where, (digest & 0xFFFFFFFF).to_bytes(4, "big").hex(), stored.hex())
        after += 4
    expect(after > pos, "entry size", where, "one byte or more", 0)
    return Entry(pos, after, delflag, key, value)


def take(sb: Superblock, pos: int, size: int, what: str) -> bytes:
    """`size` bytes at `pos`, which must all lie before FILESIZE."""
    if pos + size > sb.filesize:
        where = f"{sb.label} byte {pos}, {what}"
        raise OracleError("FILESIZE", where, f"an entry that ends by {sb.filesize}", pos + size)
    return sb.raw[pos : pos + size]


def read_string(sb: Superblock, pos: int, representation: int, what: str) -> tuple[bytes, int]:
    """One key or value, and the offset behind it."""
    if 0 <= representation <= 3:
        width = 1 << representation
        size = int.from_bytes(take(sb, pos, width, what), "big")
        return take(sb, pos + width, size, what), pos + width + size
    if 4 <= representation <= 259:
        size = representation - 4
        return take(sb, pos, size, what), pos + size
    where = f"{sb.label} byte {pos}"
    expect(260 <= representation <= 514, what, sb.label, "0 to 514", representation)
    room = representation - 259
    size = take(sb, pos, 1, what)[0]
    expect(size <= room, what, where, f"a length <= {room}", size)
    field = take(sb, pos + 1, room, what)
    equal(f"{what} padding", where, bytes(room - size), field[size:])
    return field[:size], pos + 1 + room


# --- hashes ------------------------------------------------------------------------------------


def hash_key(label: str, algorithm: int, key: bytes) -> tuple[int, int]:
    """(low 63 bits that give the slot, S): both as unsigned integers."""
    if algorithm == 1:
        digest = hashlib.md5(key).digest()
        return int.from_bytes(digest, "big") & LOW63, int.from_bytes(digest[:8], "big")
    if algorithm == 2:
        stored = xxhash.xxh3_64_intdigest(key)
        return stored & LOW63, stored
    expect(algorithm == 3, "HTALGO", label, "1, 2 or 3", algorithm)
    stored = int.from_bytes(mmh3.hash_bytes(key, 0, True)[:8], "little")
    return stored & LOW63, stored
