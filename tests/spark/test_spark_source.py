"""The source: the same answers as a plain Python loop, for all kinds of containers and options.

Most tests read as a task does, without a JVM; those that ask what Spark makes of it have one.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orderings
import pytest
import stored
from constants import shrink
from container_checks import refused
from data_sets import add
from flips import flip
from sparkfiles import (
    ALL,
    KINDS,
    START,
    Kinds,
    as_files,
    batches,
    damage,
    dataset,
    documents,
    expected,
    plain,
    read,
    struct,
    tasks,
    with_columns,
)
from sparkfiles import kinds as kinds  # a fixture
from sparking import SparkSession

import winkfs
import winkfs.spark
from winkformats.disk import pagecache
from winkformats.disk.posix import FileStorage
from winkfs.container.ondisk.catalog import Catalog
from winkfs.dataset import manifest
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.snapshot import snapshot
from winkfs.names import to_name, to_path
from winkfs.results.orders import OrderedFiles, OrderedShard

pytest.importorskip("pyspark")

from pyspark_winkfs import DefaultSource
from winkfs.arrow.pieces import Piece, PlannedPiece, unpack
from winkfs.spark.reading.options import FIELDS, Options, time_of
from winkfs.spark.reading.reader import partitions
from winkfs.spark.source import WinkfsDataSource
from winkfs.spark.writing.inputs import SinkOptions

pytestmark = pytest.mark.spark


# --- all of it ---


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_is_what_a_loop_finds(kinds: Kinds, kind: str) -> None:
    assert as_files(read(kinds[kind])) == documents(kinds[kind])


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
def test_many_small_tasks_find_each_file_once(kinds: Kinds, kind: str) -> None:
    assert tasks(kinds[kind], splitBytes="100k") > 10
    found = read(kinds[kind], splitBytes="100k", batchBytes="5000")
    assert as_files(found) == documents(kinds[kind])


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["path", "mtime"])
def test_orders_hold_over_all_tasks(kinds: Kinds, kind: str, order: str) -> None:
    rows = read(kinds[kind], orderBy=order, splitBytes="200k", batchBytes="20k")
    assert as_files(rows) == documents(kinds[kind])
    keys = [row["name_raw"] if order == "path" else row["mtime_ns"] for row in rows]
    assert keys == sorted(keys)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_without_contents(kinds: Kinds, kind: str) -> None:
    wanted = {name: (f.size, f.mtime_ns) for name, f in documents(kinds[kind]).items()}
    rows = read(kinds[kind], "name_raw binary, size long, mtime_ns long, mtime timestamp")
    assert {row["name_raw"]: (row["size"], row["mtime_ns"]) for row in rows} == wanted
    assert all(int(row["mtime"].timestamp()) == row["mtime_ns"] // 10**9 for row in rows)


def test_directories_and_links_when_asked_for(kinds: Kinds) -> None:
    path = kinds["changed"]
    assert as_files(read(path, includeDirs=True)) == expected(path)
    assert as_files(read(path)) != expected(path)
    assert as_files(read(path, includeDirs=True, orderBy="path")) == expected(path)


def test_names_become_paths_and_come_back(kinds: Kinds) -> None:
    for row in read(kinds["plain"], "path string, name_raw binary"):
        assert row["path"] == to_path(row["name_raw"])
        assert to_name(row["path"].encode()) == row["name_raw"]


def test_two_halves_of_a_character_in_neighbouring_names(tmp_path: Path) -> None:
    """The bytes of all names together are UTF-8, those of each are not."""
    stored.make(tmp_path / "c", [(b"a\xc3", b"1"), (b"\xa9b", b"2")])
    assert [row["path"] for row in read(tmp_path / "c")] == ["a\\xc3", "\\xa9b"]


# --- selection ---


SELECTIONS: dict[str, tuple[dict[str, Any], Callable[[bytes, Any], bool]]] = {
    "prefix": ({"prefix": "dir3/"}, lambda n, f: n.startswith(b"dir3/")),
    "prefix of bytes": ({"prefix": r"latin-1 \xfc"}, lambda n, f: n == b"latin-1 \xfc"),
    "glob": ({"glob": "*7.html"}, lambda n, f: n.endswith(b"7.html")),
    "glob of bytes": ({"glob": r"*\xfc"}, lambda n, f: n.endswith(b"\xfc")),
    "glob of an escape": ({"glob": r"escape \x5cx4*"}, lambda n, f: n.startswith(rb"escape \x4")),
    "globs": ({"glob": '["*7.html", "empty"]'},
              lambda n, f: n.endswith(b"7.html") or n == b"empty"),
    "paths": ({"paths": json.dumps(["empty", "dir1/page 0008.html", "nix", r"cut \xc3"])},
              lambda n, f: n in (b"empty", b"dir1/page 0008.html", b"cut \xc3")),
    "time": ({"mtimeFrom": START + 50, "mtimeTo": START + 90},
             lambda n, f: START + 50 <= f.mtime_ns / 1e9 < START + 90),
    "size": ({"minSize": "1k", "maxSize": 4000}, lambda n, f: 1024 <= f.size <= 4000),
    "all together": ({"prefix": "dir", "glob": "*[02468].html", "mtimeFrom": START + 30,
                      "maxSize": 8000},
                     lambda n, f: n.startswith(b"dir") and n[-6:-5] in b"02468"
                     and f.mtime_ns >= (START + 30) * 10**9 and f.size <= 8000),
    "nothing": ({"prefix": "there is no such name"}, lambda n, f: False),
}  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", SELECTIONS)
def test_a_selection_is_what_a_loop_would_choose(kinds: Kinds, kind: str, what: str) -> None:
    options, chosen = SELECTIONS[what]
    wanted = {n: f for n, f in documents(kinds[kind]).items() if chosen(n, f)}
    assert as_files(read(kinds[kind], **options)) == wanted
    assert (what == "nothing") == (not wanted)


def test_selection_and_order_together(kinds: Kinds) -> None:
    for kind in ("changed", "dataset"):
        rows = read(kinds[kind], orderBy="path", prefix="dir2", splitBytes="64k")
        names = sorted(n for n in documents(kinds[kind]) if n.startswith(b"dir2"))
        assert [row["name_raw"] for row in rows] == names


def test_names_from_a_file(kinds: Kinds, tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes(b"empty\nlatin-1 \\xfc\nnix\n")
    rows = read(kinds["plain"], pathsFile=tmp_path / "names")
    assert sorted(row["name_raw"] for row in rows) == [b"empty", b"latin-1 \xfc"]


def test_a_thousand_paths_among_many_are_not_a_scan(tmp_path: Path) -> None:
    """Only the inodes and contents asked for are read from the data file."""
    stored.make(tmp_path / "c", ((f"n/{i:06d}", b"%d" % i * 300) for i in range(50_000)))
    paths = [f"n/{i:06d}" for i in range(0, 50_000, 500)]
    before = _bytes_read()
    rows = read(tmp_path / "c", "path string, content binary", paths=json.dumps(paths))
    assert [row["path"] for row in rows] == paths
    assert all(row["content"] == b"%d" % int(row["path"][2:]) * 300 for row in rows)
    assert _bytes_read() - before < 4 << 20


def _bytes_read() -> int:
    """By read calls of this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


# --- an order that a job made ---


def _order(root: Path, target: Path, seed: int) -> list[bytes]:
    """Write the files of a data set or container in a random order -> their names in it."""
    seen = snapshot(root)
    refs = read(root, "name_raw binary, _container string, _pos long")
    np.random.default_rng(seed).shuffle(refs)
    number = {shard.base: i for i, shard in enumerate(seen.shards)}
    shard = np.array([number[row["_container"]] for row in refs])
    pos = np.array([row["_pos"] for row in refs])
    half = len(refs) // 2
    parts = (
        OrderedFiles(shard[cut], pos[cut], np.arange(len(pos[cut])))
        for cut in (slice(half), slice(half, None))
    )
    records = [shard.record for shard in seen.shards]
    shards = tuple(
        OrderedShard(record.path if seen.generation else "", record.contid, record.size)
        for record in records
    )
    orderings.make(target, *parts, of=root, generation=seen.generation, shards=shards)
    return [row["name_raw"] for row in refs]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["plain", "columns", "changed", "dataset"])
def test_an_order_is_followed(kinds: Kinds, tmp_path: Path, kind: str) -> None:
    names = _order(kinds[kind], tmp_path / "o", 3)
    by = {"orderBy": f"perm:{tmp_path}/o", "batchBytes": "30k"}
    rows = read(kinds[kind], minPartitions=4, **by)
    assert [row["name_raw"] for row in rows] == names
    assert as_files(rows) == documents(kinds[kind])
    rows = read(kinds[kind], prefix="dir2", **by)
    assert [row["name_raw"] for row in rows] == [n for n in names if n.startswith(b"dir2")]


def test_an_order_of_other_files_is_refused(kinds: Kinds, tmp_path: Path) -> None:
    _order(kinds["plain"], tmp_path / "o", 3)
    with pytest.raises(winkfs.WinkError, match="is of other files: make it anew"):
        read(kinds["columns"], orderBy=f"perm:{tmp_path}/o")
    with pytest.raises(ValueError, match="one container or data set"):
        read(f"{kinds['plain']},{kinds['ao']}", orderBy=f"perm:{tmp_path}/o")
    with pytest.raises(FileNotFoundError):
        read(kinds["plain"], orderBy=f"perm:{tmp_path}/nix")


def test_an_order_is_of_its_generation(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    names = _order(root, tmp_path / "o", 3)
    add(root, {"empty": b"not any more", "new": b"new"})
    rows = read(root, orderBy=f"perm:{tmp_path}/o")
    assert [row["name_raw"] for row in rows] == names
    with pytest.raises(ValueError, match="leave out asOf"):
        read(root, orderBy=f"perm:{tmp_path}/o", asOf=1)


# --- plan ---


def test_tasks_are_pickled_small(kinds: Kinds, tmp_path: Path) -> None:
    base = tmp_path / "many"
    stored.make(base, ((f"{i}", b"x") for i in range(100_000)))
    reported = partitions(Options.of({"path": str(base)}), contents=True)
    assert sum(len(pickle.dumps(task)) for task in reported) < 200_000
    options = Options.of({"path": str(kinds["dataset"])})
    assert all(len(pickle.dumps(t)) < 2000 for t in partitions(options, contents=True))


def test_a_data_set_is_planned_without_opening_a_shard(kinds: Kinds, tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    count = tasks(root)
    for data in root.glob("*/*.data"):
        data.rename(data.with_suffix(".gone"))
    assert tasks(root) == count
    with pytest.raises(winkfs.WinkError, match=r"gone.*load\(\) again"):
        read(root)


def test_tasks_by_bytes(kinds: Kinds) -> None:
    path = kinds["plain"]
    total = sum(f.size for f in documents(path).values())
    assert tasks(path) == 1  # little: one is enough
    assert 3 <= tasks(path, minPartitions=5) <= 5  # one document is larger than two tasks
    assert tasks(kinds["dataset"], "path string", minPartitions=6) == 6
    assert 3 <= tasks(path, splitBytes=total // 4) <= 5
    assert tasks(path, "path string", splitBytes=total // 4) == 1  # contents do not count
    assert tasks(path, minPartitions=10_000) <= len(documents(path))


def test_several_sources(kinds: Kinds, tmp_path: Path) -> None:
    one, two = tmp_path / "a,b", tmp_path / "a2"
    for base, text in ((one, b"1"), (two, b"2")):
        stored.make(base, {"n": text})
    add_to = tmp_path / "set"
    manifest.create(add_to)
    add(add_to, {"n": b"3"})

    def found(path: str, **options: Any) -> list[bytes]:
        return [row["content"] for row in read(path, **options)]

    assert found(str(one)) == [b"1"]  # a comma in a name
    assert found(f"{two},{add_to}") == [b"2", b"3"]
    assert found(json.dumps([str(one), f"file://{two}.data"])) == [b"1", b"2"]
    assert found(f"{tmp_path}/a*") == [b"1", b"2"]
    assert found(f"{tmp_path}/*") == [b"1", b"2", b"3"]
    assert found(f"{two},{two}") == [b"2"]
    assert sorted(found(f"{tmp_path}/*", orderBy="path")) == [b"1", b"2", b"3"]
    containers = {r["_container"] for r in read(f"{tmp_path}/*", "_container string, size long")}
    assert {os.path.dirname(c) for c in containers} >= {str(tmp_path)}


def test_as_of_an_older_generation(kinds: Kinds) -> None:
    root = kinds["dataset"]
    seen = []
    for generation in (1, 2, 3):
        wanted = documents(root, as_of=generation)
        assert as_files(read(root, asOf=generation)) == wanted
        seen.append(wanted)
    assert seen[0] != seen[1] != seen[2]
    assert {r["_generation"] for r in read(root, "_generation long", asOf=2)} == {2}


# --- snapshots and stale plans ---


def _planned(path: Path, **options: str) -> Callable[[], list[Any]]:
    """A plan made now, to be run later."""
    schema = struct(f"{ALL}, content binary")
    reader = DefaultSource(options={"path": str(path), **options}).reader(schema)
    todo = reader.partitions()
    return lambda: [row for t in todo for batch in reader.read(t) for row in batch.to_pylist()]


@pytest.mark.parametrize("make", [plain, with_columns])
def test_a_plan_is_a_snapshot_of_a_container_that_grows(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    base = make(tmp_path / "c")
    before = documents(base)
    run = _planned(base)
    stored.change(base, {"new": b"new", "empty": b"not empty any more", "large": None})
    assert as_files(run()) == before
    winkfs.reindex(base)
    assert as_files(run()) == before  # the catalog has other files by now
    assert as_files(read(base)) == documents(base) != before


Change = Callable[[Path], object]


def _grow(base: Path) -> None:
    with winkfs.open(base, "a") as c:
        c.put("new", b"new")
        c.put("empty", b"not empty any more")
        c.delete("large")
        c.rename("dir1/page 0001.html", "dir1/renamed")


def _grow_and_list(base: Path) -> None:
    _grow(base)
    winkfs.reindex(base)  # another catalog takes the place of that of the plan


def _lose(base: Path) -> None:
    os.unlink(f"{base}.cat")


def _damage(base: Path) -> None:
    """In the last block of names, which is not the first that is read."""
    with Catalog(FileStorage(f"{base}.cat")) as file:
        pos, length, *_ = file.runs[0].parts[-1].tolist()
    flip(Path(f"{base}.cat"), pos + length - 9)


def _both(one: Change, other: Change) -> Change:
    return lambda base: (one(base), other(base))


CHANGES: dict[str, Change] = {
    "nothing": lambda base: None,
    "grown": _grow,
    "grown, another catalog": _grow_and_list,
    "no catalog": _lose,
    "damaged": _damage,
    "grown, no catalog": _both(_grow, _lose),
    "grown, damaged": _both(_grow, _damage),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tasks", [1, 5])
@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_listing_has_the_files_of_its_plan(
    change: str, tasks: int, few: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "the catalog", block=40, together=2, cut=few)
    base = with_columns(tmp_path / "c")
    if runs == 2:
        with winkfs.open(base, "a") as c:
            c.put_many((f"dir{i % 7}/page {3 * i:04d}.html", b"newer") for i in range(20))
            c.put("dir2/new 3.html", bytes(200))
            c.delete("dir5/page 0005.html")
    with Catalog(FileStorage(f"{base}.cat")) as file:
        assert len(file.runs) == runs
    before = {(n, f.size, f.mtime_ns) for n, f in documents(base).items()}
    some = {"prefix": "dir", "glob": "*3.html", "minSize": "100", "mtimeFrom": str(START + 50)}
    plans = [_listing(base, tasks), _listing(base, tasks, **some)]
    wanted = [before, {(n, size, ns) for n, size, ns in before if n[:3] == b"dir"
                       and n.endswith(b"3.html") and size >= 100
                       and ns >= (START + 50) * 10**9}]  # fmt: skip
    CHANGES[change](base)
    for run, right in zip(plans, wanted, strict=True):
        count, found = run()
        assert {(row["name_raw"], row["size"], row["mtime_ns"]) for row in found} == right
        assert len(found) == len(right) > 10
        names = [row["name_raw"] for row in found]
        assert names == sorted(names)
        assert count >= min(tasks, 3)


def _listing(base: Path, tasks: int, **options: str) -> Callable[[], tuple[int, list[Any]]]:
    """A plan made now, to be run later -> its tasks, and their rows."""
    options = {"path": str(base), "minPartitions": str(tasks), **options}
    reader = DefaultSource(options=options).reader(
        struct("name_raw binary, size long, mtime_ns long")
    )
    todo = pickle.loads(pickle.dumps(reader.partitions()))

    def run() -> tuple[int, list[Any]]:
        return len(todo), [row for t in todo for b in reader.read(t) for row in b.to_pylist()]

    return run


@pytest.mark.parametrize("grown", [False, True])
def test_a_damaged_inode_is_not_missed_where_the_catalog_is_lost(
    grown: bool, tmp_path: Path
) -> None:
    base = with_columns(tmp_path / "c")
    run, data = _listing(base, 1), tmp_path / "c.data"
    flip(data, data.read_bytes().index(b"dir1/page 0008.html/I0") + 40)
    count = len(run()[1])  # the catalog knows it all the same
    if grown:
        _grow(base)
    _lose(base)
    with pytest.raises(ValueError, match=r"damage|checksum"):
        run()
    run = _listing(with_columns(tmp_path / "d"), 1)
    assert len(run()[1]) == count


def test_a_container_that_was_replaced_is_a_stale_plan(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    run = _planned(base)
    plain(tmp_path / "other")
    os.replace(tmp_path / "other.data", tmp_path / "c.data")
    with pytest.raises(winkfs.WinkError, match=r"another container.*load\(\) again"):
        run()


def test_a_container_that_was_cut_short_is_a_stale_plan(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    run = _planned(base)
    size = (tmp_path / "c.data").stat().st_size
    os.truncate(tmp_path / "c.data", size // 2)
    with pytest.raises(winkfs.WinkError, match=r"load\(\) again"):
        run()


def test_a_generation_survives_a_compaction_but_not_a_vacuum(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    before = documents(root)
    run = _planned(root)
    compact(str(root))
    assert as_files(run()) == before == as_files(read(root))
    vacuum(str(root), keep=1, older_than=0)
    with pytest.raises(winkfs.WinkError, match=r"load\(\) again"):
        run()
    assert as_files(read(root)) == before


# --- damage ---


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    base = plain(tmp_path / "damaged")
    damage(base, "dir1/page 0008.html", "large")
    return base


BROKEN = {b"dir1/page 0008.html", b"large"}


def _sane(base: Path) -> dict[bytes, Any]:
    with winkfs.open(base) as c:
        sane = (e for e in c.scan() if os.fsencode(e.name) not in BROKEN)
        return {os.fsencode(e.name): e.read() for e in sane}


WITH_ERROR = "name_raw binary, size long, content binary, _error string"


def test_damage_ends_the_job_under_failfast(damaged: Path) -> None:
    with pytest.raises(winkfs.WinkError, match=r"page 0008.html.*checksum at byte.*PERMISSIVE"):
        read(damaged)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["offset", "path"])
def test_damage_is_a_row_with_the_reason_under_permissive(damaged: Path, order: str) -> None:
    rows = read(damaged, WITH_ERROR, mode="permissive", orderBy=order, batchBytes="30k")
    bad = {row["name_raw"]: row for row in rows if row["_error"] is not None}
    assert set(bad) == BROKEN
    for row in bad.values():
        assert row["content"] is None
        assert "checksum at byte" in row["_error"]
    good = {r["name_raw"]: r["content"] for r in rows if r["_error"] is None}
    assert good == _sane(damaged)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["offset", "path"])
def test_damage_is_left_out_under_dropmalformed(damaged: Path, order: str) -> None:
    rows = read(damaged, WITH_ERROR, mode="DROPMALFORMED", orderBy=order)
    assert {r["name_raw"]: r["content"] for r in rows} == _sane(damaged)


def test_unverified_damage_is_handed_out(damaged: Path) -> None:
    rows = read(damaged, WITH_ERROR, verify=False, glob="dir1*")
    assert any(row["name_raw"] in BROKEN and row["content"] for row in rows)


def test_a_damaged_inode(tmp_path: Path) -> None:
    base = plain(tmp_path / "c")
    data = tmp_path / "c.data"
    flip(data, data.read_bytes().index(b"dir1/page 0008.html/I0") + 40)
    wanted = {n: f for n, f in documents(plain(tmp_path / "d")).items()
              if n != b"dir1/page 0008.html"}  # fmt: skip
    with pytest.raises(ValueError, match="checksum at byte"):
        read(base)
    rows = read(base, f"{ALL}, content binary, _error string", mode="PERMISSIVE")
    bad = [row for row in rows if row["_error"]]
    assert len(bad) == 1
    assert bad[0]["path"] is None
    assert "checksum at byte" in bad[0]["_error"]
    assert as_files([row for row in rows if not row["_error"]]) == wanted
    assert as_files(read(base, mode="DROPMALFORMED")) == wanted


@pytest.mark.parametrize("kind", ["columns", "dataset"])
def test_damaged_columns_are_as_if_they_were_missing(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path / kind)
    before = documents(path)
    for cols in tmp_path.rglob("*.cat"):
        flip(cols, *range(4300, cols.stat().st_size - 3000, 700))
    assert as_files(read(path)) == before
    for cols in tmp_path.rglob("*.cat"):
        cols.unlink()
    assert as_files(read(path)) == before


def test_no_bit_of_a_content_flips_unseen(tmp_path: Path, every: Callable[[str], slice]) -> None:
    """A flip anywhere in the data entries: an error, or the right bytes."""
    base = tmp_path / "c"
    stored.make(base, ((f"{i}", bytes([i]) * 50) for i in range(8)))
    wanted = {n: f.content for n, f in documents(base).items()}
    data = tmp_path / "c.data"
    whole = data.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.integers(4096, len(whole), 150).tolist()[every("content bits")]:
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << (at % 8)]) + whole[at + 1 :])
        try:
            rows = read(base, WITH_ERROR, mode="PERMISSIVE")
        except (ValueError, OSError):
            continue
        for row in rows:
            assert row["_error"] or wanted[row["name_raw"]] == row["content"]


# --- sizes ---


def test_a_large_document_is_alone_in_its_batch(kinds: Kinds) -> None:
    options = {"path": str(kinds["plain"]), "batchBytes": "100k"}
    for batch in batches("size long, content binary", options):
        sizes = batch.column(0).to_pylist()
        assert sum(sizes) <= 100 << 10 or len(sizes) == 1


def test_documents_over_the_limit(kinds: Kinds) -> None:
    path = kinds["plain"]
    with pytest.raises(winkfs.WinkError, match=r"large: 3145728 bytes.*maxContentBytes 1000000"):
        read(path, maxContentBytes=1_000_000)
    rows = read(path, WITH_ERROR, maxContentBytes=1_000_000, mode="PERMISSIVE")
    over = {row["name_raw"]: row for row in rows if row["_error"]}
    assert set(over) == {b"large", b"one entry"}
    assert all(row["content"] is None and row["size"] > 1_000_000 for row in over.values())
    assert len(rows) == len(documents(path))
    rows = read(path, WITH_ERROR, maxContentBytes=1_000_000, mode="DROPMALFORMED")
    assert len(rows) == len(documents(path)) - 2
    assert len(read(path, "path string", maxContentBytes=1_000_000)) == len(documents(path))


@pytest.mark.few
@pytest.mark.parametrize("order", ["offset", "path"])
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_listing_has_the_rows_of_a_read_with_contents(
    kinds: Kinds, mode: str, order: str
) -> None:
    options = {"maxContentBytes": 5000, "mode": mode, "orderBy": order}
    whole = read(kinds["changed"], WITH_ERROR, **options)
    listed = read(kinds["changed"], "name_raw binary, _error string", **options)
    seen = [{name: row[name] for name in ("name_raw", "_error")} for row in whole]
    if order == "offset":  # a listing is in the order of the catalog
        listed, seen = (sorted(rows, key=itemgetter("name_raw")) for rows in (listed, seen))
    assert listed == seen
    assert len(seen) < len(documents(kinds["changed"])) or any(row["_error"] for row in seen)
    bare = read(kinds["changed"], "size long", **options)
    assert len(bare) == len(whole)


def test_a_document_that_spark_cannot_hold(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("small", b"1")
        c.put("hole", b"")
        c.truncate("hole", (1 << 31) + 5)
    with pytest.raises(winkfs.WinkError, match="hole: 2147483653 bytes"):
        read(tmp_path / "c")
    rows = read(tmp_path / "c", WITH_ERROR, mode="PERMISSIVE")
    assert [(row["name_raw"], row["content"]) for row in rows] == [
        (b"small", b"1"),
        (b"hole", None),
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_little_or_nothing(tmp_path: Path, count: int) -> None:
    stored.make(tmp_path / "c", ((f"{i}", b"") for i in range(count)))
    for options in ({}, {"orderBy": "path"}, {"prefix": "0"}, {"minPartitions": 3}):
        assert len(read(tmp_path / "c", **options)) == count


# --- hidden rows ---


def _replaced(root: Path, files: int) -> Path:
    """A data set of one large shard, of which a second one hides each fifth file."""
    manifest.create(root)
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 300, files).tolist()
    add(root, {f"{i:06d}": rng.bytes(n) for i, n in enumerate(sizes)})
    add(root, {f"{i:06d}": b"newer" for i in rng.permutation(files)[: files // 5].tolist()})
    return root


@pytest.mark.long
def test_a_task_is_not_sent_what_is_hidden_elsewhere(tmp_path: Path) -> None:
    """As `hidden` is, all tasks together have it once, however many there are."""
    root = _replaced(tmp_path / "set", 40_000)
    sizes = {}
    for count in (1, 60):
        options = {"path": str(root), "minPartitions": str(count), "splitBytes": "1g"}
        planned = DefaultSource(options=options).reader(struct("path string")).partitions()
        assert len(planned) >= count
        sizes[count] = sum(len(pickle.dumps(task)) for task in planned)
    assert sizes[60] < 2 * sizes[1] + 60 * 500


def test_a_shard_without_a_catalog_is_listed_by_one_task(tmp_path: Path) -> None:
    """It makes one for itself; shards that have theirs are cut."""
    root = _replaced(tmp_path / "set", 2000)
    first, second = (record.path for record in manifest.Log(str(root)).latest().shards)
    Path(root, first + ".cat").unlink()
    for more in ({}, {"where": "size > 100"}, {"includeDirs": "true"}):
        options = Options.of({"path": str(root), "minPartitions": "20", **more})
        planned = partitions(options, contents=False)
        bases = [str(piece.base) for task in planned for piece in task.pieces]
        assert bases.count(str(root / first)) == 1
        assert bases.count(str(root / second)) > 1
    assert len(read(root, "path string", minPartitions=20)) == 2000


def test_hidden_rows_at_the_borders_of_tasks() -> None:
    hidden = np.array([100, 101, 107, 120, 139])
    part = PlannedPiece(Piece("c", 1, 140, False, 100, 140), 40, hidden)
    for split in range(1, 41):
        found: list[int] = []
        for low in range(0, 40, split):
            high = min(low + split, 40)
            piece = part.cut(low, high)
            assert piece is not None
            assert (piece.low, piece.high) == (100 + low, 100 + high)
            mine = [] if piece.hidden is None else unpack(piece.hidden).tolist()
            assert all(piece.low <= position < piece.high for position in mine)
            found += mine
        assert found == hidden.tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["offset", "path", "mtime"])
def test_hidden_rows_stay_hidden_however_tasks_are_cut(tmp_path: Path, order: str) -> None:
    root = _replaced(tmp_path / "set", 2000)
    wanted = documents(root)
    for count in (1, 2, 7, 64, 333):
        assert as_files(read(root, minPartitions=count, orderBy=order)) == wanted


# --- options and columns ---


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"splitByte": "1m"}, "no option 'splitbyte': did you mean splitBytes?"),
        ({"qqqqqq": "1"}, "no option 'qqqqqq': there are path, columns"),
        ({"mode": "lenient"}, "option mode is 'lenient': it takes FAILFAST or PERMISSIVE"),
        ({"splitBytes": "some"}, "option splitBytes is 'some': it takes a number of bytes"),
        ({"batchBytes": "0"}, "option batchBytes is '0'"),
        ({"maxContentBytes": "3g"}, "option maxContentBytes is '3g'"),
        ({"content": "maybe"}, "it takes inline or lazy or ref or none"),
        ({"verify": "perhaps"}, "it takes true or false"),
        ({"mtimeFrom": "yesterday"}, "seconds since the epoch, or a time as"),
        ({"mtimeFrom": "5", "mtimeTo": "4"}, "mtimeFrom is later than mtimeTo"),
        ({"orderBy": "size"}, "it takes offset, path, mtime or perm:DIR"),
        ({"paths": "a"}, "it takes a JSON list of names"),
        ({"pathsFile": "/there/is/no/such/file"}, "No such file"),
        ({"path": "abc://x/y"}, "paths of a file system, not abc:"),
        ({"path": ""}, "no path: give a container"),
        ({"columns": "path,contents"}, "no column 'contents': did you mean content?"),
        ({"columns": "path,path"}, "names a column twice"),
        ({"minPartitions": "0"}, "option minPartitions is '0': it takes a number, 1 at least"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_clear_line(options: dict[str, str], line: str) -> None:
    with refused(ValueError, line):
        WinkfsDataSource(options={"path": "x"} | options).schema()


# What Spark 4.3 hands to schema() for CREATE TABLE .. USING winkfs OPTIONS (path .., ..).
OF_A_TABLE = {
    "provider": "winkfs", "owner": "me", "location": "file:/data", "path": "file:/data",
    "external": "true", "comment": "pages", "option.path": "/data", "option.content": "none",
    "content": "none", "option.serialization.format": "1", "serialization.format": "1",
    "created.by": "a tool", "mode": "prod",
}  # fmt: skip


def test_options_that_spark_adds_to_a_table_are_ignored() -> None:
    given = dict(OF_A_TABLE)
    columns = ["path", "size", "mtime"]
    assert WinkfsDataSource(options=given).schema().names == columns
    assert Options.of(given).sources == ("/data",)
    del given["option.content"]
    assert SinkOptions.of(given).path == "/data"


@pytest.mark.parametrize("name", ["ownr", "prefx", "owner", "location"])
def test_an_unknown_option_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no option '{name}'"):
        Options.of(OF_A_TABLE | {name: "x", f"option.{name}": "x"})
    with pytest.raises(ValueError, match=f"no option '{name}'"):
        Options.of({"path": "x", name: "x"})


def test_missing_containers_are_named(tmp_path: Path) -> None:
    for path in ("nix", "nix*"):
        with pytest.raises(FileNotFoundError, match="nix"):
            read(tmp_path / path)
    with pytest.raises(ValueError, match="single container has no generations"):
        read(plain(tmp_path / "c"), asOf=1)


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ("path string, path string", "the schema names a column twice: "),
        ("size long, path string, Size long", "the schema names a column twice: "),
        ("path string, size int", "column size is bigint, not int: cast it after load"),
        ("path string, title string", "no column 'title'"),
    ],
)
def test_a_wrong_schema_is_one_clear_line(kinds: Kinds, schema: str, line: str) -> None:
    with refused(ValueError, line):
        read(kinds["plain"], schema)


def test_times_as_options() -> None:
    assert time_of("1.5") == 1_500_000_000
    assert time_of("-1") == -(10**9)
    assert time_of("1970-01-02T00:00Z") == 86_400 * 10**9
    assert time_of("1970-01-01T01:00:00.25+01:00") == 250_000_000
    assert time_of("1e30") == (1 << 63) - 1


# --- the page cache ---


@pytest.mark.few
@pytest.mark.parametrize("kind", ["plain", "columns", "dataset"])
@pytest.mark.parametrize("order", ["offset", "path"])
def test_a_scan_leaves_the_page_cache_as_it_was(tmp_path: Path, kind: str, order: str) -> None:
    path = KINDS[kind](tmp_path / kind)
    tasks(path)  # makes what is derived of a data set
    files = [*tmp_path.rglob("*.data"), *tmp_path.rglob("*.cat")]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            pagecache.forget(opened.fileno(), 0, 1 << 30)
    first = _resident(files)
    assert read(path, orderBy=order)
    # Pages: of a read of both superblocks the kernel makes one of 8; a look at the end, and around.
    assert _resident(files) - first <= 12 * len(files)
    with files[0].open("rb") as opened:
        opened.read()
    before = _resident(files)
    read(path, orderBy=order)
    # What others have read stays; the kernel may need some pages: up to 51 of 1,470 were seen.
    assert _resident(files) > 0.9 * before


def _resident(files: list[Path]) -> int:
    found = 0
    for file in files:
        with file.open("rb") as opened:
            absent = pagecache.absent(opened.fileno(), file.stat().st_size)
            assert absent is not None
            found += len(absent) - int(absent.sum())
    return found


# --- in Spark ---


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["changed", "classic", "dataset"])
def test_spark_finds_what_a_loop_finds(spark: SparkSession, kinds: Kinds, kind: str) -> None:
    frame = spark.read.format("winkfs").option("splitBytes", "500k").load(str(kinds[kind]))
    assert frame.columns == ["path", "size", "mtime", "content"]
    rows = frame.collect()
    wanted = documents(kinds[kind])
    found = {to_name(row.path.encode()): (row.size, bytes(row.content)) for row in rows}
    assert len(rows) == len(found)
    assert found == {name: (file.size, file.content) for name, file in wanted.items()}
    mtimes = {to_name(row.path.encode()): row.mtime.timestamp() for row in rows}
    assert all(abs(mtimes[n] - f.mtime_ns / 1e9) < 1e-3 for n, f in wanted.items())


def test_all_columns_in_spark(spark: SparkSession, kinds: Kinds) -> None:
    frame = winkfs.spark.read(spark, kinds["changed"], columns=list(FIELDS), mode="PERMISSIVE")
    assert dict(frame.dtypes) == FIELDS
    rows = frame.collect()
    assert len(rows) == len(documents(kinds["changed"]))
    assert {row["_container"] for row in rows} == {str(kinds["changed"])}
    assert all(row["_error"] is None and len(row.content) == row.size for row in rows)


def test_the_style_of_binary_file(spark: SparkSession, kinds: Kinds) -> None:
    reader = spark.read.format("winkfs").option("schemaStyle", "binaryFile")
    frame = reader.load(str(kinds["plain"]))
    native = spark.read.format("binaryFile").load(__file__)
    assert frame.dtypes == native.dtypes
    assert frame.selectExpr("sum(length)").first()[0] == sum(
        file.size for file in documents(kinds["plain"]).values()
    )


def test_a_schema_of_the_user_chooses_columns(spark: SparkSession, kinds: Kinds) -> None:
    reader = spark.read.format("winkfs").schema("length long, path string")
    rows = reader.load(str(kinds["plain"])).collect()
    wanted = documents(kinds["plain"])
    assert {to_name(r.path.encode()): r.length for r in rows} == {
        n: f.size for n, f in wanted.items()
    }


@pytest.mark.long
def test_filters_and_unions_on_one_load_do_not_leak(spark: SparkSession, kinds: Kinds) -> None:
    """Spark to 4.3 shares what is pushed down among all scans of a load: so nothing is."""
    frame = spark.read.format("winkfs").load(str(kinds["dataset"]))
    names = sorted(documents(kinds["dataset"]))
    first = [n.decode() for n in names if n.startswith(b"dir0")]
    second = [n.decode() for n in names if n.startswith(b"dir1")]
    a, b = frame.filter("path like 'dir0%'"), frame.filter("path like 'dir1%'")
    assert a.count() == len(first)
    assert frame.count() == len(names)
    both = a.union(b).select("path").collect()
    assert sorted(row.path for row in both) == sorted(first + second)
    frame.createOrReplaceTempView("winkfs_leak")
    one = f"path = '{first[0]}'"
    assert spark.sql(f"select * from winkfs_leak where {one}").count() == 1
    assert spark.sql("select * from winkfs_leak").count() == len(names)
    spark.catalog.dropTempView("winkfs_leak")


def test_each_read_is_planned_anew(spark: SparkSession, tmp_path: Path) -> None:
    base = tmp_path / "c"
    stored.make(base, {"a": b"1"})
    frame = winkfs.spark.read(spark, base)
    assert frame.count() == 1
    stored.change(base, {"b": b"2"})
    assert frame.count() == 1  # a DataFrame is a snapshot
    assert winkfs.spark.read(spark, base).count() == 2
    paths = [base, base.with_name("d")]
    stored.make(paths[1], {"c": b"3"})
    assert winkfs.spark.read(spark, paths, paths=["a", "c"]).count() == 2
    loaded = spark.read.format("winkfs").load([str(path) for path in paths])
    assert loaded.count() == 3


def test_what_spark_hands_to_a_reader_that_has_no_tasks(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    winkfs.create(tmp_path / "c").close()
    reader = DefaultSource(options={"path": str(tmp_path / "c")}).reader(struct("path string"))
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # up to Spark 4.1
    assert list(reader.read(InputPartition(None))) == []


def test_an_empty_container_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    assert winkfs.spark.read(spark, tmp_path / "c").collect() == []


def test_errors_in_spark_name_what_is_wrong(spark: SparkSession, damaged: Path) -> None:
    with pytest.raises(ValueError, match="did you mean splitBytes"):
        winkfs.spark.read(spark, damaged, splitbyte=5)
    rows = winkfs.spark.read(spark, damaged, mode="PERMISSIVE").where("_error is not null")
    assert {row.path.encode() for row in rows.collect()} == BROKEN


def test_a_spark_that_leaks_filters_is_found_out_and_refused(
    spark: SparkSession, kinds: Kinds
) -> None:
    """The narrowing reader itself is right; what this Spark makes of it is not."""
    from pyspark.sql.datasource import DataSourceReader

    from winkfs.spark.reading import pushdown

    leaks = not hasattr(DataSourceReader, "pushLimit")
    assert pushdown.leaks(spark) == leaks
    if leaks:
        with pytest.raises(ValueError, match=r"pushdown=native is refused.*leak"):
            winkfs.spark.read(spark, kinds["plain"], pushdown="native")
        reader = spark.read.format("winkfs").option("pushdown", "native")
        with pytest.raises(Exception, match="pushdown=native is refused"):
            reader.load(str(kinds["plain"])).count()


FILTERS = [
    "path = 'empty'", "path in ('empty', 'nix', 'back\\\\slash')", "path like 'dir2/%'",
    "size > 5000", "size = 0", "size <= 100 and path like 'd%'",
    "mtime >= timestamp_seconds(1600000100)", "mtime < timestamp_seconds(1600000100.5)",
    "mtime = timestamp_seconds(1600000100)", "not path = 'empty'",
    "path like 'latin-1%' or size = 3145728",
]  # fmt: skip


def test_filters_that_are_pushed_down_find_what_they_should(
    spark: SparkSession, kinds: Kinds
) -> None:
    from winkfs.spark.reading.pushdown import CONF

    def load(pushdown: str) -> Any:
        frame = spark.read.format("winkfs").options(pushdown=pushdown, content="none")
        return frame.load(str(kinds["columns"]))

    spark.conf.set(CONF, "true")
    try:
        rows = load("off").selectExpr("struct(*)", *(f"({t}) is true" for t in FILTERS)).collect()
        for number, text in enumerate(FILTERS, 1):
            found = load("untried").where(text).collect()  # loaded anew: nothing to leak into
            assert sorted(found) == sorted(row[0] for row in rows if row[number]), text
            assert found, text
    finally:
        spark.conf.unset(CONF)
