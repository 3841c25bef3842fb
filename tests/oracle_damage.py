"""Plants one fault in a good container, and makes the checksums above it right again.

Used by the oracle's self test: a fault must be found by its own rule, not by a checksum over it.
"""

import struct
from pathlib import Path
from typing import Self

import xxhash
from oracle_format import Entry
from oracle_inode import checksum
from oracle_pack import pack_superblock
from oracle_read import Tree, check

FIELDS = {"CKSUM": 0, "NEXTI": 8, "FILEID": 16, "LSIZE": 24, "FTYPE": 32, "FMTIME": 40}
FIELDS |= {"DCOUNT": 48, "PAIRS": 56}


def number(value: int) -> bytes:
    return struct.pack(">q", value)


class Damage:
    """A good container, open for faults."""

    def __init__(self, base: Path, tree: Tree | None = None) -> None:
        self.base = base
        self.tree = tree or check(base)
        self.kvcksum = self.tree.superblock.get("KVCKSUM", 0)

    def path(self, suffix: str) -> Path:
        return self.base.with_name(self.base.name + suffix)

    def patch(self, suffix: str, offset: int, data: bytes) -> Self:
        path = self.path(suffix)
        raw = bytearray(path.read_bytes())
        raw[offset : offset + len(data)] = data
        path.write_bytes(raw)
        return self

    def append(self, suffix: str, data: bytes) -> Self:
        path = self.path(suffix)
        path.write_bytes(path.read_bytes() + data)
        return self

    def cut(self, suffix: str, size: int) -> Self:
        path = self.path(suffix)
        path.write_bytes(path.read_bytes()[:size])
        return self

    # --- superblock

    def variables(self, suffix: str) -> dict[str, int]:
        raw = self.path(suffix).read_bytes()
        found = {}
        for pos in range(8, 4096, 16):
            if raw[pos : pos + 8] == bytes(8):
                break
            name = raw[pos : pos + 8].decode().strip()
            found[name] = struct.unpack(">q", raw[pos + 8 : pos + 16])[0]
        return found

    def set(self, suffix: str, **changes: int | None) -> Self:
        """Change, add or (None) take away variables; SBCKSUM is made right."""
        variables = self.variables(suffix)
        for name, value in changes.items():
            if value is None:
                del variables[name]
            else:
                variables[name] = value
        purpose = number(variables["PURPOSE"])
        sealed = "SBCKSUM" in variables
        self.patch(suffix, 0, pack_superblock(variables, purpose, sealed))
        return self

    def add(self, suffix: str, **changes: int) -> Self:
        """Add to variables."""
        now = self.variables(suffix)
        self.set(suffix, **{name: now[name] + more for name, more in changes.items()})
        return self

    # --- entries

    def entry(self, key: bytes) -> Entry:
        """The last entry with this key."""
        return next(entry for entry in reversed(self.tree.entries) if entry.key == key)

    def pos(self, key: bytes) -> int:
        return self.entry(key).pos

    def value_start(self, entry: Entry) -> int:
        return entry.end - len(entry.value) - (4 if self.kvcksum else 0)

    def value(self, key: bytes, offset: int, data: bytes) -> None:
        """Change a value; KVCKSUM is made right."""
        entry = self.entry(key)
        self.patch(".data", self.value_start(entry) + offset, data)
        self.seal(entry)

    def rename_key(self, key: bytes, new: bytes) -> None:
        """Another key of the same length; KVCKSUM is made right."""
        assert len(key) == len(new)
        entry = self.entry(key)
        raw = self.path(".data").read_bytes()
        self.patch(".data", raw.index(key, entry.pos), new)
        self.seal(entry)

    def seal(self, entry: Entry) -> None:
        if self.kvcksum:
            raw = self.path(".data").read_bytes()
            seed = (self.tree.superblock.get("CONTID", 0) + entry.pos) % 2**64
            digest = xxhash.xxh3_64(raw[entry.pos + 1 : entry.end - 4], seed=seed).digest()
            self.patch(".data", entry.end - 4, digest[4:])

    def inode(self, name: bytes, field: str, data: int | bytes, offset: int = 0) -> None:
        """Change a field of the live inode; its CKSUM is made right."""
        key = name + b"/I0"
        packed = data if isinstance(data, bytes) else number(data)
        self.value(key, FIELDS[field] + offset, packed)
        if field == "CKSUM":
            return
        start = self.value_start(self.entry(key))
        raw = self.path(".data").read_bytes()
        value = raw[start : start + len(self.entry(key).value)]
        count = struct.unpack(">q", value[48:56])[0]
        width = 24 if self.tree.superblock.get("PAIROFF", 0) else 16
        covered = value[8 : 56 + count * width]
        self.value(key, 0, checksum(self.tree.superblock, covered))

    # --- index

    def slot_start(self, slot: int) -> int:
        index = self.tree.index
        assert index is not None
        return index.superblock.sbsize + slot * 8 * len(index.cells[0])

    def find_slot(self, pointer: int) -> int:
        """The first slot that holds this word."""
        index = self.tree.index
        assert index is not None
        return next(slot for slot, cell in enumerate(index.cells) if cell[0] == pointer)

    def cell(self, slot: int, *words: int) -> Self:
        self.patch(".idx", self.slot_start(slot), b"".join(number(word) for word in words))
        return self
