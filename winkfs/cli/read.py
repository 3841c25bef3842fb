"""Commands that read: ls, cat, stat, info."""

from __future__ import annotations

import functools
import grp
import json
import pwd
import stat as modes
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import winkfs
from winkformats.disk.paths import open_file
from winkfs.cli._common import (
    AS_OF,
    BASE,
    JSON,
    PIECE,
    TIME,
    VERSION,
    WHERE,
    Failures,
    answer,
    as_path,
    column_text,
    complete_file,
    emit,
    expand,
    glob_matcher,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
    print_facts,
    printable,
    shown,
)
from winkfs.entry import FileType, Stat
from winkfs.names import DATA, is_glob, literal_prefix, to_str, to_strs
from winkfs.registry import find_kind
from winkfs.units import NANO, column_json, time_text, to_ns

if TYPE_CHECKING:
    from winkformats.kv.superblock import Superblock
    from winkfs.container.table import FileTable
    from winkfs.mounting.lookup import CacheBudget

DAY: Final = 86_400  # seconds
CACHED_BYTES: Final = 8 << 20  # bytes that `cat` reads and may leave in the page cache
MINUTES: Final = 1440  # of a day
KIND_BITS: Final[dict[int, int]] = {FileType.DIR: modes.S_IFDIR, FileType.LINK: modes.S_IFLNK}
Record = dict[str, Any]


@click.command()
@BASE
@click.argument("glob", required=False)
@click.option("-l", "long", is_flag=True, help="Show mode, owner, size and time, like ls -l.")
@click.option("--since", type=TIME, metavar="T", help="Only files with mtime T or later.")
@click.option("--until", type=TIME, metavar="T", help="Only files with an mtime before T.")
@click.option("--columns", metavar="A,B", help="Show the values of these columns too; * for all.")
@WHERE
@AS_OF
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def ls(
    base: str,
    glob: str | None,
    long: bool,
    since: float | None,
    until: float | None,
    columns: str | None,
    where: str | None,
    as_of: str | None,
    as_json: bool,
) -> int:
    """List the files of a container or a data set, in byte order of their names.

    A data set is listed shard by shard if more than 100 of its shards may contain such names.

    GLOB selects matching names; * matches / too, so 'docs/*' lists everything below docs, as docs
    and docs/ do. An existing name is taken literally. T is in seconds since the epoch or ISO 8601
    (2026-11-21, or 2026-11-21T08:30Z; local time without a zone). Values of columns follow the
    name, separated by tabs; - is null. COND is a condition as in WHERE of SQL, on columns, path,
    size and mtime; there a time without a zone is UTC.

    The listing comes from the catalog, if there is one: use `winkfs verify` to find damaged files.
    Damage that a listing meets is reported and skipped; the exit status is then 1.
    """
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        names = list(container.columns) if columns == "*" else (columns or "").split(",")
        listing = _Listing(container, long, as_json, failures, [n.strip() for n in names if n])
        _list(container, glob, since, until, where, listing)
        timed = since is not None or until is not None or where is not None
        listed = listing.count or timed
        if glob is not None and not (listed or is_directory(container, as_path(glob))):
            failures.add(glob, "no name matches" if is_glob(glob) else missing(container))
    return failures.status


def _list(
    container: winkfs.Reader,
    glob: str | None,
    since: float | None,
    until: float | None,
    where: str | None,
    to: _Listing,
) -> None:
    match: Callable[[str], object] | None = None
    prefix = b""
    itself = None if glob is None else _itself(container, glob)
    if itself is not None and where is None and not to.columns:
        stat = container.stat(itself)
        if (since is None or stat.mtime >= since) and (until is None or stat.mtime < until):
            to.write(stat)
        return
    if itself is not None:
        match, prefix = to_str(itself).__eq__, itself
    elif glob is not None and is_glob(glob):
        match, prefix = glob_matcher(glob), name_bytes(literal_prefix(glob_text(glob)))
    elif glob is not None:  # a directory: what is below
        path = as_path(glob)
        prefix = path + b"/" if path else b""
    if isinstance(container, winkfs.Container | winkfs.Dataset):
        times, owner = (to_ns(since), to_ns(until)), (0, 0)
        if isinstance(container, winkfs.Container):
            owner = container.store.owner
        found = container.rows(prefix, to.failures.damage, times, where, to.columns)
        if found is not None:
            for rows in found:
                to.write_rows(rows, match, owner)
            return
    asked: dict[str, Any] = {"where": where} if isinstance(container, winkfs.Dataset) else {}
    if where is not None and not asked:
        raise click.ClickException(f"{container.base}: --where is for containers and data sets")
    for entry in container.scan(since, until, to_str(prefix), problem=to.failures.damage, **asked):
        if match is None or match(entry.name):
            to.write(entry)


def _itself(container: winkfs.Reader, argument: str) -> bytes | None:
    """Return the name of the one file that is meant, None for a glob or a directory."""
    name = name_bytes(argument)
    if name not in container:
        name = as_path(argument)
        if not name or argument.endswith("/") or is_glob(argument) or name not in container:
            return None
    return None if is_directory(container, name) else name


def _matching(rows: FileTable, match: Callable[[str], object]) -> FileTable:
    """Return the rows whose names match."""
    import numpy as np

    kept = np.fromiter(map(bool, map(match, to_strs(rows.names))), bool, len(rows.names))
    return rows if kept.all() else rows.take(kept)


class _Listing:
    """Printer of a listing. count: files that were printed."""

    def __init__(
        self,
        container: winkfs.Reader,
        long: bool,
        as_json: bool,
        failures: Failures,
        columns: list[str],
    ) -> None:
        from winkfs.container.handle import check_columns

        check_columns(columns, container.columns)
        self.failures, self.count, self.columns = failures, 0, columns
        self._container, self._long, self._json = container, long, as_json
        self._out = sys.stdout.buffer

    def write(self, stat: Stat) -> None:
        """Print one file; a link with its target."""
        self.count += 1
        values: dict[str, Any] = {}
        if self.columns:  # the catalog does not have them all, or it is a data set
            found = self._container.getcolumns(stat.name)
            values = {name: found[name] for name in self.columns}
        behind = self._behind(values).encode("utf-8", "surrogateescape")
        if not (self._long or self._json):
            self._out.write(shown(stat.name) + behind + b"\n")
            return
        target = None
        if stat.ftype == FileType.LINK:
            try:
                target = self._container.readlink(stat.name)
            except winkfs.FormatError as error:
                self.failures.add(stat.name, str(error))
        if self._json:
            typed = {"columns": _columns_json(values)} if self.columns else {}
            emit(stat_record(stat) | ({} if target is None else {"target": target}) | typed)
            return
        arrow = b"" if target is None else b" -> " + shown(target)
        fields = stat.ftype, stat.mode, stat.uid, stat.gid, stat.size, stat.mtime_ns
        self._out.write(_long(*fields).encode() + shown(stat.name) + arrow + behind + b"\n")

    def write_rows(
        self, rows: FileTable, match: Callable[[str], object] | None, owner: tuple[int, int]
    ) -> None:
        """Print the rows of the catalog whose names match.

        owner  uid and gid of files without attributes
        """
        import numpy as np

        if match is not None:
            rows = _matching(rows, match)
        names = to_strs(rows.names)
        if self._long or self._json or self.columns:
            at = 0
            for i in [*np.flatnonzero(rows.asked | rows.links).tolist(), len(names)]:
                self._write_many(rows.part(at, i), names[at:i], owner)
                if i < len(names):
                    self._write_asked(names[i])
                at = i + 1
        elif names:
            self.count += len(names)
            raw = b"\n".join(rows.names) + b"\n"
            self._out.write(b"".join(shown(n) + b"\n" for n in names) if self._tty else raw)

    def _write_asked(self, name: str) -> None:
        """Print one file whose metadata is not complete in the catalog."""
        try:
            self.write(self._container.stat(name))
        except winkfs.FormatError as error:
            self.failures.damage(error)

    def _write_many(self, rows: FileTable, names: list[str], owner: tuple[int, int]) -> None:
        """Print files whose metadata is complete in the rows."""
        columns = (column.tolist() for column in rows.stats(owner))
        fileids, sizes, times, ftypes, modes, uids, gids, _ = columns
        self.count += len(names)
        values = self._values_of(rows) if self.columns else None
        if self._json:
            found = map(_json, names, ftypes, sizes, times, modes, uids, gids, fileids)
            sys.stdout.write("".join(found if values is None else map(_with, found, values)))
            return
        shown_names: Iterable[str] = map(printable, names) if self._tty else names
        starts: Iterable[str] = [""] * len(names)
        if self._long:
            starts = map(_long, ftypes, modes, uids, gids, sizes, times)
        if values is not None:
            shown_names = map(str.__add__, shown_names, map(self._behind, values))
        text = "".join(f"{start}{name}\n" for start, name in zip(starts, shown_names, strict=True))
        self._out.write(text.encode("utf-8", "surrogateescape"))

    def _values_of(self, rows: FileTable) -> list[dict[str, Any]]:
        """Return the values of the columns that are shown, for each row."""
        from winkfs.container.ondisk.typed import split, to_value

        schema = {name: self._container.columns[name] for name in self.columns}
        blobs = [b""] * len(rows.names) if rows.values is None else rows.values
        lists = [
            [to_value(kind, text) for text in texts]
            for kind, texts in zip(schema.values(), split(blobs, schema), strict=True)
        ]
        return [dict(zip(schema, one, strict=True)) for one in zip(*lists, strict=True)]

    def _behind(self, values: dict[str, Any]) -> str:
        texts = map(column_text, values.values())
        return "".join(f"\t{printable(text)}" for text in texts)

    @functools.cached_property
    def _tty(self) -> bool:
        return sys.stdout.isatty()


def _json(
    name: str, ftype: int, size: int, mtime_ns: int, mode: int, uid: int, gid: int, fileid: int
) -> str:
    """Return `stat_record` as a line of JSON; faster than the json module."""
    whole, rest = divmod(mtime_ns, NANO)
    mtime = whole if rest == 0 else mtime_ns / NANO
    return (
        f'{{"name": {encode_basestring_ascii(name)}, "type": "{_type(ftype)}", "size": {size}, '
        f'"mtime": {mtime!r}, "mtime_ns": {mtime_ns}, "mode": "{mode:04o}", "uid": {uid}, '
        f'"gid": {gid}, "fileid": {fileid}}}\n'
    )


def _with(line: str, values: dict[str, Any]) -> str:
    """Return a line of `_json` with values of columns added."""
    return f'{line[:-2]}, "columns": {json.dumps(_columns_json(values))}}}\n'


def _columns_json(values: Mapping[str, Any]) -> Record:
    return {name: column_json(value) for name, value in values.items()}


@functools.cache
def _type(ftype: int) -> str:
    return FileType(ftype).name.lower() if ftype in list(FileType) else str(ftype)


def stat_record(stat: Stat) -> Record:
    """Return the metadata of a file for JSON."""
    return {
        "name": stat.name,
        "type": _type(stat.ftype),
        "size": stat.size,
        "mtime": stat.mtime,
        "mtime_ns": stat.mtime_ns,
        "mode": f"{stat.mode:04o}",
        "uid": stat.uid,
        "gid": stat.gid,
        "fileid": stat.fileid,
    }


def _long(ftype: int, mode: int, uid: int, gid: int, size: int, mtime_ns: int) -> str:
    """Return the line of ls -l up to the name; one link each: a container has no hard links."""
    return f"{_owned(ftype, mode, uid, gid)} {size:12} {_when(mtime_ns // NANO)} "


@functools.cache
def _owned(ftype: int, mode: int, uid: int, gid: int) -> str:
    owner, group = _account(pwd.getpwuid, uid), _account(grp.getgrgid, gid)
    kind = KIND_BITS.get(ftype, modes.S_IFREG)
    return f"{modes.filemode(kind | mode)} 1 {owner:8} {group:8}"


def _when(seconds: int) -> str:
    """Return a time as ls -l prints it."""
    day = _day(seconds // DAY)
    if day is None:
        return _second(seconds)
    shift, dates = day
    minutes = seconds // 60 % MINUTES + shift
    return f"{dates[minutes // MINUTES]} {_clock(minutes % MINUTES)}"


@functools.lru_cache(maxsize=1 << 14)
def _day(day: int) -> tuple[int, tuple[str, str, str]] | None:
    """Return of a day of UTC the offset of local time in minutes, and the dates of this day, the
    next and the previous one; None if the offset changes during the day or is not in whole
    minutes."""
    try:
        first, last = (time.localtime(day * DAY + at).tm_gmtoff for at in (0, DAY - 1))
        texts = [time.strftime("%Y-%m-%d", time.gmtime((day + i) * DAY)) for i in (0, 1, -1)]
    except (OverflowError, ValueError, OSError):
        return None
    return None if first != last or first % 60 else (first // 60, (texts[0], texts[1], texts[2]))


@functools.cache
def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _second(seconds: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a year that the C library does not support
        return str(seconds)


@functools.cache
def _account(look_up: Callable[[int], tuple[Any, ...]], number: int) -> str:
    """Return the name of a user or a group, its number if there is none."""
    try:
        return str(look_up(number)[0])
    except (KeyError, OverflowError):
        return str(number)


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
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
    match, prefix = glob_matcher(glob), name_bytes(literal_prefix(glob_text(glob)))
    found, cache = False, CacheLimit(container)
    for rows in container.rows(prefix, failures.damage):
        chosen = _matching(rows, match)
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
@click.argument("name")
@AS_OF
@JSON
def stat(base: str, name: str, as_of: str | None, as_json: bool) -> None:
    """Show the metadata of a file."""
    with opened(base, as_of=as_of) as container:
        found = container.stat(name_bytes(name))
        record = stat_record(found)
        values = container.getcolumns(found.name)
        if values and as_json:
            record["columns"] = _columns_json(values)
        if found.ftype == FileType.LINK:
            record["target"] = container.readlink(found.name)
        lines = [f"{key + ':':10}{value}" for key, value in record.items()]
        lines += ["columns:"] if values else []
        lines += [f"  {name}: {printable(column_text(value))}" for name, value in values.items()]
        answer(record, as_json, *lines)


@click.command()
@click.argument("base", metavar="BASE|DIR|FILE", shell_complete=complete_file)
@JSON
@VERSION
def info(base: str, as_json: bool) -> int:
    """Show the state of a container, data set, digest set, order, mount or single file.

    For a container: variant, files, live and dead bytes, whether the index is current, the last
    sync, its files and the variables of its superblock. Above 1 GiB the dead bytes are an estimate.
    For a mounted directory: the container and the counters of its server. For a single file: the
    properties of the kvseq, hindex or perm. A truncated file is a problem (exit status 1); to find
    other problems use verify.
    """
    from winkformats.disk.schemes import is_far
    from winkfs.cli.mount import mount_record, mounted

    mount = None if is_far(base) or Path(base + DATA).exists() else mounted(base)
    if mount:
        record = mount_record(mount)
        if not as_json and record.get("unsynced_since", "") is None:
            del record["unsynced_since"]  # it would be printed as unknown, but all is synced
    elif (found := find_kind(base.rstrip("/") or "/")) and (found[0].folder or base[-1:] != "/"):
        record = found[0].function("info", found[1])(found[1])
    elif Path(base).is_dir():
        raise click.ClickException(f"{base}: a directory on which no container is mounted")
    else:
        record = file_record(base)
    return print_facts(record, as_json)


# --- info of a single file ---


def file_record(file: str) -> Record:
    """Return what the superblock of a file has. Raises FormatError for any other file; OSError."""
    from winkformats.kv.superblock import FORMAT_NAMES, read_superblock

    with open_file(file) as storage:
        block = read_superblock(storage)
        form, purpose = block["FORMAT"], block.purpose
        record: Record = {"file": file, "format": FORMAT_NAMES.get(form, f"{form:#x}")}
        record |= {"purpose": purpose, "size": storage.size()}
        record["filesize"] = block.get("FILESIZE", storage.size())
        describe = DESCRIBE.get((form, purpose)) or DESCRIBE.get((form, ""))
        record |= describe(block) if describe else {}
        record["last_sync"] = time_text(block.get("SYNCTIME"))
        cut = record["size"] < record["filesize"]
        record["problems"] = [f"{file}: truncated, {record['size']} of {record['filesize']} bytes "
                              "are there"] if cut else []  # fmt: skip
        record["superblock"] = block.record()
        return record


def describe_hindex(block: Mapping[str, int]) -> Record:
    cells, taken, live = block["HTSIZE"], block.get("ENTRIES", 0), block.get("AENTRIES", 0)
    load = round(taken / cells, 3) if cells > 0 else None
    return {"cells": cells, "taken": taken, "live_entries": live, "load_factor": load}


DESCRIBE: Final[dict[tuple[int, str], Callable[[Superblock], Record]]] = {
    (0x10, ""): lambda block: {
        "entries": block.get("ENTRIES"), "live_entries": block.get("AENTRIES"),
    },
    (0x10, "FSYSTIME"): lambda block: {
        "marks": block.get("ENTRIES"), "seconds_between": block.get("TIMEMP"),
        "last_mark": time_text(block.get("TIMEMARK")),
        "last_mtime": time_text(block.get("LASTMT")),
    },
    (0x20, ""): describe_hindex,
    (0x30, ""): lambda block: {"pairs": block.get("PERMSIZE")},
}  # fmt: skip
"""By FORMAT and PURPOSE; "" for any other purpose."""
