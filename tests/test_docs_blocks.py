"""The blocks of code in README and docs run as they stand, on a small folder in place of yours.

The blocks of a page run in order, in one folder and, in Python, with the names of those before.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mounting import need, need_fuse, watched

import winkfs
from winkfs.stores import ledgerq
from winkfs.stores.logstore import LogStore
from winkmount.mounts import mount_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]
ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SPARK = ("docs/spark.md", "docs/pipeline.md")  # all of their Python needs a session
FOLDERS = ("/usr/share/doc", "/srv/crawl", "/srv/www")  # the reader's, here a small one
LEFT_OUT = {  # lines of shell -> why
    "make demo": "tests/cli/test_demo.py, tests/spark/test_crawl_queue.py",
    "make test": "this",
    "/dev/sdx": "a device of the reader",
    "winkfs pipeline": "tests/spark/test_cli_pipeline.py; here with Spark it would take a minute",
    "winkfs mount": "test_the_mounts_of_a_page_run",
    "winkfs umount": "the same",
    "winkfs rollback --previous": "needs a sync that failed",
    "spark-submit": "of clusters: tests/spark/test_spark_cluster.py",
    "--state 2": "needs two more backups: tests/archive/test_backup.py",
}
CLUSTER = "docs/cluster.md"  # commands for machines of the reader


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return [here(block) for block in found]


def here(block: str) -> str:
    block = block.replace("100_000", "1_000")
    for folder in FOLDERS:
        block = block.replace(folder, "doc-source")
    for theirs, ours in (("file:///mnt/corpus", f"file://{Path.cwd()}/mounted"), ("/data/", ""),
                         ("/backup/", "backups/")):  # fmt: skip
        block = block.replace(theirs, ours)
    return block


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages take as given."""
    source = tmp_path / "doc-source"
    for name in (
        "bash/copyright",
        "bash/README",
        "img/a.png",
        "index.html",
        "x.pyc",
        "notes/b.txt",
    ):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"GPL {name}\n" * 20)
    for name in ("FILE", "log", "a.txt"):
        (tmp_path / name).write_text("needle\n")
    with tarfile.open(tmp_path / "www.tar", "w") as archive:
        archive.add(source, "www")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- Python ---

@pytest.mark.parametrize("page", [page for page in PAGES if page not in SPARK])
def test_the_python_of_a_page_runs(page: str, folder: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if "spark" not in block:
            exec(compile(block, page, "exec"), names)


def test_the_python_of_the_readme_runs_twice(folder: Path) -> None:
    block = blocks("README.md", "python")[0]
    for _ in range(2):
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.spark
@pytest.mark.parametrize("page", ["README.md", *SPARK])
def test_the_python_of_spark_runs(page: str, spark: SparkSession, folder: Path) -> None:
    _prepare_spark(page)
    scores = spark.createDataFrame([("a.html", 0.5)], "path string, score double")
    names: dict[str, Any] = {
        "spark": spark, "winkfs": winkfs, "corpus": str(folder / "corpus"), "scores": scores,
        "labels": scores.select("path"), "names": ["a.html"],
    }  # fmt: skip
    for block in blocks(page, "python")[page == "README.md" :]:
        if "perm:ORDER" not in block:  # tests/spark/test_jobs_answers.py
            exec(compile(with_session(block), page, "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


def _prepare_spark(page: str) -> None:
    if page == "README.md":
        winkfs.pack("doc-source", "set", shards=2)
        return
    for base in ("corpus", "crawl"):
        if page == "docs/pipeline.md":
            with winkfs.create(base) as container:
                container.put("example.org/index.html", b"<title>Example</title>")
            continue
        with winkfs.dataset.create(base) as data_set:
            data_set.add_columns({"lang": "string", "score": "float64"})
            data_set.put("a.html", b"<title>a</title>", columns={"lang": "de", "score": 0.93})
    Path("doc-source").rename("mounted")


def with_session(block: str) -> str:
    """With the session that is there for one that a block makes, and the folder of this test."""
    for name in ("set", "copy", "corpus", "crawl", "checkpoint"):
        block = block.replace(f'"{name}"', repr(str(Path.cwd() / name)))
    return re.sub(r"SparkSession\.builder\.config\(map=[\w.()]*\)\.getOrCreate\(\)", "spark", block)


# --- the shell ---


@pytest.mark.parametrize("page", [page for page in PAGES if page != CLUSTER])
def test_the_commands_of_a_page_run(page: str, folder: Path) -> None:
    """A line fails, or prints an error, only where it is left out above."""
    for number, block in enumerate(blocks(page, "sh")):
        if "mnt" in block and page != "docs/datasets.md":
            continue
        _prepare(page, number)
        for line in block.splitlines():
            if line.strip() and not any(part in line for part in LEFT_OUT):
                _run_line(page, line)


BOX = "0123456789abcdef0123456789abcdef"


def _prepare(page: str, number: int) -> None:
    """What the page has the reader bring to this block."""
    if page == "docs/repair.md":
        if not os.path.exists("corpus.data"):
            winkfs.pack("doc-source", "corpus")
            shutil.copyfile("corpus.data", "broken.data")
    elif page in ("docs/backup.md",):
        winkfs.pack("doc-source", "corpus")
        os.mkdir("backups")
    elif page == "docs/datasets.md" and os.path.exists("corpus"):
        shutil.rmtree("corpus")


def _run_line(page: str, line: str) -> None:
    line = line.replace("FILE...", "FILE").replace("ID...", BOX).replace(" ID ", f" {BOX} ")
    line = line.replace("curl -s https://example.org", "echo '<p>'")
    line = line.replace("zstd -dc www.tar.zst", "cat www.tar")
    if page == "docs/stores.md":
        line = line.replace("store put box", f"store put box --id {BOX}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=120,
        env=os.environ | {"PATH": path, "SHELL": "/bin/bash"},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, f"{page}: {line}\n{done.stderr}"


# --- mounts ---


def _queue() -> None:
    ledgerq.create("jobs")
    with ledgerq.Queue("jobs", "a") as queue:
        queue.push(b"needle", headers={"x-kind": "page"})


def _records() -> None:
    with LogStore.create("box") as store:
        store.put_many(b"needle %d" % number for number in range(5200))


MOUNTED: dict[str, Callable[[], object]] = {
    "README.md": lambda: winkfs.pack("doc-source", "corpus"),
    "docs/datasets.md": lambda: os.mkdir("mnt"),
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
