"""Processes that share a queue get their turns in the order in which they ask for them."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from winkformats.disk import turn as turns
from winkformats.disk.paths import open_folder
from winkformats.disk.storage import Turn
from winkfs.stores.ledgerq import Queue, create

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
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
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
