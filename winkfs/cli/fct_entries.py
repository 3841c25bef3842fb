"""`winkfs fct add`, `list`, `get`, `group`: entries, cells and pairs of single files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli.fct_common import FILE, container_in, integer, keys_in, one_line_errors

if TYPE_CHECKING:
    from winkformats.extsort import Pair
    from winkformats.hindex.hindex import Cell, HIndex, KeyOf
    from winkformats.kv.sequence import KVSeq
    from winkformats.perm import Compare, Perm

SHOWN: Final = 60  # characters of a key or value in a listing for people
Row = dict[str, Any]

DATA = click.option(
    "--data",
    metavar="KVSEQ",
    type=click.Path(dir_okay=False),
    help="The kvseq the pointers refer to: compare its keys (without it, stored hashes).",
)


@click.command(context_settings={"ignore_unknown_options": True})  # negative numbers are values
@FILE
@click.argument("key")
@click.argument("value")
@click.option("--word", "words", type=integer, multiple=True, help="hindex: a further word.")
@DATA
@one_line_errors
def add(file: str, key: str, value: str, words: tuple[int, ...], data: str | None) -> None:
    """Add an entry and print where it is.

    \b
    kvseq   KEY VALUE       (VALUE - reads standard input)   prints its position
    hindex  KEY POINTER     (a known KEY is pointed anew)    prints its slot
    perm    POINTER HASH                                     prints its index
    """
    name = os.fsencode(key)
    with container_in(file, writable=True, data=data, key=name) as (form, container):
        if words and form != "hindex":
            raise click.UsageError(f"--word does not go with a {form} file")
        if form == "kvseq":
            body = sys.stdin.buffer.read() if value == "-" else os.fsencode(value)
            place = container.append(name, body)
        elif form == "hindex":
            place = container.insert(name, integer(value), words)
        else:
            place = container.append(integer(key), integer(value))
    click.echo(place)


@click.command("list")
@FILE
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@one_line_errors
def list_(file: str, as_json: bool) -> None:
    """List the entries of a kvseq, the used cells of an hindex, the pairs of a perm.

    \b
    kvseq   position, size, - or D (deleted), key, length of the value, value
    hindex  slot, pointer, stored hash, further words
    perm    index, pointer, hash
    """
    with container_in(file) as (form, container):
        for row in ROWS[form](container):
            click.echo(json.dumps(row) if as_json else line(row))


def kvseq_rows(container: KVSeq) -> Iterator[Row]:
    for entry in container.iterate():
        yield {
            "pos": entry.pos,
            "size": entry.size,
            "deleted": entry.deleted,
            "key": text(entry.key),
            "length": len(entry.value),
            "value": text(entry.value),
        }


def hindex_rows(container: HIndex) -> Iterator[Row]:
    for slot, cell in container.iterate():
        yield cell_row(slot, cell)


def cell_row(slot: int, cell: Cell) -> Row:
    row: Row = {"slot": slot, "pointer": cell[0]}
    if len(cell) > 1:
        row["s"] = f"{cell[1]:016x}"
    return row | ({"words": list(cell[2:])} if len(cell) > 2 else {})


def perm_rows(container: Perm) -> Iterator[Row]:
    for index, pair in enumerate(container.iterate()):
        yield pair_row(index, pair)


def pair_row(index: int, pair: Pair) -> Row:
    return {"index": index, "pointer": pair[0], "hash": pair[1]}


ROWS: Final[dict[str, Callable[[Any], Iterator[Row]]]] = {
    "kvseq": kvseq_rows,
    "hindex": hindex_rows,
    "perm": perm_rows,
}


def line(row: Mapping[str, Any]) -> str:
    """A row for people: columns, a long or unprintable value cut and escaped."""
    cells = []
    for name, value in row.items():
        if name == "deleted":
            cells.append("D" if value else "-")
        elif name in ("key", "value"):
            cells.append(printable(value))
        elif name == "words":
            cells += map(str, value)
        else:
            cells.append(f"{value:>12}")
    return "  ".join(cells)


def text(data: bytes) -> str:
    """Bytes as JSON can carry them and Python can give them back."""
    return data.decode("utf-8", "surrogateescape")


def printable(value: str) -> str:
    """At most SHOWN characters that a terminal takes for nothing but text."""
    shown = "".join(c if c.isprintable() else escaped(c) for c in value[:SHOWN])
    return shown + ("..." if len(value) > SHOWN else "")


def escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, see `text`
        return f"\\x{code - 0xDC00:02x}"
    return ascii(character)[1:-1]


@click.command(context_settings={"ignore_unknown_options": True})
@FILE
@click.argument("which", metavar="KEY|INDEX")
@click.option("--at", is_flag=True, help="It is a position in a kvseq, a slot of an hindex.")
@DATA
@one_line_errors
def get(file: str, which: str, at: bool, data: str | None) -> None:
    """Print one entry.

    \b
    kvseq   KEY        the value of the last entry with that key that is not deleted, as it is
    hindex  KEY        slot, pointer, stored hash, further words
    perm    INDEX      index, pointer, hash
    """
    key = os.fsencode(which)
    with container_in(file, data=data, key=key) as (form, container):
        if form == "kvseq":
            value = container.get(integer(which)).value if at else find(container, key)
            click.echo(value, nl=False)
        elif form == "hindex":
            slot = integer(which) if at else container.hash(key)
            if slot is None:
                raise click.ClickException(f"{file}: no key {printable(which)}")
            click.echo(line(cell_row(slot, container.get(slot))))
        else:
            index = integer(which)
            click.echo(line(pair_row(index, container.get(index))))


def find(container: KVSeq, key: bytes) -> bytes:
    """The value of the last live entry with a key; the whole file is read."""
    found = None
    for entry in container.iterate():
        if entry.key == key:
            found = found if entry.deleted else entry.value
    if found is None:
        raise ValueError(f"{container.storage.name}: no key {printable(text(key))}")
    return found


@click.command()
@FILE
@DATA
@click.option(
    "--memory",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="MiB; more pairs are sorted in a file beside FILE.",
)
@one_line_errors
def group(file: str, data: str | None, memory: int) -> None:
    """Sort the pairs of a perm by hash, with --data equal hashes by key."""
    with container_in(file, writable=True) as (form, container), contextlib.ExitStack() as stack:
        if form != "perm":
            raise click.ClickException(f"{file}: only a perm can be grouped, this is a {form}")
        compare = comparison(stack.enter_context(keys_in(data))) if data else None
        container.group(compare, budget=memory << 20)


def comparison(key_at: KeyOf) -> Compare:
    def compare(a: Pair, b: Pair) -> int:
        one, other = key_at(a[0]), key_at(b[0])
        return (one > other) - (one < other)

    return compare
