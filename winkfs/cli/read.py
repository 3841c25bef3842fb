"""Commands that read files: ls, cat, stat."""

from __future__ import annotations

import functools
import stat as modes
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from winkformats.errors import FormatError
from winkfs.cli._common import (
    AS_OF,
    BASE,
    JSON,
    PIECE,
    Failures,
    as_path,
    emit,
    expand,
    glob_matcher,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
    shown,
    stat_record,
    time_value,
)
from winkfs.names import is_glob, literal_prefix, to_str

if TYPE_CHECKING:
    from winkfs.container.entry import Stat
    from winkfs.reader import Reader


@click.command()
@BASE
@click.argument("glob", required=False)
@click.option("-l", "long", is_flag=True, help="Show mode, owner, size and time, like ls -l.")
@click.option("--since", type=time_value, metavar="T", help="Only files with mtime T or later.")
@click.option("--until", type=time_value, metavar="T", help="Only files with an mtime before T.")
@AS_OF
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def ls(
    base: str,
    glob: str | None,
    long: bool,
    since: float | None,
    until: float | None,
    as_of: str | None,
    as_json: bool,
) -> int:
    """List the files of a container or a data set, in disk order.

    GLOB selects matching names; * matches / too, so 'docs/*' lists everything below docs, as docs/
    does. An existing name is taken literally. T is in seconds since the epoch or ISO 8601
    (2026-11-21, or 2026-11-21T08:30Z; local time without a zone). Damaged entries are reported and
    skipped; the exit status is then 1.
    """
    failures = Failures(base)
    with opened(base, as_of=as_of) as container:
        write = _writer(container, long, as_json, failures)
        found = False
        for stat in _chosen(container, glob, since, until, failures):
            found = True
            write(stat)
        timed = since is not None or until is not None
        if glob is not None and not (found or timed or is_directory(container, as_path(glob))):
            what = "no name matches" if is_glob(glob) else missing(container)
            failures.add(glob, what)
    return failures.status


def _chosen(
    container: Reader,
    glob: str | None,
    since: float | None,
    until: float | None,
    failures: Failures,
) -> Iterator[Stat]:
    problem = failures.damage
    if glob is None:
        yield from container.scan(since, until, problem=problem)
    elif (name := _itself(container, glob)) is not None:
        stat = container.stat(name)
        if (since is None or stat.mtime >= since) and (until is None or stat.mtime < until):
            yield stat
    elif not is_glob(glob):  # a directory: what is below
        path = as_path(glob)
        below = path + b"/" if path else b""
        yield from container.scan(since, until, below, problem=problem)
    else:
        match = glob_matcher(glob)
        prefix = literal_prefix(glob_text(glob))
        for entry in container.scan(since, until, prefix, problem=problem):
            if match(entry.name):
                yield entry


def _itself(container: Reader, argument: str) -> bytes | None:
    """The name of one file that is meant, None for a glob, and for what is below a directory."""
    if name_bytes(argument) in container:
        return name_bytes(argument)
    path = as_path(argument)
    if not path or argument.endswith("/") or is_glob(argument) or path not in container:
        return None
    return path


def _writer(
    container: Reader, long: bool, as_json: bool, failures: Failures
) -> Callable[[Stat], object]:
    from winkfs.container.ondisk.inode import FileType

    out = sys.stdout.buffer

    def target(stat: Stat) -> str | None:
        if stat.ftype != FileType.LINK:
            return None
        try:
            return container.readlink(stat.name)
        except FormatError as error:
            failures.add(stat.name, str(error))
            return None

    def write_json(stat: Stat) -> None:
        link = target(stat)
        emit(stat_record(stat) | ({} if link is None else {"target": link}))

    def write_long(stat: Stat) -> None:
        link = target(stat)
        arrow = b"" if link is None else b" -> " + shown(link)
        out.write(_long(stat).encode() + shown(stat.name) + arrow + b"\n")

    def write_name(stat: Stat) -> None:
        out.write(shown(stat.name) + b"\n")

    if as_json:
        return write_json
    return write_long if long else write_name


def _long(stat: Stat) -> str:
    """The line of ls -l up to the name; one link each, for a container has no hard links."""
    mode = modes.filemode(_kind(stat.ftype) | stat.mode)
    seconds = stat.mtime_ns // 1_000_000_000
    try:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a year the C library does not know
        when = str(seconds)
    return f"{mode} 1 {_user(stat.uid):8} {_group(stat.gid):8} {stat.size:12} {when} "


def _kind(ftype: int) -> int:
    from winkfs.container.ondisk.inode import FileType

    kinds: dict[int, int] = {FileType.DIR: modes.S_IFDIR, FileType.LINK: modes.S_IFLNK}
    return kinds.get(ftype, modes.S_IFREG)


@functools.cache
def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


@functools.cache
def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)


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
            for name in expand(container, (argument,), failures):
                try:
                    if not _write(container, name) and not is_glob(argument):
                        failures.add(to_str(name), "is a directory")
                except FormatError as error:
                    failures.add(to_str(name), str(error))
    return failures.status


def _write(container: Reader, name: bytes) -> bool:
    """-> False for a directory."""
    from winkfs.container.ondisk.inode import FileType

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
