"""Verify, info and reindex of the results of jobs: digest sets and orders. See `registry`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from winkformats import hashing
from winkformats.arrays import Int64
from winkformats.disk.paths import locate, open_file
from winkformats.disk.storage import replacing
from winkformats.errors import CorruptError, FormatError
from winkformats.hindex.table import IndexRows
from winkformats.kv.pagesums import PageSums
from winkformats.kv.scan import scan_intact
from winkformats.perm import Perm
from winkfs.container.checks import count_used, lost_rows
from winkfs.container.store import Store
from winkfs.container.verify import Report
from winkfs.errors import Refusal
from winkfs.results import orders
from winkfs.results import store as results
from winkfs.results.digests import Digests, shard_of
from winkfs.results.digestshard import RECORD_HEAD, DigestShard
from winkfs.results.orders import Order, Range

Progress = Callable[[int], None]
FAULTS: Final = (FormatError, Refusal, OSError)


# --- digest sets ---


def verify_digests(path: str, progress: Progress | None = None) -> Report:
    """Check the record, every digest and every cell of a digest set.

    progress  called with the number of bytes read since the last call
    ->        a report, which contains all damage
    raises    NoSuchFile
    cost      reads all files; memory: 200 bytes for each digest of a shard
    """
    report = Report()
    try:
        found = Digests(path, warn=False)
    except FormatError as error:
        report.add(str(error))
        return report
    _check_record(report, path, "digests", "digest set")
    with found:
        for number in range(found.shards):
            try:
                _check_shard(found, number, report, progress)
            except FAULTS as error:
                report.add(str(error))
        if report.files != len(found) and not report.problems:
            report.add(f"{path}: has {report.files} digests, its record has {len(found)}")
    return report


def _check_record(report: Report, path: str, name: str, what: str) -> None:
    """Report a damaged record; its copy is intact, since the result could be opened."""
    if wrong := results.damage(path, name, what):
        report.add(f"{wrong}, its copy is good")


def _check_shard(found: Digests, number: int, report: Report, progress: Progress | None) -> None:
    shard = found.shard(number)
    if shard.damage is not None:
        report.add(f"{shard.damage}; the other superblock is good")
    last: dict[bytes, tuple[int, int]] = {}  # path -> position, delflag
    damage: list[object] = []
    for batch in scan_intact(
        shard.storage, shard.layout, shard.start, shard.end,
        problem=damage.append, progress=progress,
    ):  # fmt: skip
        report.entries += len(batch)
        report.bytes += int((batch.end - batch.at).sum())
        bad = np.flatnonzero(batch.value_len < RECORD_HEAD.size)
        damage += [f"{shard.storage.name}: bad digest at byte {pos}" for pos in batch.pos[bad]]
        good = np.setdiff1d(np.arange(len(batch)), bad)
        places = zip(batch.pos[good].tolist(), batch.flags[good].tolist(), strict=True)
        last.update(zip(batch.keys(good), places, strict=True))
    for problem in damage:
        report.add(str(problem))
    s, _ = hashing.hash_keys(hashing.XXH3, last)
    pos = np.array([place for place, _ in last.values()], np.int64)
    report.files += len(last)
    name = shard.storage.name
    for place, flag in last.values():
        if flag:
            report.add(f"{name}: the digest at byte {place} is marked deleted, but is the last")
    for place in pos[shard_of(s, found.shards) != np.uint64(number)].tolist():
        report.add(f"{name}: the digest at byte {place} belongs to another shard")
    if len(last) != shard.entries:
        report.add(f"{name}: has {len(last)} digests, the record has {shard.entries}")
    _check_index(shard, IndexRows(s, None, pos), report, whole=not damage)


def _check_index(shard: DigestShard, rows: IndexRows, report: Report, *, whole: bool) -> None:
    """Compare an index with the rows of its shard; whole: no row is missing."""
    base = shard.index
    if shard.index_damage:
        report.add(f"{shard.index_damage}: run reindex")
        return
    for at in base.sums.bad_pages() if base.sums is not None else ():
        report.add(f"{base.storage.name}: the checksum of a page is wrong at byte {at}: "
                   "run reindex")  # fmt: skip
    lost = lost_rows(base, rows)
    if lost or (whole and count_used(base) != len(rows.pos)):
        report.add(f"{base.storage.name}: its cells are not those of the digests, {len(lost)} "
                   "cannot be found: run reindex")  # fmt: skip


def reindex_digests(
    path: str,
    progress: Progress | None = None,
    *,
    problem: Callable[[str], None] = lambda line: None,
) -> int:
    """Rebuild the indexes of all shards -> number of digests in them.

    problem  called with a line for each shard with a damaged digest, which keeps its index: in a
             new one the digest would be missing without an error
    raises   NoSuchFile; FormatError; OSError
    """
    done = 0
    with Digests(path, warn=False) as found:
        for number in range(found.shards):
            shard = found.shard(number)
            directory, name = locate(os.fspath(found.index_path(number)))
            try:
                with replacing(directory, name, like=shard.storage) as storage:
                    shard.save_index(storage)
                done += shard.entries
            except CorruptError as error:
                problem(f"{error}: no index of it is written")
            if progress is not None:
                progress(shard.end)
    return done


def info_digests(path: str) -> dict[str, Any]:
    """Return what `winkfs info` shows. Raises NoSuchFile; FormatError."""
    with Digests(path) as found:
        rest = {k: v for k, v in found.record.items() if k not in ("shards", "entries")}
        sizes = sum(int(shard["size"]) for shard in found.record["shards"])
        counts = {"digests": len(found), "shards": found.shards, "shard_bytes": sizes}
        return {"digest_set": path} | counts | rest


# --- orders ---


def verify_order(path: str, progress: Progress | None = None) -> Report:
    """Check the record and every row of an order, also against the shards that still exist.

    ->      a report, which contains all damage
    raises  NoSuchFile
    cost    reads all rows, opens each shard
    """
    report = Report()
    try:
        order = orders.open(path)
    except FormatError as error:
        report.add(str(error))
        return report
    _check_record(report, path, orders.NAME, "order")
    parts = []
    for number in range(len(order.parts)):
        try:
            parts.append(_check_part(order, number, report))
        except FAULTS as error:
            report.add(str(error))
        if progress is not None:
            progress(16 * order.parts[number].rows)
    report.files = report.entries = order.rows
    report.bytes = sum(part.size for part in order.parts)
    if parts:
        shard, pos = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        _check_files(order, shard, pos, report)
    return report


def _check_part(order: Order, number: int, report: Report) -> tuple[Int64, Int64]:
    """Check a part -> shard and position of each row, int64[n]. Raises FormatError; OSError."""
    path, part = order.folder / order.parts[number].file, order.parts[number]
    with open_file(path) as storage:
        sums = PageSums.load(storage, Perm.open(storage).superblock)
        wrong = sums.bad_pages() if sums is not None else []
    if wrong:
        raise CorruptError("the checksum of a page is wrong", file=str(path), offset=wrong[0])
    rows = order.read(Range(number, 0, part.rows))
    steps = np.diff(rows.group, prepend=0)
    groups = int(rows.group[-1]) + 1 if len(rows.group) else 0
    if ((steps < 0) | (steps > 1)).any() or groups != part.groups:
        report.add(f"{path}: its groups are not those of the record")
    if len(rows.shard) and int(rows.shard.max()) >= len(order.shards):
        raise FormatError(f"{path}: names a shard that the record does not have")
    return rows.shard, rows.pos


def _check_files(order: Order, shard: Int64, pos: Int64, report: Report) -> None:
    """Check that each row is the inode of a file, and no file comes twice."""
    for number, ordered in enumerate(order.shards):
        base = f"{order.root}/{ordered.path}" if ordered.path else order.root
        mine = np.sort(pos[shard == number])
        twice = mine[1:][mine[1:] == mine[:-1]]
        for at in twice.tolist():
            report.add(f"{order.folder}: has the file at byte {at} of {base}.data twice")
        if not Path(base + ".data").exists():
            report.notes.append(f"{base}.data is not there: its rows are not checked")
            continue
        try:
            store = Store(base, writable=False)
        except FAULTS as error:
            report.notes.append(f"{error}: its rows are not checked")
            continue
        try:
            if store.settings.contid != ordered.contid or store.kv.end < ordered.size:
                report.add(f"{base}.data: not the shard that was ordered: make the order anew")
                continue
            live = store.index.positions()
            for at in mine[~np.isin(mine, live)].tolist():
                try:
                    store.inode_at(at)  # valid, too: a file that was live when it was ordered
                except FormatError:
                    what = f"points to byte {at} of {base}.data, which is no file"
                    report.add(f"{order.folder}: {what}")
        except FAULTS as error:
            report.add(str(error))
        finally:
            store.abandon()


def info_order(path: str) -> dict[str, Any]:
    """Return what `winkfs info` shows. Raises NoSuchFile; FormatError."""
    order = orders.open(path)
    head = {"order": path, "kind": order.kind, "key": order.key}
    source = {"source": order.root, "generation": order.generation, "shards": len(order.shards)}
    content = sum(part.size for part in order.parts)
    counts = {"files": order.rows, "groups": order.groups, "parts": len(order.parts)}
    return head | source | counts | {"content_bytes": content}
