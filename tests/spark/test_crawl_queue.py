"""The example of the queues: right answers with real processes, and what is wrong is told."""

from __future__ import annotations

import importlib
import pydoc
import re
import threading
from collections import Counter
from pathlib import Path

import data_sets
import pytest
from folders import write_files
from sparking import SparkSession

from examples import crawl_queue

MODULES = (
    "argparse", "csv", "datetime", "decimal", "email", "fractions", "gzip", "html", "http",
    "inspect", "io", "json", "logging", "math", "os", "pathlib", "pickle", "random", "re",
    "shutil", "socket", "string", "tarfile", "zipfile",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of HTML, 2 MB."""
    folder = tmp_path_factory.mktemp("crawl") / "html"
    pages = {"site0/index.html": b"<p>front page"}
    for number, name in enumerate(MODULES):
        page = pydoc.html.document(importlib.import_module(name), name)
        pages[f"site{number % 3}/{name} \u00fc.html"] = page.encode(errors="replace")
    write_files(folder, pages)
    return folder


@pytest.fixture
def pages(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of HTML, and the arguments of a run over it, with fewer processes."""
    monkeypatch.setattr(crawl_queue, "CRAWLERS", 2)
    monkeypatch.setattr(crawl_queue, "CONSUMERS", 1)
    monkeypatch.setattr("sys.argv", ["crawl_queue", "--work", str(tmp_path / "work"), str(folder)])
    return folder


@pytest.mark.long
def test_every_answer_is_right(
    spark: SparkSession, pages: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert crawl_queue.main() == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[-1] == "Every answer was right."
    assert f"site0.example: {len(MODULES) // 3 + 1} pages" in out
    counts = {
        what: int(n.replace(",", "")) for n, what in re.findall(r"(?m)^ +([\d,]+) (.+)$", out)
    }
    assert counts["consumed"] == len(MODULES) + 1
    assert counts["known to the queue"] == len(MODULES) // crawl_queue.TWICE + 1
    assert counts["came again"] > 0
    assert counts["bytes written to rings"] > crawl_queue.PAGE_SIZE  # not in memory alone


@pytest.mark.long
@pytest.mark.slow
def test_a_lost_page_is_reported(
    pages: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(files: dict[str, bytes], work: Path) -> Counter[str]:
        data_sets.put(work / "pages", list(files.items())[1:])
        return Counter()

    monkeypatch.setattr(crawl_queue, "pipeline", lossy)
    assert crawl_queue.main() == 1
    assert capfd.readouterr() == ("", "crawl_queue: other pages\n")


@pytest.mark.long
@pytest.mark.slow
def test_process_that_fails_ends_the_run(
    pages: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawl_queue.ledgerq, "create", lambda path, **_: None)  # there is no queue
    before = set(threading.enumerate())
    assert crawl_queue.main() == 1
    assert "crawl_queue: a process has failed\n" in capfd.readouterr().err
    assert not set(threading.enumerate()) - before  # its server would look for callers for ever


def test_no_html_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["crawl_queue", str(tmp_path)])
    with pytest.raises(SystemExit) as status:
        crawl_queue.main()
    assert status.value.code == 2
