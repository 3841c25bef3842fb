"""Job ingest of web documents: all captures are kept, whatever the order in which they come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from mounting import mounted
from sparking import SparkSession
from sparking import spark as spark  # the fixture
from warcs import DATE, response

import winkfs
from winkfs.archive.unpack import unpack
from winkfs.archive.webnames import apart
from winkfs.dataset.manifest import Log
from winkfs.errors import DatasetConflict

pytest.importorskip("pyarrow")
from winkfs.spark.jobs import ingest

pytestmark = pytest.mark.spark


def at(url: bytes, body: bytes, day: int) -> bytes:
    return response(url, body).replace(DATE, b"2024-01-%02dT00:00:00Z" % day)


S = apart(b"a/x", b"https://a/x").decode()
FILES = {
    "1": at(b"http://a/x", b"1", 1) + at(b"http://a/x", b"3", 3) + at(b"http://a/y", b"y", 1),
    "2": at(b"http://a/x", b"2", 2) + at(b"https://a/x", b"s2", 2) + at(b"http://a/x", b"1", 1),
    "3": at(b"https://A:443/x", b"s4", 4) + at(b"http://a/x", b"5", 5) + at(b"http://a/", b"i", 1),
}
ALL = {
    "a/x": b"5", "a/x@20240103000000": b"3", "a/x@20240102000000": b"2",
    "a/x@20240101000000": b"1", S: b"s4", S + "@20240102000000": b"s2", "a/y": b"y",
    "a/index.html": b"i",
}  # fmt: skip


def files_in(folder: Path, names: Sequence[str]) -> list[str]:
    for name, data in FILES.items():
        (folder / f"{name}.warc").write_bytes(data)
    return [str(folder / f"{name}.warc") for name in names]


@pytest.mark.few(1)
@pytest.mark.parametrize("runs", [["123"], ["321"], ["1", "2", "3"], ["3", "21"], ["2", "31"]])
def test_all_captures_are_kept_and_the_newest_has_the_plain_name(
    spark: SparkSession, tmp_path: Path, runs: list[str]
) -> None:
    total = {"files": 0, "replaced": 0}
    for names in runs:
        summary = ingest.run(spark, files_in(tmp_path, names), str(tmp_path / "d"))
        total = {key: value + summary[key] for key, value in total.items()}
    assert stored.files(tmp_path / "d") == ALL
    assert total == {"files": 8, "replaced": 1}
    with winkfs.open(tmp_path / "d") as found:
        assert found.getcolumns(S)["url"] == "https://A:443/x"
        assert found.getcolumns("a/x@20240102000000")["url"] == "http://a/x"
    again = ingest.run(spark, files_in(tmp_path, "123"), str(tmp_path / "d"), again=True)
    assert (again["files"], again["replaced"]) == (0, 9)
    assert stored.files(tmp_path / "d") == ALL


def test_of_the_latest_captures_one_is_kept_for_each_url(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "d")
    assert ingest.run(spark, files_in(tmp_path, "2"), target, latest=True)["files"] == 2
    summary = ingest.run(spark, files_in(tmp_path, "13"), target, latest=True)
    assert (summary["files"], summary["replaced"]) == (4, 4)
    wanted = {"a/x": b"5", S: b"s4", "a/y": b"y", "a/index.html": b"i"}
    assert stored.files(tmp_path / "d") == wanted
    assert ingest.run(spark, files_in(tmp_path, "2"), target, latest=True, again=True)["files"] == 0
    assert stored.files(tmp_path / "d") == wanted


def test_a_crawl_can_be_unpacked_and_browsed(spark: SparkSession, tmp_path: Path) -> None:
    urls = [b"http://a.example/first", b"http://a.example/d/", b"http://a.example/d/x",
            b"http://a.example/d/x?q=a/b", b"http://a.example/d//y"]  # fmt: skip
    (tmp_path / "a.warc").write_bytes(b"".join(response(url, url) for url in urls))
    assert ingest.run(spark, [str(tmp_path / "a.warc")], str(tmp_path / "d"))["files"] == 5
    assert not unpack(tmp_path / "d", tmp_path / "out").failed
    there = {
        os.path.relpath(os.path.join(folder, name), tmp_path / "out")
        for folder, _, names in os.walk(tmp_path / "out") for name in names
    }  # fmt: skip
    assert there == {
        "a.example/first", "a.example/d/index.html", "a.example/d/x", "a.example/d/y",
        "a.example/d/x?q=a%2Fb",
    }  # fmt: skip


@pytest.mark.mount
def test_a_crawl_with_nested_document_paths_is_seen_on_a_mount(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`/d` and `/d/x`: a name that has others below it is `@file` in its directory."""
    records = [at(b"http://h/d", b"old d", 1), at(b"http://h/d/x", b"x", 1)]
    records += [at(b"http://h/d/x/y", b"y", 1), at(b"http://h/d", b"new d", 2)]
    records += [at(b"http://h/d/", b"index", 1), at(b"http://h/e/", b"e", 1)]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    assert ingest.run(spark, [str(tmp_path / "a.warc")], str(tmp_path / "set"))["files"] == 6
    with mounted(tmp_path / "set") as there:
        found = {
            str(path.relative_to(there)): path.read_bytes()
            for path in sorted(there.rglob("*")) if path.is_file()
        }  # fmt: skip
        assert found == {
            "h/d/@file": b"new d", "h/d@20240101000000": b"old d", "h/d/x/@file": b"x",
            "h/d/x/y": b"y", "h/d/index.html": b"index", "h/e/index.html": b"e",
        }  # fmt: skip
        assert sorted(os.listdir(there / "h/d")) == ["@file", "index.html", "x"]
        assert winkfs.name_of_path("h/d/@file") == "h/d"


def test_ingest_appends_to_a_data_set_of_urls_with_a_note(
    spark: SparkSession, tmp_path: Path
) -> None:
    data_sets.put(tmp_path / "d", {"http://a/x": b"old"})
    summary = ingest.run(spark, files_in(tmp_path, "1"), str(tmp_path / "d"))
    assert any("named by their URLs" in line for line in summary["lines"])
    assert stored.files(tmp_path / "d") == {
        "http://a/x": b"old", "a/x": b"3", "a/x@20240101000000": b"1", "a/y": b"y"
    }  # fmt: skip


def test_a_file_that_is_no_capture_keeps_its_name(spark: SparkSession, tmp_path: Path) -> None:
    data_sets.put(tmp_path / "d", {"a/y": b"mine"})
    ingest.run(spark, files_in(tmp_path, "1"), str(tmp_path / "d"))
    found = stored.files(tmp_path / "d")
    assert found["a/y"] == b"mine"
    assert found[apart(b"a/y", b"http://a/y").decode()] == b"y"


def test_another_commit_in_between_loses_no_capture(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real = tmp_path / "d", ingest._commit

    def commit(*given: Any) -> None:
        monkeypatch.setattr(ingest, "_commit", real)
        ingest.run(spark, files_in(tmp_path, "3"), str(target))
        real(*given)

    monkeypatch.setattr(ingest, "_commit", commit)
    with pytest.raises(DatasetConflict):
        ingest.run(spark, files_in(tmp_path, "12"), str(target))
    ingest.run(spark, files_in(tmp_path, "12"), str(target))
    assert stored.files(target) == ALL


def test_an_ingest_goes_on_after_a_kill_without_duplicates(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real, rounds = tmp_path / "d", ingest._settled, [0]
    paths = files_in(tmp_path, "231")

    def settled(*given: Any, **named: Any) -> Any:
        rounds[0] += 1
        found = real(*given, **named)  # it has renamed, and copied
        if rounds[0] == 2:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(ingest, "_settled", settled)
    with pytest.raises(KeyboardInterrupt):
        ingest.run(spark, paths, str(target), round_bytes=1)
    assert Log(str(target)).newest() == 1 and not list((target / "_pending").iterdir())
    monkeypatch.setattr(ingest, "_settled", real)
    assert ingest.run(spark, paths, str(target), round_bytes=1)["skipped"] == 1
    assert stored.files(target) == ALL
