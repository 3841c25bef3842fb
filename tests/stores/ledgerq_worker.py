"""A process that shares a queue, to be killed: python ledgerq_worker.py push|pop QUEUE LOG SEED

It says in LOG, a line each, what has returned: `pushed ID PRIORITY`, `popped ID PRIORITY
DELIVERIES`, `acked ID`.
"""

from __future__ import annotations

import os
import random
import sys
import time

from winkfs.stores.ledgerq import Queue, Rotation

VISIBLE = 1.0


def main(what: str, path: str, log: str, seed: str) -> None:
    rng = random.Random(seed)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    with Queue(path, "a", shared=True, rotation=Rotation(messages=1000)) as queue:
        say("open")
        while True:
            if what == "push":
                options = [
                    {"payload": rng.randbytes(rng.randrange(300)), "priority": rng.randrange(3)}
                    for _ in range(rng.choice((1, 1, 5)))
                ]
                ids = queue.push_many(options)
                for id, option in zip(ids, options, strict=True):
                    say("pushed", id, option["priority"])
                time.sleep(rng.random() * 0.002)
                continue
            messages = queue.pop_many(rng.choice((1, 1, 4)), visible=VISIBLE)
            for message in messages:
                say("popped", message.id, message.priority, message.deliveries)
            for message in messages:
                if rng.random() < 0.02:
                    queue.nack(message.id, "unlucky")
                    say("nacked", message.id)
                elif queue.ack(message.id):  # else it was too late, and another one has done so
                    say("acked", message.id)
            if rng.random() < 0.002:
                queue.compact(segments=3)
            if not messages:
                time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
