"""docs/performance.md: its table and figures, and the six rows of the README, from the results.

    python benchmarks/performance.py     (`make performance`)

The newest result of each benchmark on each processor counts. The tables stand between two comments
in the pages; the figures are docs/performance-*.svg. Each figure names what it was drawn from, so
that a test can tell whether it is current without drawing it again.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import xxhash
from report import RESULTS

DOCS: Final = Path(__file__).parents[1] / "docs"
README: Final = Path(__file__).parents[1] / "README.md"
Result = dict[str, Any]
HTML: Final = "21,725 HTML files, 597 MB"
SMALL: Final = "200,000 x 4 KiB"


@dataclass(frozen=True)
class Line:
    """A figure beside a rival's.

    ours, theirs  with their units; theirs "": there is no rival
    times         how many times as fast winkfs is, or as small where memory is compared
    """

    what: str
    ours: str
    rival: str = ""
    theirs: str = ""
    times: float | None = None
    date: str = ""

    def cells(self) -> tuple[str, ...]:
        times = "" if self.times is None else factor(self.times)
        return self.what, self.ours, f"{self.rival}, {self.theirs}".strip(", "), times, self.date


# --- reading results ---


def newest() -> list[tuple[str, Result]]:
    """The newest result of each benchmark on each processor, with its date; oldest first. Those of
    the suite (`make bench`) have a page of their own."""
    found: dict[tuple[str, str], tuple[str, Result]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        if "sections" in result:
            continue
        found[result["name"], processor(result)] = (path.name[:10], result)
    return sorted(found.values(), key=lambda dated: (dated[0], dated[1]["name"]))


def processor(result: Result) -> str:
    return str(result["machine"].partition(",")[0])


def number(cell: str) -> float:
    """The first number of a cell: "**1.51x** (1.47-1.64)" is 1.51."""
    (first,) = re.findall(r"[\d,.]*\d", cell)[:1]
    return float(first.replace(",", ""))


def picked(result: Result, column: str, *starts: str) -> str:
    """The cell of a column in the row that begins with these cells ("*": any)."""
    for row in result["rows"]:
        if all(start in ("*", cell) for start, cell in zip(starts, row, strict=False)):
            return str(row[result["columns"].index(column)])
    raise KeyError(f"{result['name']}: no row {starts}")


def rate(value: float) -> str:
    """Three digits are all that a run tells."""
    digits = max(len(f"{value:.0f}") - 3, 0)
    return f"{round(value, -digits):,.0f}" if value >= 100 else f"{value:.3g}"


def factor(times: float) -> str:
    return f"{times:.2f}" if times < 1 else f"{times:.1f}" if times < 10 else f"{times:.0f}"


# --- shapes of tables ---

Make = Callable[[Result], Line | None]  # None: the result is older than the row


def beside_store(what: str, case: str, rival: str, name: str, unit: str = "files/s") -> Make:
    """A row of report.COMPARISON."""

    def make(result: Result) -> Line:
        row = (case, "*", "*", rival)
        ours = number(picked(result, "files/s", *row))
        slower = number(picked(result, "winkfs, s (range)", *row)) / number(
            picked(result, "rival, s (range)", *row)
        )
        times = number(picked(result, "times as fast", *row))
        return Line(what, f"{rate(ours)} {unit}", name, rate(ours * slower), times)

    return make


def beside_mount(what: str, column: str, step: str, ours: str, rival: str) -> Make:
    """Two rows of a table with a row for each file system. `step`: its seconds, run by run."""

    def make(result: Result) -> Line:
        mine, other = (number(picked(result, column, row)) for row in (ours, rival))
        runs = (result["runs"][row][step] for row in (ours, rival))
        times = statistics.median(b / a for a, b in zip(*runs, strict=True))
        unit = column.partition(" (")[0].split()[-1].replace("stat/s", "files/s")
        return Line(what, f"{rate(mine)} {unit}", rival, rate(other), times)

    return make


def in_spark(what: str, case: str, rival: str, name: str = "") -> Make:
    """CPU seconds of a whole application. None if the benchmark did not have that rival yet."""

    def make(result: Result) -> Line | None:
        if rival not in {row[3] for row in result["rows"]}:
            return None
        row = (case, "*", "*", rival)
        mine = number(picked(result, "winkfs, CPU s (range)", *row))
        other = number(picked(result, "rival, CPU s (range)", *row))
        times = number(picked(result, "times as fast, CPU", *row))
        return Line(what, f"{mine:.2f} s CPU", name or rival, f"{other:.2f}", times)

    return make


def packing(what: str, caches: str) -> Make:
    def make(result: Result) -> Line:
        mine = picked(result, "winkfs pack, s (range)", caches)
        other = picked(result, "tar + fsync, s (range)", caches)
        times = 1 / number(picked(result, "time of winkfs / of tar", caches))
        return Line(what, f"{number(mine):.2f} s", "tar, fsync", f"{number(other):.2f}", times)

    return make


def overwriting(what: str, file: str) -> Make:
    def make(result: Result) -> Line:
        mine = picked(result, "winkfs mount, s (range)", file)
        other = picked(result, "ext4, s (range)", file)
        times = number(picked(result, "times as fast", file))
        return Line(what, f"{number(mine):.1f} s", "ext4", f"{number(other):.1f}", times)

    return make


def in_memory(what: str, work: str, rival: str) -> Make:
    def make(result: Result) -> Line:
        mine, other = (number(picked(result, "RssAnon, MiB", row)) for row in (work, rival))
        return Line(what, f"{mine:.0f} MiB", "LMDB", f"{other:.0f}", other / mine)

    return make


def compacting(what: str, messages: str) -> Make:
    def make(result: Result) -> Line:
        mine = picked(result, "compact, s (range)", messages, "cold")
        other = picked(result, "copy, s (range)", messages, "cold")
        times = number(picked(result, "times as fast as a copy", messages, "cold"))
        rival = "copy of its files, fsync"
        return Line(what, f"{number(mine):.1f} s", rival, f"{number(other):.1f}", times)

    return make


def beside_queue(what: str, step: str, rival: str) -> Make:
    """Messages a second; of the rival there may have been fewer."""

    def make(result: Result) -> Line:
        mine, other = (number(picked(result, column, step)) for column in (QUEUE, rival))
        (case,) = (case for case in result["runs"] if " x " in case)
        each = (
            [took / count for took, count in zip(runs[step], runs[f"{step}, count"], strict=True)]
            for runs in (result["runs"][case][name] for name in (QUEUE, rival))
        )
        times = statistics.median(b / a for a, b in zip(*each, strict=True))
        return Line(what, f"{rate(mine)} messages/s", rival, rate(other), times)

    return make


def alone(what: str, column: str, unit: str, *starts: str) -> Make:
    def make(result: Result) -> Line:
        return Line(what, f"{rate(number(picked(result, column, *starts)))} {unit}")

    return make


def flat(what: str, step: str, order: str) -> Make:
    """The cost at the most files, of the table of bench_flat."""

    def make(result: Result) -> Line:
        last = [name for name in result["columns"] if name.endswith(" files")][-1]
        return Line(what, picked(result, last, step, order).partition(",")[0])

    return make


RO: Final = "winkfs mount --ro"
QUEUE: Final = "LedgerQ queue"
STAT: Final = "mount: `stat` of HTML files after a listing"
AGAIN: Final = "mount: HTML files read again"
PUT: Final = "`put_many`, 200,000 x 1 KiB, names in any order, durable"
GET: Final = "`get_many`, 200,000 x 1 KiB in random order, warm, verified"
PACK: Final = "`pack` of 20,000 HTML files, 550 MB, durable, warm"
BY_DEFAULT: Final = "Parquet, as Spark writes it"
TUNED: Final = "Parquet, not compressed, row groups of 8 MiB"
SCAN: Final = f"Spark: scan of {SMALL}, all columns"
CONTENTS: Final = f"Spark: scan of {SMALL}, contents only"
IN_README: Final = (
    (PUT, "LMDB, one transaction"),
    (GET, "LMDB get, not verified"),
    (PACK, "tar, fsync"),
    (AGAIN, "squashfuse_ll"),
    (SCAN, BY_DEFAULT),
    (SCAN, TUNED),
)

# What is shown, in this order: the name of a benchmark, and how a row is made of its result.
SHOWN: Final[Sequence[tuple[str, Make]]] = (
    ("put", beside_store("`put_many`, 200,000 x 1 KiB, names ascending, durable",
                         "200,000 x 1 KiB, mixed sizes", "LMDB", "LMDB, one transaction")),
    ("put", beside_store(PUT, "200,000 x 1 KiB, mixed sizes, names shuffled", "LMDB",
                         "LMDB, one transaction")),
    ("put", beside_store("`put_many`, 50,000 x 16 KiB, durable", "50,000 x 16 KiB",
                         "raw, the better", "joined writes to one file, no checksums")),
    ("get", beside_store(GET, "get_many, 200,000 x 1 KiB, mixed sizes, warm", "LMDB get",
                         "LMDB get, not verified")),
    ("get", beside_store("`read` of one file, warm, verified", "read, mixed sizes, warm",
                         "LMDB get", "LMDB get, not verified")),
    ("pack", packing(PACK, "warm")),
    ("pack", packing("`pack` of the same files, cold", "cold")),
    ("reindex", alone("`reindex`, warm", "entries/s", "entries/s", "winkfs.reindex", "warm")),
    ("reindex", alone("`verify`, warm", "entries/s", "entries/s", "winkfs.verify", "warm")),
    ("memory", in_memory("memory of `put_many`, 5,000,000 files", "put_many of a generator",
                         "LMDB, puts in one transaction")),
    ("flat", flat("one of 10,000,000 files: `stat`, cold", "stat, cold", "in no order")),
    ("flat", flat("one of 10,000,000 files: listed by name", "list, warm", "in no order")),
    ("flat", flat("`close` after 1,000 puts into 10,000,000 files", "close after 1,000 puts",
                  "in no order")),
    ("stores-compact", compacting("message store of 1 GiB, half dead, compacted: messages of "
                                  "1 KiB", "1 KiB")),
    ("stores-compact", compacting("message store of 1 GiB, half dead, compacted: messages of "
                                  "64 KiB", "64 KiB")),
    ("queues", beside_queue("queue: push of 256 bytes, not synced", "push",
                            "persist-queue, SQLite")),
    ("queues", beside_queue("queue: push of 256 bytes, not synced", "push", "litequeue")),
    ("queues", beside_queue("queue: pop and acknowledge", "pop and acknowledge",
                            "persist-queue, SQLite")),
    ("queues", beside_queue("queue: pop and acknowledge, each synced",
                            "pop and acknowledge, each synced", "persist-queue, SQLite")),
    ("mount", beside_mount(STAT, "stat/s", "stat", RO, "squashfuse_ll")),
    ("mount", beside_mount("mount: HTML files read", "first read, files/s", "first", RO,
                           "squashfuse_ll")),
    ("mount", beside_mount(AGAIN, "second read, files/s", "second", RO, "squashfuse_ll")),
    ("mount", beside_mount(AGAIN, "second read, files/s", "second", RO, "kernel SquashFS")),
    ("mount-list", beside_mount("mount: a directory of 1,000,000 names listed",
                                "os.scandir, names/s (range)", "scandir", RO, "squashfuse_ll")),
    ("mount-scale-10000000", alone("mount of 10,000,000 files: first answer",
                                   "with it (range)", "s", "first answer, s")),
    ("mount-scale-10000000", alone("mount of 10,000,000 files: memory", "with it (range)", "MiB",
                                   "RssAnon when mounted, MiB")),
    ("mount-write", beside_mount("mount: new files of 4 KiB", "one directory, files/s (range)",
                                 "one", "winkfs mount", "bindfs")),
    ("mount-write", beside_mount("mount: a file of 1 GiB, durable", "large, MiB/s", "large",
                                 "winkfs mount", "ext4 directory")),
    ("mount-overwrite", overwriting("mount: 65,536 random 4 KiB overwrites of a 64 MiB file, "
                                    "`fsync` after every 100", "64 MiB")),
    ("spark-scan", in_spark(SCAN, f"all columns, {SMALL}", "Parquet", BY_DEFAULT)),
    ("spark-scan", in_spark(SCAN, f"all columns, {SMALL}", "Parquet, tuned", TUNED)),
    ("spark-scan", in_spark(CONTENTS, f"content, {SMALL}", "Parquet", BY_DEFAULT)),
    ("spark-scan", in_spark(CONTENTS, f"content, {SMALL}", "Parquet, tuned", TUNED)),
    ("spark-scan", in_spark(CONTENTS, f"content, {SMALL}", "tar reader",
                            "Spark's tar reader")),
    ("spark-scan", in_spark(CONTENTS, f"content, {SMALL}", "binaryFile, ext4",
                            "`binaryFile` on ext4, tuned")),
    ("spark-scan", in_spark(CONTENTS, f"content, {SMALL}",
                            "binaryFile, ext4, defaults", "`binaryFile` on ext4")),
    ("spark-scan", in_spark(f"Spark: scan of {HTML}", f"content, {HTML}", "Parquet", BY_DEFAULT)),
    ("spark-scan", in_spark(f"Spark: scan of {HTML}", f"content, {HTML}", "Parquet, tuned", TUNED)),
    *(
        ("spark-lazy", in_spark(f"Spark, lazy: {what}", case, "Parquet, tuned", TUNED))
        for what, case in (
            (f"names and sizes of {SMALL}", f"names and sizes, {SMALL}"),
            (f"1 % of {SMALL} by name", f"1 % by name, {SMALL}"),
            (f"1 % of {SMALL} by a column", f"1 % by a column, {SMALL}"),
            (f"scan of {SMALL}, contents only", f"all contents, {SMALL}"),
            ("1,000 names of 1,000,000 x 1 KiB", "1,000 names of 1,000,000 x 1 KiB"),
        )
    ),
    ("spark-find", in_spark("Spark: 1,000 paths among 1,000,000",
                            "1,000 paths among 1,000,000, data set", "Parquet, sorted by path")),
    ("spark-write", in_spark(f"Spark: write of {SMALL}, durable", f"write, {SMALL}", "Parquet")),
    ("spark-write", in_spark(f"Spark: sort of {SMALL}, contents fetched late",
                             f"sort with late fetch, {SMALL}", "winkfs, whole rows",
                             "whole rows sorted")),
)  # fmt: skip


def lines() -> list[Line]:
    """What is shown, of every processor."""
    found = newest()
    made = []
    for name, make in SHOWN:
        for date, result in found:
            if result["name"] == name and (line := make(result)):
                made.append(replace(line, date=date))
    return made


# --- pages ---

HEAD: Final = ("", "winkfs", "rival", "times as fast", "measured")


def page_of(shown: Iterable[Line]) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *(line.cells() for line in shown)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


Parts = Sequence[tuple[str, str, Sequence[str]]]  # a name, the benchmark, its rows
STORES: Final[Parts] = (
    ("message store", "stores", (
        "write, singly", "write, at once", "read, singly", "read, 1,000 at once",
        "read, 10,000 at once", "read, 10,000 at once, cold", "remove, 1,000 at once",
        "write, each 100 synced",
    )),
    ("LogStore", "stores-log", (
        "put_many, commit of 100", "put_many, commit of 100, synced", "get singly",
        "get, 1,000 at once", "get, 10,000 at once", "snapshots, with a get each",
    )),
)  # fmt: skip
BESIDE: Final = ("winkfs", "SQLite, NORMAL", "LMDB", "RocksDB, WAL")


QUEUES: Final[Parts] = (
    ("", "queues", (
        "push", "push, each synced", "push, 100 at once", "push, 100 at once, each synced", "pop",
        "pop by priority", "pop, 100 at once", "pop and acknowledge",
        "pop and acknowledge, each synced", "push and pop in turn", "written, push",
        "by arrival: messages of 32 bytes", "by arrival: on the disk, bytes a message",
        "by arrival: open after a clean end, cold", "by arrival: open after an unclean end, cold",
        "by priority: messages of 32 bytes", "by priority: memory, bytes a message, pushed",
    )),
)  # fmt: skip
BESIDE_QUEUE: Final = (
    QUEUE, "Ring Page buffer", "persist-queue, SQLite", "persist-queue, files", "litequeue",
    "append",
)  # fmt: skip


def cells_of(parts: Parts, columns: Sequence[str]) -> str:
    """Stores beside others: cells as they are in the newest results."""
    found = {result["name"]: (date, result) for date, result in newest()}
    rows = [("", *columns, "measured"), ("---",) * (len(columns) + 2)]
    for part, name, steps in parts:
        if name in found:
            date, result = found[name]
            for step in steps:
                cells = (picked(result, column, step) for column in columns)
                rows.append((f"{part}: {step}" if part else step, *cells, date))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def whole(name: str) -> str:
    """The table of the newest result of a benchmark, and its notes."""
    date, found = next((date, one) for date, one in reversed(newest()) if one["name"] == name)
    head = [*found["columns"], "measured"]
    rows = [head, ["---"] * len(head), *([*row, date] for row in found["rows"])]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([table, "", *(f"- {note}" for note in found["notes"])])


def machines() -> str:
    """A line for each day of results, with the machine."""
    found = {(date, result["machine"].partition(";")[0]) for date, result in newest()}
    return "\n".join(f"- {date}: {machine}" for date, machine in sorted(found))


def in_readme() -> list[Line]:
    """The newest line of each of IN_README."""
    latest = {(line.what, line.rival): line for line in lines()}
    return [latest[row] for row in IN_README]


def blocks() -> dict[Path, dict[str, str]]:
    """The generated parts of the pages, by the names in their comments."""
    page = {
        "numbers": page_of(lines()), "machines": machines(), "stores": cells_of(STORES, BESIDE),
        "queues": cells_of(QUEUES, BESIDE_QUEUE), "remote": whole("remote"),
        "commands": whole("commands"), "tasks": whole("tasks"),
    }  # fmt: skip
    return {
        DOCS / "performance.md": page,
        README: {"numbers": page_of(in_readme())},
    }


def with_block(page: str, name: str, text: str) -> str:
    """A page with this text between `<!-- NAME: ... -->` and `<!-- end -->`."""
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end -->)"
    made, count = re.subn(pattern, lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"no block {name}, or several")
    return made


# --- figures ---

FIGURES: Final = ("rivals", "mount", "spark", "flat")


def drawn_from(figure: str) -> str:
    """What a figure shows, as a hash that stands in its file."""
    if figure == "mount":
        data: object = [(date, systems(result)) for date, result in mounts()]
    elif figure == "flat":
        data = [(date, result["runs"]) for date, result in flats()]
    else:
        data = [line.cells() for line in of_figure(figure)]
    return xxhash.xxh3_64_hexdigest(json.dumps(data).encode())


def of_figure(figure: str) -> list[Line]:
    spark = figure == "spark"
    return [x for x in lines() if x.times is not None and ("CPU" in x.ours or not spark)]


def mounts() -> list[tuple[str, Result]]:
    return [(date, result) for date, result in newest() if result["name"] == "mount"]


def flats() -> list[tuple[str, Result]]:
    return [(date, result) for date, result in newest() if result["name"] == "flat"]


def systems(result: Result) -> list[tuple[str, float, float]]:
    """File system, files read a second: the first time, and again."""
    first, again = (
        result["columns"].index(f"{which} read, files/s") for which in ("first", "second")
    )
    rows = [row for row in result["rows"] if row[0] != "goals"]
    return [(row[0], number(row[first]), number(row[again])) for row in rows]


def draw() -> None:
    """Write all figures. Needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "winkfs", "font.size": 9})
    for name, paint in zip(FIGURES, (_rivals, _mount, _spark, _flat), strict=True):
        figure = paint(Figure)
        notes = {"Date": None, "Description": f"drawn from {drawn_from(name)}"}
        path = DOCS / f"performance-{name}.svg"
        figure.savefig(path, format="svg", metadata=notes)
        path.write_text(re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE))


def _label(line: Line) -> str:
    return f"{line.what} | {line.rival}".replace("`", "")


def _rivals(new: Callable[..., Any]) -> Any:
    """How many times as fast as each rival: a row for each comparison, a bar for each day."""
    shown = of_figure("rivals")
    labels = list(dict.fromkeys(map(_label, shown)))[::-1]
    dates = sorted({line.date for line in shown})
    figure = new(figsize=(10, 0.3 * len(labels) + 1.2), layout="constrained")
    axis = figure.subplots()
    height = 0.8 / len(dates)
    for i, date in enumerate(dates):
        rows = [line for line in shown if line.date == date]
        places = [labels.index(_label(line)) + 0.4 - height * (i + 0.5) for line in rows]
        lengths = [(line.times or 1) - 1 for line in rows]
        bars = axis.barh(places, lengths, height, left=1, label=date)
        axis.bar_label(bars, [line.cells()[3] for line in rows], padding=2, fontsize=7)
    axis.set_xscale("log")
    axis.set_xlim(0.05, 70)
    axis.set_xticks([0.1, 0.5, 1, 2, 10, 50], ["0.1", "0.5", "1", "2", "10", "50"])
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(-0.6, len(labels) - 0.4)
    figure.suptitle("winkfs: times as fast as its rival (right of 1: faster)")
    axis.legend(title="measured", loc="lower right")
    return figure


def _mount(new: Callable[..., Any]) -> Any:
    """Files read a second by file system, a panel for each machine."""
    runs = mounts()
    figure = new(figsize=(10, 2.9 * len(runs)), layout="constrained")
    for axis, (date, result) in zip(
        figure.subplots(len(runs), squeeze=False).flat, runs, strict=True
    ):
        rows = systems(result)[::-1]
        for place, column, label in ((0.2, 1, "first read"), (-0.2, 2, "read again")):
            bars = axis.barh([i + place for i in range(len(rows))], [row[column] for row in rows],
                             0.4, label=label)  # fmt: skip
            axis.bar_label(bars, [f"{row[column]:,.0f}" for row in rows], padding=2, fontsize=7)
        axis.set_yticks(range(len(rows)), [row[0] for row in rows])
        axis.set_title(f"HTML files read through a mount, files/s: {processor(result)}, {date}")
        axis.legend(loc="center right")
        axis.margins(x=0.12)
    return figure


def _spark(new: Callable[..., Any]) -> Any:
    """CPU seconds beside those of the rival."""
    shown = of_figure("spark")[::-1]
    figure = new(figsize=(10, 0.45 * len(shown) + 1), layout="constrained")
    axis = figure.subplots()
    ours, theirs = ([number(x.ours) for x in shown], [number(x.theirs) for x in shown])
    for place, values, label in ((0.2, ours, "winkfs"), (-0.2, theirs, "rival")):
        bars = axis.barh([i + place for i in range(len(shown))], values, 0.4, label=label)
        axis.bar_label(bars, [f"{value:.2f}" for value in values], padding=2, fontsize=7)
    axis.set_xscale("log")
    axis.set_xlim(0.1, 100)
    axis.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axis.set_yticks(range(len(shown)), map(_label, shown))
    figure.suptitle("Spark: CPU seconds of the whole application (shorter: better)")
    axis.legend(loc="upper right")
    return figure


def _flat(new: Callable[..., Any]) -> Any:
    """What an operation costs by the number of files, beside what it costs of the fewest."""
    _, result = flats()[-1]
    counts = [int(number(name)) for name in result["columns"] if name.endswith(" files")]
    figure = new(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, (order, steps) in zip(panels, result["runs"].items(), strict=True):
        for axis, cache in zip(row, ("warm", "cold"), strict=True):
            for step, figures in steps.items():
                name, _, which = step.partition(", ")
                if which in ("", cache):
                    axis.plot(counts, [1e6 * one["cpu"] for one in figures], marker="o", label=name)
            axis.set_title(f"names {order}, {cache}")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
    panels[0][0].set_ylabel("CPU, us a file or a call")
    panels[1][0].set_ylabel("CPU, us a file or a call")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle("What an operation costs, by the number of files in the container")
    return figure


if __name__ == "__main__":
    for path, made in blocks().items():
        page = path.read_text()
        for name, text in made.items():
            page = with_block(page, name, text)
        path.write_text(page)
    draw()
