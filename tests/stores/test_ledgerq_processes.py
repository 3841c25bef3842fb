"""Processes that share a queue: they get their turns in the order in which they ask for them, and
may be killed at any moment."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from winkformats.disk import turn as turns
from winkformats.disk.paths import open_folder
from winkformats.disk.storage import Turn
from winkfs.stores.ledgerq import Queue, create
from winkfs.stores.ledgerq.records import verify

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
WORKER = Path(__file__).parent / "ledgerq_worker.py"
BUSY = """
import sys
from winkfs.stores.ledgerq import Queue
with Queue(sys.argv[1], "a", shared=True, sync="none") as queue:
    queue.push(b"x")
    print(flush=True)
    while True:
        queue.push(b"x")
"""
WAITER = """
import sys
from winkformats.disk.paths import open_folder
print("asks", flush=True)
print(open_folder(sys.argv[1]).turn("turn").take(60), flush=True)
sys.stdin.read()
"""
FLOCK = struct.Struct("hhqqi4x")


@contextmanager
def running(script: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program with pipes, which is killed in the end."""
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_from(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(str(tmp_path / "q"))
    return tmp_path / "q"


@pytest.fixture
def turn(tmp_path: Path) -> Callable[[], Turn]:
    (tmp_path / "turn").touch()
    return lambda: open_folder(str(tmp_path)).turn("turn")


def line_of(folder: Path, name: str = "turn") -> int:
    """-> how many stand in line."""
    count = at = 0
    with (folder / name).open("r+") as file:
        while True:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 0, 0)
            found = FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
            if found[0] == fcntl.F_UNLCK:
                return count
            count += found[0] == fcntl.F_WRLCK
            at = found[2] + found[3]


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.001)


def in_line(folder: Path, turn: Turn, work: Callable[[], object]) -> threading.Thread:
    """Have a thread take a turn, do some work and release it; it stands in line now."""
    before = line_of(folder)

    def run() -> None:
        assert turn.take(60)
        work()
        turn.release()

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: line_of(folder) > before)
    return thread


def test_turns_come_in_the_order_of_the_line(turn: Callable[[], Turn], tmp_path: Path) -> None:
    order: list[int] = []
    first = turn()
    assert first.take(1)
    waiting = [in_line(tmp_path, turn(), lambda i=i: order.append(i)) for i in range(6)]  # type: ignore[misc]
    first.release()
    for thread in waiting:
        thread.join()
    assert order == list(range(6))
    assert line_of(tmp_path) == 0


def test_a_process_that_had_its_turn_queues_behind_the_waiting(
    turn: Callable[[], Turn], tmp_path: Path
) -> None:
    order: list[str] = []
    busy = turn()
    assert busy.take(1)
    waiting = [in_line(tmp_path, turn(), lambda: order.append("waited")) for _ in range(2)]
    time.sleep(2 * turns.SLICE)
    busy.release()
    assert busy.take(60)
    order.append("busy")
    busy.release()
    for thread in waiting:
        thread.join()
    assert order == ["waited", "waited", "busy"]


def test_an_abandoned_turn_goes_to_the_next(turn: Callable[[], Turn], tmp_path: Path) -> None:
    first, impatient, order = turn(), turn(), list[str]()
    assert first.take(1)
    assert not impatient.take(0.05)
    next_one = in_line(tmp_path, turn(), lambda: order.append("next"))
    assert not impatient.take(0.05)
    first.release()
    next_one.join()
    assert order == ["next"]
    assert impatient.take(5)
    impatient.release()
    until(lambda: line_of(tmp_path) == 0)
    assert first.take(0.1)


def test_a_process_killed_in_line_delays_no_other(turn: Callable[[], Turn], tmp_path: Path) -> None:
    first, order = turn(), list[str]()
    assert first.take(1)
    with running(WAITER, tmp_path):
        until(lambda: line_of(tmp_path) == 1)
        behind = in_line(tmp_path, turn(), lambda: order.append("behind"))
    first.release()
    behind.join()
    assert order == ["behind"]


FORKS = """
import os, sys, threading, time
from winkfs.stores.ledgerq import Queue
queue = Queue(sys.argv[1], "a", shared=True, sync="none")
print(flush=True)
sys.stdin.readline()
threading.Thread(target=queue.push, args=(b"waits",), daemon=True).start()
sys.stdin.readline()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_child_forked_in_line_has_no_place(path: Path) -> None:
    with running(FORKS, path) as process, Queue(str(path), "a", shared=True, sync="none") as queue:
        assert process.stdin is not None
        line_from(process)
        with queue._section:
            process.stdin.write(b"\n")
            process.stdin.flush()
            until(lambda: line_of(path, "ledgerq.turn") == 1)
            process.stdin.write(b"\n")
            process.stdin.flush()
            child = int(line_from(process))
            process.kill()
            process.wait()
            until(lambda: line_of(path, "ledgerq.turn") == 0)
        os.kill(child, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.slow
def test_busy_processes_keep_a_third_waiting_for_a_short_time(path: Path) -> None:
    """Counted in messages that they push meanwhile: the machine may be busy, too."""
    waited = []
    with running(BUSY, path) as one, running(BUSY, path) as other:
        assert line_from(one) and line_from(other)
        with Queue(str(path), "a", shared=True, sync="none") as queue:
            segment = next(path.glob("*.log"))
            for _ in range(100):
                before = segment.stat().st_size
                id = queue.push(b"x")
                waited.append((queue.read(id).offset - before) // 31)
                time.sleep(0.002)
    waited.sort()
    print(f"pushed meanwhile: {waited[len(waited) // 2]}, at most {waited[-1]}")
    assert waited[-1] <= 2000


# --- work and kills ---


def start(what: str, path: str, log: Path, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(WORKER), what, path, str(log), str(seed)]
    return subprocess.Popen(command, env=ENVIRONMENT)


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def too_few(logs: list[Path]) -> bool:
    """Whether they do not have enough pushed and acknowledged to be worth a look."""
    words = Counter(line[0] for log in logs for line in lines(log))
    return words["pushed"] <= 100 or words["acked"] <= 100


class Record:
    """What the logs of all say."""

    def __init__(self, logs: list[Path]) -> None:
        self.pushed: dict[int, int] = {}
        self.acked: dict[int, int] = defaultdict(int)
        self.popped: dict[int, int] = defaultdict(int)
        for log in logs:
            last = [0, 0, 0]
            for word, *rest in lines(log):
                numbers = list(map(int, rest))
                if word == "pushed":
                    assert numbers[0] not in self.pushed, "an id was given twice"
                    self.pushed[numbers[0]] = numbers[1]
                elif word == "acked":
                    self.acked[numbers[0]] += 1
                elif word == "popped":
                    id, priority, deliveries = numbers
                    self.popped[id] += 1
                    if deliveries == 1:
                        assert id > last[priority], f"{log.name}: {id} came behind {last[priority]}"
                        last[priority] = id


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("by_priority", [False, True])
def test_work_of_killed_processes_is_neither_lost_nor_repeated(
    by_priority: bool, tmp_path: Path, seed: int, soak: bool
) -> None:
    """4 producers, 4 consumers; each is killed again and again."""
    path, rng = str(tmp_path / "q"), random.Random(seed)
    create(path, by_priority=by_priority)
    logs = [tmp_path / f"{what}{i}" for what in ("push", "pop") for i in range(4)]
    running = [start(log.name[:-1], path, log, i) for i, log in enumerate(logs)]
    kills = 0
    try:
        began = time.monotonic()
        until = began + (300 if soak else 1.5)
        # On a busy machine it takes longer until there is somebody at work to be killed.
        while time.monotonic() < until or (
            (kills <= 3 or too_few(logs)) and time.monotonic() < began + 60
        ):
            time.sleep(rng.random() * 0.3)
            i = rng.randrange(len(logs))
            if lines(logs[i])[-1:] not in ([], [["open"]]):
                running[i].send_signal(signal.SIGKILL)
                running[i].wait()
                kills += 1
                running[i] = start(logs[i].name[:-1], path, logs[i], rng.getrandbits(30))
            assert all(process.poll() is None for process in running), "one ended by itself"
    finally:
        for process in running:
            process.kill()
            process.wait()
    record = Record(logs)
    assert len(record.pushed) > 100 and len(record.acked) > 100 and kills > 3
    assert max(record.acked.values()) == 1, "one was acknowledged twice"
    with Queue(path, "a", shared=True) as queue:
        left = {message.id for message in queue.messages()}
        left |= set(queue.state.cursors[""].leased)
    assert not left & record.acked.keys(), "one was acknowledged, and is there again"
    # Who was killed between a pop and its line had at most 4; between an ack and its line one.
    lost = record.pushed.keys() - left - record.acked.keys()
    assert len(lost) <= kills + 8, f"{len(lost)} are lost"
    assert all(record.popped[id] for id in lost), "one is lost that nobody had"
    print(
        f"{len(record.pushed)} pushed, {len(record.acked)} acked, {kills} kills, {len(lost)} open"
    )
    assert not verify(path).problems
