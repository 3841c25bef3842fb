"""The command query: SQL over the files of a store."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

import winkfs
from winkfs.cli._common import AS_OF, BASE, WHERE, column_text, printable
from winkfs.units import column_json

if TYPE_CHECKING:
    import pyarrow as pa

FORMS = ("table", "csv", "json")
Row = tuple[Any, ...]


@click.command()
@BASE
@click.argument("sql")
@WHERE
@AS_OF
@click.option("--table", "form", flag_value="table", help="Print a table; default on a terminal.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV; default in a pipe or to a file.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object per line.")
def query(base: str, sql: str, where: str | None, as_of: str | None, form: str | None) -> None:
    """Run a query of SQL (DuckDB) over the table `files`.

    It has path, size, mtime and the columns of the container, and, where the query names them,
    content, mode, ftype, mtime_ns and name_raw. --where chooses files before they are read.

    \b
      winkfs query corpus "select lang, count(*) from files group by lang"
    """
    with winkfs.query(base, sql, where=where, as_of=as_of) as found:
        names = found.schema.names
        rows = _rows(found)
        if form == "json":
            for row in rows:
                record = dict(zip(names, map(column_json, row), strict=True))
                click.echo(json.dumps(record, default=str))
        elif form == "table" or (form is None and sys.stdout.isatty()):
            _print_table(names, rows)
        else:
            out = csv.writer(_Bytes(), lineterminator="\n")
            out.writerow(names)
            out.writerows(list(map(_text, row)) for row in rows)


class _Bytes:
    """Standard output for text whose surrogates are bytes."""

    def write(self, text: str) -> None:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _text(value: Any) -> str:
    return "" if value is None else column_text(value)


def _print_table(names: list[str], rows: Iterable[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in names:
        table.add_column(Text(printable(name)))
    for row in rows:
        table.add_row(*(Text(printable(_text(value))) for value in row))
    Console().print(table)
