"""How fast are 20,000 HTML files looked at and read through a mount?

Each round mounts anew, and then: lists all directories, stats each file (`stat`), reads each file
to its end (`first read`), and again (`second read`), all by path from the top of the tree, in the
order of the listing. So the caches of the mount are cold at the listing. Backing files are warm:
they were read before. The ext4 directory is there twice, with its names and inodes dropped before
the listing, where we may, and with them cached. Its pages are warm, so its first read is what
others have as a second one.

Four of them are mounted anew twice more: for a first read of all files in random order (`random`),
after a listing; and, with all caches emptied (only as root), for a listing and a first read in its
order, of which `cold` is the time of both.
"""

from __future__ import annotations

import random
from contextlib import chdir
from functools import partial
from typing import Final

from common import Case, Phases, Watch, drop_caches, forget_names, interleaved, options
from filesystems import Rival
from htmlimages import EXT4, KNOWN, RO, SQUASHFS, SQUASHFUSE, Images, images_of, tree_option
from readers import listed, look_at, read_all
from report import SERVER, Goal, Report, rates, server
from samples import SEED

GOALS: Final[dict[str, tuple[tuple[str, Goal], ...]]] = {
    "list": (),
    "stat": ((SQUASHFUSE, Goal(15)), (KNOWN, Goal(0.9))),
    "first": ((SQUASHFUSE, Goal(3)), (SQUASHFS, Goal(1))),
    "second": ((SQUASHFUSE, Goal(4)), (KNOWN, Goal(0.9))),
    "random": ((SQUASHFUSE, Goal(1.3)),),
    "cold": ((EXT4, Goal(0.9)), (SQUASHFUSE, Goal(1))),
}
TWICE_MORE: Final = (RO, SQUASHFUSE, SQUASHFS, EXT4)
COLUMNS: Final = (
    "file system", "listed, names/s (range)", "stat/s", "first read, files/s",
    "second read, files/s", "random, files/s", "cold, files/s", *SERVER,
)  # fmt: skip


def main() -> None:
    asked = options(__doc__, own=tree_option)
    question = "How fast are HTML files looked at and read through a mount?"
    report = Report(asked, "mount", question, COLUMNS)
    with images_of(asked) as images:
        cases: dict[str, Case] = {
            name: partial(round_of, images, rival, more=name in TWICE_MORE)
            for name, rival in images.rivals().items()
        }
        show(report, images.tree.count, interleaved(cases, asked.runs))
    report.note(images.note())
    report.note(
        "Goals are those of winkfs mount --ro. tar and SquashFS (gzip) images have defaults."
    )
    report.finish()


def round_of(images: Images, rival: Rival, *, more: bool) -> Phases:
    """-> seconds of each step; CPU seconds and RssAnon (MiB) of the server."""
    total = images.tree.total
    images.warm()
    forget_names()
    with rival() as mounted, chdir(mounted.path):
        files, found = look_at(images.tree.count, images.tree.total)
        found |= mounted.used()
    if more:
        images.warm()
        forget_names()
        with rival() as mounted:
            files = listed(mounted.path)
            random.Random(SEED).shuffle(files)
            found["random"] = read_all(files, 1, total)
        if drop_caches():
            with rival() as mounted:
                watch = Watch()
                files = listed(mounted.path)
                watch.lap("list")
                found["cold"] = watch.phases["list"] + read_all(files, 1, total)
    return found


def show(report: Report, count: int, found: dict[str, dict[str, list[float]]]) -> None:
    """A row for each file system, and one of the goals."""
    speed = {
        name: {step: [count / run for run in runs[step]] for step in GOALS if step in runs}
        for name, runs in found.items()
    }
    for name, runs in found.items():
        report.keep(name, runs)
        told = (rates(speed[name][step]) if step in runs else "" for step in GOALS)
        report.row(name, *told, *server(runs))
    report.goals(RO, speed, GOALS)


if __name__ == "__main__":
    main()
