"""Common parts of the jobs: a session, bad records, errors of one line.

The session prints only a progress line, and one line for an error. Under spark-submit it is the
session configured there, and nothing is redirected. With a remote it is one of Spark Connect.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import runpy
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from winkfs.errors import Refusal, need_installed
from winkfs.spark.session import PACKAGES, compiled, context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}
LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
PROGRESS_INTERVAL: Final = 0.3  # seconds
CONNECT: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")  # packages of Spark Connect
CONNECT_PORT: Final = 15002  # of a server of Spark Connect
CONNECT_TIMEOUT: Final = 10.0  # seconds
MAX_LISTED: Final = 100_000  # bad records of a task that are listed; all are counted
# The end of a worker's traceback, or of the message of a JVM: the class of an error, and its text.
_CAUSE: Final = re.compile(
    r"^(?:: |\[PYTHON_\w+\] [^:]*: )?"
    r"((?:\w+\.)*\w*(?:Error|Exception)|wink\w+\.errors\.\w+): (.+)$",
    re.M,
)
OUTER: Final = ("SparkException", "PythonException")  # errors in which Spark wraps others


def missing(remote: str | None = None) -> str | None:
    """Return why Spark cannot run here, or with a server of Spark Connect; None if it can."""
    try:
        need_installed("this", *PACKAGES)
        if remote is not None:
            need_installed("Spark Connect", *CONNECT)
    except Refusal as error:
        return str(error)
    if remote is not None and not remote.startswith("local"):
        return _unreachable(remote)
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=f"{home}/bin" if home else None):
        return "Spark needs Java, 17 or later: install one, or set JAVA_HOME"
    return None


def _unreachable(remote: str) -> str | None:
    """Return why there is no server of Spark Connect at a URL; None: something answers there. The
    client of PySpark would try for minutes."""
    url = urlsplit(remote)
    if url.scheme != "sc" or not url.hostname:
        return f"{remote!r} is no server of Spark Connect: sc://HOST:PORT, or local[2] to start one"
    try:
        place = url.hostname, url.port or CONNECT_PORT
        socket.create_connection(place, CONNECT_TIMEOUT).close()
    except (OSError, ValueError) as error:
        return f"no server of Spark Connect answers at {remote}: {error}"
    return None


@contextlib.contextmanager
def session(
    name: str,
    master: str | None = None,
    conf: Sequence[tuple[str, str]] = (),
    log: str | None = None,
    remote: str | None = None,
) -> Iterator[SparkSession]:
    """Provide a session for the block: the running one of this process, unchanged, as in a
    notebook; else a new one, which is stopped after the block.

    master  None: local[*]
    log     a file for the output of the JVM and the workers; None: it is discarded
    remote  a server of Spark Connect, "sc://host:15002", or "local[2]" to start one; None: that of
            SPARK_REMOTE in the environment, if there is no master
    raises  Refusal, OSError instead of the errors of Spark, with one line of their text
    """
    if master and remote:
        raise Refusal("--master and --remote exclude each other: leave one of them out")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    running = _running() if importlib.util.find_spec("pyspark") else None
    if running is not None and (master or conf or log or remote):
        raise Refusal("Spark runs in this process already: --master, --remote, --conf and --log "
                      "are for a session that the job starts: leave them out")  # fmt: skip
    if running is None and not submitted and not master:
        remote = remote or os.environ.get("SPARK_REMOTE")
    if not submitted and running is None and (problem := missing(remote)):
        raise Refusal(problem)
    try:
        spark = running or _start(name, master, conf, log, submitted, remote)
    except Exception as error:
        hint = "" if log else "; --log FILE keeps its output"
        raise Refusal(f"Spark cannot start: {cause(error)}{hint}") from None
    with _hushed():
        try:
            with _one_line_errors(), _progress(spark, name), compiled(spark):
                yield spark
        finally:
            if running is None:
                with contextlib.suppress(Exception):  # the JVM may have ended
                    spark.stop()


def _running() -> SparkSession | None:
    """Return the running session of this process, with the format registered; None: none runs."""
    from pyspark.sql import SparkSession

    import winkfs.spark

    spark = SparkSession.getActiveSession()
    if spark is None:
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:
            return None
        spark = SparkSession.builder.getOrCreate()  # without settings: it changes none
    winkfs.spark.register(spark)
    return spark


def _start(
    name: str,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    log: str | None,
    submitted: bool,
    remote: str | None,
) -> SparkSession:
    from pyspark.sql import SparkSession

    import winkfs.spark

    builder = SparkSession.builder.appName(f"winkfs {name}").config(map=SETTINGS)
    if not submitted:
        chosen = remote or master or "local[*]"
        local = LOCAL if chosen.startswith("local") else {}
        level = {} if log else {"spark.log.level": "OFF"}
        settings = winkfs.spark.session_conf() | local | level | dict(conf)
        builder = builder.remote(chosen) if remote else builder.master(chosen)
        builder = builder.config(map=settings)
        _find_packages()
    with contextlib.nullcontext() if submitted else _stderr_to(log):
        spark = builder.getOrCreate()
    winkfs.spark.register(spark)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # The handler of PySpark calls the JVM during another call, which fails with a long
        # traceback. `guarded` cancels the jobs instead.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def _find_packages() -> None:
    """Let workers on this machine run this Python and find its packages."""
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    found = [importlib.util.find_spec(n) for n in ("winkfs", "winkformats", "winkmount")]
    roots = [str(Path(spec.origin).parent.parent) for spec in found if spec and spec.origin]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*known, *roots])))
    os.environ["PYTHONSAFEPATH"] = "1"  # do not import files of the current directory


@contextlib.contextmanager
def _stderr_to(log: str | None) -> Iterator[None]:
    """Redirect standard error in the block, so that a JVM started in it writes there."""
    sys.stderr.flush()
    mine = os.dup(2)
    try:
        with Path(log or os.devnull).open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(mine, 2)
        os.close(mine)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Silence the loggers of PySpark, which log the errors that they also raise."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    nothing = logging.NullHandler()  # without any handler the root logger makes one that prints
    logging.getLogger().addHandler(nothing)
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False
        logging.getLogger().removeHandler(nothing)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Replace an error of Spark by one with one line. If it follows from Ctrl-C, because PySpark
    then calls the JVM, KeyboardInterrupt is raised."""
    from pyspark.errors import PySparkException

    kinds: tuple[type[Exception], ...] = (PySparkException,)
    with contextlib.suppress(ImportError):  # a client of Spark Connect alone has none
        from py4j.protocol import Py4JError

        kinds = (PySparkException, Py4JError)
    try:
        yield
    except kinds as error:
        before = error.__context__
        while before is not None:
            if not isinstance(before, Exception):
                raise before from None
            before = before.__context__
        if os.environ.get("WINKFS_TRACEBACK"):
            raise
        raise _error(cause(error)) from None


def _error(line: str) -> OSError:
    """Convert the line of an OSError that a task raised back to an OSError; else to a Refusal."""
    found = re.fullmatch(r"\[Errno (\d+)\] (.+?)(?:: '(.*)')?", line)
    return OSError(int(found[1]), found[2], found[3]) if found else Refusal(line)


@contextlib.contextmanager
def _progress(spark: SparkSession, name: str) -> Iterator[None]:
    """Show the number of completed tasks on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    if context_of(spark) is None:
        with _followed(spark, name):
            yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(spark, name, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _show("")


def _follow(spark: Any, name: str, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(PROGRESS_INTERVAL):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # the session is being stopped
            break
        parts = [f"{s.numCompletedTasks}/{s.numTasks} tasks" for s in stages if s]
        _show(f"{name}: {', '.join(parts) or '...'}")


@contextlib.contextmanager
def _followed(spark: Any, name: str) -> Iterator[None]:
    """Show the progress that a server of Spark Connect reports."""

    def report(stages: Any, **_: Any) -> None:
        parts = [f"{s.num_completed_tasks}/{s.num_tasks} tasks" for s in stages or () if not s.done]
        _show(f"{name}: {', '.join(parts) or '...'}")

    spark.registerProgressHandler(report)
    try:
        yield
    finally:
        spark.removeProgressHandler(report)
        _show("")


def _show(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants that live or were waited for.

    On one machine these include the JVM and its Python workers, also where the JVM has started this
    process (`spark-submit`).
    """
    ticks, parents = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = int(fields[1])
                ticks[int(entry)] = sum(map(int, fields[11:15]))
    mine = {os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


class Bad(NamedTuple):
    """A record that could not be processed. where: the input; name: of the document, if known."""

    where: str
    name: str
    reason: str


Report = Callable[[Bad], None]


def ignore(_: Bad) -> None:
    """Discard a bad record: the default Report."""


def cause(error: BaseException) -> str:
    """Return one line of an error of Spark: the message of a task, without its traceback."""
    text = str(error)
    found = _CAUSE.findall(text)
    if found:
        inner = [each for each in found if not each[0].endswith(OUTER)]
        return str((inner or found)[-1][1])
    return text.strip().splitlines()[0] if text.strip() else repr(error)


def program(job: str) -> None:
    """Run `winkfs pipeline JOB` in this process, so that spark-submit can run the module."""
    sys.argv[1:1] = ["pipeline", job]
    runpy.run_module("winkfs", run_name="__main__")
