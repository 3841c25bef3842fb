"""The command ls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

import winkfs
from winkfs.cli._common import (
    AS_OF,
    BASE,
    ROWS,
    TIME,
    WHERE,
    Failures,
    as_path,
    complete_columns,
    complete_name,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
)
from winkfs.cli.listing import SAMPLES, SIGNS, Format, Listing
from winkfs.names import is_glob, literal_prefix
from winkfs.units import to_ns

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from winkformats.arrays import Int64
    from winkfs.container.table import FileTable

ORDERS = ("name", "size", "mtime", "none")
Options = dict[str, Any]  # of `tables`


def _keys(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a key of a format for the shell."""
    from click.shell_completion import CompletionItem

    before, brace, start = incomplete.rpartition("{")
    if brace and "}" in start:
        before, start = incomplete, ""
    keys = [key for key in (*SAMPLES, *SIGNS) if key.startswith(start)]
    return [CompletionItem(f"{before}{{{key}}}") for key in keys]


@click.command()
@BASE
@click.argument("glob", metavar="[DIR|GLOB]", required=False, shell_complete=complete_name)
@click.option("-l", "long", is_flag=True, help="Show mode, owner, size and time, like ls -l.")
@click.option("-h", "human", is_flag=True, help="With -l: sizes as 1.5K, 12M.")
@click.option("-R", "--recursive", is_flag=True, help="With DIR: all that is below it.")
@click.option("-d", "itself", is_flag=True, help="DIR itself, not what is in it.")
@click.option("-t", "by_time", is_flag=True, help="Sort by mtime, the newest first.")
@click.option("-S", "by_size", is_flag=True, help="Sort by size, the largest first.")
@click.option("--sort", type=click.Choice(ORDERS), help="Sort by this; none: as they are listed.")
@click.option("-r", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="The first N files only.")
@click.option("-1", is_flag=True, expose_value=False, help="A name a line, which is always so.")
@click.option("-0", "--null", is_flag=True, help="End each line with NUL, and escape no name.")
@click.option(
    "--format", "form", metavar="TEXT", shell_complete=_keys,
    help="Print TEXT for each file: '{path} {size} {mtime}{NL}'.",
)  # fmt: skip
@click.option("--since", type=TIME, metavar="T", help="Only files with mtime T or later.")
@click.option("--until", type=TIME, metavar="T", help="Only files with an mtime before T.")
@click.option(
    "--columns", metavar="A,B", shell_complete=complete_columns,
    help="Show the values of these columns too; * for all.",
)  # fmt: skip
@WHERE
@AS_OF
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def ls(
    base: str,
    glob: str | None,
    long: bool,
    human: bool,
    recursive: bool,
    itself: bool,
    by_time: bool,
    by_size: bool,
    sort: str | None,
    reverse: bool,
    limit: int | None,
    null: bool,
    form: str | None,
    since: float | None,
    until: float | None,
    columns: str | None,
    where: str | None,
    as_of: str | None,
    as_json: bool,
) -> int:
    """List the files of a container or a data set, in byte order of their names.

    Without DIR all files are listed; with DIR what is directly in it, its directories once, and
    with -R all that is below. / is the directory of all files. Names are printed whole, as the
    other commands take them. A directory that has no entry, only names below it, has no time.

    GLOB selects matching names; * matches / too, so 'docs/*' lists everything below docs. An
    existing name is taken literally. T is in seconds since the epoch or ISO 8601 (2026-11-21, or
    2026-11-21T08:30Z; local time without a zone). Values of columns follow the name, separated by
    tabs; - is null. COND is a condition as in WHERE of SQL, on columns, path, size and mtime; there
    a time without a zone is UTC. With a condition or a time, directories without an entry are left
    out.

    TEXT has keys in braces, with a width if you like ({size:>12}): path, size, mtime (UTC),
    mtime_ns, type, mode, user, group, uid, gid, fileid, target, and NL, NUL, TAB. It ends where you
    end it: no line feed is added.

    The listing comes from the catalog, if there is one: use `winkfs verify` to find damaged files.
    Damage that a listing meets is reported and skipped; the exit status is then 1. A data set of
    which more than 100 shards may have such names is listed shard by shard, unless it is sorted.
    """
    order = _order(by_time, by_size, sort)
    if sum((as_json, form is not None, long)) > 1 or (null and (as_json or form is not None)):
        raise click.UsageError("use one of -l, --json and --format; -0 goes with -l only")
    if itself and glob is None:
        raise click.UsageError("-d goes with DIR")
    template = None if form is None else Format(form)
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        names = list(container.columns) if columns == "*" else (columns or "").split(",")
        listing = Listing(
            container, failures, [n.strip() for n in names if n], long=long, human=human,
            as_json=as_json, form=template, end="\0" if null else "\n",
        )  # fmt: skip
        options: Options = {"times": (to_ns(since), to_ns(until)), "where": where}
        options["columns"] = listing.columns
        choice = _Choice(container, failures, options, ordered=order not in (None, "none"))
        found = choice.all() if glob is None else choice.named(glob, recursive, itself)
        for rows, chosen in _sorted(found, order, reverse, limit, names=listing.plain):
            listing.write(rows, chosen)
        limited = since is not None or until is not None or where is not None or limit == 0
        listed = listing.count or limited
        path = b"" if glob is None else as_path(glob)
        if glob and path and not (listed or is_directory(container, path)):
            failures.add(glob, "no name matches" if is_glob(glob) else missing(container))
    return failures.status


def _order(by_time: bool, by_size: bool, sort: str | None) -> str | None:
    """Return by what is sorted, None: as files are listed."""
    if by_time + by_size + (sort is not None) > 1:
        raise click.UsageError("use one of -t, -S and --sort")
    return "mtime" if by_time else "size" if by_size else sort


class _Choice:
    """The files that are listed. options: of `tables`; ordered: in byte order of the names."""

    def __init__(
        self, container: winkfs.Reader, failures: Failures, options: Options, *, ordered: bool
    ) -> None:
        self._container, self._damage = container, failures.damage
        self._options, self._ordered = options, ordered

    def all(self, prefix: bytes = b"") -> Iterator[FileTable]:
        """Yield the files whose names begin with a prefix."""
        from winkfs import tables

        listed = tables.ordered if self._ordered else tables.tables
        return listed(self._container, prefix, self._damage, **self._options)

    def named(self, argument: str, recursive: bool, itself: bool) -> Iterator[FileTable]:
        """Yield the files that a name, a directory or a glob means."""
        from winkfs import tables
        from winkfs.container.selection import matches

        name = self._name(argument, itself)
        if name is not None:
            yield from tables.one(self._container, name, self._damage, **self._options)
        elif is_glob(argument):
            glob = glob_text(argument)
            for rows in self.all(name_bytes(literal_prefix(glob))):
                yield rows.take(matches(rows, glob))
        else:
            path = as_path(argument)
            prefix = path + b"/" if path else b""
            if recursive:
                yield from self.all(prefix)
            elif itself:
                yield from self._implied(path)
            else:
                yield tables.level(self._container, prefix, self._damage, **self._options)

    def _name(self, argument: str, itself: bool) -> bytes | None:
        """Return the name of the one entry that is meant, None for a glob or what is in a
        directory."""
        container, name = self._container, name_bytes(argument)
        if name not in container:
            name = as_path(argument)
            if not name or is_glob(argument) or name not in container:
                return None
        directory = is_directory(container, name)
        if argument.endswith("/") and name != name_bytes(argument) and not directory:
            return None
        return None if directory and not itself else name

    def _implied(self, path: bytes) -> Iterator[FileTable]:
        """Yield a directory without an entry, if there are names below it."""
        from winkfs.container.directories import implied
        from winkfs.tables import owner_of

        below = path + b"/" if path else b""
        if next(self.all(below), None) is not None:
            yield implied([path or b"/"], 1, owner_of(self._container))


def _sorted(
    found: Iterable[FileTable],
    order: str | None,
    reverse: bool,
    limit: int | None,
    *,
    names: bool,
) -> Iterator[tuple[FileTable, Int64 | None]]:
    """Yield the first `limit` files in an order; files that are equal in it, by their names.

    names  of the files that are sorted only the names are needed
    ->     tables, and the indices of the files in them, None: all
    """
    import numpy as np

    from winkfs.container.table import FileTable

    if order in (None, "name", "none") and not reverse:
        left = limit
        for rows in found:
            some = rows if left is None else rows.part(0, left)
            yield some, None
            left = None if left is None else left - len(some)
            if left == 0:
                return
        return
    keys: list[Int64] = []
    kept, count = list[FileTable](), 0
    for rows in found:
        keys.append(_ranks(rows, order))
        kept.append(rows.with_numbers(np.empty((len(rows), 0), np.int64)) if names else rows)
        count += len(rows)
        if limit is not None and count > 2 * limit:
            key, rows = np.concatenate(keys), FileTable.concat(kept)
            first = _order_of(key, reverse)[:limit]
            first.sort()  # so that names that come later are behind them
            keys, kept, count = [key[first]], [rows.take(first)], len(first)
    rows = FileTable.concat(kept)
    chosen = _order_of(np.concatenate([*keys, np.empty(0, np.int64)]), reverse)[:limit]
    for start in range(0, len(chosen), ROWS):  # the memory of each is used again
        yield rows, chosen[start : start + ROWS]


def _ranks(rows: FileTable, order: str | None) -> Int64:
    """Return a number of each row, ascending in an order."""
    import numpy as np

    from winkfs.container.directories import IMPLIED
    from winkfs.units import LAST

    if order == "size":
        return ~rows.size
    if order == "mtime":  # what has no time comes last
        return np.where(rows.pos == IMPLIED, LAST, ~rows.mtime)
    return np.zeros(len(rows), np.int64)


def _order_of(keys: Int64, reverse: bool) -> Int64:
    """Return the indices of rows in the order of their keys."""
    from winkformats.arrays import number_order

    found = number_order(keys)
    return found[::-1] if reverse else found
