"""How soon does the mount of a container of millions of files answer, and how much memory has it?

`winkfs mount --ro` of a container of 2 million files (`--files 10000000`: ten): a million of them
in one directory, the others in 65,536 directories. Time from the start of the command until the
first file was looked at; names a second and RssAnon of the server after listing the large directory
(os.scandir), and after `find` over all. Once as put_many left the container, and then with the name
order, BASE.cat, which reindex and pack make, and which a mount without --ro makes and keeps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from common import Phases, Watch, interleaved, options, scratch
from filesystems import winkfs_mount
from readers import listed
from report import Goal, Report, rates, seconds

import winkfs

LARGE: Final = "large"
FOLDERS: Final = 1 << 16  # directories of the others, 256 in each of 256
TEXT: Final = Path(__file__).read_bytes()
SOON: Final = Goal(2, at_most=True)  # seconds
SMALL: Final = Goal(256, at_most=True)  # MiB
FAST: Final = Goal(200_000)  # names a second
FOUND: Final = Goal(333_333)  # the same: 10 million in 30 s
COLUMNS: Final = ("what", "without BASE.cat", "with it (range)", "goal")


def file_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=2_000_000, help="in the container (2,000,000)")


def main() -> None:
    asked = options(__doc__, own=file_option)
    count: int = asked.size(asked.own.files, 20_000)
    large = min(asked.size(1_000_000, 10_000), count)
    question = f"How soon does a mount of {count:,} files answer, and how much memory has it?"
    report = Report(asked, f"mount-scale-{count}", question, COLUMNS)
    with scratch(asked) as place:
        base = place / "container"
        start = time.perf_counter()
        with winkfs.create(base) as container:
            container.put_many(files(count, large))
        report.note(f"put_many and close took {time.perf_counter() - start:.1f} s.")
        once = partial(round_of, base, place / "mnt", count, large)
        first = once()
        start = time.perf_counter()
        winkfs.reindex(base)
        report.note(f"reindex took {time.perf_counter() - start:.1f} s.")
        found = interleaved({"with": once}, asked.runs)["with"]
    report.keep("without", first)
    report.keep("with", found)
    show(report, first, found, count, large)
    report.finish()


def files(count: int, large: int) -> Iterator[tuple[str, bytes]]:
    for i in range(count):
        number = FOLDERS * (i - large) // (count - large) if i >= large else 0
        folder = LARGE if i < large else f"folders/{number >> 8:02x}/{number & 255:02x}"
        yield f"{folder}/file{i:08d}.txt", TEXT[i % 256 : i % 256 + 60 + i * 7 % 81]


def round_of(base: Path, point: Path, count: int, large: int) -> Phases:
    watch = Watch()
    with winkfs_mount(base, point, "--ro") as mounted:
        (point / LARGE / "file00000000.txt").stat()
        watch.lap("answer")
        found = watch.phases
        found["mounted"] = mounted.anonymous()
        watch.lap("")
        assert len(listed(point / LARGE)) == large, "not all names were listed"
        watch.lap("list")
        found["listed"] = mounted.anonymous()
        watch.lap("")
        lines = subprocess.run(["find", point], check=True, stdout=subprocess.PIPE).stdout
        assert lines.count(b".txt\n") == count, "not all names were found"
        watch.lap("find")
        found["found"], found["cpu"] = mounted.anonymous(), mounted.cpu()
    return found


def show(
    report: Report, first: Phases, later: dict[str, list[float]], count: int, large: int
) -> None:
    middle = statistics.median(later["answer"])
    verdict = report.verdict(SOON, middle)
    report.row("first answer, s", f"{first['answer']:.2f}", seconds(later["answer"]), verdict)
    for step, title, names, goal in (
        ("list", f"a directory of {large:,} listed, names/s", large, FAST),
        ("find", f"find over {count:,} files, names/s", count, FOUND),
    ):
        speed = [names / run for run in later[step]]
        verdict = report.verdict(goal, statistics.median(speed))
        report.row(title, f"{names / first[step]:,.0f}", rates(speed), verdict)
    for step, title in (
        ("mounted", "RssAnon when mounted, MiB"),
        ("listed", "after the listing"),
        ("found", "after find"),
    ):
        worst = max(first[step], *later[step])
        verdict = report.verdict(SMALL, worst)
        report.row(title, f"{first[step]:.0f}", rates(later[step]), verdict)
    report.row("CPU of the server, s", f"{first['cpu']:.1f}", seconds(later["cpu"]), "")


if __name__ == "__main__":
    main()
