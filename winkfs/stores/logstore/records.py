"""Records of a LogStore as `Records`, with recids as decimal text; verify and salvage.

A null record has no bytes here.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.logstore.entry import HEAD, IS_BLOB, LENGTH, Entries
from winkfs.container.verify import Report
from winkfs.errors import CorruptError, FormatError, NoSuchFile
from winkfs.names import Name
from winkfs.stores.logstore.compact import usage
from winkfs.stores.logstore.log import Log
from winkfs.stores.logstore.store import LogStore
from winkfs.stores.records import HandleRecords, Ids, Part, Progress, Row, batches, building

RECID: Final = re.compile(r"[1-9][0-9]{0,9}")
ROWS_AT_ONCE: Final = 1 << 14  # rows made at a time
COMMIT_BYTES: Final = 4 << 20  # bytes of a commit of salvage


class LogRecords(HandleRecords):
    """Records of a LogStore. `sync` commits what was put or removed."""

    numbers = True
    store: LogStore

    def __init__(self, path: str, mode: str = "r") -> None:
        """Raises as `LogStore` does."""
        super().__init__(path)
        self.store = LogStore(path, mode)

    # --- to read ---

    @property
    def stored_bytes(self) -> int:
        return int(self.stats()["file_bytes"] + self.stats()["blob_bytes"])

    def rows(self, *parts: Part) -> Iterator[Row]:
        """See `Records.rows`. Cost: a sort of the positions; memory: 24 bytes a record."""
        log = self.store._log
        found = [some for some in self.store._view().parts() if len(some.recids)]
        if not found:
            return
        all_ = Entries(*map(np.concatenate, zip(*found, strict=True)))
        ages = log.ages(all_.positions)
        if parts:
            numbers = [int(part.file.rpartition("/")[2], 16) for part in parts]
            which = np.flatnonzero(np.isin(ages, list(map(log.age, numbers))))
            all_, ages = all_.take(which), ages[which]
        order = np.lexsort((all_.positions, ages))
        for start in range(0, len(order), ROWS_AT_ONCE):
            yield from self._rows(all_.take(order[start : start + ROWS_AT_ONCE]))

    def _rows(self, some: Entries) -> Iterator[Row]:
        log = self.store._log
        sizes = self._sizes(some).tolist()
        names: dict[int, str] = {}
        for recid, position, size in zip(
            some.recids.tolist(), some.positions.tolist(), sizes, strict=True
        ):
            number, offset = log.layout.split(position)
            name = names.get(number) or names.setdefault(number, log.files.name(number))
            yield Row(str(recid), size, name, offset)

    def _sizes(self, some: Entries) -> Int64:
        """Return the bytes of the bodies."""
        sizes: Int64 = (some.lengths & LENGTH) - HEAD.size
        for i in np.flatnonzero(some.lengths & IS_BLOB).tolist():
            sizes[i] = self.store._log.blob_at(int(some.recids[i]), int(some.positions[i])).size
        return sizes

    def listing(self) -> Iterator[tuple[Ids, Int64]]:
        for some in self.store._view().parts():
            yield some.recids.astype(np.int64), (some.lengths & LENGTH).astype(np.int64)

    def data_files(self) -> list[Part]:
        files = self.store._log.files
        return [Part(files.name(n), files.size(n)) for n in self.store._log.numbers]

    def row(self, id: str) -> Row:
        recid = _recid(id)
        found = self.store._view().get_many(np.array([recid]))
        if not int(found.positions[0]):
            raise NoSuchFile(f"no record {recid}", self.base)
        return next(self._rows(found))

    def find(self, ids: Iterable[str]) -> Iterator[Row]:
        found = self.store._view().get_many(np.array(list(map(int, ids)), np.int64))
        yield from self._rows(found.take(np.flatnonzero(found.positions)))

    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        for some in batches(rows):
            for body in self.store.get_many([_recid(row.id) for row in some]):
                yield body or b""

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        body = self.store.get(_recid(os.fsdecode(name))) or b""
        return body[offset:] if size < 0 else body[offset : offset + size]

    def stats(self) -> dict[str, Any]:
        store = self.store
        log, view = store._log, store._view()
        files = usage(log, view)
        blobs = [log.files.blob.info(name) for name in log.files.blob.list()]
        return {
            "records": len(view),
            "bytes": sum(one.live for one in files),
            "files": len(files),
            "file_bytes": sum(one.size for one in files),
            "dead_bytes": sum(one.size - one.live for one in files),
            "blobs": len(blobs),
            "blob_bytes": sum(info.size for info in blobs if info is not None),
            "generations": sorted(log.used),
            "oldest_generation": log.oldest,
            "recids": log.table.top - 1,
            "memory": log.table.memory,
            "notes": store.notes,
        }

    # --- to write ---

    def put(self, id: str | None, body: bytes) -> str:
        """Update a record, or add one if `id` is None. Raises NoSuchFile for an unknown id."""
        if id is None:
            return str(self.store.put(body))
        self.store.update(_recid(id), body)
        return id

    def remove(self, id: str) -> None:
        self.store.delete(_recid(id))

    def sync(self) -> None:
        self.store.commit(sync=True)

    def compact(self, progress: Progress | None = None, *, dry_run: bool = False) -> dict[str, Any]:
        done = self.store.compact(progress, dry_run=dry_run)
        after = done["bytes"] - done["freed"]
        return {"files": done["files"], "bytes_before": done["bytes"], "bytes_after": after}


def _recid(id: str) -> int:
    if not RECID.fullmatch(id):
        raise ValueError(f"{id!r} is no id of a LogStore: a decimal number from 1 on")
    return int(id)


# --- functions of the kind ---


@functools.wraps(LogStore.create)
def create(path: str, **options: Any) -> None:
    LogStore.create(path, **options).close()


def info(path: str) -> dict[str, Any]:
    """Return the settings and `LogRecords.stats`."""
    with LogRecords(path) as records:
        layout = records.store._log.layout
        settings = {"file_size": layout.largest, "cutoff": layout.cutoff}
        record = {"base": path, "kind": "log store", **settings}
        return record | records.stats() | {"problems": records.problems}


def verify(path: str, progress: Progress | None = None) -> Report:
    """Check all data files, every checksum, all blobs, and the saved table against the log."""
    report = Report()
    try:
        with LogStore(path) as store:
            _check(store, Log(path, full=True, progress=progress), report)
    except NoSuchFile:
        raise
    except (FormatError, OSError) as error:
        report.add(str(error))
    return report


def _check(store: LogStore, full: Log, report: Report) -> None:
    try:
        for problem in dict.fromkeys([*full.problems, *store.problems]):
            report.add(problem)
        report.notes += full.notes
        if full.torn:
            report.notes.append(f"{full.torn} bytes behind the last commit are not committed")
        store.refresh()
        full.refresh()
        view, other = store._view(), full.table.view()
        same = (full.scan.number, full.scan.end) == (store._log.scan.number, store._log.scan.end)
        for some in other.parts():
            report.files += len(some.recids)
            report.bytes += int((some.lengths & LENGTH).sum())
            wrong = some.recids[view.get_many(some.recids).positions != some.positions]
            if same and len(wrong) and not full.problems:
                report.add(f"{store.path}: the index table has another place of record {wrong[0]}")
        if same and not full.problems and len(view) != report.files:
            report.add(f"{store.path}: the index table has records that are not in the log")
        report.entries = report.files
        for some in other.parts():
            for recid in some.recids[(some.lengths & IS_BLOB) != 0].tolist():
                try:
                    report.bytes += len(store.get(recid) or b"")
                except NoSuchFile:  # it was deleted meanwhile
                    continue
                except (CorruptError, OSError) as error:
                    report.add(f"{store.path}: record {recid}: {error}")
    finally:
        full.close()


def salvage(path: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
    """Copy what is whole of a damaged store into a new one, with its recids.

    Whole records of a damaged transaction are copied. If the newest version of a record is
    damaged, the copy may have an older one.

    ->      records, bytes, lost (recids), problems
    raises  FileExists; NoSuchFile; CorruptError if the settings are damaged
    """
    log = Log(path, full=True, progress=progress)
    try:
        layout = log.layout
        with (
            building(target, "log store") as folder,
            LogStore.create(
                folder,
                file_size=layout.largest,
                cutoff=layout.cutoff,
                save_every=layout.every,
                file_bits=layout.file_bits,
                generation_bits=layout.generation_bits,
            ) as made,
        ):
            report = _copy(log, made)
        return report | {"problems": log.problems}
    finally:
        log.close()


def _copy(log: Log, made: LogStore) -> dict[str, Any]:
    records, size, lost = 0, 0, list[int]()
    transaction, waiting = made.begin(), 0
    for some in log.table.view().parts():
        columns = (column.tolist() for column in some)
        for recid, position, length in zip(*columns, strict=True):
            try:
                body = log.read(recid, position, length)
            except (CorruptError, OSError):
                lost.append(recid)
                continue
            records, size = records + 1, size + len(body or b"")
            transaction.restore(recid, body)
            waiting += len(body or b"") + HEAD.size
            if waiting >= COMMIT_BYTES:
                transaction.commit(sync=False)
                transaction, waiting = made.begin(), 0
    transaction.commit()
    return {"records": records, "bytes": size, "lost": lost}
