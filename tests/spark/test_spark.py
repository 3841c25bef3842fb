"""The Spark example: right counts, the same on a mount, and one clear line where it cannot run."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import stored
from folders import write_files
from mounting import mounted
from sparking import DataFrame, SparkSession

import winkfs
from examples import word_count

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "word_count.py"
LIBRARY = Path(sysconfig.get_path("stdlib"))

PAGE = """<html><head><title>Ein Titel</title><style>b { color: red }</style></head>
<body class="no word"><script>var no = "word";</script><!-- no word -->
<p>Gr&uuml;&szlig;e&nbsp;mehr</p></body></html>"""  # 4 words
FILES = {
    "pages/page one.html": PAGE.encode(),
    "pages/fragment.HTM": b"<p>three more <b>words</b></p>",
    "pages/no extension": b"\n<!-- x -->\n<!DOCTYPE html><p>two words",
    "text/a.txt": b"one two three\nfour\n",
    "text/umlaut \u00fc.txt": "f\u00fcnf W\u00f6rter".encode(),
    "text/latin-1.txt": "f\u00fcnf Wort".encode("latin-1"),
    "text/[x]{y}*?#%20.txt": b"odd name",
    "text/empty.txt": b"",  # Spark passes over it
    "text/deep/er/b.txt": b"five\n" * 5,
    "packed/page.html.gz": gzip.compress(PAGE.encode()),
    "packed/changes.gz": gzip.compress(b"six more words\n") + gzip.compress(b"in two members"),
    "packed/cut.gz": gzip.compress(b"lost words")[:-9],
    "packed/picture.png.gz": gzip.compress(b"\x89PNG\0\0"),
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "escapes.bin": b"not \x01 a text",
}
# type: names, words
EXPECTED = {
    "binary": (["picture.png", "escapes.bin"], 0),
    "binary.gz": (["packed/picture.png.gz"], 0),
    "gz, damaged": (["packed/cut.gz"], 0),
    "html": (["pages/page one.html", "pages/fragment.HTM", "pages/no extension"], 4 + 3 + 2),
    "html.gz": (["packed/page.html.gz"], 4),
    "text": ([n for n in FILES if n.startswith("text/") and FILES[n]], 4 + 2 + 2 + 2 + 5),
    "text.gz": (["packed/changes.gz"], 6),
}


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FILES in a directory whose own name holds wildcards."""
    return write_files(tmp_path_factory.mktemp("tree") / "odd [a]{b} *?", FILES)


def rows(table: DataFrame) -> dict[str, tuple[int, ...]]:
    return {row[0]: tuple(row[1:]) for row in table.collect()}


def expected(wanted: dict[str, tuple[list[str], int]]) -> dict[str, tuple[int, ...]]:
    return {
        kind: (len(names), sum(len(FILES[name]) for name in names), words)
        for kind, (names, words) in wanted.items()
    }


def test_every_document_type_is_recognized_and_counted(spark: SparkSession, tree: Path) -> None:
    assert rows(word_count.count_documents(spark, tree)) == expected(EXPECTED)


def test_glob_takes_only_names_that_fit(spark: SparkSession, tree: Path) -> None:
    found = rows(word_count.count_documents(spark, tree, "*.gz"))
    assert found == expected({kind: EXPECTED[kind] for kind in EXPECTED if "gz" in kind})


def test_too_large_file_is_counted_but_not_read(
    spark: SparkSession, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_count, "MAX_DOCUMENT", len(b"one two three\nfour\n") - 1)
    found = rows(word_count.count_documents(spark, tree / "text"))
    assert found["too large"] == (2, 19 + 25, 0)
    assert found["text"] == (3, sum(len(FILES[n]) for n in EXPECTED["text"][0]) - 19 - 25, 6)


def test_lines_of_a_path_glob_with_gzip_unpacked(spark: SparkSession, tree: Path) -> None:
    assert rows(word_count.count_lines(spark, tree, "*/*.txt")) == {"txt": (4, 5, 4 + 2 + 2 + 2)}
    assert rows(word_count.count_lines(spark, tree, "packed/ch*")) == {"gz": (1, 2, 6)}


@pytest.mark.long
def test_python_and_jvm_count_the_same_words_in_real_text(spark: SparkSession) -> None:
    documents = rows(word_count.count_documents(spark, LIBRARY / "email", "*.py"))
    lines = rows(word_count.count_lines(spark, LIBRARY / "email", "{*,*/*}.py"))
    assert documents["text"][0] > 20
    assert documents["text"][2] == lines["py"][2]


@pytest.mark.mount
def test_mount_and_directory_give_the_same_answer(
    spark: SparkSession, tree: Path, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    shutil.copytree(tree, original / "known")
    for part in ("email", "json", "html", "pydoc_data"):
        shutil.copytree(LIBRARY / part, original / part)
    names = [path for path in original.rglob("*") if path.is_file()]
    known = {str(path.relative_to(original)): path.read_bytes() for path in names}
    stored.make(tmp_path / "corpus", known)
    with mounted(tmp_path / "corpus") as mount:
        assert rows(word_count.count_documents(spark, mount / "known")) == expected(EXPECTED)
        for glob in ("*", "*.py"):
            there = rows(word_count.count_documents(spark, mount, glob))
            assert there == rows(word_count.count_documents(spark, original, glob))
        there = rows(word_count.count_lines(spark, mount, "*/*.py"))
        assert there == rows(word_count.count_lines(spark, original, "*/*.py"))


@pytest.mark.long
@pytest.mark.mount
def test_tables_written_into_a_mount_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes temporary files, renames them and their directories, and removes the rest."""
    winkfs.create(str(tmp_path / "corpus")).close()
    table = spark.range(5000).selectExpr("id", "id % 3 as part", "cast(id * 7 as string) as text")
    wanted = sorted(map(tuple, table.select("id", "part", "text").collect()))
    with mounted(tmp_path / "corpus", patience=240) as mount:
        for turn in range(2):  # the second time over what is there
            table.write.mode("overwrite").partitionBy("part").parquet(f"file://{mount}/parquet")
            table.select("text").write.mode("overwrite").text(f"file://{mount}/text")
            table.write.mode("append").json(f"file://{mount}/json")
            found = spark.read.parquet(f"file://{mount}/parquet").select("id", "part", "text")
            assert sorted(map(tuple, found.collect())) == wanted
            texts = spark.read.text(f"file://{mount}/text").collect()
            assert sorted(row[0] for row in texts) == sorted(text for _, _, text in wanted)
            assert spark.read.json(f"file://{mount}/json").count() == 5000 * (turn + 1)
        assert not [path for path in mount.rglob("*") if "_temporary" in path.name]
    assert winkfs.verify(tmp_path / "corpus").problems == []
    with mounted(tmp_path / "corpus", "--ro") as mount:
        assert spark.read.parquet(f"file://{mount}/parquet").count() == 5000


def job(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | environment
    return subprocess.run(words, capture_output=True, text=True, env=env, check=False)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "program", ["python", pytest.param("spark-submit", marks=pytest.mark.soak)]
)
def test_job_prints_its_table(spark: SparkSession, tree: Path, program: str, soak: bool) -> None:
    if program == "spark-submit" and not soak:
        pytest.skip("takes long: make soak")
    done = job(Path(sys.executable).with_name(program), EXAMPLE, tree, "--glob", "*.gz")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["type", "documents", "bytes", "words"]
    size = len(FILES["packed/changes.gz"])
    assert table[-1] == ["text.gz", "1", str(size), "6"]


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("word_count: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_missing_java_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = job(sys.executable, EXAMPLE, tmp_path, PATH=str(tmp_path))
    assert_one_line(done, "Java is missing", "apt install openjdk-17-jre-headless")


def test_too_old_java_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = job(sys.executable, EXAMPLE, tmp_path, JAVA_HOME=str(tmp_path))
    assert_one_line(done, f"{java} is Java 11", "install Java 17")


def test_missing_pyspark_is_one_line(tmp_path: Path) -> None:
    done = job(sys.executable, "-S", EXAMPLE, tmp_path)
    assert_one_line(done, "has no pyspark", "pip install 'winkfs[spark]'")


def test_missing_directory_is_one_line(tmp_path: Path) -> None:
    assert_one_line(job(sys.executable, EXAMPLE, tmp_path / "nix"), "nix: no such directory")
