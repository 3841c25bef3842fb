"""What is said of a whole data set: verify, reindex, info."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from winkformats.errors import FormatError
from winkfs import maintenance, verification
from winkfs.columnsfile import open_columns
from winkfs.dataset.hidden import hidden_rows
from winkfs.dataset.hiddenfile import read_hidden
from winkfs.dataset.manifest import PENDING, Folder, Log
from winkfs.dataset.records import ShardRecord, State
from winkfs.dataset.shard import Shard
from winkfs.dataset.snapshot import snapshot_of
from winkfs.dataset.survey import describe
from winkfs.dataset.transaction import MARK
from winkfs.errors import WinkError
from winkfs.units import NANO
from winkfs.verification import Report

Progress = Callable[[int], None]
FAULTS: Final = (FormatError, WinkError)


def verify(root: str, progress: Progress | None = None) -> Report:
    """Check the manifests, every shard of the kept generations, and the records of shards.

    ->      one report; `files` are those to be seen now; damage of one shard is that of its files
    raises  NoSuchFile
    cost    that of all shards, see `winkfs.verification.verify`
    """
    log, report = Log(root), Report()
    state = _check_manifests(log, report)
    if state is None:
        return report
    for record in state:
        _check_shard(root, record, report, progress)
    report.notes += [f"{path}: no generation has it: vacuum removes it" for path in
                     orphans(root, {record.path for record in state})]  # fmt: skip
    _check_hidden(log, report)
    return report


def _check_manifests(log: Log, report: Report) -> list[ShardRecord] | None:
    """-> the shards of all kept generations."""
    try:
        newest = log.latest()
        first = log.state(newest.oldest)
    except FAULTS as error:
        report.add(str(error))
        return None
    records = {record.path: record for record in first.shards}
    before = first
    for number in range(newest.oldest + 1, newest.generation + 1):
        try:
            manifest = log.read(number)
            before = manifest.apply(before)
            if manifest.checkpoint not in (None, before):
                report.add(f"{log.root}: checkpoint {number} is not what the manifests before it "
                           "say")  # fmt: skip
        except FAULTS as error:
            report.add(str(error))
            if number < newest.generation:
                break
        records |= {record.path: record for record in before.shards}
    records |= {record.path: record for record in newest.shards}
    return list(records.values())


def _check_shard(root: str, record: ShardRecord, report: Report, progress: Progress | None) -> None:
    shard = Shard(f"{root}/{record.path}", record)
    try:
        shard.open(load=False).abandon()
        found = verification.verify(shard.base, progress)
    except (*FAULTS, OSError) as error:
        report.add(str(error))
        return
    for problem in found.problems:
        report.add(problem)
    report.more += found.more
    report.entries += found.entries
    report.bytes += found.bytes
    if found.problems:
        return
    try:
        tombs_at = record.tombs_at if record.tombstones else 0
        seen = describe(shard.base, record.path, tombs_at, open_columns(shard.base))
    except (*FAULTS, OSError) as error:
        report.add(str(error))
        return
    if replace(seen, rank=record.rank) != record:
        report.add(f"{shard.base}: is not what its manifest says of it")


def _check_hidden(log: Log, report: Report) -> None:
    """What is kept of hidden rows must be what the shards say."""
    try:
        state = log.latest()
        snapshot = snapshot_of(log, state)
        report.files = snapshot.files
        path = Folder(f"{log.root}/_winkfs").file(state.generation, ".hidden")
        if not Path(path).exists():
            return
        kept, made = read_hidden(path, state.digest), hidden_rows(log.root, state.shards, {})
        same = all(np.array_equal(kept.get(name, []), rows) for name, rows in made.items())
        if not same:
            report.add(f"{path}: is not what the shards say: remove it, it is made anew")
    except (*FAULTS, OSError) as error:
        if str(error) not in report.problems:  # a shard that is gone was told already
            report.add(str(error))


def orphans(root: str, named: set[str]) -> Iterator[str]:
    """Paths, without suffix, of containers in folders of jobs that `named` has not; and of jobs
    that were begun and neither committed nor aborted."""
    for job in sorted(_listed(root)):
        names = _listed(f"{root}/{job}") if job[0] not in "._" else []
        if MARK not in names:
            continue
        stems = {name.rpartition(".")[0] for name in names if name != MARK}
        strange = sorted({f"{job}/{stem}" for stem in stems} - named)
        if strange or not stems:
            yield from (f"{root}/{path}" for path in strange or [job])
    yield from (f"{root}/{PENDING}/{job}" for job in sorted(_listed(f"{root}/{PENDING}")))


def _listed(folder: str) -> list[str]:
    """What is in a folder; nothing where it is none, or no more."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def reindex(root: str, progress: Progress | None = None, *, cols: bool = True) -> int:
    """Make all that is derived anew, shard by shard, and what is kept of hidden rows.

    ->      number of files to be seen
    raises  NoSuchFile; StalePlan (a shard is gone, or another); Locked; CorruptError
    """
    log = Log(root)
    state = log.latest()
    for record in state.shards:
        shard = Shard(f"{root}/{record.path}", record)
        shard.open(load=False).abandon()
        maintenance.reindex(shard.base, progress, cols=True)
        Path(shard.base + ".lock").unlink(missing_ok=True)
    for name in os.listdir(f"{root}/_winkfs"):
        if name.endswith(".hidden"):
            Path(f"{root}/_winkfs/{name}").unlink()
    return snapshot_of(log, state).files


def info(root: str) -> dict[str, Any]:
    """What `winkfs info` shows. Raises NoSuchFile; FormatError; StalePlan."""
    log = Log(root)
    state = log.latest()
    shards = snapshot_of(log, state).shards
    files = sum(shard.files for shard in shards)
    return {
        "base": root,
        "variant": "data set",
        "generation": state.generation,
        "oldest_generation": state.oldest,
        "committed": time_text(state.time_ns),
        "files": files,
        "hidden_files": sum(len(shard.hidden) for shard in shards),
        "tombstones": sum(shard.record.tombstones for shard in shards),
        "shard_content_bytes": sum(shard.record.content for shard in shards),
        "shards": len(shards),
        "shard_bytes": sum(shard.record.size for shard in shards),
        "append_only_shards": sum(shard.record.ao for shard in shards),
        "first_mtime": time_text(min(_mtimes(state, "mtime_min"), default=None)),
        "last_mtime": time_text(max(_mtimes(state, "mtime_max"), default=None)),
        "streams": {query: batch for query, (batch, _) in state.streams.items()},
        "unpublished_jobs": len(_listed(f"{root}/{PENDING}")),
    }


def _mtimes(state: State, field: str) -> list[int]:
    found = [getattr(record, field) for record in state.shards]
    return [mtime for mtime in found if mtime is not None]


def time_text(ns: int | None) -> str | None:
    """ISO 8601 in UTC; None for none, and for what is no time a calendar knows."""
    if ns is None:
        return None
    try:
        when = datetime.fromtimestamp(ns // NANO, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
