"""Processes that share a queue and are killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from winkfs.stores.ledgerq import Queue, create
from winkfs.stores.ledgerq.records import verify

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parent / "ledgerq_worker.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


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
        until = began + (300 if soak else 2.5)
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
