"""The import graph of the product: modules, who imports whom, and when.

Three sorts of edge: at the top of a module, late (in a function), and for typing only.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
while not (ROOT / "pyproject.toml").exists():
    ROOT = ROOT.parent
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


def edges(known: Mapping[str, Path]) -> set[Edge]:
    """Every edge between two of `known`. A package that only re-exports stands for itself."""
    return {
        Edge(name, target, sort)
        for name, path in known.items()
        for imported, sort in _imports(ast.parse(path.read_text()), "top")
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
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for child in node.body:
            yield from _imports(child, "typing")
    else:
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, "late" if late else sort)


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
