"""content="lazy": the rows of a read with contents, of which a query reads only those it uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buckets import CONFIG, s3, trust
from data_sets import add, put
from sparkfiles import KINDS, Kinds, damage, documents, plain, read
from sparkfiles import kinds as kinds  # a fixture
from sparking import DataFrame, SparkSession, load, refusal

import winkfs
import winkfs.spark
from winkfs.dataset import manifest
from winkfs.names import to_name

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from winkfs.arrow.batches import Reading  # noqa: E402
from winkfs.spark.reading import lazy  # noqa: E402
from winkfs.spark.reading.batches import batches  # noqa: E402
from winkfs.spark.reading.options import Options  # noqa: E402
from winkfs.spark.reading.partition import linked  # noqa: E402
from winkfs.spark.reading.reader import numbered, partitions  # noqa: E402

pytestmark = pytest.mark.spark

ROWS = "name_raw binary, size long, _ref long, _pointer long"


def fetched(path: Path, rows: list[Any], **options: Any) -> list[Any]:
    """Contents of rows of ROWS, as a task reads them."""
    texts = {"path": str(path), "content": "lazy"} | {k: str(v) for k, v in options.items()}
    checked = Options.of(texts)
    places, _ = lazy.Places.of(checked)
    fetch = lazy.Fetch(places, checked.mode, checked.batch, checked.largest, checked.verify)
    columns = tuple(
        pa.array([row[name] for row in rows], pa.int64()) for name in ("_ref", "_pointer", "size")
    )
    found = list(fetch(iter([columns])))
    assert all(len(one) for one in found)
    return [value for one in found for value in one.to_pylist()]


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 30_000, 1 << 30])
def test_each_reference_gives_its_content(kinds: Kinds, kind: str, batch: int) -> None:
    rows = read(kinds[kind], ROWS, content="none")
    refs = [row["_ref"] for row in rows]
    assert refs == sorted(refs)  # one task: in the order of the disk
    np.random.default_rng(3).shuffle(rows)
    rows += rows[:3]
    found = fetched(kinds[kind], rows, batchBytes=batch)
    wanted = {name: file.content for name, file in documents(kinds[kind]).items()}
    assert found == [wanted[row["name_raw"]] for row in rows]


def test_damage_ends_the_query_or_is_an_error(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    rows = read(base, ROWS, content="none")
    damage(base, "dir1/page 0008.html", "large")
    with pytest.raises(winkfs.WinkError, match=r"page 0008.html: .*checksum.*PERMISSIVE"):
        fetched(base, rows)
    found = fetched(base, rows, mode="PERMISSIVE")
    wrong = {row["name_raw"] for row, one in zip(rows, found, strict=True) if one["error"]}
    assert wrong == {b"dir1/page 0008.html", b"large"}
    assert all((one["content"] is None) == bool(one["error"]) for one in found)
    at = [row["name_raw"] for row in rows].index(b"dir1/page 0008.html")
    assert fetched(base, rows, mode="PERMISSIVE", verify="false")[at]["error"] is None
    rows.append({"_ref": None, "_pointer": None, "size": None})  # as of a damaged inode
    assert fetched(base, rows, mode="PERMISSIVE")[-1] == {"content": None, "error": None}


def test_too_large_contents_are_not_read(kinds: Kinds) -> None:
    rows = read(kinds["plain"], ROWS, content="none")
    with pytest.raises(winkfs.WinkError, match=r"3145728 bytes, more than maxContentBytes 2097152"):
        fetched(kinds["plain"], rows, maxContentBytes="2m")
    found = fetched(kinds["plain"], rows, maxContentBytes="2m", mode="PERMISSIVE")
    wrong = [row["name_raw"] for row, one in zip(rows, found, strict=True) if one["error"]]
    assert wrong == [b"large"]


def test_wrong_references_never_return_other_bytes(kinds: Kinds) -> None:
    rows = read(kinds["plain"], ROWS, content="none")
    wanted = {name: file.content for name, file in documents(kinds["plain"]).items()}
    rng = np.random.default_rng(6)
    for key in ("_pointer", "size"):
        wrong = [row | {key: row[key] + int(rng.choice([-9, -1, 1, 1 << 40]))} for row in rows]
        found = fetched(kinds["plain"], wrong, mode="PERMISSIVE")
        for row, one in zip(rows, found, strict=True):
            assert one["error"] or one["content"] == wanted[row["name_raw"]]


def test_a_container_that_was_replaced_is_a_stale_plan(tmp_path: Path) -> None:
    plain(tmp_path / "c")
    texts = {"path": f"{tmp_path}/c", "content": "lazy"}
    fetch = lazy.Fetch(lazy.Places.of(Options.of(texts))[0], "FAILFAST", 1 << 20, 1 << 30, True)
    rows = read(tmp_path / "c", ROWS, content="none")
    columns = tuple(pa.array([row[name] for row in rows]) for name in lazy.NEEDED)
    plain(tmp_path / "d")
    (tmp_path / "d.data").replace(tmp_path / "c.data")
    with pytest.raises(winkfs.WinkError, match=r"another container.*load\(\) again"):
        list(fetch(iter([columns])))


@pytest.mark.long
def test_the_same_rows_as_of_an_eager_read(spark: SparkSession, kinds: Kinds) -> None:
    paths = [kinds["dataset"], kinds["changed"]]
    frame = winkfs.spark.read(spark, paths, content="lazy", mode="permissive")
    eager = winkfs.spark.read(spark, paths, mode="permissive")
    assert frame.schema == eager.schema
    wanted = sorted((to_name(row.path.encode()), *row[1:]) for row in eager.collect())
    assert sorted((to_name(row.path.encode()), *row[1:]) for row in frame.collect()) == wanted
    files = winkfs.spark.read(spark, paths[0], content="lazy", schemaStyle="binaryFile",
                              orderBy="path", prefix="dir1/")  # fmt: skip
    assert files.columns == ["path", "modificationTime", "length", "content"]
    expected = {n: f.content for n, f in documents(paths[0]).items() if n.startswith(b"dir1/")}
    rows = files.collect()
    assert [row.path.encode() for row in rows] == sorted(expected)
    assert {row.path.encode(): bytes(row.content) for row in rows} == expected


def plan_of(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain()
    return capsys.readouterr().out


def test_a_query_without_contents_reads_none(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = plain(tmp_path / "c")
    frame = winkfs.spark.read(spark, base, content="lazy")
    damage(base, "dir1/page 0008.html")
    assert "ArrowEval" in plan_of(frame, capsys)
    assert "ArrowEval" not in plan_of(frame.select("path", "size"), capsys)
    assert frame.count() == frame.where("size >= 0").select("path").count() == len(documents_of())
    frame.createOrReplaceTempView("winkfs_lazy")
    found = spark.sql("select length(content) n from winkfs_lazy where path like 'dir2/%'")
    text = plan_of(found, capsys)
    assert text.index("ArrowEval") < text.index("Filter")  # printed from the last step to the first
    assert found.count() == sum(name.startswith("dir2/") for name in documents_of())
    labels = spark.createDataFrame([("empty",), ("dir1/page 0001.html",)], "path string")
    assert frame.join(labels, "path").select("path", "size").count() == 2
    assert "page 0008.html: " in refusal(frame.select("content").collect)
    spark.catalog.dropTempView("winkfs_lazy")


def documents_of() -> list[str]:
    from sparkfiles import contents

    return [name if isinstance(name, str) else "" for name in contents()]


def test_later_commits_and_files_are_not_in_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "set"
    manifest.create(root)
    add(root, {"a": b"1", "b": b"22"})
    with winkfs.create(tmp_path / "c") as c:
        c.put("c", b"3")
    frame = winkfs.spark.read(spark, [root, tmp_path / "c"], content="lazy", columns="path,content")
    add(root, {"a": b"new", "d": b"4"})
    found = {row.path: bytes(row.content) for row in frame.collect()}
    assert found == {"a": b"1", "b": b"22", "c": b"3"}
    with winkfs.open(tmp_path / "c", "a") as c:
        c.put("e", b"5")
    assert {row.path: bytes(row.content) for row in frame.collect()} == found
    before = winkfs.spark.read(spark, root, content="lazy", asOf=1).select("path", "content")
    assert [(row.path, bytes(row.content)) for row in before.collect()] == [
        ("a", b"1"),
        ("b", b"22"),
    ]


def test_what_cannot_be_lazy_is_refused(spark: SparkSession, kinds: Kinds, tmp_path: Path) -> None:
    def line(**options: Any) -> str:
        text = refusal(winkfs.spark.read, spark, kinds["dataset"], content="lazy", **options)
        assert "\n" not in text
        return text

    assert "leaves no rows out" in line(mode="dropmalformed")
    assert "readChanges" in line(readChanges=True)
    assert "no column 'contents'" in line(columns=["contents"])
    assert "is for winkfs.spark.read(" in refusal(load, spark, kinds["dataset"], content="lazy")


@pytest.mark.long
def test_scans_whose_contents_are_not_used_are_named(spark: SparkSession, kinds: Kinds) -> None:
    eager = winkfs.spark.read(spark, kinds["dataset"])
    lazy_one = winkfs.spark.read(spark, kinds["dataset"], content="lazy")
    (line,) = winkfs.spark.unused(eager.where("size > 3").selectExpr("sum(size)"))
    assert "(path, size, mtime, content)" in line and "content='lazy'" in line
    both = eager.select("path").union(eager.select("content").selectExpr("hex(content)"))
    assert len(winkfs.spark.unused(both)) == 1
    assert len(winkfs.spark.unused(eager.join(lazy_one, "path").select(eager.size))) == 1
    for used in (eager, eager.where("length(content) > 1").select("path"), lazy_one.select("path")):
        assert winkfs.spark.unused(used) == []
    assert not spark.catalog.listTables()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3() as url:
        yield url


def test_on_object_storage_executors_need_no_keys(
    spark: SparkSession, bucket: str, tmp_path: Path
) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many((f"d/{i:03}", b"%d" % i * 50) for i in range(300))
    winkfs.push(tmp_path / "c", f"{bucket}/lazy/c")
    frame = winkfs.spark.read(spark, f"{bucket}/lazy/c", content="lazy")
    assert frame.count() == 300  # the plan, for which the driver has keys
    text = CONFIG.read_text()
    CONFIG.write_text("[default]\nregion = us-east-1\n")
    try:
        rows = frame.where("path like 'd/1%'").select("path", "content").collect()
    finally:
        CONFIG.write_text(text)
    assert {row.path: bytes(row.content) for row in rows} == {
        f"d/{i:03}": b"%d" % i * 50 for i in range(100, 200)
    }


def asked_of(path: str, content: str, every: int, batch: int = 64 << 10) -> int:
    """Read a store as tasks do, each `every`-th file -> bytes of the contents."""
    options = Options.of({"path": path, "batchBytes": str(batch)})
    names = ("content",) if content == "inline" else lazy.NEEDED
    kinds = {"content": pa.binary()}
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in names])
    reading = Reading(schema, names, options.batch, options.largest, "FAILFAST", True, False)
    if content == "inline":
        tasks = linked(partitions(options, contents=True))
        return sum(b.column(0).nbytes for task in tasks for b in batches(reading, task))
    places, _ = lazy.Places.of(options)
    fetch = lazy.Fetch(places, "FAILFAST", options.batch, options.largest, True)
    total = 0
    for task in linked(numbered(options)):
        rows = (
            tuple(batch.slice(at, 250).take(pa.array(range(0, len(batch.slice(at, 250)), every))))
            for batch in batches(reading, task)
            for at in range(0, len(batch), 250)
        )
        total += sum(found.nbytes for found in fetch(rows))
    return total


def test_whole_scans_on_object_storage_are_passes(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winkformats.disk import objects
    from winkfs.arrow import rows
    from winkfs.remote import find, ranges

    monkeypatch.setenv("WINKFS_CACHE", str(tmp_path / "cache"))
    find.transport_of.cache_clear()
    for module, name in ((objects, "AHEAD_BYTES"), (rows, "WINDOW")):
        monkeypatch.setattr(module, name, 64 << 10)
    requests: list[int] = []
    real = ranges.RangeTransport.get

    def get(self: Any, key: str, start: int, length: int, like: Any = None) -> Any:
        found = real(self, key, start, length, like)
        requests.append(len(found[1]))
        return found

    monkeypatch.setattr(ranges.RangeTransport, "get", get)
    root = trust(f"{bucket}/whole")
    for part in "ab":
        put(root, {f"{part}/{i:04}": b"%04d" % i * 1024 for i in range(600)})
    size = 2 * 600 * 4096

    def cost(content: str, every: int = 1) -> tuple[int, int]:
        requests.clear()
        assert asked_of(root, content, every) >= size // every
        return len(requests), sum(requests)

    eager, first = cost("inline"), cost("lazy")
    assert first[0] <= 1.2 * eager[0] and first[1] <= 1.05 * eager[1]
    for content, before in (("lazy", first), ("inline", eager)):  # a pass does not fill the cache
        assert cost(content)[1] == pytest.approx(before[1], rel=0.01)
    few = cost("lazy", 50)  # rows that lie apart are kept
    assert few[1] < size / 5
    again = cost("lazy", 50)
    assert again[1] < few[1] - size / 50 * 0.9
