"""Commands that change a container: create, columns, put, append, rm, mv."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import IO, TYPE_CHECKING, Final, cast

import click

import winkfs
from winkfs.cli._common import (
    BASE,
    COMPRESS,
    JSON,
    PIECE,
    STDIN,
    WHERE,
    Failures,
    answer,
    as_path,
    complete_file,
    complete_name,
    counted,
    glob_matcher,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
    pairs,
    place_fault,
    printable,
    shown,
)
from winkfs.entry import FileType
from winkfs.names import is_glob, literal_prefix, to_bytes, to_str, within

if TYPE_CHECKING:
    from winkfs.cli._common import Files
    from winkfs.reader import Problem

IN_MEMORY: Final = 8 << 20  # bytes of standard input before they go to a temporary file
TAKEN = "is a directory: give the new name in full"
WRITTEN: Final = {
    "string": "it takes UTF-8", "bool": "it takes true or false",
    "int64": "it takes a whole number of 64 bits", "float64": "it takes a number as 0.5, or nan",
    "timestamp": "it takes a time as 2026-11-22T10:00Z", "list<string>": 'it takes a list as ["a"]',
    "date": "it takes a date as 2026-11-22", "list<int64>": "it takes a list as [1, null]",
    "datetime": "it takes a time as 2026-11-22T10:00, without a zone",
    "list<float64>": "it takes a list as [0.5, NaN, null]",
}  # fmt: skip
"""How a value is written in a type; a binary one takes any bytes, a decimal some digits."""


@click.command()
@BASE
@click.option("--ao", is_flag=True, help="Append-only: files in order of mtime.")
@click.option(
    "--timemp", type=click.IntRange(1), metavar="N",
    help="With --ao: seconds between two time marks. [default: 60]",
)  # fmt: skip
@click.option("--classic", is_flag=True, help="Use only the original format: MD5, whole seconds.")
@click.option(
    "--htalgo", type=click.IntRange(1, 3), metavar="N",
    help="Hash algorithm: 1 MD5, 2 XXH3-64, 3 MurmurHash3. [default: 2; classic: 1]",
)  # fmt: skip
@click.option(
    "--column", "columns", multiple=True, metavar="NAME=TYPE",
    help="A column that files can have; for TYPE see winkfs columns. May be repeated.",
)  # fmt: skip
@click.option(
    "--isz", type=click.IntRange(56, 1 << 20), metavar="N",
    help="Least size of an inode, a multiple of 8. With --ao a file that is appended to can have "
    "(N - 56) / 16 extents. [default: 128]",
)  # fmt: skip
@click.option(
    "--havedups", is_flag=True,
    help="Mark replaced versions as deleted only when their name is deleted or renamed.",
)  # fmt: skip
@COMPRESS
def create(
    base: str,
    ao: bool,
    timemp: int | None,
    classic: bool,
    htalgo: int | None,
    columns: tuple[str, ...],
    isz: int | None,
    havedups: bool,
    compress: str | None,
) -> None:
    """Make an empty container.

    BASE must not exist yet. The files are BASE.data, BASE.idx and, if append-only, BASE.time.
    """
    if timemp is not None and not ao:
        raise click.UsageError("--timemp goes with --ao")
    if isz is not None and isz % 8:
        raise click.UsageError(f"--isz takes a multiple of 8, not {isz}")
    if havedups and compress not in (None, "none"):
        raise click.UsageError("--havedups does not go with --compress")
    schema = pairs(columns, "TYPE")
    made = winkfs.create(
        base, ao=ao, timemp=60 if timemp is None else timemp, classic=classic, htalgo=htalgo,
        columns=schema, compress=compress, isz=128 if isz is None else isz, havedups=havedups,
    )  # fmt: skip
    try:
        made.close()
    except OSError:  # a second attempt must find nothing
        from winkfs.container.datafile import remove_files

        remove_files(made.base)
        raise


@click.command()
@BASE
@click.argument(
    "action", type=click.Choice(["list", "add", "drop"]), required=False, default="list"
)
@click.argument("words", metavar="NAME[=TYPE]...", nargs=-1)
@JSON
def columns(base: str, action: str, words: tuple[str, ...], as_json: bool) -> None:
    """List, add or drop the columns that files can have beside their content.

    TYPE is string, binary, bool, int64, float64, timestamp (UTC), date, datetime (without a zone),
    decimal(P,S) of P digits, S of them behind the point, list<string>, list<int64> or
    list<float64>. The value of a file is its extended attribute user.NAME as text: put --column
    sets it, and so does setfattr in a mount. What is dropped stays an attribute. A data set has the
    columns of its containers.

    \b
      winkfs columns crawl add url=string lang=string score=float64
      winkfs ls crawl --columns lang,score --where "lang = 'de' and score > 0.5"
    """
    if bool(words) != (action != "list"):
        wanted = "NAME..." if action == "drop" else "NAME=TYPE..."
        raise click.UsageError(f"{action} takes {'no names' if words else wanted}")
    if action == "add":
        schema = pairs(words, "TYPE")
        with opened(base, "a") as container:
            container.add_columns(schema)
        return
    if action == "drop":
        with opened(base, "a") as container:
            if not isinstance(container, winkfs.Container):
                raise click.ClickException(f"{base}: columns are dropped from containers only")
            container.drop_columns(words)
        return
    with opened(base) as reader:
        found = reader.columns
        answer(found, as_json, *(f"{name} {kind}" for name, kind in found.items()))


@click.command()
@BASE
@click.argument("name", shell_complete=complete_name)
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
@click.option("--force", is_flag=True, help="Accept a name that a mount cannot show.")
@click.option(
    "--column", "values", multiple=True, metavar="NAME=VALUE",
    help="The value of a column. May be repeated.",
)  # fmt: skip
def put(base: str, name: str, file: str, force: bool, values: tuple[str, ...]) -> None:
    """Create or replace the file NAME with the content of FILE, or of standard input.

    The mtime is the current time; the executable bit is copied from FILE. A NAME that is not a path
    (dir/, ../a, /a, a//b), or is below the name of a file, is refused.
    """
    with click.open_file(file, "rb") as content, opened(base, "a") as container:
        executable = file != STDIN and os.fstat(content.fileno()).st_mode & stat.S_IXUSR
        refuse_own(container, content)
        ftype = FileType.EXEC if executable else FileType.FILE
        key = name_bytes(name)
        if not force:
            check_place(container, key)
        xattrs = _attributes(container, values) if values else None
        container.put_file(key, content, ftype=ftype, xattrs=xattrs)


def _attributes(container: Files, values: tuple[str, ...]) -> dict[bytes, bytes]:
    """Return the attributes of a file with these values, NAME=VALUE each."""
    from winkfs.container.ondisk.typed import USER, canonical, to_attributes

    schema, given = container.columns, pairs(values, "VALUE")
    found = to_attributes(schema, dict.fromkeys(given))
    for name, word in given.items():
        text = canonical(schema[name], name_bytes(word))
        if text is None:
            kind = schema[name]
            takes = WRITTEN.get(kind, "it takes a number that has no more digits, as -1.5")
            raise click.ClickException(f"column {name} is {kind}, not {word!r}: {takes}")
        found[USER + name.encode()] = text
    return found


def check_place(container: Files, name: bytes) -> None:
    """Refuse a name that a mount would not show as a file."""
    fault = place_fault(name)
    if fault is None and is_directory(container, name):
        fault = "is a directory"
    if fault is not None:
        raise click.ClickException(f"{container.base}: {to_str(name)}: {fault}")


def refuse_own(container: Files, content: IO[bytes]) -> None:
    """Refuse BASE.data itself, which would grow as it is read."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(f"{container.base}.data"), os.fstat(content.fileno())):
            raise click.ClickException(f"{container.base}.data: cannot be put into itself")


@click.command()
@BASE
@click.argument("name", shell_complete=complete_name)
@click.argument("file", required=False, default=STDIN, shell_complete=complete_file)
def append(base: str, name: str, file: str) -> None:
    """Append the content of FILE, or of standard input, to the file NAME.

    The file is created if it does not exist. In an append-only container only the last file can
    grow, and only until the next sync.
    """
    import tempfile  # takes longer than the rest

    with (
        click.open_file(file, "rb") as content,
        tempfile.SpooledTemporaryFile(IN_MEMORY) as spool,
    ):
        whole = _read(content, cast(IO[bytes], spool)) if file == STDIN else content
        with opened(base, "a") as container:
            refuse_own(container, content)
            key = name_bytes(name)
            if key not in container:
                check_place(container, key)
                container.put_file(key, whole)
                return
            while data := whole.read(PIECE):  # if that fails, nothing is appended
                container.append(key, data)


def _read(content: IO[bytes], spool: IO[bytes]) -> IO[bytes]:
    """Read all of standard input: it may take hours, and may be interrupted."""
    while data := content.read(PIECE):
        spool.write(data)
    spool.seek(0)
    return spool


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_name)
@WHERE
@click.option(
    "-r", "recursive", is_flag=True, help="Remove directories and everything below; do not ask."
)
@click.option("-n", "--dry-run", is_flag=True, help="Only list the files that would be removed.")
@click.option("-v", "--verbose", is_flag=True, help="List removed files.")
def rm(
    base: str,
    names: tuple[str, ...],
    where: str | None,
    recursive: bool,
    dry_run: bool,
    verbose: bool,
) -> int:
    """Remove files. A NAME may be a glob: * matches / too.

    Without -r a directory must be empty, and a glob that matches directories, or all of several
    files, is asked about on a terminal and refused elsewhere. A missing name is an error (exit
    status 1); all others are removed. An interrupted run removes nothing.

    --where removes all files for which COND, on columns, path, size and mtime, is true; with a NAME
    only those that match it too. If another commit to a data set has changed one of these files
    meanwhile, none is removed.
    """
    if not names and where is None:
        raise click.UsageError("name the files: NAME... or --where COND")
    failures = Failures(base)
    mode: str = "r" if dry_run else "a"
    with opened(base, mode) as container:
        removal = _Removal(container, failures, recursive, dry_run=dry_run, verbose=verbose)
        if where is not None:
            if isinstance(container, winkfs.Dataset) and not dry_run:
                container.expect_unchanged()
            removal.take_where(where, names)
            return failures.status
        for argument in names:
            removal.take(argument)
        removal.directories()
    return failures.status


class _Matches:
    """Matches of a glob: files, directories with an entry, and without one.

    many  what is more than files one by one: directories, or all that there is; "": nothing
    """

    def __init__(self, container: Files, glob: str, problem: Problem) -> None:
        from winkfs.container.directories import Nesting, implied
        from winkfs.container.selection import matches
        from winkfs.tables import ordered

        self.files: list[bytes] = []
        self.directories: set[bytes] = set()
        self.implied: set[bytes] = set()
        nesting = Nesting()
        for rows in ordered(container, to_bytes(literal_prefix(glob)), problem):
            nested = nesting.add(rows)
            found = matches(rows, glob)
            self.files += rows.take(found & ~rows.directories).names
            self.directories.update(rows.take(found & rows.directories).names)
            begun = implied(nested.names, len(nested.at), (0, 0))
            self.implied.update(begun.take(matches(begun, glob)).names)
        self.implied -= self.directories
        number = len(self.directories) + len(self.implied)
        self.many = f"matches {counted(number, 'directory')}" if number else ""
        if not number and len(self.files) == len(container) > 1:
            self.many = f"matches all {len(self.files)} files"


class _Removal:
    """Removal of files at once, and of directories after all files."""

    def __init__(
        self, container: Files, failures: Failures, recursive: bool, *, dry_run: bool, verbose: bool
    ) -> None:
        self._container, self._failures, self._recursive = container, failures, recursive
        self._dry_run, self._verbose = dry_run, verbose
        self._gone: set[bytes] = set()  # of a dry run
        self._directories: dict[bytes, str] = {}  # name -> its argument; it may not exist
        self._implied: set[bytes] = set()  # of these, without an entry: gone with the last file

    def take(self, argument: str) -> None:
        """Remove a file, or all that match; note directories."""
        name, container = name_bytes(argument), self._container
        try:
            if name in container or not is_glob(argument):
                name = name if name in container else as_path(argument) or name
                if name in container and not is_directory(container, name):
                    self._remove(name)
                else:
                    self._directories[name] = argument
            elif not self._take_all(argument):
                self._failures.add(argument, "no name matches")
        except winkfs.FormatError as error:
            self._failures.add(argument, str(error))

    def take_where(self, where: str, globs: tuple[str, ...]) -> None:
        """Remove the files for which a condition is true and one of the globs, if any, matches."""
        matches = [glob_matcher(glob) if is_glob(glob) else glob.__eq__ for glob in globs]
        for entry in self._container.scan(where=where, problem=self._failures.damage):
            if entry.ftype == FileType.DIR:
                continue
            if not matches or any(match(entry.name) for match in matches):
                self._remove(to_bytes(entry.name))

    def _take_all(self, glob: str) -> bool:
        """Remove all files that match a glob, if that is meant -> whether any name matches."""
        found = _Matches(self._container, glob_text(glob), self._failures.damage)
        if not (found.files or found.directories or found.implied):
            return False
        meant = self._recursive or self._dry_run or not found.many
        if not (meant or self._confirmed(glob, found)):
            self._failures.add(glob, f"{found.many}: see -r")
            return True
        self._directories.update((name, to_str(name)) for name in found.directories)
        if self._recursive:
            self._implied |= found.implied
            self._directories.update((name, to_str(name)) for name in found.implied)
        for name in found.files:
            self._remove(name)
        return True

    def _confirmed(self, glob: str, found: _Matches) -> bool:
        """Ask on a terminal whether all that match are to be removed."""
        if not (found.files and sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        files = counted(len(found.files), "file")
        text = f"{self._container.base}: {glob}: {found.many}: remove {files}?"
        return click.confirm(printable(text), err=True)

    def directories(self) -> None:
        """Remove the directories that were named; if they are not empty, only with -r."""
        if not self._directories:
            return
        full: set[bytes] = set()
        for name in map(to_bytes, self._container.names(problem=self._failures.damage)):
            if name in self._gone or name in self._directories:
                continue
            ends = [at for at in range(len(name)) if name[at] == ord("/")]
            above = [name[:at] for at in ends if name[:at] in self._directories]
            full.update(above)
            if above and self._recursive:
                self._remove(name)
        for name, argument in sorted(self._directories.items(), reverse=True):
            if name in full and not self._recursive:
                self._failures.add(argument, "is a directory that is not empty: see -r")
            elif name in self._container:
                self._remove(name)
            elif name not in full and name not in self._implied:
                self._failures.add(argument, missing(self._container))

    def _remove(self, name: bytes) -> None:
        try:
            if self._dry_run:
                self._gone.add(name)
            else:
                self._container.delete(name)
        except winkfs.FormatError as error:
            self._failures.add(to_str(name), str(error))
            return
        if self._dry_run or self._verbose:
            sys.stdout.buffer.write(shown(to_str(name)) + b"\n")


@click.command()
@BASE
@click.argument("old", shell_complete=complete_name)
@click.argument("new", shell_complete=complete_name)
@click.option(
    "--force", is_flag=True, help="Accept a name that a mount cannot show, and a / at its end."
)
def mv(base: str, old: str, new: str, force: bool) -> None:
    """Rename a file, or a directory with everything below it.

    If NEW is a directory, OLD is moved into it, but not with --force; if NEW is a file, it is
    replaced. An interrupted run changes nothing.
    """
    with opened(base, "a") as container:
        source, target = _name(container, old), name_bytes(new)
        if not force:
            target = _moved_to(container, target.rstrip(b"/"), source)
        below = _below(container, source)
        exists = source in container
        if not exists and not below:
            raise _error(base, old, missing(container))
        if below and within(target, source):
            raise _error(base, old, "a directory cannot be moved into itself")
        fault = TAKEN if is_directory(container, target) else None
        if target != source and not force:
            fault = fault or _fault(container, target)
        if fault:
            raise _error(base, new, fault)
        if exists:
            container.rename(source, target)
        for name in below:
            container.rename(name, target + name[len(source) :])


def _name(container: Files, argument: str) -> bytes:
    given = name_bytes(argument)
    name = given.rstrip(b"/")
    if given in container or name in container:
        return given if given in container else name
    return as_path(argument) or name


def _moved_to(container: Files, target: bytes, source: bytes) -> bytes:
    """Return the new name of a file: below `target` if that is a directory."""
    from winkfs.tables import has_below

    there = is_directory(container, target)
    if there or (target and target not in container and has_below(container, target)):
        return target + b"/" + source.rpartition(b"/")[2]
    return target


def _below(container: Files, name: bytes) -> list[bytes]:
    """Return all names below a directory; a file needs no scan."""
    if name in container and not is_directory(container, name):
        return []
    return [to_bytes(entry.name) for entry in container.scan(prefix=name + b"/")]


def _fault(container: Files, target: bytes) -> str | None:
    """Return why a mount would not show a file or directory of this name, None if it would."""
    from winkfs.tables import has_below

    fault = place_fault(target)
    if fault is None and target not in container and has_below(container, target):
        return TAKEN
    return fault


def _error(base: str, name: str, what: str) -> click.ClickException:
    return click.ClickException(f"{base}: {name}: {what}")
