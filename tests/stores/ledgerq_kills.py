"""A writer of a queue that is killed again and again: python ledgerq_kills.py DIR COUNT SEED

A forked child works, and says in a log what has returned; its parent kills it, and compares what is
there with what a sync had acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from winkfs.stores.ledgerq import Queue, Rotation, create
from winkfs.stores.ledgerq.records import verify

SMALL = Rotation(messages=30)


def work(path: str, log: int, rng: random.Random) -> None:
    """What a child does until it is killed."""

    def say(word: str, *ids: int) -> None:
        os.write(log, " ".join([word, *map(str, ids)]).encode() + b"\n")

    while True:
        with Queue(path, "a", sync="none", rotation=SMALL, shared=rng.random() < 0.3) as queue:
            for _ in range(rng.randint(1, 60)):
                step = rng.random()
                if step < 0.3:
                    payload = rng.randbytes(rng.randrange(200))
                    say("push", queue.push(payload, priority=rng.randrange(3)))
                elif step < 0.45:
                    say("push", *queue.push_many([rng.randbytes(9)] * rng.randint(1, 20)))
                elif step < 0.7:
                    say("take", *(m.id for m in queue.pop_many(rng.randint(1, 20))))
                elif step < 0.8:
                    ids = [m.id for m in queue.pop_many(3, visible=0)]
                    for id in ids[:2]:
                        queue.ack(id)
                    say("take", *ids[:2])
                elif step < 0.82:
                    queue.compact()
                elif step < 0.84 and queue.pending() > 50:
                    say("take", *(m.id for m in queue.pop_many(1000)))
                else:
                    queue.sync()
                    say("sync")
        say("sync")


class Parent:
    """there: what was there before this child, and was acknowledged."""

    def __init__(self, path: str) -> None:
        self.path, self.there = path, set[int]()

    def look(self, log: Path) -> None:
        """Compare, and take what is there for what is acknowledged."""
        lines = [line.split() for line in log.read_bytes().split(b"\n")[:-1]]
        synced = max((i for i, line in enumerate(lines) if line == [b"sync"]), default=-1)
        pushed, taken, later = set(self.there), set[int](), set[int]()
        for i, (word, *ids) in enumerate(lines):
            numbers = set(map(int, ids))
            if i < synced:
                (pushed if word == b"push" else taken).update(numbers)
            elif word == b"take":
                later |= numbers
        with Queue(self.path) as queue:
            found = {m.id for m in queue.messages()}
            found |= queue.state.cursors[""].leased.keys()
            ends = queue.next_id
        gone = pushed - taken - later - found
        # One whose call had not returned may be taken: the lowest ones.
        order = sorted(gone)
        assert order == sorted(pushed - taken - later)[: len(order)] and len(order) <= 1000, order
        assert not found & taken, f"handed out again: {sorted(found & taken)}"
        assert not pushed or max(pushed) < ends
        self.there = found


def main(folder: str, count: int, seed: int) -> None:
    rng, path, log = random.Random(seed), f"{folder}/q", Path(folder, "log")
    create(path, by_priority=False)
    parent, open_ended = Parent(path), 0
    for n in range(count):
        log.write_bytes(b"")
        child = os.fork()
        if not child:
            try:
                work(path, os.open(log, os.O_WRONLY | os.O_APPEND), random.Random(f"{seed} {n}"))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        time.sleep(0.002 + rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the child ended by itself"
        parent.look(log)
        open_ended += bool(log.stat().st_size)
        if n % 500 == 499:
            problems = [line for line in verify(path).problems if "are no messages" not in line]
            assert not problems, problems
    print(f"{count} kills, {open_ended} of them at work")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
