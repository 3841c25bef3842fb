"""Compaction: the same files in less space, the old container or the new one at any moment."""

import errno
import json
import os
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import Run
from compacted import assert_compacted, killing, life, random_life, size_of, state
from compressed_files import document
from container_checks import files_of, path_of, put
from seam import Call, disk_calls
from stored import make, read

import winkfs
from winkformats.disk.pagecache import WINDOW
from winkfs import Refusal
from winkfs.container.compact import compact
from winkfs.container.ondisk.inode import Extent, Inode, data_key
from winkfs.container.store import Store
from winkfs.errors import Locked, NoSuchFile

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ao": {"ao": True},
    "classic": {"classic": True},
    "md5": {"htalgo": 1},
    "murmur": {"htalgo": 3},
}


# What a container is, and the codec that it is compacted with.
REWRITES: dict[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({}, None),
    "to zstd": ({}, "zstd"),
    "from zstd": ({"compress": "zstd"}, "none"),
}


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_files_in_less_space(base: Path, variant: str, seed: int) -> None:
    random_life(base, random.Random(seed), VARIANTS[variant])
    if seed % 2:
        winkfs.reindex(base)
    before = assert_compacted(base)
    assert path_of(base, ".cat").exists() == (variant != "classic")
    put(base, "new", b"it goes on")
    assert state(base).keys() == before.keys() | {"new"}
    assert winkfs.verify(base).problems == []


def assert_in_order_of_names(base: Path, wanted: str | None = None) -> None:
    before = state(base)
    compact(base, order="name", compress=wanted)
    assert state(base) == before
    assert list(state(base)) == sorted(before)
    assert winkfs.verify(base).problems == []


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "classic", "md5"])
def test_in_the_order_of_names(base: Path, variant: str) -> None:
    random_life(base, random.Random(7), VARIANTS[variant])
    assert_in_order_of_names(base)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", REWRITES)
def test_rewritten_in_the_order_of_names(base: Path, kind: str) -> None:
    options, wanted = REWRITES[kind]
    life(base, **options)
    assert_in_order_of_names(base, wanted)


def test_what_is_no_file_is_kept(tmp_path: Path) -> None:
    for order in ("disk", "name"):
        base = tmp_path / order
        with winkfs.create(base) as c:
            c.put("a", b"1")
            c.store.kv.append(b"of another program/X7", b"note")
            c.delete("a")
            c.put("b", b"2")
        compact(base, order=order)
        with winkfs.open(base) as c:
            keys = [entry.key for entry in c.store.kv.iterate()]
        assert keys.count(b"of another program/X7") == 1 and len(keys) == 3


def test_container_with_one_superblock_gets_two(tmp_path: Path) -> None:
    import golden_containers

    files = golden_containers.RECIPES["plain"](tmp_path / "c")
    compact(tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert c.superblock["SBSEQ"] >= 1
        assert {name.encode("utf-8", "surrogateescape") for name in c.names()} == files.keys()


def test_derived_files_of_the_old_container_are_not_believed(base: Path) -> None:
    random_life(base, random.Random(3), {})
    winkfs.reindex(base)
    before = state(base)
    old = {s: path_of(base, s).read_bytes() for s in (".idx", ".cat")}
    compact(base)
    for suffix, data in old.items():  # as after a kill behind the rename
        path_of(base, suffix).write_bytes(data)
    assert state(base) == before
    assert winkfs.verify(base).problems == []


# --- refusals ---


def test_compact_does_not_disturb_a_writer(tmp_path: Path, base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("a", b"1")
        with pytest.raises(Locked):
            compact(base)
        c.sync()
        assert compact(base, dry_run=True).files == 1
    with pytest.raises(NoSuchFile):
        compact(tmp_path / "none")
    with pytest.raises(ValueError, match="order"):
        compact(base, order="size")


def test_append_only_containers_keep_their_order(tmp_path: Path) -> None:
    random_life(tmp_path / "c", random.Random(1), {"ao": True})
    with pytest.raises(Refusal, match="append-only"):
        compact(tmp_path / "c", order="name")


def test_inodes_before_their_contents_keep_the_time_order(tmp_path: Path) -> None:
    """As another writer may place them: they cannot be moved in batches."""
    base, part, count = tmp_path / "c", b"2" * (1 << 20), WINDOW // (1 << 20) + 2
    with winkfs.create(base, ao=True) as c:
        c.put("first", b"1" * 100, 1)
    with Store(str(base), writable=True) as store:
        kv, settings, size = store.kv, store.settings, len(part) * count
        inode = Inode(
            store.new_fileid(), size, ord("f"), 2 * 10**9, [Extent(1, 0, len(part))] * count
        )
        room = len(
            kv.layout.encode(kv.end, b"second/I0", inode.encode(settings.form, settings.isz))
        )
        entry = len(kv.layout.encode(kv.end, data_key(inode.fileid, 0), part))
        at = [kv.end + room + entry * number for number in range(count)]
        inode = replace(inode, extents=[Extent(pos, 0, len(part)) for pos in at])
        value = inode.encode(settings.form, settings.isz)
        kv.append(b"second/I0", value)
        assert [kv.append(data_key(inode.fileid, 0), part) for _ in at] == at
        store.itotsz, store.dtotsz = store.itotsz + len(value), store.dtotsz + size
        store.sync_data()
    for suffix in (".idx", ".time", ".cat"):
        path_of(base, suffix).unlink(missing_ok=True)
    winkfs.reindex(base)
    put(base, "third", b"3" * 100, 3)
    before = state(base)
    assert not winkfs.verify(base).problems and list(before) == ["first", "second", "third"]
    compact(base)
    assert list(state(base).items()) == list(before.items())
    assert not winkfs.verify(base).problems


@pytest.mark.parametrize("indexed", [True, False])
def test_damage_is_not_compacted_away(tmp_path: Path, base: Path, indexed: bool) -> None:
    with winkfs.create(base) as c:
        c.put_many((f"{i}", b"x" * 300) for i in range(100))
        c.delete("5")
    good = path_of(base, ".data").read_bytes()
    index = path_of(base, ".idx").read_bytes()
    for at in (8192 + 2, 8192 + 7, 20_000, 30_001):
        data = bytearray(good)
        data[at] ^= 0x10
        path_of(base, ".data").write_bytes(data)
        path_of(base, ".idx").unlink(missing_ok=True)
        if indexed:
            path_of(base, ".idx").write_bytes(index)
        with (
            warnings.catch_warnings(),
            pytest.raises(Refusal, match=r"damaged.*repair it first"),
        ):
            warnings.simplefilter("ignore")
            compact(base)
        assert not list(tmp_path.glob("*.tmp"))


def test_shard_of_a_data_set_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path / "c", {"a": b"1"})
    (tmp_path / "_job").touch()
    with pytest.raises(Refusal, match="winkfs dataset compact"):
        compact(tmp_path / "c")


# --- at any moment ---


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", REWRITES)
def test_full_disk_leaves_the_old_one(base: Path, kind: str) -> None:
    options, wanted = REWRITES[kind]
    life(base, **options)
    before, data = state(base), path_of(base, ".data").read_bytes()

    def full(call: Call) -> None:
        if call.verb == "write" and call.path.endswith(".data.tmp") and call.offset >= 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

    with disk_calls(full), pytest.raises(OSError, match="No space left"):
        compact(base, compress=wanted)
    assert path_of(base, ".data").read_bytes() == data
    assert not list(base.parent.glob("*.tmp"))
    assert state(base) == before


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("ways", [[None], ["zstd", "none"]], ids=["plain", "zstd"])
def test_kill_at_any_moment_is_harmless(base: Path, ways: list[str | None]) -> None:
    dice = random.Random(4)
    files = {f"{i}": document(i, 900) for i in range(1000)}
    make(base, files)
    began = time.monotonic()
    for wanted in ways:
        compact(base, compress=wanted)
    longest = (time.monotonic() - began) / len(ways)
    with killing() as killed:
        for turn in range(6):
            with winkfs.open(base, "a") as c:  # something to give back again
                c.put_many((name, files[name]) for name in dice.sample(list(files), 300))
            killed(base, ways[turn % len(ways)], dice.random() * longest)
            assert files_of(base) == files
            assert winkfs.verify(base).problems == []
    winkfs.open(base, "a").close()
    assert not list(base.parent.glob("*.data.tmp"))


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", REWRITES)
def test_readers_go_on(base: Path, kind: str) -> None:
    options, wanted = REWRITES[kind]
    life(base, **options)
    files = files_of(base)
    with winkfs.open(base) as reader:
        entries = list(reader.scan())
        compact(base, compress=wanted)
        assert {entry.name: entry.read() for entry in entries} == files
        time.sleep(0.1)
        assert {name: reader.read(name) for name in files} == files
        assert {entry.name: entry.read() for entry in reader.scan()} == files


# --- the command ---


@pytest.fixture
def corpus(run: Run) -> Iterator[str]:
    with winkfs.create("corpus") as c:
        c.put_many((f"{i}", b"x" * 1000) for i in range(50))
        for i in range(40):
            c.delete(f"{i}")
    yield "corpus"


def test_the_command_prints_what_it_saved(run: Run, corpus: str) -> None:
    size = size_of(Path(corpus))
    dry = run("compact", "--dry-run", corpus)
    assert (dry.status, dry.err) == (0, "")
    assert f"{size} bytes would become" in dry.out.decode()
    assert size_of(Path(corpus)) == size
    done = run("compact", "--json", "--order", "name", corpus)
    record = json.loads(done.out)
    assert record["bytes_before"] == size and record["files"] == 10
    assert record["bytes_after"] == size_of(Path(corpus)) < size / 2


def test_command_refuses_in_one_line(run: Run, corpus: str) -> None:
    for args in (["none"], ["corpus", "--order", "size"]):
        done = run("compact", *args)
        assert done.status in (1, 2) and done.err.count("\n") == 1


@pytest.mark.parametrize("order", ["disk", "name"])
def test_a_link_to_a_data_file_is_not_replaced(order: str, corpus: str, run: Run) -> None:
    Path("link.data").symlink_to(f"{corpus}.data")
    answer = commands.one_line(run("compact", "--order", order, "link"))
    assert "BASE.data is a symbolic link" in answer
    assert Path("link.data").is_symlink()
    assert run("compact", corpus).status == 0
    assert read("link", "49") == b"x" * 1000
