"""Verify, info and reindex of digest sets and orders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import commands
import numpy as np
import orderings
import pytest
import stored
from catalog_checks import store_of
from commands import Run
from flips import flip
from test_digests import entries, make, pairs, strip_sums

import winkfs
import winkfs.digests
from winkfs.results import orders
from winkfs.results.orders import OrderedFiles, OrderedShard

run = commands.run  # a fixture


@pytest.fixture
def digests(tmp_path: Path) -> Path:
    return make(tmp_path / "d", pairs(300), 2)


def problems(path: Path) -> list[str]:
    return winkfs.verify(path).problems


def test_a_sound_digest_set_is_sound(digests: Path) -> None:
    seen: list[int] = []
    report = winkfs.verify(digests, seen.append)
    assert (report.problems, report.files, report.entries) == ([], 300, 300)
    assert sum(seen) > 0


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["kvseq", "hindex"])
def test_verify_names_the_file_of_each_flipped_digest_byte(suffix: str, digests: Path) -> None:
    (path,) = digests.glob(f"job-*/shard-0001.{suffix}")
    raw = path.read_bytes()
    for at in [*range(0, 40, 3), 100, 4000, *range(4096, len(raw), len(raw) // 60)]:
        if 24 <= at < 40 and suffix == "kvseq":  # PURPOSE: seen, but not as that of this file
            continue
        flip(path, at, bits=2)
        found = problems(digests)
        assert found and any(path.name in line for line in found), at
        path.write_bytes(raw)
    assert problems(digests) == []


def test_verify_finds_deleted_and_damaged_records(digests: Path) -> None:
    (path,) = digests.glob("job-*/shard-0000.kvseq")
    raw = path.read_bytes()
    flip(path, 8192)
    assert any("is marked deleted" in line for line in problems(digests))
    path.write_bytes(raw)
    record = digests / "digests.json"
    flip(record, 60)
    assert problems(digests)
    assert "digests.json" in problems(digests)[0]


def test_verify_finds_wrong_cells_of_an_index_without_sums(digests: Path) -> None:
    (path,) = digests.glob("job-*/shard-0000.hindex")
    strip_sums(path)
    assert problems(digests) == []
    raw = bytearray(path.read_bytes())
    cells = np.frombuffer(raw, ">i8", offset=4096)
    at = int(np.flatnonzero(cells)[0] // 2) * 16 + 4096
    raw[at : at + 16] = bytes(16)
    path.write_bytes(raw)
    assert any("cannot be found: run reindex" in line for line in problems(digests))
    assert winkfs.reindex(digests) == 300
    assert problems(digests) == []


def test_reindex_heals_an_index_and_verify_reports_the_damage(digests: Path, run: Run) -> None:
    (path,) = digests.glob("job-*/shard-0000.hindex")
    sound = path.read_bytes()
    flip(path, 5000)
    done = run("verify", str(digests))
    assert done.status == 1 and b"shard-0000.hindex" in done.out
    assert run("reindex", str(digests)).status == 0
    assert path.read_bytes() == sound
    assert run("verify", str(digests)).status == 0
    info = json.loads(run("info", "--json", str(digests)).out)
    assert (info["digests"], info["shards"], info["source"]) == (300, 2, "somewhere")


@pytest.mark.parametrize("indexed", [True, False])
def test_verify_goes_on_behind_a_damaged_digest(indexed: bool, digests: Path, run: Run) -> None:
    (path,) = digests.glob("job-*/shard-0000.kvseq")
    places = [pos for _, pos in entries(path)]
    for number in (3, 40):
        flip(path, places[number] + 2, bits=0x40)  # the length of the path
    index = path.with_suffix(".hindex")
    if not indexed:
        index.unlink()
    report = winkfs.verify(digests)
    assert report.files == 298
    for number in (3, 40):
        assert sum(f"at byte {places[number]}" in line for line in report.problems) == 1
    assert any("has no" in line or "No such file" in line for line in report.problems) != indexed
    assert not any("its cells" in line for line in report.problems)
    assert run("verify", str(digests)).status == 1


def test_reindex_writes_no_index_without_the_damaged_digests(digests: Path, run: Run) -> None:
    """It would say that there are none; the other shards get theirs."""
    first, second = (next(digests.glob(f"job-*/shard-000{i}.hindex")) for i in (0, 1))
    _, place = entries(first.with_suffix(".kvseq"))[3]
    flip(first.with_suffix(".kvseq"), place + 2, bits=0x40)
    sound = second.read_bytes()
    first.unlink()
    second.unlink()
    done = run("reindex", str(digests))
    assert done.status == 1 and f"at byte {place}" in done.err
    assert not first.exists() and second.read_bytes() == sound
    assert [p.name for p in first.parent.iterdir() if p.name.endswith(".tmp")] == []


def test_lookup_finds_what_is_good_and_names_what_is_not(digests: Path, run: Run) -> None:
    (path,) = digests.glob("job-*/shard-0000.kvseq")
    plain = [(key.decode(), pos) for key, pos in entries(path) if b" " not in key]
    names = [name for name, _ in plain]
    hit, place = plain[0]
    flip(path, place + 30)
    done = run("pipeline", "lookup", str(digests), *names)
    assert done.status == 1 and done.err.count("\n") == 1
    assert f"{hit}: " in done.err and f"at byte {place}" in done.err
    assert [json.loads(line)["path"] for line in done.out.splitlines()] == names[1:]


# --- orders -------------------------------------------------------------------------------------


@pytest.fixture
def order(tmp_path: Path) -> Path:
    base = stored.make(tmp_path / "c", {f"{i:03}": b"%d" % i for i in range(600)})
    with store_of(base) as store:
        pos = store.index.positions()[::-1].copy()
        shard = OrderedShard("", store.settings.contid, store.kv.end)
    rows = OrderedFiles(np.zeros(600, np.int64), pos, np.arange(600))
    orderings.make(tmp_path / "o", rows, of=base, generation=0, shards=(shard,))
    return tmp_path / "o"


def test_a_sound_order_is_sound_also_when_files_have_gone(order: Path, run: Run) -> None:
    report = winkfs.verify(order)
    assert (report.problems, report.notes, report.files) == ([], [], 600)
    base = order.parent / "c"
    stored.change(base, {"100": None, "101": b"again"})
    assert problems(order) == []
    info = json.loads(run("info", "--json", str(order)).out)
    assert (info["files"], info["key"], info["parts"]) == (600, "path", 1)
    shutil.move(f"{base}.data", f"{base}.other")
    report = winkfs.verify(order)
    assert report.problems == [] and "is not there" in report.notes[0]


def test_verify_names_the_part_of_each_flipped_byte_of_an_order(order: Path) -> None:
    (path,) = order.glob("job-*/*.perm")
    raw = path.read_bytes()
    for at in [3, 30, 50, 200, 4000, *range(4096, len(raw), 401)]:
        flip(path, at, bits=4)
        assert any(path.name in line for line in problems(order)), at
        path.write_bytes(raw)


def test_verify_finds_rows_that_are_no_files_or_come_twice(order: Path, run: Run) -> None:
    """In an order whose own checksums are right."""
    found = orders.open(order)
    rows = found.read(orders.Range(0, 0, 600))
    rows.pos[5], rows.pos[9] = rows.pos[6], rows.pos[9] + 3
    orderings.make(order, rows, of=found.root, generation=0, shards=found.shards)
    text = "\n".join(problems(order))
    assert "twice" in text and "which is no file" in text
    assert run("verify", str(order)).status == 1
