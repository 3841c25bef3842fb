"""Superblock: the settings and variables at the start of every file.

    offset         size  field
    0              8     magic "#!WINKME"
    8 + 16 i       8     name of variable i, ASCII, padded right with spaces
    16 + 16 i      8     its value, int64
    8 + 16 n       8     zeros: the end of the list
    ..             ..    zeros up to SBSIZE

Big-endian. SBSIZE, FORMAT, PURPOSE are the first three variables, in that order; unknown variables
are kept. SBCKSUM, if present, is XXH3-64 of the SBSIZE bytes with its own value as zero.
A file of at most 31 variables has them in its first 512 bytes, one sector.

With the variable SBSEQ there are two superblocks: SBSIZE is 8192, each half is a superblock (magic,
variables, end, zeros) whose SBCKSUM covers that half, and of the intact ones that with the higher
SBSEQ is valid.

WRITER, if present, is the version of winkfs that last wrote the superblock, as text. It is for
messages only, and left out if the sector has no room for it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping
from typing import Final, Self

import xxhash

from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, FormatError, NewerFormat
from winkformats.version import VERSION

MAGIC: Final = b"#!WINKME"
PAIR: Final = struct.Struct(">8sq")
assert PAIR.size == 16

KVSEQ: Final = 0x10
HINDEX: Final = 0x20
PERM: Final = 0x30
FORMAT_NAMES: Final = {KVSEQ: "kvseq", HINDEX: "hindex", PERM: "perm"}

SBSIZE: Final = 4096
FILEINCR: Final = 4 << 20  # bytes by which a file grows on the disk, by default
MAX_SBSIZE: Final = 1 << 26  # bytes; a larger claim is damage, not a file to allocate for
MAX_SBSEQ: Final = 1 << 62  # far from an overflow of 64 bits
HALF: Final = 4096  # bytes of each of two superblocks
SECTOR: Final = 512
MAX_VARIABLES: Final = 31  # that fit into a sector
WRITER: Final = "WRITER"
TEXTS: Final = ("PURPOSE", WRITER)  # variables whose values are text

INCOMPAT_BITS: Final = {
    1: "KVCKSUM",
    2: "MTIMENS",
    4: "hole pairs",
    8: "PAIROFF",
    16: "ATTRS",
    32: "compressed content",
    64: "INCHAIN",
}
KNOWN_INCOMPAT: Final = 1 | 2 | 4 | 8 | 16 | 32 | 64


def text_value(text: str) -> int:
    """Encode a text such as PURPOSE: 8 ASCII bytes, padded right with NUL, as int64."""
    raw = text.encode("ascii")
    if len(raw) > 8:
        raise ValueError(f"{text!r} is longer than 8 bytes")
    return int.from_bytes(raw.ljust(8, b"\0"), "big", signed=True)


def value_text(value: int) -> str:
    """Decode a text variable without trailing NULs and spaces."""
    return value.to_bytes(8, "big", signed=True).rstrip(b"\0 ").decode("ascii", "replace")


WRITTEN_BY: Final = {WRITER: text_value(VERSION[:8])}
"""The variable of this version that writers add, see `Superblock.note_writer`."""


class Superblock(dict[str, int]):
    """The variables of one file, in file order.

    A dict of name -> int64. Missing variables are missing keys, so callers give a default to `get`.

    damage      damage of the other one of two superblocks; None: it is intact
    second      whether this is the second of two
    first_lost  whether the first one cannot be read, which may have recorded a later sync
    late        whether the second is intact and older: a power cut came before it was durable
    used        bytes of the sectors that variables fill in the file; as many are always written
    """

    damage: FormatError | None = None
    second = False
    first_lost = False
    late = False
    used = 0

    @classmethod
    def new(
        cls, form: int, purpose: str, variables: Mapping[str, int], sbsize: int = SBSIZE
    ) -> Self:
        """Return the variables of a new file; FILESIZE, the first one that changes, is fourth."""
        block = cls(SBSIZE=sbsize, FORMAT=form, PURPOSE=text_value(purpose), FILESIZE=sbsize)
        block.update(variables)
        return block

    @property
    def purpose(self) -> str:
        return value_text(self["PURPOSE"])

    def record(self) -> dict[str, int | str]:
        """Return all variables for display, those of TEXTS as text."""
        return self | {name: value_text(self[name]) for name in TEXTS if name in self}

    def note_writer(self, more: Iterable[str] = ()) -> Self:
        """Record the version that writes the file, if there is room in the sector; return self.

        more  variables that are about to be added
        """
        if WRITER in self or len(self.keys() | set(more)) < MAX_VARIABLES:
            self.update(WRITTEN_BY)
        return self

    @property
    def double(self) -> bool:
        """True if the file has two superblocks."""
        return "SBSEQ" in self

    def encode(self) -> bytes:
        """Encode to bytes[SBSIZE], or to the HALF that is one of two.

        raises  ValueError if the variables do not fit or are no int64
        """
        double = "SBSEQ" in self
        size = HALF if double else self["SBSIZE"]
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
        if double and self["SBSIZE"] != 2 * HALF:
            raise ValueError(f"two superblocks need SBSIZE {2 * HALF}, not {self['SBSIZE']}")
        if "SBCKSUM" in self:
            at = 16 + 16 * list(self).index("SBCKSUM")
            out[at : at + 8] = bytes(8)
            out[at : at + 8] = xxhash.xxh3_64_digest(out)
            self["SBCKSUM"] = int.from_bytes(out[at : at + 8], "big", signed=True)
        return bytes(out)

    def images(self) -> list[bytes]:
        """Return the SBSIZE bytes of a new file, in parts. Raises ValueError as `encode`."""
        return [self.encode()] * (2 if self.double else 1)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Self:
        """Decode and check a superblock, of two the valid one with `damage` of the other.

        data    at least SBSIZE bytes
        raises  FormatError
        """
        try:
            first = cls._decode(data, 0, file)
        except FormatError as error:
            with contextlib.suppress(FormatError):  # if both are damaged, report the first
                second = cls._decode(data, HALF, file)
                second.damage, second.second, second.first_lost = error, True, True
                return second
            raise
        if "SBSEQ" not in first or data[:HALF] == data[HALF : 2 * HALF]:
            return first
        try:
            second = cls._decode(data, HALF, file)
        except FormatError as error:
            first.damage = error
            return first
        first.used = second.used = max(first.used, second.used)
        if second["SBSEQ"] <= first["SBSEQ"]:
            first.late = second["SBSEQ"] < first["SBSEQ"]
            return first
        # The first is always written first: if it is older, the disk lost a write.
        second.second = True
        second.damage = CorruptError(
            "SBSEQ of an older superblock", file=file, offset=0,
            expected=second["SBSEQ"], found=first["SBSEQ"],
        )  # fmt: skip
        return second

    @classmethod
    def _decode(cls, whole: bytes, at: int, file: str) -> Self:
        """Decode the superblock at offset `at`, 0 or HALF."""
        data = whole[at:]
        if len(data) < 24 or data[:8] != MAGIC:
            what = "empty" if not data else "not a wink file (no #!WINKME at its start)"
            raise FormatError(f"{file}: {what}")
        block = cls()
        size = PAIR.unpack_from(data, 8)[1]
        if PAIR.unpack_from(data, 8)[0] != b"SBSIZE  " or not 64 <= size <= MAX_SBSIZE:
            raise CorruptError(
                "SBSIZE is not a sane first variable", file=file, offset=8, found=data[8:24].hex()
            )
        if len(whole) < min(size, HALF):
            raise _cut(whole, size, file)
        block._take_variables(data[:size], file, at)
        if list(block)[:3] != ["SBSIZE", "FORMAT", "PURPOSE"]:
            raise CorruptError(
                "first variables must be SBSIZE, FORMAT, PURPOSE",
                file=file, offset=at + 8, found=", ".join(list(block)[:3]),
            )  # fmt: skip
        double = "SBSEQ" in block
        if double and (size != 2 * HALF or "SBCKSUM" not in block):
            raise CorruptError("two superblocks need SBSIZE 8192 and SBCKSUM", file=file, offset=at,
                               found=size)  # fmt: skip
        if double and not 0 <= block["SBSEQ"] < MAX_SBSEQ:
            raise CorruptError("SBSEQ", file=file, offset=at, found=block["SBSEQ"])
        if len(data) < (HALF if double else size):
            raise _cut(whole, size, file)
        if at and not double:
            raise CorruptError("no second superblock", file=file, offset=at)
        block._check_sum(data[: HALF if double else size], file, at)
        _used(block)
        return block

    def _take_variables(self, data: bytes, file: str, start: int) -> None:
        """Add the variables of a superblock. Raises CorruptError if `encode` cannot write them."""
        for at in range(8, len(data), 16):
            if data[at : at + 8] == bytes(8):
                return
            if at + 16 > len(data):
                break
            raw, value = PAIR.unpack_from(data, at)
            name = raw.rstrip(b" \0").decode("ascii", "replace")
            if not (name.isascii() and name.isprintable() and name):
                raise CorruptError(
                    "not the name of a variable", file=file, offset=start + at, found=raw
                )
            if name in self:
                raise CorruptError(f"variable {name} occurs twice", file=file, offset=start + at)
            self[name] = value
        raise CorruptError("superblock has no end", file=file, offset=start + len(data))

    def _check_sum(self, data: bytes, file: str, start: int) -> None:
        if "SBCKSUM" not in self:
            return
        at = 16 + 16 * list(self).index("SBCKSUM")
        image = bytearray(data)
        image[at : at + 8] = bytes(8)
        found = int.from_bytes(xxhash.xxh3_64_digest(image), "big", signed=True)
        if found != self["SBCKSUM"]:
            raise CorruptError(
                "superblock checksum is wrong", file=file, offset=start + at,
                expected=self["SBCKSUM"], found=found,
            )  # fmt: skip

    def check_known(self, file: str) -> None:
        """Raise NewerFormat if the file needs an extension that this version does not know."""
        unknown = self.get("INCOMPAT", 0) & ~KNOWN_INCOMPAT
        if unknown:
            bit = unknown & -unknown
            name = INCOMPAT_BITS.get(bit, "unknown")
            newer = f"winkfs {value_text(self[WRITER])}" if WRITER in self else "a newer version"
            raise NewerFormat(
                f"{file}: needs extension {bit} ({name}), which this version of winkfs cannot "
                f"read: install {newer}"
            )


def _cut(whole: bytes, size: int, file: str) -> CorruptError:
    return CorruptError(
        "superblock cut short", file=file, offset=len(whole), expected=size, found=len(whole)
    )


def read_superblock(storage: Storage, *, tries: int = 100) -> Superblock:
    """Read until two reads agree and the block is intact, because a writer may be writing it.

    raises  FormatError: no superblock, or still a damaged one after `tries` reads
    cost    two reads of SBSIZE bytes; `tries` reads if one of two superblocks is damaged
    """
    last = _read_once(storage)
    for _ in range(tries):
        again = _read_once(storage)
        if again == last:
            with contextlib.suppress(FormatError):  # torn: a writer may be in the middle of it
                block = Superblock.decode(again, file=storage.name)
                if block.damage is None:
                    return block
        last = again
    return Superblock.decode(storage.read(0, max(len(last), 2 * HALF)), file=storage.name)


def _read_once(storage: Storage) -> bytes:
    data = storage.read(0, 2 * HALF)  # if the first is damaged, the second may be intact
    if data[8:16] == b"SBSIZE  ":
        size = PAIR.unpack_from(data.ljust(24, b"\0"), 8)[1]
        if 2 * HALF < size <= MAX_SBSIZE:
            return storage.read(0, size)
        if 64 <= size <= HALF:
            return data[:size]  # entries after it may be changing
    return data


def superblocks(storage: Storage) -> list[Superblock]:
    """Return the intact superblocks of a file, one or two, in file order.

    raises  FormatError if none is intact
    """
    newest = read_superblock(storage)
    if not newest.double:
        return [newest]
    data, found = storage.read(0, 2 * HALF), []
    for at in (0, HALF):
        with contextlib.suppress(FormatError):
            found.append(Superblock._decode(data, at, storage.name))
    return found


def write_first(storage: Storage, block: Superblock) -> None:
    """Write a superblock, not synced; of two the first, with the next SBSEQ."""
    if block.double:
        block["SBSEQ"] += 1
    storage.write(0, [_sectors(block)])


def write_second(storage: Storage, block: Superblock) -> None:
    """Write the second of two superblocks, if there are two, once the first is on the disk."""
    if block.double:
        storage.write(HALF, [_sectors(block)])
        block.damage, block.second, block.first_lost, block.late = None, False, False, False


def renew_second(storage: Storage, block: Superblock) -> None:
    """Write the first superblock over a second one that is older, before the first is written
    again: should that be torn, the last sync is in the second. Durable with the next sync."""
    storage.write(HALF, [storage.read(0, _used(block))])
    block.late = False


def repeat(storage: Storage, block: Superblock) -> None:
    """Write all superblocks again as they are read: after a failed sync they may be torn or old on
    the disk, but clean in the page cache, so that no later sync would write them."""
    for at in (0, HALF)[: 1 + block.double]:
        storage.write(at, [storage.read(at, _used(block))])


def _sectors(block: Superblock) -> bytes:
    """Return the sectors that the variables fill, or filled before; all sectors after damage."""
    return block.encode()[: None if block.damage else _used(block)]


def _used(block: Superblock) -> int:
    block.used = max(block.used, -(-(8 + 16 * len(block) + 8) // SECTOR) * SECTOR)
    return block.used
