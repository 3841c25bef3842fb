"""A process that does random operations on a mount and on a directory of the disk, and compares.

    python model_worker.py MOUNT DISK --seed N --operations N [--lock FILE] [--log FILE]

Without a lock MOUNT and DISK belong to this process alone; where the two differ, the history that
led there is made as short as it gets and printed, to be replayed on empty directories with

    python model_worker.py MOUNT DISK --replay FILE

With a lock the directories are shared with other processes, and each operation is done on both
while the lock is held. Exit status 1: they differ.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_chooser import Chooser
from model_operations import MAY_BE_MISSING, Operation, Twin

CHECKPOINT = 1000  # operations
SHRINKING = 30.0  # seconds


class Differ(Exception):
    """The two trees gave different answers to a call, or have different content.

    verb        of the call, or "state"
    """

    def __init__(self, verb: object, text: str) -> None:
        super().__init__(text)
        self.verb = verb


def step(mount: Twin, disk: Twin, operation: Operation) -> None:
    found = mount.do(operation)
    if isinstance(found, str) and (operation[0], found) in MAY_BE_MISSING:
        return
    wanted = disk.do(operation)
    if found != wanted:
        lost = nameless(disk, operation) if found in ("ESTALE", "ENOENT", "EINVAL") else []
        for slot in lost:  # what became of the two is not known
            mount.do(["close", slot])
            disk.do(["close", slot])
        if lost:
            return
        text = f"{brief(operation)}: {brief(found)} instead of {brief(wanted)}"
        raise Differ(operation[0], text)


def nameless(disk: Twin, operation: Operation) -> list[int]:
    """-> the open files of a call that have no name any more, which libfuse does not know in every
    call."""
    slots = [slot for slot in operation[1:3] if isinstance(slot, int) and slot in disk.files]
    return [slot for slot in slots if os.fstat(disk.files[slot]).st_nlink == 0]


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:290]}... ({len(text)} characters)"


def compare(mount: Twin, disk: Twin) -> None:
    found, wanted = mount.state(), disk.state()
    if found != wanted:
        for name in sorted(found.keys() | wanted.keys()):
            a, b = found.get(name), wanted.get(name)
            if a != b:
                raise Differ("state", f"{name!r}: {brief(a)} instead of {brief(b)}")


def replay(mount: Twin, disk: Twin, history: list[Operation]) -> Differ | None:
    """Do a history -> where the trees differ."""
    os.umask(0o22)
    try:
        for operation in history:
            step(mount, disk, operation)
        compare(mount, disk)
    except Differ as differ:
        return differ
    finally:
        mount.close_all()
        disk.close_all()
    return None


def shortened(tops: tuple[Path, Path], history: list[Operation], differ: Differ) -> list[Operation]:
    """Leave out what does not matter for a like difference, each time in new directories."""
    part, tried, end = max(1, len(history) // 2), 0, time.monotonic() + SHRINKING
    while part and time.monotonic() < end:
        at = 0
        while at < len(history) and time.monotonic() < end:
            tried += 1
            shorter = history[:at] + history[at + part :]
            twins = [Twin(top / f"shrink{tried}", disk=i == 1) for i, top in enumerate(tops)]
            for twin in twins:
                os.mkdir(twin.top)
            found = replay(twins[0], twins[1], shorter)
            if found and found.verb == differ.verb:
                history = shorter
            else:
                at += part
        part //= 2
    return history


@contextmanager
def locked(file: int | None) -> Iterator[None]:
    if file is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield
    if file is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


def alone(tops: tuple[Path, Path], seed: int, operations: int) -> None:
    chooser, history = Chooser(seed), []
    mount, disk = Twin(tops[0] / "tree"), Twin(tops[1] / "tree", disk=True)
    for twin in (mount, disk):
        os.makedirs(twin.top, exist_ok=True)
    before = bool(mount.state())
    try:
        for number in range(operations):
            history.append(chooser.next(list(disk.files)))
            step(mount, disk, history[-1])
            if number % CHECKPOINT == CHECKPOINT - 1:
                compare(mount, disk)
        mount.close_all()
        disk.close_all()
        compare(mount, disk)
    except Differ as differ:
        os.umask(0o22)
        print(f"seed {seed}, operation {len(history)}: {differ}")
        history = history[-60:] if before else shortened(tops, history, differ)
        print("replay:", json.dumps(history))
        sys.exit(1)


def together(tops: tuple[Path, Path], seed: int, operations: int, lock: Path, log: Path) -> None:
    """What went before is in the log, of all processes in the order of the operations."""
    chooser = Chooser(seed)
    mount, disk = Twin(tops[0]), Twin(tops[1], disk=True)
    with lock.open("w") as held, log.open("a", buffering=1) as history:
        for _ in range(operations):
            operation = chooser.next(list(disk.files))
            with locked(held.fileno()):
                history.write(f"{os.getpid()} {json.dumps(operation)}\n")
                try:
                    step(mount, disk, operation)
                except Differ as differ:
                    history.write(f"{os.getpid()} {differ}\n")
                    print(f"seed {seed}: {differ}")
                    print("".join(log.read_text().splitlines(keepends=True)[-60:]))
                    sys.exit(1)
        with locked(held.fileno()):
            mount.close_all()
            disk.close_all()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tops", type=Path, nargs=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    os.umask(0o22)
    if given.replay:
        twins = [Twin(top, disk=i == 1) for i, top in enumerate(given.tops)]
        differ = replay(twins[0], twins[1], json.loads(given.replay.read_text()))
        sys.exit(str(differ) if differ else 0)
    if given.lock:
        together(tuple(given.tops), given.seed, given.operations, given.lock, given.log)
    else:
        alone(tuple(given.tops), given.seed, given.operations)


if __name__ == "__main__":
    main()
