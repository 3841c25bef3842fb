"""Time index (BASE.time): marks from mtimes to positions, for containers that only append.

A kvseq with fixed 8-byte keys and values: time mark -> position of the first entry of the first
file whose mtime is at or after it. Variables: TIMEMP (seconds between marks), TIMEMARK (the last
mark), TIMEMN (files since it, the marked one not counted), LASTMT (the last mtime, seconds).
"""

from __future__ import annotations

import bisect
import re
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from winkformats.disk.paths import open_file
from winkformats.disk.storage import Storage
from winkformats.errors import DerivedDamage, FormatError
from winkformats.kv import pagesums
from winkformats.kv.entry import Layout
from winkformats.kv.pagesums import PageSums
from winkformats.kv.scan import scan
from winkformats.kv.superblock import KVSEQ, Superblock, read_superblock
from winkfs.container.ondisk.data import PURPOSE_TIME, Settings
from winkfs.units import NANO

MARK: Final = struct.Struct(">qq")
assert MARK.size == 16
ENTRY: Final = re.compile(rb"[0-9a-f]+/[AD][0-9]+|.+/I0", re.DOTALL)  # keys of a container
LASTNS: Final = "LASTNS"  # extension: the mtime of the last file, nanoseconds


class TimeIndex:
    """The marks of a container, in memory: one for every TIMEMP seconds in which a file came.

    Those of other writers may be fewer: the original format marks a file only if its mtime is a
    multiple of TIMEMP.

    marks       int64 seconds, ascending
    positions   bytes from the start of the data file, ascending
    since       files since the last mark (TIMEMN)
    last        FMTIME of the last file, None while there is none
    """

    def __init__(self, settings: Settings) -> None:
        self.timemp = settings.timemp
        self._second = NANO if settings.nanoseconds else 1  # FMTIMEs in a second
        self.marks: list[int] = []
        self.positions: list[int] = []
        self.since = 0
        self.last: int | None = None

    def add(self, mtime: int, position: int) -> None:
        """Add a file: its FMTIME, and the position of its first entry."""
        step = self._second * self.timemp
        old = self.last is not None and mtime // step <= self.last // step
        self.last = mtime
        if old:  # a file before it, marked or not, is of the same time
            self.since += 1
            return
        self.marks.append(mtime // step * self.timemp)
        self.positions.append(position)
        self.since = 0

    def add_many(self, mtimes: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> None:
        """Add files in order, int64[n] each."""
        if not len(mtimes):
            return
        step = self._second * self.timemp
        marks = mtimes // step
        before = marks[0] - 1 if self.last is None else self.last // step
        new = np.flatnonzero(np.diff(marks, prepend=before) > 0)
        self.marks += (marks[new] * self.timemp).tolist()
        self.positions += positions[new].tolist()
        self.since = self.since + len(mtimes) if not len(new) else len(mtimes) - 1 - int(new[-1])
        self.last = int(mtimes[-1])

    def start(self, seconds: int) -> int:
        """Return a position at or before the first file whose mtime is >= `seconds`."""
        i = bisect.bisect_right(self.marks, seconds) - 1
        return self.positions[i] if i >= 0 else 0

    def stop(self, seconds: int) -> int | None:
        """Return a position after every file whose mtime is < `seconds`; None: end of the file."""
        i = bisect.bisect_left(self.marks, seconds)
        return self.positions[i] if i < len(self.marks) else None

    def explains(self, others: TimeIndex) -> bool:
        """Return whether other marks, of the same files or the first of them, are a valid subset of
        these, which are complete."""
        pairs = zip(others.marks, others.positions, strict=True)
        return all(m % self.timemp == 0 and self.stop(m) == pos for m, pos in pairs)

    # --- the file ---

    @classmethod
    def load(
        cls,
        path: str,
        settings: Settings,
        block: Mapping[str, int],
        end: int,
        note: Callable[[DerivedDamage], None] = lambda error: None,
    ) -> tuple[TimeIndex, int] | None:
        """Read BASE.time -> (marks, position in the data file up to which they are complete).

        block   the data file's superblock; `end` its FILESIZE
        note    called with damage that the checksums show
        ->      None where the file is missing, foreign, damaged or newer than the data file
        """
        try:
            with open_file(path) as storage:
                mine = read_superblock(storage)
                layout = Layout.of(mine, path)
                trusted = (
                    mine["FORMAT"] == KVSEQ
                    and mine.purpose == PURPOSE_TIME
                    and settings.made(mine)
                    and (mine.get("KEYREPR"), mine.get("VALREPR")) == (12, 12)
                    and mine.get("TIMEMP") == settings.timemp
                    and mine.get("FILESIZE", 0) <= storage.size()
                )
                covered = mine.get("DATAEND", -1)
                if "DATAEND" not in mine and mine.get("SYNCTIME") == block.get("SYNCTIME"):
                    covered = end
                if not trusted or not 0 <= covered <= end:
                    return None
                if (sums := PageSums.load(storage, mine)) is not None:
                    sums.check_all()
                index = cls(settings)
                stop = mine.get("FILESIZE", storage.size())
                for batch in scan(storage, layout, mine["SBSIZE"], stop):
                    pairs = batch.words(batch.key, 2, ">i8").astype(np.int64)
                    index.marks += pairs[:, 0].tolist()
                    index.positions += pairs[:, 1].tolist()
                index.since = mine.get("TIMEMN", 0)
                index._recall(mine)
                return (index, covered) if index._sane(end) else None
        except DerivedDamage as error:
            note(error)
            return None
        except (FormatError, OSError):
            return None

    def _recall(self, block: Mapping[str, int]) -> None:
        """Take the last mtime from the superblock; only LASTNS (an extension) has its fraction."""
        if not self.marks and not block.get("LASTMT"):  # of a file at 0 there is a mark
            return
        seconds, exact = block.get("LASTMT", max(self.marks, default=0)), block.get(LASTNS, 0)
        latest = seconds * self._second + self._second - 1
        self.last = exact if self._second > 1 and exact // NANO == seconds else latest

    def _sane(self, end: int) -> bool:
        rising = all(a < b for a, b in zip(self.marks, self.marks[1:], strict=False))
        inside = all(0 < p < end for p in self.positions)
        return rising and inside and self.positions == sorted(self.positions)

    def write(
        self, storage: Storage, settings: Settings, block: Mapping[str, int], *, sums: bool = True
    ) -> None:
        """Write BASE.time into an empty storage, not synced.

        block   the data file's superblock
        sums    write checksums of its pages, too, but not in classic layout
        """
        count, last = len(self.marks), self.last or 0
        size = 4096 + 16 * count
        variables = {
            "FILESIZE": size, "SYNCSIZE": size, "SYNCTIME": block.get("SYNCTIME", int(time.time())),
            "KEYREPR": 12, "VALREPR": 12, "ENTRIES": count, "AENTRIES": count,
            "TIMEMP": self.timemp, "TIMEMARK": self.marks[-1] if self.marks else 0,
            "TIMEMN": self.since, "LASTMT": last // self._second,
        }  # fmt: skip
        if self._second > 1:
            variables[LASTNS] = last
        if not settings.classic:
            variables |= {"SBCKSUM": 0, **settings.ids, "DATAEND": block["FILESIZE"]}
        if sums and not settings.classic:
            variables[pagesums.VARIABLE] = pagesums.place(size)
        mine = Superblock.new(KVSEQ, PURPOSE_TIME, variables)
        if not settings.classic:
            mine.note_writer()
        pairs = zip(self.marks, self.positions, strict=True)
        storage.write(0, [mine.encode(), b"".join([MARK.pack(*pair) for pair in pairs])])
        if pagesums.VARIABLE in mine:
            pagesums.write(storage, mine)
