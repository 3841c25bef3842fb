"""`winkfs metrics`: text that Prometheus takes, of all that is intact."""

from __future__ import annotations

import re
from pathlib import Path

import data_sets
import pytest
import stored
from commands import Run
from mounting import mounted

from winkfs.report.metrics import FAMILIES, Sample, _known, text
from winkfs.report.records import depths
from winkfs.stores import ledgerq, ringpage
from winkfs.stores.ledgerq import files
from winkfs.stores.ledgerq.tail import Rotation

LINE = re.compile(r'(winkfs_[a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (-?[0-9.e+-]+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')
Values = dict[tuple[str, ...], float]


def parsed(out: bytes) -> dict[str, Values]:
    """-> metric -> (labels in order of their names) -> value; by the rules of the format."""
    found: dict[str, Values] = {}
    kinds: dict[str, str] = {}
    for line in out.decode().splitlines():
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            assert what in ("HELP", "TYPE") and name not in found
            kinds[name] = rest
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name, labels = match[1], dict(LABEL.findall(match[2]))
        assert kinds[name] == ("counter" if name.endswith("_total") else "gauge")
        values = tuple(labels[label] for label in sorted(labels))
        assert values not in found.setdefault(name, {}), "a sample twice"
        found[name][values] = float(match[3])
    assert out.endswith(b"\n") or not out
    return found


def test_container_data_set_and_queue(run: Run, tmp_path: Path, root: str) -> None:
    base = stored.make(tmp_path / "c", {"a": b"1" * 100, "b": b"22"})
    stored.change(base, {"b": b"3"})
    data_sets.add(root, {"x": b"1", "y": b"2"})
    queue = str(tmp_path / "queue")
    ledgerq.create(queue)
    with ledgerq.Queue(queue, "a") as messages:
        messages.push_many([b"1", b"2", b"3"])
        messages.pop()
    done = run("metrics", base, root, queue)
    assert done.status == 0 and done.err == ""
    found = parsed(done.out)
    assert found["winkfs_container_files"] == {(str(base),): 2}
    assert found["winkfs_container_content_bytes"] == {(str(base),): 101}
    assert found["winkfs_container_dead_bytes"][str(base),] > 0
    assert found["winkfs_dataset_files"] == {(root,): 2}
    assert found["winkfs_dataset_commit_time_seconds"][root,] > 1.7e9
    assert found["winkfs_queue_waiting_messages"] == {(queue, "", ""): 2}
    assert found["winkfs_queue_pushed_messages_total"] == {(queue,): 3}
    assert set(found["winkfs_store_problems"].values()) == {0}


def test_queue_by_priority_with_leases(run: Run, tmp_path: Path) -> None:
    queue = str(tmp_path / "queue")
    ledgerq.create(queue, by_priority=True)
    with ledgerq.Queue(queue, "a") as messages:
        for number in range(6):
            messages.push(b"1", priority=number % 2)
        assert messages.pop(visible=600)
    found = parsed(run("metrics", queue).out)
    waiting = found["winkfs_queue_waiting_messages"]
    assert waiting == {(queue, "", "low"): 3, (queue, "", "medium"): 2, (queue, "", "high"): 0}
    leased = found["winkfs_queue_unacknowledged_messages"]
    oldest = found["winkfs_queue_oldest_unacknowledged_age_seconds"]
    assert oldest[queue, "", "medium"] > 0 == oldest[queue, "", "low"]
    assert leased[queue, "", "medium"] == 1 and sum(leased.values()) == 1
    ages = found["winkfs_queue_oldest_age_seconds"]
    assert 0 < ages[queue, "", "low"] < 600 and ages[queue, "", "high"] == 0


def test_rings_and_other_stores(run: Run, tmp_path: Path) -> None:
    ring, store = str(tmp_path / "ring"), str(tmp_path / "store")
    ringpage.create(ring, pages=8)
    with ringpage.Ring(ring, "a") as buffer:
        buffer.push_many([b"1" * 100])
    run("store", "create", store, "--kind", "log")
    run("store", "put", store, stdin=b"x" * 1000)
    found = parsed(run("metrics", ring, store).out)
    assert found["winkfs_store_records"] == {(ring, "ring buffer"): 1, (store, "log store"): 1}
    assert found["winkfs_ring_pages"] == {(ring, "ring buffer"): 8}
    assert found["winkfs_ring_overwritten_records_total"] == {(ring, "ring buffer"): 0}
    assert found["winkfs_store_bytes"][store, "log store"] >= 1000


def test_damage_costs_the_operand_alone(run: Run, tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"a": b"1"})
    Path(tmp_path / "bad.data").write_bytes(b"no superblock" * 1000)
    done = run("metrics", tmp_path / "bad", tmp_path / "none", base)
    assert done.status == 1 and done.err.count("\n") == 2
    assert "bad.data" in done.err and "none: " in done.err
    assert parsed(done.out)["winkfs_container_files"] == {(str(base),): 1}


def test_labels_are_escaped() -> None:
    out = text([Sample("store_records", {"base": 'a"b\\c\nd\udcff'}, 3)]).encode()
    assert b'{base="a\\"b\\\\c\\nd\\\\xff"} 3\n' in out
    assert parsed(out)["winkfs_store_records"]


def test_a_sample_is_a_number_and_comes_once() -> None:
    sample = Sample("store_records", {"base": "c"}, 3)
    assert text([sample, sample]).count("\nwinkfs_store_records") == 1
    facts = {"files": None, "shards": True, "generation": 3, "no metric": 4, "tombstones": "5"}
    assert list(_known("dataset", facts, {})) == [Sample("dataset_generation", {}, 3)]


def test_mounts_of_other_users_are_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"base": "c", "directory": "/mnt", "files": 3}
    every = [facts | {"state": "serving"}, facts | {"state": "another user's", "directory": "/x"}]
    monkeypatch.setattr("winkfs.cli.mount.records", lambda: every)
    found = parsed(run("metrics").out)
    assert found["winkfs_mount_serving"] == {("c", "/mnt"): 1}
    assert found["winkfs_mount_files"] == {("c", "/mnt"): 3}


def test_each_metric_has_a_sort_and_one_sentence() -> None:
    for name, (kind, what) in FAMILIES.items():
        assert (kind == "counter") == name.endswith("_total")
        assert what.endswith(".") and "\n" not in what and "\\" not in what


@pytest.mark.mount
def test_mounts_are_listed_without_an_operand(run: Run, tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"a": b"1" * 100})
    with mounted(base) as directory:
        (directory / "b").write_bytes(b"22")
        for operands in ([], [directory]):
            found = parsed(run("metrics", *operands).out)
            key = str(base), str(directory)
            assert found["winkfs_mount_serving"][key] == 1
            assert found["winkfs_mount_files"][key] == 2
            assert found["winkfs_mount_bytes"][key] == 102
            assert found["winkfs_mount_start_time_seconds"][key] > 1.7e9
    assert (str(base), str(directory)) not in parsed(run("metrics").out).get(
        "winkfs_mount_files", {}
    )


def test_queue_whose_first_segment_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_SEGMENTS", 1)  # the first one is not open any more
    path = str(tmp_path / "queue")
    ledgerq.create(path)
    with ledgerq.Queue(path, "a", rotation=Rotation(messages=10)) as writer:
        writer.push_many([b"1"] * 40)
        writer.sync()
        with ledgerq.Queue(path) as reader:
            writer.pop_many(25)
            writer.sync()
            assert writer.compact().segments == 2
            (found,) = depths(reader, 0)
            assert len(reader.files.segments) == 2  # it knows what is left
    assert found["oldest_age"] is None
