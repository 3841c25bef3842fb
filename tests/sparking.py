"""Spark for tests: one session for the whole run, and applications in a process beside it.

def test_x(spark: SparkSession) -> None: ...    # the shared session, local[2]; leave it running
done = application(code, argument, ...)         # a script with a SparkContext of its own
"""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import applications
import jvm
import pytest
from buckets import CONFIG
from marks import needs
from warm import PACKAGES

import winkfs.spark
from examples import word_count
from winkfs.spark.session import mount_conf, session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
else:
    DataFrame = SparkSession = object  # for annotations: no test imports PySpark before it needs it

TESTS = Path(__file__).resolve().parent
# PYTHONPATH: what `cluster_jobs` and the tests of Spark define runs on workers, too
MODULES = os.pathsep.join((PACKAGES, str(TESTS), str(TESTS / "spark")))
SETTINGS = (
    session_conf()
    | mount_conf()
    | word_count.LOCAL_SETTINGS
    | {"spark.driver.memory": "2g", "spark.log.level": "OFF"}  # an error is looked for in Python
    | {"spark.executor.extraJavaOptions": jvm.options()}
)
PATIENCE = applications.PATIENCE
_missing = functools.cache(word_count.missing)  # it asks Java for its version


def need_spark() -> None:
    """Skip where the machine has no Spark; on CI that is an error."""
    needs("spark")
    if problem := _missing():
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)


def environment(**changes: str) -> dict[str, str]:
    """That of a driver whose workers import what it does."""
    mine = {
        "PYTHONPATH": PACKAGES, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": jvm.options(), "SPARK_LAUNCHER_OPTS": jvm.LIGHT,
        "AWS_CONFIG_FILE": str(CONFIG),
    }  # fmt: skip
    return os.environ | mine | changes


def without_python(folder: Path) -> dict[str, str]:
    """The same where no virtual environment is active: the python3 of the PATH fails."""
    other = folder / "bin"
    other.mkdir()
    (other / "python3").write_text("#!/bin/sh\necho not this one >&2\nexit 1\n")
    (other / "python3").chmod(0o755)
    ours = str(Path(sys.executable).parent)
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if path != ours]
    variables = environment(PATH=os.pathsep.join([str(other), *paths]))
    del variables["PYSPARK_PYTHON"]
    return variables


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    need_spark()
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(PYTHONPATH=MODULES).items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("winkfs tests")
        # Java made for each query costs a tenth of the time; drivers of their own have it.
        without = {"spark.sql.codegen.wholeStage": "false"}
        session = builder.config(map=SETTINGS | without).getOrCreate()
        winkfs.spark.register(session)  # by its name alone: test_spark_found
        yield session
        session.stop()


def save(frame: DataFrame, root: str | Path, mode: str = "append", **options: str) -> None:
    frame.write.format("winkfs").mode(mode).options(**options).save(str(root))


def load(spark: SparkSession, path: str | Path, **options: str) -> DataFrame:
    return spark.read.format("winkfs").options(**options).load(str(path))


def refusal(action: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the text of what a call of Spark raises."""
    with pytest.raises(Exception) as caught:
        action(*arguments, **options)
    return str(caught.value)


def application(
    code: str,
    *arguments: object,
    master: str = "local[2]",
    python: str = sys.executable,
    path: str = PACKAGES,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a script that finds the session as `spark` and its arguments in sys.argv[1:].

    The SparkContext is its own; Python and the JVM are those of the application before, if that
    left them alive.

    python  of the workers
    path    PYTHONPATH of all
    fresh   no application has run in this JVM
    """
    global _applications
    need_spark()
    if _applications is None or fresh or not _applications.serves(path):
        end_applications()
        _applications = applications.Applications(environment(PYTHONPATH=path), SETTINGS)
    return _applications.run(code, list(map(str, arguments)), master, python)


def run_code(spark: SparkSession, code: str, *arguments: object) -> str:
    """Run a script as `application` does, in the session of all tests -> what it printed."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", ["application", *map(str, arguments)])
        script = {"__name__": "__main__", "sys": sys, "spark": spark}
        exec(compile(code, "application", "exec"), script)
    return out.getvalue()


_applications: applications.Applications | None = None


def end_applications() -> None:
    """Stop what `application` keeps running."""
    global _applications
    if _applications is not None:
        _applications.end()
    _applications = None
