"""A disk that is really full: one ENOSPC, nothing synced is lost, and on it goes with room."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_checks import assert_sound, contents, contents_of, drop, path_of, put
from container_checks import variant as variant  # a fixture
from oracle_read import check
from stored import read

import winkfs
from winkfs import Container

pytestmark = pytest.mark.slow

Model = dict[bytes, bytes]
SIZE = 6 << 20  # bytes of the disk


class Disk:
    """A tmpfs of SIZE bytes, with a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / "filler"

    def fill(self, leave: int = 0) -> None:
        """Leave that many bytes, whole pages."""
        self.filler.touch()
        free = os.statvfs(self.folder)
        room = free.f_bavail * free.f_frsize - leave
        if room > 0:
            with self.filler.open("r+b") as file:
                os.posix_fallocate(file.fileno(), self.filler.stat().st_size, room)

    def make_room(self) -> None:
        self.filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.getuid() == 0 and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder],
        stderr=subprocess.DEVNULL,
    )
    if not mounted:
        assert os.environ.get("CI") != "true", "CI must be able to mount a tmpfs"
        pytest.skip("only root can mount a small disk")
    yield Disk(folder)
    subprocess.check_call(["umount", "-l", folder])


@pytest.fixture
def base(disk: Disk) -> Path:
    return disk.folder / "c"


def full(action: Callable[[], object]) -> bool:
    """Run -> whether the disk was full; the error must say so in one line."""
    try:
        action()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert "\n" not in str(error)
        return True
    return False


def assert_no_leftovers(disk: Disk) -> None:
    names = {path.name for path in disk.folder.iterdir()}
    assert not [name for name in names if ".tmp" in name], names


class Filled:
    """A container with a few files, synced, and hardly any preallocated room left.

    model   what it must show
    """

    def __init__(self, disk: Disk, base: Path, options: dict[str, Any]) -> None:
        self.disk, self.base = disk, base
        self.container = winkfs.create(base, **options)
        self.model = {b"old%d" % i: b"%d" % i * 500 for i in range(40)}
        self.model[b"ballast"] = b"ballast" * 595_000  # FILEINCR is 4 MiB
        self.put_many(dict(self.model))
        self.container.sync()

    def put(self, name: str, data: bytes) -> bool:
        """-> whether there was room."""
        if full(lambda: self.container.put(name, data)):
            return False
        self.model[name.encode()] = data
        return True

    def put_many(self, files: Model) -> None:
        self.container.put_many(files.items())
        self.model |= files

    def shown(self) -> Model:
        """What a new reader sees."""
        return contents_of(self.base)

    def goes_on(self) -> None:
        """With room: the same handle, and what it leaves is sound."""
        self.disk.make_room()
        self.container.put("after", b"1")
        self.container.sync()
        self.model[b"after"] = b"1"
        self.container.close()
        assert_sound(self.base, self.model)
        assert_no_leftovers(self.disk)

    def opens(self) -> None:
        """With room: a new writer, and what it leaves is sound."""
        self.disk.make_room()
        winkfs.open(self.base, "a").close()  # the lock is free
        assert_sound(self.base, self.model)
        assert_no_leftovers(self.disk)


@pytest.fixture
def life(disk: Disk, base: Path, variant: dict[str, Any]) -> Filled:
    return Filled(disk, base, variant)


@pytest.fixture
def container(life: Filled) -> Container:
    return life.container


@pytest.fixture
def model(life: Filled) -> Model:
    return life.model


@pytest.mark.few(2)
def test_put_until_the_disk_is_full(life: Filled, container: Container, model: Model) -> None:
    number = 0
    while life.put(f"n{number}", b"%d " % number * 5_000):
        number += 1
        assert number < 900, "the disk never got full"
    assert not life.put("again", bytes(2_500_000))
    assert contents(container) == model
    life.disk.fill()
    assert read(life.base, "old7") == model[b"old7"]
    container.close()
    assert life.shown() == model
    assert check(life.base, clean=False).files.keys() == model.keys()
    assert_no_leftovers(life.disk)
    life.disk.make_room()
    with winkfs.open(life.base, "a") as again:
        again.put("again", b"1")
        assert contents(again) == model | {b"again": b"1"}
    assert winkfs.verify(life.base).problems == []


def test_put_goes_on_with_room(life: Filled, container: Container, model: Model) -> None:
    life.disk.fill(leave=100_000)
    assert not life.put("large", b"x" * 300_000)
    assert contents(container) == model
    life.disk.make_room()
    assert life.put("large", b"x" * 300_000) and life.put("old1", b"replaced")
    container.close()
    assert_sound(life.base, model)
    assert_no_leftovers(life.disk)


def test_replacing_on_a_full_disk_keeps_the_old_file(
    life: Filled, container: Container, model: Model
) -> None:
    life.disk.fill(leave=8192)
    assert not life.put("old1", bytes(500_000))
    full(lambda: container.put_many([("old2", bytes(500_000))]))
    assert container.read("old1") == model[b"old1"]
    life.goes_on()


@pytest.mark.few(1)
def test_put_many_on_a_full_disk(life: Filled, container: Container, model: Model) -> None:
    life.disk.fill(leave=700_000)
    files = {b"n%d" % i: b"%d " % i * 500 for i in range(800)}
    assert full(lambda: container.put_many(files.items()))
    for name, data in model.items():
        assert container.read(name) == data
    assert full(lambda: container.put_many((n, d * 3) for n, d in files.items()))
    found = contents(container)
    assert model.items() <= found.items()
    for name, data in found.items() - model.items():
        assert data in (files[name], files[name] * 3)
    life.model = found
    life.disk.make_room()
    life.put_many({b"behind": b"1"})
    container.sync()
    assert contents(container) == life.model
    life.put_many(dict(list(files.items())[:100]))
    container.close()
    life.opens()


def test_sync_on_a_full_disk(life: Filled, container: Container, model: Model) -> None:
    """What was taken is kept, whether the sync had room or not."""
    assert life.put("small", b"s" * 3000) and life.put("medium", b"m" * 400_000)
    life.put_many({b"many%d" % i: b"%d" % i for i in range(50)})
    life.disk.fill()
    full(container.sync)
    assert contents(container) == model
    life.disk.make_room()
    container.sync()
    assert life.shown() == model
    life.goes_on()


DATA, NEW = b"y" * 2_500_000, "new" * 2000
CHANGES: dict[str, tuple[Callable[[Container], object], Callable[[bytes], Model]]] = {
    "append": (lambda c: c.append("old5", DATA), lambda old: {b"old5": old + DATA}),
    "write": (lambda c: c.write("old5", 2, DATA), lambda old: {b"old5": old[:2] + DATA}),
    "grow": (
        lambda c: c.truncate("old5", 2_500_000),
        lambda old: {b"old5": old.ljust(2_500_000, b"\0")},
    ),
    "chmod": (lambda c: c.chmod("old5", 0o755), lambda old: {b"old5": old}),
    "rename": (lambda c: c.rename("old5", NEW), lambda old: {NEW.encode(): old}),
    "delete": (lambda c: c.delete("old5"), lambda old: {}),
}


@pytest.mark.few
@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize("variant", [{}, {"classic": True}], ids=["plain", "classic"])
def test_a_change_on_a_full_disk(
    verb: str, life: Filled, container: Container, model: Model
) -> None:
    """It is refused whole, or done whole."""
    life.disk.fill()
    before, old = dict(model), model[b"old5"]
    action, changed = CHANGES[verb]
    if not full(lambda: action(container)):
        del model[b"old5"]
        model |= changed(old)
    assert contents(container) == model
    synced = not full(container.sync)
    assert contents(container) == model
    assert life.shown() == (model if synced else before)
    life.goes_on()


@pytest.mark.parametrize("variant", [{}], ids=["plain"])
def test_small_appends_until_the_disk_is_full(life: Filled) -> None:
    container, log = life.container, b""
    life.disk.fill(leave=700_000)
    container.put("log", log)
    for number in range(100_000):
        line = b"line %d\n" % number * 20
        if full(lambda: container.append("log", line)):  # noqa: B023
            break
        log += line
        if number % 500 == 0 and full(container.sync):
            break
        assert number < 90_000, "the disk never got full"
    assert container.read("log") == log
    life.disk.make_room()
    container.append("log", b"end")
    life.model[b"log"] = log + b"end"
    life.goes_on()


@pytest.mark.few(1)
def test_close_on_a_full_disk(life: Filled, container: Container, model: Model) -> None:
    """There may be no room for an index; there must be for what was taken."""
    life.put_many({b"n%d" % i: b"%d" % i for i in range(600)})
    container.sync()
    before = dict(model)
    assert life.put("last", b"1")
    life.disk.fill()
    closed = not full(container.close)
    found = life.shown()
    assert found == model or (not closed and found == before)
    assert winkfs.verify(life.base).problems == []
    assert_no_leftovers(life.disk)
    life.model = found
    life.opens()


@pytest.mark.few(2)
def test_open_on_a_full_disk(life: Filled, container: Container, model: Model) -> None:
    container.close()
    for dropped in ((".none",), (".idx",), (".idx", ".time")):
        drop(life.base, *dropped)
        life.disk.fill()
        assert life.shown() == model
        if not full(lambda: winkfs.open(life.base, "a").close()):
            assert contents_of(life.base, "a") == model
        life.opens()


@pytest.mark.few(1)
def test_reindex_on_a_full_disk(life: Filled, container: Container, model: Model) -> None:
    life.put_many({b"n%d" % i: b"%d" % i for i in range(200)})
    container.close()
    for dropped in (".none", ".idx"):
        drop(life.base, dropped)
        life.disk.fill()
        full(lambda: winkfs.reindex(life.base))
        assert life.shown() == model
        assert_no_leftovers(life.disk)
        life.disk.make_room()
        assert winkfs.reindex(life.base) == len(model)
        assert_sound(life.base, model)


@pytest.mark.few
@pytest.mark.parametrize("leave", [0, 4096, 8192, 12288, 16384])
def test_create_on_a_full_disk(leave: int, disk: Disk, base: Path, variant: dict[str, Any]) -> None:
    disk.fill(leave)
    was_full = full(lambda: winkfs.create(base, **variant).close())
    assert was_full or leave
    if was_full:
        assert not path_of(base, ".data").exists() or winkfs.verify(base).problems == []
    assert_no_leftovers(disk)
    disk.make_room()
    if was_full and not path_of(base, ".data").exists():
        winkfs.create(base, **variant).close()
    put(base, "a", b"1")
    assert_sound(base, {b"a": b"1"})


@pytest.mark.few(1)
def test_a_full_disk_again_and_again(life: Filled, container: Container, model: Model) -> None:
    """The same handle through many shortages, each at another amount of room."""
    shortages = 0
    for turn in range(30):
        life.disk.fill(leave=turn * 4096)
        for size in (100, 5000, 60_000):
            shortages += not life.put(f"{turn}.{size}", b"%d" % turn * size)
        shortages += full(container.sync)
        assert contents(container) == model
        life.disk.make_room()
        assert life.put(f"old{turn}", b"room")
        if turn % 3 == 0:
            container.sync()
            assert life.shown() == model
    assert shortages > 10
    life.goes_on()
