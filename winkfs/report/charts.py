"""Parts of the page: elements, tables, bars and a map of areas.

Charts are elements of HTML whose sizes are shares of their place, so that their texts stay legible
at any width. Whatever is put into an element is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element

from winkfs.names import printable

SHOWN: Final = 120  # characters of a name
Child = Element | str | None


def el(tag: str, *children: Child | Iterable[Element], **attributes: Any) -> Element:
    """Make an element. An attribute whose name ends with _ is written without it, another _ as -;
    None: it is left out."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), printable(str(value)))
    for child in children:
        for one in [child] if isinstance(child, str | Element) else child or ():
            _append(made, one)
    return made


def _append(to: Element, child: Element | str) -> None:
    if isinstance(child, Element):
        to.append(child)
    elif len(to):
        to[-1].tail = (to[-1].tail or "") + printable(child)
    else:
        to.text = (to.text or "") + printable(child)


def name(text: str) -> Element:
    """Return a name, cut in its middle if it is long; in any script, beside other texts."""
    half = SHOWN // 2
    cut = text if len(text) <= SHOWN else f"{text[:half]} ... {text[-half:]}"
    return el("bdi", cut, title=text if cut != text else None)


# --- tables ---


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], *, texts: int = 1
) -> Element:
    """Return a table that scrolls within its place; all columns but the first `texts` are
    numbers."""
    body = [
        el("tr", (el("td" if at else "th", cell, class_=None if at < texts else "n",
                     scope=None if at else "row") for at, cell in enumerate(row)))
        for row in rows
    ]  # fmt: skip
    head = el("tr", (el("th", text, class_=None if at < texts else "n", scope="col")
                     for at, text in enumerate(heads)))  # fmt: skip
    made = el("table", el("caption", caption), el("thead", head), el("tbody", body))
    return el("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def folded(summary: str, *children: Child) -> Element:
    return el("details", el("summary", summary), *children)


# --- bars ---


class Bar(NamedTuple):
    """A bar of a histogram. label: of the axis; what: all of it, in words."""

    label: str
    what: str
    size: float


def histogram(title: str, bars: Sequence[Bar], about: str) -> Element:
    """Return upright bars with some labels. about: what they show, for readers of screens."""
    most = max((bar.size for bar in bars), default=0) or 1
    columns = [
        el(
            "i",
            title=bar.what,
            style=f"height:{max(100 * bar.size / most, 1 if bar.size else 0):.2f}%",
        )
        for bar in bars
    ]
    every = max(-(-len(bars) // 6), 1)
    labels = [el("span", bar.label) for bar in bars[::every]]
    axis = el("div", labels, class_="axis", style=f"--n:{len(bars) / every:.4f}")
    plot = el("div", columns, class_="bars", role="img", aria_label=about)
    return el("div", el("h3", title), plot, axis, class_="chart")


class Share(NamedTuple):
    """A part of a whole. kind: the class that gives its colour."""

    kind: str
    label: str
    size: float
    text: str


def shares(parts: Sequence[Share], about: str) -> Element:
    """Return a bar of parts of a whole, with a legend."""
    whole = sum(part.size for part in parts) or 1
    bar = [
        el("i", class_=part.kind, title=f"{part.label}: {part.text}",
           style=f"width:{100 * part.size / whole:.4f}%")
        for part in parts if part.size
    ]  # fmt: skip
    legend = [
        el("li", el("i", class_=part.kind), f"{part.label} ", el("b", part.text),
           f" {100 * part.size / whole:.3g} %")
        for part in parts
    ]  # fmt: skip
    return el("div", el("div", bar, class_="shares", role="img", aria_label=about),
              el("ul", legend, class_="legend"))  # fmt: skip


def strip(
    cells: Sequence[Sequence[tuple[str, float]]], titles: Sequence[str], about: str
) -> Element:
    """Return columns side by side, each filled from below by its parts: (colour, share)."""
    columns = []
    for parts, title in zip(cells, titles, strict=True):
        at, stops = 0.0, list[str]()
        for kind, share in parts:
            if share > 0:
                stops.append(f"var(--{kind}) {100 * at:.1f}% {100 * (at + share):.1f}%")
                at += share
        style = f"background:linear-gradient(to top,{','.join(stops)})" if stops else None
        columns.append(el("i", style=style, title=title))
    return el("div", columns, class_="strip", role="img", aria_label=about)


def meter(inner: float, outer: float, most: float, title: str) -> Element:
    """Return a bar of what is stored within a bar of what is shown."""
    wide, full = (100 * size / (most or 1) for size in (outer, inner))
    return el("div", el("i", style=f"width:{wide:.2f}%", class_="outer"),
              el("i", style=f"width:{min(full, 100):.2f}%", class_="inner"), class_="meter",
              title=title)  # fmt: skip


def card(title: str, text: str, *parts: Child) -> Element:
    """Return a section of the page."""
    return el("section", el("h2", title), el("p", text), *parts, class_="card", aria_label=title)


def percent(part: float, whole: float) -> str:
    """Return a share as text; "" of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else ""
