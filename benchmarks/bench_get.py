"""How fast are many small files read again, in random order, all checksums verified?

    get_many of 200,000 x 1 KiB against LMDB: a get each in one transaction, values as bytes; sizes
    equal and mixed (200 B to 3 KiB). `read(name)` of one file at a time against the same. Names are
    str on both sides. LMDB verifies nothing; getmulti is its own way to read many.

Warm: both were read once through the same handles before. Cold: their files are not in the page
cache, and the handles are new; opening them is part of the time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import samples
from common import (
    Case,
    Options,
    Phases,
    Watch,
    container_files,
    evict,
    interleaved,
    lmdb_module,
    options,
    scratch,
    warm,
    write_both,
)
from report import COMPARISON, Goal, Report

import winkfs

Read = Callable[[Any, list[str]], object]


def main() -> None:
    asked = options(__doc__)
    question = "How fast are many small files read in random order, checksums verified?"
    report = Report(asked, "get", question, COMPARISON)
    count = asked.size(200_000, 10_000)
    ways = [
        ("equal sizes", samples.equal_sizes(count, samples.KIB), Goal(0.75)),
        ("mixed sizes", samples.mixed_sizes(count, 200, 3 * samples.KIB, samples.KIB), Goal(0.65)),
    ]
    for title, sizes, goal in ways:
        with scratch(asked) as place:
            files = list(zip(samples.names(count), samples.values(sizes), strict=True))
            write_both(place, files)
            names = samples.in_random_order([name for name, _ in files])
            check(place, dict(files))
            del files
            read_warm(asked, report, place, names, title, goal)
            read_cold(asked, report, place, names, title)
    report.note("Warm files are in the page cache and mapped. LMDB reads without verifying.")
    report.finish()


def check(place: Path, files: dict[str, bytes]) -> None:
    """What is timed below gives the right answers."""
    names, contents = list(files), list(files.values())
    with container_of(place) as container:
        assert list(container.get_many(names)) == contents
        assert [container.read(name) for name in names] == contents
    with transaction_of(place) as transaction:
        assert [transaction.get(name.encode()) for name in names] == contents


@contextmanager
def container_of(place: Path) -> Iterator[winkfs.Container]:
    with winkfs.open(place / "container") as container:
        assert isinstance(container, winkfs.Container)
        yield container


@contextmanager
def transaction_of(place: Path) -> Iterator[Any]:
    environment = lmdb_module().open(os.fspath(place / "lmdb"), readonly=True, lock=False)
    try:
        with environment.begin(buffers=False) as transaction:
            yield transaction
    finally:
        environment.close()


# --- the ways to read ---


def get_many(container: winkfs.Container, names: list[str]) -> object:
    return deque(container.get_many(names), maxlen=0)


def read_single(container: winkfs.Container, names: list[str]) -> object:
    read = container.read
    for name in names:
        read(name)
    return None


def lmdb_get(transaction: Any, names: list[str]) -> object:
    get = transaction.get
    for name in names:
        get(name.encode())
    return None


def lmdb_getmulti(transaction: Any, names: list[str]) -> object:
    cursor = transaction.cursor()
    for at in range(0, len(names), 1024):
        deque(cursor.getmulti([name.encode() for name in names[at : at + 1024]]), maxlen=0)
    return None


# --- warm and cold ---


def read_warm(
    asked: Options, report: Report, place: Path, names: list[str], title: str, goal: Goal
) -> None:
    warm(*container_files(place / "container"), place / "lmdb" / "data.mdb")
    with container_of(place) as container, transaction_of(place) as transaction:
        get_many(container, names)
        lmdb_get(transaction, names)
        cases: dict[str, Case] = {
            "get_many": lambda: timed(get_many, container, names),
            "read": lambda: timed(read_single, container, names),
            "get": lambda: timed(lmdb_get, transaction, names),
            "getmulti": lambda: timed(lmdb_getmulti, transaction, names),
        }
        found = interleaved(cases, asked.runs)
    report.keep(f"{title}, warm", found)
    many, single, get, multi = (found[name]["read"] for name in cases)
    many_cpu, single_cpu, get_cpu, _ = (found[name]["cpu"] for name in cases)
    case = f"get_many, {len(names):,} x 1 KiB, {title}, warm"
    report.compare(case, many, "LMDB get", get, len(names), goal, (many_cpu, get_cpu))
    report.compare("- get_many, warm", many, "LMDB getmulti", multi, len(names))
    report.compare(
        f"read, {title}, warm", single, "LMDB get", get, len(names), Goal(0.45),
        (single_cpu, get_cpu),
    )  # fmt: skip


def timed(read: Read, handle: Any, names: list[str]) -> Phases:
    watch = Watch()
    read(handle, names)
    watch.total("read")
    return watch.phases


def read_cold(asked: Options, report: Report, place: Path, names: list[str], title: str) -> None:
    def ours() -> Phases:
        evict(*container_files(place / "container"))
        watch = Watch()
        with container_of(place) as container:
            get_many(container, names)
            watch.total("read")
        return watch.phases

    def theirs() -> Phases:
        evict(place / "lmdb" / "data.mdb")
        watch = Watch()
        with transaction_of(place) as transaction:
            lmdb_get(transaction, names)
            watch.total("read")
        return watch.phases

    found = interleaved({"get_many": ours, "get": theirs}, asked.runs)
    report.keep(f"{title}, cold", found)
    report.compare(
        f"get_many, {title}, cold", found["get_many"]["read"],
        "LMDB get", found["get"]["read"], len(names),
    )  # fmt: skip


if __name__ == "__main__":
    main()
