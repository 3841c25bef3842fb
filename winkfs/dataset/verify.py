"""Maintenance of a whole data set: verify, reindex, info."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from winkformats.disk.paths import directory_of, locate
from winkformats.disk.storage import Directory
from winkformats.errors import FormatError
from winkfs.container.reindex import reindex as reindex_container
from winkfs.container.verify import Report
from winkfs.container.verify import verify as verify_container
from winkfs.dataset.folder import COPY, FarFolder
from winkfs.dataset.hidden import HIDDEN, hidden_rows, read_hidden
from winkfs.dataset.jobfolder import JOB_MARK
from winkfs.dataset.manifest import PENDING, Log
from winkfs.dataset.records import ShardRecord, State
from winkfs.dataset.shard import Shard, described
from winkfs.dataset.snapshot import snapshot_of
from winkfs.errors import LostShard, Refusal
from winkfs.units import NANO, time_text

Progress = Callable[[int], None]
BESIDE: Final = (".part", ".hidden")  # suffixes of files beside the shards, on object storage
FAULTS: Final = (FormatError, Refusal)


def verify(root: str, progress: Progress | None = None, *, jobs: int = 1) -> Report:
    """Check the manifests, all shards of the kept generations, and the records of shards.

    jobs    processes that check shards
    ->      one report of all; `files` counts the visible files of the newest generation
    raises  NoSuchFile
    cost    that of all shards, see `winkfs.container.verify.verify`
    """
    log, report = Log(root), Report()
    if isinstance(log.store, FarFolder):
        log.store.take_hint()
    records = check_manifests(log, report)
    if jobs > 1:
        _check_at_once(root, records, report, progress, jobs)
    else:
        for record in records:
            _check_shard(root, record, report, progress)
    report.notes += [f"{path}: no generation has it: vacuum removes it" for path in
                     orphans(root, {record.path for record in records})]  # fmt: skip
    check_visible(log, report)
    for problem in log.problems:
        _add(report, problem)
    return report


def check_manifests(log: Log, report: Report) -> list[ShardRecord]:
    """Check all manifests -> the shards of the generations that are kept and can be read."""
    records: dict[str, ShardRecord] = {}
    before: State | None = None
    copies = 0
    try:
        numbers = range(log.head().oldest, log.newest() + 1)
    except FAULTS as error:
        report.add(str(error))
        return []
    for number in numbers:
        try:
            manifest = log.read(number)
            after = log.state(number) if before is None else manifest.apply(before)
            if manifest.whole is not None and log.state(number).shards != after.shards:
                report.add(f"{log.root}: manifest {number} does not agree with those before it")
            if manifest.checkpoint not in (None, after):
                report.add(f"{log.root}: checkpoint {number} does not agree with the manifests "
                           "before it")  # fmt: skip
        except FAULTS as error:
            _add(report, str(error))
            before = None
            continue
        before = after
        records |= {record.path: record for record in after.shards}
        versions = [data for _, data in log.store.read(number)]
        copies += versions[1:] != versions[:1] and manifest.whole is None
    folder = log.store
    for number in sorted(folder.named(COPY) - set(folder.numbers())):
        copy = f"{folder.path}/{folder.name(number, COPY)}"
        report.notes.append(f"{copy}: damaged, and there is no manifest: left by an interrupted "
                            "commit, or both are lost")  # fmt: skip
    if copies:
        report.notes.append(f"{log.root}: {copies} manifests have no copy: `winkfs dataset repair` "
                            "makes them")  # fmt: skip
    return list(records.values())


def _add(report: Report, problem: str) -> None:
    """Report a problem once: a damaged manifest is read in several places."""
    if problem not in report.problems:
        report.add(problem)


def _check_shard(root: str, record: ShardRecord, report: Report, progress: Progress | None) -> None:
    shard = Shard(f"{root}/{record.path}", record)
    try:
        shard.must_open()
        found = verify_container(shard.base, progress)
        report.include(found)
        if not found.problems and described(root, record) != record:
            report.add(f"{shard.base}: does not agree with its record in the manifest")
    except (*FAULTS, OSError) as error:
        report.add(str(error))


def _check_at_once(
    root: str, records: list[ShardRecord], report: Report, progress: Progress | None, jobs: int
) -> None:
    """Check shards in several processes."""
    from winkfs.dataset.workers import in_processes

    def heard(_: str, done: object) -> None:
        if progress is not None:
            progress(int(str(done)))

    for found in in_processes(_report_of, root, records, jobs, heard, own=True):
        report.include(found)


def _report_of(root: str, record: ShardRecord, send: Callable[[str, object], None]) -> Report:
    report = Report()
    _check_shard(root, record, report, lambda done: send("bytes", done))
    return report


def check_visible(log: Log, report: Report) -> None:
    """Check that the stored hidden rows are those that the shards imply."""
    try:
        state = log.shown()
        snapshot = snapshot_of(log, state)
        report.files = snapshot.files
        folder = log.store
        if state.whole is not None:
            made = hidden_rows(log.root, state.shards, {})
            kept = {shard.record.path: shard.hidden for shard in snapshot.shards}
            if not all(np.array_equal(kept.get(name, []), rows) for name, rows in made.items()):
                report.add(f"{log.root}: the hidden rows of generation {state.generation} do not "
                           "agree with the shards")  # fmt: skip
            return
        if state.generation not in folder.named(HIDDEN):
            return
        kept = read_hidden(folder, state.generation, state.digest)
        made = hidden_rows(log.root, state.shards, {})
        same = all(np.array_equal(kept.get(name, []), rows) for name, rows in made.items())
        if not same:
            path = f"{folder.path}/{folder.name(state.generation, HIDDEN)}"
            report.add(f"{path}: does not agree with the shards: remove it, it is made anew")
    except LostShard:
        return  # has been reported already
    except (*FAULTS, OSError) as error:
        _add(report, str(error))


def orphans(root: str, named: set[str]) -> Iterator[str]:
    """Yield the containers in folders of jobs that are not in `named`, then the jobs that were
    begun and neither committed nor aborted: paths below the data set, without suffix.

    Symbolic links are not followed.
    """
    directory = directory_of(root)
    for job in sorted(directory.list()):
        names = listed(directory, job) if job[:1] not in ("", ".", "_") else []
        if JOB_MARK not in names:
            continue
        stems = {name.rpartition(".")[0] or name for name in names
                 if name != JOB_MARK and not name.endswith(BESIDE)}  # fmt: skip
        unnamed = sorted({f"{job}/{stem}" for stem in stems} - named)
        empty = names == [JOB_MARK] and not any(path.startswith(f"{job}/") for path in named)
        yield from unnamed or [job] * empty
    yield from (f"{PENDING}/{job}" for job in sorted(listed(directory, PENDING)))


def listed(directory: Directory, name: str) -> list[str]:
    """Return the names in a folder; none if it is missing, no folder, or a symbolic link."""
    try:
        with directory.subdirectory(name) as folder:
            return folder.list()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ELOOP:
            return []
        raise


def reindex(
    root: str,
    progress: Progress | None = None,
    *,
    problem: Callable[[str], None] = lambda line: None,
) -> int:
    """Rebuild all derived files, shard by shard, and the stored hidden rows.

    problem  called with a line for each damaged place, whose files are left out
    ->       number of visible files
    raises   NoSuchFile; StalePlan (a shard is gone or was replaced); Locked; CorruptError
    """
    log = Log(root)
    state = log.latest()
    for record in state.shards:
        shard = Shard(f"{root}/{record.path}", record)
        shard.open(load=False).abandon()
        reindex_container(shard.base, progress, problem=problem)
        directory, name = locate(shard.base)
        directory.unlink(f"{name}.lock")
    for number in log.store.named(HIDDEN):
        log.store.files.unlink(log.store.name(number, HIDDEN))
    return snapshot_of(log, state).files


def info(root: str) -> dict[str, Any]:
    """Return what `winkfs info` shows. Raises NoSuchFile; FormatError; StalePlan."""
    log = Log(root)
    state = log.shown()
    shards = snapshot_of(log, state).shards
    files = sum(shard.files for shard in shards)
    return {
        "base": root,
        "variant": "data set",
        "generation": state.generation,
        "oldest_generation": state.oldest,
        "committed": time_text(state.time_ns // NANO),
        "files": files,
        "hidden_files": sum(len(shard.hidden) for shard in shards),
        "tombstones": sum(shard.record.tombstones for shard in shards),
        "shard_content_bytes": sum(shard.record.content for shard in shards),
        "shards": len(shards),
        "shard_bytes": sum(shard.record.size for shard in shards),
        "append_only_shards": sum(shard.record.ao for shard in shards),
        **_compression(state),
        "first_mtime": time_text(min(_mtimes(state, "mtime_min"), default=None)),
        "last_mtime": time_text(max(_mtimes(state, "mtime_max"), default=None)),
        "streams": {query: batch for query, (batch, _) in state.streams.items()},
        "unpublished_jobs": len(listed(directory_of(root), PENDING)),
    } | ({"problems": log.problems} if log.problems else {})


def _compression(state: State) -> dict[str, Any]:
    """Return the compression of new shards, for `info`; empty if no shard is compressed."""
    shards = [record for record in state.shards if record.level]
    if not shards:
        return {}
    values = {"codec": "zstd", "level": shards[-1].level, "compressed_shards": len(shards)}
    return {"compression": values}


def _mtimes(state: State, field: str) -> list[int]:
    """Return the known mtimes of all shards, in seconds."""
    found = [getattr(record, field) for record in state.shards]
    return [mtime // NANO for mtime in found if mtime is not None]
