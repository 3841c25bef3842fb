"""How fast are many small files written, until they are durable?

    200,000 x about 1 KiB, sizes mixed (200 B to 3 KiB) and equal, against LMDB: all puts in one
    transaction, which is synced. Names are str on both sides, 20 to 31 bytes, ascending (as
    a walk over a tree gives them, and as LMDB likes them) or shuffled.
    50,000 x 16 KiB against a plain file: b"".join of 1,000 values, pwritev, fsync, with the same
    preallocation, cached and with RWF_DONTCACHE; the goal is set to the better of both in each run.

winkfs runs on both paths, compiled and in Python.

Each run starts with an empty container, environment or file, made before the clock starts.
"""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path
from typing import Final

import samples
from common import (
    MAP_SIZE,
    Case,
    Options,
    Phases,
    Watch,
    best_of,
    interleaved,
    lmdb_module,
    on,
    options,
    paths,
    scratch,
)
from report import COMPARISON, Goal, Report

import winkfs
from winkformats.disk.posix import RWF_DONTCACHE
from winkformats.kv.superblock import FILEINCR

Files = list[tuple[str, bytes]]
JOINED: Final = 1000  # values in one raw write
SMALL_GOALS: Final = {"compiled": Goal(2.0), "in Python": Goal(1.5)}
LARGE_GOALS: Final = {"compiled": Goal(0.95), "in Python": Goal(0.85)}


def main() -> None:
    asked = options(__doc__)
    question = "How fast are many small files written, until they are durable?"
    report = Report(asked, "put", question, COMPARISON)
    with scratch(asked) as place:
        small(asked, report, place)
        large(asked, report, place)
    report.note(
        "Not durable: until put_many returned, or the last put of the transaction. Durable: with "
        "sync, or with commit, which syncs. Close comes after that and is not in either."
    )
    report.finish()


def small(asked: Options, report: Report, place: Path) -> None:
    """1 KiB files against LMDB."""
    count = asked.size(200_000, 10_000)
    mixed = samples.mixed_sizes(count, 200, 3 * samples.KIB, samples.KIB)
    equal = samples.equal_sizes(count, samples.KIB)
    ways = [
        ("mixed sizes", mixed, False),
        ("mixed sizes, names shuffled", mixed, True),
        ("equal sizes", equal, False),
    ]
    for title, sizes, shuffled in ways:
        names = samples.names(count, shuffled=shuffled)
        files = list(zip(names, samples.values(sizes), strict=True))
        cases: dict[str, Case] = {
            **{path: on(path, lambda files=files: put_winkfs(place, files)) for path in paths()},  # type: ignore[misc]
            "LMDB": lambda files=files: put_lmdb(place, files),  # type: ignore[misc]
            "LMDB putmulti": lambda files=files: put_lmdb(place, files, multi=True),  # type: ignore[misc]
        }
        found = interleaved(cases, asked.runs)
        report.keep(title, found)
        for path in paths():
            case = f"{count:,} x 1 KiB, {title}"
            case += "" if path == "compiled" else f", {path}"
            ours, theirs = found[path], found["LMDB"]
            cpu, goal = (ours["cpu"], theirs["cpu"]), SMALL_GOALS[path]
            report.compare(case, ours["durable"], "LMDB", theirs["durable"], count, goal, cpu)
            multi = found["LMDB putmulti"]["durable"]
            report.compare("- durable", ours["durable"], "LMDB putmulti", multi, count)
            report.compare("- not durable", ours["put"], "LMDB", theirs["put"], count)
            report.compare("- close alone", ours["close"], "LMDB", theirs["close"], count)


def put_winkfs(place: Path, files: Files) -> Phases:
    base = place / "container"
    container = winkfs.create(base)
    os.sync()
    watch = Watch()
    container.put_many(files)
    watch.lap("put")
    container.sync()
    watch.total("durable")
    container.close()
    watch.lap("close")
    assert_written(base, len(files))
    for path in place.glob("container.*"):
        path.unlink()
    return watch.phases


def assert_written(base: Path, count: int) -> None:
    with winkfs.open(base) as container:
        assert len(container) == count


def put_lmdb(place: Path, files: Files, *, multi: bool = False) -> Phases:
    path = place / "lmdb"
    environment = lmdb_module().open(os.fspath(path), map_size=MAP_SIZE)
    os.sync()
    watch = Watch()
    transaction = environment.begin(write=True)
    if multi:
        transaction.cursor().putmulti((name.encode(), data) for name, data in files)
    else:
        put = transaction.put
        for name, data in files:
            put(name.encode(), data)
    watch.lap("put")
    transaction.commit()  # with LMDB's defaults, also a sync
    watch.total("durable")
    assert environment.stat()["entries"] == len(files)
    environment.close()
    watch.lap("close")
    shutil.rmtree(path)
    return watch.phases


def large(asked: Options, report: Report, place: Path) -> None:
    """16 KiB files against a plain file."""
    count = asked.size(50_000, 2_000)
    values = samples.values(samples.equal_sizes(count, 16 * samples.KIB))
    files = list(zip(samples.names(count), values, strict=True))
    found = interleaved(
        {
            **{path: on(path, lambda: put_winkfs(place, files)) for path in paths()},
            "raw cached": lambda: write_raw(place, values, 0),
            "raw uncached": lambda: write_raw(place, values, RWF_DONTCACHE),
        },
        asked.runs,
    )
    case = f"{count:,} x 16 KiB"
    report.keep(case, found)
    cached, uncached = found["raw cached"], found["raw uncached"]
    best = best_of(cached["durable"], uncached["durable"])
    for path in paths():
        ours, said = found[path], case if path == "compiled" else f"{case}, {path}"
        goal = LARGE_GOALS[path]
        report.compare(said, ours["durable"], "raw, the better", best, count, goal)
        report.compare("- durable", ours["durable"], "raw cached", cached["durable"], count)
        cpu = ours["cpu"], uncached["cpu"]
        theirs = uncached["durable"]
        report.compare("- durable", ours["durable"], "raw DONTCACHE", theirs, count, cpu=cpu)
        report.compare("- not durable", ours["put"], "raw DONTCACHE", uncached["put"], count)
        speed = count * 16 / 1024 / statistics.median(ours["durable"])
        report.note(f"The 16 KiB files were written with {speed:,.0f} MiB/s, durable, {path}.")


def write_raw(place: Path, values: list[bytes], flags: int) -> Phases:
    path = place / "raw"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.sync()
    watch = Watch()
    end = reserved = 0
    for at in range(0, len(values), JOINED):
        data = b"".join(values[at : at + JOINED])
        stop = -(-(end + len(data)) // FILEINCR) * FILEINCR
        if stop > reserved:  # as winkfs does
            os.posix_fallocate(file, reserved, stop - reserved)
            reserved = stop
        assert os.pwritev(file, [data], end, flags) == len(data)
        end += len(data)
    watch.lap("put")
    os.fsync(file)
    watch.total("durable")
    os.close(file)
    watch.lap("close")
    path.unlink()
    return watch.phases


if __name__ == "__main__":
    main()
