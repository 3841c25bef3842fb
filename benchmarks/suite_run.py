"""A suite: sections of figures, each system in turn, as often as the time allows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from common import Case, Options

FEWEST: Final = 2  # rounds, however long they take
MOST: Final = 7
Runs = dict[str, dict[str, list[float]]]  # system -> step -> seconds of each round
PROGRAMS: Final = {  # what to install for a program
    "squashfuse_ll": "apt-get install squashfuse", "mksquashfs": "apt-get install squashfs-tools",
    "mkfs.erofs": "apt-get install erofs-utils", "bindfs": "apt-get install bindfs",
    "ratarmount": "pip install 'winkfs[bench]'", "tar": "apt-get install tar",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What is measured: `amount` things of this unit each round; 0: the seconds themselves."""

    title: str
    unit: str
    amount: float

    def figure(self, seconds: float) -> float:
        return self.amount / seconds if self.amount else seconds


@dataclass(frozen=True)
class Section:
    """Systems and what is measured of them.

    steps       by the name of a phase; a case may lack some
    cases       by system, ours first
    absent      why a rival is not here
    yardsticks  systems that are no rivals: they do less
    """

    question: str
    steps: Mapping[str, Step]
    cases: Mapping[str, Case]
    absent: Mapping[str, str] = field(default_factory=dict)
    yardsticks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """A section that ran."""

    name: str
    question: str
    steps: Mapping[str, Step]
    runs: Runs
    absent: Mapping[str, str]
    yardsticks: Sequence[str]

    @property
    def ours(self) -> str:
        return next(iter(self.runs))


Make = Callable[[Options], AbstractContextManager[Section]]


def split(wanted: Mapping[str, tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Those whose program can be had, and why others are not here.

    wanted  program ("": none; "mount: KIND": the kernel's), and anything, by system
    """
    here, absent = {}, {}
    for system, (need, thing) in wanted.items():
        why = _why_absent(need)
        if why:
            absent[system] = why
        else:
            here[system] = thing
    return here, absent


def _why_absent(need: str) -> str:
    """ "" where it is here."""
    if need.startswith("mount: "):
        return _why_not_mounted(need.removeprefix("mount: "))
    if not need or shutil.which(need):
        return ""
    return f"{need} is not installed: {PROGRAMS.get(need, need)}"


def _why_not_mounted(kind: str) -> str:
    if os.geteuid() != 0:
        return f"only root may mount {kind}"
    if f"\t{kind}\n" not in Path("/proc/filesystems").read_text():
        subprocess.run(["modprobe", kind], check=False, capture_output=True)
        if f"\t{kind}\n" not in Path("/proc/filesystems").read_text():
            return f"this kernel has no {kind}"
    return ""


def run(name: str, make: Make, asked: Options, budget: float) -> Found:
    """Set up a section and run it for about `budget` seconds, FEWEST rounds at least."""
    start = time.monotonic()
    with make(asked) as section:
        found: Runs = {case: {} for case in section.cases}
        say(f"{name}: set up in {time.monotonic() - start:.0f} s")
        longest = 0.0
        for turn in range(asked.own.runs or MOST):
            began = time.monotonic()
            late = began + longest > start + budget
            if late and turn >= FEWEST and not asked.own.runs:
                break
            # Every other round goes backwards, so that no case always follows the same one.
            for case in list(section.cases)[:: 1 if turn % 2 == 0 else -1]:
                for step, seconds in section.cases[case]().items():
                    found[case].setdefault(step, []).append(seconds)
            longest = max(longest, time.monotonic() - began)
            say(f"{name}: round {turn + 1} in {time.monotonic() - began:.1f} s")
    return Found(
        name, section.question, section.steps, found, section.absent, sorted(section.yardsticks)
    )


def say(text: str) -> float:
    """A line of progress -> seconds since the suite began."""
    passed = time.monotonic() - _START
    print(f"[{passed:5.0f} s] {text}", file=sys.stderr, flush=True)
    return passed


_START: Final = time.monotonic()
