"""Names of PySpark and the JVM that are not public: where one is missing, all works without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stored
from sparking import SparkSession, environment, load

import winkfs.spark

pytest.importorskip("pyspark")

import pyspark.sql.udf

import pyspark_winkfs
from winkfs.spark import session

Patch = pytest.MonkeyPatch


class Without:
    """A session, or its context, without one of its attributes."""

    def __init__(self, whole: Any, name: str) -> None:
        self._whole, self._name = whole, name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._whole, name)


def put(spark: Any) -> bool:
    return session.put_source(spark, pyspark_winkfs.DefaultSource)


def test_a_session_that_lacks_a_name_is_left_to_register(spark: SparkSession) -> None:
    assert put(spark)
    assert not put(Without(spark, "_jsparkSession"))
    assert not put(Without(spark, "_jvm"))


def test_a_spark_without_names_of_a_registration(spark: SparkSession, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(session, "FORMATS", "renamed")  # a field of the JVM
        assert not put(spark)
    monkeypatch.delattr(pyspark.sql.udf, "_wrap_function")
    assert not put(spark)


def test_register_and_read_without_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: Patch
) -> None:
    base = tmp_path / "c"
    stored.make(base, {"a": b"1"})
    monkeypatch.setattr(session, "FORMATS", "renamed")  # Spark itself uses the other one
    monkeypatch.setattr(session, "MANAGER", None)  # the warning stays
    winkfs.spark.register(spark)
    assert [row.path for row in load(spark, base).collect()] == ["a"]


def test_the_warning_of_spark_stays_without_its_logger(spark: SparkSession) -> None:
    ran = []
    with session.unwarned(Without(spark, "_jvm")):
        ran.append(1)
    with pytest.raises(KeyError), session.unwarned(spark):
        raise KeyError
    assert ran


@pytest.mark.parametrize("name", ["sparkContext", "pythonExec", "_temp_dir"])
def test_a_session_that_cannot_change_its_python(
    spark: SparkSession, name: str, monkeypatch: Patch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context = spark.sparkContext
    lacking: Any = Without(spark, name)
    if name != "sparkContext":
        lacking = Without(spark, "none")
        lacking.sparkContext = Without(context, name)
    before = context.pythonExec
    with session.compiled(lacking):
        assert context.pythonExec == before
    if name != "_temp_dir":
        session.run_this_python(lacking)
    assert context.pythonExec == before


def test_another_main_module_is_no_daemon(monkeypatch: Patch) -> None:
    """Only Spark's daemon, whose name of `traceback` may be gone, gets another one."""
    import sys
    from types import ModuleType

    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    pyspark_winkfs.quiet_daemon()
    assert not hasattr(main, "traceback")
    main.__spec__ = type("Spec", (), {"name": "pyspark.daemon"})()
    pyspark_winkfs.quiet_daemon()
    assert main.traceback is pyspark_winkfs.Tracebacks


@pytest.mark.parametrize("safe", [True, False])
def test_a_safe_path_holds_in_the_daemon_of_workers(tmp_path: Path, safe: bool) -> None:
    """Not with PYTHONSAFEPATH, which the jobs set."""
    (tmp_path / "xxhash.py").write_text("open('ran', 'w')\n")
    daemon = tmp_path / "made" / "daemon.py"
    daemon.parent.mkdir()
    daemon.write_text(session.DAEMON)
    done = subprocess.run(
        [sys.executable, daemon, "pyspark.worker"], cwd=tmp_path, stdin=subprocess.DEVNULL,
        env=environment(PYTHONSAFEPATH="1" if safe else ""), capture_output=True, check=False,
    )  # fmt: skip
    assert (len(done.stdout), done.stderr) == (4, b"")  # its port; it ends with its input
    assert (tmp_path / "ran").exists() != safe
