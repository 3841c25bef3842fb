"""How many entries a second do reindex and verify read?

A container of 500,000 files of 200 B to 1 KiB, that is 1 million entries of its sequence (an
inode and a content each), HTALGO 2 (XXH3). reindex checks all inode entries and writes the index,
durable; verify checks every entry, inode, extent, counter and cell. For comparison: to read the
same bytes in pieces of 8 MiB, and to look at each entry of an LMDB environment of the same files
(it checks nothing).

winkfs runs on both paths, compiled and in Python.

Warm: the file is in the page cache. Cold: it is not.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import samples
from common import (
    PIECE,
    Case,
    Options,
    Phases,
    Watch,
    container_files,
    evict,
    interleaved,
    lmdb_module,
    on,
    options,
    paths,
    scratch,
    warm,
    write_both,
)
from report import Goal, Report, seconds

import winkfs

COLUMNS: Final = (
    "what",
    "page cache",
    "s (range)",
    "entries/s",
    "MiB/s",
    "goal, entries/s",
    "CPU, s",
)


GOALS: Final = {  # entries/s of reindex and verify
    "compiled": (Goal(2_000_000), Goal(1_000_000)),
    "in Python": (Goal(900_000), Goal(700_000)),
}


def main() -> None:
    asked = options(__doc__)
    report = Report(
        asked, "reindex", "How many entries a second do reindex and verify read?", COLUMNS
    )
    count = asked.size(500_000, 20_000)
    with scratch(asked) as place:
        write(place, count)
        with winkfs.open(place / "container") as container:
            assert isinstance(container, winkfs.Container)
            block = container.superblock
        assert (block["ENTRIES"], block["HTALGO"]) == (2 * count, 2)
        for cache in ("warm", "cold"):
            measure(asked, report, place, count, cache)
    report.note(f"{count:,} files, {2 * count:,} entries. Rates are of the median run.")
    report.note("The rows without a goal are for comparison: they check nothing.")
    report.finish()


def write(place: Path, count: int) -> None:
    sizes = samples.mixed_sizes(count, 200, samples.KIB, 560)
    write_both(place, list(zip(samples.names(count), samples.values(sizes), strict=True)))


def measure(asked: Options, report: Report, place: Path, count: int, cache: str) -> None:
    base = place / "container"
    ours, theirs = container_files(base), [place / "lmdb" / "data.mdb"]
    prepare = warm if cache == "warm" else evict
    ways: list[tuple[str, list[Path], Callable[[], Any], Goal | None]] = []
    for path in paths():
        said = "" if path == "compiled" else f", {path}"
        goals = GOALS[path]
        ways += [
            (f"winkfs.reindex{said}", ours, lambda: winkfs.reindex(base), goals[0]),
            (f"winkfs.verify{said}", ours, lambda: winkfs.verify(base), goals[1]),
        ]
    ways += [
        ("read the file", ours, lambda: read_file(ours[0]), None),
        ("walk over LMDB", theirs, lambda: walk_lmdb(place / "lmdb"), None),
    ]
    cases: dict[str, Case] = {
        name: on(
            "in Python" if name.endswith("in Python") else paths()[0],
            lambda files=files, act=act: timed(prepare, files, act),  # type: ignore[misc]
        )
        for name, files, act, _ in ways
    }
    found = interleaved(cases, asked.runs)
    assert winkfs.verify(base).problems == []
    report.keep(cache, found)
    for name, files, _, goal in ways:
        runs = found[name]["all"]
        median = statistics.median(runs)
        entries = count if files is theirs else 2 * count
        size = files[0].stat().st_size / 2**20
        verdict = report.verdict(goal if cache == "warm" else None, entries / median)
        report.row(
            name, cache, seconds(runs), f"{entries / median:,.0f}", f"{size / median:,.0f}",
            verdict, f"{statistics.median(found[name]['cpu']):.2f}",
        )  # fmt: skip


def timed(prepare: Callable[..., None], files: list[Path], action: Callable[[], Any]) -> Phases:
    prepare(*files)
    os.sync()
    watch = Watch()
    action()
    watch.total("all")
    return watch.phases


def read_file(path: Path) -> None:
    buffer = bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def walk_lmdb(path: Path) -> None:
    environment = lmdb_module().open(os.fspath(path), readonly=True, lock=False)
    with environment.begin() as transaction:
        for _ in transaction.cursor():
            pass
    environment.close()


if __name__ == "__main__":
    main()
