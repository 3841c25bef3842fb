"""Reports: the table of a benchmark, on the screen and in benchmarks/results/.

results/<date>-<name>.json   all runs of one benchmark
results/<date>.md            one page for the day, made from the JSON files of that date
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from common import Options

from winkformats.version import VERSION

RESULTS: Final = Path(__file__).parent / "results"
PACKAGES: Final = ("numpy", "xxhash", "lmdb", "rocksdict", "mfusepy", "fusepy",
            "persist-queue", "litequeue")  # fmt: skip
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Goal:
    """A bound on the figure of a row."""

    bound: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:,g}"

    def met(self, figure: float) -> bool:
        return figure <= self.bound if self.at_most else figure >= self.bound


class Report:
    """One question, one table."""

    def __init__(self, asked: Options, name: str, question: str, columns: Sequence[str]) -> None:
        if asked.awake:
            name, question = f"{name}-awake", f"{question} No processor sleeps."
        self._asked, self._name = asked, name
        self._found: dict[str, Any] = {
            "name": name, "question": question, "machine": machine(asked.place),
            "columns": list(columns), "rows": [], "notes": [], "runs": {},
        }  # fmt: skip
        print(f"# {name}: {question}\n{self._found['machine']}", flush=True)

    def row(self, *cells: str) -> None:
        self._found["rows"].append(list(cells))

    def verdict(self, goal: Goal | None, figure: float) -> str:
        """The cell of a goal. Small sizes decide nothing."""
        if goal is None or self._asked.quick:
            return str(goal or "")
        return f"{goal} {'met' if goal.met(figure) else 'MISSED'}"

    def against(
        self, rival: str, ours: Sequence[float], theirs: Sequence[float], goal: Goal
    ) -> str:
        """A goal beside a rival, as words: how many times its rate ours is, run against run."""
        figure = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        return f"{self.verdict(goal, figure)}: {figure:.2f}x {rival}"

    def goals(
        self,
        ours: str,
        speed: Mapping[str, Mapping[str, Sequence[float]]],
        goals: Mapping[str, Sequence[tuple[str, Goal]]],
    ) -> None:
        """The row of the goals, above columns of `server`.

        speed   rates by file system and step, run by run
        goals   by step: beside which file systems; those that are not there are left out
        """
        cells = (
            "; ".join(
                self.against(rival, speed[ours][step], speed[rival][step], goal)
                for rival, goal in wanted
                if rival in speed and step in speed[ours]
            )
            for step, wanted in goals.items()
        )
        self.row("goals", *cells, *("" for _ in SERVER))

    def note(self, sentence: str) -> None:
        self._found["notes"].append(sentence)

    def keep(self, case: str, figures: Any) -> None:
        """Note the single runs of a case, for the JSON file."""
        self._found["runs"][case] = figures

    def compare(
        self,
        case: str,
        ours: Sequence[float],
        rival: str,
        theirs: Sequence[float],
        count: int,
        goal: Goal | None = None,
        cpu: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        """A row of COMPARISON: how many times as fast as the rival, run against run.

        cpu     seconds on the processor, ours and the rival's
        """
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        figure = statistics.median(ratios)
        self.row(
            case, seconds(ours), f"{count / statistics.median(ours):,.0f}", rival, seconds(theirs),
            f"**{figure:.2f}x** ({min(ratios):.2f}-{max(ratios):.2f})",
            self.verdict(goal, figure),
            " / ".join(f"{statistics.median(runs):.2f}" for runs in cpu) if cpu else "",
        )  # fmt: skip

    def finish(self) -> None:
        """Print the table; keep it unless it was a quick run."""
        print(_table(self._found))
        if self._asked.quick:
            print("\n(quick: small sizes, no result, nothing kept)")
            return
        RESULTS.mkdir(exist_ok=True)
        date = datetime.date.today().isoformat()
        path = RESULTS / f"{date}-{self._name}.json"
        path.write_text(json.dumps(self._found, indent=1) + "\n")
        write_page(date)


COMPARISON: Final = (
    "case", "winkfs, s (range)", "files/s", "rival", "rival, s (range)", "times as fast", "goal",
    "CPU, s: winkfs / rival",
)  # fmt: skip


SERVER: Final = ("CPU of the server, s", "its RssAnon, MiB")


def server(runs: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """The cells of SERVER; empty where the kernel serves."""
    anonymous = statistics.median(runs["anonymous"])
    return (f"{statistics.median(runs['cpu']):.1f}", f"{anonymous:.0f}") if anonymous else ("", "")


def seconds(runs: Sequence[float]) -> str:
    return f"{statistics.median(runs):.3f} ({min(runs):.3f}-{max(runs):.3f})"


def rates(runs: Sequence[float]) -> str:
    """Things a second."""
    return f"{statistics.median(runs):,.0f} ({min(runs):,.0f}-{max(runs):,.0f})"


def _table(found: dict[str, Any]) -> str:
    rows = [found["columns"], *found["rows"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([*lines, "", *(f"- {note}" for note in found["notes"])])


def write_page(date: str) -> None:
    """The page of a day: a section for each benchmark that ran."""
    parts = [f"# Benchmarks of {date}"]
    for path in sorted(RESULTS.glob(f"{date}-*.json")):
        found = json.loads(path.read_text())
        parts.append(f"## {found['name']}: {found['question']}\n\n{found['machine']}\n")
        parts[-1] += "\n" + _table(found)
    (RESULTS / f"{date}.md").write_text("\n\n".join(parts) + "\n")


def machine(place: Path) -> str:
    """Machine, kernel, filesystem, versions and load, in one line."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    versions = [f"Python {platform.python_version()}", f"winkfs {VERSION}"]
    versions += map(_version, PACKAGES)
    return (
        f"{os.cpu_count()} x {_processor()}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"{_filesystem(place)}; {', '.join(versions)} ({_commit()}); "
        f"load before: {os.getloadavg()[0]:.1f}."
    )


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _filesystem(place: Path) -> str:
    """The type of the filesystem that holds `place`, from the mount with the longest prefix."""
    found = ("", "unknown filesystem")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if place.resolve().is_relative_to(where) and len(where) >= len(found[0]):
            found = (where, kind)
    return found[1]


def _commit() -> str:
    """The commit of this checkout, and whether it was changed since."""
    try:
        command = ["git", "describe", "--always", "--dirty=, changed"]
        where = Path(__file__).parent
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return f"commit {done.stdout.strip()}"
