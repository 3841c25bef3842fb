"""Does winkfs leave the page cache to others? A search engine beside an ingest of 3 GB.

A searcher reads 4 KiB at random from an index of 500 MiB, which is in memory: some thousand times a
second, so it takes a fifth of a processor. Searcher and ingest are in one memory cgroup of 600 MiB,
without swap: what the ingest leaves in the page cache takes room from the index, and a read of a
page that went waits for the disk. Each round: mount anew, warm the index, a window undisturbed, a
window beside the ingest, and both again with the ingest in a cgroup of its own. The latter has the
same work on the same processors and disk, but no hand in the memory of the searcher: what it costs
is not the page cache.

    pack        winkfs pack of a tree           cp, tar      the rivals that are not neutral
    put_many    files from memory               write        files from memory, of their own
    mount       files written into a mount; its server is in the cgroup, too
    spark       documents through the sink; the cgroup also has room for the memory of the JVM
    scan, unpack, cat   of a container of 3 GB
    find        looks at the inodes of the tree alone: what the kernel keeps of these

Each on ext4, XFS and btrfs, on a loop device (direct I/O, so nothing is cached twice).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import searcher_work
from common import Options, options, scratch
from filesystems import WINKFS, served
from memorygroup import MemoryGroup
from report import Goal, Report

MIB: Final = 1 << 20
INDEX: Final = 500 * MIB
ROOM: Final = 100 * MIB  # of the cgroup, beside the index
SPARE: Final = 16 * MIB  # by which the limit is ahead of what it follows
START: Final = 2048 * MIB  # on top, until it is known
SYSTEMS: Final = {
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"],
}  # fmt: skip
HERE: Final = Path(__file__).parent
TRIES: Final = 3  # of a window
QUIET: Final = 4  # seconds of a window undisturbed
CACHESTAT: Final = 451
LIMIT: Final = Goal(1.1, at_most=True)
COLUMNS: Final = (
    "filesystem: work", "s", "p50, us: undisturbed / beside / own cgroup", "p99, us",
    "p99.9, us", "p99 beside / undisturbed", "goal", "p99 beside / own cgroup",
    "index in memory, least / after", "the searcher had read from disk, MiB",
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
        subprocess.run(group.command(list(map(str, words))), check=True, stdout=subprocess.DEVNULL)

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


Act = Callable[[], None]
Begin = Callable[[MemoryGroup, Place], contextlib.AbstractContextManager[Act]]


@dataclass(frozen=True)
class Work:
    """begin: what runs first, in the cgroup, and yields the work itself.

    follows  the limit is raised by what the processes have in memory of their own
    goal     of p99 beside it
    """

    begin: Begin
    follows: bool = False
    goal: Goal | None = LIMIT


WORKS: Final[dict[str, Work]] = {
    "pack": Work(lambda g, p: command(g, WINKFS, "pack", p.tree, p.out / "c")),
    "put_many": Work(lambda g, p: command(g, *work("put_many", p.out / "c", p.total))),
    "mount": Work(mounted),
    "mount, memory on top": Work(mounted, follows=True),
    "Spark sink, memory on top": Work(spark, follows=True),
    "scan": Work(lambda g, p: command(g, *work("scan", p.container, p.total))),
    "cat": Work(lambda g, p: command(g, WINKFS, "cat", p.container, "*")),
    "unpack": Work(lambda g, p: command(g, WINKFS, "unpack", p.container, p.out / "t"), goal=None),
    "kernel alone: find -size": Work(
        lambda g, p: command(g, "find", p.tree, "-size", "+1G"), goal=None
    ),
    "rival: cp -r": Work(
        lambda g, p: command(g, "cp", "-r", "--reflink=never", p.tree, p.out / "t"), goal=None
    ),
    "rival: tar cf": Work(
        lambda g, p: command(g, "tar", "cf", p.out / "t.tar", "-C", p.tree, "."), goal=None
    ),
    "rival: files written": Work(
        lambda g, p: command(g, *work("files", p.out, p.total)), goal=None
    ),
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
    seconds: float = 0.0


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


def round_of(asked: Options, place: Place, room: Path, name: str) -> dict[str, Window]:
    """-> windows "quiet", "beside", and "own", of an ingest in a cgroup of its own; none where
    others have emptied the page cache in each of TRIES."""
    found: dict[str, Window] = {}
    controlled = asked.own.control and WORKS[name].goal
    for where in ("beside", "own") if controlled else ("beside",):
        for _ in range(TRIES):
            before = emptied()
            quiet, window = windows(asked, place, room, name, own=where == "own")
            if emptied() == before:
                break
            print("somebody emptied the page cache of the machine: again", file=sys.stderr)
        else:
            return {}
        found[where] = window
        found["quiet"] = joined(found.get("quiet"), quiet)
        told = ", ".join(f"{q / 1000:,.1f}" for q in quantiles(window.took))
        print(f"{name}, {where}: {window.seconds:.1f} s; p50, p99, p99.9: {told} us; least of the "
              f"index: {window.least:.1%}", file=sys.stderr, flush=True)  # fmt: skip
    return found


def rehearse(place: Place, name: str) -> None:
    """Load the programs that a work with a session runs, 450 MB of Spark's: a page is charged to
    the cgroup that first reads it, so else the first round is about programs read from disk."""
    if WORKS[name].follows:
        small = replace(place, total=searcher_work.SIZE * 1000)
        small.clean()
        with (
            MemoryGroup("winkfs-rehearsal", None) as group,
            WORKS[name].begin(group, small) as act,
        ):
            act()


def windows(
    asked: Options, place: Place, room: Path, name: str, *, own: bool
) -> tuple[Window, Window]:
    """-> undisturbed, beside the work."""
    size, work = asked.size(INDEX, INDEX // 10) + ROOM, WORKS[name]
    place.clean()
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(MemoryGroup("winkfs-searcher", size))
        other = stack.enter_context(MemoryGroup("winkfs-ingest", None)) if own else group
        searcher = Searcher(group, place.index, room)
        stack.callback(searcher.close)
        searcher.warm()
        if work.follows and not own:
            stack.enter_context(following(group, size))
        act = stack.enter_context(work.begin(other, place))
        searcher.warm()
        quiet = searcher.window(lambda: time.sleep(asked.size(QUIET, 1)))
        start = time.perf_counter()
        window = searcher.window(act)
        return quiet, replace(window, seconds=time.perf_counter() - start)


def emptied() -> int:
    """How many times somebody emptied the page cache of the machine since it began."""
    fields = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(fields["drop_pagecache"])


def joined(first: Window | None, second: Window) -> Window:
    """Both quiet windows of a round, so that what the machine does meanwhile cancels."""
    if first is None:
        return second
    took = np.concatenate((first.took, second.took))
    return replace(second, took=took, disk=first.disk + second.disk)


@contextlib.contextmanager
def following(group: MemoryGroup, size: int) -> Iterator[None]:
    """The limit of the cgroup is `size` and what processes have of their own."""
    done = threading.Event()

    def follow() -> None:
        most = 0
        while not done.wait(0.02):
            own = group.anonymous() + SPARE
            if own > most:
                group.limit(size + own)
                most = own

    group.limit(size + START)
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def quantiles(took: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """p50, p99, p99.9 of latencies, ns."""
    found = np.percentile(took, [50, 99, 99.9]) if len(took) else np.zeros(3)
    return float(found[0]), float(found[1]), float(found[2])


def row(report: Report, kind: str, name: str, rounds: list[dict[str, Window]]) -> None:
    """A row of the table: medians over the rounds."""

    def middle(where: str, which: int) -> float:
        return statistics.median(quantiles(found[where].took)[which] for found in rounds) / 1000

    def times(of: str, which: int = 1) -> float:
        return statistics.median(
            quantiles(found["beside"].took)[which] / quantiles(found[of].took)[which]
            for found in rounds
        )

    places = [where for where in ("quiet", "beside", "own") if where in rounds[0]]
    beside = [found["beside"] for found in rounds]
    goal = WORKS[name].goal
    least, after = (
        statistics.median(getattr(x, part) for x in beside) for part in ("least", "after")
    )
    report.row(
        f"{kind}: {name}", f"{statistics.median(x.seconds for x in beside):.1f}",
        *(" / ".join(f"{middle(where, which):,.1f}" for where in places) for which in range(3)),
        f"**{times('quiet'):.2f}x**", report.verdict(goal, times("quiet")),
        f"{times('own'):.2f}x" if "own" in places else "", f"{least:.1%} / {after:.1%}",
        " / ".join(f"{statistics.median(found[where].disk for found in rounds) / MIB:,.1f}"
                   for where in places),
    )  # fmt: skip
    report.keep(f"{kind}: {name}", [{where: _kept(found[where]) for where in places}
                                    for found in rounds])  # fmt: skip


def _kept(window: Window) -> dict[str, float]:
    p50, p99, p999 = quantiles(window.took)
    return {"p50": p50, "p99": p99, "p99.9": p999, "reads": len(window.took),
            "disk": window.disk, "before": window.before, "least": window.least,
            "after": window.after, "seconds": window.seconds}  # fmt: skip


def own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="some of: %(default)s")
    parser.add_argument("--works", default="", help=f"some of: {';'.join(WORKS)}")
    parser.add_argument(
        "--no-control", dest="control", action="store_false", help="no run in a cgroup of its own"
    )
    parser.add_argument("--gigabytes", type=float, default=3.0, help="of the ingest (3)")


def main() -> None:
    asked = options(__doc__, runs=1, own=own)
    kinds = asked.own.systems.split(",")
    works = asked.own.works.split(";") if asked.own.works else list(WORKS)
    check(kinds, works)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # mounts must not stay
    total = int(0.1e9 if asked.quick else asked.own.gigabytes * 1e9)
    for kind in kinds:
        question = f"Does winkfs leave the page cache to others? {kind}, {total / 1e9:g} GB"
        report = Report(asked, f"searcher-{kind}", question, COLUMNS)
        with scratch(asked) as room, filesystem(kind, room, 3 * total + 4 * INDEX, total) as place:
            fill(place, asked.size(INDEX, INDEX // 10))
            for name in works:
                rehearse(place, name)
                rounds = [round_of(asked, place, room, name) for _ in range(asked.runs)]
                if all(rounds):
                    row(report, kind, name, rounds)
                else:
                    report.note(f"{name}: no result: somebody emptied the page cache each time.")
        size = (asked.size(INDEX, INDEX // 10) + ROOM) // MIB
        report.note(
            f"One cgroup of {size} MiB with the searcher and the work; files of "
            f"{searcher_work.SIZE // 1024} KiB. Three figures: undisturbed / beside / beside, in "
            "a cgroup of its own. The goal is of p99 beside to undisturbed."
        )
        report.note(
            "Memory on top: the limit is raised by what processes have of their own (RssAnon), so "
            "the row is about the page cache alone. unpack makes files to be used: they stay."
        )
        report.finish()


def check(kinds: list[str], works: list[str]) -> None:
    """One line where it cannot run here."""
    if unknown := (set(kinds) - set(SYSTEMS)) | (set(works) - set(WORKS)):
        sys.exit(f"there is no {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        sys.exit("only root may make memory cgroups and loop devices")
    for kind in kinds:
        if not shutil.which(SYSTEMS[kind][0]):
            sys.exit(f"{SYSTEMS[kind][0]} is not installed: leave {kind} out with --systems")
    try:
        MemoryGroup("winkfs-try", None).close()
    except OSError as error:
        sys.exit(f"no memory cgroup can be made: {error}")


if __name__ == "__main__":
    main()
