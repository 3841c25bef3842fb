"""Work of the jobs in tasks: a task for each unit of work, as many as cores; cancelling.

A session of Spark Connect has no SparkContext: there units are rows of a DataFrame, and jobs are
cancelled by a tag. The work itself is the same.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from winkformats.errors import FormatError
from winkfs.errors import Refusal
from winkfs.spark.session import context_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

U = TypeVar("U")
R = TypeVar("R")
CANCEL_TIMEOUT: Final = 10.0  # seconds that cancelled tasks may take to end
MANY_ROWS: Final = 1 << 16  # more than there are cores
RESULTS: Final = "number int, result binary"
LOCAL_PROPERTIES: Final = (
    "spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel",
)  # fmt: skip
_cores: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Failure(NamedTuple):
    """Error that a task returns instead of a result, because a retry would not help."""

    what: str


def attempt() -> tuple[int, int]:
    """Return the partition number of the running task, and the unique number of its attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.taskAttemptId()) if context else (0, 0)


def cores(spark: SparkSession) -> int:
    """Return how many tasks Spark makes of a job by default, as many as cores.

    cost  over Spark Connect a small job, once in a session
    """
    context = context_of(spark)
    if context is not None:
        return int(context.defaultParallelism)
    if spark not in _cores:
        parts = spark.range(MANY_ROWS).selectExpr("spark_partition_id() as part")
        _cores[spark] = parts.agg({"part": "max"}).collect()[0][0] + 1
    return _cores[spark]


def on_units(spark: SparkSession, units: Sequence[U], work: Callable[[U], R]) -> list[R]:
    """Run `work` on each unit, a task each -> results in their order.

    raises  Refusal with the message of the first unit that failed; errors of Spark
    """
    context, run = context_of(spark), _returning(work)
    if context is not None:
        found = context.parallelize(list(units), len(units)).map(run).collect()
    else:
        found = _by_rows(spark, units, run)
    for result in found:
        if isinstance(result, Failure):
            raise Refusal(result.what)
    return list(found)


def _returning(work: Callable[[U], R]) -> Callable[[U], R | Failure]:
    def run(unit: U) -> R | Failure:
        try:
            return work(unit)
        except (Refusal, FormatError, ValueError) as error:
            return Failure(str(error))

    return run


def _by_rows(spark: SparkSession, units: Sequence[U], run: Callable[[U], Any]) -> list[Any]:
    """Run each unit as a row of a DataFrame, in a partition of its own -> pickled results."""
    import pyarrow as pa

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                result = pickle.dumps(run(pickle.loads(row["unit"])))
                columns = [pa.array([row["number"]], pa.int32()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, ["number", "result"])

    rows = {
        "number": pa.array(range(len(units)), pa.int32()),
        "unit": pa.array(map(pickle.dumps, units), pa.binary()),
    }
    frame = spark.createDataFrame(pa.table(rows)).repartitionById(len(units), "number")
    found = frame.mapInArrow(work, RESULTS).collect()
    return [pickle.loads(row["result"]) for row in sorted(found, key=lambda row: row["number"])]


@contextlib.contextmanager
def guarded(spark: SparkSession, what: str) -> Iterator[None]:
    """Cancel the Spark jobs of the block, and wait for their tasks, if an exception leaves it, so
    that their files can be removed. Spark Connect does not report when they have ended."""
    name, context = f"winkfs-{secrets.token_hex(8)}", context_of(spark)
    if context is None:
        spark.addTag(name)
    else:
        context.setJobGroup(name, what, interruptOnCancel=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the JVM may be gone
            if context is None:
                spark.interruptTag(name)
            else:
                context.cancelJobGroup(name)
                _await_end(context, name)
        raise
    finally:
        with contextlib.suppress(Exception):
            if context is None:
                spark.removeTag(name)
            for key in () if context is None else LOCAL_PROPERTIES:
                context.setLocalProperty(key, None)


def _await_end(context: Any, group: str) -> None:
    tracker = context.statusTracker()
    end = time.monotonic() + CANCEL_TIMEOUT
    while time.monotonic() < end:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        mine = {stage for job in jobs if job for stage in job.stageIds}
        if not any(s and s.stageId in mine and s.numActiveTasks for s in stages):
            return
        time.sleep(0.1)
