"""The page of the facts of a store: one file of HTML without scripts, which requests nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, tostring

from winkfs.report import sections
from winkfs.report.charts import el, name, percent
from winkfs.report.directories import directories
from winkfs.units import size_text

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PROBLEMS: Final = 50  # that are listed
LANES: Final = 3  # of a queue, among the figures
Facts = Mapping[str, Any]


def page(facts: Facts, comparison: Sequence[Facts] = (), old: str = "") -> str:
    """Return the page of facts of `report.facts.gather`.

    comparison  figures of `report.facts.compared`; old: what they are compared with
    """
    style = Path(__file__).with_name("style.css").read_text()
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{facts['base']}: {facts['kind']}"),
        el("style"),
    )
    parts = [part for part in _sections(facts, comparison, old) if part is not None]
    body = el("body", _header(facts), el("main", parts), _footer(facts))
    text = tostring(el("html", head, body, lang="en"), encoding="unicode", method="html")
    return "<!DOCTYPE html>\n" + text.replace("<style></style>", f"<style>\n{style}</style>", 1)


def _sections(facts: Facts, comparison: Sequence[Facts], old: str) -> Iterator[Element | None]:
    yield _problems(facts["problems"])
    yield sections.comparison(comparison, old) if old else None
    for section in (
        sections.space, sections.queue, sections.sizes, sections.times, sections.types, directories,
        sections.columns, sections.index, sections.catalog, sections.shards, sections.generations,
        sections.info,
    ):  # fmt: skip
        yield section(facts)


def _header(facts: Facts) -> Element:
    figures = [
        el("div", el("dt", what), el("dd", value, el("small", more) if more else None))
        for what, value, more in _figures(facts)
    ]
    return el("header", el("h1", name(facts["base"])), el("dl", figures, class_="figures"))


def _footer(facts: Facts) -> Element:
    text = f"Made {facts['made']} by winkfs {facts['winkfs']}. Sizes are in powers of 1024."
    return el("footer", f"{text} The same facts for programs: winkfs report --json.")


def _problems(problems: Sequence[str]) -> Element | None:
    if not problems:
        return None
    more = len(problems) - PROBLEMS
    return el(
        "div",
        el("h2", "Problems"),
        el("ul", (el("li", problem) for problem in problems[:PROBLEMS])),
        el("p", f"and {more:,} more") if more > 0 else None,
        class_="problems",
        role="alert",
    )


def _figures(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the most important figures: what, value, and a word more."""
    known, files, space = (facts.get(section, {}) for section in ("info", "files", "space"))
    kind = facts["kind"]
    yield "kind", kind, str(known.get("variant", "")) if kind == "container" else ""
    if files:
        beside = [f"{files[more]:,} {more}" for more in ("directories", "links") if files.get(more)]
        what = "files" if "directories" in files else "records"
        yield what, f"{files['files']:,}", ", ".join(beside)
        yield "content", size_text(files["bytes"]), f"{files['bytes']:,} bytes"
    if space:
        yield "on disk", size_text(space["size"]), f"{space['size']:,} bytes"
        yield "dead", size_text(space["dead"]), percent(space["dead"], space["size"])
    if "shards" in facts:
        size, waste = (sections.total(facts["shards"], key) for key in ("bytes", "waste"))
        yield "shards", f"{len(facts['shards']):,}", size_text(size)
        yield "waste", size_text(waste), percent(waste, size)
        oldest = f"oldest kept: {known['oldest_generation']:,}"
        yield "generation", f"{known['generation']:,}", oldest
    for lane in facts.get("queue", ())[:LANES]:
        words = [lane["consumer"] or "main", lane["priority"] or ""]
        age = lane["oldest_age"]
        oldest = "" if age is None else f"oldest {sections.span_text(age)}"
        yield f"waiting, {' '.join(filter(None, words))}", f"{lane['waiting']:,}", oldest
    if last := known.get("last_sync") or known.get("committed"):
        yield "last commit" if "shards" in facts else "last sync", last[:10], last[11:]
