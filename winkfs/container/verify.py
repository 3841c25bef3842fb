"""Reports on a whole container; read-only.

verify  reads everything once and reports all faults
info    describes the container, its content and the use of its bytes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64, among
from winkformats.disk.paths import locate
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError, DerivedDamage, FormatError
from winkformats.kv.entry import Layout
from winkformats.kv.pagesums import PageSums
from winkformats.kv.scan import dead_bytes, scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import read_superblock
from winkfs.container.catalog import at_any, new_sorter, open_catalog
from winkfs.container.checks import Extents, count_used, described, lost_rows, same_files, same_rows
from winkfs.container.gone import gone_of
from winkfs.container.index import Index
from winkfs.container.namesorter import NameSorter, RowCollector
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.compressed import COMPRESSED
from winkfs.container.ondisk.data import PURPOSE_CATALOG, catalog_names
from winkfs.container.ondisk.idx import Base, open_base
from winkfs.container.ondisk.time import TimeIndex
from winkfs.container.recovery import Rebuilt, Replay, due
from winkfs.container.select import Query, positions_of
from winkfs.container.store import MERGE_TAIL, Store
from winkfs.container.survey import InodeRows, rows_of
from winkfs.entry import FileType
from winkfs.errors import WinkError
from winkfs.names import FILES, base_of
from winkfs.units import NANO, time_text

MAX_PROBLEMS: Final = 1000  # named one by one
EXACT_BYTES: Final = 1 << 30  # entries up to which `info` counts the dead ones exactly
ENTRY_OVERHEAD: Final = 40  # bytes of an entry beside its value, about: header, key, checksum
Record = dict[str, Any]


@dataclass
class Report:
    """Result of a verification.

    problems  a line for each fault; more: the number of further faults
    notes     messages that are no faults
    scope     what was checked, if not all
    marked    positions of entries of live files that are marked deleted, for a repair
    """

    problems: list[str] = field(default_factory=list)
    files: int = 0
    entries: int = 0
    bytes: int = 0
    more: int = 0
    notes: list[str] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    scope: str = ""

    def add(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more += 1

    def include(self, found: Report) -> None:
        """Add what another one has: problems, entries and bytes."""
        for problem in found.problems:
            self.add(problem)
        self.more += found.more
        self.entries += found.entries
        self.bytes += found.bytes


def verify(base: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Report:
    """Check every entry, inode, extent, counter, index cell and time mark.

    progress  called with the number of bytes read since the last call
    ->        a report; damage is in it, not raised
    raises    FileNotFoundError if there is no container
    cost      one pass over the data file, twice a reindex; memory: 38 bytes a file
    """
    try:
        store = Store(base_of(base), writable=False, load=False)
    except FormatError as error:
        return Report([str(error)])
    with store:
        return Check(store).run(progress)


class Check:
    """Checks a data file in one pass, then its derived files. A repair uses it, too.

    broken   damaged ranges of entries, in file order
    found    the live files and counters of the entries
    extents  checks extents, and has the wrong ones
    """

    found: Rebuilt

    def __init__(self, store: Store, *, frames: bool = True) -> None:
        """Prepare a check. `frames`: whether to decompress contents."""
        self._store, self._name = store, store.kv.storage.name
        store.kv.storage.cached = False  # what is there is checked
        self._report = Report(notes=list(store.remarks))
        self.broken: list[FormatError] = []
        self.extents = Extents(store, self._report.add, frames=frames)
        self._last_mtime: int | None = None
        self._damaged = False

    def run(self, progress: Callable[[int], None] | None = None) -> Report:
        """Check everything -> a report; damage is in it, not raised."""
        for note in self._store.notes:
            self._report.add(note)
        try:
            self._run(progress)
        except FormatError as error:
            self._report.add(str(error))
        return self._report

    def part(
        self, low: int, high: int, live: Int64, progress: Callable[[int], None] | None
    ) -> Report:
        """Check the entries in [low, high) alone, and what their inodes point to -> a report.

        low, high  positions of entries, or the end
        live       positions of the inodes of live files between them, ascending
        """
        store, kv, report = self._store, self._store.kv, self._report
        files = 0
        try:
            for batch in scan_intact(
                kv.storage, kv.layout, low, high, problem=self._break, progress=progress
            ):
                rows = rows_of(batch, store.settings, self._damage, checked=True)
                self._check_fields(rows)
                self.extents.take(rows)
                here = among(rows.pos, live)
                files += int(here.sum())
                report.entries += len(batch)
                report.bytes += int(rows.lsize[here].sum())
            self.extents.check(live, beyond=True)
        except FormatError as error:
            self._break(error)
        report.files = files
        if files < len(live) and not self._damaged:
            report.add(f"{self._name}: {len(live) - files} files of the index have no inode from "
                       f"byte {low} to {high}: run reindex")  # fmt: skip
        return report

    def quick(self) -> Report:
        """Check the superblock, the derived files, and that index and catalog have the same files
        -> a report. No entry is read, but those after the catalog and the index."""
        store, report = self._store, self._report
        for note in store.notes:
            report.add(note)
        report.scope = "superblock, index and catalog; no entry was read"
        try:
            with ExitStack() as stack:
                index, catalog, doubtful = self._derived(stack)
                found = positions_of(store, Query.of_prefix(b"")) if catalog else None
                if index is None or doubtful or found is None:
                    missing = "catalog" if found is None else "index"
                    report.scope = f"superblock; no valid {missing} to compare; no entry was read"
                    report.files = 0 if found is None else len(found)
                    return report
                report.files = len(found)
                replaced = self._replaced(index)
                if replaced is not None:
                    known = np.concatenate([found[found < index.covered], replaced])
                    if len(known) != index.live or not same_files(index, known):
                        report.add(f"{index.storage.name}: its cells are not those of the files of "
                                   "the catalog: run reindex")  # fmt: skip
        except FormatError as error:
            report.add(str(error))
        return report

    def _derived(self, stack: ExitStack) -> tuple[Base | None, Catalog | None, bool]:
        """Open index and catalog, and check all derived files -> these, and whether the index is
        damaged."""
        store = self._store
        index = open_base(
            store.directory, store.name, store.settings, store.kv.superblock, store.kv.end
        )
        if index is not None:
            stack.callback(index.storage.close)
        doubtful = self._is_bad(".idx", _bad_pages, index.storage if index else None)
        self._is_bad(".time", _bad_pages)
        catalog = open_catalog(store)
        if catalog is not None:
            stack.callback(catalog.close)
        opened = catalog.storage if catalog else None
        if self._is_bad(".cat", partial(self._bad_entries, known=opened is not None), opened):
            catalog = None
        return index, catalog, doubtful

    def _run(self, progress: Callable[[int], None] | None) -> None:
        store = self._store
        with ExitStack() as stack:
            index, catalog, doubtful = self._derived(stack)
            sorter = None if catalog is None else new_sorter(store)
            if sorter is not None:
                stack.callback(sorter.close)
            found = self._read(None if sorter is None else RowCollector(store, sorter), progress)
            self._check_end(found)
            if self._damaged:
                return  # derived files also cover the damaged entries, so they would differ
            self._check_counters(found, index)
            if index is not None and not doubtful:
                self._check_index(index, found)
            self._check_times(found.times)
            if catalog is not None and sorter is not None and not len(found.flagged):
                self._check_catalog(catalog, sorter, found)

    def _read(self, names: RowCollector | None, progress: Callable[[int], None] | None) -> Rebuilt:
        """Check all entries -> the live files and counters."""
        store, kv, report = self._store, self._store.kv, self._report
        self.found = found = Rebuilt(kv, store.settings, names)
        try:
            for batch in scan_intact(
                kv.storage, kv.layout, kv.start, kv.end, problem=self._break, progress=progress
            ):
                rows = rows_of(batch, store.settings, self._damage, checked=True)
                found.take(rows)
                self._check_fields(rows)
                self.extents.take(rows)
        except FormatError as error:  # without checksums, the next entry cannot be found
            self._break(error)
        try:
            _ = store.frames.compression
        except CorruptError as error:
            report.add(str(error))
        report.files, report.entries = len(found.finish().rows.pos), found.entries
        report.bytes = found.dtotsz
        self.extents.check(found.rows.pos)
        report.marked = self.extents.marked
        return found

    def _check_end(self, found: Rebuilt) -> None:
        """Report the files that the index has and a truncated data file has not."""
        store, kv = self._store, self._store.kv
        if kv.truncated:
            gone = gone_of(store.base, store.settings, kv.superblock, found.rows, found.end)
            for line in gone.lines(self._name, store.key_at) if gone is not None else ():
                self._report.add(line)

    def _break(self, error: FormatError) -> None:
        self.broken.append(error)
        self._damage(error)

    def _damage(self, error: FormatError) -> None:
        self._damaged = True
        self._report.add(str(error))

    def _check_fields(self, rows: InodeRows) -> None:
        """Check types, directories, and in the append-only variant the order of mtimes."""
        ftype, full = rows.fields[:, 4], rows.size > 0
        wrong = (ftype < 0) | (ftype > 255) | ((ftype == FileType.DIR) & (rows.lsize != 0))
        for pos in rows.pos[wrong].tolist():
            self._report.add(f"{described(self._store, pos)}: a type that cannot be")
        if not self._store.settings.ao or not full.any():
            return
        mtimes, pos = rows.mtime[full], rows.pos[full]
        first = mtimes[0] if self._last_mtime is None else self._last_mtime
        for at in pos[np.diff(mtimes, prepend=first) < 0].tolist():
            self._report.add(f"{described(self._store, at)}: mtime before its predecessor's")
        self._last_mtime = int(mtimes[-1])

    # --- counters and derived files ---

    def _check_counters(self, found: Rebuilt, index: Base | None) -> None:
        store, block, add = self._store, self._store.kv.superblock, self._report.add
        current = index is not None and index.covered == store.kv.end
        if len(found.flagged):
            add(
                f"{self._name}: {len(found.flagged)} files are marked deleted, but nothing "
                "replaced them (a copy of a container in use, or wrong delflags): they are there; "
                "winkfs repair takes the marks back"
            )
        if block.get("SYNCSIZE", store.kv.end) != store.kv.end:
            return  # after an unclean end: the next writer corrects the counters
        if found.due and store.settings.havedups:
            self._report.notes.append(f"{self._name}: {found.due} older inodes of names that are "
                "gone are not marked deleted: other programs take them for files; "
                "winkfs reindex marks them")  # fmt: skip
        elif found.due:
            if current:
                add(f"{self._name}: {len(found.unfinished)} superseded inodes are "
                    "not marked deleted: winkfs reindex marks them")  # fmt: skip
            return
        aentries = found.aentries
        if block.get("AENTRIES", aentries) != aentries and (store.settings.havedups or not current):
            unmarked = len(due(store, [*found.unfinished, *found.dead.tolist()], found.successors))
            unmarked += len(found.superseded_columns())
            if block["AENTRIES"] == aentries - unmarked:
                aentries -= unmarked  # after a kill between two delflags: a writer sets the rest
        expected = {
            "ENTRIES": found.entries,
            "AENTRIES": aentries,
            "ITOTSZ": found.itotsz,
            "DTOTSZ": found.dtotsz,
        }
        if len(found.flagged):
            del expected["AENTRIES"]
        for name, value in expected.items():
            if name in block and block[name] != value:
                add(f"{self._name}: {name} is {block[name]}, counted {value}: run reindex")
        if "NEXTFID" in block and block["NEXTFID"] < found.nextfid:
            add(f"{self._name}: NEXTFID {block['NEXTFID']} is in use: run reindex")

    def _is_bad(
        self,
        suffix: str,
        find: Callable[[Storage], Iterable[CorruptError]],
        opened: Storage | None = None,
    ) -> bool:
        """Report damage of a derived file -> whether the file cannot be used.

        opened  the file, if it could be opened as a derived file
        """
        report, store = self._report, self._store
        try:
            with (
                nullcontext(opened) if opened else store.directory.open(store.name + suffix)
            ) as storage:
                found = list(find(storage))
        except FileNotFoundError:
            return False
        except DerivedDamage as error:
            found = [error]
        except (FormatError, OSError) as error:
            report.notes.append(f"{_one_line(error)}: it is not used")
            return True
        for problem in found:
            report.add(f"{problem}: run reindex")
        return bool(found)

    def _bad_entries(self, storage: Storage, *, known: bool) -> list[CorruptError]:
        """Return the damaged entries of BASE.cat, none of a stale or foreign one.

        known  whether it could be opened as a catalog
        """
        found: list[CorruptError] = []
        block = read_superblock(storage)
        if (block.purpose, block.get("CONTID")) == (PURPOSE_CATALOG, self._store.settings.contid):
            layout, end = Layout.of(block, storage.name), block.get("FILESIZE", 0)
            for _ in scan_intact(storage, layout, block["SBSIZE"], end, problem=found.append):
                pass
            if not found and not known:
                Catalog(storage.duplicate()).close()
        return found

    def _check_index(self, base: Base, found: Rebuilt) -> None:
        """Check that the index, with the changes of the tail, has exactly the live files."""
        add, rows, replaced = self._report.add, found.rows, self._replaced(base)
        if replaced is None:
            return  # the next opening makes it anew
        if base.covered < self._store.kv.end:
            rows = rows.take(rows.pos < base.covered)
        hashed = base.shape.cellsz > 1
        lost = lost_rows(base, rows) if hashed else []
        count = len(rows.pos) + len(replaced)
        if hashed and not lost and count_used(base) == count == base.live:
            return  # each file has a cell, and there are no others
        if count != base.live or not same_files(base, np.concatenate([rows.pos, replaced])):
            add(f"{base.storage.name}: its cells are not those of the files: run reindex")
            return
        for row in lost:
            add(f"{base.storage.name}: the file at byte {rows.pos[row]} cannot be found: "
                "run reindex")  # fmt: skip

    def _replaced(self, base: Base) -> Int64 | None:
        """Return positions in an index that the tail after it replaces or deletes, int64[..].

        ->  None if the tail does not record all changes
        """
        store, kv = self._store, self._store.kv
        index = Index(store.settings, base, store.key_at, store.is_bad)
        replay = Replay(kv, store.settings, index)
        replay.run(base.covered, kv.end, kv.end, store.note)
        return index.replaced() if replay.known else None

    def _check_times(self, times: TimeIndex | None) -> None:
        store = self._store
        if times is None:
            return
        path = store.base + ".time"
        loaded = TimeIndex.load(path, store.settings, store.kv.superblock, store.kv.end)
        if loaded is None:
            return
        mine, covered = loaded
        count, classic = len(mine.marks), store.settings.classic
        same = (mine.marks, mine.positions) == (times.marks[:count], times.positions[:count])
        same |= classic and times.explains(mine)
        if covered == store.kv.end:  # otherwise there may be later marks
            second = NANO if store.settings.nanoseconds else 1
            last = [None if t.last is None else t.last // second for t in (mine, times)]
            same &= last[0] == last[1]
            if mine.marks[-1:] == times.marks[-1:]:
                same &= mine.since == times.since or not times.marks
            else:
                same &= classic  # other programs may write fewer marks
        if not same:
            self._report.add(f"{path}: time marks do not fit the files: run reindex")

    def _check_catalog(self, catalog: Catalog, sorter: NameSorter, found: Rebuilt) -> None:
        store = self._store
        try:
            if not same_rows(store, catalog, sorter.rows(at_any(found.rows.pos))):
                what = "its rows are not those of the inodes: run reindex"
                self._report.add(f"{catalog.storage.name}: {what}")
        except CorruptError as error:
            self._report.add(f"{error}: run reindex")


def _one_line(error: Exception) -> str:
    """Return an error on one line, without its errno."""
    if isinstance(error, OSError) and not isinstance(error, WinkError):
        return f"{os.fsdecode(error.filename or '')}: {error.strerror}"
    return str(error)


def _bad_pages(storage: Storage) -> list[CorruptError]:
    """Return an error for each page whose checksum is wrong."""
    sums = PageSums.load(storage, read_superblock(storage))
    what = "the checksum of a page is wrong"
    bad = sums.bad_pages() if sums is not None else []
    return [CorruptError(what, file=storage.name, offset=at) for at in bad]


# --- info ---


def info(base: str, *, count: bool = True) -> Record:
    """Return what `winkfs info` prints of a container. count: False: only estimate the dead bytes.

    raises  FormatError if BASE.data is not the data file of a container; OSError
    cost    independent of the number of files, except that up to EXACT_BYTES, and always with
            compressed content, a pass over the entries counts the dead ones
    """
    with Store(base, writable=False, load=False) as store:
        settings, kv = store.settings, store.kv
        space = _space_record(kv, count)
        return {
            "base": base,
            "variant": "append only" if settings.ao else "plain",
            "classic": settings.classic,
            **_index_record(store),
            **_catalog_record(store),
            **({"fields": dict(store.schema)} if store.schema else {}),
            **space,
            **_compression_record(store, space),
            "last_sync": time_text(kv.superblock.get("SYNCTIME")),
            "clean": kv.superblock.get("SYNCSIZE", kv.end) == kv.end and not kv.truncated,
            "file_sizes": _sizes(base, kv.superblock),
            "problems": list(store.notes),
            "superblock": kv.superblock.record(),
        }


def _index_record(store: Store) -> Record:
    """Return the number of files, and how much of the data file BASE.idx covers.

    The number is None without an index, or if the tail is longer than a close leaves it.
    """
    kv = store.kv
    base = open_base(store.directory, store.name, store.settings, kv.superblock, kv.end)
    if base is None:
        return {"files": None, "index": {"current": False}}
    current = base.covered == kv.end
    load = round(base.live / base.shape.htsize, 3)
    index = {"current": current, "cells": base.shape.htsize, "load_factor": load}
    files: int | None = base.live
    if not current:
        index["tail_bytes"] = kv.end - base.covered
        files = _count(store.base) if kv.end - base.covered <= MERGE_TAIL else None
    if base.damaged:
        what = f"files in {base.damaged} damaged places are not in its index: run winkfs verify"
        store.note(f"{store.kv.storage.name}: {what}")
    base.storage.close()
    return {"files": files, "index": index}


def _count(base: str) -> int:
    """Return the number of files, including those in the tail. Cost: replays the tail."""
    with Store(base, writable=False) as store:
        return store.index.count


def _catalog_record(store: Store) -> Record:
    """Return facts of BASE.cat, if there is one: files, bytes and mtimes of its first run, and the
    number of later rows."""
    try:
        catalog = open_catalog(store)
    except OSError:
        return {}
    if catalog is None:
        return {"catalog": {"current": False}} if Path(store.base + ".cat").exists() else {}
    with catalog:
        runs = catalog.runs
        files, content, oldest, newest = runs[0].totals()
        record: Record = {"current": catalog.covered == store.kv.end, "files": files}
        record |= {"content_bytes": content, "runs": len(runs)}
        record |= {"changed_since": sum(run.count for run in runs[1:])} if len(runs) > 1 else {}
        if files:
            record |= {"oldest": time_text(oldest // NANO), "newest": time_text(newest // NANO)}
        return {"catalog": record}


def _space_record(kv: KVSeq, count: bool) -> Record:
    """Return the use of the bytes of the data file. Content is that of files, with holes."""
    block = kv.superblock
    used = kv.end - kv.start
    content, inodes = block.get("DTOTSZ", 0), block.get("ITOTSZ", 0)
    dead, exact = 0, kv.entries == kv.aentries
    if not exact:
        dead = used - content - inodes - ENTRY_OVERHEAD * kv.aentries
        dead = max(dead, min(ENTRY_OVERHEAD * (kv.entries - kv.aentries), used), 0)
        # The compressed size of contents is recorded nowhere else.
        if count and (used <= EXACT_BYTES or block.get("INCOMPAT", 0) & COMPRESSED):
            with suppress(FormatError):  # verify reports what is wrong
                dead, exact = dead_bytes(kv.storage, kv.layout, kv.start, kv.end), True
    return {
        "entries": kv.entries,
        "live_entries": kv.aentries,
        "content_bytes": content,
        "inode_bytes": inodes,
        "live_bytes": used - dead,
        "dead_bytes": dead,
        "dead_bytes_exact": exact,
    }


def _compression_record(store: Store, space: Record) -> Record:
    """Return how content is compressed, and its size on disk: all live entries but the inodes."""
    if not store.settings.compressed:
        return {}
    try:
        compression = store.frames.compression
    except CorruptError as error:
        store.note(error)
        return {}
    stored = space["live_bytes"] - space["inode_bytes"]
    content = space["content_bytes"]
    ratio = round(content / stored, 2) if content and stored > 0 else 1.0
    record = {
        "codec": "zstd",
        "level": compression.level,
        "dictionary_bytes": len(compression.dictionary),
        "compressed_bytes": stored,
        "ratio": ratio,
    }
    return {"compression": record}


def _sizes(base: str, superblock: Mapping[str, int]) -> Record:
    """Return the size of each file of the container, and its bytes on disk."""
    sizes = {}
    for suffix in FILES:
        if is_far(base):
            directory, name = locate(base)
            names = catalog_names(name, superblock) if suffix == ".cat" else [name + suffix]
            for there in names:
                if (found := directory.info(there)) is not None:
                    sizes[f"{directory.path}/{there}"] = {"size": found.size, "on_disk": found.size}
                    break
            continue
        path = Path(base + suffix)
        if path.exists():
            status = path.stat()
            sizes[base + suffix] = {"size": status.st_size, "on_disk": 512 * status.st_blocks}
    return sizes
