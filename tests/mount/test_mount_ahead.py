"""Readahead over files: what is pushed is right, bounded, stops, and hangs nobody."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from mounting import WINKFS, cool, leave_dead, mounted, serving, soon
from mounting import there as there  # a fixture
from stored import make
from threaded import in_threads

import winkfs
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.numbers import TOP, Numbers
from winkmount.kernel.ahead import (
    BEYOND,
    FIRST_PUSHED,
    LARGEST_PUSHED,
    MOST_PUSHED,
    Ahead,
    Batch,
    Waiting,
)
from winkmount.kernel.giving import FREE_NUMBERS, IN_VAIN, PROBES, Giving

FILES: Final = 600
PER_FOLDER: Final = 150


def content(i: int) -> bytes:
    """Mostly small; some are not pushed: too large, or empty."""
    size = LARGEST_PUSHED + 5000 if i % 97 == 50 else 0 if i % 41 == 7 else 900 + i * 7919 % 20_000
    return (b"%06d " % i * (size // 7 + 1))[:size]


def name(i: int) -> str:
    return f"folder{i // PER_FOLDER}/page{i:05d}"


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    base = str(tmp_path / "corpus")
    make(base, ((name(i), content(i)) for i in range(FILES)))
    winkfs.reindex(base)
    return base


# --- which files are pushed ---


class Pushes:
    """An `Ahead` over the numbers of a container that notes what it pushes and answers."""

    def __init__(self, base: str) -> None:
        self.source = ContainerSource(winkfs.open(base))
        found = self.source.numbered()
        assert found is not None
        self.numbers: Numbers = found
        self.pushed, self.answered = list[int](), list[int]()
        self.going, self.gate = list[int](), threading.Event()  # much that is being pushed
        self.gate.set()
        self.ahead = Ahead(found, self._push, self._answer)
        folders = [found.find(TOP, b"folder%d" % i)[0] for i in range(FILES // PER_FOLDER)]
        self.nodes = [
            found.find(folders[i // PER_FOLDER], name(i).partition("/")[2].encode())[0]
            for i in range(FILES)
        ]

    def _answer(self, unique: int, node: int, body: bytes) -> None:
        self.answered.append(node)

    def _push(self, batch: Batch) -> None:
        page, chosen = batch
        if len(chosen) >= BEYOND // 2 + 1:
            self.going = [self.nodes.index(node) for node in page.nodes[chosen].tolist()]
            assert self.gate.wait(20)
            self.going = []
        contents = self.numbers.contents(page, chosen)
        for i, data in zip(chosen.tolist(), contents, strict=True):
            number = self.nodes.index(int(page.nodes[i]))
            assert data is None or bytes(data) == content(number)
            self.pushed.append(number)

    def read(self, i: int) -> bool:
        """Read a file that was not pushed -> whether others were, before its answer."""
        if not self.ahead.takes((i, self.nodes[i], b"")):
            return False
        while self.ahead.busy or self.answered[-1:] != [self.nodes[i]]:
            time.sleep(0.001)
        return True

    def close(self) -> None:
        self.ahead.end()
        self.source.close()


@pytest.fixture
def pushes(corpus: str) -> Iterator[Pushes]:
    found = Pushes(corpus)
    yield found
    found.close()


def test_files_in_order_are_pushed_once_with_few_requests(pushes: Pushes) -> None:
    asked = 0
    for i in range(FILES):
        if i not in pushes.pushed:
            pushes.read(i)
            asked += 1
    assert len(pushes.pushed) == len(set(pushes.pushed)) >= FILES * 0.8
    assert asked <= FILES * 0.2
    assert not any(len(content(i)) in (0, LARGEST_PUSHED + 5000) for i in pushes.pushed)


def test_only_a_reader_of_the_left_out_file_waits_for_the_pushes(
    pushes: Pushes,
) -> None:
    pushes.gate.clear()
    i = 0
    while not pushes.going:
        taken = pushes.ahead.takes((i, pushes.nodes[i], b"")) if i not in pushes.pushed else False
        while taken and pushes.nodes[i] not in pushes.answered:
            time.sleep(0.001)
        while pushes.ahead.busy and not pushes.going:
            time.sleep(0.001)
        i += 1
    going = pushes.going
    marked = max(j for j in range(going[0]) if 0 < len(content(j)) <= LARGEST_PUSHED)
    assert marked not in pushes.pushed
    assert pushes.ahead.takes((marked, pushes.nodes[marked], b""))
    assert not pushes.ahead.takes((going[3], pushes.nodes[going[3]], b""))  # or it would hang
    assert pushes.nodes[marked] not in pushes.answered
    pushes.gate.set()
    soon(lambda: not pushes.ahead.busy)
    assert pushes.nodes[marked] == pushes.answered[-1]
    assert set(going) < set(pushes.pushed)


def test_random_reads_push_little(pushes: Pushes) -> None:
    order = list(range(FILES))
    random.Random(3).shuffle(order)
    for i in order:
        if i not in pushes.pushed:
            pushes.read(i)
    assert len(pushes.pushed) < FILES // 10


def test_a_reader_that_stops_gets_at_most_twice_what_it_read(pushes: Pushes) -> None:
    for stop in (3, 10, 40):
        pushes.pushed.clear()
        for i in range(PER_FOLDER, PER_FOLDER + stop):
            if i not in pushes.pushed:
                pushes.read(i)
        beyond = [i for i in pushes.pushed if i >= PER_FOLDER + stop]
        assert len(beyond) <= max(2 * stop, FIRST_PUSHED)
        assert len(beyond) <= MOST_PUSHED
        pushes.read(5)  # somewhere else
        pushes.read(FILES - 5)


def test_two_readers_in_order_at_the_same_time(pushes: Pushes) -> None:
    for i in range(PER_FOLDER):
        for start in (0, 2 * PER_FOLDER):
            if start + i not in pushes.pushed:
                pushes.read(start + i)
    assert len(pushes.pushed) == len(set(pushes.pushed)) >= 2 * PER_FOLDER * 0.8


def test_readers_that_would_wait_for_the_disk_wait_in_threads(corpus: str) -> None:
    cool(corpus + ".data")
    with closing(ContainerSource(winkfs.open(corpus))) as source:
        numbers = source.numbered()
        assert numbers is not None
        folder = numbers.find(TOP, b"folder1")[0]
        node = numbers.find(folder, b"page00151")[0]
        other = numbers.find(numbers.find(TOP, b"folder3")[0], b"page00599")[0]
        answered, done = list[int](), threading.Event()

        def answer(unique: int, node: int, body: bytes) -> None:
            assert numbers.present(node, 4096)
            answered.append(node)
            done.set()

        cool(corpus + ".data")
        if numbers.present(node, 4096):  # to ask begins to read it: not of `other`
            pytest.skip("this filesystem does not drop pages, or does not tell")
        waiting = Waiting(numbers, answer)
        waiting.takes((1, node, b""), 4096, caller=7)
        assert not waiting.takes((2, other, b""), 4096, caller=7)  # one reader
        assert waiting.takes((3, other, b""), 4096, caller=8)
        assert done.wait(20)
        assert not waiting.takes((4, other, b""), 4096, caller=9)  # it is there by now
        waiting.end()
        assert waiting.busy == 0
        assert other in answered


# --- which numbers are given ---


def test_further_numbers_are_given_only_during_lookups() -> None:
    giving, folder = Giving(lambda numbers: False, None), 5
    giving.begins()
    assert giving.gives(folder, FREE_NUMBERS) == FREE_NUMBERS
    giving.gave(FREE_NUMBERS)
    assert giving.gives(folder, 10) == 0
    giving.looked_up(7)  # in another directory
    assert giving.gives(folder, 10) == 0
    giving.looked_up(folder)
    given = [giving.gives(folder, 10) for _ in range(2 * PROBES)]
    assert given.count(9) == 2  # one file is left out now and then:
    giving.looked_up(folder)  # they still are
    # find lists 100,000 names before it looks at the first
    given = [giving.gives(folder, 500) for _ in range(IN_VAIN // 500 + 2 * PROBES)]
    assert 0 not in given[: 100_000 // 500]
    assert given[-1] == 0  # they are not any more
    giving.forget([folder, FREE_NUMBERS])
    assert giving.gives(folder, 10) == 10


# --- through the kernel ---


def read_all(top: Path, order: list[int]) -> None:
    assert [i for i in order if (top / name(i)).read_bytes() != content(i)] == []


@pytest.mark.mount
@pytest.mark.parametrize("cold", [False, True])
def test_several_readers_in_and_out_of_order_read_what_is_there(corpus: str, cold: bool) -> None:
    chance = random.Random(5)
    forward = list(range(FILES))
    orders = [forward, forward[::-1], forward[::3], chance.sample(forward, FILES), forward]
    if cold:
        cool(corpus + ".data")
    with mounted(corpus, "--ro") as there:
        in_threads(*[partial(read_all, there, order) for order in orders])


def readers_of(there: Path, seconds: float) -> list[subprocess.Popen[bytes]]:
    """Two programs that read all files three times; they began some seconds ago."""
    command = f"for turn in 1 2 3; do cat {there}/folder*/* >/dev/null 2>&1; done"
    readers = [subprocess.Popen(["sh", "-c", command]) for _ in range(2)]
    time.sleep(seconds)
    return readers


@pytest.mark.mount
@pytest.mark.parametrize("seconds", [0.02, 0.06])
def test_a_server_that_is_killed_while_it_pushes_hangs_no_reader(
    corpus: str, seconds: float
) -> None:
    with mounted(corpus, "--ro") as there:
        readers = readers_of(there, seconds)
        leave_dead(there)
        for reader in readers:
            reader.wait(30)


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("seconds", [0.02, 0.06])
def test_a_server_that_is_ended_while_it_pushes_hangs_no_reader(
    corpus: str, there: Path, seconds: float
) -> None:
    with serving([*WINKFS, "mount", corpus, str(there), "--ro", "-f"], there):
        readers = readers_of(there, seconds)
    for reader in readers:
        reader.wait(30)
