"""BASE.data: the variables of its superblock.

`Settings` are the settings of a container that its superblock has, read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from winkformats import hashing
from winkformats.errors import FormatError
from winkformats.hashing import xxh3_signed
from winkformats.kv.entry import MASK64
from winkformats.kv.superblock import (
    FILEINCR,
    HALF,
    KVSEQ,
    MAX_VARIABLES,
    SBSIZE,
    WRITER,
    WRITTEN_BY,
    Superblock,
    value_text,
)
from winkfs.container.ondisk.compressed import COMPRESS, COMPRESSED
from winkfs.container.ondisk.inode import CK_MD5, CK_XXH3, ISZ, InodeForm
from winkfs.names import INODE
from winkfs.units import NANO

PURPOSE_DATA: Final = "FSYSDATA"
PURPOSE_INDEX: Final = "FSYSIDX"
PURPOSE_TIME: Final = "FSYSTIME"
PURPOSE_CATALOG: Final = "FSYSCAT"
UNNAMED: Final = "UNNAMED"  # 1: the name of the file may not be on the disk
CUTID: Final = "CUTID"  # random, of the last rollback or repair; missing: there was none
PUSHED: Final = "PUSHED"  # of an object: which catalog is its own, see `catalog_names`
LAST_BYTES: Final = 64 << 10  # of a catalog that is far that are read first
EXTENSIONS: Final = frozenset(
    [
        "INCOMPAT", "SBCKSUM", "SBSEQ", "CONTID", "KVCKSUM", "CKALGO", "NEXTFID", "MTIMENS",
        "PAIROFF", "ATTRS", "INCHAIN",
    ]
)  # fmt: skip
HOLES: Final = 4  # bit of INCOMPAT
PAIRS: Final = 8  # bit of INCOMPAT: PAIROFF
CHAINS: Final = 64  # bit of INCOMPAT
INCHAIN: Final = "INCHAIN"  # 1: an inode may build on another one
USUAL: Final = {"HTFREE": 0, "HTDEL": 1}  # defaults of missing variables
LEFT_OUT: Final = ("HAVEDUPS", "HTFREE", "HTDEL")  # if content is compressed: they are defaults
SANE: Final = 1 << 62  # greatest FILEID that is believed: counting on must not leave 64 bits
MAX_ISZ: Final = 1 << 20  # bytes: each file takes as many
INODE_BYTES: Final = np.frombuffer(INODE, np.uint8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The variant of a container. Field names are those of the superblock, spelt out."""

    classic: bool
    contid: int
    cutid: int
    ao: bool
    timemp: int
    mtime_unit: int
    pairoff: bool
    attrs: bool
    holes: bool
    chains: bool
    compressed: bool
    havedups: bool
    ckalgo: int
    isz: int
    htalgo: int
    cellsz: int
    htfree: int
    htdel: int
    form: InodeForm = field(init=False)

    def __post_init__(self) -> None:
        form = InodeForm(self.pairoff, self.ckalgo, self.chains and self.pairoff)
        object.__setattr__(self, "form", form)

    @classmethod
    def of(cls, block: Mapping[str, int], file: str) -> Self:
        """Read the settings. Raises FormatError if it is not a readable data file."""
        if block["FORMAT"] != KVSEQ or value_text(block["PURPOSE"]) != PURPOSE_DATA:
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
        compressed, pairoff = bool(block.get("INCOMPAT", 0) & COMPRESSED), block.get("PAIROFF") == 1
        if compressed and not pairoff:
            raise FormatError(f"{file}: compressed content (INCOMPAT 32) needs PAIROFF 1")
        return cls(
            classic=classic,
            contid=block.get("CONTID", 0),
            cutid=block.get(CUTID, 0),
            ao=block.get("HAVEAO") == 1,
            timemp=timemp,
            mtime_unit=1 if block.get("MTIMENS") == 1 else NANO,
            pairoff=pairoff,
            attrs=block.get("ATTRS") == 1,
            holes=bool(block.get("INCOMPAT", 0) & HOLES),
            chains=block.get(INCHAIN) == 1,
            compressed=compressed,
            havedups=block.get("HAVEDUPS") == 1,
            ckalgo=ckalgo,
            isz=max(isz, 56),
            htalgo=hashing.check(block.get("HTALGO", 1 if classic else 2), file),
            cellsz=cellsz,
            htfree=block.get("HTFREE", 0),
            htdel=block.get("HTDEL", 1),
        )

    @property
    def tombstones(self) -> bool:
        """True if every deletion leaves an entry, so that delflags do not decide what is live.

        A program that knows only the classic layout may delete by delflags alone.
        """
        return not self.classic

    @property
    def ids(self) -> dict[str, int]:
        """Variables of a derived file: ids of its container, and of the last rollback or repair."""
        known = {"CONTID": self.contid, CUTID: self.cutid}
        return {name: number for name, number in known.items() if number}

    def made(self, derived: Mapping[str, int]) -> bool:
        """Return whether a derived file with this superblock belongs to this container, and was
        written after its last rollback or repair."""
        return (derived.get("CONTID", 0), derived.get(CUTID, 0)) == (self.contid, self.cutid)

    @property
    def nanoseconds(self) -> bool:
        """True if FMTIME counts nanoseconds, False if seconds."""
        return self.mtime_unit == 1

    def mtime_of(self, ns: int) -> int:
        """Convert nanoseconds since the epoch to FMTIME."""
        return ns // self.mtime_unit

    def ns_of(self, mtime: int) -> int:
        """Convert FMTIME to nanoseconds since the epoch."""
        return mtime * self.mtime_unit


def set_pushed(block: Superblock) -> None:
    """Let a data file that becomes an object name its catalog: by its state, so that no object with
    the catalog of another state is in its place."""
    make_room(block, [PUSHED])
    state = [block.get(name, 0) for name in ("CONTID", CUTID, "FILESIZE")]
    block[PUSHED] = xxh3_signed(repr(state).encode())


def catalog_names(name: str, block: Mapping[str, int]) -> list[str]:
    """Return the names that the catalog of a container that is far may have, the likely one first.

    block  superblock of its data file
    """
    mark = block.get(PUSHED)
    own = [] if mark is None else [f"{name}.{mark & MASK64:016x}.cat"]
    return [*own, f"{name}.cat"]


def make_room(block: Superblock, names: Iterable[str]) -> None:
    """Make room in a superblock for these variables: drop defaults, and then WRITER."""
    new = set(names) - block.keys()
    for name, usual in USUAL.items():
        if len(block) + len(new) > MAX_VARIABLES and block.get(name) == usual:
            del block[name]
    if len(block) + len(new) > MAX_VARIABLES:
        block.pop(WRITER, None)


def let_compress(block: Superblock, *, compressed: bool) -> None:
    """Set whether a data file that is written anew may have frames, as `new_superblock` does. The
    container must not be classic."""
    if compressed:
        block |= {"INCOMPAT": block["INCOMPAT"] | COMPRESSED | PAIRS, "PAIROFF": 1, COMPRESS: 0}
        for name in LEFT_OUT:
            if block.get(name) == USUAL.get(name, 0):
                del block[name]
        return
    block["INCOMPAT"] &= ~COMPRESSED
    block.pop(COMPRESS, None)
    if block.get("HAVEAO") == 1 and block.pop("PAIROFF", 0):
        block["INCOMPAT"] &= ~PAIRS


def new_superblock(
    *,
    ao: bool,
    timemp: int,
    classic: bool,
    htalgo: int | None,
    compressed: bool = False,
    isz: int = ISZ,
    havedups: bool = False,
) -> Superblock:
    """Return the superblock of a new data file: at most 31 variables, so that they fit in a sector.

    compressed  it may have frames, whose extents need PAIROFF; defaults are left out
    """
    import secrets  # late: readers need none

    if timemp < 1:
        raise ValueError(f"timemp must be at least 1 second, not {timemp}")
    if not 56 <= isz <= MAX_ISZ or isz % 8:
        raise ValueError(f"isz must be a multiple of 8 from 56 to {MAX_ISZ}, not {isz}")
    if havedups and compressed:
        raise ValueError("a container with compressed content has no HAVEDUPS")
    algorithm = (1 if classic else 2) if htalgo is None else htalgo
    if algorithm not in (hashing.MD5, hashing.XXH3, hashing.MURMUR3):
        raise ValueError(f"htalgo must be 1, 2 or 3, not {algorithm}")
    sbsize = SBSIZE if classic else 2 * HALF
    variables = {
        "FILEINCR": FILEINCR, "SYNCSIZE": sbsize, "SYNCTIME": int(time.time()),
        "KVDELFL": 1, "KEYREPR": 1, "VALREPR": 2, "ENTRIES": 0, "AENTRIES": 0,
        "ISZ": isz, "ITOTSZ": 0, "DTOTSZ": 0, "HAVEDUPS": int(havedups), "HTALGO": algorithm,
        "CELLSZ": 1 if classic else 2, "HTFREE": 0, "HTDEL": 1,
    }  # fmt: skip
    if ao:
        variables |= {"HAVEAO": 1, "TIMEMP": timemp}
    if not classic:
        variables |= {
            "INCOMPAT": 1 | 2 | 16 | (0 if ao else HOLES | PAIRS), "SBCKSUM": 0, "SBSEQ": 1,
            "CONTID": secrets.randbits(62) + 1, "KVCKSUM": 1, "CKALGO": CK_XXH3, "MTIMENS": 1,
            "ATTRS": 1, "NEXTFID": 1, **({"PAIROFF": 1} if compressed or not ao else {}),
        }  # fmt: skip
    if compressed:
        variables["INCOMPAT"] |= COMPRESSED | PAIRS
        variables = {k: v for k, v in variables.items() if k not in LEFT_OUT}
    block = Superblock.new(KVSEQ, PURPOSE_DATA, variables, sbsize)
    if not classic:
        make_room(block, WRITTEN_BY)
        block.note_writer()
    return block
