"""Does an operation cost the same in a container of 10,000 files and in one of 10,000,000?

Files of 100 bytes with a column `score`, named 123/4567890.html, put in order of their names or in
no order, then reindexed. Each step runs in a process of its own. `get` and `stat` take 1,000 names
at random; a selection finds a thousandth of all files: by the prefix of their names, by mtime (the
order in which they were put), by the column. `close` is that of a writer after 1,000 puts.

A figure is what one file costs: one put, got, listed or found. `open` and `close` are as they are.
Warm: the files of the container are in the page cache. Cold: they are not. Of a small container
1,000 gets bring in much, and the later ones are warm; of a large one they are all cold. The first
get of a handle is cold, or warm but not mapped yet, whatever the size.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from common import Options, evict, options, scratch, warm
from report import Goal, Report

import winkfs
import winkfs.container.container  # else a first call is what is measured

SIZE: Final = 100  # bytes of a file
SOME: Final = 1000  # names that are looked up, files that are added
FIRST: Final = 50  # handles that get one file
MULTIPLIER: Final = 7_368_787  # has no divisor with a power of ten
COLUMNS: Final = {"score": "float64"}
ORDERS: Final = ("in order", "in no order")
Figures = dict[str, float]


def main() -> None:
    asked = options(__doc__, runs=3, own=lambda parser: parser.add_argument(
        "--most", type=int, default=10_000_000, help="files of the largest container"))  # fmt: skip
    counts = [10**k for k in range(3 if asked.quick else 4, 9)]
    counts = [n for n in counts if n <= (10_000 if asked.quick else asked.own.most)]
    if not asked.quick and asked.own.most not in counts:
        counts.append(asked.own.most)
    report = Report(
        asked, "flat", "Does an operation cost the same however many files there are?",
        ("what", "names", *(f"{n:,} files" for n in counts), "last against 100,000"),
    )  # fmt: skip
    for order in ORDERS:
        found: dict[str, list[Figures]] = {}
        for count in counts:
            with scratch(asked) as place:
                for step, figures in measured(asked, place, count, order).items():
                    found.setdefault(step, []).append(figures)
            print(order, count, flush=True)
        report.keep(order, found)
        for step, row in found.items():
            report.row(step, order, *map(_cell, row), _ratio(report, counts, row))
    report.note(f"Files of {SIZE} bytes with one column. CPU: user and system time of the process.")
    report.note(
        f"get: {SOME:,} names at random with one handle; cold, those bring in much of a small "
        "container, so its later ones are warm. first get: the first of a handle, which is cold, "
        "or not mapped yet, whatever the size."
    )
    report.finish()


def _cell(figures: Figures) -> str:
    return f"{_figure(figures['cost'])}, CPU {_figure(figures['cpu'])}, {figures['memory']:.0f} MiB"


def _figure(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _ratio(report: Report, counts: list[int], row: list[Figures]) -> str:
    if 100_000 not in counts or counts[-1] <= 100_000:
        return ""
    figure = row[-1]["cpu"] / row[counts.index(100_000)]["cpu"]
    return f"{report.verdict(Goal(1.5, at_most=True), figure)}: {figure:.2f}"


def name(number: int, count: int) -> str:
    """The first three digits are the directory, which has `in_directory` names."""
    digits = f"{number:0{max(len(str(count - 1)), 3)}d}"
    return f"{digits[:3]}/{digits}.html"


def in_directory(count: int) -> int:
    """A thousandth of all names where their number is a power of ten."""
    return int(10 ** max(len(str(count - 1)) - 3, 0))


def place_of(turn: int, count: int, order: str) -> int:
    """Which name is put at a turn."""
    return turn if order == ORDERS[0] else turn * MULTIPLIER % count


def measured(asked: Options, place: Path, count: int, order: str) -> dict[str, Figures]:
    """All steps -> seconds of each, for a file, on the processor, and MiB of the process."""
    base = place / "c"
    found = {"put": alone(put, base, count, order, of=count)}
    found["reindex"] = alone(reindex, base, count, order, of=count)
    files = _files(base)
    firsts = {"warm": first_get, "cold": first_get_cold}
    for cache, prepare in (("warm", warm), ("cold", evict)):
        for step, action, of in (
            ("open", opened, 1), ("first get", firsts[cache], FIRST), ("get", get, SOME),
            ("get_many", get_many, SOME), ("stat", stat, SOME), ("list", names, count),
            ("select by name", by_name, in_directory(count)),
            ("select by time", by_time, max(count // 1000, 1)),
            ("select by column", by_column, max(count // 1000, 1)),
        ):  # fmt: skip
            runs = []
            for _ in range(asked.runs):
                prepare(*files)
                runs.append(alone(action, base, count, order, of=of))
            found[f"{step}, {cache}"] = {
                key: statistics.median(run[key] for run in runs) for key in runs[0]
            }
    runs = [alone(close, base, count + k * SOME, order, of=1) for k in range(asked.runs)]
    found["close after 1,000 puts"] = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
    return found


def _files(base: Path) -> list[Path]:
    return [Path(f"{base}{suffix}") for suffix in (".data", ".idx", ".cat")]


def alone(action: Callable[..., Any], base: Path, count: int, order: str, of: int) -> Figures:
    """An action in a process of its own, which says how long its part took."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        cost, cpu, memory = pool.apply(_timed, (action, base, count, order))
    return {"cost": cost / of, "cpu": cpu / of, "memory": memory}


def _timed(
    action: Callable[..., Any], base: Path, count: int, order: str
) -> tuple[float, float, float]:
    random.seed(5)
    steps = action(base, count, order)
    cost = cpu = 0.0
    for _ in steps:  # it is ready
        begin, used = time.perf_counter(), _cpu()
        next(steps, None)
        cost, cpu = cost + time.perf_counter() - begin, cpu + _cpu() - used
    return cost, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- the steps: what lies between the first yield and the second is measured, and so on ---


def put(base: Path, count: int, order: str) -> Iterator[None]:
    data = os.urandom(SIZE)
    yield
    with winkfs.create(base, columns=COLUMNS) as container:
        turns = ((turn, place_of(turn, count, order)) for turn in range(count))
        container.put_many(
            (name(number, count), data, 1_000_000_000 + turn, {"score": number % 100_003 / 100_003})
            for turn, number in turns
        )
    yield


def reindex(base: Path, count: int, order: str) -> Iterator[None]:
    yield
    winkfs.reindex(base)
    yield


def opened(base: Path, count: int, order: str) -> Iterator[None]:
    yield
    container = winkfs.open(base)
    yield
    container.close()


def _some(count: int) -> list[str]:
    return [name(random.randrange(count), count) for _ in range(SOME)]


def get(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        wanted = _some(count)
        yield
        for one in wanted:
            container.read(one)
        yield


def first_get(base: Path, count: int, order: str, *, cold: bool = False) -> Iterator[None]:
    for wanted in _some(count)[:FIRST]:
        if cold:
            evict(*_files(base))
        with winkfs.open(base) as container:
            yield
            container.read(wanted)
            yield


def first_get_cold(base: Path, count: int, order: str) -> Iterator[None]:
    return first_get(base, count, order, cold=True)


def get_many(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        wanted = _some(count)
        yield
        found = sum(1 for _ in container.get_many(wanted))
        yield
        _expect(found, SOME)


def stat(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        wanted = _some(count)
        yield
        for one in wanted:
            container.stat(one)
        yield


def names(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        yield
        found = sum(1 for _ in container.names())
        yield
        _expect(found, count)


def by_name(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        yield
        found = sum(1 for _ in container.names("123/*"))
        yield
        _expect(found, in_directory(count))


def by_time(base: Path, count: int, order: str) -> Iterator[None]:
    start = 1_000_000_000 + count // 2
    with winkfs.open(base) as container:
        assert isinstance(container, winkfs.Container)
        yield
        found = sum(1 for _ in container.scan(start, start + count // 1000))
        yield
        _expect(found, count // 1000)


def by_column(base: Path, count: int, order: str) -> Iterator[None]:
    with winkfs.open(base) as container:
        assert isinstance(container, winkfs.Container)
        yield
        found = sum(1 for _ in container.names(where="score < 0.001"))
        yield
        assert abs(found - count / 1000) <= max(count / 10_000, 101), found


def close(base: Path, count: int, order: str) -> Iterator[None]:
    container = winkfs.open(base, "a")
    assert isinstance(container, winkfs.Container)
    for i in range(SOME):
        container.put(f"{i % 1000:03d}/new{count}-{i}", b"x" * SIZE)
    yield
    container.close()
    yield


def _expect(found: int, count: int) -> None:
    if found != count:
        raise AssertionError(f"{found} files, and not {count}")


if __name__ == "__main__":
    main()
