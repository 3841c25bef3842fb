"""The command du."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

import click

import winkfs
from winkfs.cli._common import (
    AS_OF,
    BASE,
    PIECE,
    Failures,
    as_path,
    complete_name,
    is_directory,
    missing,
    name_bytes,
    opened,
    printable,
)
from winkfs.names import to_strs
from winkfs.units import short_size

if TYPE_CHECKING:
    from winkfs.container.directories import Tree


@click.command()
@BASE
@click.argument("directories", metavar="[DIR]...", nargs=-1, shell_complete=complete_name)
@click.option(
    "-d", "--max-depth", "depth", type=click.IntRange(0), metavar="N",
    help="Only what is at most N levels below DIR; 0: DIR alone.",
)  # fmt: skip
@click.option("-s", "--summarize", "total", is_flag=True, help="Only DIR itself, as -d 0.")
@click.option("-h", "--human-readable", "human", is_flag=True, help="Sizes as 1.5K, 12M.")
@click.option("-a", "--all", "every", is_flag=True, help="Files, too.")
@click.option("--ncdu", is_flag=True, help="Print JSON for `ncdu -f -`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@AS_OF
def du(
    base: str,
    directories: tuple[str, ...],
    depth: int | None,
    total: bool,
    human: bool,
    every: bool,
    ncdu: bool,
    as_json: bool,
    as_of: str | None,
) -> int:
    """Show the bytes of all files below each directory, a directory after what is in it.

    Bytes are those of the contents, as du -b shows them, not those on the disk: see `winkfs info`
    for these. Without DIR they are those of all files, the last line is their sum, called `.`. The
    sums come from the catalog, if there is one; no content is read.

    A line of --json has name, type, bytes and files, the number of files below.

    \b
      winkfs du -h -d 1 corpus
      winkfs du --ncdu corpus | ncdu -f -
    """
    if total and (every or depth is not None):
        raise click.UsageError("-s is -d 0: it does not go with -a and -d")
    if ncdu and (as_json or len(directories) > 1 or total or depth is not None):
        raise click.UsageError("--ncdu prints all that is below one DIR")
    most = 0 if total else depth
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        for directory in directories or ("",):
            try:
                tree = totals(container, directory, failures, most, files=every or ncdu)
            except winkfs.FormatError as error:
                failures.add(directory, str(error))
                continue
            if tree is None:
                continue
            if ncdu and not tree.directory[0]:
                raise click.ClickException(f"{base}: {directory}: --ncdu takes a directory")
            if ncdu:
                _write_ncdu(tree, directory or base)
            elif as_json:
                write_lines(_json_lines(tree))
            else:
                write_lines(_lines(tree, human=human))
    return failures.status


def totals(
    container: winkfs.Reader,
    argument: str,
    failures: Failures,
    depth: int | None = None,
    *,
    files: bool = False,
) -> Tree | None:
    """Return a directory, or a file, with sums; None: it is missing, which is a failure.

    depth  levels; None: all
    files  whether the tree has files
    """
    from winkfs.container.directories import Totals
    from winkfs.tables import one, ordered

    name = name_bytes(argument)
    name = name if name in container else as_path(argument)
    known = bool(name) and name in container
    if known and not is_directory(container, name):
        summed = Totals(files=True)
        for rows in one(container, name):
            summed.add(rows)
        return summed.finish().last()
    prefix = name + b"/" if name else b""
    summed, there = Totals(prefix, depth, files=files), known or not name
    for rows in ordered(container, prefix, failures.damage):
        there = True
        summed.add(rows)
    if there:
        return summed.finish()
    failures.add(argument, missing(container))
    return None


def _labels(tree: Tree) -> list[str]:
    """Return the names; that of the root is a dot."""
    return [name or "." for name in to_strs(tree.names)]


def _lines(tree: Tree, *, human: bool) -> Iterator[str]:
    labels, sizes = _labels(tree), tree.size.tolist()
    escaped = sys.stdout.isatty()
    for i in tree.postorder().tolist():
        label = printable(labels[i]) if escaped else labels[i]
        yield f"{short_size(sizes[i]) if human else sizes[i]}\t{label}\n"


def _json_lines(tree: Tree) -> Iterator[str]:
    labels, sizes, files = _labels(tree), tree.size.tolist(), tree.files.tolist()
    kinds = ["dir" if one else "file" for one in tree.directory.tolist()]
    for i in tree.postorder().tolist():
        record = {"name": labels[i], "type": kinds[i], "bytes": sizes[i], "files": files[i]}
        yield json.dumps(record) + "\n"


def _write_ncdu(tree: Tree, root: str) -> None:
    """Print the export format of ncdu, 1.2: a directory is a list of itself and what is in it."""
    from winkformats.version import VERSION

    head = {"progname": "winkfs", "progver": VERSION, "timestamp": int(time.time())}

    def pieces() -> Iterator[str]:
        yield f"[1,2,{json.dumps(head)}"
        open_ = 0
        last = [root, *(name.rpartition("/")[2] for name in to_strs(tree.names)[1:])]
        rows = zip(
            last, tree.depth.tolist(), tree.directory.tolist(), tree.size.tolist(), strict=True
        )
        for name, depth, directory, size in rows:
            yield "]" * (open_ - depth) + ",\n"
            open_ = depth + directory
            text = encode_basestring(name)
            if directory:
                yield f'[{{"name":{text}}}'
            else:
                yield f'{{"name":{text},"asize":{size},"dsize":{size}}}'
        yield "]" * open_ + "]\n"

    write_lines(pieces())


def write_lines(lines: Iterable[str]) -> None:
    """Print texts of one line or several, many at a time; a surrogate is a byte."""
    parts, size = list[str](), 0
    for text in chain(lines, [""]):
        parts.append(text)
        size += len(text)
        if size >= PIECE or not text:
            sys.stdout.buffer.write("".join(parts).encode("utf-8", "surrogateescape"))
            parts, size = [], 0
