"""Sections of the page: each takes facts, and returns None if they have none for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element

from winkfs.names import printable
from winkfs.report.charts import (
    Bar,
    Child,
    Share,
    card,
    el,
    folded,
    histogram,
    meter,
    name,
    percent,
    shares,
    strip,
    table,
)
from winkfs.units import size_text

PARTS: Final = ("superblocks", "live", "dead", "holes", "reserve", "overhead")
"""Parts of a data file; also the classes of their colours."""
SPANS: Final = {  # seconds -> text, of the ages of `totals.AGES`
    0: "0", 60: "1 minute", 3600: "1 hour", 86_400: "1 day", 7 * 86_400: "1 week",
    30 * 86_400: "30 days", 91 * 86_400: "91 days", 31_557_600: "1 year",
}  # fmt: skip
YEAR: Final = 31_557_600  # seconds
ROWS: Final = 50  # shards and generations in a table
BARS: Final = 200  # generations in a chart
Facts = Mapping[str, Any]


def comparison(rows: Sequence[Facts], old: str) -> Element:
    changed = [row for row in rows if row["old"] != row["new"]]
    body = [
        [
            words(row["what"].removeprefix("files.")),
            *map(_figure(row["what"]), (row["old"], row["new"])),
            _change(row),
        ]
        for row in changed
    ]
    text = f"{len(changed):,} of {len(rows):,} figures differ from those of "
    made = card("Comparison", text)
    paragraph = made[1]
    paragraph.append(name(old))
    if changed:
        made.append(table("Old and new figures", ("figure", "old", "new", "change"), body))
    return made


def _figure(what: str) -> Any:
    sizes = ("bytes", "size", "live", "dead", "holes", "reserve", "stored", "overhead", "waste")
    parts = what.split(".")
    is_size = parts[0] in ("space", "types", "shards", "files") and parts[-1] in sizes
    if is_size or parts[-1].endswith("bytes"):
        return lambda value: "none" if value is None else size_text(value)
    return lambda value: "none" if value is None else f"{value:,}"


def _change(row: Facts) -> Element | None:
    old, new = row["old"], row["new"]
    if old is None or new is None:
        return None
    share = f" ({100 * (new - old) / old:+.1f} %)" if old else ""
    text = _figure(row["what"])(abs(new - old))
    return el("span", f"{'+' if new > old else '-'}{text}{share}")


def space(facts: Facts) -> Element | None:
    space = facts.get("space")
    if not space:
        return None
    parts = [
        Share(key, key, space[key], size_text(space[key]))
        for key in PARTS
        if space.get(key) is not None and (space[key] or key in ("live", "dead"))
    ]
    about = ", ".join(f"{part.label} {part.text}" for part in parts)
    text = (
        "Live entries belong to current files; dead ones were replaced or deleted, and "
        "`winkfs compact` reclaims them. Holes take no room on the disk. Reserve is allocated "
        "after the end for what comes next."
    )
    if not space["exact"]:
        text += " Live and dead bytes are estimates here, from the catalog."
    made = [shares(parts, f"Use of the data file: {about}")]
    if "map" in space:
        made += _map_of(space, [part.kind for part in parts])
    rows = [
        [part.label, part.text, f"{part.size:,}", percent(part.size, space["size"])]
        for part in parts
    ]
    made.append(
        folded("Table", table("Bytes of the data file", ("part", "size", "bytes", "share"), rows))
    )
    return card("Space", text.replace("`", ""), *made)


def _map_of(space: Facts, kinds: Sequence[str]) -> list[Element]:
    cells, step = space["map"], space["map"]["step"]
    shown, titles = [], []
    for at in range(len(cells["live"])):
        size = min(step, space["size"] - at * step) or 1
        shown.append([(kind, cells[kind][at] / size) for kind in kinds])
        words = ", ".join(
            f"{kind} {100 * cells[kind][at] / size:.0f} %" for kind in kinds if cells[kind][at]
        )
        titles.append(f"from byte {at * step:,}: {words}")
    about = f"Map of the data file, {len(shown)} parts of {size_text(step)} each from its beginning"
    ends = el("div", el("span", "0"), el("span", size_text(space["size"])), class_="ends")
    return [
        el("h3", f"From beginning to end, {size_text(step)} each"),
        strip(shown, titles, about),
        ends,
    ]


def sizes(facts: Facts) -> Element | None:
    rows = facts.get("sizes", ())
    return _classes(
        "Sizes",
        "Classes of sizes double from one to the next.",
        [(size_text(row["least"]), _size_range(row), row) for row in rows],
    )


def times(facts: Facts) -> Element | None:
    rows = facts.get("mtimes", ())
    return _classes(
        "Times",
        "How long before this report the files were changed (mtime).",
        [(_age_label(row), _age_range(row), row) for row in rows],
    )


def _classes(title: str, text: str, rows: Sequence[tuple[str, str, Facts]]) -> Element | None:
    if not rows:
        return None
    files = [
        Bar(label, f"{what}: {row['files']:,} files", row["files"]) for label, what, row in rows
    ]
    size = [
        Bar(label, f"{what}: {size_text(row['bytes'])}", row["bytes"]) for label, what, row in rows
    ]
    most = max(rows, key=lambda found: found[2]["files"])
    about = f"{title} of files, most of them {most[1]}"
    pair = el(
        "div",
        histogram("Files", files, about),
        el("div", histogram("Bytes", size, f"Bytes by {title.lower()}"), class_="bytes"),
        class_="pair",
    )
    body = [[what, f"{row['files']:,}", size_text(row["bytes"])] for _, what, row in rows]
    return card(title, text, pair, folded("Table", table(title, ("class", "files", "bytes"), body)))


def types(facts: Facts) -> Element | None:
    types = facts.get("types")
    if not types:
        return None
    stored = all("stored" in row for row in types)
    most = max(row["bytes"] for row in types)
    rows = [_type_row(row, most, stored=stored) for row in types]
    heads = ["type", "", "files", "content", *(["stored", "ratio"] if stored else [])]
    text = "By the suffix of the name. " + (
        "Stored is what the contents take in the data file, about: compressed, and without holes. "
        "All of a bar is content, and the strong part of it is stored."
        if stored
        else ""
    )
    return card("Types", text, table("Files by type", heads, rows, texts=2))


def _type_row(row: Facts, most: int, *, stored: bool) -> list[Any]:
    word: str | None = row["type"]
    what = "all others" if word is None else word or "no suffix"
    size, inner = row["bytes"], row["stored"] if stored else row["bytes"]
    cells = [
        name(what),
        meter(inner, size, most, f"{size_text(inner)} of {size_text(size)}"),
        f"{row['files']:,}",
        size_text(size),
    ]
    if stored:
        cells += [size_text(inner), f"{size / inner:.2f}" if inner else ""]
    return cells


def columns(facts: Facts) -> Element | None:
    if not facts.get("columns"):
        return None
    rows = [
        [
            name(row["name"]),
            row["type"],
            name(_value(row["least"])),
            name(_value(row["greatest"])),
            f"{row['values']:,}",
            f"{row['nulls']:,}",
            _distinct(row["distinct"]),
        ]
        for row in facts["columns"]
    ]
    heads = ("column", "type", "least", "greatest", "values", "nulls", "distinct")
    return card(
        "Columns", "Values that users gave to files.", table("Columns", heads, rows, texts=4)
    )


def _value(value: object) -> str:
    return "" if value is None else str(value)


def _distinct(count: int | None) -> str:
    if count is None:
        return ""
    return f"more than {count - 1:,}" if count > 10_000 else f"{count:,}"


def index(facts: Facts) -> Element | None:
    index = facts.get("index")
    if not index:
        return None
    if "cells" not in index:
        return card("Index", "There is no valid index: winkfs reindex makes one.")
    load = f"{100 * index['load']:.1f} % are taken"
    text = f"{index['live']:,} files in {index['cells']:,} cells: {load}."
    if not index["current"]:
        text += " Files at the end of the data file are not in it yet."
    if not index.get("probes"):
        return card("Index", text)
    text += (
        f" A search for a file reads {index['mean_probes']:.2f} cells on average, "
        f"{index['most_probes']:,} at most."
    )
    label = [(_bounds(row), row) for row in index["probes"]]
    bars = [Bar(what, f"{what} cells: {row['files']:,} files", row["files"]) for what, row in label]
    body = [
        [what, f"{row['files']:,}", percent(row["files"], index["live"])] for what, row in label
    ]
    return card(
        "Index",
        text,
        histogram("Files by the cells that a search reads", bars, text),
        folded("Table", table("Cells that a search reads", ("cells", "files", "share"), body)),
    )


def _bounds(row: Facts) -> str:
    last = row["below"] - 1
    return f"{row['least']:,}" if last == row["least"] else f"{row['least']:,} to {last:,}"


def catalog(facts: Facts) -> Element | None:
    catalog = facts.get("catalog")
    if not catalog or not catalog["runs"]:
        return None
    blocks = total(catalog["runs"], "blocks")
    size, most = size_text(catalog["bytes"]), f"{catalog['block_rows']:,}"
    noun = "block" if blocks == 1 else "blocks"
    text = f"{blocks:,} {noun} of up to {most} files, {size}."
    if not catalog["current"]:
        text += " Files at the end of the data file are not in it yet."
    fills = catalog["fills"]
    width = 100 // len(fills)
    bars = [
        Bar(f"{at} %", f"{at} to {at + width} % full: {count:,} blocks", count)
        for at, count in zip(range(0, 100, width), fills, strict=True)
    ]
    heads = ("run", "blocks", "rows", "removed names", "bytes")
    rows = [
        [f"{at}", *(f"{run[key]:,}" for key in ("blocks", "rows", "gone")), size_text(run["bytes"])]
        for at, run in enumerate(catalog["runs"])
    ]
    return card(
        "Catalog",
        text,
        histogram("Blocks by how full they are", bars, f"Fill of {blocks} blocks"),
        folded("Table", table("Runs, the oldest first", heads, rows)),
    )


def shards(facts: Facts) -> Element | None:
    shards = facts.get("shards")
    if not shards:
        return None
    size, waste = total(shards, "bytes"), total(shards, "waste")
    parts = [
        Share("live", "in use", size - waste, size_text(size - waste)),
        Share("dead", "waste", waste, size_text(waste)),
    ]
    most = sorted(shards, key=lambda row: row["waste"], reverse=True)[:ROWS]
    top = max(row["bytes"] for row in shards)
    rows: list[list[Child]] = [
        [
            name(row["path"]),
            _waste_bar(row, top),
            size_text(row["bytes"]),
            f"{row['files']:,}",
            f"{row['hidden']:,}",
            f"{row['tombstones']:,}",
            size_text(row["waste"]),
            percent(row["waste"], row["bytes"]),
        ]
        for row in most
    ]
    heads = ("shard", "", "size", "files", "hidden", "deletes", "waste", "share")
    more = f" The {ROWS} with the most waste are listed." if len(shards) > ROWS else ""
    return card(
        "Shards",
        "Waste is files that newer shards replace or delete, and dead entries: winkfs "
        f"dataset compact rewrites shards of which a quarter or more is waste.{more}",
        shares(parts, f"Of {size_text(size)} in shards {size_text(waste)} are waste"),
        table("Shards", heads, rows, texts=2),
    )


def _waste_bar(row: Facts, most: int) -> Element:
    text = f"{size_text(row['waste'])} of {size_text(row['bytes'])} are waste"
    return meter(row["bytes"] - row["waste"], row["bytes"], most, text)


def generations(facts: Facts) -> Element | None:
    generations = facts.get("generations")
    if not generations:
        return None
    bars = [
        Bar(
            f"{row['generation']}",
            f"generation {row['generation']}: {size_text(row.get('bytes', 0))}",
            row.get("bytes", 0),
        )
        for row in reversed(generations[:BARS])
    ]
    rows = [
        [
            f"{row['generation']:,}",
            row.get("operation", "damaged"),
            row.get("time") or "",
            f"{row.get('added', 0):,}",
            f"{row.get('removed', 0):,}",
            f"{row.get('files', 0):,}",
            size_text(row.get("bytes", 0)),
        ]
        for row in generations[:ROWS]
    ]
    heads = ("generation", "operation", "time", "shards added", "removed", "files", "bytes")
    text = f"{len(generations):,} can still be read; winkfs dataset vacuum removes old ones."
    return card(
        "Generations",
        text,
        histogram("Bytes that each has added", bars, text),
        folded("Table", table("Generations, the newest first", heads, rows, texts=3)),
    )


def queue(facts: Facts) -> Element | None:
    lanes = facts.get("queue")
    if not lanes:
        return None
    most = max(lane["waiting"] for lane in lanes)
    rows: list[list[Child]] = [
        [
            name(lane["consumer"] or "main"),
            lane["priority"] or "",
            meter(lane["waiting"], lane["waiting"], most, f"{lane['waiting']:,} messages"),
            f"{lane['waiting']:,}",
            _age(lane["oldest_age"]),
            f"{lane['unacknowledged']:,}",
            _age(lane["oldest_unacknowledged_age"]),
        ]
        for lane in lanes
    ]
    heads = ("consumer", "priority", "", "waiting", "oldest", "unacknowledged", "oldest of them")
    return card(
        "Queue",
        "Messages that each consumer has not taken, and those that it has taken and "
        "not acknowledged.",
        table("Messages by consumer", heads, rows, texts=3),
    )


def info(facts: Facts) -> Element:
    rows = list(_flat(facts["info"], ""))
    return card(
        "All facts",
        "As winkfs info has them.",
        folded("Table", table("Facts", ("fact", "value"), rows, texts=2)),
    )


def _flat(record: Facts, above: str) -> Iterator[list[Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key} ")
        else:
            yield [words(above + key), name(f"{value:,}" if type(value) is int else str(value))]


# --- words ---


def words(key: str) -> str:
    return printable(key.replace("_", " ").replace(".", " ").strip())


def total(rows: Iterable[Facts], key: str) -> int:
    return sum(row[key] or 0 for row in rows)


def _size_range(row: Facts) -> str:
    if row["least"] == 0:
        return "empty"
    return f"{size_text(row['least'])} to {size_text(row['below'])}"


def span_text(seconds: float) -> str:
    """Return a span of time with one unit."""
    for limit, unit in ((YEAR, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else span_text(seconds)


def _edge(seconds: int) -> str:
    return SPANS.get(seconds) or f"{seconds // YEAR} years"


def _age_label(row: Facts) -> str:
    return "future" if row["least"] is None else _edge(row["least"])


def _age_range(row: Facts) -> str:
    if row["least"] is None:
        return "in the future"
    if row["below"] is None:
        return f"{_edge(row['least'])} and more"
    return f"{_edge(row['least'])} to {_edge(row['below'])}"
