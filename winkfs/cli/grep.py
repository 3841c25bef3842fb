"""Command that searches the contents of files: grep."""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import click

import winkfs
from winkfs.cli._common import (
    AS_OF,
    BASE,
    EXCLUDE,
    INCLUDE,
    WHERE,
    Failures,
    as_path,
    complete_name,
    glob_text,
    missing,
    name_bytes,
    opened,
    short_name,
    shown,
    warn,
)
from winkfs.names import excluder, is_glob, literal_prefix, to_str, to_strs

if TYPE_CHECKING:
    from winkformats.arrays import Bools
    from winkfs.archive.search import Mode
    from winkfs.container.table import FileTable

MOST_JOBS: Final = 64


@click.command()
@BASE
@click.argument("words", metavar="PATTERN [NAME...]", nargs=-1, shell_complete=complete_name)
@click.option("-e", "--regexp", "patterns", multiple=True, metavar="PATTERN",
              help="Search for PATTERN; may be given several times.")  # fmt: skip
@click.option("-F", "--fixed-strings", is_flag=True, help="Patterns are texts.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore the case of ASCII letters.")
@click.option("-w", "--word-regexp", is_flag=True, help="Match only whole words.")
@click.option("-v", "--invert-match", is_flag=True, help="Select the lines that do not match.")
@click.option("-l", "--files-with-matches", is_flag=True, help="Print only names of files.")
@click.option("-c", "--count", is_flag=True, help="Print only the number of lines of each file.")
@click.option("-o", "--only-matching", is_flag=True, help="Print only the parts that match.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; end at the first match.")
@click.option("-n", "--line-number", is_flag=True, help="Print line numbers.")
@click.option(
    "-H", "--with-filename", is_flag=True, help="Print names (default: of several files)."
)
@click.option("-h", "--no-filename", is_flag=True, help="Print no names.")
@click.option("-a", "--text", is_flag=True, help="Print lines of binary files, too.")
@click.option("-m", "--max-count", type=click.IntRange(0), metavar="N",
              help="At most N lines of each file.")  # fmt: skip
@click.option("-A", "--after-context", type=click.IntRange(0), metavar="N",
              help="Print N lines after each.")  # fmt: skip
@click.option("-B", "--before-context", type=click.IntRange(0), metavar="N",
              help="Print N lines before each.")  # fmt: skip
@click.option("-C", "--context", type=click.IntRange(0), metavar="N",
              help="Print N lines around each.")  # fmt: skip
@INCLUDE
@EXCLUDE
@WHERE
@AS_OF
@click.option("--jobs", type=click.IntRange(1, MOST_JOBS), metavar="N",
              help="At most N processes (default: as many as there are processors).")  # fmt: skip
def grep(
    base: str,
    words: tuple[str, ...],
    patterns: tuple[str, ...],
    fixed_strings: bool,
    ignore_case: bool,
    word_regexp: bool,
    invert_match: bool,
    files_with_matches: bool,
    count: bool,
    only_matching: bool,
    quiet: bool,
    line_number: bool,
    with_filename: bool,
    no_filename: bool,
    text: bool,
    max_count: int | None,
    after_context: int | None,
    before_context: int | None,
    context: int | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    where: str | None,
    as_of: str | None,
    jobs: int | None,
) -> int:
    """Print the lines of files that match PATTERN, as grep -r does.

    NAME may be a directory or a glob: * matches / too. Without NAME all files are searched. With
    -e the first word is a NAME, not the PATTERN.

    PATTERN is a regular expression of Python, matched with the bytes of each line: \\d, \\b, +, |
    and () need no backslash, and a letter outside of ASCII is several bytes. Files are searched in
    the order in which they lie, compressed and remote ones too; links and directories are not.
    Of a file with a NUL byte no line is printed: a message reports that it matches.

    The exit status is 0 if a line was selected, and 1 if none was, or if a file is damaged or
    missing, which is reported; all others are searched.
    """
    from winkfs.archive.pattern import Pattern
    from winkfs.archive.search import Search, parts_of, search_parts

    if not patterns:
        if not words:
            raise click.UsageError("name a PATTERN")
        patterns, words = words[:1], words[1:]
    texts = [part for given in patterns for part in name_bytes(given).split(b"\n")]
    options = {"fixed": fixed_strings, "ignore_case": ignore_case, "word": word_regexp}
    try:
        compiled = [Pattern(each, **options) for each in dict.fromkeys(texts)]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    failures = Failures(base)
    mode: Mode = "names" if files_with_matches or quiet else "count" if count else (
        "only" if only_matching else "lines"
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(opened(base, as_of=as_of))
        if where is not None and not reader.takes_where:
            raise click.ClickException(f"{base}: --where is for containers and data sets")
        selection = _Selection(reader, words, include, exclude)
        found = parts_of(reader, selection.prefix, failures.damage, selection.chosen, where)
        parts = [part for part in found if len(part.rows)]
        selection.report(failures)
        search = Search(
            compiled, mode, invert_match,
            named=not no_filename and (with_filename or not selection.single),
            numbered=line_number, text=text, most=max_count,
            before=(before_context if before_context is not None else context) or 0,
            after=(after_context if after_context is not None else context) or 0,
            shown=_shown if sys.stdout.isatty() else bytes,
        )  # fmt: skip
        selected = False
        results = stack.enter_context(
            contextlib.closing(search_parts(reader, parts, search, jobs or os.cpu_count() or 1))
        )
        for result in results:
            for line in result.problems:
                failures.count += 1
                warn(line)
            for name in result.binary:
                warn(f"{base}: {short_name(name)}: binary file matches")
            if result.found and quiet:
                return 0
            if result.out:
                if search.separator and selected:
                    sys.stdout.buffer.write(search.separator)
                sys.stdout.buffer.write(result.out)
            selected = selected or result.found
    return failures.status if selected else 1


def _shown(name: bytes) -> bytes:
    return shown(to_str(name))


class _Selection:
    """The files that are meant by names on the command line, and by globs.

    prefix  of all their names
    single  True: one name of one file was given
    """

    def __init__(
        self,
        reader: winkfs.Reader,
        names: tuple[str, ...],
        include: tuple[str, ...],
        exclude: tuple[str, ...],
    ) -> None:
        self._reader, self._names = reader, names
        self._globs = [is_glob(name) and not _is_there(reader, name_bytes(name)) for name in names]
        self._met = [False] * len(names)
        self._include = excluder(map(glob_text, include))
        self._exclude = excluder(map(glob_text, exclude))
        starts = [
            name_bytes(literal_prefix(glob_text(name))) if glob else self._path(name)
            for name, glob in zip(names, self._globs, strict=True)
        ]
        low, high = (min(starts), max(starts)) if starts else (b"", b"")
        same = takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
        self.prefix = bytes(one for one, _ in same)
        self.single = len(names) == 1 and not self._globs[0] and bool(starts[0])

    def _path(self, argument: str) -> bytes:
        name = name_bytes(argument)
        return name if _is_there(self._reader, name) else as_path(argument)

    def chosen(self, rows: FileTable) -> FileTable:
        """Return the rows that are meant."""
        import numpy as np

        if self._names:
            kept = np.zeros(len(rows), np.bool_)
            for i, (name, glob) in enumerate(zip(self._names, self._globs, strict=True)):
                meant = self._meant(rows, name, glob)
                self._met[i] |= bool(meant.any())
                kept |= meant
            rows = rows.take(kept)
        for choose, wanted in (self._include, True), (self._exclude, False):
            if choose is not None:
                names = to_strs(rows.names)
                matched = np.fromiter((bool(choose(n)) for n in names), np.bool_, len(rows))
                rows = rows.take(matched == wanted)
        return rows

    def _meant(self, rows: FileTable, argument: str, glob: bool) -> Bools:
        from winkfs.container.selection import matches, starting

        if glob:
            return matches(rows, glob_text(argument))
        path = self._path(argument)
        below = starting(rows, path + b"/") if path else rows.size >= 0
        self.single = self.single and not below.any()
        found: Bools = starting(rows, path) & (rows.name_lengths == len(path))
        found |= below
        return found

    def report(self, failures: Failures) -> None:
        """Report names that no file has; a directory without files, or a link, has no lines."""
        for name, glob, met in zip(self._names, self._globs, self._met, strict=True):
            if not met and (glob or not _is_there(self._reader, self._path(name))):
                failures.add(name, "no name matches" if glob else missing(self._reader))


def _is_there(reader: winkfs.Reader, name: bytes) -> bool:
    try:
        return name in reader
    except winkfs.FormatError:  # it is, and is damaged
        return True
