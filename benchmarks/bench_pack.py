"""How long does it take to pack a tree of HTML files, until the container is durable?

`winkfs pack TREE BASE` against `tar cf` followed by fsync of the tar file, both as processes of
their own, with their start. The tree has 20,000 files, 550 MB, made of the machine's own HTML.

Warm: the tree was read once before. Cold: the caches of pages, names and inodes were dropped, which
needs root; without, the pages of the tree alone are dropped.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import htmltree
from common import (
    Case,
    Options,
    Phases,
    Watch,
    drop_caches,
    evict,
    interleaved,
    options,
    scratch,
    warm,
)
from report import Goal, Report, seconds

import winkfs

COLUMNS: Final = (
    "caches", "winkfs pack, s (range)", "tar + fsync, s (range)", "MB/s", "time of winkfs / of tar",
    "goal", "CPU, s: winkfs / tar",
)  # fmt: skip


def main() -> None:
    asked = options(__doc__)
    if not shutil.which("tar"):
        sys.exit("tar, the rival, is not installed")
    question = "How long does it take to pack a tree of HTML files, durable?"
    report = Report(asked, "pack", question, COLUMNS)
    tree, made_of = htmltree.make(asked.place, asked.size(20_000, 500))
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    with scratch(asked) as place:
        for cache in ("warm", "cold"):
            measure(asked, report, place, tree, files, cache)
    report.note(f"The tree: {made_of}.")
    report.finish()


def measure(
    asked: Options, report: Report, place: Path, tree: Path, files: list[Path], cache: str
) -> None:
    def prepare() -> None:
        if cache == "warm":
            warm(*files)
        elif not drop_caches():
            evict(*files)
        os.sync()

    cases: dict[str, Case] = {
        "winkfs": lambda: pack_winkfs(place, tree, files, prepare),
        "tar": lambda: pack_tar(place, tree, prepare),
    }
    found = interleaved(cases, asked.runs)
    report.keep(cache, found)
    ours, theirs = (found[name]["all"] for name in cases)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    figure = statistics.median(ratios)
    size = sum(path.stat().st_size for path in files) / 1e6
    report.row(
        cache, seconds(ours), seconds(theirs), f"{size / statistics.median(ours):,.0f}",
        f"**{figure:.2f}x** ({min(ratios):.2f}-{max(ratios):.2f})",
        report.verdict(Goal(1.2, at_most=True), figure),
        " / ".join(f"{statistics.median(found[name]['cpu']):.2f}" for name in cases),
    )  # fmt: skip


def pack_winkfs(place: Path, tree: Path, files: list[Path], prepare: Callable[[], None]) -> Phases:
    base = place / "container"
    command = [str(Path(sys.executable).with_name("winkfs")), "pack", str(tree), str(base)]
    prepare()
    watch = Watch()
    subprocess.run(command, check=True)
    watch.total("all")
    with winkfs.open(base) as container:
        for path in files[:: max(len(files) // 50, 1)]:
            assert container.read(path.relative_to(tree).as_posix()) == path.read_bytes()
        assert sum(1 for entry in container.scan() if entry.size) == len(files)
    for path in place.glob("container.*"):
        path.unlink()
    return watch.phases


def pack_tar(place: Path, tree: Path, prepare: Callable[[], None]) -> Phases:
    path = place / "tree.tar"
    prepare()
    watch = Watch()
    subprocess.run(["tar", "cf", path, "-C", tree, "."], check=True)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    watch.total("all")
    path.unlink()
    return watch.phases


if __name__ == "__main__":
    main()
