"""Hidden rows: what a younger shard replaces or deletes in an older one."""

from __future__ import annotations

import errno
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
import xxhash
from constants import shrink
from data_sets import root as root
from drawn import examples
from folders import MEMORY
from hashes import hash_with
from hypothesis import given, settings
from hypothesis import strategies as st
from seam import disk_calls, refusing

import winkfs
from winkfs.dataset import hidden as hiddenfile
from winkfs.dataset.folder import Folder
from winkfs.dataset.hidden import hidden_rows
from winkfs.dataset.manifest import Log, create
from winkfs.dataset.snapshot import snapshot

pytestmark = pytest.mark.in_memory


def counts(root: str) -> list[int]:
    return [len(shard.hidden) for shard in snapshot(root).shards]


def derived(root: str) -> list[Path]:
    return sorted(Path(root).glob("_winkfs/*.hidden"))


@pytest.fixture
def kept(root: str) -> Path:
    """The file of hidden rows of a data set in which a file was replaced."""
    data_sets.add(root, {"a": b"1", "b": b"1"}, {"a": b"2"})
    assert counts(root) == [1, 0]
    (path,) = derived(root)
    return path


def by_length(key: bytes) -> int:
    """All names of one length have one hash."""
    return len(key)


def test_names_with_one_hash_do_not_hide_each_other(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_with(monkeypatch, by_length)
    data_sets.add(root, {"aa": b"1", "ab": b"1", "ac": b"1"}, {"ad": b"2", "ab": b"2"})
    data_sets.add(root, {"ae": b"3", "ac": b"3"})
    data_sets.delete(root, "ad")
    expected = {"aa": b"1", "ab": b"2", "ac": b"3", "ae": b"3"}
    assert stored.files(root) == expected
    with winkfs.open(root) as opened:
        assert dict(zip(expected, opened.get_many(expected), strict=True)) == expected
        assert "ad" not in opened
        with pytest.raises(FileNotFoundError):
            list(opened.get_many(["aa", "ad"]))


@pytest.mark.parametrize("weak", [False, True])
def test_large_shard_is_asked_for_a_few_names(
    root: str, monkeypatch: pytest.MonkeyPatch, weak: bool
) -> None:
    """The index of the large one is probed, not read."""
    if weak:
        hash_with(monkeypatch, by_length)
    data_sets.add(root, {f"{n:02}": b"1" for n in range(40)}, {"00": b"2"})
    stored.files(root)
    data_sets.add(root, {"07": b"3", "zz": b"3"})
    assert counts(root) == [2, 0, 0]
    assert stored.files(root)["07"] == b"3"


def test_deletes_count_only_for_lower_ranks(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"})
    data_sets.delete(root, "a", "never")
    data_sets.add(root, {"a": b"2"})
    assert stored.files(root) == {"a": b"2", "b": b"1"}
    assert counts(root) == [1, 0, 0]


def test_delete_then_put_in_one_sync(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"})
    with winkfs.open(root, "a") as opened:
        opened.delete("a")
        opened.put("a", b"2")
        opened.put("c", b"2")
        opened.delete("c")
    assert stored.files(root) == {"a": b"2", "b": b"1"}
    assert Log(root).latest().shards[-1].tombstones == 0


@pytest.mark.parametrize("settings", [{"htalgo": 1}, {"htalgo": 3}, {"classic": True}])
def test_shards_of_other_hashes_are_compared_by_names(root: str, settings: Any) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"}, **settings)
    data_sets.add(root, {"a": b"2", "c": b"2"})
    data_sets.add(root, {"c": b"3", "d": b"3"}, **settings)
    assert stored.files(root) == {"a": b"2", "b": b"1", "c": b"3", "d": b"3"}


def test_long_names_hide_too(root: str) -> None:
    long = "x" * 60_000
    data_sets.add(root, {long: b"1", "a": b"1"}, {long: b"2"})
    assert stored.files(root) == {long: b"2", "a": b"1"}
    assert Log(root).latest().shards[0].names is None


def names_read(root: str) -> list[int]:
    """Shards of which a snapshot compares names, not only hashes."""
    with disk_calls() as calls:
        bases = [f"{root}/{shard.record.path}" for shard in snapshot(root).shards]
    opened = {call.path for call in calls if call.verb == "open"}
    return [n for n, base in enumerate(bases) if base + ".cat" in opened]


def test_shards_that_do_not_overlap_need_no_work(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"}, {"c": b"2"}, {"d": b"3", "e": b"3"})
    with disk_calls() as calls:
        assert counts(root) == [0, 0, 0]
    assert calls
    assert not [call for call in calls if call.path.endswith((".data", ".idx", ".cat"))]
    assert derived(root) == []


def test_derived_file_is_used_and_built_upon(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"}, {"a": b"2"})
    assert names_read(root) == [0, 1]
    assert names_read(root) == []
    data_sets.add(root, {"b": b"3"})
    assert names_read(root) == [0, 2]  # of the name that came
    assert counts(root) == [2, 0, 0]
    assert len(derived(root)) == 2


@pytest.mark.slow
def test_damaged_derived_file_is_made_anew(
    root: str, kept: Path, every: Callable[[str], slice]
) -> None:
    whole = kept.read_bytes()
    for damaged in (b"", whole[:10], whole[:-8], whole + b"12345678",
                    *(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
                      for at in range(len(whole))[every("record bytes")])):  # fmt: skip
        kept.write_bytes(damaged)
        assert counts(root) == [1, 0]
        assert kept.read_bytes() == whole


@pytest.mark.usefixtures("kept")
def test_derived_file_that_lies_is_found_by_verify(root: str) -> None:
    state, folder = Log(root).latest(), Folder(f"{root}/_winkfs")
    found = hiddenfile.read_hidden(folder, state.generation, state.digest)
    hiddenfile.write_hidden(folder, state, {name: rows[:0] for name, rows in found.items()})
    assert any("remove it" in line for line in winkfs.verify(root).problems)
    assert winkfs.reindex(root) == 2
    assert winkfs.verify(root).problems == []


def test_folder_that_cannot_be_written_to_is_read_all_the_same(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"}, {"a": b"2"})
    with disk_calls(refusing("create", error=errno.EACCES)) as calls:
        assert counts(root) == [1, 0]
    assert "create" in {call.verb for call in calls}
    assert derived(root) == []


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(
    shards=st.lists(
        st.tuples(st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from("abcdefgh"))),
        min_size=1, max_size=6,
    ),
    step=st.integers(1, 6), rows=st.integers(1, 6),
)  # fmt: skip
def test_step_by_step_and_in_passes_is_all_at_once(
    shards: list[tuple[set[str], set[str]]], step: int, rows: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        root = create(f"{folder}/ds").root
        expected: dict[str, bytes] = {}
        for number, (put, gone) in enumerate(shards):
            with winkfs.open(root, "a") as opened:
                for name in gone & expected.keys():
                    opened.delete(name)
                    del expected[name]
                for name in put:
                    opened.put(name, b"%d" % number)
                    expected[name] = b"%d" % number
            if number % step == 0:
                snapshot(root)
        records = Log(root).latest().shards
        whole = hidden_rows(root, records, {})
        shrink(patch, "a data set", compared=rows)
        for found in (hidden_rows(root, records, {}), *([] if not records else [
            {shard.record.path: shard.hidden for shard in snapshot(root).shards}])):  # fmt: skip
            assert {p: list(r) for p, r in found.items()} == {p: list(r) for p, r in whole.items()}
        assert stored.files(root) == expected


@pytest.mark.slow
def test_million_names_of_ten_shards_are_compared_as_columns(root: str) -> None:
    """A tenth of it here; Python code per name would take ten times as long."""
    data_sets.add(root, *(
        {f"dir/{i % 97}/{i}.html": b"x" for i in range(k * 5000, k * 5000 + 10_000)}
        for k in range(10)
    ))  # fmt: skip
    began = time.process_time()
    assert counts(root) == [5000] * 9 + [0]
    assert time.process_time() - began < 1.5


def test_hidden_rows_of_a_replaced_manifest_are_rejected(root: str) -> None:
    """Its number is used again, by a commit that replaces other files."""
    data_sets.add(root, {f"k{n}": b"1" for n in range(10)})
    data_sets.add(root, {"k3": b"old", "k4": b"old"})
    assert counts(root) == [2, 0]
    assert len(derived(root)) == 1
    Log(root).store.remove(2)  # moved away, as it was damaged
    stored.change(root, {"k7": b"new"})
    assert Log(root).newest() == 2
    assert stored.files(root) == {f"k{n}": b"1" for n in range(10)} | {"k7": b"new"}
    assert len(winkfs.open(root)) == 10
    data_sets.add(root, {"k8": b"newer"})  # is made from that of the generation before
    assert stored.files(root)["k3"] == b"1"
    assert winkfs.verify(root).problems == []


def test_hidden_rows_without_a_manifest_checksum_are_rebuilt(root: str, kept: Path) -> None:
    whole = kept.read_bytes()
    header = json.dumps([["x/y", 1]]).encode()
    header += b" " * (-len(header) % 8)
    body = len(header).to_bytes(8, "little") + header + bytes(8)
    kept.write_bytes(b"WINKHID1" + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body)
    assert counts(root) == [1, 0]
    assert kept.read_bytes() == whole


def test_hidden_rows_of_a_damaged_shard_are_reported_and_dropped(root: str) -> None:
    """What the damage replaced or deleted is seen again, until it is mended and not for longer."""
    data_sets.add(root, dict.fromkeys("abcd", b"old"))
    stored.change(root, {"b": b"new", "c": None})
    shard = Log(root).latest().shards[-1]
    path = Path(f"{root}/{shard.path}.data")
    whole = path.read_bytes()
    path.write_bytes(whole[:8192].ljust(len(whole), b"\0"))
    for derived in (*path.parent.glob("*.[!d]*"), *Path(root, "_winkfs").glob("*.hidden")):
        derived.unlink()
    for _ in range(2):
        with pytest.warns(winkfs.DamageWarning, match="at byte 8192.*may be seen again"):
            found = winkfs.open(root)
        with found:
            assert found.read("a") == found.read("d") == b"old"
    path.write_bytes(whole)
    with winkfs.open(root) as found:
        assert found.problems == []
        assert {entry.name: entry.read() for entry in found.scan()} == {
            "a": b"old", "b": b"new", "d": b"old",
        }  # fmt: skip
