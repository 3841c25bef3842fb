"""Power cuts at any moment of many random lives: see lives.py."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from constants import leave_tails, make_chains, shrink
from container_checks import delete, files_of
from drawn import examples
from lives import VARIANTS, Life
from simulated.disk import Event, SimulatedDisk
from simulated.harness import repeatable
from stored import make

import winkfs
from winkformats.disk.paths import locate
from winkformats.disk.storage import Storage
from winkformats.kv import sequence
from winkformats.kv.superblock import HALF, Superblock, superblocks, write_first
from winkfs.container.compact import compact
from winkfs.container.datafile import create_files
from winkfs.container.ondisk.data import new_superblock
from winkfs.errors import NotAllowed
from winkfs.mounting.container import ContainerSource
from winkmount.source import run_steps

pytestmark = pytest.mark.slow

# kind -> (images with --all, a quarter of them in the suite; with --soak). The 10th life of "plain"
# shows that data were not synced, which few do, and the 11th that a rename has left no tombstone:
# see mutants.py.
IMAGES = {
    "plain": (240, 22_000),
    "ao": (60, 22_000),
    "classic": (100, 20_000),
    "plain md5": (100, 10_000),
    "columns": (40, 20_000),
    "zstd": (80, 20_000),
    "interrupts": (60, 20_000),
    "mount": (80, 20_000),
    "full": (60, 10_000),
    "full ao": (80, 10_000),
    "full classic": (80, 10_000),
    "steps": (60, 10_000),
    "large": (60, 10_000),
    "large ao": (80, 10_000),
    "large classic": (80, 10_000),
    "data set": (20, 8_000),
    "data set zstd": (40, 4_000),
    "data set columns": (40, 4_000),
}


# An interrupt may come where a file was just opened, or while what was left is collected.
INTERRUPTED = (
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)
COMBINED = ("plain md5", "full ao", "full classic", "large ao", "large classic", "data set zstd",
            "data set columns")  # fmt: skip
MARKS = {"interrupts": INTERRUPTED, **dict.fromkeys(COMBINED, (pytest.mark.long,))}


@pytest.mark.soak
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in VARIANTS],
)
def test_every_image_shows_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """No more than a sync is missing or too many; every image opens and verifies."""
    wanted, many = IMAGES[kind]
    Life.lives(kind, seed + 7 if kind == "plain" else seed, many if soak else examples(wanted))


@pytest.mark.few(3)
@pytest.mark.soak
@pytest.mark.parametrize(
    ("small", "kind", "images"),
    [(leave_tails, kind, (20, 5000)) for kind in ("plain", "ao", "mount")]
    + [(make_chains, kind, (20, 20_000)) for kind in ("plain", "mount", "zstd")],
)
def test_every_image_of_what_else_only_large_containers_have(
    small: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    images: tuple[int, int],
    seed: int,
    soak: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closes that leave tails; inodes that build on others."""
    small(monkeypatch)
    Life.lives(kind, seed, images[soak])


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(1)


@pytest.fixture
def base(disk: SimulatedDisk) -> str:
    return f"{disk.path}/c"


def test_a_container_that_was_made_is_there(disk: SimulatedDisk) -> None:
    create_files(f"{disk.path}/c", new_superblock(ao=False, timemp=60, classic=False, htalgo=None))
    for _ in range(50):
        image = disk.crash()
        assert files_of(f"{image.path}/c") == {}


def test_a_torn_second_superblock_restores_nothing_unsynced(disk: SimulatedDisk) -> None:
    """The second is written after the sync, so it may be torn while more is being written."""
    with winkfs.create(f"{disk.path}/c") as container:
        container.put("a", b"acknowledged")
        container.sync()
        container.put("b", b"not yet")
        assert container.read("b") == b"not yet"  # from the file
        image = disk.clone()
    base = f"{image.path}/c"
    assert list(files_of(base)) == ["a"]
    with locate(base)[0].open("c.data", "w") as storage:
        storage.patch(HALF + 100, b"torn")
    assert list(files_of(base)) == ["a"]


def test_a_late_second_superblock_is_renewed_first(
    disk: SimulatedDisk, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut between the two, a torn write of the first would cost the last sync."""
    with winkfs.create(base) as container:
        container.put("a", b"1")
        container.sync()
        with locate(base)[0].open("c.data", "r") as storage:
            old = storage.read(HALF, 512)
        container.put("b", b"2")
        container.sync()
    with locate(base)[0].open("c.data", "w") as storage:
        storage.patch(HALF, old)
    seen: list[list[int]] = []

    def looked(storage: Storage, block: Superblock) -> None:
        seen.append([block["SBSEQ"], *(found["SBSEQ"] for found in superblocks(storage))])
        write_first(storage, block)

    monkeypatch.setattr(sequence, "write_first", looked)
    with winkfs.open(base, "a") as container:
        container.put("c", b"3")
    assert seen and all(len(set(numbers)) == 1 for numbers in seen)
    assert list(files_of(base)) == ["a", "b", "c"]


@pytest.mark.parametrize("replayed", [True, False])
def test_a_write_that_fails_leaves_the_counters_of_the_last_sync(
    replayed: bool, disk: SimulatedDisk, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted anew is right before the superblock says that it is."""
    shrink(monkeypatch, "the index", replayed=1 if replayed else 1 << 30)
    images: list[SimulatedDisk] = []
    with winkfs.create(base) as container:
        container.put("a", b"acknowledged")
        container.sync()
        disk.arm("write", 1, errno.ENOSPC)  # before a thread can write
        with pytest.raises(OSError, match="No space left"):
            container.put_many([("b", b"1"), ("c", b"2")])
            container.sync()
        disk.watch = lambda event: images.append(disk.clone())
        assert container.read("a") == b"acknowledged"
        assert bool(images) == (not replayed)
        container.put("d", b"3")
        container.sync()
        disk.watch = None
    assert images
    for image in images:
        assert winkfs.verify(f"{image.path}/c").problems == []


@pytest.mark.parametrize("how", ["interrupted", "failed"])
@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_sync_without_its_superblock_counts_only_when_repeated(
    end: str, how: str, disk: SimulatedDisk
) -> None:
    """Its entries are on the disk: they must not be the last of the file."""
    container = winkfs.create(f"{disk.path}/c")
    container.put("a", b"1")
    container.sync()
    container.put_many((name, name.encode() * 3000) for name in "bcd")

    def stop(event: Event) -> None:
        if event.call == "write" and event.offset == 0:
            disk.watch = None
            raise KeyboardInterrupt if how == "interrupted" else OSError(errno.EIO, "no")

    disk.watch = stop
    with pytest.raises((KeyboardInterrupt, OSError)):
        container.sync()
    assert disk.watch is None
    with suppress(OSError):
        getattr(container, end)()
    expected = ["a", "b", "c", "d"] if end == "close" else ["a"]
    for image in [disk.clone(), *(disk.crash() for _ in range(20))]:
        with winkfs.open(f"{image.path}/c") as reader:
            assert list(reader.names()) == expected
            assert reader.notes == []


def test_entries_known_to_the_index_alone_are_kept_by_reindex(
    disk: SimulatedDisk, base: str
) -> None:
    make(base, {"a": b"1"})
    directory, name = locate(base)
    with directory.open(f"{name}.data") as storage:
        older = storage.read(0, 2 * HALF)
    with winkfs.open(base, "a") as container:
        container.delete("a")
        container.put("b", b"2")
    with directory.open(f"{name}.data", "w") as storage:
        storage.preallocate(1 << 20)
        storage.write(0, [older])  # the write of the superblock is lost, and it was not synced
    assert winkfs.verify(base).problems == []
    assert winkfs.reindex(base) == 1
    assert list(files_of(base)) == ["b"]
    assert winkfs.verify(base).problems == []


def test_a_file_whose_name_may_not_be_durable_is_not_writable(
    disk: SimulatedDisk, base: str
) -> None:
    """After a failed sync of a directory a later one says nothing about the names before."""
    with winkfs.create(base) as container:
        container.put("a", b"1")
        container.put("b", b"2")
    disk.watch = lambda event: event.call == "rename" and disk.arm("directory sync", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        compact(base)
    disk.watch = None
    assert files_of(base) == {"a": b"1", "b": b"2"}
    with pytest.raises(NotAllowed, match="run winkfs compact again"):
        winkfs.open(base, "a")
    compact(base)
    delete(base, "a")
    for _ in range(50):
        image = disk.crash()
        assert list(files_of(f"{image.path}/c")) == ["b"]


def test_a_second_superblock_torn_by_a_failed_sync_is_rewritten() -> None:
    """The next writer finds both whole in the page cache, and writes the first."""
    for seed in (19, 20, 23, 26, 29):  # which leave it torn
        disk = SimulatedDisk(seed, torn=1)
        base = f"{disk.path}/c"
        images: list[SimulatedDisk] = []
        with suppress(OSError), winkfs.create(base) as container:
            container.put("a", b"1")
            container.sync()
            disk.arm("sync", 1, errno.EIO)
            container.put("b", b"2")
            container.sync()
        with winkfs.open(base, "a") as container:
            container.put("c", b"3")
            disk.watch = partial(_at_a_sync, disk, images)
            container.sync()
            disk.watch = None
        for image in images:
            assert "a" in files_of(f"{image.path}/c")


def _at_a_sync(disk: SimulatedDisk, images: list[SimulatedDisk], event: Event) -> None:
    if event.call == "sync":
        images.extend(disk.crash() for _ in range(4))


def mounted(base: str, *names: bytes) -> ContainerSource:
    """A container with these files, opened anew."""
    source = ContainerSource(winkfs.create(base))
    for name in names:
        source.create(source.root, name, 0o644, 0, 0)
    source.close()
    return ContainerSource(winkfs.open(base, "a"))


@pytest.mark.parametrize("call", ["write", "truncate", "create"])
def test_a_half_failed_mount_change_is_in_the_name_order(
    call: str, disk: SimulatedDisk, base: str
) -> None:
    with repeatable(1):
        source = mounted(base, b"a", b"b")
        id = source.lookup(source.root, b"b").id
        disk.arm("preallocate", 1, errno.EIO)
        with suppress(OSError):
            if call == "write":
                source.write(id, [(0, bytes(3000))], 1)
            elif call == "truncate":
                source.truncate(id, 3000)
            else:
                source.symlink(source.root, b"c", b"target", 0, 0)
        disk.arm("preallocate", 0)
        source.close()
        assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("asked", [True, False])
def test_a_name_restored_by_a_failed_sync_is_in_the_name_order(
    asked: bool, disk: SimulatedDisk, base: str
) -> None:
    with repeatable(1):
        source = mounted(base)
        source.create(source.root, b"new", 0o644, 0, 0)
        run_steps(source.syncing(None))
        source.unlink(source.root, b"new")
        disk.arm("write", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            run_steps(source.syncing(None))
        assert not asked or source.lookup(source.root, b"new")
        source.close()
        assert winkfs.verify(base).problems == []


class Killed(BaseException):
    pass


def test_a_writer_makes_the_name_of_its_file_durable(disk: SimulatedDisk, base: str) -> None:
    """A compaction that is killed just before its last sync leaves a name that is not."""
    make(base, {"a": b"1"})
    seen: list[str] = []

    def kill(event: Event) -> None:
        if event.call == "directory sync" and seen[-1:] == ["rename"]:
            raise Killed
        seen.append(event.call)

    disk.watch = kill
    with pytest.raises(Killed):
        compact(base)
    disk.watch = None
    disk.arm("create", 1, errno.ENOSPC, for_good=True)  # no index, which would sync the directory
    with winkfs.open(base, "a") as container:
        container.put("b", b"2")
        container.sync()
        images = [disk.crash() for _ in range(20)]
    for image in images:
        assert list(files_of(f"{image.path}/c")) == ["a", "b"]
