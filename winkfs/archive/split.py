"""Split: the files of a container or a data set into several containers, or into one data set.

Each container is built beside its name, and then has a hash of the source and of the rule in its
index, as PACKROOT. So the same call again begins with the first container that is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.disk.paths import directory_of
from winkfs.archive.copyfiles import (
    Choice,
    CopyReport,
    Path,
    Plan,
    Progress,
    Source,
    adopt_dictionary,
    like,
    opened,
)
from winkfs.archive.items import Note, Notes
from winkfs.archive.update import Mark
from winkfs.container.building import building
from winkfs.container.container import open as open_container
from winkfs.container.handle import check_columns
from winkfs.container.ondisk.compressed import word_of
from winkfs.container.table import FileTable
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.dataset.records import Manifest, ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import begun
from winkfs.errors import FileExists
from winkfs.names import DATA, PARTIAL, base_of
from winkfs.remote import refuse_far

PER_FILE: Final = 256  # approximate bytes of a file beside its content and name
NULL: Final = "_null"  # in place of the value of a column; no value is written so
TOP: Final = "_top"
PLAIN: Final = re.compile(rb"[A-Za-z0-9.-]")
SPLIT: Final = "split"  # key in the metrics of a generation
OTHER: Final = "is there already, and was not made by this split: remove it, or choose another name"
LOST: Final = "it lacks {} damaged files of the source"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by which files are divided: one of these is set.

    size    bytes of a container, about; a larger file has one for itself
    files   files of a container
    depth   files whose names have their first `depth` directories in common are together
    by      a column: files with equal values are together
    shards  shards of one data set, of even size
    """

    size: int | None = None
    files: int | None = None
    depth: int | None = None
    by: str | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in self._values if value is not None]
        if len(given) != 1:
            raise ValueError("give one rule: size, files, depth, by or shards")
        if isinstance(given[0], int) and given[0] < 1:
            raise ValueError(f"a rule takes a number from 1 on, not {given[0]}")

    @property
    def _values(self) -> tuple[Any, ...]:
        return self.size, self.files, self.depth, self.by, self.shards

    def mark(self, source: Source) -> int:
        """Return the number by which a container records that it was made so, 63 bits."""
        snapshot = source.snapshot
        state: list[Any] = [(shard.record.contid, shard.record.size) for shard in snapshot.shards]
        if snapshot.generation:
            state = [Log(snapshot.root).read(snapshot.generation).job, snapshot.generation]
        return xxhash.xxh3_64_intdigest(repr((state, self._values)).encode()) >> 1


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one new container. rows: their numbers in the table, ascending, int64[n]."""

    name: str
    rows: Int64


def split(
    source: Path,
    out: Path,
    *,
    size: int | None = None,
    files: int | None = None,
    depth: int | None = None,
    by: str | None = None,
    shards: int | None = None,
    note: Notes | None = None,
    made: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy the files of a container or a data set into several containers, or into one data set.

    One rule is given. Containers of `size` bytes and of `files` files are called OUT-0, OUT-1 ...,
    in the order of the source; the others OUT-VALUE, with all but letters, digits, "." and "-" of
    VALUE as %XX, and the dot of a ".data" or ".partial" at its end.
    size    bytes of a container, about; a larger file has a container for itself
    files   files of a container
    depth   VALUE is the first `depth` directories of the name; files at the top are in OUT-_top
    by      VALUE is that of a column; files without one are in OUT-_null
    shards  the data set `out` of so many shards of even size, in one commit
    note    called with each damaged file, which is left out
    made    called with the path of each container that is complete
    ->      counts of what was copied; unchanged: files of containers that were there
    raises  FileExists for a container of another split, before anything is written; as `copy`
    cost    as `copy`; a container that is there is only opened
    """
    rule, base, report = Rule(size, files, depth, by, shards), os.fspath(out), CopyReport()
    refuse_far(base)

    def count(noted: Note) -> None:
        report.failed += noted.failed
        if note:
            note(noted)

    with opened(source) as found:
        mark = rule.mark(found)
        if shards is not None:
            _into_shards(found, base.rstrip("/"), rule, mark, report, count, made, progress)
        else:
            _into_containers(found, base, rule, mark, report, count, made, progress)
        for problem in found.problems():
            count(Note(b"", problem, True))
    return report


def _into_containers(
    source: Source,
    base: str,
    rule: Rule,
    mark: int,
    report: CopyReport,
    note: Notes,
    made: Callable[[str], None] | None,
    progress: Progress | None,
) -> None:
    """Make the containers that are not there."""
    if base.endswith("/"):
        raise ValueError(f"{base}: name the containers: OUT becomes OUT-0 or OUT-VALUE")
    columns = [] if rule.by is None else [rule.by]
    check_columns(columns, source.columns)
    plan = Plan([source], Choice(), b"", note)
    plan.list(columns)
    groups = groups_of(plan, rule, source)
    bases = [f"{base}-{group.name}" for group in groups]
    marks = [_mark_of(one) for one in bases]
    for one, known in zip(bases, marks, strict=True):
        if known is not None and known.root != mark:
            raise FileExists(OTHER, one)
    for one, known, group in zip(bases, marks, groups, strict=True):
        if known is not None:
            report.unchanged += len(group.rows)
            if known.since:
                note(Note(os.fsencode(one), LOST.format(known.since), True))
            continue
        before = report.failed
        with building(one, **like(source, source.columns)) as container:
            adopt_dictionary(container, source)
            plan.part_of(group.rows).run(container, report, progress, sync=False)
            container.save_catalog()
            Mark(mark, report.failed - before + source.lost_files, 0).keep(container)
        if made:
            made(one)


def _mark_of(base: str) -> Mark | None:
    """Return the mark of a container, zeros if it has none; None: there is no container."""
    if not os.path.lexists(base_of(base) + DATA):
        return None
    with contextlib.closing(open_container(base)) as found:
        packed = found.store.packed
    return Mark(packed.get("PACKROOT", 0), packed.get("PACKTIME", 0), packed.get("PACKEND", 0))


# --- rules ---


def groups_of(plan: Plan, rule: Rule, source: Source) -> list[Group]:
    """Return the files of each new container."""
    rows = plan.table
    order = plan.in_order()
    if rule.files is not None:
        ends = list(range(rule.files, len(rows), rule.files))
        return _numbered(np.split(order, ends) if len(rows) else [])
    if rule.size is not None:
        cost = np.cumsum((rows.size + rows.name_lengths + PER_FILE)[order])
        return _numbered(np.split(order, _full(cost, rule.size)) if len(rows) else [])
    if rule.depth is not None:
        return _by_value(_folders(rows, rule.depth), order, TOP)
    return _by_value(_column(rows, rule.by or "", source), order, NULL)


def _numbered(parts: Sequence[Int64]) -> list[Group]:
    return [Group(str(number), np.sort(rows)) for number, rows in enumerate(parts)]


def _full(cost: Int64, most: int) -> list[int]:
    """Return after which files a container is full. cost: bytes up to the end of each."""
    ends, at, before = list[int](), 0, 0
    while True:
        at = max(int(np.searchsorted(cost, before + most, "right")), at + 1)
        if at >= len(cost):
            return ends
        ends.append(at)
        before = int(cost[at - 1])


def _folders(rows: FileTable, depth: int) -> list[bytes | None]:
    """Return the first `depth` directories of each name, None of a file at the top."""
    lasts = zip(rows.names, rows.directories.tolist(), strict=True)
    folders = (name if folder else name.rpartition(b"/")[0] for name, folder in lasts)
    return [b"/".join(folder.split(b"/", depth)[:depth]) or None for folder in folders]


def _column(rows: FileTable, name: str, source: Source) -> list[bytes | None]:
    return rows.typed({name: source.columns[name]})[0]


def _by_value(values: Sequence[bytes | None], order: Int64, none: str) -> list[Group]:
    """Return groups of equal values, by the first file of each in the order of the source.

    none  name of the group without a value
    """
    found: dict[bytes | None, list[int]] = {}
    for i in order.tolist():
        found.setdefault(values[i], []).append(i)
    return [
        Group(none if value is None else _spelt(value), np.sort(np.array(rows)))
        for value, rows in found.items()
    ]


def _spelt(value: bytes) -> str:
    single = (value[i : i + 1] for i in range(len(value)))
    name = "".join(char.decode() if PLAIN.fullmatch(char) else f"%{char[0]:02X}" for char in single)
    for end in (DATA, PARTIAL):  # else it could be a file of the container of another value
        name = name.removesuffix(end) + end.replace(".", "%2E") if name.endswith(end) else name
    return name


# --- one data set ---


def _into_shards(
    source: Source,
    root: str,
    rule: Rule,
    mark: int,
    report: CopyReport,
    note: Notes,
    made: Callable[[str], None] | None,
    progress: Progress | None,
) -> None:
    """Make the data set `root`, which is written beside it and renamed."""
    if is_dataset(root):
        known = _split_of(root)
        if known.get("root") != mark:
            raise FileExists(OTHER, root)
        report.unchanged += known["files"]
        if known["failed"]:
            note(Note(os.fsencode(root), LOST.format(known["failed"]), True))
        return
    if os.path.lexists(root):
        raise FileExists(OTHER, root)
    above, name = os.path.split(os.path.abspath(root))
    directory, partial = directory_of(above), name + PARTIAL
    directory.remove_tree(partial)
    plan = Plan([source], Choice(), b"", note)
    plan.list()
    order = plan.in_order()
    cost = np.cumsum((plan.table.size + plan.table.name_lengths + PER_FILE)[order])
    total = int(cost[-1]) if len(cost) else 0
    shares = [total * number // (rule.shards or 1) for number in range(1, rule.shards or 1)]
    cuts = np.searchsorted(cost, shares)
    try:
        groups = np.split(order, cuts)
        _write_shards(source, f"{above}/{partial}", groups, plan, mark, report, progress)
        directory.rename(partial, name)
        directory.sync()
    except BaseException:
        directory.remove_tree(partial)
        raise
    if made:
        made(root)


def _split_of(root: str) -> dict[str, Any]:
    """Return what the split that made a data set has recorded; empty: none has."""
    for _, manifest in Log(root).history():
        if isinstance(manifest, Manifest) and isinstance(manifest.metrics.get(SPLIT), dict):
            return dict(manifest.metrics[SPLIT])
    return {}


def _write_shards(
    source: Source,
    root: str,
    groups: Sequence[Int64],
    plan: Plan,
    mark: int,
    report: CopyReport,
    progress: Progress | None,
) -> None:
    newest = source.newest
    ao = newest is not None and newest.ao
    level = newest.store.frames.level if newest is not None else 0
    settings = {"ao": ao, "columns": source.columns, "compress": word_of(level) or None}
    with begun(root) as transaction:
        records = list[ShardRecord]()
        for number, rows in enumerate(groups):
            if not len(rows) and records:
                continue
            with ShardWriter(transaction, f"{number:05}", **settings) as writer:
                adopt_dictionary(writer.container, source)
                plan.part_of(np.sort(rows)).run(writer.container, report, progress, sync=False)
                records.append(writer.finish())
        files = report.files + report.directories + report.links
        metrics = {
            SPLIT: {"root": mark, "files": files, "failed": report.failed + source.lost_files}
        }
        transaction.commit(records, metrics=metrics)
