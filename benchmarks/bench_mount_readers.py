"""Do several readers of a mount read faster in sum than one, or slower?

One, two and four processes read all files, each its part of them: files that no one has read yet
through this mount (`first`), then the same once more (`second`). Each number of readers has a fresh
mount, whose directories were listed; backing files are warm.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Final

from common import Case, Phases, forget_names, interleaved, options
from filesystems import Rival
from htmlimages import EXT4, RO, RW, SQUASHFS, SQUASHFUSE, Images, images_of, tree_option
from readers import listed, read_all
from report import Goal, Report, rates

READERS: Final = (1, 2, 4)
SHOWN: Final = (RO, RW, SQUASHFUSE, SQUASHFS, EXT4)
STEPS: Final = tuple(f"{pass_}, {n}" for pass_ in ("first", "second") for n in READERS)
NO_SLOWER: Final = Goal(1.0)
COLUMNS: Final = (
    "file system",
    *(f"{step} reader{'s' * (not step.endswith('1'))}, files/s (range)" for step in STEPS),
)


def main() -> None:
    asked = options(__doc__, own=tree_option)
    question = "Do several readers read faster in sum than one, or slower?"
    report = Report(asked, "mount-readers", question, COLUMNS)
    with images_of(asked) as images:
        rivals = images.rivals()
        cases: dict[str, Case] = {
            name: partial(round_of, images, rivals[name]) for name in SHOWN if name in rivals
        }
        found = interleaved(cases, asked.runs)
    for name, runs in found.items():
        report.keep(name, runs)
        speed = {step: [images.tree.count / run for run in runs[step]] for step in STEPS}
        cells = [rates(speed[step]) for step in STEPS]
        for i, step in enumerate(STEPS):
            if not step.endswith("1"):
                cells[i] += f" {times_one(report, speed, step, goal=name == RO)}"
        report.row(name, *cells)
    report.note(images.note())
    report.note("Behind a rate: how many times that of one reader (goal: >= 1 for --ro).")
    report.finish()


def round_of(images: Images, rival: Rival) -> Phases:
    found = {}
    for readers in READERS:
        images.warm()
        forget_names()
        with rival() as mounted:
            files = listed(mounted.path)
            for name in ("first", "second"):
                found[f"{name}, {readers}"] = read_all(files, readers, images.tree.total)
    return found


def times_one(report: Report, speed: dict[str, list[float]], step: str, *, goal: bool) -> str:
    one = speed[f"{step.partition(',')[0]}, 1"]
    figure = statistics.median(a / b for a, b in zip(speed[step], one, strict=True))
    verdict = report.verdict(NO_SLOWER, figure) if goal else ""
    return f"**{figure:.2f}x** {verdict}".rstrip()


if __name__ == "__main__":
    main()
