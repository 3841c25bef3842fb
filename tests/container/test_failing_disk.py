"""Disks that fail or are full, and syncs in steps: what the simulated lives do not show.

Those have the random part, calls that fail, power cuts and shortages of room: see
`simulated/test_power_cuts.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from container_checks import assert_sound, contents, contents_of, files_of, names_of, path_of, put
from container_checks import variant as variant  # a fixture
from drawn import examples
from oracle_recipes import RECIPES
from seam import CHANGES, Call, disk_calls, once, refusing
from simulated.disk import Event, SimulatedDisk
from stored import make

import winkfs
from winkformats.disk import pagecache
from winkfs import Container
from winkmount.source import run_steps

Files = dict[str, bytes]
Model = dict[bytes, bytes]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make(tmp_path / "c", {"old": b"acknowledged"})
    return tmp_path / "c"


def refused(*calls: Callable[[], object], match: str | None = "Input/output error") -> None:
    for call in calls:
        with pytest.raises(OSError, match=match):
            call()


# --- a sync that fails is final: nothing is acknowledged over what it may have dropped ---


def failed_sync(c: Container, at: int = 1) -> None:
    """A sync whose fdatasync of BASE.data number `at` fails."""
    with disk_calls(once("sync", ".data", fail, nth=at)):
        refused(c.sync)


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("at", [1, 2])  # of the entries, of the superblock
def test_no_later_call_succeeds(base: Path, at: int) -> None:
    c = winkfs.open(base, "a")
    c.put("new", b"1")
    failed_sync(c, at)
    for again in (c.sync, lambda: c.put("x", b""), lambda: c.put_many([("y", b"")]),
                  lambda: c.delete("old"), c.save_catalog):  # fmt: skip
        with pytest.raises(OSError, match=r"a sync failed .* open it again") as caught:
            again()
        assert "\n" not in str(caught.value)
    assert c.read("old") == b"acknowledged"
    refused(c.close, match="a sync failed")
    c.close()  # it is closed all the same
    found = files_of(base)
    assert found == {"old": b"acknowledged"} | ({"new": b"1"} if at == 2 else {})
    with winkfs.open(base, "a") as again_open:  # the lock is free
        again_open.put("after", b"2")
    assert files_of(base) == found | {"after": b"2"}
    assert winkfs.verify(base).problems == []


def test_nothing_is_written_over_what_was_dropped(base: Path) -> None:
    """The kernel marks the pages clean: a later fdatasync would succeed without them."""
    before = path_of(base, ".data").read_bytes()
    with pytest.raises(OSError, match="a sync failed"), winkfs.open(base, "a") as c:
        c.put("new", b"x" * 100_000)
        failed_sync(c)
    assert path_of(base, ".data").read_bytes()[: len(before)] == before


def test_a_handle_that_only_reads_what_it_had_goes_on(base: Path) -> None:
    c = winkfs.open(base, "a")
    c.put("draft", b"never written")
    c.append("draft", b", either")
    failed_sync(c)
    assert list(c.names()) == ["old"]
    assert "draft" not in c and len(c) == 1
    assert list(c.get_many(["old"])) == [b"acknowledged"]
    refused(c.close, match="a sync failed")


@pytest.mark.parametrize(
    ("call", "end"), [("sync", ".idx.tmp"), ("rename", ".idx"), ("directory sync", "")]
)
def test_a_failed_derived_file_is_reported_and_loses_nothing(
    base: Path, call: str, end: str
) -> None:
    c = winkfs.open(base, "a")
    c.put("new", b"1")
    with disk_calls(refusing(call, end)) as calls:
        c.close()  # the data is as durable as ever
    assert call in {made.verb for made in calls}
    assert [note for note in c.notes if "a derived file was not written" in note]
    assert files_of(base) == {"old": b"acknowledged", "new": b"1"}
    assert winkfs.reindex(base) == 2


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classic", [False, True])
def test_delflags_that_a_failed_sync_has_dropped_are_set_again(classic: bool, seed: int) -> None:
    """The next writer sees them in the page cache."""
    disk = SimulatedDisk(seed, evicts=False)
    base = f"{disk.path}/c"
    c = winkfs.create(base, classic=classic)
    c.put_many((f"n{i}", b"first") for i in range(300))
    c.sync()
    c.put_many((f"n{i}", b"second") for i in range(40))
    c.sync()  # sets the delflags of the first
    c.put("lost", b"")
    disk.arm("sync")
    refused(c.sync, c.close)
    put(base, "after", b"")
    image = disk.crash()
    assert winkfs.verify(f"{image.path}/c").problems == []


@pytest.mark.slow
@pytest.mark.parametrize("classic", [False, True])
def test_an_empty_sync_makes_what_the_writer_found_durable(classic: bool) -> None:
    """It may be of a sync that failed, and in the page cache alone."""
    for seed in range(20):
        disk = SimulatedDisk(seed, evicts=False)
        c = winkfs.create(f"{disk.path}/c", classic=classic)
        c.put("a", b"1")
        c.sync()
        c.put("b", b"2")
        disk.arm("sync", 2)  # of the superblock
        refused(c.sync, c.close)
        with winkfs.open(f"{disk.path}/c", "a") as after:
            found = list(after.names())
            after.sync()
            image = disk.crash()
        assert names_of(f"{image.path}/c") == found == ["a", "b"]


@pytest.mark.slow
def test_no_delflag_follows_from_an_unsynced_superblock() -> None:
    """That of a sync that failed: the next writer finds it, and what it supersedes."""
    for seed in range(examples(12)):
        disk = SimulatedDisk(seed, evicts=False)
        c = winkfs.create(f"{disk.path}/c")
        c.put_many((f"n{i}", b"first") for i in range(8))
        c.sync()
        c.put_many((f"n{i}", b"second") for i in range(8))
        disk.arm("sync", 2)  # of the superblock
        refused(c.sync, c.close)
        images: list[SimulatedDisk] = []
        disk.watch = lambda event: images.append(disk.crash())  # noqa: B023
        winkfs.open(f"{disk.path}/c", "a").close()
        disk.watch = None
        for image in images:
            assert winkfs.verify(f"{image.path}/c").problems == []
            with winkfs.open(f"{image.path}/c") as reader:
                found = {reader.read(name) for name in reader.names()}
                assert len(reader) == 8 and found in ({b"first"}, {b"second"})


def test_a_sync_behind_a_write_that_failed_asks_the_disk_again() -> None:
    """What it lost is gone, so there is nothing to sync; another try does not report success
    while the disk refuses everything."""
    disk = SimulatedDisk(1)
    make(f"{disk.path}/c", ((f"n{i}", b"old") for i in range(3000)))
    c = winkfs.open(f"{disk.path}/c", "a")
    c.put("synced", b"1")
    c.sync()
    c.put("new", b"1")
    for call in ("write", "sync"):
        disk.arm(call, 1, errno.EIO, for_good=True)
    refused(c.sync, c.sync, c.sync, c.close)


# --- a small disk of the kernel ---


class ThinDisk:
    """ext4 without a journal on a loop device, whose backing store is on a small tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.store, self.mounted = folder / "store", folder / "disk"
        self.filler = self.store / "filler"
        self.image = self.store / "image"
        self.store.mkdir()
        self.mounted.mkdir()
        self.run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self.store)
        self.run("truncate", "-s", "64M", self.image)
        self.run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", self.image)
        self.mount()

    def run(self, *command: object) -> None:
        subprocess.run([str(c) for c in command], check=True, capture_output=True, timeout=60)

    def mount(self) -> None:
        self.run("mount", "-o", "loop", self.image, self.mounted)

    def remount(self) -> None:
        """What the page cache held and the disk did not take is gone after this."""
        self.run("umount", self.mounted)
        self.mount()

    def fill(self) -> None:
        free = os.statvfs(self.store)
        with self.filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)

    def close(self) -> None:
        self.filler.unlink(missing_ok=True)
        for path in (self.mounted, self.store):
            subprocess.run(["umount", "-l", path], capture_output=True, check=False)


@pytest.fixture
def thin(tmp_path: Path) -> Iterator[ThinDisk]:
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and mkfs.ext4")
    disk = None
    try:
        disk = ThinDisk(tmp_path)
    except subprocess.CalledProcessError as error:
        subprocess.run(["umount", "-l", tmp_path / "store"], capture_output=True, check=False)
        pytest.skip(f"no loop devices here: {error.stderr.decode(errors='replace').strip()}")
    yield disk
    disk.close()


@pytest.mark.slow
def test_a_briefly_full_backing_disk_loses_nothing_acknowledged(
    thin: ThinDisk, variant: dict[str, Any]
) -> None:
    base = thin.mounted / "c"
    acknowledged: Files = {"first": os.urandom(100_000)}
    make(base, {"first": acknowledged["first"]}, **variant)
    thin.remount()
    failed = 0
    thin.fill()
    for round_ in range(6):
        if round_ == 3:
            thin.filler.unlink()  # there is room again
        writes = {f"r{round_}/{i}": os.urandom(300_000) for i in range(4)}
        try:
            c = winkfs.open(base, "a")
        except OSError:
            failed += 1
            continue
        try:
            for name, content in writes.items():
                c.put(name, content)
            c.sync()
            acknowledged |= writes
            c.put("later", b"%d" % round_)
            c.sync()
            acknowledged["later"] = b"%d" % round_
        except OSError:
            failed += 1
            refused(c.sync, c.sync, c.sync, match=None)  # it never acknowledges again
        try:
            c.close()
        except OSError:
            failed += 1
    assert failed, "the disk was never full: the test shows nothing"
    thin.remount()
    found = files_of(base)
    lost = {name for name, content in acknowledged.items() if found.get(name) != content}
    assert not lost
    assert winkfs.verify(base).problems == []


@pytest.mark.slow
def test_a_failure_seen_while_dropping_pages_fails_the_sync(
    thin: ThinDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without RWF_DONTCACHE. The kernel reports each failure once to a descriptor."""
    dropped = []
    write, drop = os.pwritev, pagecache.drop

    def without(fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return write(fd, buffers, offset)

    def note(fd: int, start: int, stop: int) -> int:
        dropped.append(drop(fd, start, stop))
        return dropped[-1]

    monkeypatch.setattr(os, "pwritev", without)
    base = thin.mounted / "c"
    make(base, {"first": b"1"})
    thin.remount()
    c = winkfs.open(base, "a")
    c.put("second", b"2")
    c.sync()
    thin.fill()
    filler = (thin.store / "rest").open("wb", buffering=0)
    with filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    monkeypatch.setattr(pagecache, "drop", note)
    files = {f"n{i}": os.urandom(1 << 19) for i in range(40)}
    for i, (name, data) in enumerate(files.items()):
        c.put(name, data)
        c.store.kv.flush()
        c.store.kv.drain()
        if i == 8:
            time.sleep(1)  # it is being written back, in vain
            thin.filler.unlink()
            (thin.store / "rest").unlink()
        if dropped:
            break
    assert dropped[0], "the disk was never full: the test shows nothing"
    refused(c.sync, c.close, match=None)
    thin.remount()
    assert files_of(base) == {"first": b"1", "second": b"2"}


# --- each call fails in turn ---


class Faults:
    """Calls that change something on the disk, counted; number `at` fails, or all from it on."""

    def __init__(self) -> None:
        self.arm(0)

    def __call__(self, call: Call) -> None:
        if call.verb in CHANGES:
            self.count += 1
            if self.at and (self.count == self.at or (self.for_good and self.count > self.at)):
                self.failed = self.failed or call.verb
                fail()

    def arm(self, at: int, for_good: bool = False) -> None:
        self.at, self.count, self.for_good, self.failed = at, 0, for_good, ""


@pytest.fixture
def faults() -> Iterator[Faults]:
    with disk_calls(faults := Faults(), reads=False):
        yield faults


def steps(c: Container, ao: bool) -> list[tuple[Callable[[], object], dict[str, bytes | None]]]:
    """Return what is done in turn, and the names it changes: content, or None: removed."""
    many = {f"many{i}": b"%d" % (i + 10) * 15_000 for i in range(15)}
    large, more = b"large" * 500_000, b"+" * 2_000_000
    begin: list[tuple[Callable[[], object], dict[str, bytes | None]]] = [
        (lambda: c.put("new", b"1"), {"new": b"1"}),
        (lambda: c.put_many(many.items()), {**many}),
        (lambda: c.put("large", large), {"large": large}),
        (c.sync, {}),
        (lambda: c.put_many([("old1", b"b"), ("many5", b"a")]), {"old1": b"b", "many5": b"a"}),
        (lambda: c.delete("old2"), {"old2": None}),
    ]
    change: list[tuple[Callable[[], object], dict[str, bytes | None]]] = [
        (lambda: c.append("old3", more), {"old3": b"3" * 50 + more}),
        (lambda: c.rename("old4", "old5"), {"old5": b"4" * 50, "old4": None}),
        (lambda: c.write("large", 9, b"X"), {"large": large[:9] + b"X" + large[10:]}),
    ]
    return [*begin, *([] if ao else change), (c.sync, {}), (c.close, {})]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.in_memory
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_each_call_to_the_disk_fails_in_turn(
    for_good: bool,
    variant: dict[str, bool],
    base: Path,
    faults: Faults,
    every: Callable[[str], slice],
) -> None:
    """One OSError; what was synced is there; with a sound disk the handle goes on, or a new one."""
    chosen = every("failing calls")
    for at in itertools.count(1 + chosen.start, chosen.step):
        faults.arm(0)
        for path in base.parent.iterdir():
            path.unlink()
        container = winkfs.create(base, **variant)
        wanted: Model = {b"old%d" % i: b"%d" % i * 50 for i in range(6)}
        container.put_many(wanted.items())
        container.sync()
        reached = synced = wanted
        faults.arm(at, for_good)
        failed_at = ""
        for step, changes in steps(container, variant.get("ao", False)):
            changed = wanted | {name.encode(): data for name, data in changes.items()}
            wanted = {name: data for name, data in changed.items() if data is not None}
            try:
                step()
            except OSError as error:
                assert error.errno == errno.EIO, error
                failed_at = f"call {at}, {faults.failed}"
                break
            reached = wanted
            if not changes:
                synced = wanted
        failed, _ = faults.failed, faults.arm(0)
        if failed_at:
            assert_goes_on(container, reached, wanted, synced, failed_at)
        elif failed:  # a derived file, or the second superblock, which the next writer makes
            put(base, "old0", wanted[b"old0"])
            assert_sound(base, wanted)
        else:
            break
    assert at > 10


def assert_goes_on(
    container: Container, reached: Model, wanted: Model, synced: Model, failed_at: str
) -> None:
    """reached: before the failing step, wanted: after it; synced: what had been promised."""
    base = Path(container.base)
    kept = dict(synced.items() & reached.items() & wanted.items())
    seen = contents_of(base)
    assert kept.items() <= seen.items(), failed_at
    try:
        container.put("after", b"1")
        container.sync()
        found = contents(container)
        container.close()
    except (OSError, ValueError):  # the handle gave up: a new one goes on
        with suppress(OSError, ValueError):
            container.close()
        with winkfs.open(base, "a") as again:
            again.put("after", b"1")
            found = contents(again)
    assert found.pop(b"after") == b"1"
    assert kept.items() <= found.items(), failed_at
    for name, data in found.items():
        assert data in (synced.get(name), reached.get(name), wanted.get(name)), (failed_at, name)
    try:
        assert_sound(base, found | {b"after": b"1"})
    except Exception as error:
        raise AssertionError(failed_at) from error


# --- a recovery ---


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.in_memory
@pytest.mark.parametrize("name", ["unclean", "unclean_flags_unset", "unclean_append_only"])
def test_each_change_of_a_recovery_fails_in_turn(name: str, base: Path) -> None:
    """What a dead writer left is finished in the end, however often the first try fails."""
    for at in itertools.count(1):
        for path in base.parent.iterdir():
            path.unlink()
        model = {key: file.content for key, file in RECIPES[name](base).items()}
        failing = disk_calls(once(CHANGES, "", fail, nth=at), reads=False)
        with failing as calls, suppress(OSError):
            winkfs.open(base, "a").close()
        assert contents_of(base) == model
        winkfs.open(base, "a").close()
        assert_sound(base, model)
        if len([call for call in calls if call.verb in CHANGES]) < at:
            break
    assert at > 5


# --- a sync in steps, with changes and other syncs between them ---


def test_a_failed_step_is_final(tmp_path: Path) -> None:
    base = tmp_path / "c"
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    container.put("b", b"2")
    steps = container.syncing()
    wait = next(steps)
    with disk_calls(refusing("sync")), pytest.raises(OSError, match="Input/output") as caught:
        wait()
    refused(lambda: steps.throw(caught.value))
    refused(
        container.sync, lambda: container.put("c", b"3"), container.syncing().__next__, match=None
    )
    assert container.read("a") == b"1"
    assert "b" not in container
    refused(container.close, match=None)
    assert files_of(base, "a") == {"a": b"1"}


def test_delflags_of_what_came_during_a_sync_wait_for_the_next(tmp_path: Path) -> None:
    """Else a power cut could leave the old inode marked, and not the new one."""
    base = tmp_path / "c"
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    store = container.store
    old = store.index.lookup(b"a/I0")
    container.put("b", b"2")
    steps = container.syncing()
    wait = next(steps)
    container.put("a", b"11")
    wait()
    run_steps(steps)
    assert not store.kv.get(old).deleted
    container.sync()
    assert store.kv.get(old).deleted
    container.close()
    assert winkfs.verify(base).problems == []


def test_a_running_sync_keeps_its_published_flags_from_another() -> None:
    """The second version is durable, but the sync has not ended; the third one is on its way."""
    disk = SimulatedDisk(1)
    base = f"{disk.path}/c"
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    container.put("a", b"22")
    steps = container.syncing()
    next(steps)()
    next(steps)()
    container.put("a", b"333")
    images: list[SimulatedDisk] = []

    def cut(event: Event) -> None:
        if event.call == "sync" and not images:
            images.extend(disk.crash() for _ in range(30))

    disk.watch = cut
    container.sync()
    disk.watch = None
    for image in images:
        assert files_of(f"{image.path}/c") == {"a": b"22"}
    assert next(steps, None) is None
    container.close()
    assert files_of(base) == {"a": b"333"}
    assert winkfs.verify(base).problems == []
