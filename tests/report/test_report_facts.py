"""The facts of a report, held against the files themselves."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import data_sets
import numpy as np
import pages
import pytest
import stored
from commands import Run
from simulated.objectstore import ObjectStore, web_server

import winkfs
from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.report.directories import squarified
from winkfs.report.facts import compared, gather
from winkfs.report.records import space_of
from winkfs.report.totals import AGES, FileTotals, merged, spread
from winkfs.stores import ledgerq, ringpage

NOW = (pages.NOW + 10) * 10**9


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard")
    return pages.make(tmp_path_factory.mktemp("report") / "corpus")


@pytest.fixture(scope="module")
def facts(base: Path) -> dict[str, Any]:
    return gather(str(base), now=NOW)


def kind_of(name: str) -> str:
    """-> the suffix of a name, as docs/report.md has it."""
    leaf = os.fsencode(name).rpartition(b"/")[2].decode("utf-8", "replace")
    head, dot, word = leaf.rpartition(".")
    good = dot and head and word.isascii() and word.isalnum() and len(word) <= 12
    return word.lower() if good and not word.isdigit() else ""


def test_sums_are_those_of_the_files(base: Path, facts: dict[str, Any]) -> None:
    with winkfs.open(base) as c:
        stats = list(c.scan())
    assert facts["files"]["files"] == len(stats) > 600
    assert facts["files"]["bytes"] == sum(stat.size for stat in stats)
    sizes = Counter(stat.size.bit_length() for stat in stats)
    assert {row["below"].bit_length() - 1: row["files"] for row in facts["sizes"]} == {
        bits: sizes[bits] for bits in range(min(sizes), max(sizes) + 1)
    }
    for row in facts["mtimes"]:
        ages = [NOW / 10**9 - stat.mtime for stat in stats]
        low, high = row["least"], row["below"]
        assert row["files"] == sum(low <= age < (high or 1e18) for age in ages)
    assert next(row["least"] for row in facts["mtimes"]) in AGES
    kinds = Counter(kind_of(stat.name) for stat in stats)
    assert {row["type"]: row["files"] for row in facts["types"]} == dict(kinds)
    assert kinds["jpg"] > 100 and kinds[""] > 100 and kinds["gz"] > 100


def test_directories_are_sums_of_what_is_below(base: Path, facts: dict[str, Any]) -> None:
    with winkfs.open(base) as c:
        stats = list(c.scan())
    depths: list[int] = []

    def check(node: dict[str, Any], depth: int) -> None:
        depths.append(depth)
        below = [s for s in stats if not depth or s.name.startswith(node["name"] + "/")]
        assert (node["files"], node["bytes"]) == (len(below), sum(s.size for s in below)), node
        for child in node.get("children", ()):
            check(child, depth + 1)

    check(facts["directories"], 0)
    assert len(facts["directories"]["children"]) >= 8 and max(depths) == 4


def test_space_is_that_of_verify_and_of_the_map(
    run: Run, base: Path, facts: dict[str, Any]
) -> None:
    known = json.loads(run("info", base, "--json").out)
    space = facts["space"]
    assert known["dead_bytes_exact"] and space["exact"]
    assert (space["live"], space["dead"]) == (known["live_bytes"], known["dead_bytes"])
    parts = ("superblocks", "live", "dead", "holes", "reserve")
    with winkfs.Container(str(base), "r") as c:
        assert space["superblocks"] == c.store.kv.start
    assert sum(space[part] for part in parts) == space["size"] == os.path.getsize(f"{base}.data")
    for part in parts:
        assert abs(sum(space["map"][part]) - space[part]) <= len(space["map"][part])
    head = space["map"]["step"] * len(space["map"]["live"])
    assert 0 <= head - space["size"] < 2 * space["map"]["step"]
    assert space["map"]["live"][-1] > 0 and space["dead"] > 1000


def test_estimates_are_near_what_was_counted(
    base: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winkfs.report.container.EXACT_BYTES", 0)
    space = gather(str(base), now=NOW)["space"]
    assert not space["exact"]
    assert space["live"] == pytest.approx(facts["space"]["live"], rel=0.1)


def test_stored_bytes_are_those_of_the_frames(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    with winkfs.create(tmp_path / "c", compress="zstd:3") as c:
        for number in range(200):
            c.put(f"{number}.text", b"the same words again and again, " * 100)
            c.put(f"{number}.raw", np.random.default_rng(number).bytes(3000))
    found = {row["type"]: row for row in gather(str(tmp_path / "c"))["types"]}
    assert found["raw"]["bytes"] == 600_000
    assert found["raw"]["stored"] == pytest.approx(600_000, rel=0.02)
    assert found["text"]["bytes"] == 640_000 and found["text"]["stored"] < 40_000


def test_attributes_are_not_stored_content(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    with winkfs.create(tmp_path / "c", compress="zstd:3", columns={"lang": "string"}) as c:
        for number in range(300):
            text = b"the same words again and again, " * (100 if number % 3 else 0)
            c.put(f"{number}.text", text, columns={"lang": "de"})
        size = c.store.kv.end
    (found,) = gather(str(tmp_path / "c"))["types"]
    assert found["bytes"] == 640_000
    assert 200 * 30 < found["stored"] < 200 * 90 < size / 4


def test_columns_are_those_of_the_files(base: Path, facts: dict[str, Any]) -> None:
    with winkfs.open(base) as c:
        values = [c.getcolumns(name) for name in c]
    for row in facts["columns"]:
        some = [value[row["name"]] for value in values if value[row["name"]] is not None]
        assert (row["values"], row["nulls"]) == (len(some), len(values) - len(some))
        assert row["distinct"] == len(set(some))
        assert (row["least"], row["greatest"]) == (min(some, default=None), max(some, default=None))
    assert [row["type"] for row in facts["columns"]] == ["string", "float64", "date"]
    assert facts["columns"][2]["values"] == 0 < facts["columns"][0]["distinct"]


def test_columns_without_a_catalog_are_the_same(base: Path, facts: dict[str, Any]) -> None:
    os.rename(f"{base}.cat", f"{base}.away")
    try:
        found = gather(str(base), now=NOW)
    finally:
        os.rename(f"{base}.away", f"{base}.cat")
    assert found["columns"] == facts["columns"] and "catalog" not in found
    assert found["types"] == facts["types"] and found["directories"] == facts["directories"]


def test_probes_are_those_of_the_cells(base: Path, facts: dict[str, Any]) -> None:
    from winkformats.disk.paths import open_file
    from winkformats.hindex.hindex import HIndex

    with open_file(f"{base}.idx") as storage:
        index = HIndex.open(storage)
        cells = index.superblock["HTSIZE"]
        passed = [(slot - (cell[1] & (1 << 63) - 1)) % cells + 1 for slot, cell in index.iterate()]
    record = facts["index"]
    assert record["cells"] == cells and record["live"] == len(passed) == facts["files"]["files"]
    assert record["mean_probes"] == pytest.approx(sum(passed) / len(passed), abs=0.001)
    assert record["most_probes"] == max(passed)
    assert sum(row["files"] for row in record["probes"]) == len(passed)


def test_the_catalog_has_all_files(facts: dict[str, Any]) -> None:
    runs = facts["catalog"]["runs"]
    assert sum(run["rows"] - run["gone"] for run in runs) == facts["files"]["files"]
    assert sum(facts["catalog"]["fills"]) == sum(run["blocks"] for run in runs)


def test_a_hole_in_dead_bytes_is_no_dead_byte(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"a": bytes(range(256)) * 4096, "b": b"2"})
    with winkfs.open(base, "a") as c:
        c.delete("a")
        c.put("c", b"3")
    before = gather(str(base))["space"]
    assert before["holes"] == 0 and before["dead"] > 1 << 20
    with Path(f"{base}.data").open("r+b") as file:  # as if it had been punched
        if not punched(file.fileno(), 1 << 16, 1 << 19):
            pytest.skip("no holes on this file system")
    after = gather(str(base))["space"]
    assert after["holes"] == 1 << 19 and after["dead"] == before["dead"] - (1 << 19)
    assert after["live"] == before["live"]


def test_a_hole_in_live_bytes_is_live(tmp_path: Path) -> None:
    """As in a copy that left out zeros."""
    base = stored.make(tmp_path / "c", {"a": bytes(1 << 20)})
    with Path(f"{base}.data").open("r+b") as file:
        if not punched(file.fileno(), 1 << 16, 1 << 19):
            pytest.skip("no holes on this file system")
    found = gather(str(base))["space"]
    assert found["live"] > 1 << 20 and found["holes"] <= found["dead"] + found["holes"] < 1 << 12
    assert min(found["dead"], *found["map"]["dead"]) >= 0


def punched(fd: int, start: int, size: int) -> bool:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(call(fd, 3, start, size) == 0)  # PUNCH_HOLE | KEEP_SIZE


def test_a_damaged_file_costs_itself(run: Run, tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {f"{n}": b"x" * n for n in range(50)})
    Path(f"{base}.cat").unlink(missing_ok=True)
    stored.flip_text(f"{base}.data", b"17/I0", 1)
    done = run("report", base, "--json")
    assert done.status == 1 and done.err.startswith("winkfs: ") and ".data" in done.err
    found = json.loads(done.out)
    assert found["files"]["files"] == 49 and len(found["problems"]) >= 1


# --- data sets and stores of records ---


def test_a_data_set_has_shards_and_generations(run: Run, root: str) -> None:
    data_sets.add(root, {"a/1.txt": b"1" * 100, "a/2.txt": b"2" * 100}, {"b/3.txt": b"3" * 50})
    data_sets.add(root, {"a/1.txt": b"new"})
    data_sets.delete(root, "b/3.txt")
    found = gather(str(root))
    assert found["kind"] == "data set"
    assert found["files"] == {"files": 2, "directories": 0, "links": 0, "bytes": 103}
    assert sum(row["hidden"] for row in found["shards"]) == 2
    assert sum(row["tombstones"] for row in found["shards"]) == 1
    waste = {row["files"]: row["waste"] for row in found["shards"] if row["hidden"]}
    assert all(waste.values()) and len(found["shards"]) >= 3
    operations = [row["operation"] for row in found["generations"]]
    assert len(operations) >= 3 and found["generations"][0]["generation"] > 1
    done = run("report", root, "-o", "-")
    assert (
        done.status == 0 and b"<h2>Shards</h2>" in done.out and b"<h2>Generations</h2>" in done.out
    )


def test_columns_that_a_shard_does_not_have_are_null(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    rows = [("b", b"", 1, {"lang": "de"}), ("c", b"", 1, {"lang": "en"})]
    data_sets.commit(root, [lambda c: c.put_many(rows)], columns={"lang": "string"})
    assert gather(str(root))["columns"] == [{
        "name": "lang", "type": "string", "values": 2, "nulls": 1, "distinct": 2, "least": "de",
        "greatest": "en",
    }]  # fmt: skip


def test_a_lost_shard_costs_itself(run: Run, root: str) -> None:
    data_sets.add(root, {"a": b"1"}, {"b": b"22"})
    lost = gather(str(root))["shards"][0]["path"]
    Path(f"{root}/{lost}.data").unlink()
    done = run("report", root, "--json")
    assert done.status == 1 and lost in done.err
    assert json.loads(done.out)["files"]["files"] == 1


def test_a_queue_has_depth_and_age_by_priority(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    ledgerq.create(path, by_priority=True)
    with ledgerq.Queue(path, "a") as queue:
        queue.add_consumer("other")
        for number in range(12):
            queue.push(b"body", priority=number % 3)
        queue.pop()  # the first one of high priority
    found = gather(path)
    depth = {(row["consumer"], row["priority"]): row["waiting"] for row in found["queue"]}
    assert depth["other", "high"] == depth["other", "low"] == 4
    assert depth["", "high"] == 3 and depth["", "low"] == 4
    assert all(row["oldest_age"] >= 0 for row in found["queue"] if row["waiting"])
    assert sum(row["files"] for row in found["mtimes"]) == 12
    assert b"<h2>Queue</h2>" in run("report", path, "-o", "-").out


def test_a_ring_and_a_message_store_have_facts(run: Run, tmp_path: Path) -> None:
    ring, store = str(tmp_path / "ring"), str(tmp_path / "store")
    ringpage.create(ring, pages=8)
    with ringpage.Ring(ring, "a") as buffer:
        buffer.push_many([b"1" * 100, b"2" * 300])
    assert run("store", "create", store, "--kind", "message").status == 0
    run("store", "put", store, stdin=b"x" * 1000)
    found = gather(ring)
    assert found["kind"] == "ring buffer" and found["info"]["records"] == 2
    assert found["files"] == {"files": 2, "bytes": 400}
    found = gather(store)
    assert found["info"]["messages"] == found["files"]["files"] == 1
    assert found["space"]["live"] > 1000 > found["space"]["dead"]
    for path in (ring, store):
        assert run("report", path, "-o", "-").status == 0


def test_space_of_a_store_has_an_overhead() -> None:
    known = {"dead_bytes": 3, "bytes": 10}
    for size, whole in (20, 20), (5, 13):
        space = space_of(known | {"disk_bytes": size})["space"]
        assert space == {
            "size": whole,
            "live": 10,
            "dead": 3,
            "overhead": whole - 13,
            "exact": True,
        }
    assert space_of({"bytes": 10}) == {}


def test_messages_that_were_taken_have_no_age(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    ledgerq.create(path)
    with ledgerq.Queue(path, "a") as queue:
        queue.push_many([b"1", b"2", b"3"])
        queue.pop()
    assert sum(row["files"] for row in gather(path)["mtimes"]) == 2


def test_what_is_no_store_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("report", tmp_path, "--json")
    assert done.status == 1 and "no container, data set or other store" in done.err


# --- arithmetic ---


def test_spread_divides_ranges_at_edges() -> None:
    starts, stops = np.array([0, 15, 40]), np.array([10, 35, 45])
    found = spread(starts, stops, np.array([0, 10, 20, 30, 50]))
    assert found.tolist() == [10, 5, 10, 10]
    assert spread(starts[:0], stops[:0], np.array([0, 9])).tolist() == [0]


def test_links_and_directories_are_no_files() -> None:
    totals, kinds = FileTotals(NOW), [FileType.FILE, FileType.DIR, FileType.LINK]
    names = [b"a.txt", b"d.txt", b"l.txt"]
    totals.add(FileTable.of(names, np.arange(3), size=np.array([5, 0, 3]), kind=np.array(kinds)))
    found = totals.record()
    assert found["files"] == {"files": 1, "directories": 1, "links": 1, "bytes": 5}
    assert found["types"] == [{"type": "txt", "files": 1, "bytes": 5}]
    assert (found["directories"]["files"], found["directories"]["bytes"]) == (1, 5)


def test_figures_of_an_older_report_may_be_anything() -> None:
    old = {"types": [{"type": "", "files": 1}, {"type": None, "files": 2}, 5], "queue": [5],
           "shards": [7], "catalog": {"runs": [3]}}  # fmt: skip
    found = {row["what"]: row["old"] for row in compared(old, {})}
    assert found["types.none.files"] == 1 and found["types.others.files"] == 2
    assert found["catalog.runs"] == 0 and not any("queue" in what for what in found)


def test_merged_ranges_do_not_overlap() -> None:
    a = np.array([10, 0]), np.array([20, 5])
    b = np.array([12, 3, 30]), np.array([25, 11, 31])
    starts, stops = merged([a, b])
    assert int((stops - starts).sum()) == 26  # 0..25 and 30..31
    assert (starts[1:] >= stops[:-1]).all()


@pytest.mark.parametrize("sizes", [[1], [5, 3, 1], [1] * 24, [1000, 1], [9, 9, 9, 1, 1, 1]])
def test_areas_are_in_proportion_and_apart(sizes: list[float]) -> None:
    areas = squarified(sizes, 2.0, 1.0)
    for size, area in zip(sizes, areas, strict=True):
        assert area.width * area.height / 10**4 == pytest.approx(size / sum(sizes))
        assert -1e-9 <= area.left <= area.left + area.width <= 100 + 1e-6
        assert -1e-9 <= area.top <= area.top + area.height <= 100 + 1e-6
    for i, one in enumerate(areas):
        for other in areas[i + 1 :]:
            wide = min(one.left + one.width, other.left + other.width) - max(one.left, other.left)
            high = min(one.top + one.height, other.top + other.height) - max(one.top, other.top)
            assert wide <= 1e-6 or high <= 1e-6


def test_a_container_that_is_far_has_the_same_files(run: Run, base: Path) -> None:
    pytest.importorskip("urllib3")
    here = gather(str(base), now=NOW)
    with ObjectStore() as store, web_server(store) as url:
        store.put_container(base, "c")
        there = gather(f"{url}/c", now=NOW)
        assert run("metrics", f"{url}/c").status == 0
    assert there["problems"] == [] and "index" not in there
    for section in ("files", "sizes", "types", "directories", "columns"):
        assert there[section] == here[section], section


def test_very_many_directories_cost_little_and_no_large_one() -> None:
    """Of small ones that follow each other some are left out; sums of those above are right."""
    names = sorted(f"{n // 1000:03}/{n:07}/x/f.txt".encode() for n in range(20_000))
    size = np.full(len(names), 10)
    size[7777] = 5000
    totals = FileTotals(NOW)
    for at in range(0, len(names), 5000):
        part = slice(at, at + 5000)
        totals.add(FileTable.of(names[part], np.arange(5000), size=size[part]))
    tree = totals.tree()
    assert [(one["files"], one["bytes"]) for one in tree["children"][:2]] == [
        (1000, 14_990), (1000, 10_000),
    ]  # fmt: skip
    assert tree["children"][0]["children"][0]["name"] == "007/0007777"
    assert len(tree["children"]) == 20 and all(one["files"] == 1000 for one in tree["children"])
