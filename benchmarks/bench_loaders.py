"""What does an epoch of training data cost, shuffled and in order?

Documents of random bytes, handed out as lists of 256 bytes objects, of which each is touched, as a
loader collates them, from the page cache, into which all files were read alike. Each system runs in
a process of its own, all of them in turn, round by round; imports are not measured. CPU seconds are
those of the process and its children. A system that is missing is left out, with a note:
pip install mosaicml-streaming webdataset pylance lmdb bagz array_record barecat.

--remote  instead an epoch from moto, an object storage on this machine: requests and bytes counted
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Final

from common import Options, options, scratch
from loader_rivals import BATCH, SYSTEMS, System, contents, files_of, named
from report import Goal, Report

SHAPES: Final = ((100_000, 4 << 10), (20_000, 28 << 10))
REMOTE: Final = ((5_000, 4 << 10), (1_000, 28 << 10))  # moto copies objects to answer
QUICK: Final = ((2_000, 4 << 10), (500, 28 << 10))
STEPS: Final = ("shuffled", "in order")
GOALS: Final = {"LMDB": 0.9}  # times the rate of each rival, 1 of the others
OURS: Final = "winkfs.Rows, full"
Runs = dict[str, dict[str, list[dict[str, float]]]]
"""System -> step -> what each run cost."""


def work(name: str, folder: str, count: int, step: str) -> None:
    """Run an epoch, and print what it cost."""
    system = named(name)(Path(folder), count)
    system.load()
    before, began = os.times(), time.perf_counter()
    size = rows = last = 0
    contents = system.epoch(step == "shuffled")
    while batch := list(islice(contents, BATCH)):
        assert type(batch[0]) is bytes
        size += sum(map(len, batch))
        last ^= sum(data[-1] for data in batch)
        rows += len(batch)
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    print(json.dumps({"cpu": cpu, "wall": time.perf_counter() - began, "rows": rows, "size": size}))


def ran(system: type[System], folder: Path, count: int, size: int, step: str) -> dict[str, float]:
    """Run an epoch in a new process. Raises RuntimeError."""
    command = [sys.executable, __file__, "--work", system.__name__, str(folder), str(count), step]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "it failed")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if (found["rows"], found["size"]) != (count, count * size):
        raise RuntimeError(f"an epoch of {found['rows']} rows, not {count}")
    return found


def made(folder: Path, count: int, size: int, report: Report) -> list[type[System]]:
    """Make the files of each system -> those that can be measured."""
    there = list[type[System]]()
    for system in SYSTEMS:
        try:
            system(folder, count).make(contents(count, size))
        except Exception as error:
            report.note(f"{system.title} is left out: {type(error).__name__}: {error}")
            continue
        there.append(system)
    return there


def bring(folder: Path) -> None:
    """Read all files from the disk into the page cache. What writes and random reads leave there
    lies in small pieces, which cost more to map."""
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(8 << 20):
                pass


def round_of(
    asked: list[type[System]], folder: Path, count: int, size: int, report: Report, runs: Runs
) -> None:
    """Run each system once, and leave out one that fails."""
    for system in list(asked):
        try:
            found = {step: ran(system, folder, count, size, step) for step in STEPS}
        except RuntimeError as error:
            report.note(f"{system.title} is left out: {error}")
            asked.remove(system)
            continue
        for step, cost in found.items():
            runs[system.title][step].append(cost)
            print(f"{count} {system.title} {step} {cost['cpu']:.2f} {cost['wall']:.2f}", flush=True)


def local(asked: Options) -> None:
    columns = ("documents", "system", "version", *(f"{step}: CPU s (wall)" for step in STEPS),
               "rows per CPU s, shuffled", "beside winkfs", "shuffles")  # fmt: skip
    report = Report(asked, "loaders", "What does an epoch of training data cost?", columns)
    for count, size in QUICK if asked.quick else SHAPES:
        with scratch(asked) as folder:
            systems = made(folder, count, size, report)
            bring(folder)
            runs: Runs = {system.title: {step: [] for step in STEPS} for system in systems}
            for _ in range(asked.runs):
                round_of(systems, folder, count, size, report, runs)
            table(report, count, size, systems, runs)
    report.note("Medians; each round runs all systems. Winkfs and LMDB verify: the first each "
                "content by its checksum, the second nothing.")  # fmt: skip
    report.finish()


def table(
    report: Report, count: int, size: int, systems: Sequence[type[System]], runs: Runs
) -> None:
    """Add the rows of one shape."""
    what = f"{count:,} x {size >> 10} KiB"
    for system in systems:
        own, cells = runs[system.title], []
        for step in STEPS:
            cpu, wall = (
                statistics.median(run[unit] for run in own[step]) for unit in ("cpu", "wall")
            )
            cells.append(f"{cpu:.2f} ({wall:.2f})")
        cpu = statistics.median(run["cpu"] for run in own["shuffled"])
        ratio = statistics.median(
            theirs["cpu"] / ours["cpu"]
            for ours, theirs in zip(runs[OURS]["shuffled"], own["shuffled"], strict=True)
        )
        verdict = f"{ratio:.2f}x the CPU"
        if not system.title.startswith("winkfs"):
            verdict += f", {report.verdict(Goal(GOALS.get(system.title, 1.0)), ratio)}"
        report.row(what, system.title, version_of(system), *cells, f"{count / cpu:,.0f}", verdict,
                   system.how)  # fmt: skip
    report.keep(what, runs)


def version_of(system: type[System]) -> str:
    try:
        return version(system.package or "winkfs")
    except PackageNotFoundError:
        return ""


# --- from object storage ---


def remote(asked: Options) -> None:
    """Count what a shuffled epoch asks of a store, with an empty cache."""
    from loader_remote import EPOCHS
    from webstore import moto

    report = Report(asked, "loaders-remote", "What does a shuffled epoch ask of object storage?",
                    ("documents", "system", "requests", "MiB", "bytes for each of content",
                     "CPU s (wall)"))  # fmt: skip
    for count, size in QUICK if asked.quick else REMOTE:
        with scratch(asked) as folder:
            for system, epoch in EPOCHS.items():
                kind = named(system)
                try:
                    kind(folder, count).make(contents(count, size))
                    with moto() as store:
                        store.fill(folder)
                        local = folder / f"local-{epoch.__name__}"
                        store.counted()
                        before, began = os.times(), time.perf_counter()
                        rows = epoch(store, kind(folder, count), local)
                        cpu = sum(os.times()[:4]) - sum(before[:4])
                        wall = time.perf_counter() - began
                        requests, got = store.counted()
                        shutil.rmtree(local, ignore_errors=True)
                    assert rows == count, (rows, count)
                except Exception as error:
                    report.note(f"{kind.title} is left out: {type(error).__name__}: {error}")
                    continue
                report.row(f"{count:,} x {size >> 10} KiB", kind.title, f"{requests:,}",
                           f"{got / (1 << 20):,.0f}", f"{got / (count * size):.2f}",
                           f"{cpu:.2f} ({wall:.2f})")  # fmt: skip
                report.keep(f"{count} {size} {kind.title}", [requests, got, cpu, wall])
    report.finish()


def own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--remote", action="store_true", help="from object storage")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        given = options(__doc__, runs=7, own=own)
        remote(given) if given.own.remote else local(given)
