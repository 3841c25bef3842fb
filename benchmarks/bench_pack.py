"""How long does it take to pack a tree of files, until the container is durable?

`winkfs pack TREE BASE` against `tar cf` followed by fsync of the tar file, both as processes of
their own, with their start. One tree has 20,000 files, 550 MB, made of the machine's own HTML; the
other one 78,000, made of its sources, documentation and headers. winkfs runs on both paths,
compiled and in Python.

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
import sourcetree
from common import (
    Case,
    Options,
    Phases,
    Watch,
    drop_caches,
    evict,
    interleaved,
    on,
    options,
    paths,
    scratch,
    warm,
)
from report import Goal, Report, seconds

import winkfs

COLUMNS: Final = (
    "caches", "winkfs pack, s (range)", "tar + fsync, s (range)", "MB/s", "time of winkfs / of tar",
    "goal", "CPU, s: winkfs / tar",
)  # fmt: skip


GOALS: Final = {"compiled": Goal(1.0, at_most=True), "in Python": Goal(1.2, at_most=True)}


def main() -> None:
    asked = options(__doc__)
    if not shutil.which("tar"):
        sys.exit("tar, the rival, is not installed")
    report = Report(asked, "pack", "How long does it take to pack a tree, durable?", COLUMNS)
    trees = {
        "HTML": htmltree.make(asked.place, asked.size(20_000, 500)),
        "sources": sourcetree.tree(asked.place, asked.size(78_000, 1_000)),
    }
    for name, (tree, made_of) in trees.items():
        files = sorted(path for path in tree.rglob("*") if path.is_file())
        with scratch(asked) as place:
            for cache in ("warm", "cold"):
                measure(asked, report, place, tree, files, (name, cache))
        report.note(f"{name}: {made_of}.")
    report.finish()


def measure(
    asked: Options,
    report: Report,
    place: Path,
    tree: Path,
    files: list[Path],
    what: tuple[str, str],
) -> None:
    """`what`: the tree and the caches, for the table."""
    name, cache = what

    def prepare() -> None:
        if cache == "warm":
            warm(*files)
        elif not drop_caches():
            evict(*files)
        os.sync()

    cases: dict[str, Case] = {
        **{path: on(path, lambda: pack_winkfs(place, tree, files, prepare)) for path in paths()},
        "tar": lambda: pack_tar(place, tree, prepare),
    }
    found = interleaved(cases, asked.runs)
    report.keep(f"{name}, {cache}", found)
    size = sum(path.stat().st_size for path in files) / 1e6
    for path in paths():
        ours, theirs = (found[case]["all"] for case in (path, "tar"))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        figure = statistics.median(ratios)
        said = [cache, "" if name == "HTML" else name, "" if path == "compiled" else path]
        rate = f"{size / statistics.median(ours):,.0f}"
        report.row(
            ", ".join(filter(None, said)), seconds(ours), seconds(theirs), rate,
            f"**{figure:.2f}x** ({min(ratios):.2f}-{max(ratios):.2f})",
            report.verdict(GOALS[path], figure),
            " / ".join(f"{statistics.median(found[case]['cpu']):.2f}" for case in (path, "tar")),
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
        kinds = [entry.ftype for entry in container.scan()]
        assert len(kinds) - kinds.count(winkfs.FileType.DIR) == len(files)
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
