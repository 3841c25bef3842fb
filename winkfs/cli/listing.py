"""Listing: prints rows of files as names, as `ls -l` does, as JSON, or in a format."""

from __future__ import annotations

import functools
import grp
import json
import pwd
import stat as modes
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final

import click

import winkfs
from winkformats import native
from winkfs.cli._common import Failures, column_text, printable
from winkfs.entry import FileType, Stat
from winkfs.names import to_str, to_strs
from winkfs.units import NANO, column_json, short_size, time_text

if TYPE_CHECKING:
    from winkformats.arrays import Int64
    from winkfs.container.table import FileTable

DAY: Final = 86_400  # seconds
MINUTES: Final = 1440  # of a day
KIND_BITS: Final[dict[int, int]] = {FileType.DIR: modes.S_IFDIR, FileType.LINK: modes.S_IFLNK}
SIGNS: Final = {"NL": "\n", "NUL": "\0", "TAB": "\t"}  # in a format
SAMPLES: Final[dict[str, Any]] = {
    "path": "", "size": 0, "mtime": "", "mtime_ns": 0, "type": "", "mode": "", "uid": 0, "gid": 0,
    "user": "", "group": "", "fileid": 0, "target": "",
}  # fmt: skip
"""Keys of a format, and a value of each."""
Record = dict[str, Any]


class Format:
    """A text like "{path} {size:>12}{NL}", in which keys of SAMPLES and SIGNS are replaced.

    keys  those of a file, in the order of the text
    """

    def __init__(self, text: str) -> None:
        """Raises UsageError for another key, a conversion, or a width that is none."""
        parts, self.keys = list[str](), list[str]()
        try:
            for literal, key, spec, conversion in string.Formatter().parse(text):
                parts.append(literal.replace("{", "{{").replace("}", "}}"))
                if key in SIGNS:
                    parts.append(SIGNS[key])
                elif key in SAMPLES and not conversion and "{" not in (spec or ""):
                    parts.append(f"{{{len(self.keys)}:{spec}}}")
                    self.keys.append(key)
                elif key is not None:
                    known = ", ".join([*SAMPLES, *SIGNS])
                    raise click.UsageError(f"--format: {{{key}}} is no key: use {known}")
            self._text = "".join(parts)
            self._text.format(*map(SAMPLES.__getitem__, self.keys))
        except ValueError as error:
            raise click.UsageError(f"--format: {error}") from None

    def lines(self, count: int, *columns: Iterable[Any]) -> Iterable[str]:
        """Return the text for each of some files. columns: the values of each of the keys."""
        if not columns:
            return [self._text.format()] * count
        return map(self._text.format, *columns)


class Listing:
    """Printer of files. count: files that were printed.

    long     as ls -l does
    human    with sizes for people
    as_json  one JSON object a line
    form     see `Format`
    columns  columns of the user, whose values are printed behind the name
    end      after each line
    """

    def __init__(
        self,
        container: winkfs.Reader,
        failures: Failures,
        columns: list[str],
        *,
        long: bool = False,
        human: bool = False,
        as_json: bool = False,
        form: Format | None = None,
        end: str = "\n",
    ) -> None:
        from winkfs.container.handle import check_columns

        check_columns(columns, container.columns)
        self.failures, self.count, self.columns = failures, 0, columns
        self._container, self._long, self._json, self._form = container, long, as_json, form
        self._size: Callable[[int], object] = short_size if human else int
        self._end, self._out = end, sys.stdout.buffer
        self._escape = sys.stdout.isatty() and end != "\0"
        self.plain = not (long or as_json or form is not None or columns or self._escape)

    def write(self, rows: FileTable, chosen: Int64 | None = None) -> None:
        """Print complete rows. chosen: their indices in a table; None: all of it."""
        count = len(rows) if chosen is None else len(chosen)
        self.count += count
        if not count:
            return
        if self.plain and self._end == "\n" and native.code is not None:
            self._out.write(_lines(rows, chosen))
            return
        rows = rows if chosen is None else rows.take(chosen)
        if self._form is not None:
            columns = map(self._column(rows), self._form.keys)
            self._put("".join(self._form.lines(len(rows), *columns)))
        elif self._json:
            self._write_json(rows)
        elif not self.plain:
            starts: Iterable[str] = self._starts(rows) if self._long else [""] * len(rows)
            behind = zip(self._names(rows), self._targets(rows), self._behind(rows), strict=True)
            lines = zip(starts, behind, strict=True)
            self._put("".join(f"{at}{''.join(rest)}{self._end}" for at, rest in lines))
        else:
            end = self._end.encode()
            self._out.write(end.join(rows.names) + end)

    def _put(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "surrogateescape"))

    def _names(self, rows: FileTable) -> list[str]:
        names = to_strs(rows.names)
        return list(map(printable, names)) if self._escape else names

    def _starts(self, rows: FileTable) -> Iterator[str]:
        """Yield the lines of ls -l up to the names."""
        _, sizes, times, ftypes, modes, uids, gids, _ = _lists(rows)
        known = _known(rows)
        texts = map(str, map(self._size, sizes))
        return map(_long, ftypes, modes, uids, gids, texts, times, known)

    def _targets(self, rows: FileTable) -> list[str]:
        """Return for each file what follows its name: the target of a link, if they are listed
        long."""
        if not self._long:
            return [""] * len(rows)
        found = self._links(rows)
        texts = [printable(text) if self._escape else text for text in found]
        return [f" -> {text}" if text else "" for text in texts]

    def _links(self, rows: FileTable) -> list[str]:
        """Return the target of each link, "" of any other file, and of a damaged one."""
        found = [""] * len(rows)
        for i in rows.links.nonzero()[0].tolist():
            name = rows.name(i)
            try:
                found[i] = self._container.readlink(name)
            except winkfs.FormatError as error:
                self.failures.add(to_str(name), str(error))
            except FileNotFoundError:  # removed meanwhile
                continue
        return found

    def _column(self, rows: FileTable) -> Callable[[str], Iterable[Any]]:
        """Return a function: key of a format -> its values."""
        fileids, sizes, times, ftypes, modes, uids, gids, _ = _lists(rows)
        known = _known(rows)
        makers: dict[str, Callable[[], Iterable[Any]]] = {
            "path": lambda: self._names(rows),
            "size": lambda: sizes,
            "mtime": lambda: map(_iso, times, known),
            "mtime_ns": lambda: times,
            "type": lambda: map(type_text, ftypes),
            "mode": lambda: map(_filemode, ftypes, modes),
            "uid": lambda: uids,
            "gid": lambda: gids,
            "user": lambda: map(functools.partial(_account, pwd.getpwuid), uids),
            "group": lambda: map(functools.partial(_account, grp.getgrgid), gids),
            "fileid": lambda: fileids,
            "target": lambda: map(printable if self._escape else str, self._links(rows)),
        }
        return lambda key: makers[key]()

    def _write_json(self, rows: FileTable) -> None:
        names, known = to_strs(rows.names), _known(rows)
        fileids, sizes, times, ftypes, modes, uids, gids, _ = _lists(rows)
        lines: Iterable[str] = map(
            _json, names, ftypes, sizes, times, modes, uids, gids, fileids, known
        )
        if rows.links.any():
            links = self._links(rows)
            targets = ({"target": link} if link else {} for link in links)
            lines = map(_with, lines, targets)
        if self.columns:
            values = ({"columns": columns_json(one)} for one in self._values_of(rows))
            lines = map(_with, lines, values)
        sys.stdout.write("".join(lines))

    def _behind(self, rows: FileTable) -> Iterable[str]:
        """Return the values of the columns as they follow each name."""
        if not self.columns:
            return [""] * len(rows)
        texts = (map(column_text, values.values()) for values in self._values_of(rows))
        return ("".join(f"\t{printable(text)}" for text in some) for some in texts)

    def _values_of(self, rows: FileTable) -> list[dict[str, Any]]:
        """Return the values of the columns that are printed, for each row."""
        from winkfs.tables import values_of

        return values_of(self._container, rows, self.columns, listed=self._listed)

    @functools.cached_property
    def _listed(self) -> bool:
        """True if rows come from catalogs, which have the values: not those of very many shards."""
        from winkfs.tables import is_listed

        return is_listed(self._container)


def _lines(rows: FileTable, chosen: Int64 | None) -> bytearray:
    """Return the names of rows, a line each, by the compiled path."""
    import numpy as np

    ends = rows.name_ends
    some = slice(None) if chosen is None else chosen
    lines = np.stack([ends[:-1][some], ends[1:][some]], 1)
    assert native.code is not None
    of = np.zeros(len(lines), np.int64)
    return native.code.headed(rows.name_bytes.data, lines, of, [b""], None)


# --- fields ---


def _lists(rows: FileTable) -> list[list[int]]:
    """Return the columns of `FileTable.stats`."""
    return [column.tolist() for column in rows.stats((0, 0))]


def _known(rows: FileTable) -> list[bool]:
    """Return which files have a time: all but directories without an entry."""
    from winkfs.container.directories import IMPLIED

    found: list[bool] = (rows.pos != IMPLIED).tolist()
    return found


def _json(
    name: str,
    ftype: int,
    size: int,
    mtime_ns: int,
    mode: int,
    uid: int,
    gid: int,
    fileid: int,
    known: bool,
) -> str:
    """Return `stat_record` as a line of JSON; faster than the json module."""
    mtime, ns, id = "null", "null", "null"
    if known:
        whole, rest = divmod(mtime_ns, NANO)
        mtime, ns, id = repr(whole if rest == 0 else mtime_ns / NANO), str(mtime_ns), str(fileid)
    return (
        f'{{"name": {encode_basestring_ascii(name)}, "type": "{type_text(ftype)}", "size": {size}, '
        f'"mtime": {mtime}, "mtime_ns": {ns}, "mode": "{mode:04o}", "uid": {uid}, '
        f'"gid": {gid}, "fileid": {id}}}\n'
    )


def _with(line: str, more: Record) -> str:
    """Return a line of `_json` with fields added."""
    return f"{line[:-2]}, {json.dumps(more)[1:]}\n" if more else line


def columns_json(values: Mapping[str, Any]) -> Record:
    return {name: column_json(value) for name, value in values.items()}


@functools.cache
def type_text(ftype: int) -> str:
    return FileType(ftype).name.lower() if ftype in list(FileType) else str(ftype)


def stat_record(stat: Stat) -> Record:
    """Return the metadata of a file for JSON."""
    return {
        "name": stat.name,
        "type": type_text(stat.ftype),
        "size": stat.size,
        "mtime": stat.mtime,
        "mtime_ns": stat.mtime_ns,
        "mode": f"{stat.mode:04o}",
        "uid": stat.uid,
        "gid": stat.gid,
        "fileid": stat.fileid,
    }


def _long(
    ftype: int, mode: int, uid: int, gid: int, size: str, mtime_ns: int, known: bool = True
) -> str:
    """Return the line of ls -l up to the name; one link each: a container has no hard links."""
    when = _when(mtime_ns // NANO) if known else f"{'-':16}"
    return f"{_owned(ftype, mode, uid, gid)} {size:>12} {when} "


@functools.cache
def _owned(ftype: int, mode: int, uid: int, gid: int) -> str:
    owner, group = _account(pwd.getpwuid, uid), _account(grp.getgrgid, gid)
    return f"{_filemode(ftype, mode)} 1 {owner:8} {group:8}"


@functools.cache
def _filemode(ftype: int, mode: int) -> str:
    return modes.filemode(KIND_BITS.get(ftype, modes.S_IFREG) | mode)


def _iso(mtime_ns: int, known: bool) -> str:
    """Return a time in UTC; seconds if no calendar has the year, and a dash if it is not known."""
    seconds = mtime_ns // NANO
    return (time_text(seconds) or str(seconds)) if known else "-"


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
