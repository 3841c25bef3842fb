"""How Spark comes by the format: by its name, registered, handed over; and where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import data_sets
import pytest
import stored
from sparkfiles import plain, struct
from sparking import SparkSession, application, environment, without_python
from warm import PACKAGES, ROOT

import winkfs.spark

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

SITE = sysconfig.get_path("purelib")


def python(code: str, *arguments: object, program: str = sys.executable, **env: str) -> str:
    command = [program, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment() | env, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has all that winkfs needs, but not winkfs."""
    if (Path(SITE) / "winkfs").exists():
        pytest.skip("winkfs is installed among the other packages")
    script = tmp_path_factory.mktemp("stranger") / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH=$(echo "$PYTHONPATH" | tr : "\\n" | grep -vE "^({ROOT}.*)?$" | paste -sd:)\n'
        f'PYTHONPATH="$PYTHONPATH:{SITE}" exec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain(tmp_path_factory.mktemp("data") / "c")


def test_what_spark_imports_to_look_a_format_up_is_light() -> None:
    code = """if True:
        import sys
        from pkgutil import iter_modules
        assert "pyspark_winkfs" in [module.name for module in iter_modules()]
        import pyspark.sql.datasource
        before = set(sys.modules)
        import pyspark_winkfs
        assert pyspark_winkfs.DefaultSource.name() == "winkfs"
        print(*(set(sys.modules) - before))
    """
    assert python(code).split() == ["pyspark_winkfs"]


def test_importing_winkfs_needs_neither_spark_nor_arrow() -> None:
    code = "import sys, winkfs, winkfs.spark; winkfs.open; print(*sys.modules)"
    assert not {"pyspark", "pyarrow"} & set(python(code).split())


def test_planning_a_data_set_imports_no_containers_or_arrow(tmp_path: Path) -> None:
    """Spark starts a process for each plan."""
    data_sets.put(tmp_path / "d", {"a": b"content"})
    code = f"""if True:
        import sys
        from winkfs.spark.reading.options import Options
        from winkfs.spark.reading.reader import partitions
        assert len(partitions(Options.of({{"path": {str(tmp_path / "d")!r}}}), contents=True)) == 1
        print(*sys.modules)
    """
    assert not {"winkfs.container.store", "pyarrow"} & set(python(code).split())


def test_a_commit_imports_neither_containers_nor_arrow() -> None:
    code = "import sys, winkfs.spark.source, winkfs.spark.writing.sink; print(*sys.modules)"
    assert not {"winkfs.container.store", "pyarrow"} & set(python(code).split())


@pytest.mark.long
def test_found_by_name_in_a_new_session(base: Path) -> None:
    code = """if True:
        frame = spark.read.format("winkfs").load(sys.argv[1])
        print("count", frame.count(), frame.where("path = 'empty'").count())
    """
    done = application(code, base, fresh=True)  # a JVM looks once
    assert done.returncode == 0, done.stderr
    assert f"count {len(stored.names(base))} 1" in done.stdout


def zipped(path: Path) -> Path:
    """All packages as one file."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, folder in [
            ("winkfs", ROOT), ("winkformats", ROOT / "formats"), ("pyspark_winkfs", ROOT),
        ]:  # fmt: skip
            for file in (folder / name).rglob("*.py"):
                archive.write(file, file.relative_to(folder))
    return path


@pytest.mark.long
def test_a_driver_python_without_winkfs_names_the_remedy(
    base: Path, stranger: str, tmp_path: Path
) -> None:
    """And it works as soon as it is handed over."""
    code = """if True:
        import winkfs.spark
        try:
            winkfs.spark.read(spark, sys.argv[1]).count()
        except Exception as error:
            print("error", *str(error).splitlines())
        spark.sparkContext.addPyFile(sys.argv[2])
        winkfs.spark.register(spark)
        frame = winkfs.spark.read(spark, sys.argv[1], content="ref")
        print("count", winkfs.spark.fetch_content(frame).count())
    """
    done = application(code, base, zipped(tmp_path / "winkfs.zip"), python=stranger)
    assert done.returncode == 0, done.stderr
    error = next(line for line in done.stdout.splitlines() if line.startswith("error"))
    assert "cannot import winkfs" in error
    for remedy in ("PYSPARK_PYTHON", "pip install", "addPyFile"):
        assert remedy in error
    assert f"count {len(stored.names(base))}" in done.stdout


def test_a_task_python_without_winkfs_names_the_remedy(
    base: Path, stranger: str, tmp_path: Path
) -> None:
    """The plan was made where winkfs is; the reader travels by value."""
    from pyspark import cloudpickle

    from pyspark_winkfs import DefaultSource

    reader = DefaultSource(options={"path": str(base)}).reader(struct("path string"))
    (tmp_path / "task").write_bytes(cloudpickle.dumps((reader, reader.partitions()[0])))
    code = """if True:
        import pickle, sys
        reader, task = pickle.load(open(sys.argv[1], "rb"))
        try:
            list(reader.read(task))
        except ImportError as error:
            print(error)
    """
    pyspark = os.pathsep.join([PACKAGES, SITE])
    text = python(code, tmp_path / "task", program=stranger, PYTHONPATH=pyspark)
    assert "cannot import winkfs (No module named 'winkfs'" in text
    assert text.count("\n") == 1


def test_a_long_list_of_paths_does_not_travel_to_the_tasks(base: Path) -> None:
    from pyspark import cloudpickle

    from pyspark_winkfs import DefaultSource

    names = "[" + ",".join(f'"n{i}"' for i in range(100_000)) + "]"
    source = DefaultSource(options={"path": str(base), "paths": names})
    reader = source.reader(struct("path string"))
    assert len(cloudpickle.dumps((source, reader))) < 30_000
    assert reader.partitions() == []


SCRIPT = """
import sys
import winkfs.spark
from pyspark.sql import SparkSession, functions as F

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
if "conf" in sys.argv:
    builder = builder.config(map=winkfs.spark.session_conf())
spark = builder.getOrCreate()
winkfs.spark.register(spark)
spark.sparkContext.setLogLevel("OFF")
frame = spark.read.format("winkfs").load(sys.argv[1])
where = F.udf(lambda path: __import__("sys").prefix)
print("found", *{row[0] for row in frame.select(where("path")).limit(1).collect()}, frame.count())
"""


def test_settings_put_the_python_of_the_script_first(tmp_path: Path) -> None:
    code = """if True:
        import shutil, winkfs.spark
        winkfs.spark.session_conf()
        print(shutil.which("python3"))
    """
    variables = without_python(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == Path(sys.executable).parent


def test_register_takes_the_python_of_the_script(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    winkfs.spark.register(spark.newSession())
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.long
def test_spark_runs_with_the_python_of_the_script(base: Path, tmp_path: Path) -> None:
    """With a JVM of its own; no virtual environment is active."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, base, "conf"], env=without_python(tmp_path),
        capture_output=True, text=True,
    )  # fmt: skip
    found = f"found {sys.prefix} {len(stored.names(base))}"
    assert found in done.stdout, done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.in_memory
def test_thousands_of_files_that_a_filter_skips(spark: SparkSession, tmp_path: Path) -> None:
    """Of a task with all of them the JVM would need more than its stack."""
    for number in range(16000):
        (tmp_path / f"{number}").write_bytes(b"x")
    files = spark.read.format("binaryFile").load(f"file://{tmp_path}")
    assert files.where("length > 1").select("path", "content").collect() == []
