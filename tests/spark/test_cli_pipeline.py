"""`winkfs pipeline`: what a person sees. One line for what is wrong, JSON for what is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stored
from commands import Run, one_line
from commands import run as run  # a fixture
from json_page import faults, objects
from sparking import SparkSession, environment, need_spark, without_python

import winkfs
from winkfs.cli._common import explain
from winkfs.spark.jobs import session
from winkfs.spark.jobs.session import cause

PATIENCE = 240


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("cli") / "pages"
    return stored.make(
        base, ((f"site{i % 3}/{i}.html", b"<title>%d</title>" % i) for i in range(300))
    )


def start(
    *arguments: object,
    program: tuple[str, ...] = ("-P", "-m", "winkfs", "pipeline"),
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    need_spark()
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)], env=env or environment(), cwd=cwd,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.long
@pytest.mark.spark
def test_a_job_prints_json_and_runs_no_file_of_the_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "digests"
    (tmp_path / "xxhash.py").write_text("open('ran', 'w')\n")
    master = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
    job = start("digest", source, target, *master, cwd=tmp_path)
    status, out, err = ended(job)
    assert (status, err) == (0, "")
    assert not (tmp_path / "ran").exists()
    summary = json.loads(out)
    assert (summary["job"], summary["files"], summary["bad"]) == ("digest", 300, 0)
    assert summary["cpu_seconds"] > 0 and summary["output"] == str(target)
    status, out, err = ended(start("lookup", target, "site1/7.html"))
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert (found["path"], found["size"], found["title"]) == ("site1/7.html", 16, "7")


def test_lookup_needs_no_spark_and_names_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "winkfs", "pipeline", "lookup", str(tmp_path), "x"],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"winkfs: {tmp_path}: no digest set (there is no digests.json in it)\n"


def test_what_is_wrong_is_one_line(spark: SparkSession, source: Path, run: Run) -> None:
    line = one_line(run("pipeline", "sort", source, "o", "--key", "nonsense + 1"))
    assert "'nonsense + 1' is no expression over path, size" in line
    assert os.listdir() == []


@pytest.mark.long
def test_a_job_uses_the_session_of_its_process_and_restores_it(
    spark: SparkSession, source: Path, run: Run
) -> None:
    before, handler = spark.conf.getAll, signal.getsignal(signal.SIGINT)
    done = run("pipeline", "stats", source, "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["files"] == 300
    assert faults("pipeline stats", objects(done.out)) == []
    assert spark.range(3).count() == 3
    assert (spark.conf.getAll, signal.getsignal(signal.SIGINT)) == (before, handler)
    line = one_line(run("pipeline", "stats", source, "--conf", "spark.sql.shuffle.partitions=9"))
    assert "Spark runs in this process already" in line
    assert spark.conf.getAll == before


@pytest.mark.long  # a JVM of its own; in the suite: Ctrl-C of other commands
@pytest.mark.spark
def test_ctrl_c_is_one_line_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """Of a job that has another Python first in its PATH, which Spark does not take."""
    key = "reduce(sequence(1, 2000000), 0L, (a, x) -> a + x * size)"  # minutes
    process = start("sort", source, tmp_path / "o", "--key", key, env=without_python(tmp_path))
    while process.poll() is None and not list(tmp_path.glob("o/job-*")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "winkfs: interrupted\n")
    assert os.listdir(tmp_path) == ["bin"]


@pytest.mark.parametrize(("raised", "line"), [
    ("[Errno 28] No space left on device", "No space left on device: free some space"),
    ("[Errno 13] Permission denied: '/a b/c'", "/a b/c: Permission denied: check its permissions"),
])  # fmt: skip
def test_a_system_error_in_a_task_is_reported_with_the_remedy(raised: str, line: str) -> None:
    errors = pytest.importorskip("pyspark.errors")
    with pytest.raises(OSError) as caught, session._one_line_errors():
        raise errors.PySparkException(f"Job aborted\nOSError: {raised}\n")
    assert explain(caught.value).startswith(line)


def test_ctrl_c_stays_that_where_pyspark_fails_on_its_way_out() -> None:
    protocol = pytest.importorskip("py4j.protocol")
    with pytest.raises(KeyboardInterrupt), session._one_line_errors():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise protocol.Py4JNetworkError("Java side is empty")  # noqa: B904 - as a finally does


def test_a_job_is_a_script(source: Path) -> None:
    """As spark-submit runs it: its folder, with modules named sort and stats, is first in the
    path. With a JVM: the next test."""
    pytest.importorskip("pyspark")
    script = Path(winkfs.__file__).parent / "spark" / "jobs" / "digest.py"
    done = subprocess.run(
        [sys.executable, script, "--help"], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--shards" in done.stdout


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("way", ["spark-submit", "python -m"])
def test_a_job_is_a_program(source: Path, tmp_path: Path, way: str, soak: bool) -> None:
    if way != "spark-submit" and not soak:
        pytest.skip("takes long: make soak")
    arguments = [source, tmp_path / "digests", "--shards", 2]
    if way == "python -m":
        process = start(*arguments, program=("-m", "winkfs.spark.jobs.digest"))
    else:
        need_spark()
        from pyspark.find_spark_home import _find_spark_home

        script = Path(winkfs.__file__).parent / "spark" / "jobs" / "digest.py"
        submit = Path(_find_spark_home()) / "bin" / "spark-submit"
        process = subprocess.Popen(
            [submit, "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", script,
             *map(str, arguments)], env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    status, out, err = ended(process)
    assert status == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["files"] == 300 and summary["cpu_seconds"] > 1  # those of the JVM, too


@pytest.mark.parametrize(("text", "line"), [
    ("An exception was thrown from the Python worker. Please see the stack trace below.\n"
     "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\n"
     "winkfs.errors.StalePlan: /c: is another container\n", "/c: is another container"),
    ("Job aborted\norg.apache.spark.SparkException: Job aborted\nCaused by: x\n"
     "winkformats.errors.CorruptError: /c.data: bad entry at byte 7\n\tat y",
     "/c.data: bad entry at byte 7"),
    ("[PYTHON_DATA_SOURCE_ERROR] Failed to plan: winkfs.errors.NoSuchFile: /c: none: make it\n"
     " SQLSTATE: 38000", "/c: none: make it"),
    ("Job aborted.\nwinkfs.errors.FileExists: /c: is there: why\n", "/c: is there: why"),
    ("An error occurred while calling x.\n: org.apache.spark.SparkException: Could not parse\n"
     "\tat y", "Could not parse"),
    ("[SOME_CLASS] a line\nanother", "[SOME_CLASS] a line"), ("", "RuntimeError('')"),
])  # fmt: skip
def test_the_cause_is_found_in_the_messages_of_spark(text: str, line: str) -> None:
    assert cause(RuntimeError(text)) == line
