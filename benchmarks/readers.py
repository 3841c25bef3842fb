"""Programs that look at a tree: one that lists and stats, and one or more that read."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from common import Phases, Watch

BUFFER: Final = 1 << 20  # bytes a read asks for
PATIENCE: Final = 300.0  # seconds until readers must have begun


def listed(tree: Path) -> list[str]:
    """The paths of all files, in the order in which the directories tell them."""
    files: list[str] = []
    waiting = [os.fspath(tree)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = entry.path.removeprefix("./")
                (waiting if entry.is_dir(follow_symlinks=False) else files).append(path)
    return files


def stat_all(files: Sequence[str]) -> int:
    """-> the sum of the sizes."""
    return sum(os.lstat(path).st_size for path in files)


def read_all(files: Sequence[str], readers: int, total: int) -> float:
    """Read files with several processes, each of which has a part of the list.

    total       bytes that must come
    ->          seconds from when the first begins until the last has read its last byte
    """
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(readers), context.SimpleQueue()
    workers = [
        context.Process(target=_read, args=(share, barrier, answers), daemon=True)
        for share in _shares(files, readers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found: list[tuple[float, float, int]] = [answers.get() for _ in workers if not answers.empty()]
    assert len(found) == readers, "a reader failed"
    assert sum(count for _, _, count in found) == total, "not all bytes were read"
    return max(end for _, end, _ in found) - min(start for start, _, _ in found)


def look_at(count: int, total: int) -> tuple[list[str], Phases]:
    """List the tree that is the current directory, stat each file, and read all of them twice.

    count, total  files that there must be, and their bytes
    ->            the paths as listed; seconds of `list`, `stat`, `first` and `second`
    """
    watch = Watch()
    files = listed(Path())
    watch.lap("list")
    size = stat_all(files)
    watch.lap("stat")
    assert (len(files), size) == (count, total), "not the same tree"
    reads = {step: read_all(files, 1, total) for step in ("first", "second")}
    return files, watch.phases | reads


def _shares(files: Sequence[str], readers: int) -> list[Sequence[str]]:
    bounds = [len(files) * i // readers for i in range(readers + 1)]
    return [files[start:end] for start, end in itertools.pairwise(bounds)]


def _read(files: Sequence[str], barrier: Barrier, answers: Any) -> None:
    buffers, total = [bytearray(BUFFER)], 0
    barrier.wait(PATIENCE)
    start = time.perf_counter()
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        while count := os.readv(descriptor, buffers):
            total += count
        os.close(descriptor)
    answers.put((start, time.perf_counter(), total))
