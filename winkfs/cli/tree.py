"""The command tree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from winkfs.cli._common import AS_OF, BASE, Failures, complete_name, counted, opened, printable
from winkfs.cli.du import totals, write_lines
from winkfs.names import to_strs
from winkfs.units import short_size

if TYPE_CHECKING:
    from winkfs.container.directories import Tree


@click.command()
@BASE
@click.argument("directory", metavar="[DIR]", required=False, shell_complete=complete_name)
@click.option(
    "-L", "levels", type=click.IntRange(1), metavar="N", help="Only N levels below the top."
)
@click.option("-d", "only", is_flag=True, help="Directories only.")
@click.option("-h", "human", is_flag=True, help="Show sizes as 1.5K, 12M.")
@click.option("--du", "sums", is_flag=True, help="Show sizes, of a directory all that is below.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON as tree -J does.")
@AS_OF
def tree(
    base: str,
    directory: str | None,
    levels: int | None,
    only: bool,
    human: bool,
    sums: bool,
    as_json: bool,
    as_of: str | None,
) -> int:
    """Show the files of BASE, or below DIR, as a tree.

    The last line has the number of directories and files that are shown. A link is shown as a file.
    The tree comes from the catalog, if there is one; no content is read.

    \b
      winkfs tree -d -L 2 --du -h corpus
    """
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        found = totals(container, directory or "", failures, levels, files=not only)
    if found is not None:
        printed = _Printed(found, directory or base, human=human, sums=sums, only=only)
        write_lines(printed.json() if as_json else printed.lines())
    return failures.status


class _Printed:
    """A tree as text. root: its name."""

    def __init__(self, found: Tree, root: str, *, human: bool, sums: bool, only: bool) -> None:
        self._only = only
        self._names = [root, *[name.rpartition("/")[2] for name in to_strs(found.names)[1:]]]
        self._tree, self._human, self._sums = found, human, sums
        self._directory, self._sizes = found.directory.tolist(), found.size.tolist()
        self._depth = found.depth.tolist()

    def lines(self) -> Iterator[str]:
        """Yield the lines of a tree for people."""
        import numpy as np

        over, count = self._tree.over, len(self._names)
        youngest = np.zeros(count, np.int64)
        np.maximum.at(youngest, over[1:], np.arange(1, count))
        last = youngest[over] == np.arange(count)
        names = list(map(printable, self._names)) if sys.stdout.isatty() else self._names
        if self._human or self._sums:
            names = [f"{self._size(i)}{name}" for i, name in enumerate(names)]
        yield f"{names[0]}\n"
        stems = [""] * (max(self._depth) + 1)  # before what is in the directory of each level
        # Files that follow each other in a directory, except its last one, have one stem.
        alone = self._tree.directory | last
        single = np.flatnonzero(alone | np.append(True, alone[:-1])).tolist()
        for i, stop in pairwise([*single[1:], count]):
            depth = self._depth[i]
            stem = stems[depth - 1]
            mark = f"{stem}{'└── ' if last[i] else '├── '}"
            between = f"\n{mark}"
            yield f"{mark}{between.join(names[i:stop])}\n"
            stems[depth] = stem + ("    " if last[i] else "│   ")
        directories = sum(self._directory[1:])
        files = count - 1 - directories
        used = f"{self._amount(0)} used in " if self._sums else ""
        what = [counted(directories, "directory"), counted(files, "file")]
        yield f"\n{used}{', '.join(what[: 1 if self._only else 2])}\n"

    def _size(self, index: int) -> str:
        """Return the size in front of a name."""
        width = 4 if self._human else 11
        return f"[{self._amount(index):>{width}}]  "

    def _amount(self, index: int) -> str:
        if self._directory[index] and not self._sums:
            return "-"
        return short_size(self._sizes[index]) if self._human else str(self._sizes[index])

    def json(self) -> Iterator[str]:
        """Yield the text of a list of two objects, the tree and a report."""
        open_, first = 0, True
        for i, (name, depth) in enumerate(zip(self._names, self._depth, strict=True)):
            directory = self._directory[i]
            record = {"type": "directory" if directory else "file", "name": name}
            fields = json.dumps(record)[:-1]
            if self._sums or not directory:
                fields += f', "size": {self._sizes[i]}'
            between = "[" if i == 0 else "" if first and depth == open_ else ","
            yield f"{']}' * (open_ - depth)}{between}\n"
            yield fields + (', "contents": [' if directory else "}")
            open_, first = depth + directory, directory
        directories = sum(self._directory) - self._directory[0]
        report = {"type": "report", "directories": directories}
        report |= {"files": len(self._names) - directories - self._directory[0]}
        yield "]}" * open_ + f",\n{json.dumps(report)}\n]\n"
