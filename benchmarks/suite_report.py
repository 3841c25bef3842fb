"""What a suite found: a page, a JSON file and a figure by date, beside the last that was kept.

results/<date>-<name>.json   all runs, name "bench" or "bench-quick"
results/<date>-<name>.md     a table for each section, and what changed since the last
results/<date>-<name>.png    how many times as fast winkfs is as each rival, now and the last time
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from report import RESULTS, write_page
from suite_run import Found, Step

Kept = dict[str, Any]
COLUMNS: Final = ("section", "step", "system", "figure (range)", "winkfs is times as fast")


@dataclass(frozen=True)
class Change:
    """A figure of winkfs beside that of the last run that was kept.

    times     how many times as fast as then
    rivals    the same of the rivals, the median: what the machine did
    verdict   "same": the ranges of the runs overlap
    """

    section: str
    step: str
    now: str
    then: str
    times: float
    rivals: float | None
    verdict: str


def keep(
    name: str, machine: str, found: Sequence[Found], failed: Sequence[str]
) -> tuple[Path, list[Change], str]:
    """Write JSON, page and figure -> the page, what changed, the date of what was compared with."""
    RESULTS.mkdir(exist_ok=True)
    last = last_of(name, machine)
    date = datetime.date.today().isoformat()
    changes = compared(found, last[1]) if last else []
    kept: Kept = {
        "name": name, "question": "All sections of the suite in one run.", "machine": machine,
        "columns": list(COLUMNS), "rows": [list(row) for row in rows_of(found)],
        "notes": list(failed), "runs": {one.name: one.runs for one in found},
        "sections": [asdict(one) for one in found],
    }  # fmt: skip
    stem = RESULTS / f"{date}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    drawn = draw(stem.with_suffix(".png"), found, last)
    page = "\n\n".join(page_of(name, date, machine, found, failed, changes, last, drawn))
    stem.with_suffix(".md").write_text(page + "\n")
    write_page(date)
    return stem.with_suffix(".md"), changes, last[0] if last else ""


# --- the last one ---


def last_of(name: str, machine: str) -> tuple[str, Kept] | None:
    """The newest kept result of a suite on such a machine, with its date."""
    for path in sorted(RESULTS.glob(f"*-{name}.json"), reverse=True):
        kept = json.loads(path.read_text())
        if kept["name"] == name and _processor(kept["machine"]) == _processor(machine):
            return path.name[:10], kept
    return None


def _processor(machine: str) -> str:
    return machine.partition(",")[0]


def compared(found: Sequence[Found], last: Kept) -> list[Change]:
    """Each step that both have, of the same amount."""
    then = {one["name"]: one for one in last["sections"]}
    changes = []
    for one in found:
        old = then.get(one.name)
        for key, step in one.steps.items():
            if old and one.runs and old["steps"].get(key) == asdict(step):
                change = _change(one, key, step, old["runs"])
                changes += [change] if change else []
    return changes


def _change(one: Found, key: str, step: Step, old: dict[str, Any]) -> Change | None:
    ours, before = one.runs[one.ours].get(key), old.get(one.ours, {}).get(key)
    if not ours or not before:
        return None
    times = {
        name: statistics.median(old[name][key]) / statistics.median(runs[key])
        for name, runs in one.runs.items()
        if key in runs and key in old.get(name, {})
    }
    mine = times.pop(one.ours)
    rivals = statistics.median(times.values()) if times else None
    faster, slower = max(ours) < min(before), min(ours) > max(before)
    verdict = "better" if faster else "worse" if slower else "same"
    return Change(
        one.name, step.title, cell(step, ours), cell(step, before), mine, rivals, verdict
    )  # fmt: skip


# --- tables ---


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(step: Step, seconds: Sequence[float]) -> str:
    """Median and range of a figure."""
    figures = sorted(map(step.figure, seconds))
    middle = rate(statistics.median(figures))
    return f"{middle} ({rate(figures[0])}-{rate(figures[-1])})"


def ratio(one: Found, system: str, key: str) -> float | None:
    """How many times as fast winkfs is, run against run."""
    ours, theirs = one.runs[one.ours].get(key), one.runs[system].get(key)
    if system == one.ours or not ours or not theirs:
        return None
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=False))


def rows_of(found: Sequence[Found]) -> Iterator[tuple[str, ...]]:
    for one in found:
        for key, step in one.steps.items():
            for system, runs in one.runs.items():
                if key in runs:
                    times = ratio(one, system, key)
                    told = "" if times is None else f"{times:.2f}"
                    yield (one.name, step.title, system, f"{cell(step, runs[key])} {step.unit}",
                           told)  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def section_of(one: Found) -> str:
    """A row for each system, a column for each step; behind a rival's figure how many times as
    fast winkfs is."""
    head = ["", *(f"{step.title}, {step.unit}" for step in one.steps.values())]
    rows = [head]
    for system, runs in one.runs.items():
        row = [system]
        for key, step in one.steps.items():
            times = ratio(one, system, key) if key in runs else None
            told = "" if times is None else f" **{times:.2f}x**"
            row.append(cell(step, runs[key]) + told if key in runs else "")
        rows.append(row)
    rows += [[system, why, *[""] * (len(head) - 2)] for system, why in one.absent.items()]
    counts = {len(values) for runs in one.runs.values() for values in runs.values()}
    rounds = f" Rounds: {max(counts)}." if counts else ""
    return f"## {one.name}\n\n{one.question}.{rounds}\n\n{table(rows)}"


def page_of(
    name: str,
    date: str,
    machine: str,
    found: Sequence[Found],
    failed: Sequence[str],
    changes: Sequence[Change],
    last: tuple[str, Kept] | None,
    drawn: str,
) -> Iterator[str]:
    """The parts of the page."""
    yield f"# {name} of {date}"
    yield machine
    yield (
        "Medians and ranges of several rounds in which all systems run in turn. Behind a rival's "
        "figure: how many times as fast winkfs is (above 1: faster), run against run."
    )
    if failed:
        yield "Failed: " + "; ".join(failed)
    yield drawn
    yield from map(section_of, found)
    if last:
        yield f"## Since {last[0]}\n\n" + changed(changes, last)


def changed(changes: Sequence[Change], last: tuple[str, Kept]) -> str:
    """The table of changes."""
    told = (
        f"Then: {last[1]['machine']}\n\nSame: the ranges overlap. What the rivals did in the same "
        "step tells what the machine did."
    )
    if not changes:
        return f"{told}\n\nNo step has the same sizes."
    rows = [("section", "step", "now (range)", "then (range)", "winkfs", "rivals", "")]
    rows += [
        (x.section, x.step, x.now, x.then, f"{x.times:.2f}x",
         "" if x.rivals is None else f"{x.rivals:.2f}x", x.verdict)
        for x in changes
    ]  # fmt: skip
    return f"{told}\n\n{table(rows)}"


# --- the figure ---


def draw(path: Path, found: Sequence[Found], last: tuple[str, Kept] | None) -> str:
    """A point for each rival and step -> the line of the page that shows it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "No figure: matplotlib is not installed: pip install 'winkfs[bench]'"
    now = points(found)
    old = points([_found(one) for one in last[1]["sections"]]) if last else {}
    figure = Figure(figsize=(10, 0.2 * len(now) + 1.5), layout="constrained")
    axis = figure.subplots()
    for place, (label, times) in enumerate(reversed(now.items())):
        axis.plot([times], [place], "o", color="tab:green" if times >= 1 else "tab:red", ms=5)
        if label in old:
            axis.plot([old[label]], [place], "o", mfc="none", color="gray", ms=5)
    axis.set_yticks(range(len(now)), list(reversed(now)), fontsize=7)
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    axis.margins(y=0.01)
    then = f"; hollow: {last[0]}" if last else ""
    axis.set_title(f"winkfs is times as fast as (right of 1: faster){then}", fontsize=9)
    figure.savefig(path, dpi=100)
    return f"![winkfs beside its rivals]({path.name})"


def points(found: Sequence[Found]) -> dict[str, float]:
    """Section, step and rival -> how many times as fast."""
    return {
        f"{one.name}: {step.title} | {system}": times
        for one in found
        if one.runs
        for key, step in one.steps.items()
        for system in one.runs
        if system not in one.yardsticks
        if (times := ratio(one, system, key)) is not None
    }


def _found(kept: Kept) -> Found:
    steps = {key: Step(**step) for key, step in kept["steps"].items()}
    return Found(
        kept["name"], kept["question"], steps, kept["runs"], kept["absent"], kept["yardsticks"]
    )
