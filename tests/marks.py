"""What a test needs of the machine is told by its marks, so that `-m` can leave it out.

Whatever starts a mount or a JVM asks `needs`, which holds the running test to its mark.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import zlib
from importlib import metadata
from pathlib import Path

import pytest

# fixture -> the mark of every test that asks for it
OF_FIXTURES = {"spark": "spark", "cluster": "spark", "spark_on": "spark", "there": "mount",
               "every": "soak"}  # fmt: skip
FIRST = ("spark", "slow", "mount")  # files with such tests take longest
ON_DISK = ("mount", "spark", "on_disk")  # else the files of a test are in memory

_TEST = re.compile(r"^((?:@.*\n(?:[ )].*\n)*)*)def (test_\w+)\(([^)]*)\)", re.MULTILINE)
# PySpark 4.1 leaves sockets to the collector, in whatever test that comes.
LEAKS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)
_running: pytest.Item | None = None


def needs(mark: str) -> None:
    """Fail where the running test has no such mark."""
    if _running is not None and not _running.get_closest_marker(mark):
        pytest.fail(f"what this test starts needs the mark: @pytest.mark.{mark}")


def only_with(module: str) -> None:
    """Skip a file of tests where a module is not installed. It is not imported: each worker of a
    run collects each file, and few of them run its tests."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)


def begins(item: pytest.Item) -> None:
    """Skip a case that is named for zstd where zstandard, which is an extra, is not installed."""
    global _running
    _running = item
    if "zstd" in item.name.partition("[")[2]:
        pytest.importorskip("zstandard")


def mark(items: list[pytest.Item]) -> None:
    """Give each test the marks of its fixtures."""
    leaks = _leaks_sockets()
    for item in items:
        for fixture in OF_FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(OF_FIXTURES[fixture])
        for what in LEAKS if leaks and item.get_closest_marker("spark") else ():
            item.add_marker(pytest.mark.filterwarnings(what))


def in_memory(item: pytest.Item) -> bool:
    """Return whether the files of a test are in memory: with --all, those of slow ones are not."""
    slow = ("slow",) if item.config.getoption("--all") else ()
    disk = any(map(item.get_closest_marker, (*ON_DISK, *slow)))
    return not disk or item.get_closest_marker("in_memory") is not None


def divide(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Divide tests into those of the suite and those that only `--all` takes: the ones marked
    `long`, and the cases of a test marked `few` beyond its number; without a number, the cases of
    whose parameters each has its value in another one.
    """
    few: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and hasattr(item, "callspec"):
            few.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = {item for item in items if item.get_closest_marker("long")}
    for cases in few.values():
        chosen, others = _each_value_once(cases)
        number = [given for mark in cases[0].iter_markers("few") for given in mark.args]
        most = number[0] if number else len(chosen)
        left.update([*chosen, *others][most:])
    return [item for item in items if item not in left], [item for item in items if item in left]


def _each_value_once(cases: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Choose cases until each value of each parameter occurs, first the one with most that have
    not occurred yet -> them, and the others."""
    values = {
        case: {(name, repr(value)) for name, value in case.callspec.params.items()}  # type: ignore[attr-defined]
        for case in sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
    }
    missing = set().union(*values.values())
    chosen = []
    while missing:
        most = max(values, key=lambda case: len(values[case] & missing))
        chosen.append(most)
        missing -= values.pop(most)
    return chosen, list(values)


def _leaks_sockets() -> bool:
    try:
        return metadata.version("pyspark").startswith("4.1.")
    except metadata.PackageNotFoundError:
        return False


def with_spark(file: Path, test: str) -> bool:
    """Whether a test starts Spark, or is one of a file that is marked so as a whole."""
    return not {test, "*"}.isdisjoint(_with_spark(file))


@functools.cache
def _with_spark(file: Path) -> set[str]:
    """Names of the tests; "*": all."""
    text = file.read_text()
    if re.search(r"^pytestmark = .*mark\.spark", text, re.MULTILINE):
        return {"*"}
    tests = _TEST.findall(text)
    return {n for marks, n, args in tests if "mark.spark" in marks or "spark: SparkSession" in args}


def longest_first(items: list[pytest.Item]) -> None:
    """Two workers end together when the long files are not the last that are handed out."""
    ranks: dict[str, int] = {}
    for item in items:
        rank = next((n for n, m in enumerate(FIRST) if item.get_closest_marker(m)), len(FIRST))
        file = item.nodeid.partition("::")[0]
        ranks[file] = min(rank, ranks.get(file, rank))
    items.sort(key=lambda item: ranks[item.nodeid.partition("::")[0]])
