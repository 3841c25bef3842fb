"""Job `ingest`: directories, tar, WARC and Parquet files into a data set.

Each unit of input (see `inputs`) is read by one task, which writes a shard. When the units of a
round are done, one commit makes them visible and remembers their ids (as streams of the manifest):
a run that was broken off goes on with what is missing, and nothing is read twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from winkformats.errors import FormatError
from winkfs.archive.items import Note
from winkfs.archive.pack import Packer, PackReport
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction, begin
from winkfs.errors import WinkError
from winkfs.names import text
from winkfs.spark.jobs.common import KEPT, Bad, Report, attempt, guarded, ignore, on_units
from winkfs.spark.jobs.inputs import ParquetColumns, Unit, source_of, units

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND: Final = 8 << 30  # bytes of input in one commit: what a run that is broken off loses at most


class Done(NamedTuple):
    """What a task made of a unit. record: None where no file came out of it."""

    record: ShardRecord | None
    files: int
    size: int
    left_out: int
    bad: int
    listed: list[Bad]


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    target: str,
    *,
    kind: str | None = None,
    columns: ParquetColumns | None = None,
    again: bool = False,
    fail_fast: bool = False,
    round_bytes: int = ROUND,
    bad: Report = ignore,
) -> dict[str, Any]:
    """Read all inputs into the data set `target`, which is made where there is none.

    inputs       directories and files that all workers can read. Names are those below a directory
                 or in an archive, URLs of a WARC file. Of one name the last input's counts
    kind         tree, tar, warc or parquet; None: found out for each
    again        read also what the data set remembers
    fail_fast    the first bad record is an error, and its round is not committed
    bad          is told of each bad record
    ->           files, bytes, bad, left_out (devices, HTTP errors ..), skipped (inputs that were
                 there), units, generation, seconds
    raises       WinkError, OSError; what Spark raises. Rounds that were committed stay
    """
    start, target = time.monotonic(), os.path.abspath(target)
    work = units(inputs, kind, leave_out=target)
    todo = work if again else _missing(work, target)
    total: dict[str, Any] = {"job": "ingest", "output": target}
    total |= dict.fromkeys(("files", "bytes", "bad", "left_out", "units"), 0)
    total["skipped"] = len(work) - len(todo)
    for part in _rounds(todo, round_bytes):
        transaction = begin(target, "append")
        try:
            with guarded(spark, f"ingest {len(part)} units"):
                task = Task(transaction, columns or ParquetColumns(), fail_fast)
                found = on_units(spark, part, task)
            _commit(transaction, part, found, again)
        except BaseException:
            transaction.abort()
            raise
        for done in found:
            for record in done.listed:
                bad(record)
            for name, count in (("files", done.files), ("bytes", done.size), ("bad", done.bad),
                                ("left_out", done.left_out)):  # fmt: skip
                total[name] += count
        total["units"] += len(part)
    total["generation"] = Log(target).newest() if is_dataset(target) else 0
    return total | {"seconds": round(time.monotonic() - start, 3)}


def _missing(work: list[Unit], target: str) -> list[Unit]:
    """The units that the data set does not have."""
    known = Log(target).latest().streams if is_dataset(target) else {}
    return [unit for unit in work if unit.id not in known]


def _rounds(todo: list[Unit], limit: int) -> list[list[Unit]]:
    rounds: list[list[Unit]] = []
    size = limit
    for unit in todo:
        if size >= limit:
            rounds.append([])
            size = 0
        rounds[-1].append(unit)
        size += unit.size
    return rounds


def _commit(transaction: Transaction, part: list[Unit], found: list[Done], again: bool) -> None:
    known = Log(transaction.root).latest().streams
    streams = {unit.id: known[unit.id][0] + 1 if unit.id in known and again else 0 for unit in part}
    records = [done.record for done in found if done.record is not None]
    metrics = {"job": "ingest", "units": len(part), "bad": sum(done.bad for done in found)}
    transaction.commit(records, streams=streams, metrics=metrics)


@dataclass(frozen=True, slots=True)
class Task:
    """Called with a unit in a worker."""

    transaction: Transaction
    columns: ParquetColumns
    fail_fast: bool

    def __call__(self, unit: Unit) -> Done:
        notes, report = Notes(unit.path, self.fail_fast), PackReport()
        writer = ShardWriter(self.transaction, "{:05d}-{}".format(*attempt()))
        try:
            source = source_of(unit, notes, self.transaction.pending, self.columns)
            try:
                Packer(writer.container, report, notes, None).run(source)
            except FormatError as error:  # what came before it is in the container
                what = str(error).removeprefix(f"{unit.path}: ")
                notes(Note(unit.path.encode("utf-8", "surrogateescape"), what, True))
            record = None if writer.empty else writer.finish()
        except BaseException:
            writer.abandon()
            raise
        taken = report.files + report.directories + report.links
        return Done(record, taken, report.bytes, notes.left_out, notes.bad, notes.listed)


class Notes:
    """Hears of what is not packed as it is."""

    def __init__(self, where: str, fail_fast: bool) -> None:
        self._where, self._fail_fast = where, fail_fast
        self.left_out = self.bad = 0
        self.listed: list[Bad] = []

    def __call__(self, note: Note) -> None:
        if not note.failed:
            self.left_out += 1
            return
        name = text(note.name)
        if self._fail_fast:
            raise WinkError(
                note.what if name == self._where else f"{name}: {note.what}", self._where
            )
        self.bad += 1
        if len(self.listed) < KEPT:
            self.listed.append(Bad(self._where, name, note.what))


if __name__ == "__main__":
    from winkfs.spark.jobs.common import program

    program("ingest")
