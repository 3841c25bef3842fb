"""How fast are many small files read again, in random order, all checksums verified?

    get_many of 200,000 x 1 KiB against LMDB: a get each in one transaction, values as bytes; sizes
    equal and mixed (200 B to 3 KiB). `read(name)` of one file at a time against the same. Names are
    str on both sides. LMDB verifies nothing; getmulti is its own way to read many. Other single
    calls, for each of which LMDB has a get or a put: files of two extents, names that are missing,
    `in`, `stat`, and a put whose file is read at once.

winkfs runs on both paths, compiled and in Python.

Warm: both were read once through the same handles before. Cold: their files are not in the page
cache, and the handles are new; opening them is part of the time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import samples
from common import (
    MAP_SIZE,
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
from report import COMPARISON, Goal, Report

import winkfs

Read = Callable[[Any, list[str]], object]
PUT: Final = bytes(samples.KIB)
GOALS: Final = {  # of get_many, equal and mixed sizes, and of read
    "compiled": (Goal(1.0), Goal(1.0), Goal(1.0)),
    "in Python": (Goal(0.75), Goal(0.75), Goal(0.5)),
}


def main() -> None:
    asked = options(__doc__)
    question = "How fast are many small files read in random order, checksums verified?"
    report = Report(asked, "get", question, COMPARISON)
    count = asked.size(200_000, 10_000)
    ways = [
        ("equal sizes", samples.equal_sizes(count, samples.KIB)),
        ("mixed sizes", samples.mixed_sizes(count, 200, 3 * samples.KIB, samples.KIB)),
    ]
    for title, sizes in ways:
        with scratch(asked) as place:
            files = list(zip(samples.names(count), samples.values(sizes), strict=True))
            write_both(place, files)
            names = samples.in_random_order([name for name, _ in files])
            check(place, dict(files))
            del files
            read_warm(asked, report, place, names, title)
            read_cold(asked, report, place, names, title)
            if title == "equal sizes":
                other_calls(asked, report, place, names[: count // 10])
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


def read_warm(asked: Options, report: Report, place: Path, names: list[str], title: str) -> None:
    warm(*container_files(place / "container"), place / "lmdb" / "data.mdb")
    with ExitStack() as stack:
        transaction = stack.enter_context(transaction_of(place))
        cases: dict[str, Case] = {
            "get": lambda: timed(lmdb_get, transaction, names),
            "getmulti": lambda: timed(lmdb_getmulti, transaction, names),
        }
        for path in paths():  # a handle each: it keeps the way by which it reads single files
            container = stack.enter_context(container_of(place))
            for name, read in (("get_many", get_many), ("read", read_single)):
                case = on(path, lambda c=container, read=read: timed(read, c, names))  # type: ignore[misc]
                cases[f"{name}, {path}"] = case
        for case in cases.values():
            case()
        found = interleaved(cases, asked.runs)
    report.keep(f"{title}, warm", found)
    get, get_cpu = found["get"]["read"], found["get"]["cpu"]
    for path in paths():
        said = "" if path == "compiled" else f", {path}"
        goals = GOALS[path]
        (many, many_cpu), (single, single_cpu) = (
            (found[f"{name}, {path}"]["read"], found[f"{name}, {path}"]["cpu"])
            for name in ("get_many", "read")
        )
        report.compare(
            f"get_many, {len(names):,} x 1 KiB, {title}, warm{said}", many, "LMDB get", get,
            len(names), goals[title != "equal sizes"], (many_cpu, get_cpu),
        )  # fmt: skip
        multi = found["getmulti"]["read"]
        report.compare(f"- get_many, warm{said}", many, "LMDB getmulti", multi, len(names))
        report.compare(
            f"read, {title}, warm{said}", single, "LMDB get", get, len(names), goals[2],
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


# --- other calls ---


def read_missing(container: winkfs.Container, names: list[str]) -> object:
    missing = 0
    for name in names:
        try:
            container.read(name)
        except winkfs.NoSuchFile:
            missing += 1
    assert missing == len(names)
    return None


def look_in(container: winkfs.Container, names: list[str]) -> object:
    return [name in container for name in names]


def stat(container: winkfs.Container, names: list[str]) -> object:
    ask = container.stat
    for name in names:
        ask(name)
    return None


def put_and_read(container: winkfs.Container, names: list[str]) -> object:
    for name in names:
        container.put(name, PUT)
        container.read(name)
    return None


def lmdb_put_and_get(transaction: Any, names: list[str]) -> object:
    for name in names:
        key = name.encode()
        transaction.put(key, PUT)
        transaction.get(key)
    return None


def other_calls(asked: Options, report: Report, place: Path, names: list[str]) -> None:
    """Calls for which the fast way of `read` is not made. Changes the files of `place`."""
    two, missing = names[: len(names) // 2], [f"{name}.missing" for name in names]
    split_in_two(place, two)
    calls: dict[str, tuple[Read, Read, list[str]]] = {
        "read of two extents": (read_single, lmdb_get, two),
        "read of a missing name": (read_missing, lmdb_get, missing),
        "in": (look_in, lmdb_get, names),
        "in, missing": (look_in, lmdb_get, missing),
        "stat": (stat, lmdb_get, names),
    }
    for title, (ours, theirs, of) in calls.items():
        with container_of(place) as container, transaction_of(place) as transaction:
            cases: dict[str, Case] = {
                "winkfs": partial(timed, ours, container, of),
                "LMDB": partial(timed, theirs, transaction, of),
            }
            for case in cases.values():
                case()
            found = interleaved(cases, asked.runs)
        beside_lmdb(report, title, found, len(of))
    new = [f"{name}.new" for name in names]
    with ExitStack() as stack:
        writer = stack.enter_context(winkfs.open(place / "container", "a"))
        environment = lmdb_module().open(os.fspath(place / "lmdb"), map_size=MAP_SIZE)
        stack.callback(environment.close)

        def put_and_get() -> Phases:
            with environment.begin(write=True) as transaction:
                return timed(lmdb_put_and_get, transaction, new)

        cases = {"winkfs": partial(timed, put_and_read, writer, new), "LMDB": put_and_get}
        beside_lmdb(report, "put, then read", interleaved(cases, asked.runs), len(new))


def split_in_two(place: Path, names: list[str]) -> None:
    """Have these files of the container lie in two extents each."""
    with winkfs.open(place / "container", "a") as container:
        assert isinstance(container, winkfs.Container)
        halves = {name: container.read(name) for name in names}
        for name, data in halves.items():
            container.put(name, data[:512])
        container.sync()
        for name, data in halves.items():
            container.append(name, data[512:])


def beside_lmdb(
    report: Report, title: str, found: dict[str, dict[str, list[float]]], count: int
) -> None:
    report.keep(title, found)
    ours, theirs = found["winkfs"], found["LMDB"]
    report.compare(
        f"{title}, warm", ours["read"], "LMDB", theirs["read"], count, None,
        (ours["cpu"], theirs["cpu"]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
