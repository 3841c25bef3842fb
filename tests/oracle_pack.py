"""Packing for the oracle's writer: strings, superblocks, hindex, perm; from the documents alone."""

import struct

import xxhash
from oracle_format import hash_key

NEW = {
    "KVDELFL": 1,
    "KEYREPR": 1,
    "VALREPR": 2,
    "ISZ": 128,
    "HAVEDUPS": 0,
    "HTALGO": 2,
    "CELLSZ": 2,
    "HTFREE": 0,
    "HTDEL": 1,
    "KVCKSUM": 1,
    "CKALGO": 2,
    "MTIMENS": 1,
    "PAIROFF": 1,
    "ATTRS": 1,
    "INCOMPAT": 1 | 2 | 4 | 8 | 16,
    "CONTID": 0x0123456789ABCDEF,
    "NEXTFID": 1,
    "SBCKSUM": 0,
}
CLASSIC = {
    "KVDELFL": 1,
    "KEYREPR": 1,
    "VALREPR": 2,
    "ISZ": 128,
    "HAVEDUPS": 0,
    "HTALGO": 1,
    "CELLSZ": 1,
    "HTFREE": 0,
    "HTDEL": 1,
}


def pack_string(data: bytes, representation: int) -> bytes:
    """A key or value as KEYREPR or VALREPR has it."""
    if representation < 4:
        return len(data).to_bytes(1 << representation, "big") + data
    if representation < 260:
        assert len(data) == representation - 4, "fixed length"
        return data
    room = representation - 259
    assert len(data) <= room, "longer than the field"
    return bytes([len(data)]) + data + bytes(room - len(data))


def pack_superblock(variables: dict[str, int], purpose: bytes, checksummed: bool) -> bytes:
    """SBSIZE bytes; `purpose` stands in the place of the variable's number. SBSEQ: two halves."""
    variables = dict(variables)
    variables["PURPOSE"] = int.from_bytes(purpose.ljust(8, b"\0"), "big")
    if checksummed:
        variables["SBCKSUM"] = 0
    block = b"#!WINKME"
    for name, value in variables.items():
        block += name.encode().ljust(8) + struct.pack(">q", value)
    block += bytes(8)
    halves = 2 if "SBSEQ" in variables else 1
    assert len(block) <= variables["SBSIZE"] // halves
    block += bytes(variables["SBSIZE"] // halves - len(block))
    if checksummed:
        digest = xxhash.xxh3_64_digest(block)
        at = block.index(b"SBCKSUM ") + 8
        block = block[:at] + digest + block[at + 8 :]
    return block * halves


def slot_and_word(key: bytes, algorithm: int, htsize: int) -> tuple[int, bytes]:
    """(slot, the eight bytes S) of a key."""
    low63, stored = hash_key("", algorithm, key)
    return low63 % htsize, stored.to_bytes(8, "big")


def pack_hindex(
    variables: dict[str, int], purpose: bytes, keys: list[tuple[bytes, int | None]], user: int = 0
) -> bytes:
    """A whole hindex file. keys: in the order of insertion, None for the ones deleted since."""
    htsize, cellsz = variables["HTSIZE"], variables["CELLSZ"]
    free, deleted = variables.get("HTFREE", 0), variables.get("HTDEL", 1)
    cells: list[tuple[int, bytes] | None] = [None] * htsize
    for key, pointer in keys:
        slot, word = slot_and_word(key, variables["HTALGO"], htsize)
        while cells[slot] is not None:
            slot = (slot + 1) % htsize
        words = (word + struct.pack(">q", user) * (cellsz - 1))[: 8 * (cellsz - 1)]
        cells[slot] = (deleted, bytes(8 * (cellsz - 1))) if pointer is None else (pointer, words)
    body = b""
    for cell in cells:
        pointer, words = cell or (free, bytes(8 * (cellsz - 1)))
        body += struct.pack(">q", pointer) + words
    size = variables["SBSIZE"] + len(body)
    variables = dict(variables)
    variables["ENTRIES"] = len(keys)
    variables["AENTRIES"] = sum(pointer is not None for _, pointer in keys)
    variables["FILESIZE"] = size
    return pack_superblock(variables, purpose, "SBCKSUM" in variables) + body


def pack_catalog(variables: dict[str, int], rows: dict[bytes, list[int]], each: int = 3) -> bytes:
    """A whole BASE.cat of one run, of blocks of `each` rows: all widths 8, no name cut short."""
    start, contid = variables["SBSIZE"], variables["CONTID"]
    body, parts, firsts = b"", b"", list[bytes]()

    def append(key: bytes, value: bytes) -> tuple[int, int, int]:
        nonlocal body
        body += bytes(-len(body) % 8)
        pos = start + len(body)
        entry = key + len(value).to_bytes(8, "big") + value
        sum32 = xxhash.xxh3_64(entry, seed=(contid + pos) % 2**64).digest()[-4:]
        body += entry + sum32
        hashed = int.from_bytes(xxhash.xxh3_64_digest(value), "little", signed=True)
        return pos + 16, len(value), hashed

    names = sorted(rows)
    for at in range(0, len(names), each):
        some = names[at : at + each]
        table = [list(rows[name]) for name in some]
        numbers = [(min(column), max(column)) for column in zip(*table, strict=True)]
        kinds = sum({1 << (row[6] & 63) for row in table})
        stats = [len(some), 0, sum(row[2] for row in table), *numbers[0], *numbers[2], *numbers[3]]
        firsts.append(some[0])
        for row in table:
            row[4] = row[0] - row[4] - row[2] if row[4] > 0 else row[4]
            row[5] -= row[3]
        columns = [*zip(*table, strict=True), [0] * len(some), [len(name) for name in some]]
        value = struct.pack("<2Q", len(some), sum(map(len, some)))
        value += b"".join(struct.pack("<qQ", 0, 8) for _ in columns)
        value += b"".join(struct.pack("<q", number) for column in columns for number in column)
        placed = append(b"b/000000", value + b"".join(some))
        parts += struct.pack("<12qQ3q", *placed, *stats, kinds, 0, 0, 0)
    index = struct.pack("<2Q", len(firsts), sum(map(len, firsts))) + parts
    index += b"".join(struct.pack("<I", len(first)) for first in firsts) + b"".join(firsts)
    runs = append(b"r/000000", struct.pack("<4q", *append(b"i/000000", index), len(names)))
    entries = len(firsts) + 2
    shape = {"KVDELFL": 0, "KEYREPR": 12, "VALREPR": 3, "ALIGN": 8, "KVCKSUM": 1, "INCOMPAT": 1}
    variables = variables | shape | {"ENTRIES": entries, "AENTRIES": entries, "CLASHES": 0}
    variables |= dict(zip(("RUNS", "RUNBYTES", "RUNHASH"), runs, strict=True))
    variables["FILESIZE"] = start + len(body)
    return pack_superblock(variables, b"FSYSCAT", checksummed=True) + body


def pack_perm(variables: dict[str, int], purpose: bytes, keys: list[tuple[bytes, int]]) -> bytes:
    """A whole perm file of (key, kv_pointer)."""
    body = b""
    for key, pointer in keys:
        modulus = variables.get("HTSIZE", 0) or 2**63
        slot, _ = slot_and_word(key, variables["HTALGO"], modulus)
        body += struct.pack(">2q", pointer, slot)
    variables = dict(variables, PERMSIZE=len(keys), FILESIZE=variables["SBSIZE"] + len(body))
    return pack_superblock(variables, purpose, "SBCKSUM" in variables) + body
