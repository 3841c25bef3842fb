"""What do random overwrites with fsync cost on a mount, in time and in the growth of the container?

256 MiB in writes of 4 KiB, at random places of one file, aligned, with an fsync after every 100.
The file has 16, 64 or 256 MiB and was written and synced before. Afterwards the mount is made anew
and the file compared, byte by byte, with what was written. Growth: how many bytes the container has
more, for each byte written.
"""

from __future__ import annotations

import os
import random
import statistics
from functools import partial
from pathlib import Path
from typing import Final

from common import Case, Phases, Watch, interleaved, options, scratch
from filesystems import Rival, directory, winkfs_mount
from report import Goal, Report, seconds

import winkfs

BLOCK: Final = 4096
SYNC_EVERY: Final = 100  # writes
MIB: Final = 1 << 20
SEED: Final = 20_261
SIZES: Final = (16, 64, 256)  # MiB
SPEED: Final = Goal(0.5)
GROWTH: Final = Goal(1.2, at_most=True)
COLUMNS: Final = (
    "file", "winkfs mount, s (range)", "ext4, s (range)", "MiB/s", "times as fast", "goal",
    "growth of the container", "goal, growth", "lost",
)  # fmt: skip


def main() -> None:
    asked = options(__doc__)
    question = "What do random overwrites with fsync cost, in time and in growth?"
    report = Report(asked, "mount-overwrite", question, COLUMNS)
    written = asked.size(256, 4)
    with scratch(asked) as place:
        for size in SIZES:
            measure(asked.runs, report, place, asked.size(size, size // 16), written)
    report.note(
        f"{written} MiB in writes of 4 KiB, fsync every {SYNC_EVERY}; what the file holds is "
        "compared after a new mount. Growth: bytes of the container per byte written."
    )
    report.finish()


def measure(runs: int, report: Report, place: Path, size: int, written: int) -> None:
    base, what = place / "container", f"{size} MiB"
    mount = partial(winkfs_mount, base, place / "mnt")
    plain = partial(directory, place / "below")
    cases: dict[str, Case] = {
        "winkfs": partial(round_of, mount, base, size, written),
        "ext4": partial(round_of, plain, None, size, written),
    }
    found = interleaved(cases, runs)
    report.keep(what, found)
    ours, theirs = found["winkfs"]["write"], found["ext4"]["write"]
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    figure, growth = statistics.median(ratios), statistics.median(found["winkfs"]["growth"])
    report.row(
        what, seconds(ours), seconds(theirs), f"{written / statistics.median(ours):.0f}",
        f"**{figure:.2f}x** ({min(ratios):.2f}-{max(ratios):.2f})", report.verdict(SPEED, figure),
        f"{growth:.2f}", report.verdict(GROWTH, growth), "nothing",
    )  # fmt: skip


def round_of(rival: Rival, base: Path | None, size: int, written: int) -> Phases:
    """base: the container, made here; None: there is none. Ends the benchmark if a byte is lost."""
    model = bytearray(os.urandom(size * MIB))
    if base:
        for path in base.parent.glob(f"{base.name}.*"):
            path.unlink()
        winkfs.create(base).close()
    with rival() as mounted, (mounted.path / "file").open("wb", buffering=0) as file:
        file.write(model)
        os.fsync(file.fileno())
    before = length(base)
    with rival() as mounted:
        watch = Watch()
        overwrite(mounted.path / "file", model, written * MIB // BLOCK)
        watch.lap("write")
    found = {**watch.phases, "growth": (length(base) - before) / (written * MIB)}
    with rival() as mounted:
        assert (mounted.path / "file").read_bytes() == model, "bytes were lost"
        (mounted.path / "file").unlink()
    return found


def overwrite(path: Path, model: bytearray, writes: int) -> None:
    """The same writes on the file and on the model."""
    chance = random.Random(SEED)
    fresh = os.urandom(MIB)
    descriptor = os.open(path, os.O_WRONLY)
    for number in range(1, writes + 1):
        at = chance.randrange(len(model) // BLOCK) * BLOCK
        start = chance.randrange(MIB - BLOCK)
        block = fresh[start : start + BLOCK]
        os.pwrite(descriptor, block, at)
        model[at : at + BLOCK] = block
        if number % SYNC_EVERY == 0:
            os.fsync(descriptor)
    os.close(descriptor)


def length(base: Path | None) -> int:
    """Bytes of the files of the container; 0 where there is none."""
    if base is None:
        return 0
    return sum(path.stat().st_size for path in base.parent.glob(f"{base.name}.*"))


if __name__ == "__main__":
    main()
