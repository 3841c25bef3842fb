"""Writes files until the disk is full: python disk_writer.py DIR NAME SEED

stdout: a JSON list of [name, size, seed] of the files that no call refused. Exit status 1: a call
was refused with anything but ENOSPC, or the disk did not fill up.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
from contextlib import suppress
from pathlib import Path


def write(path: Path, data: bytes, *, sync: bool) -> str | None:
    """-> the call that had no room."""
    call = "open"
    file = -1
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        call = "write"
        left = memoryview(data)
        while left:
            left = left[os.write(file, left[:65536]) :]
        if sync:
            call = "fsync"
            os.fsync(file)
        call, closing, file = "close", file, -1
        os.close(closing)
    except OSError as error:
        if file >= 0:
            with suppress(OSError):  # a close may have no room, too
                os.close(file)
        if error.errno != errno.ENOSPC:
            sys.exit(f"{path.name}: {call}: {error}")
        return call
    return None


def main() -> None:
    top, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chance, kept, refused = random.Random(seed), [], 0
    for number in range(100_000):
        size = chance.choice([100, 10_000, 70_000, 300_000])
        file = f"{name}-{number}"
        data = random.Random(number).randbytes(size)
        if write(top / file, data, sync=chance.random() < 0.3):
            refused += 1
            if refused == 20:
                print(json.dumps(kept))
                return
        else:
            kept.append([file, size, number])
    sys.exit("the disk did not fill up")


if __name__ == "__main__":
    main()
