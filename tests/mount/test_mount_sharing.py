"""Several processes in one mount at the same time."""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import pytest
from mounting import all_at_once, dead, mounted, refused, server_of
from mounting import empty as empty  # a fixture
from stored import make, read

import winkfs

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

COUNT = """
import fcntl, mmap, os, sys
top, turns = sys.argv[1], int(sys.argv[2])
lock = os.open(top + "/lock", os.O_RDWR)
mine = os.open(top + "/count", os.O_RDWR)
held = mmap.mmap(mine, 8)

def by_call():
    os.pwrite(mine, b"%08d" % (int(os.pread(mine, 8, 0)) + 1), 0)
def by_mapping():
    held[:] = b"%08d" % (int(held[:]) + 1)
def read_mapped_write_anew():
    number = int(held[:]) + 1
    with open(top + "/count", "r+b", buffering=0) as file:
        file.write(b"%08d" % number)
def read_anew_write_mapped():
    with open(top + "/count", "rb") as file:
        number = int(file.read()) + 1
    held[:] = b"%08d" % number
for turn in range(turns):
    take = fcntl.lockf if sys.argv[3] == "lockf" else fcntl.flock
    take(lock, fcntl.LOCK_EX)
    [by_call, by_mapping, read_mapped_write_anew, read_anew_write_mapped][turn % 4]()
    take(lock, fcntl.LOCK_UN)
"""


@pytest.fixture(params=["plain", "ao"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = str(tmp_path / "corpus")
    winkfs.create(name, ao=request.param == "ao").close()
    return name


@pytest.mark.parametrize("base", ["plain"], indirect=True)
@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_counter_of_four_processes_misses_no_step(base: str, lock: str) -> None:
    """Each sees what the others wrote at once, in every way to read and to write."""
    with mounted(base, "-o", "sync_every=0.1") as there:
        (there / "lock").touch()
        (there / "count").write_bytes(b"%08d" % 0)
        all_at_once(*[["-c", COUNT, there, 200, lock]] * 4, seconds=60)
        assert (there / "count").read_bytes() == b"%08d" % 800
    assert read(base, "count") == b"%08d" % 800


LINES = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for i in range(300):
    line = b"%s %04d %s\\n" % (sys.argv[2].encode(), i, b"x" * (i % 70))
    assert os.write(file, line) == len(line)
os.close(file)
"""


def lines_of(writer: str) -> list[str]:
    return [f"{writer} {i:04} {'x' * (i % 70)}" for i in range(300)]


@pytest.mark.few(1)
def test_appenders_lose_no_line(base: str) -> None:
    """To one log, and each to a log of its own; in an append-only container, too."""
    with mounted(base, "-o", "sync_every=0.1") as there:
        with (there / "shared").open("ab"):  # not closed before all have written
            all_at_once(
                *[["-c", LINES, there / "shared", name] for name in "abcd"],
                *[["-c", LINES, there / f"own-{name}", name] for name in "abcd"],
                seconds=60,
            )
        shared = (there / "shared").read_text().splitlines()
        assert [[line for line in shared if line[0] == name] for name in "abcd"] == [
            lines_of(name) for name in "abcd"
        ]
        for name in "abcd":
            assert (there / f"own-{name}").read_text().splitlines() == lines_of(name)
    assert read(base, "shared").decode().splitlines() == shared
    assert winkfs.verify(base).problems == []


def test_append_only_log_that_is_stored_is_refused_to_all(tmp_path: Path) -> None:
    base = str(tmp_path / "log")
    winkfs.create(base, ao=True).close()
    with mounted(base, "-o", "sync_every=0.1") as there:
        all_at_once(["-c", LINES, there / "log", "a"], seconds=60)
        (there / "later").write_bytes(b"")
        subprocess.run(["sync", there], check=True)
        before = (there / "log").read_bytes(), (there / "log").stat().st_mtime_ns
        for mode in ("ab", "r+b"):
            with refused(errno.EPERM), (there / "log").open(mode, buffering=0) as file:
                file.write(b"more")
        assert ((there / "log").read_bytes(), (there / "log").stat().st_mtime_ns) == before


def come_and_go(place: Path, stop: object, number: int) -> None:
    turn = 0
    while not stop.is_set():  # type: ignore[attr-defined]
        turn += 1
        for i in range(40):
            (place / f"{number}-passing-{turn}-{i}").touch()
        for i in range(0, 40, 2):
            name = place / f"{number}-passing-{turn}-{i}"
            name.rename(place / f"a{number}-moved-{turn}-{i}")
        for path in [*place.glob(f"{number}-passing*"), *place.glob(f"a{number}-moved*")]:
            path.unlink()


@pytest.mark.few(1)
@pytest.mark.parametrize("names", [30, 3000])
def test_listing_while_names_come_and_go_shows_the_others_once(tmp_path: Path, names: int) -> None:
    base = str(tmp_path / "corpus")
    make(base, [(f"d/stays-{i:05}", b"") for i in range(0, names, 2)])
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with mounted(base, "-o", "sync_every=0.1") as there:
        place = there / "d"
        for i in range(1, names, 2):
            (place / f"stays-{i:05}").touch()
        stays = [f"stays-{i:05}" for i in range(names)]
        others = [
            context.Process(target=come_and_go, args=(place, stop, number)) for number in range(2)
        ]
        for other in others:
            other.start()
        try:
            for _ in range(25):
                found = [name for name in os.listdir(place) if name.startswith("stays")]
                assert sorted(found) == stays
        finally:
            stop.set()
            for other in others:
                other.join()
        assert sorted(os.listdir(place)) == stays


def test_o_sync_is_durable_when_the_write_returns(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The server is killed right after the write."""
    base = str(tmp_path_factory.mktemp("disk") / "c")
    winkfs.create(base).close()
    with mounted(base, "-o", "sync_every=1000") as there:
        fd = os.open(there / "f", os.O_WRONLY | os.O_CREAT | os.O_SYNC)
        os.write(fd, b"here")
        os.kill(server_of(there), signal.SIGKILL)
        with dead():
            os.close(fd)
    assert read(base, "f") == b"here"


def test_readers_see_what_passes_the_kernels_cache(empty: str) -> None:
    with mounted(empty) as there:
        (there / "f").write_bytes(b"a" * 10_000)
        with (there / "f").open("rb", buffering=0) as reader:
            mapped = mmap.mmap(reader.fileno(), 10_000, access=mmap.ACCESS_READ)
            assert reader.read() == mapped[:] == b"a" * 10_000
            with (there / "f").open("r+b", buffering=0):  # not this one: it may read, too
                writer = os.open(there / "f", os.O_WRONLY)
                os.pwrite(writer, b"b" * 3, 5000)
                assert os.pread(reader.fileno(), 5, 4999) == mapped[4999:5004] == b"abbba"
                os.close(writer)
            mapped.close()
