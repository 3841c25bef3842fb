"""The command pack."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import winkfs
from winkfs.cli._common import (
    BASE,
    COMPRESS,
    EXCLUDE,
    INCLUDE,
    MAX_RATIO,
    NO_SUMMARY,
    STDIN,
    Progress,
    bad_records,
    emit,
    glob_text,
    names_from,
    shown,
    summary,
    warn,
)
from winkfs.names import DATA, PARTIAL, base_of, to_str
from winkfs.registry import kind_of
from winkfs.units import CLAMPED

if TYPE_CHECKING:
    from winkfs.archive.items import Note
    from winkfs.archive.packer import PackReport

COUNTS: Final = ("files", "directories", "links", "bytes")  # of a report


@click.command()
@click.argument("source", metavar="DIR|ARCHIVE")
@BASE
@click.option("--ao", is_flag=True, help="Make an append-only container, sorted by mtime.")
@click.option(
    "--classic", is_flag=True,
    help="Use only the original format: MD5, whole seconds, no owners, modes 0644 and 0755.",
)  # fmt: skip
@click.option("--update", is_flag=True, help="Store only new and changed files, if BASE exists.")
@click.option(
    "--checksum", is_flag=True,
    help="With --update: compare the contents of all files of equal size.",
)  # fmt: skip
@EXCLUDE
@INCLUDE
@click.option(
    "--files-from", metavar="FILE",
    help="Pack only the names listed in FILE (- for standard input), relative to DIR, one per line "
    "or terminated by NUL; for a directory only its own entry.",
)  # fmt: skip
@click.option("-0", "--null", is_flag=True, help="The names of --files-from are ended by NUL.")
@click.option(
    "--shards", type=click.IntRange(1), metavar="N",
    help="Make a data set: a folder BASE of N containers, written by parallel processes.",
)  # fmt: skip
@click.option(
    "--xattrs", is_flag=True,
    help="Store all extended attributes you may read, not only user.*.",
)  # fmt: skip
@click.option(
    "--ignore-zeros", is_flag=True,
    help="Read a tar file beyond its end marker, as of concatenated archives, like tar -i.",
)  # fmt: skip
@MAX_RATIO
@click.option(
    "--bad-list", metavar="FILE", type=click.Path(dir_okay=False),
    help="Write what was not stored unchanged to FILE, one JSON object per line.",
)  # fmt: skip
@COMPRESS
@click.option("-n", "--dry-run", is_flag=True, help="Store nothing; print what would be stored.")
@click.option("-v", "--verbose", is_flag=True, help="Print the name of each file that is stored.")
@NO_SUMMARY
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")
def pack(
    source: str,
    base: str,
    ao: bool,
    classic: bool,
    update: bool,
    checksum: bool,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    files_from: str | None,
    null: bool,
    shards: int | None,
    xattrs: bool,
    ignore_zeros: bool,
    max_ratio: int,
    bad_list: str | None,
    compress: str | None,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Pack a directory or an archive into a container, or into a data set.

    Names are relative to DIR. Stored are contents, holes of files of 64 KiB or more, mtimes, modes,
    owners, extended attributes (user.*), symbolic links and directories; each hard link becomes a
    separate file. ARCHIVE is a tar file, maybe compressed (gzip, bzip2, xz, zstd), a zip file, a
    SquashFS image or an SQLite archive; - is standard input, for tar files.

    Devices, sockets and fifos are listed and skipped; the exit status is still 0. Files that cannot
    be read, that change while they are read, or that cannot be stored unchanged are listed too, and
    the exit status is 1; all others are packed. The same holds for members of an archive that are
    damaged; of a truncated tar file, all complete members are packed. The files of BASE itself are
    skipped. Times outside the years 1677 to 2262 become the nearest time inside.

    A new container is written as BASE.partial and renamed when it is complete. If the pack of a
    directory is stopped after the first GiB, the same command goes on from there; with other
    options, --ao, --classic, --files-from or --shards it begins anew. With --update the
    container is changed in place; an append-only one accepts no file older than its last. A data
    set gets all files in one commit; with --update in new shards.

    --update skips files of equal type, size and mtime whose ctime is older than the start of the
    last pack of DIR, and compares the contents of all others. If only mtime, mode, owner or
    attributes changed, no content is stored again. An ARCHIVE has no ctimes: to detect a change
    that keeps size and mtime, use --checksum. Files removed from DIR stay in BASE: see `rm`.
    """
    if null and files_from is None:
        raise click.UsageError("--null goes with --files-from")
    if checksum and not update:
        raise click.UsageError("--checksum goes with --update")
    if source == STDIN and files_from == STDIN:
        raise click.UsageError("standard input cannot be both the tar file and the list")
    if classic and (shards is not None or kind_of(base)[0].versions):
        raise click.UsageError("--classic goes with a single container")
    began = time.monotonic()
    noted_files: dict[str, list[dict[str, str]]] = {"left_out": [], "failed": [], "clamped": []}
    whole = source == STDIN or Path(source).is_file()  # an archive, which messages name
    where = "standard input" if source == STDIN else source
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(
            Progress("packing", "files", quiet=quiet, where=where if whole else "")
        )
        bad = stack.enter_context(bad_records(bad_list))

        def note(noted: Note) -> None:
            bar.note(noted)
            kind = "failed" if noted.failed else "clamped" if noted.what == CLAMPED else "left_out"
            reason = {"name": to_str(noted.name), "reason": noted.what}
            if as_json:
                noted_files[kind].append(reason)
            if noted.failed:
                bad({"where": where} | reason)

        def stored(name: bytes) -> None:
            sys.stdout.buffer.write(shown(to_str(name)) + b"\n")

        names = names_from(files_from, stack, null=null)
        listed = stored if (verbose or dry_run) and not as_json else None
        stack.push(_left_for_later(base))
        report = winkfs.pack(
            source, base, shards=shards, ao=ao, classic=classic, update=update, checksum=checksum,
            xattrs=xattrs, exclude=list(map(glob_text, exclude)),
            include=list(map(glob_text, include)), names=names, note=note, progress=bar,
            stored=listed, dry_run=dry_run, compress=compress, ignore_zeros=ignore_zeros,
            max_ratio=max_ratio,
        )  # fmt: skip
    if report.failed:
        one = report.failed == 1
        what = "1 file is" if one else f"{report.failed:,} files are"
        more = "" if bad_list else f": --bad-list FILE lists {'it' if one else 'them'}"
        warn(f"{where}: {what} not packed, or not as {'it was' if one else 'they were'}{more}")
    if report.resumed and not quiet:
        warn(f"{base}: went on with what an earlier run had stored")
    if sys.stderr.isatty() and not quiet and not dry_run:
        warn(_summary(report, time.monotonic() - began))
    if as_json:
        counts = {name: getattr(report, name) for name in (*COUNTS, "updated", "unchanged")}
        emit({"base": base, **counts, **noted_files})
    return 1 if report.failed else 0


def _left_for_later(base: str) -> Callable[..., None]:
    """Return the exit of a `with` block that reports what a signal has left of a pack."""

    def leave(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            left = base_of(base) + PARTIAL
            if os.path.exists(left + DATA):
                warn(f"{left}: what is stored until now: the same command goes on with it")

    return leave


def _summary(report: PackReport, seconds: float) -> str:
    """Return a line on what was packed, for people."""
    return summary(
        [
            (report.files, "file", "files"), (report.directories, "directory", "directories"),
            (report.links, "link", "links"), (report.updated, "updated", "updated"),
            (report.unchanged, "unchanged", "unchanged"),
        ],
        report.bytes, seconds,
    )  # fmt: skip
