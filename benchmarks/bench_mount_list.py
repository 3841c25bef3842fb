"""How fast is a directory of a million names listed through a mount?

`ls -f`, `ls -l`, `find` and `find -size 0`, which looks at each file, as processes of their own,
os.scandir in this one, without and with a stat of each entry; each on a fresh mount, so that
nothing of the directory is known to the kernel. `find -size 0` once more: then it is. Files are
empty; each shard of the data set has every SHARDS-th. Of ext4, names and inodes were dropped
before, where we may; its pages are warm, as are the images.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from common import Case, Options, Phases, Watch, forget_names, interleaved, options, scratch, warm
from filesystems import Rival, directory, loop, present, squashfuse, versions, winkfs_mount
from report import SERVER, Goal, Report, rates, server

import winkfs
from winkfs.dataset.transaction import begin

RO: Final = "winkfs mount --ro"
FOLDER: Final = "folder"
SHARDS: Final = 10
PATH: Final = "PATH"
LOOKED: Final = 20_000  # files of SquashFS that are looked at: all would take minutes
FAST: Final = {
    "scandir": Goal(200_000),
    "stat": Goal(200_000),
    "ls": Goal(200_000),
    "ls -l": Goal(100_000),
    "find": Goal(200_000),
    "size": Goal(100_000),
    "again": Goal(600_000),
}  # names a second
COLUMNS: Final = (
    "file system", "os.scandir, names/s (range)", "with stat of each", "ls -f, names/s",
    "ls -l, names/s", "find, names/s", "find -size, names/s", "the same again", *SERVER,
)  # fmt: skip


def main() -> None:
    asked = options(__doc__)
    count = asked.size(1_000_000, 20_000)
    question = f"How fast is a directory of {count:,} names listed through a mount?"
    report = Report(asked, "mount-list", question, COLUMNS)
    with scratch(asked) as place:
        found = interleaved(cases(asked, place, count), asked.runs)
    for name, runs in found.items():
        report.keep(name, runs)
        speed = {step: [count / run for run in runs.get(step, [])] for step in FAST}
        cells = []
        for step, rate in speed.items():
            if not rate:
                cells.append("")
                continue
            verdict = report.verdict(FAST[step], statistics.median(rate)) if name == RO else ""
            cells.append(f"{rates(rate)} {verdict}".rstrip())
        report.row(name, *cells, *server(runs))
    report.note("CPU and RssAnon of the mount that find listed; find asks for the type of a name.")
    report.note(
        f"Of SquashFS the first {LOOKED:,} files are looked at: later ones take no less time each, "
        "and `ls -l` and `find -size` of all would take minutes."
    )
    report.note(f"Versions: {versions(squashfuse_ll='--version', mksquashfs='-version')}.")
    report.finish()


def cases(asked: Options, place: Path, count: int) -> dict[str, Case]:
    """The container is made anew; the tree and its image are made once and kept."""
    tree = asked.place / f"names-{count}"
    base, image, point = place / "container", Path(f"{tree}.squashfs"), place / "mnt"
    with winkfs.create(base) as container:
        container.put_many((f"{FOLDER}/{name}", b"") for name in names(count))
    fill_shards(place / "set", count)
    fill(tree, count)
    if shutil.which("mksquashfs") and not image.exists():
        command = ["mksquashfs", str(tree), str(image), "-quiet", "-no-progress"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rivals = present({
        RO: ("", partial(winkfs_mount, base, point, "--ro")),
        f"the same of {SHARDS} shards": ("", partial(winkfs_mount, place / "set", point, "--ro")),
        "winkfs mount": ("", partial(winkfs_mount, base, point)),
        "squashfuse_ll": ("squashfuse_ll", partial(squashfuse, image, point)),
        "kernel SquashFS": ("mount", partial(loop, image, point)),
        "ext4 directory": ("", partial(directory, tree)),
    })  # fmt: skip
    os.sync()  # what is still to be written may leave the cache when it is
    backing = [*place.glob("container.*"), *place.glob("set/*/*"), image]
    return {
        name: partial(round_of, rival, backing, count, LOOKED if rival in slow(rivals) else count)
        for name, rival in rivals.items()
    }


def slow(rivals: dict[str, Rival]) -> list[Rival]:
    """Those that look for a name in all of a directory."""
    return [rivals[name] for name in ("squashfuse_ll", "kernel SquashFS") if name in rivals]


def names(count: int) -> Iterator[str]:
    return (f"page{i:07d}.html" for i in range(count))


def fill_shards(root: Path, count: int) -> None:
    job, records = begin(root), []
    for number in range(SHARDS):
        shard = job.attempt(f"{number:05}-0")
        with winkfs.create(shard) as container:
            some = islice(names(count), number, None, SHARDS)
            container.put_many((f"{FOLDER}/{name}", b"") for name in some)
        records.append(job.seal(shard))
    job.commit(records)


def fill(tree: Path, count: int) -> None:
    """Empty files, made only once."""
    done = Path(f"{tree}.txt")
    if not done.exists():
        shutil.rmtree(tree, ignore_errors=True)
        (tree / FOLDER).mkdir(parents=True)
        for name in names(count):
            os.close(os.open(f"{tree}/{FOLDER}/{name}", os.O_CREAT))
        done.touch()


def round_of(rival: Rival, backing: list[Path], count: int, looked: int) -> Phases:
    """`looked`: at how many files, of which the time of all is reckoned."""
    found: Phases = {}
    warm(*(path for path in backing if path.exists() and path.stat().st_size))
    for step, lister in LISTERS.items():
        if looked < count and step in ("ls -l", "size"):
            continue
        forget_names()
        with rival() as mounted:
            watch, wanted = Watch(), min(looked, count) if step == "stat" else count
            listed = lister(mounted.path / FOLDER, wanted)
            watch.lap(step)
            assert listed == wanted, f"{step} found {listed} of {wanted} names"
            watch.phases[step] *= count / wanted
            if step == "size":
                lister(mounted.path / FOLDER, wanted)
                watch.lap("again")
            found |= watch.phases | mounted.used()
    return found


def scandir(path: Path, count: int) -> int:
    with os.scandir(path) as entries:
        return sum(1 for _ in entries)


def look(path: Path, count: int) -> int:
    """A stat of each entry that comes, of `count` of them."""
    with os.scandir(path) as entries:
        some = islice(entries, count)
        return sum(entry.stat(follow_symlinks=False).st_size == 0 for entry in some)


def lines(*command: str) -> Callable[[Path, int], int]:
    """How many lines a program prints for a directory, without one that names it or its parent.

    command  PATH in the place of it
    """

    def run(path: Path, count: int) -> int:
        words = [str(path) if word == PATH else word for word in command]
        program = subprocess.run(words, check=True, stdout=subprocess.PIPE)
        return program.stdout.count(b"page")

    return run


LISTERS: Final[dict[str, Callable[[Path, int], int]]] = {
    "scandir": scandir,
    "stat": look,
    "ls": lines("ls", "-f", PATH),
    "ls -l": lines("ls", "-l", PATH),
    "find": lines("find", PATH),
    "size": lines("find", PATH, "-size", "0"),
}


if __name__ == "__main__":
    main()
