"""A read-only mount while another process writes: a snapshot, or following. Holes. Memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from container_checks import delete
from mounting import refused
from seam import disk_calls, refusing
from sources import at, contents, listed, made, opened, walk
from sources import sources_end as sources_end  # a fixture
from stored import make

import winkfs
from winkmount.source import run_steps

BIG = bytes(range(256)) * 12_000  # three entries


pytestmark = pytest.mark.in_memory


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "c")


def fill(base: str) -> None:
    with winkfs.create(base) as container:
        container.put_many((f"d{i % 5}/{i}", b"%d" % i * 100) for i in range(200))
        container.put("big", BIG)
        container.put("private", b"p", mode=0o600, uid=7, gid=8)


def change_everything(base: str) -> None:
    """Each kind of change, with syncs between, delflags set, and derived files made anew."""
    with winkfs.open(base, "a") as container:
        for i in range(0, 200, 4):
            container.delete(f"d{i % 5}/{i}")
            container.rename(f"d{(i + 1) % 5}/{i + 1}", f"moved/{i}")
            container.put(f"d{(i + 2) % 5}/{i + 2}", b"replaced")
            container.append(f"d{(i + 3) % 5}/{i + 3}", b"appended")
        container.sync()
        container.write("big", 1_500_000, b"overwritten")
        container.chmod("private", 0o644)
        container.put_many((f"new/{i}", b"new") for i in range(1000))
    winkfs.reindex(base)
    delete(base, "big")


def test_snapshot_while_another_process_changes_everything(base: str) -> None:
    fill(base)
    early, late = opened(base, "r"), opened(base, "r")
    before = contents(early)
    attr = early.lookup(early.root, b"private")
    change_everything(base)
    for view in early, late:  # one that has read it all before, and one that has not
        assert contents(view) == before
        assert view.lookup(view.root, b"private") == attr
        assert dict(view.facts(at(view, "d1/1")))["fileid"] == str(at(view, "d1/1"))
        view.close()
    now = contents(opened(base, "r"))
    assert b"big" not in now and now[b"moved/0"] == before[b"d1/1"]


def test_following_shows_each_sync_and_nothing_between(base: str) -> None:
    fill(base)
    view = opened(base, "r")
    with winkfs.open(base, "a") as container:
        container.put("d1/1", b"changed")
        container.delete("big")
        container.put_many([("only/deep/x", b"x"), ("file", b"f")])
        before = contents(view)
        assert not view.refresh()
        container.sync()
        assert contents(view) == before
        assert view.refresh()
        now = contents(view)
        assert now.keys() == before.keys() - {b"big"} | {b"only/deep/x", b"file"}
        assert now[b"d1/1"] == b"changed"
        container.delete("only/deep/x")
        container.sync()
        assert view.refresh() and not view.refresh()
        with refused(errno.ENOENT):  # nothing keeps a directory without names
            view.lookup(view.root, b"only")


def test_a_following_mount_switches_to_a_replaced_container(base: str, tmp_path: Path) -> None:
    fill(base)
    view = opened(base, "r")
    handle = view.opendir(view.root)
    entries = view.readdir(handle, 0)
    next(entries)
    other = str(tmp_path / "other")
    make(other, {"a/b": b"another"})
    for suffix in (".idx", ".data"):
        os.replace(other + suffix, base + suffix)
    assert view.refresh()
    assert contents(view) == {b"a/b": b"another"}
    list(entries)  # of the old one: whatever, but no crash
    view.releasedir(handle)
    assert listed(view, view.root) == [b"a"]


def test_a_writing_mount_does_not_follow(base: str) -> None:
    fill(base)
    view = opened(base)
    assert not view.refresh()


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("classic", [False, True])
def test_holes_are_zeros_and_are_found(base: str, stored: bool, classic: bool) -> None:
    """classic: no holes, but the same bytes."""
    winkfs.create(base, classic=classic).close()
    view = opened(base)
    id = view.create(view.root, b"f", 0o644, 0, 0).id
    view.open(id, write=True, truncate=False)
    view.write(id, [(0, b"a" * 100_000), (300_000, b"b" * 100_000)], 5)
    if stored:
        run_steps(view.syncing(None))
    view.punch(id, 50_000, 20_000)
    view.punch(id, 390_000, 10_000)
    expected = bytearray(b"a" * 100_000 + bytes(200_000) + b"b" * 100_000)
    expected[50_000:70_000] = bytes(20_000)
    expected[390_000:] = bytes(10_000)
    for again in range(2):
        assert view.read(id, 0, 1 << 20) == expected
        assert view.stat(id).size == 400_000
        if not classic:
            assert view.seek(id, 0, hole=True) == 50_000
            assert view.seek(id, 60_000, hole=False) == 70_000
            assert view.seek(id, 100_000, hole=False) == 300_000
            assert view.seek(id, 300_000, hole=True) in (390_000, 400_000)
            assert "20000@hole" in view.facts(id)["extents"]
        with refused(errno.ENXIO):
            view.seek(id, 400_000, hole=False)
        if not again:
            view.release(id)
            view.close()
            view = opened(base)
            id = at(view, "f")
    view.close()
    assert winkfs.verify(base).problems == []


def test_a_hole_at_the_end_has_no_data_behind_it(base: str) -> None:
    view = opened(made(base))
    id = view.create(view.root, b"f", 0o644, 0, 0).id
    view.write(id, [(0, b"x")], 5)
    view.truncate(id, 1000)
    assert view.seek(id, 5, hole=True) == 5
    with refused(errno.ENXIO):
        view.seek(id, 5, hole=False)


def test_created_files_are_not_written_before_they_have_to_be(base: str) -> None:
    """A file created, written and removed between two syncs leaves nothing in the container."""
    view = opened(made(base))
    with disk_calls() as calls:
        for i in range(100):
            id = view.create(view.root, b"%d" % i, 0o640, 5, 6).id
            view.write(id, [(0, b"x" * 1000)], 5)
            view.rename(view.root, b"%d" % i, view.root, b"r%d" % i)
        for i in range(99):
            view.unlink(view.root, b"r%d" % i)
    assert not [call for call in calls if call.verb in ("write", "patch")]
    assert view.status()["unsynced_bytes"] == 1000
    run_steps(view.syncing(None))
    assert view.status()["unsynced_bytes"] == 0
    view.close()
    assert winkfs.verify(base).problems == []
    with winkfs.open(base) as container:
        assert [(e.name, e.size, e.mode, e.uid) for e in container.scan()] == [
            ("r99", 1000, 0o640, 5)
        ]


def test_a_broken_disk_leaves_no_names_of_lost_files(base: str) -> None:
    """What could not be written is lost, but the directory it was in can be removed."""
    view = opened(made(base))
    directory = view.mkdir(view.root, b"d", 0o755, 0, 0).id
    run_steps(view.syncing(None))
    id = view.create(directory, b"f", 0o644, 0, 0).id
    view.write(id, [(0, b"x" * 1000)], 5)
    with disk_calls(refusing("write", ".data")), refused(errno.EIO):
        run_steps(view.syncing(None))
    assert listed(view, directory) == []
    view.create(view.root, b"h", 0o644, 0, 0)
    view.rmdir(view.root, b"d")
    view.close()
    assert winkfs.verify(base).problems == []
    assert walk(opened(base, "r")) == {b"h"}


MEMORY = """
import sys
import winkfs
from winkfs.mounting.container import ContainerSource

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

view = ContainerSource(winkfs.open(sys.argv[1], "r"))
opened = anonymous()
count = 0
for name in (b"many", b"deep"):
    handle = view.opendir(view.lookup(view.root, name).id)
    for entry in view.readdir(handle, 0):
        count += 1
    view.releasedir(handle)
many = view.lookup(view.root, b"many").id
for i in range(0, int(sys.argv[2]), 5):
    view.places.use(many) if i == 0 else None
    view.lookup(many, b"%07d" % i)
print(count, opened >> 10, anonymous() >> 10)
"""


@pytest.mark.long
@pytest.mark.slow
def test_many_names_cost_little_memory(base: str, amount: Callable[[str], int]) -> None:
    """Objects of a tree would take 300 bytes a name, 114 MiB for the least number here."""
    names = amount("memory")
    with winkfs.create(base) as container:
        container.put_many((f"many/{i:07}", b"x") for i in range(names))
        container.put_many((f"deep/{i}/{j}", b"x") for i in range(100) for j in range(20))
        container.save_catalog()
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, base, str(names)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, opened_mib, mib = map(int, done.stdout.split())
    assert count == names + 100
    assert opened_mib < 48
    assert mib < 64
