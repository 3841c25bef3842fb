"""Settings of a LogStore, in its file `logstore`, and the numbers that follow from them.

    offset  size  type  field       meaning
    0       8     8s    magic       WINKLOGS
    8       4     I     version     1
    12      1     B     offset      bits of an offset in a position
    13      1     B     file        bits of a file number
    14      1     B     generation  bits of a generation: the highest of a file number
    15      1     B     zero        0
    16      8     Q     largest     bytes of a data file, at most
    24      8     Q     cutoff      bytes of the longest body that stands in the log
    32      8     Q     store       random number of this store
    40      4     I     every       data files after which the index table is saved
    44      4     I     checksum    CRC-32 of the bytes before

Big-endian. A position is file number << bits of an offset | offset.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from winkformats.errors import CorruptError, FormatError

SETTINGS: Final = "logstore"  # name of the file
MAGIC: Final = b"WINKLOGS"
VERSION: Final = 1
FORM: Final = struct.Struct(">8sIBBBBQQQII")
SUM: Final = struct.Struct(">I")
LARGEST: Final = 1 << 31  # most bytes of a data file
POSITION: Final = 64  # bits
LEAST_ROOM: Final = 128  # bytes of a data file beside its longest record
CUTOFF: Final = 1 << 29  # most bytes of a body in the log
assert FORM.size == 48


@dataclass(frozen=True, slots=True)
class Layout:
    """The settings of a store, which never change."""

    largest: int = 128 << 20
    cutoff: int = 64 << 10
    offset_bits: int = 0
    file_bits: int = 0
    generation_bits: int = 16
    store: int = 0
    every: int = 8

    @classmethod
    def new(
        cls,
        largest: int = 128 << 20,
        cutoff: int = 64 << 10,
        every: int = 8,
        *,
        file_bits: int | None = None,
        generation_bits: int = 16,
    ) -> Self:
        """Settings of a new store.

        file_bits  None: all bits of a position beside the offset
        raises     ValueError for settings that are inconsistent
        """
        bits = max(largest - 1, 1).bit_length()
        files = POSITION - bits if file_bits is None else file_bits
        store = secrets.randbits(64)
        made = cls(largest, cutoff, bits, files, generation_bits, store, every)
        if wrong := made._wrong():
            raise ValueError(wrong)
        return made

    def _wrong(self) -> str:
        if not 0 < self.largest <= LARGEST:
            return f"a data file has at most {LARGEST} bytes, not {self.largest}"
        if not 0 <= self.cutoff <= CUTOFF:
            return f"the blob cut-off is at most {CUTOFF} bytes, not {self.cutoff}"
        if self.cutoff + LEAST_ROOM > self.largest:
            return f"a data file has room for a record: at least {self.cutoff + LEAST_ROOM} bytes"
        if self.largest > 1 << self.offset_bits or self.offset_bits > 31:
            return f"{self.offset_bits} bits are not those of an offset"
        if not 2 <= self.generation_bits <= 16:
            return "the generations are 4 to 65,536: 2 to 16 bits"
        if not self.generation_bits <= self.file_bits <= POSITION - self.offset_bits:
            return f"a file number has {self.generation_bits} to 64 - {self.offset_bits} bits"
        return "" if self.every > 0 else "the index table is saved after at least one file"

    def encode(self) -> bytes:
        data = FORM.pack(
            MAGIC, VERSION, self.offset_bits, self.file_bits, self.generation_bits, 0,
            self.largest, self.cutoff, self.store, self.every, 0,
        )[: -SUM.size]  # fmt: skip
        return data + SUM.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Self:
        """Decode settings. Raises CorruptError; FormatError for an unknown version."""
        if len(data) != FORM.size or data[:8] != MAGIC:
            raise CorruptError("no settings of a LogStore", file=file, offset=0)
        if SUM.unpack_from(data, FORM.size - SUM.size)[0] != zlib.crc32(data[: -SUM.size]):
            raise CorruptError("checksum of the settings", file=file, offset=FORM.size - SUM.size)
        _, version, bits, files, generations, _, largest, cutoff, store, every, _ = FORM.unpack(
            data
        )
        if version != VERSION:
            raise FormatError(f"{file}: version {version} of a LogStore, only {VERSION} is known")
        made = cls(largest, cutoff, bits, files, generations, store, every)
        if wrong := made._wrong():
            raise CorruptError(wrong, file=file, offset=8)
        return made

    # --- positions ---

    def position(self, file: int, offset: int) -> int:
        return file << self.offset_bits | offset

    def split(self, position: int) -> tuple[int, int]:
        """Return file number and offset of a position."""
        return position >> self.offset_bits, position & (1 << self.offset_bits) - 1

    # --- file numbers and generations ---

    @property
    def generations(self) -> int:
        """Number of generations."""
        return 1 << self.generation_bits

    @property
    def files(self) -> int:
        """Number of file numbers."""
        return 1 << self.file_bits

    def generation(self, file: int) -> int:
        return file >> self.file_bits - self.generation_bits

    def following(self, file: int) -> int:
        """Return the number of the file after this one; 0 follows the last."""
        return (file + 1) % self.files

    def oldest(self, used: Iterable[int], files: Iterable[int]) -> int:
        """Return the oldest generation in use, which follows, cyclically, the unused ones.

        used    generations that are in use
        files   numbers of all files
        raises  ValueError: all are in use, or a file is in an unused one, or there are several runs
                of used generations. A run without files is ignored, since a power cut may undo the
                removal of a generation
        """
        known, there = sorted(set(used)), {self.generation(file) for file in files}
        if there - set(known):
            raise ValueError(f"generation {min(there - set(known))} has a file, and is not in use")
        if len(known) >= self.generations:
            raise ValueError("all generations are in use: there is no oldest one")
        starts = [one for one in known if (one - 1) % self.generations not in known]
        if len(starts) > 1:
            starts = [one for one in starts if self._run(one, known) & there] or starts[:1]
        if len(starts) > 1:
            raise ValueError(f"generations {starts} each follow a hole: there is no oldest one")
        return starts[0] if starts else 0

    def _run(self, start: int, known: Iterable[int]) -> set[int]:
        run, known = set[int](), set(known)
        while start in known and start not in run:
            run.add(start)
            start = (start + 1) % self.generations
        return run

    def age(self, file: int, oldest: int) -> int:
        """Return a number that orders files by age, from those of generation `oldest` on."""
        return (file - (oldest << self.file_bits - self.generation_bits)) % self.files
