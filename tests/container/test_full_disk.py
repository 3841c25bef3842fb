"""A disk that is really full: one ENOSPC, nothing synced is lost, and on it goes with room."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_checks import assert_sound, contents, path_of
from oracle_read import check

import winkfs
from winkfs import Container

pytestmark = pytest.mark.slow

Model = dict[bytes, bytes]
VARIANTS: dict[str, dict[str, bool]] = {
    "plain": {},
    "classic": {"classic": True},
    "ao": {"ao": True},
}
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
        self.filler.unlink()


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


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, bool]:
    return VARIANTS[request.param]


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


def begun(base: Path, variant: dict[str, bool]) -> tuple[Container, Model]:
    """A container with a few files, synced, and hardly any preallocated room left."""
    container = winkfs.create(base, **variant)
    model = {b"old%d" % i: b"%d" % i * 500 for i in range(40)}
    model[b"ballast"] = b"ballast" * 595_000  # FILEINCR is 4 MiB
    container.put_many(model.items())
    container.sync()
    return container, model


def test_put_until_the_disk_is_full(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    container, model = begun(base, variant)
    for number in range(1000):
        data = b"%d " % number * 5_000
        if full(lambda: container.put(f"n{number}", data)):  # noqa: B023
            break
        model[b"n%d" % number] = data
        assert number < 900, "the disk never got full"
    assert full(lambda: container.put("again", bytes(2_500_000)))
    assert contents(container) == model
    disk.fill()
    with winkfs.open(base) as reader:
        assert reader.read("old7") == model[b"old7"]
    container.close()
    with winkfs.open(base) as reader:
        assert contents(reader) == model
    assert check(base, clean=False).files.keys() == model.keys()
    assert_no_leftovers(disk)
    disk.make_room()
    with winkfs.open(base, "a") as again:
        again.put("again", b"1")
        assert contents(again) == model | {b"again": b"1"}
    assert winkfs.verify(base).problems == []


def test_put_goes_on_with_room(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    container, model = begun(base, variant)
    disk.fill(leave=100_000)
    put = b"x" * 300_000
    assert full(lambda: container.put("large", put))
    assert contents(container) == model
    disk.make_room()
    container.put("large", put)
    container.put("old1", b"replaced")
    model |= {b"large": put, b"old1": b"replaced"}
    container.close()
    assert_sound(base, model)
    assert_no_leftovers(disk)


def test_replacing_on_a_full_disk_keeps_the_old_file(
    disk: Disk, base: Path, variant: dict[str, bool]
) -> None:
    container, model = begun(base, variant)
    disk.fill(leave=8192)
    assert full(lambda: container.put("old1", bytes(500_000)))
    full(lambda: container.put_many([("old2", bytes(500_000))]))
    assert container.read("old1") == model[b"old1"]
    disk.make_room()
    container.close()
    assert_sound(base, model)


def test_put_many_on_a_full_disk(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    container, model = begun(base, variant)
    disk.fill(leave=700_000)
    files = {b"n%d" % i: b"%d " % i * 500 for i in range(800)}
    assert full(lambda: container.put_many(files.items()))
    for name, data in model.items():
        assert container.read(name) == data
    assert full(lambda: container.put_many((n, d * 3) for n, d in files.items()))
    found = contents(container)
    disk.make_room()
    container.put_many([("after", b"1")])
    found[b"after"] = b"1"
    container.sync()
    assert contents(container) == found
    container.close()
    assert model.items() <= found.items()
    for name, data in found.items() - model.items():
        assert name == b"after" or data in (files[name], files[name] * 3)
    assert_sound(base, found)
    with winkfs.open(base, "a") as again:
        again.put_many(list(files.items())[:100])
        found |= dict(list(files.items())[:100])
    assert_sound(base, found)
    assert_no_leftovers(disk)


def test_sync_on_a_full_disk(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    """What was taken is kept, whether the sync had room or not."""
    container, model = begun(base, variant)
    container.put("small", b"s" * 3000)
    container.put("medium", b"m" * 400_000)
    container.put_many((f"many{i}", b"%d" % i) for i in range(50))
    model |= {b"small": b"s" * 3000, b"medium": b"m" * 400_000}
    model |= {b"many%d" % i: b"%d" % i for i in range(50)}
    disk.fill()
    full(container.sync)
    assert contents(container) == model
    disk.make_room()
    container.sync()
    with winkfs.open(base) as reader:
        assert contents(reader) == model
    container.put("after", b"1")
    container.close()
    assert_sound(base, model | {b"after": b"1"})


@pytest.mark.parametrize("verb", ["append", "write", "grow", "chmod", "rename", "delete"])
@pytest.mark.parametrize("classic", [False, True])
def test_a_change_on_a_full_disk(verb: str, classic: bool, disk: Disk, base: Path) -> None:
    """It is refused whole, or done whole."""
    container, model = begun(base, {"classic": classic})
    disk.fill()
    data = b"y" * 2_500_000
    changed = dict(model)
    old = model[b"old5"]
    action: Callable[[], object]
    match verb:
        case "append":
            action = lambda: container.append("old5", data)  # noqa: E731
            changed[b"old5"] = old + data
        case "write":
            action = lambda: container.write("old5", 2, data)  # noqa: E731
            changed[b"old5"] = old[:2] + data
        case "grow":
            action = lambda: container.truncate("old5", 2_500_000)  # noqa: E731
            changed[b"old5"] = old.ljust(2_500_000, b"\0")
        case "chmod":
            action = lambda: container.chmod("old5", 0o755)  # noqa: E731
        case "rename":
            action = lambda: container.rename("old5", "new" * 2000)  # noqa: E731
            changed[b"new" * 2000] = changed.pop(b"old5")
        case _:
            action = lambda: container.delete("old5")  # noqa: E731
            del changed[b"old5"]
    wanted = model if full(action) else changed
    assert contents(container) == wanted
    synced = not full(container.sync)
    assert contents(container) == wanted
    with winkfs.open(base) as reader:
        assert contents(reader) == (wanted if synced else model)
    disk.make_room()
    container.put("after", b"1")
    container.sync()
    container.close()
    assert_sound(base, wanted | {b"after": b"1"})


def test_small_appends_until_the_disk_is_full(disk: Disk, base: Path) -> None:
    container, model = begun(base, {})
    disk.fill(leave=700_000)
    log = b""
    container.put("log", b"")
    for number in range(100_000):
        line = b"line %d\n" % number * 20
        if full(lambda: container.append("log", line)):  # noqa: B023
            break
        log += line
        if number % 500 == 0 and full(container.sync):
            break
        assert number < 90_000, "the disk never got full"
    assert container.read("log") == log
    disk.make_room()
    container.append("log", b"end")
    container.close()
    assert_sound(base, model | {b"log": log + b"end"})


def test_close_on_a_full_disk(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    """There may be no room for an index; there must be for what was taken."""
    container, model = begun(base, variant)
    container.put_many((f"n{i}", b"%d" % i) for i in range(600))
    model |= {b"n%d" % i: b"%d" % i for i in range(600)}
    container.sync()
    container.put("last", b"1")
    model[b"last"] = b"1"
    disk.fill()
    closed = not full(container.close)
    with winkfs.open(base) as reader:
        found = contents(reader)
        model_before = {name: data for name, data in model.items() if name != b"last"}
        assert found == model or (not closed and found == model_before)
    assert winkfs.verify(base).problems == []
    assert_no_leftovers(disk)
    disk.make_room()
    winkfs.open(base, "a").close()
    assert_sound(base, found)


def test_open_on_a_full_disk(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    container, model = begun(base, variant)
    container.close()
    for dropped in ((), (".idx",), (".idx", ".time")):
        for suffix in dropped:
            path_of(base, suffix).unlink(missing_ok=True)
        disk.fill()
        with winkfs.open(base) as reader:
            assert contents(reader) == model
        if not full(lambda: winkfs.open(base, "a").close()):
            with winkfs.open(base, "a") as writer:
                assert contents(writer) == model
        disk.make_room()
        winkfs.open(base, "a").close()  # the lock is free
        assert_sound(base, model)
        assert_no_leftovers(disk)


def test_reindex_on_a_full_disk(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    container, model = begun(base, variant)
    container.put_many((f"n{i}", b"%d" % i) for i in range(600))
    model |= {b"n%d" % i: b"%d" % i for i in range(600)}
    container.close()
    for dropped in ((), (".idx",)):
        for suffix in dropped:
            path_of(base, suffix).unlink()
        disk.fill()
        full(lambda: winkfs.reindex(base))
        with winkfs.open(base) as reader:
            assert contents(reader) == model
        assert_no_leftovers(disk)
        disk.make_room()
        assert winkfs.reindex(base) == len(model)
        assert_sound(base, model)


@pytest.mark.parametrize("leave", [0, 4096, 8192, 12288, 16384])
def test_create_on_a_full_disk(
    leave: int, disk: Disk, base: Path, variant: dict[str, bool]
) -> None:
    disk.fill(leave)
    was_full = full(lambda: winkfs.create(base, **variant).close())
    assert was_full or leave
    if was_full:
        assert not path_of(base, ".data").exists() or winkfs.verify(base).problems == []
    assert_no_leftovers(disk)
    disk.make_room()
    if was_full and not path_of(base, ".data").exists():
        winkfs.create(base, **variant).close()
    with winkfs.open(base, "a") as container:
        container.put("a", b"1")
    assert_sound(base, {b"a": b"1"})


def test_a_full_disk_again_and_again(disk: Disk, base: Path, variant: dict[str, bool]) -> None:
    """The same handle through many shortages, each at another amount of room."""
    container, model = begun(base, variant)
    shortages = 0
    for turn in range(30):
        disk.fill(leave=turn * 4096)
        for size in (100, 5000, 60_000):
            name, data = f"{turn}.{size}", b"%d" % turn * size
            if full(lambda: container.put(name, data)):  # noqa: B023
                shortages += 1
            else:
                model[name.encode()] = data
        if full(container.sync):
            shortages += 1
        assert contents(container) == model
        disk.make_room()
        name = f"old{turn}"
        container.put(name, b"room")
        model[name.encode()] = b"room"
        if turn % 3 == 0:
            container.sync()
            with winkfs.open(base) as reader:
                assert contents(reader) == model
    assert shortages > 10
    container.close()
    assert_sound(base, model)
    assert_no_leftovers(disk)
