"""Commands that read: cat, stat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

import winkfs
from winkfs.cli._common import (
    AS_OF,
    BASE,
    JSON,
    PIECE,
    Failures,
    answer,
    column_text,
    complete_name,
    expand,
    glob_text,
    name_bytes,
    opened,
    printable,
)
from winkfs.cli.listing import columns_json, stat_record
from winkfs.entry import FileType
from winkfs.names import is_glob, literal_prefix, to_str

if TYPE_CHECKING:
    from winkfs.mounting.lookup import CacheBudget

CACHED_BYTES: Final = 8 << 20  # bytes that `cat` reads and may leave in the page cache


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_name)
@AS_OF
def cat(base: str, names: tuple[str, ...], as_of: str | None) -> int:
    """Write the content of files to standard output, one after another.

    A NAME may be a glob: * matches / too. The content of a symbolic link is its target. A missing
    or damaged file is an error (exit status 1); all others are written.
    """
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        for argument in names:
            if _is_many(container, argument):
                _write_all(container, argument, failures)
                continue
            for name in expand(container, (argument,), failures):
                try:
                    if not _write(container, name) and not is_glob(argument):
                        failures.add(to_str(name), "is a directory")
                except winkfs.FormatError as error:
                    failures.add(to_str(name), str(error))
    return failures.status


def _is_many(container: winkfs.Reader, argument: str) -> bool:
    """Return whether an argument is a glob to be looked up in the catalog of a container."""
    if not is_glob(argument) or not isinstance(container, winkfs.Container):
        return False
    try:
        return name_bytes(argument) not in container
    except winkfs.FormatError:  # there is a file of that name, and it is damaged
        return False


def _write_all(container: Any, glob: str, failures: Failures) -> None:
    """Write the contents of all files that match, in byte order of the names."""
    from winkfs.container.selection import matches

    pattern = glob_text(glob)
    prefix = name_bytes(literal_prefix(pattern))
    found, cache = False, CacheLimit(container)
    for rows in container.rows(prefix, failures.damage):
        kept = matches(rows, pattern)
        chosen = rows if kept.all() else rows.take(kept)
        found = found or bool(chosen.names)
        for name, data in zip(chosen.names, container.contents(chosen), strict=True):
            try:
                if isinstance(data, winkfs.FormatError):
                    raise data
                if data is None:
                    _write(container, name)
                else:
                    sys.stdout.buffer.write(data)
                    cache.add(len(data))
            except winkfs.FormatError as error:
                failures.add(to_str(name), str(error))
    cache.finish()
    if not found:
        failures.add(glob, "no name matches")


class CacheLimit:
    """Limit on what contents that are read once leave in the page cache: beyond CACHED_BYTES, no
    page stays that was not there before."""

    def __init__(self, container: Any) -> None:
        self._storage, self._left = container.store.kv.storage, CACHED_BYTES
        self._budget: CacheBudget | None = None

    def add(self, size: int) -> None:
        from winkfs.mounting.lookup import PAGE, CacheBudget

        if self._budget:
            self._budget.touches(self._storage, size // PAGE + 1)
        elif self._left < size:
            self._storage.remember_resident()
            self._budget = CacheBudget()
        else:
            self._left -= size

    def finish(self) -> None:
        if self._budget:
            self._storage.drop_seen()


def _write(container: winkfs.Reader, name: bytes) -> bool:
    """Write the content of a file -> False for a directory."""
    if container.stat(name).ftype == FileType.DIR:
        return False
    with container.open_file(name) as file:
        while data := file.read(PIECE):
            sys.stdout.buffer.write(data)
    return True


@click.command()
@BASE
@click.argument("name", shell_complete=complete_name)
@AS_OF
@JSON
def stat(base: str, name: str, as_of: str | None, as_json: bool) -> None:
    """Show the metadata of a file."""
    with opened(base, as_of=as_of) as container:
        found = container.stat(name_bytes(name))
        record = stat_record(found)
        values = container.getcolumns(found.name)
        if values and as_json:
            record["columns"] = columns_json(values)
        if found.ftype == FileType.LINK:
            record["target"] = container.readlink(found.name)
        lines = [f"{key + ':':10}{value}" for key, value in record.items()]
        lines += ["columns:"] if values else []
        lines += [f"  {name}: {printable(column_text(value))}" for name, value in values.items()]
        answer(record, as_json, *lines)
