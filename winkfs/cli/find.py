"""The command find."""

from __future__ import annotations

import functools
import operator
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

import winkfs
from winkfs.cli._common import (
    AS_OF,
    BASE,
    WHERE,
    Failures,
    as_path,
    complete_name,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
    shown,
)
from winkfs.names import is_glob, to_str, to_strs
from winkfs.units import LAST, NANO, parse_time

if TYPE_CHECKING:
    from winkformats.arrays import Bools, Int64
    from winkfs.container.directories import Nested
    from winkfs.container.table import FileTable

UNITS: Final = {"": 512, "b": 512, "c": 1, "w": 2, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}
COUNT: Final = re.compile(r"([+-]?)(\d{1,18})(\w?)", re.ASCII)
DAY: Final = 86_400 * NANO
KINDS: Final = ("f", "d", "l")
Range = tuple[int, int]  # both inclusive
MOST: Final = 1 << 63


class _Count(click.ParamType):  # type: ignore[type-arg]  # takes none before click 8.4
    """[+-]N with a unit, as GNU find has it -> (range of counts, bytes of the unit)."""

    def __init__(self, name: str, units: dict[str, int], takes: str) -> None:
        self.name, self._units, self._takes = name, units, takes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = COUNT.fullmatch(value)
        if found is None or found[3] not in self._units:
            self.fail(f"{value!r} is no {self.name}: {self._takes}", param, ctx)
        sign, count = found[1], int(found[2])
        low = count + 1 if sign == "+" else -MOST if sign == "-" else count
        high = count - 1 if sign == "-" else MOST if sign == "+" else count
        return (low, high), self._units[found[3]]


class _Kinds(click.ParamType):  # type: ignore[type-arg]
    """Types of files, as f or d,l."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not set(value.split(",")) <= set(KINDS):
            self.fail(f"{value!r} is no type: f, d or l, or several as d,l", param, ctx)
        return frozenset(value.split(","))


def _regex(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(glob_text(text), re.DOTALL) for text in texts]
    except re.error as error:
        raise click.BadParameter(f"{error}") from None


def _test(name: str, help: str, **options: Any) -> Callable[[Any], Any]:
    """Return an option that is written with one dash, as find has it, or with two."""
    return click.option(f"-{name}", f"--{name}", name, multiple=True, help=help, **options)


@click.command()
@BASE
@click.argument("paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_name)
@_test("name", "The last part of the name matches.", metavar="GLOB")
@_test("iname", "The same without regard to case.", metavar="GLOB")
@_test("path", "The whole name matches, with or without ./; * matches /.", metavar="GLOB")
@_test("regex", "The whole name matches, with or without ./.", metavar="RE", callback=_regex)
@_test("type", "f: file, d: directory, l: link; or several: f,l.", type=_Kinds(), metavar="T")
@_test(
    "size", "More than N (+N), less (-N) or N units, rounded up: c: bytes, k, M, G; none: 512.",
    type=_Count("size", UNITS, "[+-]N with c, k, M, G or no unit"), metavar="[+-]N[ckMG]",
)  # fmt: skip
@_test("newer", "Changed after a file of BASE, or a time as 2026-11-21T08:30Z.", metavar="NAME|T")
@_test(
    "mtime", "Changed more than N (+N), less (-N) or N whole days ago.",
    type=_Count("number of days", {"": 1}, "[+-]N"), metavar="[+-]N",
)  # fmt: skip
@click.option(
    "-maxdepth", "--maxdepth", "maxdepth", type=click.IntRange(0), metavar="N",
    help="At most N levels below PATH.",
)  # fmt: skip
@click.option(
    "-mindepth", "--mindepth", "mindepth", type=click.IntRange(0), metavar="N",
    help="At least N levels below PATH.",
)  # fmt: skip
@click.option(
    "-print0", "--print0", "print0", is_flag=True, help="End each name with NUL, and escape none."
)
@click.option(
    "-print", "--print", is_flag=True, expose_value=False, help="Print names, which is always so."
)
@WHERE
@AS_OF
def find(
    base: str,
    paths: tuple[str, ...],
    maxdepth: int | None,
    mindepth: int | None,
    print0: bool,
    where: str | None,
    as_of: str | None,
    **tests: Any,
) -> int:
    """Find files by name, size, time, type or condition, all of BASE or those of each PATH.

    All tests have to be true. Directories that exist only because of names below them are found,
    too, as in a mount: they have no bytes and no time, and no condition is true for them. Names are
    printed whole, as the other commands take them, and a directory before what is in it.

    A PATH is a name or a directory; it is printed itself, 0 levels below. COND is a condition as in
    WHERE of SQL, on columns, path, size and mtime. The listing comes from the catalog, if there is
    one; no content is read.

    \b
      winkfs find corpus -name '*.txt' -size +10k
      winkfs find corpus img -type f -print0 | xargs -0 winkfs cat corpus
    """
    if {"!", "(", ")", "-o"} & set(paths):
        raise click.UsageError("all tests have to be true; for or and not use --where")
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        newer = [_reference(container, text) for text in tests.pop("newer")]
        asked = _Tests(**tests, newer=newer, depths=(mindepth or 0, maxdepth), where=where)
        search = _Search(container, failures, asked, b"\0" if print0 else b"\n")
        for path in paths or ("",):
            try:
                search.below(path)
            except winkfs.FormatError as error:
                failures.add(path, str(error))
    return failures.status


def _reference(container: winkfs.Reader, text: str) -> int:
    """Return the time of a file, or that which the text is, in nanoseconds."""
    for name in (name_bytes(text), as_path(text)):
        if name in container:
            return container.stat(name).mtime_ns
    found = parse_time(text)
    if found is None:
        raise click.ClickException(
            f"{container.base}: -newer {text}: no such file, and no time as 2026-11-21T08:30Z"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    """Tests of find. depths: levels below PATH, both inclusive; None: no bound."""

    name: tuple[str, ...]
    iname: tuple[str, ...]
    path: tuple[str, ...]
    regex: list[re.Pattern[str]]
    type: tuple[frozenset[str], ...]
    size: tuple[tuple[Range, int], ...]
    mtime: tuple[tuple[Range, int], ...]
    newer: list[int]
    depths: tuple[int, int | None]
    where: str | None

    @property
    def implied(self) -> bool:
        """True if a directory without an entry can be among what is found."""
        no = self.mtime or self.newer or self.where is not None
        return not no and all("d" in kinds for kinds in self.type)

    def met(self, rows: FileTable, level: Int64) -> Bools:
        """Return for which rows all tests are true, bool[n]. level: of each, below PATH."""
        import numpy as np

        (low, high), now = self.depths, time.time_ns()
        found: Bools = level >= low
        if high is not None:
            found &= level <= high
        for kinds in self.type:
            found &= self._of_type(rows, kinds)
        for (least, most), unit in self.size:
            units = -(-rows.size // unit)
            found &= (units >= least) & (units <= most)
        for (least, most), _ in self.mtime:
            days = (now - np.maximum(rows.mtime, now - LAST)) // DAY  # below 0: in the future
            found &= (days >= least) & (days <= most)
        for moment in self.newer:
            found &= rows.mtime > moment
        if self.name or self.iname or self.path or self.regex:
            found[found] = self._named(rows.take(found))
        return found

    def _of_type(self, rows: FileTable, kinds: frozenset[str]) -> Bools:
        directories, links = rows.directories, rows.links
        of = {"d": directories, "l": links, "f": ~(directories | links)}
        return functools.reduce(operator.or_, map(of.__getitem__, kinds))

    def _named(self, rows: FileTable) -> Bools:
        """Return which names match all patterns, bool[n]."""
        import numpy as np

        from winkfs.container.selection import matches

        found = np.ones(len(rows), np.bool_)
        for pattern in self.path:
            glob = glob_text(pattern).removeprefix("./")
            met = matches(rows, glob)
            found &= met | matches(rows, glob[2:]) if glob.startswith("*/") else met
        parts = list[str]()
        for pattern in self.name:
            end = pattern.removeprefix("*")
            if end != pattern and "/" not in end and not is_glob(end):  # so ends the whole name
                found &= matches(rows, glob_text(pattern))
            else:
                parts.append(pattern)
        if parts or self.iname:
            last = _last_parts(rows)
            for pattern in parts:
                found &= matches(last, glob_text(pattern))
            for pattern in self.iname:
                _narrow(found, last, _caseless(glob_text(pattern)))
        for regex in self.regex:
            _narrow(found, rows, functools.partial(_match_path, regex))
        return found


def _match_path(regex: re.Pattern[str], name: str) -> object:
    """Match a name, as it is or below `.`, as GNU find has it."""
    return regex.fullmatch(name) or regex.fullmatch(f"./{name}")


def _caseless(glob: str) -> Callable[[str], object]:
    import fnmatch

    return re.compile(fnmatch.translate(glob), re.IGNORECASE).match


def _narrow(found: Bools, rows: FileTable, match: Callable[[str], object]) -> None:
    """Clear what does not match of the rows that are set. Cost: a call for each."""
    import numpy as np

    left = np.flatnonzero(found)
    names = to_strs(rows.take(left).names)
    found[left] = np.fromiter(map(bool, map(match, names)), np.bool_, len(left))


def _last_parts(rows: FileTable) -> FileTable:
    """Return the rows with the last parts of their names."""
    import numpy as np

    from winkformats.arrays import gather
    from winkfs.container.table import FileTable

    starts, ends = rows.name_ends[:-1], rows.name_ends[1:]
    slashes = np.append(np.flatnonzero(rows.name_bytes == ord("/")), -1)
    before = slashes[np.searchsorted(slashes[:-1], ends) - 1]  # -1: there is none
    begin = np.maximum(starts, before + 1)
    return FileTable(gather(rows.name_bytes, begin, ends - begin), rows.numbers)


class _Search:
    """Finds and prints. end: after each name."""

    def __init__(
        self, container: winkfs.Reader, failures: Failures, tests: _Tests, end: bytes
    ) -> None:
        self._container, self._failures, self._tests, self._end = container, failures, tests, end
        self._entries: set[bytes] = set()  # directories with an entry
        self._levels = tests.implied or tests.depths != (0, None)

    def below(self, argument: str) -> None:
        """Print what is found of a PATH and below it."""
        out, escaped = sys.stdout.buffer, sys.stdout.isatty() and self._end == b"\n"
        for names in self._found(argument):
            if escaped:
                names = [shown(to_str(name)) for name in names]
            out.write(self._end.join([*names, b""]))

    def _found(self, argument: str) -> Iterator[list[bytes]]:
        """Yield names that are found."""
        from winkfs.container.directories import Nesting, implied
        from winkfs.tables import one, ordered

        container, tests, name = self._container, self._tests, self._name(argument)
        damage, lacking = self._failures.damage, False
        if name and name in container:
            for rows in one(container, name, damage, where=tests.where):
                yield self._chosen(rows)
            if not is_directory(container, name):
                return
        elif name:
            lacking = True
        prefix = name + b"/" if name else b""
        nesting = Nesting(len(prefix))
        for rows in ordered(container, prefix, damage, where=tests.where):
            if lacking and tests.implied:
                yield self._chosen(implied([name], 1, (0, 0)))
            lacking = False
            yield self._merged(rows, nesting.add(rows)) if self._levels else self._chosen(rows)
        if lacking and next(ordered(container, prefix, damage), None) is None:
            what = "no such file: for a pattern use -path" if is_glob(argument) else None
            self._failures.add(argument, what or missing(container))

    def _name(self, argument: str) -> bytes:
        """Return the name of a file or directory; empty: the root."""
        name = name_bytes(argument)
        return name if name in self._container else as_path(argument)

    def _chosen(self, rows: FileTable) -> list[bytes]:
        """Return the names of rows for which the tests are true, at level 0 or any."""
        import numpy as np

        return rows.take(self._tests.met(rows, np.zeros(len(rows), np.int64))).names

    def _merged(self, rows: FileTable, nested: Nested) -> list[bytes]:
        """Return the names of rows, and of the directories that begin in them."""
        import numpy as np

        from winkfs.container.directories import implied

        kept = np.flatnonzero(self._tests.met(rows, nested.level + 1))
        names = rows.take(kept).names
        if not self._tests.implied:
            return names
        entries = rows.directories
        if entries.any():
            self._entries.update(rows.take(entries).names)
        if not len(nested.at):
            return names
        begun = implied(nested.names, len(nested.at), (0, 0))
        met = np.flatnonzero(self._tests.met(begun, nested.depth))
        places = np.searchsorted(kept, nested.at[met]).tolist()
        merged, at = list[bytes](), 0
        for place, name in zip(places, begun.take(met).names, strict=True):
            if name not in self._entries:
                merged += [*names[at:place], name]
                at = place
        return merged + names[at:]
