"""Damaged manifests: one file costs nothing, both of a generation cost that, and all is told."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import commands
import data_sets
import pytest
import stored
from commands import run as run  # a fixture
from constants import shrink
from data_sets import checkpoints as checkpoints  # a fixture
from flips import flip
from seam import disk_calls, refusing

import winkfs
import winkfs.dataset.maintain
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset import manifest
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import repair, vacuum
from winkfs.dataset.manifest import Log, create
from winkfs.dataset.transaction import begin

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Generation n has files 1 .. n."""
    root = create(tmp_path / "ds").root
    for n in range(1, 6):
        data_sets.add(root, {f"{n}": b"%d" % n})
    return root


def path(root: str, number: int, suffix: str = ".json") -> Path:
    return Path(f"{root}/_winkfs/{number:020}{suffix}")


def damage(root: str, *numbers: int, both: bool = True) -> None:
    for number in numbers:
        for suffix in (".json", ".copy")[: 1 + both]:
            file = path(root, number, suffix)
            flip(file, file.stat().st_size // 2, bits=4)


def files(root: str, **settings: Any) -> set[str]:
    found = stored.files(root, **settings)
    assert all(name.encode() == content for name, content in found.items())
    return set(found)


def first(n: int) -> set[str]:
    return {f"{i}" for i in range(1, n + 1)}


# --- a copy ---


@pytest.mark.few(1)
@pytest.mark.parametrize("small", [0, manifest.CHECKPOINT_BYTES])
def test_damage_of_one_file_costs_nothing_and_is_reported(
    root: str, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    shrink(monkeypatch, "a data set", short=small)
    data_sets.add(root, {"6": b"6"})
    data_sets.add(root, {"7": b"7"})
    for number in (0, 3, 6, 7):
        file = path(root, number)
        whole = file.read_bytes()
        spoiled = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
                   for at in range(0, len(whole), len(whole) // 8)]  # fmt: skip
        for data in (*spoiled, b"", whole[:-1], bytes(len(whole)), path(root, 2).read_bytes()):
            file.write_bytes(data)
            log = Log(root)
            assert len(log.at(number).shards) == number
            assert len(log.problems) == 1
            assert "its copy was read" in log.problems[0]
        assert any(str(file) in line for line in winkfs.verify(root).problems)
        file.unlink()
        assert files(root) == first(7)
        assert any("is lost" in line for line in winkfs.verify(root).problems)
        file.write_bytes(whole)
    assert winkfs.verify(root).problems == []


def test_damaged_copy_is_no_problem_and_repair_makes_it(root: str) -> None:
    path(root, 3, ".copy").write_bytes(b"x")
    path(root, 4, ".copy").unlink()
    report = winkfs.verify(root)
    assert report.problems == []
    assert len(report.notes) == 1
    assert "2 manifests have no copy" in report.notes[0]
    assert repair(root).copies == 2
    assert repair(root, apply=True).copies == 2
    assert winkfs.verify(root).notes == []


def test_sector_that_cannot_be_read_is_like_damage(root: str) -> None:
    with disk_calls(refusing("read", f"{5:020}.json")):
        assert files(root) == first(5)


def test_commits_and_vacuum_go_on_with_a_copy(root: str) -> None:
    damage(root, 2, 5, both=False)
    data_sets.add(root, {"6": b"6"})
    assert files(root) == first(6)
    assert len(winkfs.verify(root).problems) == 2
    compact(root)
    vacuum(root, older_than=0)
    assert files(root) == first(6)
    assert winkfs.verify(root).problems == []  # both are gone


def test_repair_makes_manifests_from_their_copies(root: str) -> None:
    whole = {number: path(root, number).read_bytes() for number in range(6)}
    damage(root, 0, 5, both=False)
    path(root, 3).unlink()
    before = sorted(os.listdir(f"{root}/_winkfs"))
    assert len(repair(root).mended) == 3
    assert sorted(os.listdir(f"{root}/_winkfs")) == before
    done = repair(root, apply=True)
    assert (len(done.mended), done.copies, done.left) == (3, 0, [])
    assert {number: path(root, number).read_bytes() for number in range(6)} == whole
    assert len(list(Path(root, "_winkfs").glob("*.damaged"))) == 2
    assert repair(root).mended == []
    assert winkfs.verify(root).problems == []


# --- both ---


def test_a_manifest_damaged_in_both_copies_costs_its_generation(root: str) -> None:
    damage(root, 3)
    for number in (0, 1, 2, 4, 5):
        assert files(root, as_of=number) == first(number)
    assert files(root) == first(5)
    with pytest.raises(CorruptError, match="manifest"):
        winkfs.open(root, as_of=3)
    data_sets.add(root, {"6": b"6"})
    stored.change(root, {"2": None})
    assert files(root) == first(6) - {"2"}
    problems = winkfs.verify(root).problems
    assert len(problems) == 1
    assert str(path(root, 3)) in problems[0]
    done = repair(root, apply=True)
    assert (done.mended, len(done.left)) == ([], 1)


def test_the_time_of_a_damaged_generation_raises(root: str) -> None:
    times = [Log(root).read(number).time_ns for number in range(6)]
    damage(root, 3)
    for number in (1, 4, 5):
        assert len(Log(root).at((times[number] + 1000) / 1e9).shards) == number
    log = Log(root)
    assert len(log.at(time.time()).shards) == 5
    for number in (2, 3):  # nobody knows when it began
        with pytest.raises(CorruptError):
            log.at((times[number] + 1000) / 1e9)


@pytest.mark.usefixtures("checkpoints")
def test_damage_costs_the_generations_up_to_the_next_checkpoint(tmp_path: Path) -> None:
    root = create(tmp_path / "ds").root
    for n in range(1, 7):
        data_sets.add(root, {f"{n}": b"%d" % n})
    damage(root, 2)
    for number in (0, 1, 4, 5, 6):
        assert files(root, as_of=number) == first(number)
    for number in (2, 3):
        with pytest.raises(CorruptError):
            winkfs.open(root, as_of=number)
    assert files(root) == first(6)
    damage(root, 5)
    with pytest.raises(CorruptError):  # generation 6 is there, and nobody knows what it has
        winkfs.open(root)
    assert files(root, as_of=4) == first(4)


def test_history_lists_a_damaged_generation_and_fails(root: str, run: commands.Run) -> None:
    damage(root, 3)
    done = run("dataset", "history", root)
    assert done.status == 1
    lines = done.out.splitlines()
    assert len(lines) == 6
    assert b"damaged" in lines[2]
    done = run("dataset", "history", root, "--json")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["generation"] for record in records] == [5, 4, 3, 2, 1, 0]
    assert "manifest" in records[2]["damaged"]
    damage(root, 1, both=False)
    assert "its copy was read" in run("dataset", "history", root).err


def test_vacuum_keeps_what_a_damaged_generation_may_have(root: str) -> None:
    data_sets.add(root, {"a": b"a"}, operation="overwrite")  # generation 5 has what this removed
    data_sets.add(root, {"b": b"b"})
    damage(root, 6)
    done = vacuum(root, keep=4, older_than=0)
    assert (done.shards, done.leftovers) == ([], [])
    assert len(done.notes) == 1
    assert files(root, as_of=5) == first(5)
    done = vacuum(root, older_than=0)  # no kept generation needs them
    assert len(done.leftovers) + len(done.shards) == 5
    assert files(root) == {"a", "b"}


# --- the newest ---


def test_newest_that_is_damaged_is_the_one_before_for_readers(root: str) -> None:
    damage(root, 5)
    with winkfs.open(root) as opened:
        assert (opened.generation, {entry.name for entry in opened.scan()}) == (4, first(4))
        assert len(opened.notes) == 1
        assert "is generation 4, and not 5" in opened.notes[0]
        assert not opened.refresh()
    with pytest.raises(CorruptError):
        winkfs.open(root, as_of=5)
    assert files(root, as_of=2) == first(2)
    assert any(str(path(root, 5)) in line for line in winkfs.verify(root).problems)


def test_nothing_is_committed_on_a_damaged_manifest(root: str, run: commands.Run) -> None:
    job, record = data_sets.begun(root, {"x": b"x"})
    damage(root, 5)
    before = sorted(os.listdir(f"{root}/_winkfs"))
    for action in (
        lambda: winkfs.open(root, "a"), lambda: begin(root), lambda: compact(root),
        lambda: vacuum(root, older_than=0), lambda: job.commit([record]),
    ):  # fmt: skip
        with pytest.raises(CorruptError, match="winkfs dataset repair"):
            action()  # type: ignore[no-untyped-call]
    assert "winkfs dataset repair" in commands.one_line(run("put", root, "x", stdin=b"x"))
    assert sorted(os.listdir(f"{root}/_winkfs")) == before


def test_newest_is_made_anew_where_the_shards_prove_it(root: str, run: commands.Run) -> None:
    stored.change(root, {"6": b"6", "1": b"1", "2": None})
    for suffix in (".json", ".copy"):  # a digit of its time, so that the rest can be read
        stored.flip_text(path(root, 6, suffix), b'"time_ns":', 14)
    assert files(root) == first(5)
    would = run("dataset", "repair", root)
    assert (would.status, would.out.count(b"\n")) == (1, 1)
    assert files(root) == first(5)
    assert b"from the shards of" in run("dataset", "repair", root, "--apply").out
    assert files(root) == first(6) - {"2"}
    assert files(root, as_of=5) == first(5)
    assert winkfs.verify(root).problems == []
    assert run("dataset", "repair", root).out == b"nothing to repair\n"


@pytest.mark.few(2)
@pytest.mark.parametrize("field", ['"tombs_at":', '"size":', '"operation":"a', '"rank":['])
def test_newest_that_cannot_be_proven_is_given_up(root: str, field: str) -> None:
    for suffix in (".json", ".copy"):
        stored.flip_text(path(root, 5, suffix), field.encode(), len(field))
    done = repair(root, apply=True)
    assert "generation 5 is given up" in done.mended[0]
    assert files(root) == first(4)
    assert len(list(Path(root, "_winkfs").glob("*.damaged"))) == 2
    assert winkfs.verify(root).problems == []
    lost = done.mended[0].partition("its shards may be ")[2].partition(" ")[0]
    winkfs.dataset.maintain.adopt(root, [f"{root}/{lost}"])  # as it says
    assert files(root) == first(5)
    vacuum(root, older_than=0)
    assert files(root) == first(5)


def test_two_of_the_newest_are_damaged(root: str) -> None:
    for number in (4, 5):
        for suffix in (".json", ".copy"):
            path(root, number, suffix).write_bytes(bytes(500))
    assert files(root) == first(3)
    assert len(repair(root, apply=True).mended) == 2
    data_sets.add(root, {"x": b"x"})
    assert Log(root).newest() == 4
    assert files(root) == first(3) | {"x"}
    assert winkfs.verify(root).problems == []


def test_random_damage_is_never_wrong_contents(root: str) -> None:
    """Of one file at a time: flips, zeroed and foreign sectors, cuts."""
    chance, wanted = random.Random(7), {n: first(n) for n in range(6)}
    targets = [p for p in Path(root, "_winkfs").iterdir() if p.suffix in (".json", ".copy")]
    for _ in range(300):
        target = chance.choice(targets)
        whole = target.read_bytes()
        data = bytearray(whole)
        kind = chance.randrange(5)
        if kind == 0:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            at = chance.randrange(0, len(data), 512)
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        elif kind == 2:
            data = bytearray(chance.choice(targets).read_bytes())
        elif kind == 3:
            del data[chance.randrange(len(data)) :]
        else:
            data += data[:512]
        target.write_bytes(data)
        log = Log(root)
        for number in range(6):
            assert {record.first for record in log.at(number).shards} == wanted[number]
        assert bytes(data) in (whole, target.read_bytes())
        target.write_bytes(whole)


def test_a_mount_skips_a_damaged_generation_and_logs_it(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    from winkfs.mounting.dataset import DatasetSource

    source = DatasetSource(root)
    data_sets.add(root, {"6": b"6"})
    damage(root, 6)
    assert not source.refresh()
    assert not source.refresh()
    assert source.status()["generation"] == 5
    reported = [line for line in caplog.messages if "is generation 5, and not 6" in line]
    assert len(reported) == 1
    source.close()
    again = DatasetSource(root)
    assert again.status()["generation"] == 5
    again.close()


def test_abort_leaves_files_that_a_damaged_manifest_may_name(root: str) -> None:
    job = begin(root)
    assert job.commit([data_sets.sealed(job, {"6": b"6"})]) == 6
    whole = {suffix: path(root, 6, suffix).read_bytes() for suffix in (".json", ".copy")}
    damage(root, 6)
    job.abort()
    for suffix, data in whole.items():
        path(root, 6, suffix).write_bytes(data)
    assert files(root) == first(6)


def test_a_torn_copy_left_by_a_power_cut_is_no_generation(root: str) -> None:
    """It is not synced, and its name may be there before that of the manifest."""
    whole = path(root, 5, ".copy").read_bytes()
    path(root, 6, ".copy").write_bytes(whole[:500] + bytes(len(whole) - 500))
    assert files(root) == first(5)
    report = winkfs.verify(root)
    assert report.problems == []
    assert any("interrupted commit, or both are lost" in note for note in report.notes)
    assert repair(root).mended == []
    data_sets.add(root, {"6": b"6"})
    assert files(root) == first(6)
    assert winkfs.verify(root).notes == []


# --- a shard that cannot be opened ---


def test_a_shard_without_a_superblock_costs_its_own_files_only(tmp_path: Path) -> None:
    """What is not hidden in an older one is of no newer one, whatever names that has."""
    root = create(tmp_path / "ds").root
    data_sets.add(root, {name: name.encode() for name in "abcdefg"})
    data_sets.add(root, {"b": b"new", "e": b"new"})
    data_sets.add(root, {"c": b"newest"})
    assert stored.names(root) == list("abcdefg")  # what is hidden is kept from now on
    base = f"{root}/{Log(root).latest().shards[1].path}"
    data = bytearray(Path(f"{base}.data").read_bytes())
    data[:512] = data[4096:4608] = bytes(512)
    Path(f"{base}.data").write_bytes(data)
    others = {"a": b"a", "c": b"newest", "d": b"d", "f": b"f", "g": b"g"}
    with winkfs.open(root) as found, pytest.warns(winkfs.DamageWarning, match="a shard with 2"):
        assert {name: found.read(name) for name in others} == others
        assert list(found.get_many(others)) == list(others.values())
        for name in ("b", "e", "dd"):  # nobody knows whether there is a dd
            with pytest.raises(FormatError):
                found.read(name)
            with pytest.raises(FormatError):
                list(found.get_many(["a", name]))
        for name in ("0", "h"):
            assert name not in found
        assert len(found.problems) == 1
