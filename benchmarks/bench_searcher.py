"""Does winkfs leave the page cache to others? A search engine beside an ingest of 3 GB.

A searcher reads 4 KiB at random from an index of 500 MiB, which is in memory: some thousand times a
second, so it takes a fifth of a processor. Searcher and ingest are in one memory cgroup of 600 MiB,
without swap: what the ingest leaves in the page cache takes room from the index, and a read of a
page that went waits for the disk. Each round: drop all caches, warm the index, a window undisturbed,
a window beside the ingest, and both again with the ingest in a cgroup of its own. The latter has the
same work on the same processors and disk, but no hand in the memory of the searcher: what it costs
is not the page cache.

    pack        winkfs pack of a tree           cp, tar      the rivals that are not neutral
    put_many    files from memory               write        files from memory, of their own
    mount       files written into a mount; its server is in the cgroup, too
    spark       documents through the sink; the cgroup also has room for the memory of the JVM
    scan, unpack, cat   of a container of 3 GB

Each on ext4, XFS and btrfs, on a loop device (direct I/O, so nothing is cached twice).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import searcher_work
from common import Options, drop_caches, options, scratch
from filesystems import WINKFS, served
from memorygroup import MemoryGroup
from report import Goal, Report

MIB: Final = 1 << 20
SYSTEMS: Final = {
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"],
}  # fmt: skip
HERE: Final = Path(__file__).parent
QUIET: Final = 4.0  # seconds of a window undisturbed
CACHESTAT: Final = 451
LIMIT: Final = Goal(1.1, at_most=True)
COLUMNS: Final = (
    "filesystem, work", "s", "p50, us: undisturbed / beside", "p99, us: undisturbed / beside / "
    "beside, own cgroup", "p99.9, us", "p99 of undisturbed", "goal", "p99 of own cgroup",
    "index in memory before / least / after, %", "read from disk by searcher, MiB",
)  # fmt: skip


# --- one filesystem ---


@dataclass(frozen=True)
class Place:
    """A filesystem with an index, a tree and a container of the same files.

    device  of the filesystem
    total   bytes of the ingest
    """

    root: Path
    device: str
    total: int

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def tree(self) -> Path:
        return self.root / "tree"

    @property
    def container(self) -> Path:
        return self.root / "container"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def clean(self) -> None:
        """Nothing is left of the work before, and nothing of the filesystem is in memory."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        run("umount", str(self.root))
        run("mount", self.device, str(self.root))


@contextlib.contextmanager
def filesystem(kind: str, room: Path, size: int, total: int) -> Iterator[Place]:
    """A new filesystem on a loop device, mounted."""
    image, point = room / f"{kind}.image", room / kind
    with image.open("wb") as file:
        file.truncate(size)
    point.mkdir()
    device = run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    try:
        run(*SYSTEMS[kind], device)
        run("mount", device, str(point))
        try:
            yield Place(point, device, total)
        finally:
            run("umount", str(point))
    finally:
        run("losetup", "-d", device)
        image.unlink()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def fill(place: Place, index: int) -> None:
    with place.index.open("wb") as file:
        for _ in range(index // MIB):
            file.write(os.urandom(MIB))
    place.tree.mkdir()
    searcher_work.write_files(str(place.tree), place.total)
    searcher_work.put_many(str(place.container), place.total)
    os.sync()


# --- the work beside the searcher ---


@contextlib.contextmanager
def command(group: MemoryGroup, *words: str | Path) -> Iterator[Callable[[], None]]:
    """A command that ends by itself."""

    def act() -> None:
        subprocess.run(
            group.command(list(map(str, words))), check=True, stdout=subprocess.DEVNULL
        )

    yield act


@contextlib.contextmanager
def mounted(group: MemoryGroup, place: Place) -> Iterator[Callable[[], None]]:
    """Files written into a mount; ends when they are durable."""
    base, point = place.out / "c", place.out / "mnt"
    run(WINKFS, "create", str(base))
    with served(group.command([WINKFS, "mount", "-f", str(base), str(point)]), point) as found:

        def act() -> None:
            subprocess.run(group.command(work("files", found.path, place.total)), check=True)
            file = os.open(found.path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

        yield act


@contextlib.contextmanager
def spark(group: MemoryGroup, place: Place) -> Iterator[Callable[[], None]]:
    """The session has begun, and its memory comes on top of the limit, before the work does."""
    words = work("spark", place.out / "set", place.total)
    job = subprocess.Popen(
        group.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, bufsize=1,
    )  # fmt: skip
    assert job.stdin and job.stdout

    def act() -> None:
        assert job.stdin and job.stdout
        job.stdin.write("\n")
        assert job.stdout.readline() == "done\n", "the Spark job failed"

    try:
        assert job.stdout.readline() == "ready\n", "Spark did not start"
        yield act
        job.stdin.write("\n")
    finally:
        job.stdin.close()
        job.wait(60)


def work(kind: str, path: Path, total: int) -> list[str]:
    return [sys.executable, str(HERE / "searcher_work.py"), kind, str(path), str(total)]


Work = Callable[[MemoryGroup, Place], contextlib.AbstractContextManager[Callable[[], None]]]
WORKS: Final[dict[str, Work]] = {
    "pack": lambda g, p: command(g, WINKFS, "pack", p.tree, p.out / "c"),
    "put_many": lambda g, p: command(g, *work("put_many", p.out / "c", p.total)),
    "mount": mounted,
    "spark": spark,
    "scan": lambda g, p: command(g, *work("scan", p.container, p.total)),
    "unpack": lambda g, p: command(g, WINKFS, "unpack", p.container, p.out / "t"),
    "cat": lambda g, p: command(g, WINKFS, "cat", p.container, "*"),
    "rival: cp -r": lambda g, p: command(g, "cp", "-r", p.tree, p.out / "t"),
    "rival: tar": lambda g, p: command(g, "tar", "cf", p.out / "t.tar", "-C", p.tree, "."),
    "rival: write": lambda g, p: command(g, *work("files", p.out, p.total)),
}


# --- the searcher ---


@dataclass(frozen=True)
class Window:
    """took: ns of each read; disk: bytes; least: of the index in memory, 0..1."""

    took: npt.NDArray[np.int64]
    disk: int
    before: float
    least: float
    after: float


class Searcher:
    """A process that reads the index, in the cgroup."""

    def __init__(self, group: MemoryGroup, index: Path, room: Path) -> None:
        self.index, self.out = index, room / "latencies"
        flag = room / "stop"
        flag.write_bytes(bytes(1))
        with flag.open("r+b") as file:
            self.stop = mmap.mmap(file.fileno(), 1)
        words = [sys.executable, str(HERE / "searcher.py"), str(index), str(flag)]
        self.process = subprocess.Popen(
            group.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1,
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")

    def hear(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the searcher has ended: out of memory?"
        return line

    def warm(self) -> None:
        self.say("warm")
        self.hear()

    def window(self, act: Callable[[], None]) -> Window:
        """Read while `act` runs."""
        before = resident(self.index)
        self.stop[0] = 0
        self.say(str(self.out))
        seen, done = [before], [False]
        watcher = threading.Thread(target=self._watch, args=(seen, done))
        watcher.start()
        try:
            act()
        finally:
            self.stop[0] = 1
            done[0] = True
            watcher.join()
        disk, _ = map(int, self.hear().split())
        after = resident(self.index)
        took = np.fromfile(self.out, np.int64)
        return Window(took, disk, before, min(*seen, after), after)

    def _watch(self, seen: list[float], done: list[bool]) -> None:
        while not done[0]:
            seen.append(resident(self.index))
            time.sleep(0.2)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def resident(path: Path) -> float:
    """The part of a file that is in the page cache, by cachestat."""
    where, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if ctypes.CDLL(None, use_errno=True).syscall(CACHESTAT, fd, where, found, 0) != 0:
            raise OSError(ctypes.get_errno(), "cachestat needs Linux 6.5")
    finally:
        os.close(fd)
    return float(found[0]) * mmap.PAGESIZE / size


# --- rounds ---

Rounds = list[dict[str, Window]]  # "quiet", "beside", "own": of a cgroup of its own


def round_of(asked: Options, place: Place, room: Path, name: str) -> dict[str, Window]:
    found: dict[str, Window] = {}
    size = limit_of(asked)
    for where in ("beside", "own"):
        place.clean()
        drop_caches()
        with MemoryGroup("winkfs-searcher", size) as group, contextlib.ExitStack() as stack:
            other = group
            if where == "own":
                other = stack.enter_context(MemoryGroup("winkfs-ingest", None))
            searcher = Searcher(group, place.index, room)
            stack.callback(searcher.close)
            searcher.warm()
            act = stack.enter_context(WORKS[name](other, place))
            if name == "spark" and where == "beside":
                stack.enter_context(following(group, size, searcher))
            quiet = searcher.window(lambda: time.sleep(quiet_of(asked)))
            found.setdefault("quiet", quiet)
            start = time.perf_counter()
            found[where] = searcher.window(act)
            print(f"{name}, {where}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return found
