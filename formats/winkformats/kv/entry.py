"""Entry: the bytes of one (delflag, key, value) of a kvseq.

    part      size            present
    delflag   1               KVDELFL 1; 0 live, 1 deleted
    key       see below
    value     see below
    checksum  4               KVCKSUM 1; low 32 bits of XXH3-64 over key and value parts,
                              seed (CONTID + position of the entry) mod 2^64

    KEYREPR / VALREPR r    layout
    0, 1, 2, 3             length as uint8, 16, 32, 64, then the bytes
    4 .. 259               exactly r - 4 bytes
    260 .. 514             length as uint8, then r - 259 bytes, the unused ones zero

Big-endian. Under ALIGN a an entry starts at a multiple of a; skipped bytes are zero.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.disk.storage import Buffer
from winkformats.errors import CorruptError, FormatError
from winkformats.hashing import xxh3_at, xxh3_many

PREFIXES: Final = (
    struct.Struct(">B"),
    struct.Struct(">H"),
    struct.Struct(">I"),
    struct.Struct(">Q"),
)
EMPTY: Final = 4  # KEYREPR or VALREPR of empty strings
PROBE: Final = 4096  # bytes read first of an entry of unknown length
Read = Callable[[int, int], bytes | memoryview]
"""Function of offset and length that returns these bytes, fewer only at the end of the file."""
from_bytes: Final = int.from_bytes
MASK64: Final = (1 << 64) - 1
MAX_ALIGN: Final = 1 << 26  # bytes; a larger claim is damage, not zeros to write


class Field(NamedTuple):
    """The representation of a key or a value.

    prefix  bytes of the length before it, 0 for a fixed length
    room    bytes that every string takes; -1: as many as it has
    limit   longest string it can hold, bytes
    """

    code: int
    prefix: int
    room: int
    limit: int

    @classmethod
    def of(cls, code: int, what: str = "KEYREPR", file: str = "") -> Self:
        if 0 <= code < 4:
            prefix = 1 << code
            return cls(code, prefix, -1, min((1 << (8 * prefix)) - 1, (1 << 63) - 1))
        if 4 <= code <= 259:
            return cls(code, 0, code - 4, code - 4)
        if 260 <= code <= 514:
            return cls(code, 1, code - 259, code - 259)
        raise FormatError(f"{file}: {what} {code} is not defined (0 to 514)".lstrip(": "))

    def encode(self, data: bytes) -> bytes:
        """Return prefix, bytes and padding. Raises ValueError if `data` cannot be represented."""
        n = len(data)
        return self.prefix_of(n) + data + bytes(self.room - n if self.room > n else 0)

    def prefix_of(self, n: int) -> bytes:
        """Return the prefix of a string of `n` bytes. Raises ValueError if none is possible."""
        if n > self.limit or (self.prefix == 0 and n != self.room):
            need = f"exactly {self.room}" if self.prefix == 0 else f"at most {self.limit}"
            raise ValueError(f"{n} bytes do not fit: the file takes {need}")
        return PREFIXES[self.prefix.bit_length() - 1].pack(n) if self.prefix else b""

    def size(self, length: int) -> int:
        """Return the bytes that a string of `length` takes."""
        return self.prefix + (length if self.room < 0 else self.room)


class KVEntry(NamedTuple):
    """One entry. `pos` and `size` are bytes; padding before the entry is not part of it."""

    pos: int
    deleted: bool
    key: bytes
    value: bytes
    size: int


class Span(NamedTuple):
    """Places of the parts of an entry: offsets in a buffer, and lengths, in bytes."""

    key: int
    key_len: int
    value: int
    value_len: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of entries, which the superblock determines.

    standard  whether it is that of new data files, for which there are fast paths
    """

    delflag: int  # bytes: 0 or 1
    key: Field
    value: Field
    align: int
    checksum: int  # bytes: 0 or 4
    contid: int
    standard: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.delflag, self.key.code, self.value.code, self.align, self.checksum
        object.__setattr__(self, "standard", parts == (1, 1, 2, 0, 4))

    @classmethod
    def of(cls, variables: Mapping[str, int], file: str = "") -> Self:
        """Build the layout from variables. Raises FormatError if they are not valid."""
        kvcksum, align = variables.get("KVCKSUM", 0), variables.get("ALIGN", 0)
        if kvcksum not in (0, 1):
            raise FormatError(f"{file}: KVCKSUM {kvcksum} is not known (0, 1)")
        if align > MAX_ALIGN:
            raise FormatError(f"{file}: ALIGN {align} makes no sense (at most {MAX_ALIGN})")
        for name in ("KEYREPR", "VALREPR"):
            if name not in variables:
                raise FormatError(f"{file}: a kvseq needs the variable {name}")
        layout = cls(
            1 if variables.get("KVDELFL") == 1 else 0,
            Field.of(variables["KEYREPR"], "KEYREPR", file),
            Field.of(variables["VALREPR"], "VALREPR", file),
            max(align, 0),
            4 if kvcksum else 0,
            variables.get("CONTID", 0),
        )
        bare = not layout.delflag and not layout.checksum
        if bare and layout.key.code == layout.value.code == EMPTY:
            raise FormatError(f"{file}: KEYREPR 4 and VALREPR 4 give entries of no bytes")
        return layout

    @property
    def minimum(self) -> int:
        """Size of the smallest possible entry, bytes."""
        return self.delflag + self.key.size(0) + self.value.size(0) + self.checksum

    def aligned(self, pos: int) -> int:
        """Return the first position at or after `pos` where an entry may start."""
        return pos if self.align <= 1 else -(-pos // self.align) * self.align

    def size(self, key_len: int, value_len: int) -> int:
        return self.delflag + self.key.size(key_len) + self.value.size(value_len) + self.checksum

    def encode(self, pos: int, key: bytes, value: bytes, *, deleted: bool = False) -> bytes:
        """Encode an entry that starts at file position `pos`."""
        return b"".join(self.parts(pos, key, value, deleted=deleted))

    def parts(self, pos: int, key: bytes, value: bytes, *, deleted: bool) -> list[bytes]:
        """Encode an entry in parts, without a copy of the value."""
        parts = [self.key.encode(key) + self.value.prefix_of(len(value)), value]
        if self.value.room > len(value):
            parts.append(bytes(self.value.room - len(value)))
        if self.checksum:
            state = xxhash.xxh3_64(parts[0], seed=(self.contid + pos) & MASK64)
            for part in parts[1:]:
                state.update(part)
            parts.append(state.digest()[4:])
        return [bytes([deleted]), *parts] if self.delflag else parts

    def sum(self, pos: int, body: bytes | memoryview) -> bytes:
        """Return the four checksum bytes for the part between delflag and checksum."""
        return xxhash.xxh3_64_digest(body, (self.contid + pos) & MASK64)[4:]

    def sums(self, pos: npt.NDArray[np.int64], bodies: Iterable[Buffer]) -> npt.NDArray[np.uint32]:
        """Return the checksums of many entries as numbers, uint32[n]; bodies: their parts between
        delflag and checksum."""
        return xxh3_many(bodies, self._seeds(pos)).astype(np.uint32)

    def sums_at(
        self,
        pos: npt.NDArray[np.int64],
        data: bytes | memoryview,
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint32]:
        """Return the checksums, uint32[n], of entries whose parts between delflag and checksum are
        data[start:stop]."""
        return xxh3_at(data, starts, stops, self._seeds(pos)).astype(np.uint32)

    def _seeds(self, pos: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        seeds: npt.NDArray[np.uint64] = pos.astype(np.uint64) + np.uint64(self.contid & MASK64)
        return seeds

    def locate(self, data: bytes | memoryview, at: int) -> Span:
        """Find the parts of the entry at `at`. Unchecked bytes.

        ->  the caller must check `end`, which may be beyond the data. If `value` is, too, `data`
            does not contain both lengths, and the entry ends after the span
        """
        at += self.delflag
        limit = len(data)
        key = at + self.key.prefix
        if key > limit:
            return Span(key, 0, key, 0, key)
        key_len = from_bytes(data[at:key], "big") if self.key.prefix else self.key.room
        at = key + (key_len if self.key.room < 0 else self.key.room)
        value = at + self.value.prefix
        if value > limit:
            return Span(key, key_len, value, 0, value)
        value_len = from_bytes(data[at:value], "big") if self.value.prefix else self.value.room
        stop = value + (value_len if self.value.room < 0 else self.value.room)
        return Span(key, key_len, value, value_len, stop + self.checksum)

    def decode(self, data: bytes | memoryview, at: int, pos: int, file: str) -> KVEntry:
        """Decode and check the entry at data[at], whose position in the file is `pos`.

        raises  CorruptError: cut short, a delflag other than 0 or 1, a wrong length or checksum
        """
        span = self.locate(data, at)
        if span.end > len(data):
            raise CorruptError("entry reaches past the end", file=file, offset=pos)
        if self.delflag and data[at] > 1:
            raise CorruptError("delflag", file=file, offset=pos, expected="0 or 1", found=data[at])
        for part, length in ((self.key, span.key_len), (self.value, span.value_len)):
            if length > part.limit:
                raise CorruptError(
                    "length", file=file, offset=pos, expected=f"<= {part.limit}", found=length
                )
        if self.checksum:
            body = data[at + self.delflag : span.end - 4]
            found = bytes(data[span.end - 4 : span.end])
            expected = self.sum(pos, body)
            if expected != found:
                raise CorruptError(
                    "entry checksum", file=file, offset=pos,
                    expected=expected.hex(), found=found.hex(),
                )  # fmt: skip
        key = bytes(data[span.key : span.key + span.key_len])
        value = bytes(data[span.value : span.value + span.value_len])
        return KVEntry(pos, bool(self.delflag and data[at]), key, value, span.end - at)

    def read(self, read: Read, pos: int, end: int, file: str, first: int = PROBE) -> KVEntry:
        """Read and check the entry at position `pos` of a file, whatever its size.

        read    see `Read`
        end     end of the last entry
        first   bytes of the first read, which is enough for most entries
        raises  CorruptError, as `decode`, and if no entry can begin there
        """
        if not 0 < pos < end:
            raise CorruptError("no entry", file=file, offset=pos)
        data = read(pos, min(first, end - pos))
        if self.standard:  # fast path for an intact entry within the first read
            value = 7 + from_bytes(data[1:3])
            stop = value + from_bytes(data[value - 4 : value])
            found = data[stop : stop + 4]
            if found and data[0] < 2 and found == self.sum(pos, data[1:stop]):
                key = bytes(data[3 : value - 4])
                return KVEntry(pos, data[0] == 1, key, bytes(data[value:stop]), stop + 4)
        while (need := self.locate(data, 0).end) > len(data):
            data = read(pos, need) if pos + need <= end else b""
            if len(data) < need:
                raise CorruptError("entry reaches past the end", file=file, offset=pos)
        return self.decode(data, 0, pos, file)
