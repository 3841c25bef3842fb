"""A Spark driver in a process of its own: it runs functions of `cluster_jobs`, and can be killed
while it does.

    with driver(cluster.url, cluster.settings) as spark:
        rows = spark.call("read", path)
        spark.begin("write", path, gate)       # returns at once
        cluster.worker_of(spark.held(gate)).kill()   # the job is in the middle
        go(gate)
        spark.end()
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, die_with_parent, in_session, kill, wait_for
from mounting import is_readable
from sparking import MODULES, SETTINGS, SparkSession, environment, need_spark

from winkfs.spark.session import write_script

PATIENCE = 240.0  # seconds one call may take before it counts as hung
# Batches between Python functions are of 10,000 rows else: a task would see all of its own at once.
SMALL = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
HALF = {"spark.cores.max": "2"}  # of a cluster: a core of each worker


class Failed(Exception):
    """What a function raised in the driver."""


class Driver:
    """A Python process with a session of Spark, and the JVM of that."""

    def __init__(
        self, master: str, settings: Mapping[str, str], log: Path, script: bool = True
    ) -> None:
        words = {"spark.master": master, **SETTINGS, **SMALL, "spark.log.level": "WARN", **settings}
        self.name = master
        self.place = log.parent  # its working directory
        self.log = log
        self.calls = 0
        python = write_script(log.parent)  # PySpark from pip, not from a zip of sources
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(words)],
                env=environment(
                    PYTHONPATH=MODULES, PYSPARK_PYTHON=str(python) if script else sys.executable
                ),
                cwd=log.parent, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def begin(self, function: str, *arguments: object, **options: object) -> None:
        """Start a function of `cluster_jobs`: spark comes first, then these."""
        assert self.process.stdin is not None
        self.calls += 1
        words = [os.fspath(a) if isinstance(a, Path) else a for a in arguments]
        self.process.stdin.write(
            json.dumps([self.calls, function, words, options]).encode() + b"\n"
        )
        self.process.stdin.flush()

    def end(self, seconds: float = PATIENCE) -> Any:
        """-> what it returned. Raises Failed with what it raised."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            assert is_readable(self.process.stdout.fileno(), left), self._said("it hangs")
            line = self.process.stdout.readline()
            assert line, self._said("the driver ended")
            answer = json.loads(line)
            if answer["call"] == self.calls:  # else of one that a failed test did not end
                if "error" in answer:
                    raise Failed(answer["error"])
                return answer["value"]

    def call(self, function: str, *arguments: object, **options: object) -> Any:
        self.begin(function, *arguments, **options)
        return self.end()

    def held(self, gate: Path) -> int:
        """Wait until a task waits at the gate -> the process id of its Python worker."""
        mark = gate / "held"
        wait_for(lambda: mark.exists() or self._has_said(), "no task came to the gate", PATIENCE)
        if not mark.exists():
            raise AssertionError(f"no task came to the gate: {self.end()}")
        return int(mark.read_text())

    def _has_said(self) -> bool:
        assert self.process.stdout is not None
        return is_readable(self.process.stdout.fileno(), 0)

    def processes(self) -> list[int]:
        return in_session(self.process.pid)

    def kill(self) -> None:
        """kill -9 of Python, its JVM, and what runs below that: at one moment. A JVM that sees its
        Python go ends the job in order."""
        for pid in self.processes():
            kill(pid, signal.SIGSTOP)
        for pid in self.processes():
            kill(pid)
        self.process.wait(30)
        wait_for(lambda: not self.processes(), "the driver lives on")

    def _said(self, what: str) -> str:
        return f"{what}: {self.log.read_text(errors='replace')[-4000:]}"


class Here:
    """The same in this process, with the session of all tests."""

    name = "local"

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.place = spark, Path.cwd()

    def call(self, function: str, *arguments: object, **options: object) -> Any:
        """-> what it returned, through JSON as from a driver."""
        import cluster_jobs

        words = [os.fspath(a) if isinstance(a, Path) else a for a in arguments]
        found = getattr(cluster_jobs, function)(self.spark, *words, **options)
        return json.loads(json.dumps(found))


Spark = Driver | Here


@contextmanager
def driver(
    master: str, settings: Mapping[str, str] | None = None, *, script: bool = True
) -> Iterator[Driver]:
    """A driver that is ended when it is left, whatever happens. script: workers run Python through
    a script in a temporary folder, which hosts must share."""
    need_spark()
    with tempfile.TemporaryDirectory(prefix="winkfs-driver-") as place:
        it = Driver(master, settings or {}, Path(place) / "driver.log", script)
        try:
            yield it
            if it.process.poll() is None:
                it.process.communicate(timeout=60)  # the end of its input: it stops its session
        finally:
            it.kill()
            for pipe in (it.process.stdin, it.process.stdout):
                if pipe is not None and not pipe.closed:
                    pipe.close()


@pytest.fixture(scope="session")
def cluster_driver(cluster: Cluster) -> Iterator[Driver]:
    """One for all tests, on a core of each worker: another driver has room beside it."""
    with driver(cluster.url, cluster.settings | HALF) as it:
        yield it


# --- a gate: a task that waits until the test has done something ---


def go(gate: Path) -> None:
    """Let the one that waits go on, if it still lives; nobody waits here again."""
    (gate / "go").touch()


def _main() -> None:
    import cluster_jobs
    import pyspark
    from pyspark.sql import SparkSession

    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed belongs to the log
    spark = SparkSession.builder.config(map=json.loads(sys.argv[1])).getOrCreate()
    application = spark.sparkContext.applicationId
    for line in sys.stdin:
        call, function, arguments, options = json.loads(line)
        answer: dict[str, object]
        try:
            answer = {"value": getattr(cluster_jobs, function)(spark, *arguments, **options)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer | {"call": call}), file=results, flush=True)
    spark.stop()
    # where executors of a local-cluster have their logs: there is no setting for it
    work = Path(pyspark.__file__).parent / "work" / application
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    _main()
