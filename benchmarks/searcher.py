"""A search engine that reads its index at random, in a process of its own.

    python searcher.py INDEX STOP

A line on standard input begins a window; it names the file for the latencies (int64, ns). Reads
4 KiB at random, PAUSE apart, until the first byte of the file STOP is not 0, then prints a line:
bytes that it had the disk read, and major faults, of this window. "warm" reads all of the index,
twice, so that the kernel takes its pages for active ones.
"""

from __future__ import annotations

import array
import mmap
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Final

PAUSE: Final = 100e-6  # seconds
PIECE: Final = 1 << 20


def warm(file: int) -> None:
    buffer = bytearray(PIECE)
    for _ in range(2):
        offset = 0
        while count := os.preadv(file, [buffer], offset):
            offset += count


def from_disk() -> tuple[int, int]:
    """Bytes this process had the disk read; its major faults."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"]), resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def window(file: int, stop: mmap.mmap, out: Path) -> str:
    """-> what the disk did."""
    pages = os.fstat(file).st_size // mmap.PAGESIZE
    buffers, took = [bytearray(mmap.PAGESIZE)], array.array("q")
    chosen, clock, preadv, sleep = random.Random(1), time.perf_counter_ns, os.preadv, time.sleep
    before = from_disk()
    while not stop[0]:
        offset = chosen.randrange(pages) * mmap.PAGESIZE
        start = clock()
        preadv(file, buffers, offset)
        took.append(clock() - start)
        sleep(PAUSE)
    after = from_disk()
    out.write_bytes(took.tobytes())
    return f"{after[0] - before[0]} {after[1] - before[1]}"


def main() -> None:
    file = os.open(sys.argv[1], os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    flag = os.open(sys.argv[2], os.O_RDWR)
    stop = mmap.mmap(flag, 1)
    for line in sys.stdin:
        if line.strip() == "warm":
            warm(file)
            print("warm", flush=True)
        else:
            print(window(file, stop, Path(line.strip())), flush=True)


if __name__ == "__main__":
    main()
