"""Where do the pages of files lie after they were read once through a mount?

Nothing is in the page cache when all HTML files are read. What it holds afterwards are the pages of
the files in the mount, and those of the backing file where the server left them: a file that lies
in both costs its memory twice. The rate of reading is that of cold files, so also of the disk.
"""

from __future__ import annotations

import os
import re
import statistics
from functools import partial
from pathlib import Path
from typing import Final

from common import Case, Phases, drop_caches, evict, interleaved, options, resident
from filesystems import Rival
from htmlimages import (
    RATARMOUNT,
    RO,
    RW,
    SQUASHFS,
    SQUASHFUSE,
    STORED,
    Images,
    images_of,
    tree_option,
)
from readers import listed, read_all
from report import SERVER, Goal, Report, rates, server

MIB: Final = 1 << 20
CACHED: Final = re.compile(r"^Cached:\s+(\d+) kB$", re.MULTILINE)
UNCACHED: Final = "--cache=none"
ONCE: Final = Goal(10, at_most=True)  # per cent of the container
COLUMNS: Final = (
    "file system", "read, files/s (range)", "page cache grew by, MiB", "backing file in it, MiB",
    "% of the backing file", "goal", *SERVER,
)  # fmt: skip


def main() -> None:
    asked = options(__doc__, own=tree_option)
    question = "Where do the pages of files lie after they were read once through a mount?"
    report = Report(asked, "mount-cache", question, COLUMNS)
    with images_of(asked) as images:
        found = interleaved(cases(images), asked.runs)
    for name, runs in found.items():
        report.keep(name, runs)
        middle = {step: statistics.median(values) for step, values in runs.items()}
        part = 100 * middle["part"]
        report.row(
            name, rates([images.tree.count / run for run in runs["read"]]),
            f"{middle['grew']:,.0f}", f"{middle['backing']:,.0f}", f"{part:.1f}",
            report.verdict(ONCE, part) if name == RO else "", *server(runs),
        )  # fmt: skip
    report.note(images.note())
    report.finish()


def cases(images: Images) -> dict[str, Case]:
    backing = {
        RO: images.data, RW: images.data, SQUASHFUSE: images.squashfs, STORED: images.stored,
        SQUASHFS: images.squashfs, RATARMOUNT: images.tar,
    }  # fmt: skip
    rivals = {name: rival for name, rival in images.rivals().items() if name in backing}
    rivals[f"{RO} {UNCACHED}"] = images.winkfs("--ro", UNCACHED)
    rivals[f"{RW} {UNCACHED}"] = images.winkfs(UNCACHED)
    return {
        name: partial(round_of, images, rival, backing.get(name, images.data))
        for name, rival in rivals.items()
    }


def round_of(images: Images, rival: Rival, backing: Path) -> Phases:
    if not drop_caches():
        evict(backing)
    with rival() as mounted:
        files = listed(mounted.path)
        before = cached()
        found = {"read": read_all(files, 1, images.tree.total)}
        found["grew"] = cached() - before
        found["part"] = resident(backing)
        found["backing"] = found["part"] * os.path.getsize(backing) / MIB
        return found | mounted.used()


def cached() -> float:
    """The size of the page cache, MiB."""
    found = CACHED.search(Path("/proc/meminfo").read_text())
    assert found, "Linux always tells"
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
