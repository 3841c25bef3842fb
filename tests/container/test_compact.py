"""Compaction: the same files in less space, the old container or the new one at any moment."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import Run
from commands import run as run
from container_checks import path_of
from oracle_read import check
from seam import Call, disk_calls

import winkfs
from winkformats.disk import pagecache
from winkformats.disk.pagecache import WINDOW
from winkformats.disk.posix import FileStorage
from winkfs import Refusal
from winkfs.container.compact import Compacted, compact
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
State = dict[str, tuple[Any, ...]]


def live(base: Path, dice: random.Random, options: dict[str, Any]) -> None:
    """A container of files of every kind, many of them replaced, changed and deleted."""
    ao, classic = options.get("ao", False), options.get("classic", False)
    with winkfs.create(base, **options) as c:
        count = dice.choice([0, 10, 300])
        c.put_many((f"m{i}", dice.randbytes(dice.choice([0, 5, 400])), 9 + i) for i in range(count))
        for i in range(60):
            name, what = f"k{dice.randrange(30)}", dice.random()
            if what < 0.5 or name not in c:
                mode = None if classic else dice.choice([None, 0o600, 0o755])
                size = dice.choice([0, 9, 1000, 70_000])
                c.put(name, dice.randbytes(size), None if ao else i, mode=mode)
            elif what < 0.6:
                c.delete(name)
            elif ao:
                continue
            elif what < 0.8:
                c.append(name, b"more" * dice.randrange(500))
            elif what < 0.9:
                c.write(name, dice.randrange(3000), b"X" * dice.randrange(1, 900))
            elif not classic:
                c.setxattrs(name, {b"user.a": dice.randbytes(5)})
            if dice.random() < 0.1:
                c.sync()
        c.put("large", dice.randbytes(2_500_000))


def state(base: Path) -> State:
    """All that is to be seen of each file."""
    with winkfs.open(base) as c:
        return {
            e.name: (e.fileid, e.size, e.mtime_ns, e.ftype, e.mode, c.getxattrs(e.name), e.read())
            for e in c.scan()
        }


def size_of(base: Path) -> int:
    return path_of(base, ".data").stat().st_size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_files_in_less_space(tmp_path: Path, variant: str, seed: int) -> None:
    base, dice = tmp_path / "c", random.Random(seed)
    live(base, dice, VARIANTS[variant])
    if seed % 2:
        winkfs.reindex(base)
    before, size = state(base), size_of(base)
    would = compact(base, dry_run=True)
    assert size_of(base) == size and state(base) == before
    seen: list[int] = []
    done = compact(base, progress=seen.append)
    assert done == would == Compacted(size, size_of(base), len(before))
    assert sum(seen) >= size - 8192
    assert state(base) == before
    assert winkfs.verify(base).problems == []
    assert path_of(base, ".cat").exists() == (variant != "classic")
    check(base)  # by the oracle
    again = compact(base)
    assert (again.before, again.after) == (done.after, done.after)
    with winkfs.open(base, "a") as c:
        c.put("new", b"it goes on")
    assert state(base).keys() == before.keys() | {"new"}
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("variant", ["plain", "classic", "md5"])
def test_in_the_order_of_names(tmp_path: Path, variant: str) -> None:
    base = tmp_path / "c"
    live(base, random.Random(7), VARIANTS[variant])
    before = state(base)
    compact(base, order="name")
    assert state(base) == before
    with winkfs.open(base) as c:
        assert [e.name for e in c.scan()] == sorted(before)
    assert winkfs.verify(base).problems == []


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


def test_derived_files_of_the_old_container_are_not_believed(tmp_path: Path) -> None:
    base = tmp_path / "c"
    live(base, random.Random(3), {})
    winkfs.reindex(base)
    before = state(base)
    old = {s: path_of(base, s).read_bytes() for s in (".idx", ".cat")}
    compact(base)
    for suffix, data in old.items():  # as after a kill behind the rename
        path_of(base, suffix).write_bytes(data)
    assert state(base) == before
    assert winkfs.verify(base).problems == []


# --- refusals ---


def test_compact_does_not_disturb_a_writer(tmp_path: Path) -> None:
    base = tmp_path / "c"
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
    live(tmp_path / "c", random.Random(1), {"ao": True})
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
    with winkfs.open(base, "a") as c:
        c.put("third", b"3" * 100, 3)
    before = state(base)
    assert not winkfs.verify(base).problems and list(before) == ["first", "second", "third"]
    compact(base)
    assert list(state(base).items()) == list(before.items())
    assert not winkfs.verify(base).problems


@pytest.mark.parametrize("indexed", [True, False])
def test_damage_is_not_compacted_away(tmp_path: Path, indexed: bool) -> None:
    base = tmp_path / "c"
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
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1")
    (tmp_path / "_job").touch()
    with pytest.raises(Refusal, match="winkfs dataset compact"):
        compact(tmp_path / "c")


def test_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    base = tmp_path / "c"
    live(base, random.Random(2), {})
    before, data = state(base), path_of(base, ".data").read_bytes()

    def full(call: Call) -> None:
        if call.verb == "write" and call.path.endswith(".data.tmp") and call.offset >= 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

    with disk_calls(full), pytest.raises(OSError, match="No space left"):
        compact(base)
    assert path_of(base, ".data").read_bytes() == data
    assert not list(tmp_path.glob("*.tmp"))
    assert state(base) == before


# --- at any moment ---


COMPACT = """
import sys, winkfs
from winkfs.container.compact import compact
print("begun", flush=True)
compact(sys.argv[1])
"""


@pytest.mark.slow
def test_kill_at_any_moment_is_harmless(tmp_path: Path) -> None:
    base, dice = tmp_path / "c", random.Random(4)
    with winkfs.create(base) as c:
        c.put_many((f"{i}", dice.randbytes(900)) for i in range(6000))
        for i in range(0, 6000, 2):
            c.delete(f"{i}")
    winkfs.reindex(base)
    before = state(base)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", COMPACT, str(base)], check=True, capture_output=True)
    longest = time.monotonic() - began
    done = 0
    for _ in range(6):
        with winkfs.open(base, "a") as c:  # something to give back again
            c.put_many((f"{i}", before[f"{i}"][-1]) for i in range(1, 2000, 2))
        child = subprocess.Popen([sys.executable, "-c", COMPACT, str(base)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"begun\n"
        time.sleep(dice.random() * longest)
        child.send_signal(signal.SIGKILL)
        done += child.wait() == 0
        child.stdout.close()
        found = state(base)
        assert {n: f[-1] for n, f in found.items()} == {n: f[-1] for n, f in before.items()}
        assert winkfs.verify(base).problems == []
    winkfs.open(base, "a").close()
    assert not list(tmp_path.glob("*.data.tmp"))


def test_readers_go_on(tmp_path: Path) -> None:
    base = tmp_path / "c"
    live(base, random.Random(6), {})
    before = state(base)
    with winkfs.open(base) as reader:
        entries = list(reader.scan())
        compact(base)
        assert {e.name: e.read() for e in entries} == {n: f[-1] for n, f in before.items()}
        time.sleep(0.1)
        assert {name: reader.read(name) for name in before} == {n: f[-1] for n, f in before.items()}


def test_page_cache_is_as_it_was(tmp_path: Path) -> None:
    base = Path(os.environ.get("WINKFS_TEST_DISK", tmp_path)) / "cached"
    with winkfs.create(base) as c:
        c.put_many((f"{i}", bytes(5000)) for i in range(4000))
        for i in range(0, 4000, 2):
            c.delete(f"{i}")
    with FileStorage(f"{base}.data") as storage:
        storage.sync()
        pagecache.drop(storage.fd, 0, storage.size())
        absent = pagecache.absent(storage.fd, storage.size())
        if absent is None or not absent.all():
            pytest.skip("this filesystem does not drop pages")
    compact(base)
    with FileStorage(f"{base}.data") as storage:
        absent = pagecache.absent(storage.fd, storage.size())
        assert absent is not None and (~absent).sum() < 512  # 2 MiB of 10
    for path in base.parent.glob("cached.*"):
        path.unlink()


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
    said = commands.one_line(run("compact", "--order", order, "link"))
    assert "BASE.data is a symbolic link" in said
    assert Path("link.data").is_symlink()
    assert run("compact", corpus).status == 0
    with winkfs.open("link") as c:
        assert c.read("49") == b"x" * 1000
