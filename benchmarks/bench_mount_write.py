"""How fast are files written through a mount?

Small files: open a new one, write 4 KiB, close; 20,000 of them in one directory, and again spread
over 100 directories. One large file: 1 GiB by `dd bs=1M conv=fsync`, so durable. Small files are
not durable when the last is closed; ours become so within five seconds, in the background.

The naive file systems (naivefs.py) keep everything in memory, and are left out of the large file,
which they would copy at each write; bindfs passes on to a directory on ext4.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from common import Case, Options, Phases, Watch, interleaved, options, scratch
from filesystems import Rival, bindfs, directory, naive, present, versions, winkfs_mount
from report import SERVER, Goal, Report, rates, server

import winkfs

PLAIN: Final = "winkfs mount"
APPEND_ONLY: Final = "winkfs mount, append-only"
NAIVE: Final = "naive, fusepy"
NAIVE3: Final = "naive, mfusepy"
BINDFS: Final = "bindfs"
EXT4: Final = "ext4 directory"
DIRECTORIES: Final = 100
CONTENT: Final = os.urandom(4096)
GOALS: Final = {
    "one": ((NAIVE, Goal(3)), (BINDFS, Goal(4))),
    "spread": ((NAIVE, Goal(3)), (BINDFS, Goal(4))),
    "large": ((EXT4, Goal(0.7)),),
}
COLUMNS: Final = (
    "file system", "one directory, files/s (range)", "100 directories, files/s", "large, MiB/s",
    *SERVER,
)  # fmt: skip


def main() -> None:
    asked = options(__doc__)
    report = Report(asked, "mount-write", "How fast are files written through a mount?", COLUMNS)
    count = asked.size(20_000, 500)
    with scratch(asked) as place:
        found = interleaved(cases(asked, place, count), asked.runs)
    speed = {name: speeds(asked, count, runs) for name, runs in found.items()}
    for name, runs in found.items():
        report.keep(name, runs)
        report.row(
            name, *(rates(speed[name][step]) if step in speed[name] else "" for step in GOALS),
            *server(runs),
        )  # fmt: skip
    report.goals(PLAIN, speed, GOALS)
    report.note(
        "Small files: create, write 4 KiB, close; not durable. The large file is, by fsync."
    )
    report.note("Goals are those of winkfs mount. CPU and RssAnon: after all small files.")
    report.note(f"Versions: {versions(fusermount3='--version', bindfs='--version')}.")
    report.finish()


def large(asked: Options) -> int:
    """MiB of the large file."""
    return asked.size(1024, 16)


def speeds(asked: Options, count: int, runs: dict[str, list[float]]) -> dict[str, list[float]]:
    """Files a second, and MiB a second of the large file, run by run."""
    amounts = {"one": count, "spread": count, "large": large(asked)}
    return {
        step: [amount / run for run in runs[step]]
        for step, amount in amounts.items()
        if step in runs
    }


def cases(asked: Options, place: Path, count: int) -> dict[str, Case]:
    point, below, base = place / "mnt", place / "below", place / "container"
    rivals = present({
        PLAIN: ("", partial(winkfs_mount, base, point)),
        APPEND_ONLY: ("", partial(winkfs_mount, base, point)),
        NAIVE: ("", partial(naive, "fusepy", point)),
        NAIVE3: ("", partial(naive, "mfusepy", point)),
        BINDFS: ("bindfs", partial(bindfs, below, point)),
        EXT4: ("", partial(directory, below)),
    })  # fmt: skip
    return {
        name: partial(round_of, place, rival, count, partial(prepare, place, name),
                      0 if name in (NAIVE, NAIVE3) else large(asked))
        for name, rival in rivals.items()
    }  # fmt: skip


def prepare(place: Path, name: str) -> None:
    """Nothing is left of the round before, and the disk is quiet."""
    shutil.rmtree(place / "below", ignore_errors=True)
    for path in place.glob("container.*"):
        path.unlink()
    (place / "below").mkdir()
    if name in (PLAIN, APPEND_ONLY):
        winkfs.create(place / "container", ao=name == APPEND_ONLY).close()
    os.sync()


def round_of(
    place: Path, rival: Rival, count: int, prepare: Callable[[], None], mebibytes: int
) -> Phases:
    prepare()
    with rival() as mounted:
        root = str(mounted.path)
        watch = Watch()
        os.mkdir(f"{root}/one")
        create([f"{root}/one/file{i:06d}" for i in range(count)])
        watch.lap("one")
        spread = [f"{root}/folder{i:02d}" for i in range(DIRECTORIES)]
        for path in spread:
            os.mkdir(path)
        create([f"{spread[i % DIRECTORIES]}/file{i:06d}" for i in range(count)])
        watch.lap("spread")
        found = watch.phases | mounted.used()
        assert sum(path.stat().st_size for path in mounted.path.rglob("file*")) == (
            2 * count * len(CONTENT)
        ), "files are missing"
        if mebibytes:
            os.sync()
            watch = Watch()
            command = f"dd if=/dev/zero of={root}/large bs=1M count={mebibytes} conv=fsync"
            subprocess.run([*command.split(), "status=none"], check=True)
            watch.lap("large")
            found |= watch.phases
    return found


def create(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, CONTENT)
        os.close(descriptor)


if __name__ == "__main__":
    main()
