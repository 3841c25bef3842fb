"""The Dataset face: files of many shards by name, and what a writer sees of its own changes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import data_sets
import pytest
import stored
from constants import shrink
from data_sets import root as root
from openfiles import opened
from seam import Call, disk_calls, once
from threaded import in_threads

import winkfs
from winkfs.dataset.manifest import Log
from winkfs.dataset.snapshot import snapshot
from winkfs.errors import Closed


def test_writer_sees_its_changes_and_others_do_not(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1", "c": b"1"})
    with winkfs.open(root) as reader, winkfs.open(root, "a") as writer:
        writer.put("a", b"2")
        writer.put_many([("d", b"2"), ("e", b"2")])
        writer.delete("b")
        writer.rename("c", "cc")
        writer.rename("d", "dd")
        assert sorted(writer) == ["a", "cc", "dd", "e"]
        assert len(writer) == 4
        assert [writer.read(n) for n in ("a", "cc", "dd")] == [b"2", b"1", b"2"]
        assert list(writer.get_many(["cc", "a"])) == [b"1", b"2"]
        assert [n in writer for n in ("a", "b", "c", "d", "dd")] == [True, *[False] * 3, True]
        assert sorted(reader) == ["a", "b", "c"]
        assert not reader.refresh()
        assert writer.sync() == 2
        assert sorted(reader) == ["a", "b", "c"]
        assert reader.refresh()
        assert sorted(reader) == ["a", "cc", "dd", "e"]
        assert writer.sync() == 2  # nothing to publish


def test_exception_in_a_with_block_leaves_no_change(root: str) -> None:
    with pytest.raises(KeyError), winkfs.open(root, "a") as writer:
        writer.put("a", b"1")
        raise KeyError
    assert Log(root).newest() == 0
    assert stored.files(root) == {}
    assert os.listdir(f"{root}/_pending") == []


def test_deletes_outlive_a_sync_that_failed_behind_them(root: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    data_sets.add(root, {"a": b"1", "b": b"1", "c": b"1"})
    with winkfs.open(root, "a") as writer:
        writer.put("new", b"2")
        writer.delete("a")
        writer.delete("b")
        with disk_calls(once("create", ".cat.tmp", interrupt)), pytest.raises(KeyboardInterrupt):
            writer.sync()
        writer.put("a", b"3")
        writer.put("more", b"3")
        writer.delete("c")
    assert snapshot(root).shards[-1].record.tombstones == 2
    assert stored.files(root) == {"new": b"2", "a": b"3", "more": b"3"}
    assert winkfs.verify(root).problems == []


def test_tombstone_of_a_file_of_the_same_container_is_refused(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as container:
        container.put("a", b"1")
        for names in (["b", "a"], []):
            with pytest.raises(ValueError, match="tombstones"):
                container.append_tombstones(names)
        assert container.append_tombstones(["b"]) > 4096
        assert len(container) == 1
    assert winkfs.verify(tmp_path / "c").problems == []


def test_files_change_only_as_a_whole(root: str) -> None:
    data_sets.add(root, {"a": b"1"})
    with winkfs.open(root, "a") as writer:
        for change in (writer.append, writer.write, writer.truncate, writer.chmod, writer.utime):
            with pytest.raises(PermissionError, match="whole files only"):
                change("a", 0)  # type: ignore[arg-type]
    with winkfs.open(root) as reader, pytest.raises(OSError, match="mode 'a'"):
        reader.put("a", b"2")
    with pytest.raises(ValueError, match="an older generation"):
        winkfs.open(root, "a", as_of=0)


def test_missing_names_and_names_that_cannot_be(root: str) -> None:
    data_sets.add(root, {"a": b"1", "z": b"1"})
    with winkfs.open(root) as reader:
        for name in ("b", "zz", ""):
            assert name not in reader
        for call in (reader.read, reader.stat, reader.open_file, reader.getxattrs):
            with pytest.raises(FileNotFoundError, match="b: no such file in the data set"):
                call("b")
        with pytest.raises(ValueError, match="NUL"):
            reader.read("a\0")
        found = reader.get_many(["a", "b"])
        assert next(found) == b"1"
        with pytest.raises(FileNotFoundError):
            next(found)


def test_parts_links_and_metadata_are_those_of_the_shard(root: str) -> None:
    with winkfs.open(root, "a") as writer:
        writer.put("f", b"0123456789", mtime=5, mode=0o600)
        writer.symlink("f", "l")
        writer.mkdir("d/")
        with pytest.raises(FileExistsError):
            writer.put("f", b"", exclusive=True)
        with Path(__file__).open("rb") as source:
            assert writer.put_file("g", source) > 100
    with winkfs.open(root) as reader:
        assert reader.read("f", 3, 4) == b"3456"
        with reader.open_file("f") as file:
            file.seek(-2, os.SEEK_END)
            assert file.read() == b"89"
        assert reader.readlink("l") == "f"
        assert (reader.stat("f").mode, reader.stat("f").mtime) == (0o600, 5)
        assert reader.stat("d").ftype == winkfs.FileType.DIR


def test_time_ranges_and_prefixes_open_only_the_shards_they_need(root: str) -> None:
    for start in range(0, 50, 10):
        data_sets.commit(root, [lambda c, s=start: c.put_many(
            (f"{s}/{n}", b"x", s + n) for n in range(10))], ao=start == 20)  # fmt: skip
    with winkfs.open(root) as reader:
        bases = [shard.base for shard in reader.shards]

        def opened(calls: list[Call]) -> set[int]:
            paths = {call.path for call in calls if call.verb == "open"}
            return {n for n, base in enumerate(bases) if paths & {base + ".data", base + ".cat"}}

        with disk_calls() as calls:
            assert [e.mtime for e in reader.scan(18, 23)] == [18, 19, 20, 21, 22]
        assert opened(calls) == {1, 2}
        with disk_calls() as calls:
            assert len(list(reader.scan(prefix="30/"))) == 10
        assert opened(calls) == {3}
        assert list(reader.names("4*/[12]")) == ["40/1", "40/2"]


def test_more_shards_than_are_kept_open(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "a data set", open=2)
    for n in range(6):
        data_sets.add(root, {"same": b"%d" % n, f"{n}": b"x"})
    with winkfs.open(root) as reader:
        before = len(opened(root))
        entries = list(reader.scan())
        assert sorted(entry.name for entry in entries) == [*"012345", "same"]
        assert [reader.read(f"{n}") for n in range(6)] == [b"x"] * 6
        assert list(reader.get_many([*"543210", "same"])) == [*[b"x"] * 6, b"5"]
        assert [entry.read() for entry in entries if entry.name == "same"] == [b"5"]
        del entries
        assert len(opened(root)) <= before + 2 * 6  # one of them sees how long what is mapped is


@pytest.mark.slow
def test_threads_share_a_reader(root: str) -> None:
    for n in range(4):
        data_sets.add(root, {f"{n}/{i}": b"%d" % i for i in range(50)})
    with winkfs.open(root) as reader:

        def work(n: int) -> None:
            for i in range(50):
                assert reader.read(f"{n}/{i}") == b"%d" % i

        in_threads(*(partial(work, n % 4) for n in range(8)))


def test_closed_data_set_refuses(root: str) -> None:
    reader = winkfs.open(root)
    reader.close()
    reader.close()
    with pytest.raises(Closed):
        reader.read("a")


def test_damage_in_one_shard_costs_only_its_files(root: str) -> None:
    data_sets.add(root, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
    path = Path(snapshot(root).shards[1].base + ".data")
    path.write_bytes(b"\0" * path.stat().st_size)
    with winkfs.open(root) as reader:
        assert (reader.read("a"), reader.read("c")) == (b"1", b"3")
        with pytest.raises(ValueError, match="00001"):
            reader.read("b")
    problems = winkfs.verify(root).problems
    assert problems
    assert all("00001" in line for line in problems)


def test_record_that_lies_is_found_by_verify(root: str) -> None:
    job, record = data_sets.begun(root, {"a": b"1"})
    job.commit([replace(record, files=7)])
    assert any("its record in the manifest" in line for line in winkfs.verify(root).problems)


def test_lost_index_and_catalog_of_shards_are_made_anew(root: str) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"}, {"a": b"2"})
    for path in Path(root).glob("[!_]*/*"):
        if path.suffix in (".idx", ".cat"):
            path.unlink()
    assert stored.files(root) == {"a": b"2", "b": b"1"}
    assert winkfs.verify(root).problems == []
    assert winkfs.reindex(root) == 2
    assert len(list(Path(root).glob("[!_]*/*.cat"))) == 2
    assert winkfs.verify(root).problems == []
