"""A store of another kind: one folder, one registration, and everything works on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from mounting import PATIENCE, mounted
from shelf import install
from sparking import MODULES, DataFrame, SparkSession, application

import winkfs
import winkfs.spark
from winkfs.registry import find_kind, kind_of

# The whole of the store. It is installed as any other distribution is: with an entry point.
TEXTS = """
import os
from winkfs.entry import Entry
from winkfs.errors import NoSuchFile
from winkfs.reader import Reader
from winkfs.registry import Kind, register

def detect(path):
    return path if os.path.exists(os.path.join(path, ".texts")) else None

class Texts(Reader):
    def __init__(self, path, mode="r"):
        super().__init__(path)
    def scan(self, since=None, until=None, prefix="", *, problem=None):
        names = sorted(n[:-4] for n in os.listdir(self.base) if n.endswith(".txt"))
        return (self.stat(name) for name in names if name.startswith(str(prefix)))
    def stat(self, name):
        path = os.path.join(self.base, f"{os.fsdecode(name)}.txt")
        if not os.path.exists(path):
            raise NoSuchFile("no such text", os.fsdecode(name))
        s = os.stat(path)
        read = lambda: open(path, "rb").read()
        return Entry(os.fsdecode(name), s.st_ino, s.st_size, s.st_mtime_ns, 1, 0o644,
                     s.st_uid, s.st_gid, s.st_ctime_ns, read)
    def read(self, name, offset=0, size=-1):
        data = self.stat(name).read()
        return data[offset:] if size < 0 else data[offset:offset + size]

register(Kind("text folder", detect, {"open": "texts.kind:Texts"}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the store in it."""
    site = tmp_path_factory.mktemp("site")
    install(site, "texts", "texts.kind")
    (site / "texts").mkdir()
    (site / "texts/__init__.py").touch()
    (site / "texts/kind.py").write_text(TEXTS)
    return site


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / ".texts").touch()
    for name, text in {"a": "alpha\n", "b": "beta, longer\n", "c": ""}.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def run(site: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path]))
        done = warm.run([str(argument) for argument in arguments], PATIENCE)
    return subprocess.CompletedProcess(arguments, *done)


@pytest.mark.slow
def test_commands_that_read_work_on_it(installed: Path, texts: Path) -> None:
    done = run(installed, "ls", texts)
    assert (done.stdout, done.stderr) == ("a\nb\nc\n", "")
    assert run(installed, "cat", texts, "b", "a").stdout == "beta, longer\nalpha\n"
    info = run(installed, "info", texts).stdout
    assert "text folder" in info and "files: 3" in " ".join(info.split())
    verify = run(installed, "verify", texts)
    assert (verify.returncode, verify.stdout) == (0, f"{texts}: 3 files, 0 entries: sound\n")
    missing = run(installed, "cat", texts, "nope")
    assert missing.returncode == 1
    assert missing.stderr == f"winkfs: {texts}: nope: no such file in the text folder\n"


@pytest.mark.slow
def test_commands_that_write_refuse_it_in_one_line(installed: Path, texts: Path) -> None:
    for arguments in (
        ["reindex", texts], ["compact", texts], ["put", texts, "x", "/dev/null"],
        ["append", texts, "a", "/dev/null"], ["mv", texts, "a", "b"], ["rm", texts, "a"],
    ):  # fmt: skip
        done = run(installed, *arguments)
        assert done.returncode == 1, arguments
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
        assert "fault in winkfs" not in done.stderr, done.stderr


def test_a_store_that_cannot_be_loaded_is_one_line(texts: Path, tmp_path: Path) -> None:
    install(tmp_path / "site", "broken", "no_such.kind")
    done = run(tmp_path / "site", "ls", texts)
    assert done.returncode == 1
    assert done.stderr == (
        "winkfs: no_such.kind: the kind of store 'broken' cannot be loaded: ModuleNotFoundError: "
        "No module named 'no_such': reinstall or remove what it came with\n"
    )


@pytest.mark.slow
def test_verify_finds_a_file_that_cannot_be_read(installed: Path, texts: Path) -> None:
    (texts / "d.txt").mkdir()
    done = run(installed, "verify", texts)
    assert done.returncode == 1
    assert "d: " in done.stdout


@pytest.mark.mount
def test_a_mount_of_it_is_read_only(
    installed: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), *sys.path]))
    with mounted(texts) as mount:
        assert sorted(os.listdir(mount)) == ["a", "b", "c"]
        assert (mount / "b").read_text() == "beta, longer\n"
        assert (mount / "b").stat().st_size == 13
        with pytest.raises(OSError, match="Read-only"):
            (mount / "d").write_text("x")
        with pytest.raises(FileNotFoundError):
            (mount / "d").read_text()


SPARK = """
import winkfs.spark

frame = winkfs.spark.read(spark, sys.argv[1])
print(sorted((row.path, row.size, bytes(row.content)) for row in frame.collect()))
print([row.path for row in frame.filter("size > 6").collect()])
try:
    winkfs.spark.read(spark, sys.argv[1], orderBy="path").collect()
except Exception as error:
    print("containers and data sets" in str(error))
"""


ROWS = [("a", 6, b"alpha\n"), ("b", 13, b"beta, longer\n"), ("c", 0, b"")]


def test_spark_reads_it(
    spark: SparkSession, installed: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Pythons that Spark starts find it; a driver, too: the next test."""
    path = os.pathsep.join([str(installed), MODULES])
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", path)
    session = spark.newSession()
    winkfs.spark.register(session)

    def load(**options: str) -> DataFrame:
        return session.read.format("winkfs").options(**options).load(str(texts))

    rows = load().collect()
    assert sorted((row.path, row.size, bytes(row.content)) for row in rows) == ROWS
    assert [row.path for row in load().filter("size > 6").collect()] == ["b"]
    with pytest.raises(Exception, match="containers and data sets"):
        load(orderBy="path").collect()


@pytest.mark.long
@pytest.mark.spark
def test_a_script_of_spark_reads_it(installed: Path, texts: Path) -> None:
    pytest.importorskip("pyspark")
    path = os.pathsep.join([str(installed), *sys.path])
    done = application(SPARK, texts, master="local[1]", path=path)
    assert done.stdout.splitlines() == [str(ROWS), "['b']", "True"], done.stderr[-2000:]


def test_what_is_no_store_is_none(tmp_path: Path) -> None:
    assert find_kind(str(tmp_path)) is None
    kind, path = kind_of(str(tmp_path / "none"))
    assert (kind.name, path) == ("container", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        winkfs.open(tmp_path / "none")


ASKED = """
import os, winkfs
from winkfs.registry import Kind, find_kind, register

asked = []
register(Kind("noted", lambda path: asked.append(path)))
winkfs.create("c").close()
os.mkdir("folder")
print([find_kind(path) is None for path in ("c", "folder", "nothing")], asked)
"""


@pytest.mark.slow
def test_a_kind_of_folder_is_not_asked_of_a_path_without_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASKED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True, True] ['folder']\n"
