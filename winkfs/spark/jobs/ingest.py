"""Job `ingest`: directories, tar, WARC and Parquet files, shards of WebDataset and MDS, stores of
records into a data set.

The input is divided into units, see `units`. A unit is read by one task, and written as a shard.
When the units of a round are complete, one commit publishes them and records their ids (as streams
of the manifest). So an interrupted run continues with the missing units, and nothing is read twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import absolute
from winkformats.errors import FormatError
from winkfs.archive.items import Note, Ratio
from winkfs.archive.packer import Packer, PackReport
from winkfs.archive.parquet import ParquetColumns as ParquetColumns
from winkfs.archive.tar import Tarball
from winkfs.archive.warc import Warc
from winkfs.container.ondisk.typed import Schema
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.dataset.records import ShardRecord, union
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begun
from winkfs.names import to_bytes
from winkfs.samples.intake import kinds_of
from winkfs.spark.jobs.captures import carry, named_by_url, rename, settle
from winkfs.spark.jobs.documents import Documents
from winkfs.spark.jobs.outcome import Done, Reason, add_reasons, lines_of
from winkfs.spark.jobs.session import Report, ignore, program
from winkfs.spark.jobs.sources import TarOptions as TarOptions
from winkfs.spark.jobs.sources import source_of
from winkfs.spark.jobs.tasks import attempt, guarded, on_units
from winkfs.spark.jobs.units import SUFFIXES, Unit, groups, units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS: Final = ("files", "bytes", "replaced", "bad", "left_out", "changed")
LOOKED_SHARDS: Final = 4  # of WebDataset, until one has columns
ROUND_BYTES: Final = 8 << 30  # bytes of input in one commit, which an interrupted run may lose


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    target: str,
    *,
    kind: str | None = None,
    columns: ParquetColumns | None = None,
    html: bool = False,
    again: bool = False,
    fail_fast: bool = False,
    tar: TarOptions | None = None,
    round_bytes: int = ROUND_BYTES,
    bad: Report = ignore,
    latest: bool = False,
) -> dict[str, Any]:
    """Read all inputs into the data set `target`, which is created if it is missing.

    inputs       directories and files that all workers can read. Names are relative to a directory
                 or as in an archive; for web documents see `winkfs.archive.webnames`. If
                 names are equal, the last input counts
    kind         one of `units.KINDS`; None: detected for each, but never webdataset and mds, which
                 are read as tar and tree
    html         add the columns `title` and `lang`, from the document itself
    again        also read units that the data set has recorded as read
    fail_fast    the first bad record is an error, and its round is not committed
    bad          called with each bad record
    latest       keep only the newest capture of each URL
    ->           files, bytes, replaced (web documents that occur twice, or have newer captures),
                 bad, left_out (devices, HTTP errors ..), changed (times or values stored
                 differently), reasons (of these two: {"what": count}), lines (messages),
                 skipped (units read before), units, generation, seconds
    raises       Refusal, OSError; errors of Spark. Committed rounds are kept
    """
    start, target = time.monotonic(), absolute(target)
    work = units(inputs, kind, leave_out=target)
    known = Log(target).latest().streams if is_dataset(target) and not again else {}
    todo = [rest for unit in work if (rest := unit.rest(known)) is not None]
    total: dict[str, Any] = {"job": "ingest", "output": target}
    total |= dict.fromkeys((*COUNTS, "units"), 0)
    reasons: dict[str, Reason] = {}
    total["skipped"] = len(work) - len(todo)
    for part in groups(todo, attrgetter("size"), round_bytes):
        with begun(target) as transaction:
            with guarded(spark, f"ingest {len(part)} units"):
                have = union(record.schema for record in Log(target).latest().shards)
                task = Task(
                    transaction,
                    columns or ParquetColumns(),
                    html,
                    fail_fast,
                    tar or TarOptions(),
                    _with_columns(have, todo, transaction.scratch),
                )
                found = on_units(spark, part, task)
            found, more = _settled(transaction, found, latest=latest)
            _commit(transaction, part, found, more, again)
        for done in found:
            for record in done.listed:
                bad(record)
            for name in COUNTS:
                total[name] += getattr(done, name)
            add_reasons(reasons, done.reasons)
        total["units"] += len(part)
    total["reasons"] = {what: reason.number for what, reason in reasons.items()}
    total["lines"] = [*_hints(todo, target), *lines_of(reasons)]
    total["generation"] = Log(target).newest() if is_dataset(target) else 0
    return total | {"seconds": round(time.monotonic() - start, 3)}


def _with_columns(known: Schema, work: list[Unit], scratch: str) -> Schema:
    """Return the columns of the target and, of WebDataset, those of the first shard that has any,
    so that all tasks have the same."""
    shards = (unit for unit in work if unit.kind == "webdataset")
    for unit in islice(shards, LOOKED_SHARDS):
        found = kinds_of(Tarball(unit.path, lambda note: None, scratch), known)
        if found != known:
            return found
    return known


def _hints(work: list[Unit], target: str) -> Iterator[str]:
    """Yield a line for each directory read as a tree that has Parquet or WARC files, and one for a
    data set with documents named in two ways."""
    if any(unit.kind == "warc" for unit in work) and named_by_url(target):
        yield (f"{target}: it has documents named by their URLs, of an earlier version, which stay "
               "as they are: the new ones are named host/path, also captures of those")  # fmt: skip
    for kind in ("parquet", "warc", "mds"):
        counts: dict[str, int] = {}
        for unit in work:
            if unit.kind == "tree":
                ends = tuple(map(str.encode, SUFFIXES[kind]))
                there = sum(name.lower().endswith(ends) for name in unit.names)
                counts[unit.path] = counts.get(unit.path, 0) + there
        for path, count in counts.items():
            if count:
                what = {"parquet": "Parquet", "warc": "WARC", "mds": "MDS"}[kind]
                yield (f"{path}: {what} files in it, {count:,}, are stored as they are: "
                       f"--kind {kind} reads what is in them")  # fmt: skip


def _settled(
    transaction: Transaction, found: list[Done], *, latest: bool
) -> tuple[list[Done], list[ShardRecord]]:
    """Rename the captures of web documents -> the results of the tasks afterwards; more shards."""
    if not any(done.captures for done in found):
        return found, []
    captures = [done.captures for done in found]
    todo = settle(transaction.root, transaction.base_generation, captures, latest=latest)
    changed: list[Done] = [Done(replaced=todo.hidden)]
    for unit, done in enumerate(found):
        record, dropped, size = done.record, 0, 0
        if record is not None:
            record, dropped, size = rename(transaction, record, todo.moves.get(unit, {}))
        changed.append(replace(
            done, record=record, files=done.files - dropped, bytes=done.bytes - size,
            replaced=done.replaced + dropped,
        ))  # fmt: skip
    carried = carry(transaction, todo)
    return changed, [carried] if carried else []


def _commit(
    transaction: Transaction,
    part: list[Unit],
    found: list[Done],
    more: list[ShardRecord],
    again: bool,
) -> None:
    known = Log(transaction.root).latest().streams
    streams = {unit.id: known[unit.id][0] + 1 if unit.id in known and again else 0 for unit in part}
    records = more + [done.record for done in found if done.record is not None]
    metrics = {"job": "ingest", "units": len(part), "bad": sum(done.bad for done in found)}
    # The names of captures depend on the files of this generation.
    since = transaction.base_generation if any(done.captures for done in found) else None
    transaction.commit(records, streams=streams, metrics=metrics, since=since)


@dataclass(frozen=True, slots=True)
class Task:
    """The work of a task, called with a unit in a worker."""

    transaction: Transaction
    columns: ParquetColumns
    html: bool
    fail_fast: bool
    tar: TarOptions
    known: Schema

    def __call__(self, unit: Unit) -> Done:
        done, report = Done(unit.path, self.fail_fast), PackReport()
        with ShardWriter(self.transaction, "{:05d}-{}".format(*attempt())) as writer:
            source = source_of(
                unit, done, self.transaction.scratch, self.columns, self.tar, self.known
            )
            warc = source if isinstance(source, Warc) else None
            if self.html:
                source = Documents(source, done)
            try:
                ratio = Ratio(self.tar.max_ratio)
                Packer(writer.container, report, done, None, ratio).run(source)
            except FormatError as error:  # files before the damage are in the container
                what = str(error).removeprefix(f"{unit.path}: ")
                done(Note(to_bytes(unit.path), what, True))
            done.record = None if writer.empty else writer.finish()
        if warc is not None:
            done.replaced, done.captures = warc.again, warc.captures
        done.files, done.bytes = report.files + report.directories + report.links, report.bytes
        return done


if __name__ == "__main__":
    program("ingest")
