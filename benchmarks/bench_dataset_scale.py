"""What do reading, planning and committing cost in a data set of 2,000,000 shards?

The shards are not there: one manifest names them, each with 500 files of 4 KiB whose names no other
shard has. Each step runs in a process of its own, and a figure has what Python itself takes. The
plans are those of Spark. `commit` adds one shard, which is there; every 64th manifest has all
records. The folder is on a disk of this machine.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from common import Options, options, scratch
from report import Report

FILES: Final = 500  # of a shard
SIZE: Final = 4 << 10  # bytes of a file
BEFORE: Final = 62  # generation of the manifest: the next but one is a checkpoint
Figure = tuple[float, float, str]
"""CPU seconds, MiB of memory at most, and what was found."""


def main() -> None:
    asked = options(__doc__, runs=3, own=lambda parser: parser.add_argument(
        "--most", type=int, default=2_000_000, help="shards of the largest data set"))  # fmt: skip
    counts = [n for n in (2_000, 20_000, 200_000, 2_000_000) if n <= asked.own.most]
    counts = counts[:2] if asked.quick else counts
    report = Report(
        asked, "dataset-scale", "What do shards cost that no query needs?",
        ("what", *(f"{n:,} shards: CPU s, MiB" for n in counts)),
    )  # fmt: skip
    found: dict[str, list[list[Figure]]] = {}
    for count in counts:
        with scratch(asked) as place:
            for step, figures in measured(asked, place, count).items():
                found.setdefault(step, []).append(figures)
    report.keep("steps", found)
    for step, row in found.items():
        report.row(step, *map(cell, row))
    report.finish()


def cell(figures: Sequence[Figure]) -> str:
    cpu, memory = (statistics.median(float(f[i]) for f in figures) for i in (0, 1))
    return f"{cpu:.3g}, {memory:.0f} ({figures[0][2]})"


def measured(asked: Options, place: Path, count: int) -> dict[str, list[Figure]]:
    root = str(place / "set")
    apart(write, root, count)
    found: dict[str, list[Figure]] = {}
    for _ in range(asked.runs if count < 1_000_000 else 1):
        for step, run in STEPS.items():
            if step.startswith("commit"):
                continue
            found.setdefault(step, []).append(apart(run, root, count))
            print(count, step, found[step][-1], flush=True)
    for step in ("commit", "commit, a checkpoint"):
        found[step] = [apart(STEPS[step], root, count)]
        print(count, step, found[step][-1], flush=True)
    return found


def apart(run: Callable[[str, int], Any], root: str, count: int) -> Figure:
    """Run a step in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(timed, (run, root, count))


def timed(run: Callable[[str, int], Any], root: str, count: int) -> Figure:
    import winkfs.dataset
    import winkfs.spark.source  # noqa: F401 - not what is measured

    before = time.process_time()
    found = run(root, count)
    used = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return used, peak, str(found)


# --- steps ---


def write(root: str, count: int) -> int:
    """Write the manifest."""
    from winkfs.dataset.manifest import create
    from winkfs.dataset.records import Manifest, ShardRecord, State

    log = create(root)
    size = FILES * (SIZE + 189)
    shards = tuple(
        ShardRecord(
            f"20260101T000000-0123456789ab/{number:07}-0-01234567", number + 1, size, FILES,
            FILES * SIZE, tombs_at=size, mtime_min=10**18 + number, mtime_max=10**18 + number + 500,
            first=name(number * FILES), last=name((number + 1) * FILES - 1), rank=(1, number),
        )
        for number in range(count)
    )  # fmt: skip
    state = State(BEFORE, time.time_ns(), shards, oldest=BEFORE)
    made = Manifest(BEFORE, state.time_ns, "append", oldest=BEFORE, checkpoint=state)
    data = made.encode()
    log.store.put_if_absent(BEFORE, data)
    return len(data)


def name(number: int) -> str:
    return f"crawl/{number:012}.html"


def latest(root: str, count: int) -> int:
    from winkfs.dataset.manifest import Log

    return len(Log(root).latest().shards)


def seen(root: str, count: int) -> int:
    from winkfs.dataset.snapshot import snapshot

    return len(snapshot(root).shards)


def planned(root: str, opened: Any = None, **given: str) -> str:
    """Plan a query of contents -> tasks, and shards in them."""
    from winkfs.spark.reading.options import Options
    from winkfs.spark.reading.reader import partitions

    tasks = partitions(Options.of({"path": root} | given), contents=True)
    return f"{len(tasks)} tasks, {sum(len(task.pieces) for task in tasks)} pieces"


def plan_of_one(root: str, count: int) -> str:
    """Of one name: which shard it is; that is not there, and is not opened here."""
    from winkfs.dataset.shard import may_have
    from winkfs.dataset.snapshot import snapshot
    from winkfs.spark.reading.options import Options

    asked = Options.of({"path": root, "paths": json.dumps([name(count * FILES // 3)])})
    return f"{sum(may_have(snapshot(root).shards, asked.selection))} to open"


def plan_of_all(root: str, count: int) -> str:
    return planned(root, splitBytes="1g")


def commit(root: str, count: int) -> int:
    from winkfs.dataset.shardwriter import ShardWriter
    from winkfs.dataset.transaction import begun

    with begun(root, "append") as transaction:
        writer = ShardWriter(transaction, "00000", ao=False)
        writer.container.put_many([(f"later/{time.time_ns()}", b"x")])
        return transaction.commit([writer.finish()])


STEPS: Final[dict[str, Callable[[str, int], Any]]] = {
    "the newest state": latest,
    "a snapshot": seen,
    "plan of one name": plan_of_one,
    "plan of all, splitBytes 1g": plan_of_all,
    "commit": commit,
    "commit, a checkpoint": commit,
}


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
