"""`winkfs stat`"""

from __future__ import annotations

import sys
from typing import Any

import click

from winkfs.cli._common import AS_OF, BASE, JSON, emit, name_bytes, opened, shown, stat_record


@click.command()
@BASE
@click.argument("name")
@AS_OF
@JSON
def stat(base: str, name: str, as_of: str | None, as_json: bool) -> None:
    """Show the metadata of a file."""
    import winkfs

    with opened(base, as_of=as_of) as container:
        found = container.stat(name_bytes(name))
        record = stat_record(found)
        if found.ftype == winkfs.FileType.LINK:
            record["target"] = container.readlink(found.name)
        _print(record, as_json)


def _print(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(record)
        return
    for key, value in record.items():
        sys.stdout.buffer.write(f"{key + ':':10}".encode() + shown(str(value)) + b"\n")
