"""The map of the largest directories: areas by their content, one map a directory.

Maps are shown by the address of the page (`#d3`), so that links lead from one to the next without
a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element

from winkfs.report.charts import Child, card, el, folded, name, percent, table
from winkfs.units import size_text

RATIO: Final = 2.0  # width of a map by its height, for which it is laid out
MAPS: Final = 120  # directories that have a map
SMALL: Final = 0.002  # share of all bytes below which a directory has no map of its own
ROWS: Final = 50  # directories in the table
Facts = Mapping[str, Any]


def directories(facts: Facts) -> Element | None:
    top = facts.get("directories")
    if not top or not top.get("children"):
        return None
    shown = _mapped(top)
    maps = [_map(node, number, shown) for number, (node, _) in enumerate(shown)]
    rows: list[list[Child]] = [
        [
            name(node["name"]),
            f"{node['files']:,}",
            size_text(node["bytes"]),
            percent(node["bytes"], top["bytes"]),
        ]
        for node in sorted(_all(top), key=lambda node: node["bytes"], reverse=True)[:ROWS]
    ]
    heads = ("directory", "files", "content", "share")
    return card(
        "Directories",
        "The largest ones by content. A directory with others in it leads to its own map.",
        el("div", maps, class_="maps"),
        folded("Table", table("Largest directories, with all that is below them", heads, rows)),
    )


def _all(node: Facts) -> Iterator[Facts]:
    for child in node.get("children", ()):
        yield child
        yield from _all(child)


def _mapped(top: Facts) -> list[tuple[Facts, int]]:
    """Return the directories that have a map, each with the number of that of its parent; the
    first is the top."""
    found: list[tuple[Facts, int]] = [(top, 0)]
    least, at = SMALL * top["bytes"], 0
    while at < len(found):
        for child in found[at][0].get("children", ()):
            if child.get("children") and child["bytes"] >= least and len(found) < MAPS:
                found.append((child, at))
        at += 1
    return found


def _map(node: Facts, number: int, shown: Sequence[tuple[Facts, int]]) -> Element:
    numbers = {id(child): at for at, (child, _) in enumerate(shown)}
    children = [child for child in node["children"] if child["bytes"]]
    sizes = [child["bytes"] for child in children]
    rest = node["bytes"] - sum(sizes)
    tiles = [(child["bytes"], child) for child in children] + ([(rest, None)] if rest > 0 else [])
    tiles.sort(key=lambda tile: -tile[0])
    areas = squarified([size for size, _ in tiles], RATIO, 1.0)
    made = []
    for index, ((size, child), area) in enumerate(zip(tiles, areas, strict=True)):
        target = numbers.get(id(child)) if child is not None else None
        label = _leaf(child["name"], node["name"]) if child is not None else "all others"
        files = f", {child['files']:,} files" if child is not None else ""
        made.append(
            el(
                "div" if target is None else "a",
                el("bdi", label),
                el("small", size_text(size)),
                href=None if target is None else f"#d{target}",
                class_="rest" if child is None else f"k{index % 8}",
                title=f"{label}: {size_text(size)}{files}",
                style=f"left:{area.left:.3f}%;top:{area.top:.3f}%;"
                f"width:{area.width:.3f}%;height:{area.height:.3f}%",
            )
        )
    largest = ", ".join(
        f"{_leaf(child['name'], node['name'])} {size_text(child['bytes'])}"
        for child in children[:3]
    )
    about = f"Directories by content; the largest: {largest}" if children else "no content"
    areas_ = el("div", made, class_="areas", role="group", aria_label=about)
    return el(
        "div", _path(number, shown), areas_, id=f"d{number}", class_="map" if number else "map top"
    )


def _leaf(path: str, above: str) -> str:
    """Return the last part of a path as a label."""
    leaf = path.removeprefix(above + "/") if above else path
    return f"{leaf}/" if leaf else "/"


def _path(number: int, shown: Sequence[tuple[Facts, int]]) -> Element:
    """Return the way from the top to a map, with links."""
    above, at = [], number
    while at:
        above.append(at)
        at = shown[at][1]
    steps: list[Element | str] = [
        el("a", "all directories", href="#d0") if number else "all directories"
    ]
    for at in reversed(above):
        node, parent = shown[at]
        leaf = _leaf(node["name"], shown[parent][0]["name"])
        steps += [
            " / ",
            el("bdi", leaf) if at == number else el("a", el("bdi", leaf), href=f"#d{at}"),
        ]
    node = shown[number][0]
    return el(
        "div", *steps, f" · {size_text(node['bytes'])} in {node['files']:,} files", class_="path"
    )


# --- areas ---


class Area(NamedTuple):
    """A rectangle of a map, in percent of its width and height."""

    left: float
    top: float
    width: float
    height: float


def squarified(sizes: Sequence[float], width: float, height: float) -> list[Area]:
    """Divide a rectangle into one for each size, none too narrow: descending sizes above 0.

    The rows of Bruls, Huizing and van Wijk: "Squarified Treemaps" (2000).
    """
    scale = width * height / (sum(sizes) or 1)
    left = top = 0.0
    rest = [size * scale for size in sizes]
    found: list[Area] = []
    whole = width, height
    while rest:
        short = min(width, height)
        count = _row(rest, short)
        row, rest = rest[:count], rest[count:]
        thick = sum(row) / short if short else 0
        found += _laid(row, left, top, thick, upright=width >= height)
        if width >= height:
            left, width = left + thick, max(width - thick, 0)
        else:
            top, height = top + thick, max(height - thick, 0)
    return [
        Area(100 * area.left / whole[0], 100 * area.top / whole[1],
             100 * area.width / whole[0], 100 * area.height / whole[1])
        for area in found
    ]  # fmt: skip


def _row(areas: Sequence[float], short: float) -> int:
    """Return how many areas make the row whose worst one is most like a square."""
    worst, total = float("inf"), 0.0
    for count, area in enumerate(areas, 1):
        total += area
        side = total / short if short else 0
        if not side:
            return len(areas)
        shape = max(side * side / areas[count - 1], areas[0] / (side * side))
        if shape > worst:
            return count - 1
        worst = shape
    return len(areas)


def _laid(
    row: Sequence[float], left: float, top: float, thick: float, *, upright: bool
) -> Iterator[Area]:
    for area in row:
        length = area / thick if thick else 0
        if upright:
            yield Area(left, top, thick, length)
            top += length
        else:
            yield Area(left, top, length, thick)
            left += length
