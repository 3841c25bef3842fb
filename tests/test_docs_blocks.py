"""The blocks of code in README and docs run as they stand, on a small folder in place of yours.

The blocks of a page run in order, in one folder and, in Python, with the names of those before.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
import warm
from folders import write_files
from mounting import need, need_fuse, watched
from simulated.objectstore import ObjectStore, web_server
from sparking import SparkSession
from tables import run_program

import winkfs
import winkfs.dataset
from winkfs.stores import ledgerq, messagestore
from winkmount.mounts import mount_at

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]
ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SPARK = ("docs/spark.md", "docs/pipeline.md")  # all of their Python needs a session
TOOLS = "docs/tools.md"  # each section by itself, after what precedes the first
NEEDED = {  # what a block has -> what winkfs needs for it
    "to_arrow(": "pyarrow", "to_batches(": "pyarrow", "parts(": "pyarrow",
    "winkfs.polars": "polars", "winkfs.query(": "duckdb", "winkfs.fs(": "fsspec",
    "fsspec.ratarmount": "ratarmountcore", 'compress="zstd"': "zstandard",
}  # fmt: skip
# of these, what has "spark" in it
SOME_SPARK = ("README.md", "docs/ledgerq.md", "docs/remote.md", "docs/stores.md")
SLOWEST = ("docs/archive.md", "docs/export.md", "docs/stores.md")  # their commands: tests/cli
RUN = {"sh", "python", "sql"}
NOT_RUN = {  # (page, language) -> why
    ("README.md", ""): "a drawing",
    ("docs/architecture.md", ""): "the steps of a sync",
    ("docs/datasets.md", ""): "a listing of a folder",
    ("docs/cluster.md", "sh"): "commands for machines of the reader",
    ("docs/cluster.md", "dockerfile"): "an image of the reader",
}
FOLDERS = ("/usr/share/doc", "/srv/crawl", "/srv/www")  # the reader's, here a small one
FAR = ("s3://bucket/corpus", "https://example.org/corpus")  # here on a web server
FAR_SETS = {"s3://bucket/set": "far-set", "s3://bucket/new": "far-new"}  # here folders
LEFT_OUT = {  # lines of shell -> why
    "make demo": "tests/cli/test_demo.py, tests/spark/test_crawl_queue.py",
    "make test": "this",
    "/dev/sdx": "a device of the reader",
    "winkfs pipeline": "tests/spark/test_cli_pipeline.py; here with Spark it would take a minute",
    "winkfs mount": "test_the_mounts_of_a_page_run",
    "winkfs umount": "the same",
    "winkfs rollback --previous": "needs a sync that failed",
    "spark-submit": "of clusters: tests/spark/test_spark_cluster.py",
    "pip install": "what is installed stays as it is",
    "aws s3 cp": "tests/remote/test_s3.py",
    "winkfs remote check": "tests/remote/test_check.py",
    "winkfs push": "tests/remote/test_push.py",
    "winkfs pull": "the same",
    "winkfs sign": "the same",
    "winkfs diff": "status 1 where sides differ: tests/cli/test_cli_diff.py",
    "winkfs grep": "status 1 where nothing matches: tests/cli/test_cli_grep.py",
    "https://.../": "an archive of the reader: tests/archive/test_pack_archives.py",
    "--state 2": "needs two more backups: tests/archive/test_backup.py",
}


def fences(page: str) -> set[str]:
    """The languages of the blocks of a page."""
    return set(re.findall(r"^ *```(\w*)\n.*?^ *```$", (ROOT / page).read_text(), re.M | re.S))


def test_each_kind_of_block_is_run_or_has_a_reason() -> None:
    found = {(page, language) for page in PAGES for language in fences(page)}
    left = {(page, language) for page, language in found if language not in RUN}
    assert left | {("docs/cluster.md", "sh")} == NOT_RUN.keys()
    assert {page for page, language in found if language == "sql"} == {"docs/spark.md"}


def test_each_page_with_spark_is_run_with_spark() -> None:
    with_spark = [page for page in PAGES if any("spark" in one for one in blocks(page, "python"))]
    assert sorted(with_spark) == sorted({*SPARK, *SOME_SPARK})


def test_each_block_with_a_mount_is_run() -> None:
    for page in MOUNTED:
        there = [block for block in blocks(page, "sh") if "mnt" in block]
        assert there == with_mounts(page), page


def test_each_line_that_is_left_out_is_there() -> None:
    lines = [one for page in PAGES for block in blocks(page, "sh") for one in block.splitlines()]
    assert [part for part in LEFT_OUT if not any(part in line for line in lines)] == []


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return [here(block) for block in found]


def here(block: str) -> str:
    block = block.replace("100_000", "1_000")
    for folder in FOLDERS:
        block = block.replace(folder, "doc-source")
    for url in FAR:
        block = block.replace(url, f"{os.environ.get('WINKFS_TEST_FAR', url)}/corpus")
    mounted = "file:///mnt/corpus", f"file://{Path.cwd()}/mounted"
    for theirs, ours in (*FAR_SETS.items(), mounted, ("/data/", ""), ("/backup/", "backups/")):
        block = block.replace(theirs, ours)
    return block


@pytest.fixture(scope="module", autouse=True)
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = stored.make(tmp_path_factory.mktemp("far") / "c", {"site05/page-17.html": b"x" * 2000})
    with ObjectStore() as store, pytest.MonkeyPatch.context() as patch:
        store.put_container(base, "corpus")
        with web_server(store) as url:
            patch.setenv("WINKFS_TEST_FAR", url)
            patch.setenv("WINKFS_CACHE", str(base.parent / "cache"))
            patch.setenv("no_proxy", "127.0.0.1")
            yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages take as given."""
    source = tmp_path / "doc-source"
    names = ("bash/copyright", "bash/README", "img/a.png", "index.html", "x.pyc", "notes/b.txt")
    write_files(source, {name: f"GPL {name}\n".encode() * 20 for name in names})
    for name in ("FILE", "log", "a.txt"):
        (tmp_path / name).write_text("needle\n")
    with tarfile.open(tmp_path / "www.tar", "w") as archive:
        archive.add(source, "www")
    shutil.make_archive(str(tmp_path / "www"), "zip", source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- Python ---


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (*SPARK, TOOLS)])
def test_the_python_of_a_page_runs(page: str, folder: Path) -> None:
    names: dict[str, Any] = {}
    left: set[str] = set()
    for block in blocks(page, "python"):
        if "spark" in block:
            continue
        if missing := not_installed(block):
            left |= missing
        else:
            exec(compile(block, page, "exec"), names)
    if left:
        pytest.skip(f"all but the blocks with {', '.join(sorted(left))}, not installed")


def sections(page: str) -> dict[str, str]:
    """Return the Python of each section, by its heading; "": what precedes the first."""
    parts = re.split(r"^## (.*)\n", (ROOT / page).read_text(), flags=re.MULTILINE)
    found = zip(["", *parts[1::2]], parts[::2], strict=True)
    fence = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return {heading: "\n\n".join(fence.findall(text)) for heading, text in found}


def not_installed(code: str) -> set[str]:
    """Return the modules that a block needs, and that no distribution here has."""
    needed = set(re.findall(r"^ *(?:import|from) (\w+)", code, re.M))
    needed |= {module for call, module in NEEDED.items() if call in code}
    return needed - {*sys.stdlib_module_names, "winkfs", *metadata.packages_distributions()}


@pytest.mark.long  # tests/tools calls the same
@pytest.mark.parametrize("section", list(filter(None, sections(TOOLS))))
def test_the_python_of_a_tool_runs(section: str, folder: Path) -> None:
    """In a process of its own, as a program: tools start threads and processes."""
    texts = sections(TOOLS)
    if missing := not_installed(texts[section]):
        pytest.skip(f"{', '.join(sorted(missing))} not installed: make test-tools")
    exec(compile(texts[""], TOOLS, "exec"), {})
    code = texts[section].replace("/abs/", f"{folder}/")
    print(run_program(f"import winkfs\n\n{code}", folder))


def test_the_python_of_the_readme_runs_twice(folder: Path) -> None:
    block = blocks("README.md", "python")[0]
    for _ in range(2):
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.spark
@pytest.mark.parametrize("page", [*SOME_SPARK, *SPARK])
def test_the_python_of_spark_runs(page: str, spark: SparkSession, folder: Path) -> None:
    _prepare_spark(page)
    scores = spark.createDataFrame([("a.html", 0.5)], "path string, score double")
    names: dict[str, Any] = {
        "spark": spark, "winkfs": winkfs, "corpus": str(folder / "corpus"), "scores": scores,
        "labels": scores.select("path"), "names": ["a.html"],
    }  # fmt: skip
    for block in blocks(page, "python"):
        if page in SOME_SPARK and "spark" not in block:
            continue
        if "perm:ORDER" not in block:  # tests/spark/test_jobs_answers.py
            exec(compile(with_session(block), page, "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


@pytest.mark.spark
def test_the_sql_of_spark_runs(spark: SparkSession, folder: Path) -> None:
    data_sets.put("corpus", {"example.org/a.html": b"<p>"})
    others = spark.sql("SELECT 'b' path, 1L size, current_timestamp() mtime, X'31' content")
    others.createOrReplaceTempView("others")
    (block,) = blocks("docs/spark.md", "sql")
    found = [spark.sql(line.partition("--")[0].replace("'corpus'", f"'{folder}/corpus'")).collect()
             for line in block.splitlines()]  # fmt: skip
    spark.sql("DROP TABLE pages")
    assert [[row.path for row in rows] for rows in found[1:3]] == [["example.org/a.html"]] * 2
    assert stored.names("corpus") == ["b"]


def _prepare_spark(page: str) -> None:
    if page == "README.md":
        winkfs.pack("doc-source", "set", shards=2)
    if page == "docs/stores.md":
        _records()
    if page == "docs/ledgerq.md":
        _queue()
    if page in SOME_SPARK:
        return
    for base in ("corpus", "crawl"):
        if page == "docs/pipeline.md":
            stored.make(base, {"example.org/index.html": b"<title>Example</title>"})
            continue
        with winkfs.dataset.create(base) as data_set:
            data_set.add_columns({"lang": "string", "score": "float64"})
            data_set.put("a.html", b"<title>a</title>", columns={"lang": "de", "score": 0.93})
    Path("doc-source").rename("mounted")


def with_session(block: str) -> str:
    """With the session that is there for one that a block makes, and the folder of this test."""
    for name in ("set", "copy", "corpus", "crawl", "checkpoint", "box", "jobs", *FAR_SETS.values()):
        block = block.replace(f'"{name}"', repr(str(Path.cwd() / name)))
    return re.sub(r"SparkSession\.builder\.config\(map=[\w.()]*\)\.getOrCreate\(\)", "spark", block)


# --- the shell ---


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.long] if page in SLOWEST else [])
    for page in PAGES if (page, "sh") not in NOT_RUN
])  # fmt: skip
def test_the_commands_of_a_page_run(page: str, folder: Path) -> None:
    """A line fails, or prints an error, only where it is left out above. One that is a command of
    winkfs and nothing else runs without a shell."""
    for number, block in enumerate(blocks(page, "sh")):
        if "mnt" in block and page != "docs/datasets.md":
            continue
        _prepare(page, number)
        for line in block.splitlines():
            if line.strip() and not any(part in line for part in LEFT_OUT):
                _run_line(page, line)


PATIENCE = 120  # seconds
BOX = "0123456789abcdef0123456789abcdef"


def _prepare(page: str, number: int) -> None:
    """What the page has the reader bring to this block."""
    if page == "docs/repair.md":
        if not os.path.exists("corpus.data"):
            winkfs.pack("doc-source", "corpus")
            shutil.copyfile("corpus.data", "broken.data")
    elif page == "docs/commands.md" and not number:
        winkfs.pack("doc-source", "corpus")
    elif page in ("docs/backup.md",):
        winkfs.pack("doc-source", "corpus")
        os.mkdir("backups")


def _run_line(page: str, line: str) -> None:
    line = line.replace("FILE...", "FILE").replace("ID...", BOX).replace(" ID ", f" {BOX} ")
    line = line.replace("curl -s https://example.org", "echo '<p>'")
    line = line.replace("zstd -dc www.tar.zst", "cat www.tar")
    if page == "docs/stores.md":
        line = line.replace("store put box", f"store put box --id {BOX}")
    bare = re.sub(r"'[^']*'| #.*", "", line)
    if bare.startswith("winkfs ") and not set(bare) & set('|<>&;$`*?(){}~"\\'):
        status, _, err = warm.run(shlex.split(line, comments=True)[1:], PATIENCE)
        assert status == 0 and not err, f"{page}: {line}\n{err}"
        return
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", line], capture_output=True, text=True,
        timeout=PATIENCE, env=os.environ | {"PATH": path, "SHELL": "/bin/bash"},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, f"{page}: {line}\n{done.stderr}"


# --- mounts ---


def _queue() -> None:
    ledgerq.create("jobs")
    with ledgerq.Queue("jobs", "a") as queue:
        queue.push(b"needle", headers={"x-kind": "page"})


def _records() -> None:
    messagestore.create("box")


MOUNTED: dict[str, Callable[[], object]] = {
    "README.md": lambda: winkfs.pack("doc-source", "corpus"),
    "docs/datasets.md": lambda: None,
    "docs/ledgerq.md": _queue,
    "docs/stores.md": _records,
}


def with_mounts(page: str) -> list[str]:
    return [
        block for block in blocks(page, "sh") if re.search(r"^winkfs mount .* mnt\b", block, re.M)
    ]


def test_each_page_with_a_mount_is_there() -> None:
    assert [page for page in PAGES if with_mounts(page)] == list(MOUNTED)


@pytest.mark.mount
@pytest.mark.parametrize("page", MOUNTED)
def test_the_mounts_of_a_page_run(page: str, folder: Path) -> None:
    """Each line, of which none fails or prints an error, on a real mount."""
    need_fuse()
    if any("getfattr" in block for block in with_mounts(page)):
        need("getfattr")
    MOUNTED[page]()
    for block in with_mounts(page):
        with contextlib.ExitStack() as stack:
            for line in block.splitlines():
                if line.startswith("winkfs mount "):
                    os.makedirs("mnt", exist_ok=True)
                    _run_line(page, line)
                    stack.enter_context(watched(folder / "mnt"))
                else:
                    _run_line(page, line)
            if mount_at(str(folder / "mnt")) is not None:
                _run_line(page, "winkfs umount mnt")
        shutil.rmtree("mnt")
