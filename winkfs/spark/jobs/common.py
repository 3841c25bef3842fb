"""What the jobs share: bad records, tasks over units of work, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import re
import runpy
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from winkformats.errors import FormatError
from winkfs.errors import WinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

U = TypeVar("U")
R = TypeVar("R")
PATIENCE: Final = 10.0  # seconds that cancelled tasks may take to end
KEPT: Final = 100_000  # bad records of a task that are listed; all are counted
# The end of a worker's traceback, or what a JVM says of it: the class of an error, and its text.
_CAUSE: Final = re.compile(
    r"^(?:: |\[PYTHON_\w+\] [^:]*: )?"
    r"((?:\w+\.)*\w*(?:Error|Exception)|wink\w+\.errors\.\w+): (.+)$",
    re.M,
)
OUTER: Final = ("SparkException", "PythonException")  # what Spark packs others into


class Bad(NamedTuple):
    """A record that could not be taken. where: the input; name: of the document, if known."""

    where: str
    name: str
    reason: str


Report = Callable[[Bad], None]


def ignore(_: Bad) -> None:
    """A Report that nobody reads."""


class Failure(NamedTuple):
    """What a task has to say instead of a result. Trying again would not help."""

    what: str


def attempt() -> tuple[int, int]:
    """Of the running task: the number of its partition, and of this attempt, which no other has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.partitionId(), context.taskAttemptId()) if context else (0, 0)


def on_units(spark: SparkSession, units: Sequence[U], work: Callable[[U], R]) -> list[R]:
    """Run `work` on each unit, a task each -> results in their order.

    raises  WinkError with what the first that failed said; what Spark raises
    """
    context = spark.sparkContext
    found = context.parallelize(list(units), len(units)).map(_honest(work)).collect()
    for result in found:
        if isinstance(result, Failure):
            raise WinkError(result.what)
    return list(found)


def _honest(work: Callable[[U], R]) -> Callable[[U], R | Failure]:
    def run(unit: U) -> R | Failure:
        try:
            return work(unit)
        except (WinkError, FormatError, ValueError) as error:
            return Failure(str(error))

    return run


@contextlib.contextmanager
def guarded(spark: SparkSession, what: str) -> Iterator[None]:
    """Spark jobs in the block are cancelled, and their tasks ended, when it is left by an error:
    what they were writing can then be removed."""
    context = spark.sparkContext
    group = f"winkfs-{secrets.token_hex(8)}"
    context.setJobGroup(group, what, interruptOnCancel=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the JVM may be gone
            context.cancelJobGroup(group)
            _await_end(context, group)
        raise
    finally:
        with contextlib.suppress(Exception):
            for name in (
                "spark.jobGroup.id",
                "spark.job.description",
                "spark.job.interruptOnCancel",
            ):
                context.setLocalProperty(name, None)


def _await_end(context: Any, group: str) -> None:
    tracker = context.statusTracker()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        mine = {stage for job in jobs if job for stage in job.stageIds}
        if not any(s and s.stageId in mine and s.numActiveTasks for s in stages):
            return
        time.sleep(0.1)


def cause(error: BaseException) -> str:
    """One line of an error that came out of Spark: what a task raised, without its traceback."""
    text = str(error)
    found = _CAUSE.findall(text)
    if found:
        inner = [each for each in found if not each[0].endswith(OUTER)]
        return str((inner or found)[-1][1])
    return text.strip().splitlines()[0] if text.strip() else repr(error)


def program(job: str) -> None:
    """Run `winkfs pipeline JOB` in this process: each job is a program for spark-submit too."""
    sys.argv[1:1] = ["pipeline", job]
    runpy.run_module("winkfs", run_name="__main__")
