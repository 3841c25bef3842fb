"""What the tests need from the process that runs them."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drawn
import folders
import marks
import pytest
import warm
from clusters import cluster as cluster  # a fixture
from constants import shrink
from constants import small_blocks as small_blocks  # a fixture
from drivers import cluster_driver as cluster_driver  # a fixture
from hypothesis import settings
from sparking import end_applications
from sparking import spark as spark  # a fixture

from winkformats import native

# A shell makes its background jobs ignore SIGINT, and children inherit that: no program that a test
# interrupts would notice. A handler, unlike SIG_IGN, is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until the tests are collected: see `pytest_collection_finish`

# Files whose tests run on both paths, compiled and in Python: see `winkformats.native`.
BOTH = {"test_hashing", "test_entry", "test_kvscan", "test_table", "test_container_read",
        "test_cut_short", "test_cut_versions", "test_damaged_names", "test_catalog_together",
        "test_directories", "test_three_answers"}  # fmt: skip

# Files whose tests parse the sources, which `scripts.house` keeps.
SOURCES = {"tests/test_cast.py", "tests/test_house.py", "tests/test_words.py"}

# name -> (number in the suite, number with --soak, what it counts)
AMOUNTS = {
    "operations": (6_000, 150_000, "system calls on a mount and a disk"),
    "fsx": (6_000, 1_000_000, "random reads and writes of one file"),
    "kills": (3, 50, "servers killed while something is written"),
    "seconds": (3, 8, "seconds of random work while syncs are slow"),
    "names": (24_000, 200_000, "names of a directory that is listed while it changes"),
    "memory": (200_000, 1_000_000, "names in a mount that may take little memory"),
    "servers": (3, 6, "servers started beside busy threads"),
    "trees": (6, 600, "random trees, listed by ids and by numbers"),
    "batches": (3, 25, "batches that Spark writes to object storage, each with a SIGKILL"),
    "histories": (75, 100_000, "histories of writers on a store that loses answers"),
    "churn": (6_000, 100_000, "files made and removed under one server"),
}

# name -> (the suite takes one in so many, --soak one in so many, of what)
EVERY = {
    "index bytes": (953, 5, "bytes of a derived file, flipped, with all questions to a container"),
    "listed bytes": (953, 10, "bytes of a derived file, flipped, with all that a mount lists"),
    "time bytes": (29, 1, "bytes of a time index, flipped"),
    "catalog bytes": (3203, 5, "bytes of a catalog with columns, flipped"),
    "column bytes": (73, 1, "bytes of a file of columns, flipped"),
    "entry bytes": (13, 1, "bytes of small files of entries, flipped"),
    "oracle bytes": (13, 1, "bytes of a container, flipped, that the oracle reads"),
    "digest bytes": (73, 3, "bytes of an index of digests, flipped, or sectors"),
    "record bytes": (13, 1, "bytes of records and derived files of data sets, flipped"),
    "first bits": (11, 1, "bits of the first entries of a file, flipped"),
    "archive bytes": (7, 1, "bytes of an archive, of which one in 97 is flipped"),
    "ring bytes": (7, 1, "bytes of a ring buffer, flipped"),
    "lengths": (13, 1, "entries whose length is damaged"),
    "data bytes": (29, 1, "places of a data file, flipped, that are drawn"),
    "content bits": (13, 1, "bits of contents, flipped, that Spark reads"),
    "failing calls": (41, 1, "calls to the disk in a life, of which each fails in turn"),
    "selections": (23, 1, "selections compared with a loop, in each state of a container"),
    "both paths": (251, 1, "bytes of a small container, flipped, read on both paths"),
    "wrong values": (11, 1, "wrong values of each parameter of a container"),
    "catalog places": (13, 1, "bytes of a catalog, flipped, that its rows are read from"),
    "block bits": (23, 1, "bits of encoded columns, flipped"),
    "name bits": (29, 1, "bits of the key of an inode, flipped"),
    "stops": (47, 1, "calls to the disk of a verb, before which it is stopped"),
    "lost files": (769, 1, "states of a store with one file that is lost or damaged"),
    "superblock bits": (3203, 1, "bits of two superblocks, flipped"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random tests of the mount")
    group.addoption("--soak", action="store_true", help="many times as much: see `make soak`")
    group.addoption("--seed", type=int, default=1, help="of the first of them (1)")
    for name, (short, long, what) in AMOUNTS.items():
        group.addoption(f"--{name}", type=int, metavar="N", help=f"{what} ({short}; {long})")
    parser.addoption("--all", action="store_true", help="all cases: see `make test-all`")
    parser.addoption("--start", type=int, help="of what is taken one in so many (0)")


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--soak"))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def amount(request: pytest.FixtureRequest, soak: bool) -> Callable[[str], int]:
    """-> how many, by the name in AMOUNTS."""

    def how_many(name: str) -> int:
        return int(request.config.getoption(f"--{name}") or AMOUNTS[name][soak])

    return how_many


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    if marks.in_memory(request.node):
        # A disk only notes what a writer reserves; in memory 4 MiB would be zeroed for each file.
        with folders.in_memory() as folder, pytest.MonkeyPatch.context() as patch:
            shrink(patch, "a sequence", step=1 << 16)
            yield folder
    else:
        yield request.getfixturevalue("tmp_path")


@pytest.fixture
def every(request: pytest.FixtureRequest, soak: bool) -> Callable[[str], slice]:
    """-> which cases are taken, by the name in EVERY: evenly spread, from a fixed start. --soak
    draws one for each test; a test that fails prints it under "Captured stdout".
    """
    start: int | None = request.config.getoption("--start")
    if start is None:
        start = random.randrange(1 << 16) if soak else 0

    def which(name: str) -> slice:
        step = EVERY[name][soak]
        print(f"one in {step} {name}: again with --start {start}")
        return slice(start % step, None, step)

    return which


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the same examples in each run of the suite, however long they take: an
    eighth of what --all draws. --soak draws new ones, and `make test-fast` few."""
    drawn_in_suite = drawn.ALL if config.getoption("--all") else drawn.ALL // 8
    settings.register_profile("suite", derandomize=True, deadline=None, max_examples=drawn_in_suite)
    settings.register_profile(
        "fast", derandomize=True, deadline=None, max_examples=10, stateful_step_count=15
    )
    if not config.getoption("--soak") and not config.getoption("--hypothesis-profile"):
        settings.load_profile("suite")


# --- the compiled path ---


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH:
        metafunc.fixturenames.insert(0, "which_path")  # what other fixtures make is made on it
        metafunc.parametrize("which_path", ["compiled", "python"], indirect=True)


@pytest.fixture
def which_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    code = native.built() if request.param == "compiled" else None
    if code is None and request.param == "compiled":
        pytest.skip("the compiled path was not built here")
    monkeypatch.setattr(native, "code", code)


# --- marks, and who runs what ---


def pytest_collection_finish() -> None:
    """The tests and modules stay to the end, and no collection need look at them, nor at what
    collecting them left: a sixth of the time of `make test-fast`. It looks less often, too."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m looks at them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks.mark(items)
    marks.longest_first(items)
    named = any("::" in argument for argument in config.args)
    if not named and not config.getoption("--all") and not config.getoption("--soak"):
        items[:], left = marks.divide(items)
        config.hook.pytest_deselected(items=left)


def pytest_sessionfinish() -> None:
    end_applications()
    warm.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marks.begins(item)
    # The worker that has Spark ends last: of two cores it gets more than the others.
    if hasattr(item.config, "workerinput") and not item.get_closest_marker("spark"):
        os.nice(max(3 - os.nice(0), 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class InOrder(LoadScopeScheduling):
        """A file to a worker, in the order of the collection; to one of them all that start Spark,
        because they share a session, applications and a cluster, and to one all that parse the
        sources."""

        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if marks.with_spark(config.rootpath / file, test.partition("[")[0]):
                return "spark"
            return "sources" if file in SOURCES else file

    config.option.loadscopereorder = False
    return InOrder(config, log)
