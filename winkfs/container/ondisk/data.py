"""BASE.data: the variables of its superblock, and the keys of its inodes.

`Settings` is what the superblock says of the container, read once. `InodeKeys` reads the names of
inodes whose positions are known, many at a time, without their values.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import Int64, rows_at, texts_at
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import Layout
from winkformats.kv.superblock import FILEINCR, HALF, KVSEQ, SBSIZE, Superblock
from winkfs.container.ondisk.inode import CK_MD5, CK_XXH3, ISZ, InodeForm
from winkfs.names import INODE
from winkfs.units import NANO

PURPOSE_DATA: Final = "FSYSDATA"
PURPOSE_INDEX: Final = "FSYSIDX"
PURPOSE_TIME: Final = "FSYSTIME"
PURPOSE_NAMES: Final = "FSYSNAME"
PURPOSE_COLUMNS: Final = "FSYSCOLS"
PURPOSE_CATALOG: Final = "FSYSCAT"
UNNAMED: Final = "UNNAMED"  # 1: the name of the file may not be on the disk
EXTENSIONS: Final = frozenset(
    [
        "INCOMPAT", "SBCKSUM", "SBSEQ", "CONTID", "KVCKSUM", "CKALGO", "NEXTFID", "MTIMENS",
        "PAIROFF", "ATTRS",
    ]
)  # fmt: skip
HOLES: Final = 4  # bit of INCOMPAT
SANE: Final = 1 << 62  # what counts on from there would leave 64 bits
MAX_ISZ: Final = 1 << 20  # bytes: each file takes as many
HIGHEST: Final = (1 << 63) // NANO  # seconds that int64 holds as nanoseconds
INODE_BYTES: Final = np.frombuffer(INODE, np.uint8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The variant of a container. Field names are those of the superblock, spelt out."""

    classic: bool
    contid: int
    ao: bool
    timemp: int
    mtime_unit: int
    pairoff: bool
    attrs: bool
    holes: bool
    havedups: bool
    ckalgo: int
    isz: int
    htalgo: int
    cellsz: int
    htfree: int
    htdel: int

    @classmethod
    def of(cls, block: Mapping[str, int], file: str) -> Self:
        """Raises FormatError where the superblock is not that of a data file we can read."""
        if block["FORMAT"] != KVSEQ or Superblock(block).purpose != PURPOSE_DATA:
            raise FormatError(f"{file}: not the data file of a container (no {PURPOSE_DATA})")
        classic = not EXTENSIONS & block.keys()
        ckalgo = block.get("CKALGO", CK_MD5)
        if ckalgo not in (CK_MD5, CK_XXH3):
            raise FormatError(f"{file}: CKALGO {ckalgo} is not known (1, 2)")
        timemp = block.get("TIMEMP", 60)
        cellsz = block.get("CELLSZ", 1 if classic else 2)
        isz = block.get("ISZ", ISZ)
        if timemp < 1 or not 1 <= cellsz <= 1024 or isz > MAX_ISZ:
            what = f"TIMEMP {timemp}, CELLSZ {cellsz} or ISZ {isz} makes no sense"
            raise FormatError(f"{file}: {what}")
        return cls(
            classic=classic,
            contid=block.get("CONTID", 0),
            ao=block.get("HAVEAO") == 1,
            timemp=timemp,
            mtime_unit=1 if block.get("MTIMENS") == 1 else NANO,
            pairoff=block.get("PAIROFF") == 1,
            attrs=block.get("ATTRS") == 1,
            holes=bool(block.get("INCOMPAT", 0) & HOLES),
            havedups=block.get("HAVEDUPS") == 1,
            ckalgo=ckalgo,
            isz=max(isz, 56),
            htalgo=hashing.check(block.get("HTALGO", 1 if classic else 2), file),
            cellsz=cellsz,
            htfree=block.get("HTFREE", 0),
            htdel=block.get("HTDEL", 1),
        )

    @property
    def form(self) -> InodeForm:
        return InodeForm(self.pairoff, self.ckalgo)

    @property
    def nanoseconds(self) -> bool:
        """Whether FMTIME counts nanoseconds, and not seconds."""
        return self.mtime_unit == 1

    def mtime_of(self, ns: int) -> int:
        """Nanoseconds since the epoch -> FMTIME."""
        return ns // self.mtime_unit

    def mtimes_of(self, ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The same for many, int64[n]."""
        return ns if self.mtime_unit == 1 else ns // NANO

    def ns_of(self, mtime: int) -> int:
        """FMTIME -> nanoseconds since the epoch."""
        return mtime * self.mtime_unit


def nearest_many(seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Seconds -> nanoseconds, the nearest that int64 holds, int64[n]."""
    exact = np.clip(seconds, -HIGHEST, HIGHEST) * NANO
    info = np.iinfo(np.int64)
    return np.where(seconds > HIGHEST, info.max, np.where(seconds < -HIGHEST, info.min, exact))


def nanoseconds(mtimes: npt.NDArray[np.int64], unit: int) -> npt.NDArray[np.int64]:
    """FMTIMEs, `unit` nanoseconds each -> nanoseconds, the nearest that int64 holds, int64[n]."""
    return mtimes if unit == 1 else nearest_many(mtimes)


def new_superblock(*, ao: bool, timemp: int, classic: bool, htalgo: int | None) -> Superblock:
    """The superblock of a new data file: at most 31 variables, so that they lie in one sector."""
    if timemp < 1:
        raise ValueError(f"timemp must be at least 1 second, not {timemp}")
    algorithm = (1 if classic else 2) if htalgo is None else htalgo
    if algorithm not in (hashing.MD5, hashing.XXH3, hashing.MURMUR3):
        raise ValueError(f"htalgo must be 1, 2 or 3, not {algorithm}")
    sbsize = SBSIZE if classic else 2 * HALF
    variables = {"FILEINCR": FILEINCR, "SYNCSIZE": sbsize, "SYNCTIME": int(time.time())}
    variables |= {"KVDELFL": 1, "KEYREPR": 1, "VALREPR": 2, "ENTRIES": 0, "AENTRIES": 0}
    variables |= {"ISZ": ISZ, "ITOTSZ": 0, "DTOTSZ": 0, "HAVEDUPS": 0, "HTALGO": algorithm}
    variables |= {"CELLSZ": 1 if classic else 2, "HTFREE": 0, "HTDEL": 1}
    if ao:
        variables |= {"HAVEAO": 1, "TIMEMP": timemp}
    if not classic:
        bits = 1 | 2 | 16 | (0 if ao else HOLES | 8)
        variables |= {"INCOMPAT": bits, "SBCKSUM": 0, "SBSEQ": 1}
        variables |= {"CONTID": secrets.randbits(62) + 1}
        variables |= {"KVCKSUM": 1, "CKALGO": CK_XXH3, "MTIMENS": 1, "ATTRS": 1, "NEXTFID": 1}
        variables |= {} if ao else {"PAIROFF": 1}
    return Superblock.new(KVSEQ, PURPOSE_DATA, variables, sbsize)


class InodeKeys:
    """Names by position, in a piece of the data file. Wrong bytes are a CorruptError.

    data         the piece; it begins at byte `base` of the file
    start, stop  bytes of the file: where an inode may begin, and where it must end
    room         bytes of the piece from where an inode begins that are its own; 0: all
    """

    def __init__(
        self,
        data: memoryview | bytes,
        layout: Layout,
        start: int,
        stop: int,
        file: str,
        base: int = 0,
        room: int = 0,
    ) -> None:
        field = layout.key
        self._raw: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._base, self._file = base, file
        self._delflag, self._prefix, self._room = layout.delflag, field.prefix, field.room
        self._end = min(stop - base, len(data))  # where keys end at the latest
        self._low, self._own = start, room
        self._high = base + self._end - self._delflag - self._prefix - len(INODE)

    def names_and_keys(self, positions: Int64) -> tuple[list[bytes], Int64, list[bytes]]:
        """The names of these inodes, their lengths, and the keys. Cost: two objects an inode."""
        at, lengths = self.spans(positions)
        keys = texts_at(self._raw, at, lengths + len(INODE))
        return texts_at(self._raw, at, lengths), lengths, keys

    def spans(self, positions: Int64) -> tuple[Int64, Int64]:
        """Where in the piece the names of these inodes begin, and their lengths, int64[n] each."""
        self._check(positions, (positions >= self._low) & (positions <= self._high))
        at = positions + (self._delflag - self._base)
        if not len(at):
            return at, at
        if self._prefix:
            lengths = rows_at(self._raw, at, self._prefix).view(f">u{self._prefix}")[:, 0]
            lengths = lengths.astype(np.int64) - len(INODE)
            at += self._prefix
        else:
            lengths = np.full(len(at), self._room - len(INODE), np.int64)
        self._check(positions, (lengths > 0) & (lengths <= self._end - len(INODE) - at))
        if self._own:
            ends = at + lengths + (len(INODE) + self._base) - positions
            self._check(positions, ends <= self._own)
        tails = rows_at(self._raw, at + lengths - 1, 1 + len(INODE))
        self._check(positions, (tails[:, 1:] == INODE_BYTES).all(1) & (tails[:, 0] != 0))
        return at, lengths

    def _check(self, positions: Int64, fit: npt.NDArray[np.bool_]) -> None:
        if not fit.all():
            pos = int(positions[~fit][0])
            raise CorruptError("no inode with a name", file=self._file, offset=pos)
