"""The simulated disk itself: what survives, what never does, and that it is a disk as ours is."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated.disk import SimulatedDisk
from simulated.files import SECTOR

from winkformats.disk.paths import directory_of, locate
from winkformats.disk.storage import Directory, FileType, Storage, replacing

A, B = b"A" * SECTOR, b"B" * SECTOR
FEW = 50  # power cuts of each of many disks


def top(disk: SimulatedDisk) -> Directory:
    return directory_of(disk.path)


def put(directory: Directory, name: str, data: bytes, *, sync: bool = True) -> None:
    with directory.create_new(name) as storage:
        storage.write(0, [data])
        if sync:
            storage.sync()


def get(directory: Directory, name: str) -> bytes | None:
    """None: there is no such name."""
    if directory.info(name) is None:
        return None
    with directory.open(name) as storage:
        return storage.read(0, storage.size())


def outcomes(
    disk: SimulatedDisk, *names: str, seed: int = 7, cuts: int = 400
) -> set[tuple[bytes | None, ...]]:
    """What many power cuts leave of files."""
    rng = random.Random(seed)
    found = set()
    for _ in range(cuts):
        image = disk.crash(rng)
        found.add(tuple(get(top(image), name) for name in names))
    return found


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(1)


@pytest.fixture
def synced(disk: SimulatedDisk) -> SimulatedDisk:
    """With a file "f" of four sectors A, durable with its name."""
    put(top(disk), "f", A * 4)
    top(disk).sync()
    return disk


def test_what_is_synced_survives_every_cut(synced: SimulatedDisk) -> None:
    assert outcomes(synced, "f") == {(A * 4,)}


UNSYNCED: dict[str, tuple[Callable[[Storage], object], set[bytes]]] = {
    "two writes": (
        lambda f: (f.write(0, [B]), f.write(SECTOR, [B])),
        {A * 4, B + A * 3, A + B + A * 2, B * 2 + A * 2},
    ),
    "a new size, with or without its bytes": (
        lambda f: f.write(4 * SECTOR, [B]),
        {A * 4, A * 4 + bytes(SECTOR), A * 4 + B},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", UNSYNCED)
def test_changes_that_are_not_synced_survive_in_any_subset(
    what: str, synced: SimulatedDisk
) -> None:
    change, wanted = UNSYNCED[what]
    with top(synced).open("f", "w") as storage:
        change(storage)
    found = {content for (content,) in outcomes(synced, "f") if content is not None}
    assert wanted <= found


def test_a_truncation_may_be_lost(synced: SimulatedDisk) -> None:
    with top(synced).open("f", "w") as storage:
        storage.truncate(SECTOR)
    assert outcomes(synced, "f") == {(A * 4,), (A,)}


def test_a_write_is_torn_where_a_sector_ends(synced: SimulatedDisk) -> None:
    with top(synced).open("f", "w") as storage:
        storage.write(0, [B * 4])
    found = {content for (content,) in outcomes(synced, "f") if content}
    assert all(c[i : i + SECTOR] in (A, B) for c in found for i in range(0, len(c), SECTOR))
    assert {A * 4, B * 4, B + A * 3, A * 3 + B} <= found
    assert len(found) == 16


def test_a_write_is_torn_at_any_byte_where_asked() -> None:
    disk = SimulatedDisk(1, torn=1)
    put(top(disk), "f", A)
    top(disk).sync()
    with top(disk).open("f", "w") as storage:
        storage.write(0, [B])
    assert len(outcomes(disk, "f")) > 20


def test_a_name_that_is_not_synced_may_vanish(disk: SimulatedDisk) -> None:
    put(top(disk), "f", A)
    assert outcomes(disk, "f") == {(None,), (A,)}


def test_a_name_without_a_synced_file_may_stand_for_an_empty_one(disk: SimulatedDisk) -> None:
    put(top(disk), "f", A, sync=False)
    top(disk).sync()
    assert {(b"",), (A,), (bytes(SECTOR),)} <= outcomes(disk, "f")


def test_a_removed_name_may_come_back(synced: SimulatedDisk) -> None:
    top(synced).unlink("f")
    assert outcomes(synced, "f") == {(None,), (A * 4,)}
    top(synced).sync()
    assert outcomes(synced, "f") == {(None,)}


def test_a_rename_is_done_or_not_and_never_loses_the_file(synced: SimulatedDisk) -> None:
    top(synced).rename("f", "g")
    both, old, new = (A * 4, A * 4), (A * 4, None), (None, A * 4)
    assert outcomes(synced, "f", "g") == {both, old, new}
    top(synced).sync()
    assert outcomes(synced, "f", "g") == {new}


def test_replacing_without_a_sync_may_leave_an_empty_file(synced: SimulatedDisk) -> None:
    put(top(synced), "f.tmp", B, sync=False)
    top(synced).rename("f.tmp", "f")
    assert {(A * 4,), (b"",), (B,)} <= outcomes(synced, "f")


def test_replacing_keeps_one_of_the_two(synced: SimulatedDisk) -> None:
    with pytest.raises(OSError), replacing(top(synced), "f") as storage:
        storage.write(0, [B])
        synced.arm("directory sync")
    assert outcomes(synced, "f") <= {(A * 4,), (B,)}
    with replacing(top(synced), "f") as storage:
        storage.write(0, [B])
    storage.close()
    assert outcomes(synced, "f") == {(B,)}


def test_a_rename_between_directories_never_loses_the_file(synced: SimulatedDisk) -> None:
    top(synced).mkdir("d")
    top(synced).sync()
    top(synced).rename("f", "d/g")
    assert outcomes(synced, "f", "d/g") == {(A * 4, A * 4), (A * 4, None), (None, A * 4)}
    top(synced).sync()
    assert outcomes(synced, "f", "d/g") == {(None, A * 4)}


@pytest.mark.parametrize("where", ["", "to"])
def test_a_directory_has_one_name_after_a_rename(disk: SimulatedDisk, where: str) -> None:
    for name in ("from", "from/job", "to"):
        top(disk).mkdir(name)
    put(top(disk), "from/job/f", A)
    for name in ("", "from", "from/job"):
        directory_of(f"{disk.path}/{name}").sync()
    top(disk).rename("from/job", "to/job")
    assert outcomes(disk, "from/job/f", "to/job/f") == {(A, None), (None, A)}
    if where:
        directory_of(f"{disk.path}/{where}").sync()
        assert outcomes(disk, "from/job/f", "to/job/f") == {(None, A)}


def test_files_of_a_directory_that_vanishes_vanish(disk: SimulatedDisk) -> None:
    top(disk).mkdir("d")
    put(top(disk), "d/f", A)
    directory_of(f"{disk.path}/d").sync()
    assert outcomes(disk, "d/f") == {(None,), (A,)}


@pytest.mark.slow
@pytest.mark.parametrize("evicts", [False, True])
def test_what_a_failed_sync_drops_never_comes_with_the_next(evicts: bool) -> None:
    lost = 0
    for seed in range(12):
        disk = SimulatedDisk(seed, evicts=evicts)
        put(top(disk), "f", A * 4)
        top(disk).sync()
        with top(disk).open("f", "w") as storage:
            storage.write(0, [B * 2])
            disk.arm("sync")
            with pytest.raises(OSError, match="Input/output"):
                storage.sync()
            seen = storage.read(0, 2 * SECTOR)
            assert evicts or seen == B * 2
            storage.sync()
            (image,) = outcomes(disk, "f", seed=seed, cuts=FEW)
            lost += image != (B * 2 + A * 2,)
            disk.evict()
            assert (storage.read(0, 4 * SECTOR),) == image
            storage.write(0, [B * 2])
            storage.sync()
            assert outcomes(disk, "f", seed=seed, cuts=FEW) == {(B * 2 + A * 2,)}
    assert lost > 4


def test_a_failed_directory_sync_loses_its_names_for_good() -> None:
    lost = 0
    for seed in range(12):
        disk = SimulatedDisk(seed)
        put(top(disk), "f", A)
        disk.arm("directory sync")
        with pytest.raises(OSError):
            top(disk).sync()
        top(disk).sync()
        assert get(top(disk), "f") == A
        (image,) = outcomes(disk, "f", seed=seed, cuts=FEW)
        lost += image == (None,)
    assert lost > 0


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "d"])
def test_a_failed_sync_of_a_rename_keeps_a_name(folder: str) -> None:
    for seed in range(12):
        disk = SimulatedDisk(seed)
        top(disk).mkdir("d")
        put(top(disk), "f", A)
        top(disk).sync()
        top(disk).rename("f", "d/g")
        disk.arm("directory sync")
        with pytest.raises(OSError):
            directory_of(f"{disk.path}/{folder}").sync()
        top(disk).sync()
        directory_of(f"{disk.path}/d").sync()
        assert outcomes(disk, "f", "d/g", seed=seed, cuts=FEW).isdisjoint({(None, None)})


def test_the_nth_call_fails_once_or_for_good(disk: SimulatedDisk) -> None:
    with top(disk).create_new("f") as storage:
        disk.arm("write", 2, errno.ENOSPC)
        storage.write(0, [A])
        with pytest.raises(OSError) as failed:
            storage.write(0, [B])
        assert failed.value.errno == errno.ENOSPC
        assert storage.read(0, SECTOR) == A
        storage.write(0, [B])
        disk.arm("write", for_good=True)
        for _ in range(3):
            with pytest.raises(OSError):
                storage.write(0, [A])
        disk.arm("write", 0)
        storage.write(0, [A])
    with pytest.raises(ValueError):
        disk.arm("reading")


def test_a_full_disk_writes_what_has_room() -> None:
    disk = SimulatedDisk(1, capacity=4 * SECTOR)
    put(top(disk), "f", A)
    with top(disk).create_new("g") as storage:
        with pytest.raises(OSError, match="No space"):
            storage.write(0, [B * 8])
        assert storage.read(0, 8 * SECTOR) == B * 3
        with pytest.raises(OSError, match="No space"):
            storage.preallocate(4 * SECTOR)
        assert storage.size() == 3 * SECTOR
        storage.write(0, [A * 3])
        top(disk).unlink("f")
        storage.write(3 * SECTOR, [A])


def life(disk: SimulatedDisk) -> None:
    put(top(disk), "f", A * 3)
    top(disk).rename("f", "g")
    put(top(disk), "h", B, sync=False)
    disk.arm("sync")
    with pytest.raises(OSError), top(disk).open("h", "w") as storage:
        storage.write(100, [A])
        storage.sync()


def test_the_seed_decides_everything() -> None:
    found = []
    for _ in range(2):
        disk = SimulatedDisk(5)
        life(disk)
        images = [disk.crash() for _ in range(20)]
        found.append([{p: image.durable(p) for p in image.paths()} for image in images])
    assert found[0] == found[1]
    assert len({str(image) for image in found[0]}) > 3


def test_the_log_has_every_change(disk: SimulatedDisk) -> None:
    life(disk)
    calls = [event.call for event in disk.log]
    assert calls == ["create", "write", "sync", "rename", "create", "write", "write", "sync"]


def test_a_watcher_may_cut_the_power_in_the_middle_of_a_call(disk: SimulatedDisk) -> None:
    images: list[SimulatedDisk] = []
    disk.watch = lambda event: images.append(disk.crash())
    life(disk)
    assert len(images) == len(disk.log) == 8
    assert images[0].paths() == []


def test_a_power_cut_lets_go_of_locks(disk: SimulatedDisk) -> None:
    put(top(disk), "f", A)
    top(disk).sync()
    lock = top(disk).lock("f")
    assert lock is not None
    assert top(disk).lock("f") is None
    assert top(disk.crash()).lock("f") is not None
    lock.release()
    lock.release()
    assert top(disk).lock("f") is not None


def test_a_disk_is_found_by_its_number(disk: SimulatedDisk) -> None:
    directory, name = locate(f"{disk.path}/d/corpus")
    assert (directory.path, name) == (f"{disk.path}/d", "corpus")
    with pytest.raises(FileNotFoundError):
        locate("sim:999999999/corpus")


# --- a disk as ours is ------------------------------------------------------------------------


def actions(rng: random.Random) -> Iterator[tuple[str, Callable[[Directory], object]]]:
    """Calls, good and bad ones, and what they say."""
    names = ["a", "b", "d", "d/a", "d/e", "nowhere/a"]
    for _ in range(400):
        x, y, size = rng.choice(names), rng.choice(names), rng.randrange(3000)

        def writing(top: Directory, x: str = x, size: int = size) -> object:
            with top.open(x, "w") as storage:
                storage.write(size, [b"x" * size, b"y"])
                storage.patch(size // 2, b"z")
                storage.preallocate(size)
                return storage.view(storage.size())[:], storage.bulk(0, size).read(0, size)[:]

        def cutting(top: Directory, x: str = x, size: int = size) -> object:
            with top.open(x, "w") as storage:
                storage.truncate(size)
                with storage.duplicate() as again:
                    return again.read(0, 5000), storage.size()

        def read_only(top: Directory, x: str = x) -> object:
            with top.open(x) as storage:
                return storage.write(0, [b"x"])

        chosen: dict[str, Callable[[Directory], object]] = {
            "create": lambda top, x=x: top.create_new(x).close(),  # type: ignore[misc]
            "write": writing,
            "truncate": cutting,
            "write to a reader": read_only,
            "rename": lambda top, x=x, y=y: top.rename(x, y),  # type: ignore[misc]
            "link": lambda top, x=x, y=y: top.link(x, y),  # type: ignore[misc]
            "unlink": lambda top, x=x: top.unlink(x) if x not in ("d", "d/e") else None,  # type: ignore[misc]
            "mkdir": lambda top, x=x: top.mkdir(x),  # type: ignore[misc]
            "rmdir": lambda top, x=x: top.rmdir(x),  # type: ignore[misc]
            "subdirectory": lambda top, x=x: sorted(top.subdirectory(x).list()),  # type: ignore[misc]
        }
        verb = rng.choice(list(chosen))
        yield f"{verb} {x} {y} {size}", chosen[verb]


def tell(action: Callable[[Directory], object], directory: Directory) -> object:
    try:
        return action(directory)
    except OSError:
        return "refused"


def tree(directory: Directory, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in directory.list():
        info = directory.info(name)
        assert info is not None
        if info.kind is FileType.DIRECTORY:
            found[prefix + name] = None
            found |= tree(directory.subdirectory(name), f"{prefix}{name}/")
        else:
            found[prefix + name] = (get(directory, name), info.links, info.size)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_does_what_the_disk_of_this_machine_does(
    seed: int, tmp_path: Path, disk: SimulatedDisk
) -> None:
    mine, real = top(disk), directory_of(str(tmp_path))
    for what, action in actions(random.Random(seed)):
        assert tell(action, mine) == tell(action, real), what
        assert tree(mine) == tree(real), what
    assert tree(top(disk.clone())) == tree(real)
