"""Superblock: the settings and variables at the start of every file.

    offset         size  field
    0              8     magic "#!WINKME"
    8 + 16 i       8     name of variable i, ASCII, padded right with spaces
    16 + 16 i      8     its value, int64
    8 + 16 n       8     zeros: the end of the list
    ..             ..    zeros up to SBSIZE

Big-endian. SBSIZE, FORMAT, PURPOSE are the first three variables, in that order; unknown variables
are kept. SBCKSUM, where it stands, is XXH3-64 of the SBSIZE bytes with its own value as zero.
A file of at most 31 variables keeps them all in its first 512 bytes, one sector.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from typing import Final, Self

import xxhash

from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, FormatError

MAGIC: Final = b"#!WINKME"
PAIR: Final = struct.Struct(">8sq")
assert PAIR.size == 16

KVSEQ: Final = 0x10
HINDEX: Final = 0x20
PERM: Final = 0x30
FORMAT_NAMES: Final = {KVSEQ: "kvseq", HINDEX: "hindex", PERM: "perm"}

SBSIZE: Final = 4096
MAX_SBSIZE: Final = 1 << 26  # bytes; a larger claim is damage, not a file to allocate for
FILESIZE_OFFSET: Final = 64  # of the value, where FILESIZE is the fourth variable, as we write it

INCOMPAT_BITS: Final = {
    1: "KVCKSUM",
    2: "MTIMENS",
    4: "hole pairs",
    8: "PAIROFF",
    16: "ATTRS",
    32: "compressed content",
}
KNOWN_INCOMPAT: Final = 1 | 2 | 4 | 8 | 16


def text_value(text: str) -> int:
    """A string variable such as PURPOSE: 8 ASCII bytes, padded right with NUL, as int64."""
    raw = text.encode("ascii")
    if len(raw) > 8:
        raise ValueError(f"{text!r} is longer than 8 bytes")
    return int.from_bytes(raw.ljust(8, b"\0"), "big", signed=True)


def value_text(value: int) -> str:
    """The inverse of `text_value`; trailing NULs and spaces go."""
    return value.to_bytes(8, "big", signed=True).rstrip(b"\0 ").decode("ascii", "replace")


class Superblock(dict[str, int]):
    """The variables of one file, in file order.

    A dict of name -> int64. Missing variables are missing keys: `get` says the default on the spot.
    """

    @classmethod
    def new(
        cls, form: int, purpose: str, variables: Mapping[str, int], sbsize: int = SBSIZE
    ) -> Self:
        """The variables of a new file; FILESIZE comes fourth, as the first that changes."""
        block = cls(SBSIZE=sbsize, FORMAT=form, PURPOSE=text_value(purpose), FILESIZE=sbsize)
        block.update(variables)
        return block

    @property
    def purpose(self) -> str:
        return value_text(self["PURPOSE"])

    def encode(self) -> bytes:
        """-> bytes[SBSIZE]. Raises ValueError where the variables do not fit or are no int64."""
        size = self["SBSIZE"]
        if 8 + 16 * len(self) + 8 > size:
            raise ValueError(f"{len(self)} variables do not fit into SBSIZE {size}")
        out = bytearray(size)
        out[:8] = MAGIC
        for i, (name, value) in enumerate(self.items()):
            key = name.encode("ascii").ljust(8)
            if len(key) != 8 or not name.strip():
                raise ValueError(f"variable name {name!r} must be 1 to 8 ASCII characters")
            try:
                PAIR.pack_into(out, 8 + 16 * i, key, value)
            except struct.error:
                raise ValueError(f"{name}={value} does not fit into 64 bits") from None
        if "SBCKSUM" in self:
            at = 16 + 16 * list(self).index("SBCKSUM")
            out[at : at + 8] = bytes(8)
            out[at : at + 8] = xxhash.xxh3_64_digest(out)
            self["SBCKSUM"] = int.from_bytes(out[at : at + 8], "big", signed=True)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Self:
        """Parse and check. `data` holds at least the SBSIZE bytes. Raises FormatError."""
        if len(data) < 24 or data[:8] != MAGIC:
            what = "empty" if not data else "not a wink file (no #!WINKME at its start)"
            raise FormatError(f"{file}: {what}")
        block = cls()
        size = PAIR.unpack_from(data, 8)[1]
        if PAIR.unpack_from(data, 8)[0] != b"SBSIZE  " or not 64 <= size <= MAX_SBSIZE:
            raise CorruptError(
                "SBSIZE is not a sane first variable", file=file, offset=8, found=data[8:24].hex()
            )
        if len(data) < size:
            raise CorruptError("superblock cut short", file=file, offset=len(data), expected=size)
        block._take_variables(data[:size], file)
        if list(block)[:3] != ["SBSIZE", "FORMAT", "PURPOSE"]:
            raise CorruptError(
                "first variables must be SBSIZE, FORMAT, PURPOSE",
                file=file, offset=8, found=", ".join(list(block)[:3]),
            )  # fmt: skip
        block._check_sum(data[:size], file)
        return block

    def _take_variables(self, data: bytes, file: str) -> None:
        """Add the variables of a superblock. Raises CorruptError for what `encode` cannot write."""
        for at in range(8, len(data), 16):
            if data[at : at + 8] == bytes(8):
                return
            if at + 16 > len(data):
                break
            raw, value = PAIR.unpack_from(data, at)
            name = raw.rstrip(b" \0").decode("ascii", "replace")
            if not (name.isascii() and name.isprintable() and name):
                raise CorruptError("not the name of a variable", file=file, offset=at, found=raw)
            if name in self:
                raise CorruptError(f"variable {name} stands twice", file=file, offset=at)
            self[name] = value
        raise CorruptError("superblock has no end", file=file, offset=len(data))

    def _check_sum(self, data: bytes, file: str) -> None:
        if "SBCKSUM" not in self:
            return
        at = 16 + 16 * list(self).index("SBCKSUM")
        image = bytearray(data)
        image[at : at + 8] = bytes(8)
        found = int.from_bytes(xxhash.xxh3_64_digest(image), "big", signed=True)
        if found != self["SBCKSUM"]:
            raise CorruptError(
                "superblock checksum is wrong", file=file, offset=at,
                expected=self["SBCKSUM"], found=found,
            )  # fmt: skip

    def check_known(self, file: str) -> None:
        """Refuse a file that needs an extension this version does not know. Raises FormatError."""
        unknown = self.get("INCOMPAT", 0) & ~KNOWN_INCOMPAT
        if unknown:
            bit = unknown & -unknown
            name = INCOMPAT_BITS.get(bit, "unknown")
            raise FormatError(
                f"{file}: needs extension {bit} ({name}), which this version of winkfs cannot read"
            )


def read_superblock(storage: Storage, *, tries: int = 100) -> Superblock:
    """Read until two reads agree and the block is good, for a writer may be at it.

    raises  FormatError: no superblock, or still a bad one after `tries` reads
    cost    two reads of SBSIZE bytes
    """
    last = _read_once(storage)
    for _ in range(tries):
        again = _read_once(storage)
        if again == last:
            with contextlib.suppress(FormatError):  # torn: a writer may have stopped half-way
                return Superblock.decode(again, file=storage.name)
        last = again
    return Superblock.decode(last, file=storage.name)


def _read_once(storage: Storage) -> bytes:
    data = storage.read(0, SBSIZE)
    if data[8:16] == b"SBSIZE  ":
        size = PAIR.unpack_from(data.ljust(24, b"\0"), 8)[1]
        known = SBSIZE < size <= MAX_SBSIZE
        data = storage.read(0, size) if known else data[: max(size, 64)]
    return data
