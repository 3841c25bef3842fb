"""How long does it take to unpack a source tree into a mount, to list it, and to remove it?

`tar xf` of 78,000 files in the directories that sources have, `find -size`, which asks for the
attributes of each, and `rm -rf`; the tar file is in the page cache. Beside a directory on ext4,
where the kernel does all.

None of the commands waits for the disk: the time until all is durable comes behind `tar xf`, by
fsync of the directory here, which is the whole container, and by syncfs there.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Final

import sourcetree
from common import Case, Phases, Watch, interleaved, options, scratch, warm
from filesystems import Rival, directory, versions, winkfs_mount
from report import SERVER, Goal, Report, rates, seconds, server

import winkfs

OURS: Final = "winkfs mount"
EXT4: Final = "ext4 directory"
COLUMNS: Final = (
    "file system", "tar xf, files/s (range)", "until durable, s", "find -size, files/s",
    "rm -rf, files/s", *SERVER,
)  # fmt: skip
AT_MOST_5X: Final = Goal(0.2)  # of the rate of ext4
GOALS: Final = {
    "untar": ((EXT4, AT_MOST_5X),), "durable": (), "find": (), "rm": ((EXT4, AT_MOST_5X),),
}  # fmt: skip
LOOKED_AT: Final = 100  # files that are compared


def main() -> None:
    asked = options(__doc__)
    question = "How long does it take to unpack a source tree into a mount, and to remove it?"
    report = Report(asked, "mount-tree", question, COLUMNS)
    count = asked.size(78_000, 1000)
    tar, made_of = sourcetree.make(asked.place, count)
    with scratch(asked) as place:
        found = interleaved(cases(place, tar, count), asked.runs)
    speed = {
        name: {step: [count / run for run in runs[step]] for step in ("untar", "find", "rm")}
        for name, runs in found.items()
    }
    for name, runs in found.items():
        report.keep(name, runs)
        report.row(
            name, rates(speed[name]["untar"]), seconds(runs["durable"]),
            rates(speed[name]["find"]), rates(speed[name]["rm"]), *server(runs),
        )  # fmt: skip
    report.goals(OURS, speed, GOALS)
    report.note(f"The tree: {made_of}.")
    report.note("CPU and RssAnon: after rm -rf. A mount may take five times as long as ext4.")
    report.note(f"Versions: {versions(tar='--version')}.")
    report.finish()


def cases(place: Path, tar: Path, count: int) -> dict[str, Case]:
    point, below, base = place / "mnt", place / "below", place / "container"
    rivals: dict[str, Rival] = {
        OURS: partial(winkfs_mount, base, point),
        EXT4: partial(directory, below),
    }
    return {
        name: partial(round_of, place, name, rival, tar, count) for name, rival in rivals.items()
    }


def round_of(place: Path, name: str, rival: Rival, tar: Path, count: int) -> Phases:
    prepare(place, name)
    warm(tar)
    with rival() as mounted:
        root = mounted.path
        watch = Watch()
        subprocess.run(["tar", "xf", tar, "-C", root], check=True)
        watch.lap("untar")
        make_durable(root, whole=name == OURS)
        watch.lap("durable")
        subprocess.run(["find", root, "-size", "+100000k"], check=True)
        watch.lap("find")
        check(root, tar, count)
        os.sync()
        watch.lap("checked")
        subprocess.run(["rm", "-rf", root / sourcetree.TOP], check=True)
        watch.lap("rm")
        assert not os.listdir(root), "something is left"
        return watch.phases | mounted.used()


def prepare(place: Path, name: str) -> None:
    """Nothing is left of the round before, and the disk is quiet."""
    shutil.rmtree(place / "below", ignore_errors=True)
    for path in place.glob("container.*"):
        path.unlink()
    (place / "below").mkdir()
    if name == OURS:
        winkfs.create(place / "container").close()
    os.sync()


def make_durable(root: Path, *, whole: bool) -> None:
    """`whole`: an fsync of the directory is one of the whole file system."""
    if whole:
        descriptor = os.open(root, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    else:
        subprocess.run(["sync", "-f", root], check=True)


def check(root: Path, tar: Path, count: int) -> None:
    """All files are there; of some, content, mode and time, too."""
    with tarfile.open(tar) as archive:
        members = [member for member in archive if member.isfile()]
        assert sum(len(files) for _, _, files in os.walk(root)) == len(members) == count
        for member in random.Random(count).sample(members, LOOKED_AT):
            path, file = root / member.name, archive.extractfile(member)
            assert file is not None
            found = path.stat()
            assert path.read_bytes() == file.read(), path
            assert (found.st_mode & 0o777, int(found.st_mtime)) == (member.mode, member.mtime)


if __name__ == "__main__":
    main()
