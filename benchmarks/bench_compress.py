"""How small does a tree of HTML files become, and how fast is one of its documents read then?

`winkfs pack --compress zstd TREE BASE`, all files of the container counted, at level 9 and at 19,
against `mksquashfs TREE IMAGE -comp zstd` with its own block size and level, and against
`tar | zstd -19`, of which nothing can be read without all before it. Level 19 and tar run once,
for they take minutes. The tree has 20,068 files, 552 MB, made of the machine's own HTML. All are
processes of their own, with their start.

A document: documents in random order, the first read of each, with what there was to pack in the
page cache. In process `read(name)` of a handle that is new, as long as it takes from call to
return; through a mount open, read and close, winkfs and the kernel's SquashFS, which needs root.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import filesystems
import htmltree
import numpy as np
from common import Case, Options, Phases, Watch, interleaved, options, scratch, warm
from report import Goal, Report, seconds

import winkfs

COLUMNS: Final = (
    "store", "MB", "of the tree", "size / of SquashFS", "goal", "packed in, s (range)", "CPU, s",
    "a document in process, us: median, p99", "goal", "through a mount, us: median, p99",
)  # fmt: skip
WINKFS: Final = str(Path(sys.executable).with_name("winkfs"))
HIGHEST: Final = "winkfs zstd:19"
LEVELS: Final = {"winkfs zstd": "zstd", HIGHEST: "zstd:19", "winkfs, plain": ""}
SQUASHFS, TAR = "SquashFS zstd", "tar + zstd -19"
SIZE, ACCESS = Goal(1.10, at_most=True), Goal(200, at_most=True)


def main() -> None:
    asked = options(__doc__, runs=3)
    if not all(map(shutil.which, ("mksquashfs", "zstd", "tar"))):
        sys.exit("mksquashfs, zstd and tar are the rivals: one is not installed")
    question = "How small does a tree of HTML files become, and how fast is a document read?"
    report = Report(asked, "compress", question, COLUMNS)
    tree, made_of = htmltree.make(asked.place, asked.size(20_068, 500))
    with scratch(asked) as place:
        measure(asked, report, place, tree)
    report.note(f"The tree: {made_of}.")
    report.note(filesystems.versions(mksquashfs="-version", zstd="--version"))
    report.finish()


def measure(asked: Options, report: Report, place: Path, tree: Path) -> None:
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    names = [path.relative_to(tree).as_posix() for path in files]
    names = random.Random(1).sample(names, min(asked.size(5000, 200), len(names)))
    cases: dict[str, Case] = {
        name: lambda name=name: with_winkfs(place, tree, files, names, name)  # type: ignore[misc]
        for name in LEVELS
    }
    slow = {HIGHEST: cases.pop(HIGHEST), TAR: lambda: with_tar(place, tree)}
    cases[SQUASHFS] = lambda: with_squashfs(place, tree, files, names)
    found = interleaved(cases, asked.runs)
    found |= interleaved(slow, 1)
    report.keep("all", found)
    total = sum(path.stat().st_size for path in files)
    theirs = statistics.median(found[SQUASHFS]["bytes"])
    for name, runs in found.items():
        size = statistics.median(runs["bytes"])
        compressed = bool(LEVELS.get(name))
        access = runs.get("read, median")
        report.row(
            name, f"{size / 1e6:,.1f}", f"{size / total:.1%}", f"**{size / theirs:.2f}x**",
            report.verdict(SIZE, size / theirs) if compressed else "", seconds(runs["all"]),
            f"{statistics.median(runs['cpu']):.1f}", times(runs, "read"),
            report.verdict(ACCESS, statistics.median(access)) if compressed and access else "",
            times(runs, "mount"),
        )  # fmt: skip


def times(runs: dict[str, list[float]], what: str) -> str:
    if f"{what}, median" not in runs:
        return ""
    middle, worst = (statistics.median(runs[f"{what}, {part}"]) for part in ("median", "p99"))
    return f"{middle:,.0f}, {worst:,.0f}"


def timed(read: Callable[[str], object], names: Sequence[str], what: str) -> Phases:
    """Microseconds of each call: median and p99."""
    found = []
    for name in names:
        begin = time.perf_counter()
        read(name)
        found.append(1e6 * (time.perf_counter() - begin))
    middle, worst = np.quantile(found, [0.5, 0.99]).tolist()
    return {f"{what}, median": middle, f"{what}, p99": worst}


def read_mounted(mount: filesystems.Rival, names: Sequence[str], tree: Path) -> Phases:
    with mount() as there:
        found = timed(lambda name: (there.path / name).read_bytes(), names, "mount")
        for name in names[:20]:
            assert (there.path / name).read_bytes() == (tree / name).read_bytes()
    return found


def with_winkfs(
    place: Path, tree: Path, files: list[Path], names: Sequence[str], case: str
) -> Phases:
    base, codec = place / "container", LEVELS[case]
    warm(*files)
    os.sync()
    watch = Watch()
    asked = ["--compress", codec] if codec else []
    subprocess.run([WINKFS, "pack", *asked, str(tree), str(base)], check=True)
    watch.total("all")
    found, made = watch.phases, sorted(place.glob("container.*"))
    found["bytes"] = sum(path.stat().st_size for path in made)
    warm(*made)
    with winkfs.open(base) as container:
        found |= timed(container.read, names, "read")
        assert all(container.read(name) == (tree / name).read_bytes() for name in names[:50])
        assert sum(1 for entry in container.scan() if entry.size) == len(files)
    found |= read_mounted(
        lambda: filesystems.winkfs_mount(base, place / "mount", "--ro"), names, tree
    )
    for path in made:
        path.unlink()
    return found


def with_squashfs(place: Path, tree: Path, files: list[Path], names: Sequence[str]) -> Phases:
    image = place / "image.sqfs"
    warm(*files)
    os.sync()
    watch = Watch()
    command = ["mksquashfs", str(tree), str(image), "-comp", "zstd", "-quiet", "-no-progress"]
    subprocess.run(command, check=True)
    with image.open("rb") as file:
        os.fsync(file.fileno())
    watch.total("all")
    found = watch.phases | {"bytes": image.stat().st_size}
    warm(image)
    if os.geteuid() == 0:
        found |= read_mounted(lambda: filesystems.loop(image, place / "mount"), names, tree)
    image.unlink()
    return found


def with_tar(place: Path, tree: Path) -> Phases:
    made, watch = place / "tree.tar.zst", Watch()
    with made.open("wb") as out:
        tar = subprocess.Popen(["tar", "c", "-C", tree, "."], stdout=subprocess.PIPE)
        subprocess.run(["zstd", "-19", "-T0", "-q", "-c"], stdin=tar.stdout, stdout=out, check=True)
        assert tar.wait() == 0
        os.fsync(out.fileno())
    watch.total("all")
    found = watch.phases | {"bytes": made.stat().st_size}
    made.unlink()
    return found


if __name__ == "__main__":
    main()
