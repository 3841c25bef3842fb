"""The house as its code has it: modules, who imports whom, and the picture of the rooms.

    python -m scripts.house             prints the figures that tests/test_house.py bounds
    python -m scripts.house --draw      and writes docs/architecture.svg

There are three sorts of import: at the top of a module, late (in a function), for typing only.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/architecture.svg"
PACKAGES = {
    "winkformats": ROOT / "formats/winkformats",
    "winkmount": ROOT / "mount/winkmount",
    "winkfs": ROOT / "winkfs",
    "pyspark_winkfs": ROOT / "pyspark_winkfs",
}


@dataclass(frozen=True, slots=True)
class Edge:
    """`importer` needs `imported`: "top", "late" or "typing"."""

    importer: str
    imported: str
    sort: str


def modules() -> dict[str, Path]:
    """-> name -> file of each module; a package is its `__init__`."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *parts))
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def edges(known: Mapping[str, Path]) -> set[Edge]:
    """Every edge between two of `known`. A package that only re-exports stands for itself."""
    return {
        Edge(name, target, sort)
        for name, path in known.items()
        for imported, sort in _imports(tree(path), "top")
        if (target := _home(imported, known)) is not None and target != name
    }


def _home(dotted: str, known: Mapping[str, Path]) -> str | None:
    """-> the module that `from a.b import c`, told as "a.b.c", loads: a.b.c or a.b."""
    if dotted in known:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in known else None


def _imports(node: ast.AST, sort: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from ((f"{node.module}.{alias.name}", sort) for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.name, sort) for alias in node.names)
    elif isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
        for inside in node.body:
            yield from _imports(inside, "typing")
    else:
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield from _imports(child, "late" if late else sort)


def _name(node: ast.expr) -> str:
    """-> the last part of a dotted name; else ""."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """-> strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            at = stack.index(name)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return [component for component in found if len(component) > 1]


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """-> the longest way along imports of a graph without circles, the importer first."""
    best: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in best:
            below = max(
                (chain(other) for other in sorted(graph.get(name, ()))), key=len, default=[]
            )
            best[name] = [name, *below]
        return best[name]

    return max((chain(name) for name in sorted(graph)), key=len)


def graph_of(found: set[Edge], *sorts: str) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = defaultdict(set)
    for edge in found:
        if edge.sort in sorts:
            graph[edge.importer].add(edge.imported)
    return dict(graph)


# --- figures ---


def figures() -> dict[str, int]:
    """-> what is counted -> how many."""
    known = modules()
    found = edges(known)
    top = graph_of(found, "top")
    importers = Counter(name for targets in top.values() for name in targets)
    flat = [name for name in known if name.count(".") == 1 and name.startswith("winkfs.")]
    return {
        "modules": len(known),
        "flat in winkfs/": sum(known[name].name != "__init__.py" for name in flat),
        "import cycles": len(circles(graph_of(found, "top", "late", "typing"))),
        "longest chain of imports": len(longest_chain(top)),
        "modules imported by one other": sum(importers[name] == 1 for name in known),
        "files of the machine made outside disk/": len(outside_disk(known)),
    }


def outside_disk(known: Mapping[str, Path]) -> list[str]:
    """-> places that make a storage of the machine's files without going through the seam."""
    return [
        f"{name}:{node.lineno}"
        for name, path in known.items()
        if not name.startswith("winkformats.disk")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and _name(node.func) in ("FileStorage", "PosixDirectory")
    ]


# --- the picture ---

ROWS = (
    ("cli", "pyspark_winkfs"),
    ("spark", "report"),
    ("stores",),
    ("mounting", "fsspec", "loaders"),
    ("hf", "arrow", "ray"),
    ("dataset", "results", "samples"),
    ("archive", "aio"),
    ("container",),
    ("winkfs", "pythonic", "remote"),
    ("winkformats", "winkmount"),
)
PURPOSE = {
    "cli": "one command: parse, call the API, print",
    "pyspark_winkfs": "the name by which Spark finds the format",
    "spark": "source, sink, streams, jobs",
    "stores": "other kinds of store, a folder each",
    "report": "facts of a store on a page, metrics",
    "arrow": "files and records as Arrow batches",
    "hf": "stores as data sets of Hugging Face",
    "ray": "source and sink of Ray Data",
    "samples": "WebDataset, MDS, Parquet: out and in",
    "mounting": "containers and data sets as a mount asks for them",
    "fsspec": "files of a store for fsspec, and for ratarmount",
    "dataset": "manifests, shards, commits",
    "results": "digest sets and orders",
    "loaders": "rows, their order, streams for training",
    "aio": "reads for asyncio, in threads",
    "archive": "pack, unpack, tar, WARC",
    "container": "one container: read, write, recover, verify",
    "remote": "requests to object storage",
    "pythonic": "a store as a dict, as files, as paths",
    "winkfs": "API, registry, errors, names, units",
    "winkformats": "bytes: kvseq, hindex, perm, the seam to the disk",
    "winkmount": "FUSE over any Source",
}
WIDTH, HEIGHT, BOX, STEP = 900, 820, (330, 44), 80


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    if package != "winkfs" or not (ROOT / "winkfs" / rest.split(".")[0]).is_dir() or not rest:
        return package
    return rest.split(".")[0]


def picture() -> str:
    """-> an SVG: a box a room, a line where one imports another, as thick as it does often."""
    known = modules()
    sizes = Counter(room_of(name) for name in known)
    lines: Counter[tuple[str, str]] = Counter(
        (room_of(edge.importer), room_of(edge.imported))
        for edge in edges(known)
        if edge.sort != "typing" and room_of(edge.importer) != room_of(edge.imported)
    )
    places = {
        room: (WIDTH * (column + 1) // (len(row) + 1), 30 + number * STEP)
        for number, row in enumerate(ROWS)
        for column, room in enumerate(row)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for (above, below), count in sorted(lines.items()):
        (x, y), (to_x, to_y) = places[above], places[below]
        colour = "#9ab" if y < to_y else "#c55"  # red: an arrow that runs up
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" '
            f'stroke-width="{1 + count / 20:.1f}"/>'
        )
    for room, (x, y) in places.items():
        left, top = x - BOX[0] // 2, y - BOX[1] // 2
        parts += [
            f'<rect x="{left}" y="{top}" width="{BOX[0]}" height="{BOX[1]}" rx="6" '
            'fill="#eef3f8" stroke="#456"/>',
            f'<text x="{x}" y="{y - 4}" text-anchor="middle" font-weight="bold">{room} '
            f"({sizes[room]})</text>",
            f'<text x="{x}" y="{y + 13}" text-anchor="middle" font-size="11">'
            f"{PURPOSE[room]}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    for what, count in figures().items():
        print(f"{count:5} {what}")
    print("\n".join(longest_chain(graph_of(edges(modules()), "top"))))
    if "--draw" in sys.argv:
        PICTURE.write_text(picture())
