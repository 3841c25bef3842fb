"""The command tree."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import click

from winkformats import native
from winkfs.cli._common import (
    AS_OF,
    BASE,
    ROWS,
    Failures,
    complete_name,
    counted,
    opened,
    printable,
)
from winkfs.cli.du import totals, write_lines
from winkfs.names import to_bytes, to_strs
from winkfs.units import short_size

if TYPE_CHECKING:
    from winkformats.arrays import Int64
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
        if as_json:
            write_lines(printed.json())
        else:
            printed.write()
    return failures.status


class _Printed:
    """A tree as text. root: its name."""

    def __init__(self, found: Tree, root: str, *, human: bool, sums: bool, only: bool) -> None:
        self._only, self._root = only, root
        self._tree, self._human, self._sums = found, human, sums
        self._escaped = sys.stdout.isatty()

    @cached_property
    def _names(self) -> list[str]:
        """The last parts of the names."""
        return [self._root, *[n.rpartition("/")[2] for n in to_strs(self._tree.names)[1:]]]

    @cached_property
    def _directory(self) -> list[bool]:
        found: list[bool] = self._tree.directory.tolist()
        return found

    @cached_property
    def _sizes(self) -> list[int]:
        found: list[int] = self._tree.size.tolist()
        return found

    def write(self) -> None:
        """Print the lines of a tree for people."""
        out, count = sys.stdout.buffer, len(self._tree.depth)
        write_lines([f"{self._labels(0, [self._root])[0]}\n"])
        heads, of = self._heads()
        spans, raw = self._spans(), list(map(to_bytes, heads))
        for start in range(1, count, ROWS):
            some = slice(start, start + ROWS)
            if spans is not None and native.code is not None:
                out.write(native.code.headed(self._tree.raw.data, spans[some], of[some], raw, None))
            else:
                labels = self._labels(start, self._names[some])
                rows = zip(of[some].tolist(), labels, strict=True)
                write_lines(["".join([f"{heads[head]}{label}\n" for head, label in rows])])
        directories = int(self._tree.directory[1:].sum())
        files = count - 1 - directories
        used = f"{self._amount(0)} used in " if self._sums else ""
        what = [counted(directories, "directory"), counted(files, "file")]
        write_lines([f"\n{used}{', '.join(what[: 1 if self._only else 2])}\n"])

    def _heads(self) -> tuple[list[str], Int64]:
        """Return what is in front of the names in each directory, of the last one after it, and
        which of these is in front of each name, int64[n]."""
        import numpy as np

        over, directory, count = self._tree.over, self._tree.directory, len(self._tree.depth)
        youngest = np.zeros(count, np.int64)
        youngest[over[1:]] = np.arange(1, count)  # the last one counts
        last = youngest[over] == np.arange(count)
        number = np.cumsum(directory) - 1
        stems = [""]
        inside = np.flatnonzero(directory)[1:]
        for above, end in zip(number[over[inside]].tolist(), last[inside].tolist(), strict=True):
            stems.append(stems[above] + ("    " if end else "│   "))
        heads = [stem + mark for stem in stems for mark in ("├── ", "└── ")]
        return heads, 2 * number[over] + last

    def _spans(self) -> Int64 | None:
        """Return start and end of the last part of each name, int64[n, 2]; None: they are not
        printed as they are."""
        import numpy as np

        if self._human or self._sums or self._escaped:
            return None
        tree = self._tree
        end, start = tree.starts + tree.lengths, tree.starts + tree.lengths[tree.over]
        start[1:] += tree.raw[np.minimum(start, end - 1)[1:]] == ord("/")  # "/x"
        return np.stack([np.minimum(start, end), end], 1)

    def _labels(self, start: int, names: list[str]) -> list[str]:
        """Return names as they are shown, with sizes. start: the index of the first."""
        names = list(map(printable, names)) if self._escaped else names
        if self._human or self._sums:
            names = [f"{self._size(i)}{name}" for i, name in enumerate(names, start)]
        return names

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
        depths, directories = self._tree.depth.tolist(), self._directory
        rows = zip(self._names, depths, directories, strict=True)
        for i, (name, depth, directory) in enumerate(rows):
            record = {"type": "directory" if directory else "file", "name": name}
            fields = json.dumps(record)[:-1]
            if self._sums or not directory:
                fields += f', "size": {self._sizes[i]}'
            between = "[" if i == 0 else "" if first and depth == open_ else ","
            yield f"{']}' * (open_ - depth)}{between}\n"
            yield fields + (', "contents": [' if directory else "}")
            open_, first = depth + directory, directory
        below = sum(directories[1:])
        report = {"type": "report", "directories": below}
        report |= {"files": len(depths) - below - directories[0]}
        yield "]}" * open_ + f",\n{json.dumps(report)}\n]\n"
