"""A package of an extra that is missing is named, with what to do, in each command and function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import winkfs
from winkfs.errors import EXTRAS

# Runs code without some packages.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
"""
JOBS = {
    "stats": ["C"], "digest": ["C", "D"], "sort": ["C", "O", "--key", "path"], "dedup": ["C"],
    "group": ["C", "O", "--key", "path"], "compact": ["S"], "ingest": ["C.data", "S"],
}  # fmt: skip


def run(code: str, *packages: str) -> subprocess.CompletedProcess[str]:
    text = WITHOUT.format(packages=set(packages)) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "packages"),
    [*((job, ("pyarrow", "pyspark")) for job in JOBS), ("stats", ("pyarrow",)),
     ("ingest", ("pyarrow",)), ("ingest", ("pyspark", "py4j"))],
)  # fmt: skip
def test_a_job_without_its_packages_names_the_extra(
    tmp_path: Path, job: str, packages: tuple[str, ...]
) -> None:
    winkfs.create(tmp_path / "C").close()
    (tmp_path / "S").mkdir()
    paths = [word if word[0] == "-" or word == "path" else str(tmp_path / word)
             for word in JOBS[job]]  # fmt: skip
    done = run(f"from winkfs.cli import main\nsys.exit(main({['pipeline', job, *paths]!r}))",
               *packages)  # fmt: skip
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.strip().splitlines()[-1] == (
        "winkfs: this needs winkfs[pipeline]: pip install 'winkfs[pipeline]'"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "packages", "extra"),
    [
        ("from winkfs.spark.jobs.stats import draw; draw({}, 'x')", ("matplotlib",), "pipeline"),
        ("from winkfs.archive.parquet import *\n"
         "list(Table('x', print, ParquetColumns(), {}).items(by_mtime=False))",
         ("pyarrow",), "pipeline"),
        ("import winkfs; winkfs.create('/nowhere/c', compress='zstd')", ("zstandard",), "compress"),
    ],
)  # fmt: skip
def test_a_function_without_its_package_names_the_extra(
    code: str, packages: tuple[str, ...], extra: str
) -> None:
    if "winkfs.spark" in code:
        pytest.importorskip("pyarrow")
    done = run(code, *packages)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"needs winkfs[{extra}]: pip install 'winkfs[{extra}]'" in last


# A session and a frame that are asked for nothing before the packages are looked for.
SPARK = """
from types import SimpleNamespace as Has
import winkfs.spark
session = Has()
frame = Has(sparkSession=session,
            columns=["path", "size", "_container", "_contid", "_pos", "_pointer"])
winkfs.spark.{call}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "package"),
    [("register(session)", "pyspark"), ("read(session, 'C')", "pyspark"),
     ("register(session)", "pyarrow"), ("read(session, 'C')", "pyarrow"),
     ("delete(session, 'C', 'size = 0')", "pyarrow"), ("upsert(frame, 'C')", "pyarrow"),
     ("fetch_content(frame)", "pyarrow")],
)  # fmt: skip
def test_spark_functions_without_their_packages_name_the_extra(call: str, package: str) -> None:
    if package == "pyarrow":  # where both are missing, the other is named
        pytest.importorskip("pyspark")
    done = run(SPARK.format(call=call), package)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        f"winkfs.errors.Refusal: {'fetch_content' if 'fetch' in call else 'winkfs.spark'} "
        "needs winkfs[pipeline]: pip install 'winkfs[pipeline]'"
    )


def test_each_extra_is_one_that_there_is() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(EXTRAS.values()) <= set(project["project"]["optional-dependencies"])
