"""Job ingest: every kind of input, held against a plain loop; what is damaged; going on again."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sparking import SparkSession, application, run_code
from sparking import spark as spark  # the fixture
from warcs import response

import winkfs
from winkfs.dataset.manifest import Log
from winkfs.errors import NoSuchFile, Refusal
from winkfs.units import CLAMPED

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from winkfs.spark.jobs import ingest, units  # noqa: E402
from winkfs.spark.jobs.session import Bad  # noqa: E402

pytestmark = pytest.mark.spark
TARS = Path(__file__).parents[1] / "archive/tars"
FILES = {
    b"a.html": b"<title>A</title>", b"deep/er/b": b"b" * 70_000, b"deep/empty": b"",
    b"no utf-8 \xff": b"x", b"large": os.urandom(3 << 20), b"\xc3\xbc, [x] *": b"odd",
}  # fmt: skip


def tree(root: Path, files: dict[bytes, bytes] = FILES) -> Path:
    for name, content in files.items():
        path = os.fsencode(root) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(content)
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    return root


def tar(path: Path, files: dict[bytes, bytes] = FILES, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            member.size, member.mtime = len(content), 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
    return path


def content(target: Path) -> dict[bytes, bytes]:
    """By a plain loop over the shards of the newest generation, the later one wins."""
    found: dict[bytes, bytes] = {}
    for record in Log(str(target)).latest().shards:
        with winkfs.open(target / record.path) as shard:
            for entry in shard.scan():
                if entry.ftype != winkfs.FileType.DIR:
                    found[os.fsencode(entry.name)] = entry.read()
    return found


def test_a_directory_a_tar_file_and_a_table_give_the_same_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_FILES", 3)  # several units
    summary = ingest.run(spark, [str(tree(tmp_path / "in"))], str(tmp_path / "tree"))
    assert (summary["bytes"], summary["bad"], summary["generation"]) == (
        sum(map(len, FILES.values())), 0, 1,
    )  # fmt: skip
    assert summary["units"] == 3
    assert content(tmp_path / "tree") == FILES
    with winkfs.open(tmp_path / "tree") as found:
        assert found.stat(b"a.html").mtime_ns == 1_700_000_000_123_456_789
    ingest.run(spark, [str(tar(tmp_path / "x.tar.gz"))], str(tmp_path / "tar"))
    assert content(tmp_path / "tar") == FILES
    names = pa.array(FILES, pa.binary())
    table = pa.table({"url": names, "body": pa.array(FILES.values(), pa.binary())})
    pq.write_table(table, tmp_path / "x.parquet")
    columns = ingest.ParquetColumns("url", "body")
    ingest.run(spark, [str(tmp_path / "x.parquet")], str(tmp_path / "pq"), columns=columns)
    assert content(tmp_path / "pq") == FILES


def test_a_second_run_reads_only_what_is_new_or_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "d")
    first, second = tar(tmp_path / "1.tar"), tar(tmp_path / "2.tar", {b"second": b"2"})
    assert ingest.run(spark, [str(first)], target)["skipped"] == 0
    summary = ingest.run(spark, [str(first), str(second)], target)
    assert (summary["skipped"], summary["units"], summary["files"]) == (1, 1, 1)
    summary = ingest.run(spark, [str(first), str(second)], target)
    assert (summary["skipped"], summary["units"], summary["generation"]) == (2, 0, 2)
    tar(first, {b"a.html": b"changed"})
    assert ingest.run(spark, [str(first)], target)["units"] == 1
    assert content(tmp_path / "d") == FILES | {b"second": b"2", b"a.html": b"changed"}
    summary = ingest.run(spark, [str(first)], target, again=True)
    assert (summary["units"], summary["generation"]) == (1, 4)


def test_a_run_that_is_broken_off_keeps_whole_rounds_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [str(tar(tmp_path / f"{i}.tar", {b"%d" % i: b"x" * i})) for i in range(5)]
    target = tmp_path / "d"
    real = ingest._commit

    def commit(transaction: Any, part: list[ingest.Unit], *rest: Any) -> None:
        if part[0].path.endswith("3.tar"):
            raise KeyboardInterrupt
        real(transaction, part, *rest)

    monkeypatch.setattr(ingest, "_commit", commit)
    with pytest.raises(KeyboardInterrupt):
        ingest.run(spark, archives, str(target), round_bytes=1)
    assert content(target) == {b"%d" % i: b"x" * i for i in range(3)}
    assert list((target / "_pending").iterdir()) == []
    monkeypatch.setattr(ingest, "_commit", real)
    summary = ingest.run(spark, archives, str(target), round_bytes=1)
    assert (summary["skipped"], summary["units"]) == (3, 2)
    assert content(target) == {b"%d" % i: b"x" * i for i in range(5)}


KILLED = """
import json, os, sys
from pathlib import Path
from winkfs.spark.jobs import ingest

folder, moment = Path(sys.argv[1]), sys.argv[2]
archives = sorted(map(str, folder.glob("*.tar")))

def die():
    if not (folder / "dead").exists():
        (folder / "dead").touch()
        os.kill(os.getpid(), 9)

class Killed(ingest.Task):
    def __call__(self, unit):
        if not unit.path.endswith("1.tar"):
            return ingest.Task.__call__(self, unit)
        real = ingest.Packer.run
        def run(packer, source):
            real(packer, source)
            if moment == "packed":
                die()
        ingest.Packer.run = run
        try:
            done = ingest.Task.__call__(self, unit)
        finally:
            ingest.Packer.run = real
        die()
        return done

def run():
    try:
        return ingest.run(spark, archives, str(folder / "d"), round_bytes=300_000)
    except Exception:
        return None

real_task, ingest.Task = ingest.Task, Killed
try:
    print(json.dumps([run(), run(), run()]))
finally:
    ingest.Task = real_task
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(("master", "moment"), [("local[2]", "packed"), ("local[2,3]", "finished")])
def test_a_killed_worker_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, master: str, moment: str
) -> None:
    """Spark tries its task again, where it may; if not, the next run reads what is not there."""
    wanted = {b"%d/%d" % (i, n): os.urandom(900) for i in range(4) for n in range(150)}
    for i in range(4):  # two in a round
        some = {name: data for name, data in wanted.items() if name.startswith(b"%d" % i)}
        tar(tmp_path / f"{i}.tar", some, "w")
    if master == spark.sparkContext.master:
        out = run_code(spark, KILLED, tmp_path, moment)
    else:
        done = application(KILLED, tmp_path, moment, master=master)
        assert done.returncode == 0, done.stderr[-3000:]
        out = done.stdout
    first, second, third = json.loads(out.splitlines()[-1])
    assert (tmp_path / "dead").exists()
    if master == "local[2]":
        assert first is None and (second["files"], second["skipped"]) == (600, 0)
    else:
        assert first["files"] == 600 and (second["files"], second["skipped"]) == (0, 4)
    assert (third["files"], third["skipped"]) == (0, 4)
    assert content(tmp_path / "d") == wanted
    assert sum(record.files for record in Log(str(tmp_path / "d")).latest().shards) == 600
    assert not list((tmp_path / "d/_pending").iterdir())
    assert not winkfs.verify(tmp_path / "d").problems


def test_of_two_inputs_with_one_name_the_last_counts(spark: SparkSession, tmp_path: Path) -> None:
    archives = [str(tar(tmp_path / f"{i}.tar", {b"same": b"%d" % i})) for i in (3, 1, 2)]
    ingest.run(spark, archives, str(tmp_path / "d"))
    assert content(tmp_path / "d") == {b"same": b"2"}


def test_records_before_damage_are_kept_and_the_damage_listed(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = tar(tmp_path / "a.tar.gz")
    whole.write_bytes(whole.read_bytes()[:-2_000_000])  # in the middle of the large file
    (tmp_path / "b.tar").write_bytes(b"no tar file" * 1000)
    good = tar(tmp_path / "c.tar", {b"c": b"c"})
    listed: list[Bad] = []
    paths = [str(whole), str(tmp_path / "b.tar"), str(good)]
    summary = ingest.run(spark, paths, str(tmp_path / "d"), bad=listed.append)
    assert summary["bad"] == len(listed) == 2
    assert [bad.where for bad in listed] == paths[:2]
    assert listed[0].name == "large"
    assert "the gzip data are cut" in listed[0].reason
    assert listed[1].reason.startswith("not a tar file, but text")
    before = [b"a.html", b"deep/er/b", b"deep/empty", b"no utf-8 \xff"]
    assert content(tmp_path / "d") == {name: FILES[name] for name in before} | {b"c": b"c"}


def test_odd_members_of_tar_files_cost_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """Of each file of tests/archive/tars the same is taken as by `pack`."""
    wanted: set[bytes] = set()
    failed, paths = [], []
    for name, expected in json.loads((TARS / "expected.json").read_text()).items():
        path = tmp_path / name
        path.write_bytes(gzip.decompress((TARS / f"{name}.gz").read_bytes()))
        paths.append(str(path))
        files = expected["files"].items()
        wanted |= {file.encode() for file, (kind, *_) in files if kind != "d"}
        failed += [(str(path), file or str(path)) for file in expected["failed"]]
    listed: list[Bad] = []
    tar = ingest.TarOptions(ignore_zeros=True)
    summary = ingest.run(spark, paths, str(tmp_path / "d"), bad=listed.append, tar=tar)
    failed.remove((paths[-6], paths[-6]))  # case-concatenated: read on here
    assert sorted((bad.where, bad.name) for bad in listed) == sorted(failed)
    assert summary["bad"] == len(failed)
    assert set(content(tmp_path / "d")) == wanted | {b"two"}
    assert (summary["left_out"], summary["changed"]) == (2, 12)
    assert summary["reasons"][CLAMPED] == 12
    assert any(CLAMPED in line and "inc, inc/a, inc/hard" in line for line in summary["lines"])


def test_fail_fast_commits_nothing_of_the_round(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"no tar file" * 1000)
    good = tar(tmp_path / "c.tar", {b"c": b"c"})
    with pytest.raises(Refusal, match=r"b\.tar: not a tar file"):
        ingest.run(spark, [str(good), str(tmp_path / "b.tar")], str(tmp_path / "d"), fail_fast=True)
    assert content(tmp_path / "d") == {}
    assert list((tmp_path / "d" / "_pending").iterdir()) == []


def test_pages_of_warc_files_found_by_their_first_bytes(
    spark: SparkSession, tmp_path: Path
) -> None:
    pages = {b"http://a/%d" % i: b"<p>%d" % i for i in range(3)}
    records = [response(*page) for page in pages.items()]
    (tmp_path / "plain").write_bytes(b"".join(records[:2]))
    cut = b"".join(map(gzip.compress, records[1:]))[:-20]
    (tmp_path / "packed").write_bytes(cut + b"")
    listed: list[Bad] = []
    paths = [str(tmp_path / "plain"), str(tmp_path / "packed")]
    summary = ingest.run(spark, paths, str(tmp_path / "d"), bad=listed.append)
    assert (summary["files"], summary["bad"]) == (2, 1)
    assert content(tmp_path / "d") == {b"a/0": b"<p>0", b"a/1": b"<p>1"}
    assert summary["replaced"] == 1


def test_samples_of_webdataset_and_mds(spark: SparkSession, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", columns={"n": "int64"}) as made:
        for number in range(6):
            made.put(f"{number}.txt", b"%d" % number, columns={"n": number})
    winkfs.export(tmp_path / "c", webdataset=tmp_path / "w-%d.tar", maxcount=3)
    winkfs.export(tmp_path / "c", mds=tmp_path / "m", maxcount=2)
    (tmp_path / "m/shard.00001.mds").unlink()
    pairs = (("webdataset", "w-{0..1}.tar", 6, 0), ("mds", "m", 4, 1))
    for kind, source, files, bad in pairs:
        found = ingest.run(spark, [str(tmp_path / source)], str(tmp_path / kind), kind=kind)
        assert (found["files"], found["bad"], found["units"]) == (files, bad, 5 - files // 2)
        with winkfs.open(tmp_path / kind) as made:
            rows = made.to_arrow(["n", "content"]).to_pylist()
            assert all(row["content"] == b"%d" % row["n"] for row in rows) and len(rows) == files
    again = ingest.run(spark, [str(tmp_path / "m")], str(tmp_path / "mds"), kind="mds")
    assert again["skipped"] == 3 and again["units"] == 0
    with pytest.raises(Refusal, match="nothing to ingest"):
        ingest.run(spark, [str(tmp_path / "mds")], str(tmp_path / "none"), kind="mds")


def test_bad_rows_are_counted_and_missing_columns_raise(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    table = {"path": ["a", None, "c", ""], "content": [b"1", b"2", None, b"4"]}
    pq.write_table(pa.table(table), path)
    summary = ingest.run(spark, [str(path)], str(tmp_path / "d"))
    assert (summary["files"], summary["bad"]) == (1, 3)
    assert content(tmp_path / "d") == {b"a": b"1"}
    with pytest.raises(Refusal, match="has no column 'body'; its columns are path, content"):
        columns = ingest.ParquetColumns(content="body")
        ingest.run(spark, [str(path)], str(tmp_path / "e"), columns=columns)


def test_titles_and_languages_of_documents_become_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    head = b"<html lang=%s><title>%s</title>"
    pages = {
        b"de.html": head % (b"de", b"Eins &amp; zwei"), b"plain": b"text", b"empty": b"",
        b"fr.html": b"<html lang=fr>", b"large.html": head % (b"en", b"Large") + b"x" * (2 << 20),
        b"own.html": head % (b"en", b"One"), b"no utf-8 \xff": head % (b"it", b""),
    }  # fmt: skip
    wanted: dict[bytes, Any] = {
        b"de.html": ("Eins & zwei", "de"), b"plain": (None, None), b"empty": (None, None),
        b"fr.html": (None, "fr"), b"large.html": ("Large", "en"), b"own.html": ("One", "sv"),
        b"no utf-8 \xff": (None, "it"),
    }  # fmt: skip
    os.setxattr(tree(tmp_path / "in", pages) / "own.html", "user.lang", b"sv")
    inside = {**pages, b"own.html": pages[b"own.html"].replace(b"en", b"sv")}
    sources = [tmp_path / "in", tar(tmp_path / "in.tar", inside, "w"), tmp_path / "in.parquet"]
    of_table = {"path": list(pages), "content": list(pages.values())}
    langs = ["sv" if name == b"own.html" else None for name in pages]
    pq.write_table(pa.table(of_table | {"lang": langs}), sources[2])
    for number, source in enumerate(sources):
        target = tmp_path / f"set {number}"
        summary = ingest.run(spark, [str(source)], str(target), html=True)
        assert (summary["files"], summary["bad"]) == (len(pages), 0)
        assert content(target) == (inside if number == 1 else pages)
        with winkfs.open(target) as found:
            assert sorted(found.columns.items()) == [("lang", "string"), ("title", "string")]
            for name, (title, lang) in wanted.items():
                assert found.getcolumns(name) == {"title": title, "lang": lang}, (name, number)
        rows = spark.read.format("winkfs").load(str(target)).where("lang = 'sv'")
        assert [row.title for row in rows.collect()] == ["One"]
    pq.write_table(pa.table(of_table | {"Lang": [5] * len(pages)}), sources[2])  # another one
    ingest.run(spark, [str(sources[2])], str(tmp_path / "numbers"), html=True)
    with winkfs.open(tmp_path / "numbers") as found:
        assert found.columns == {"Lang": "int64", "title": "string"}
        assert found.getcolumns("de.html") == {"Lang": 5, "title": "Eins & zwei"}


def test_values_and_times_that_no_file_can_have(spark: SparkSession, tmp_path: Path) -> None:
    """A time of another age is the nearest one, a number beyond 64 bits null: both are counted."""
    far = [datetime(1, 1, 1), datetime(9999, 1, 1), None]
    table = pa.table({"path": ["a", "b", "c"], "content": [b"1"] * 3, "mtime": far})
    for name in ("path", "content"):  # as pandas writes categories
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].combine_chunks().dictionary_encode())
    large = pa.table({"path": ["d"], "content": [b"4"], "n": pa.array([1 << 63], pa.uint64())})
    pq.write_table(table, tmp_path / "far.parquet")
    pq.write_table(large, tmp_path / "large.parquet")
    files = [str(tmp_path / name) for name in ("far.parquet", "large.parquet")]
    summary = ingest.run(spark, files, str(tmp_path / "set"))
    assert (summary["files"], summary["bad"], summary["changed"]) == (4, 0, 3)
    assert [line[:8] for line in summary["lines"]] == ["2 stored", "1 stored"]
    assert summary["lines"][0].endswith("(a, b)") and summary["lines"][1].endswith("(d)")
    with winkfs.open(tmp_path / "set") as found:
        assert found.stat("a").mtime_ns == -(1 << 63)
        assert found.stat("b").mtime_ns == (1 << 63) - 1
        assert found.stat("c").mtime_ns > 1_700_000_000 * 10**9


def test_a_folder_written_by_spark_is_read_as_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", b"1", "de"), ("b", b"2", "fr"), ("c", b"3", None)]
    frame = spark.createDataFrame(rows, "path string, content binary, lang string")
    folder = tmp_path / "in"
    frame.write.partitionBy("lang").parquet(str(folder))
    (folder / "_temporary").mkdir()
    pq.write_table(pa.table({"path": ["no"], "content": [b""]}), folder / "_temporary/0.parquet")
    summary = ingest.run(spark, [str(folder)], str(tmp_path / "d"), kind="parquet")
    assert (summary["files"], summary["bad"], summary["lines"]) == (3, 0, [])
    with winkfs.open(tmp_path / "d") as found:
        langs = {name: found.getcolumns(name)["lang"] for name in ("a", "b", "c")}
    assert langs == {"a": "de", "b": "fr", "c": None}
    summary = ingest.run(spark, [str(folder)], str(tmp_path / "tree"))
    assert [line.partition(": ")[2] for line in summary["lines"]] == [
        "Parquet files in it, 4, are stored as they are: --kind parquet reads what is in them"
    ]


def test_an_odd_row_costs_itself_and_an_odd_column_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd, empty, wrong = (tmp_path / f"{name}.parquet" for name in ("odd", "empty", "wrong"))
    content_of = {"content": [b"1", b"2", b"3"]}
    pq.write_table(pa.table({"path": ["", "ok", "n\0ul"]} | content_of), odd)
    empty.write_bytes(b"")
    pq.write_table(pa.table({"path": [1, 2, 3]} | content_of), wrong)
    listed: list[Bad] = []
    inputs_ = [str(odd), str(empty)]
    summary = ingest.run(spark, inputs_, str(tmp_path / "d"), bad=listed.append)
    assert (summary["files"], summary["bad"]) == (1, 3)
    assert [(bad.where, bad.reason.split(":")[0]) for bad in listed] == [
        (str(odd), "row 0"), (str(odd), "row 2"), (str(empty), "not a whole Parquet file")
    ]  # fmt: skip
    with pytest.raises(Refusal, match="column path is int64, not text"):
        ingest.run(spark, [str(wrong)], str(tmp_path / "d"))


def test_the_data_set_is_not_read_into_itself(spark: SparkSession, tmp_path: Path) -> None:
    tree(tmp_path / "in", {b"a": b"1"})
    for _ in range(2):
        ingest.run(spark, [str(tmp_path / "in")], str(tmp_path / "in" / "d"), again=True)
    assert content(tmp_path / "in" / "d") == {b"a": b"1"}


def test_nothing_to_read_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="no such directory or file"):
        ingest.run(spark, [str(tmp_path / "x")], str(tmp_path / "d"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal, match="nothing to ingest there"):
        ingest.run(spark, [str(tmp_path / "empty")], str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()
