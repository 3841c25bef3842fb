"""Commands that take files out of a store: unpack, get."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import (
    AS_OF,
    BASE,
    EXCLUDE,
    MAX_RATIO,
    NO_SUMMARY,
    Progress,
    complete_folder,
    complete_name,
    emit,
    files_in,
    glob_text,
    printable,
    store_names,
    summary,
    warn,
)
from winkfs.names import to_str

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from winkfs.archive.items import Note, UnpackReport

STDOUT: Final = "-"
COUNTS: Final = ("files", "directories", "links", "bytes", "unchanged", "kept", "failed")
SAME_PERMISSIONS = click.option(
    "-p", "--same-permissions", is_flag=True,
    help="Trust BASE: restore set-id and sticky bits, all extended attributes, and links to places "
    "outside the directory.",
)  # fmt: skip
NO_SAME_OWNER = click.option(
    "--no-same-owner", is_flag=True, help="Do not restore owners, even as root."
)
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Print the path of each file.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the counts.")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete DIR, and behind it, or where there is none, names."""
    named = any(ctx.params.get(name) for name in ("operands", "tar", "zip_", "to_stdout"))
    complete = complete_name if named else complete_folder
    return complete(ctx, param, incomplete)


@click.command()
@BASE
@click.argument("operands", metavar="[DIR] [GLOB]...", nargs=-1, shell_complete=_complete)
@click.option(
    "--tar", "tar", metavar="FILE", help="Write a tar file instead of DIR; -: standard output."
)
@click.option(
    "--zip", "zip_", metavar="FILE", help="Write a zip file instead of DIR; -: standard output."
)
@click.option(
    "-O", "--to-stdout", is_flag=True,
    help="Write the contents to standard output instead of DIR.",
)  # fmt: skip
@EXCLUDE
@click.option(
    "--files-from", metavar="FILE",
    help="Unpack only the names listed in FILE (- for standard input), one per line or terminated "
    "by NUL; for a directory only its own entry.",
)  # fmt: skip
@click.option(
    "--strip-components", type=click.IntRange(0), default=0, metavar="N",
    help="Remove the first N parts of each name; leave out shorter ones.",
)  # fmt: skip
@click.option(
    "--transform", multiple=True, metavar="EXPRESSION",
    help="Rename files by an expression of sed, s/WHAT/BY/ with flags g, i, x or a number, like "
    "tar; not the targets of links.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that exist, and FILE.")
@click.option("--skip-existing", is_flag=True, help="Keep all files that exist.")
@click.option(
    "--keep-newer", is_flag=True,
    help="Keep files that exist unless the file of BASE is newer, which replaces them.",
)  # fmt: skip
@SAME_PERMISSIONS
@NO_SAME_OWNER
@AS_OF
@MAX_RATIO
@click.option(
    "-n", "--dry-run", is_flag=True, help="Print the paths that would be written; write nothing."
)
@VERBOSE
@NO_SUMMARY
@JSON
def unpack(
    base: str,
    operands: tuple[str, ...],
    tar: str | None,
    zip_: str | None,
    to_stdout: bool,
    exclude: tuple[str, ...],
    files_from: str | None,
    strip_components: int,
    transform: tuple[str, ...],
    force: bool,
    skip_existing: bool,
    keep_newer: bool,
    same_permissions: bool,
    no_same_owner: bool,
    as_of: str | None,
    max_ratio: int,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Unpack a container or a data set into a directory, a tar or a zip file.

    DIR is created if it does not exist; with --tar, --zip and -O there is none. A GLOB selects
    matching names, several select those of any; * matches / too, so 'docs/*' selects everything
    below docs; docs itself also gets its mode and mtime. Modes and mtimes are restored, and for
    root the owners.

    Nothing is written outside DIR: names with empty, . or .. components become the paths that a
    mount shows, and links on the way are not followed. Links to an absolute path, links with more
    .. than they are deep in DIR, and links with .. after another component are skipped, and set-id
    and sticky bits are cleared, unless you give --same-permissions: do so only if you trust the
    author of BASE.

    Each file appears when it is whole, so the same command again finishes what was stopped: a file
    of the same size and mtime is there already. Any other file that exists is kept and reported,
    unless you give --force. The exit status is 1 if a file or link was not unpacked.

    A tar file has all that pack keeps. A zip file has names, modes, mtimes and links; the rest is
    reported with a count. Damaged files are left out, and the archive is whole.
    """
    if sum((tar is not None, zip_ is not None, to_stdout)) > 1:
        raise click.UsageError("give one of --tar, --zip and --to-stdout")
    if sum((force, skip_existing, keep_newer)) > 1:
        raise click.UsageError("give one of --force, --skip-existing and --keep-newer")
    archive = tar is not None or zip_ is not None or to_stdout
    if not archive and not operands:
        raise click.UsageError("Missing argument 'DIR'")
    directory, globs = (None, operands) if archive else (operands[0], operands[1:])
    if directory == STDOUT:
        raise click.UsageError(
            "a directory is not -: --tar - and --zip - write to standard output (./- is a "
            "directory of that name)"
        )
    if globs and files_from is not None:
        raise click.UsageError("give globs or --files-from")
    piped = to_stdout or STDOUT in (tar, zip_)
    if piped and not dry_run:
        _check_pipe(as_json, contents=to_stdout)

    from winkfs.archive.unpack import unpack as run
    from winkfs.archive.unpacker import Existing

    places = {"directory": directory, "tar": tar, "zip": zip_}
    existing = Existing.SKIP if skip_existing else Existing.NEWER if keep_newer else Existing.EQUAL
    with contextlib.ExitStack() as stack:
        names = store_names(files_from, stack)
        return _run(
            run, base, directory, [glob_text(glob) for glob in globs],
            {"base": base} | {name: path for name, path in places.items() if path is not None},
            tar=tar, zip=zip_, contents=sys.stdout.buffer if to_stdout else None,
            exclude=[glob_text(pattern) for pattern in exclude],
            names=names,
            strip=strip_components, transforms=[glob_text(text) for text in transform],
            force=force, existing=existing, dry_run=dry_run, same_permissions=same_permissions,
            same_owner=not no_same_owner, as_of=as_of, max_ratio=max_ratio,
            options=(verbose or dry_run, quiet, as_json, piped and not dry_run),
        )  # fmt: skip


@click.command()
@BASE
@click.argument(
    "operands", metavar="NAME... [PATH]", nargs=-1, required=True, shell_complete=complete_name
)
@click.option(
    "--force", is_flag=True, help="Replace the file PATH even if it is also a name in BASE."
)
@SAME_PERMISSIONS
@NO_SAME_OWNER
@AS_OF
@MAX_RATIO
@VERBOSE
@NO_SUMMARY
@JSON
def get(
    base: str,
    operands: tuple[str, ...],
    force: bool,
    same_permissions: bool,
    no_same_owner: bool,
    as_of: str | None,
    max_ratio: int,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Copy files and directories out of a container or a data set, without the directories above.

    Of two or more operands the last is PATH; of one, PATH is the current directory. PATH is a
    directory if it is one, ends with /, or there are several names; else it is the name of the
    file. - is standard output. A directory brings everything below it. A NAME may be a glob: *
    matches / too, and 'docs/*' brings all that is below docs with its directories.

    Mode and mtime are kept, and for root the owner. A file that exists is replaced when the new one
    is whole. Links and set-id bits are treated as by unpack.
    """
    names, path = (operands[:-1], operands[-1]) if len(operands) > 1 else (operands, ".")
    piped = path == STDOUT
    if piped:
        _check_pipe(as_json, contents=True)

    from winkfs.archive.unpack import get as run

    return _run(
        run, base, [glob_text(name) for name in names], path, {"base": base, "path": path},
        force=force, contents=sys.stdout.buffer if piped else None,
        same_permissions=same_permissions, same_owner=not no_same_owner, as_of=as_of,
        max_ratio=max_ratio, options=(verbose, quiet, as_json, piped),
    )  # fmt: skip


def _check_pipe(as_json: bool, *, contents: bool) -> None:
    """Refuse what would not be alone on standard output."""
    if as_json:
        raise click.UsageError("--json and the files cannot both go to standard output")
    if not contents and sys.stdout.isatty():
        raise click.UsageError(
            "an archive is not written to a terminal: name a file, or use a pipe"
        )


def _run(
    run: Callable[..., UnpackReport],
    base: str,
    first: Any,
    second: Any,
    record: dict[str, Any],
    *,
    options: tuple[bool, bool, bool, bool],
    **given: Any,
) -> int:
    """Call `unpack` or `get`, print what is to be printed -> exit status.

    options  verbose, quiet, as_json; whether standard output gets the files
    """
    verbose, quiet, as_json, piped = options
    problems: list[dict[str, str]] = []
    began = time.monotonic()

    def listed(path: bytes) -> None:
        if piped or as_json:
            print(printable(to_str(path)), file=sys.stderr)
        else:
            line = printable(to_str(path)).encode() if sys.stdout.isatty() else path
            sys.stdout.buffer.write(line + b"\n")

    some = second or any(given.get(name) for name in ("exclude", "names", "as_of"))
    total = None if quiet or some else files_in(base)
    with Progress("unpacking", "files", total, quiet=quiet) as bar:

        def note(noted: Note) -> None:
            bar.note(noted)
            if as_json and noted.failed:
                problems.append({"name": to_str(noted.name), "reason": noted.what})

        report = run(
            base, first, second, note=note, progress=bar, listed=listed if verbose else None,
            **given,
        )  # fmt: skip
    if sys.stderr.isatty() and not quiet:
        warn(_summary(report, time.monotonic() - began))
    if as_json:
        emit(record | {name: getattr(report, name) for name in COUNTS} | {"problems": problems})
    return 1 if report.failed else 0


def _summary(report: UnpackReport, seconds: float) -> str:
    """Return a line on what was unpacked, for people."""
    return summary(
        [
            (report.files, "file", "files"), (report.directories, "directory", "directories"),
            (report.links, "link", "links"), (report.unchanged, "unchanged", "unchanged"),
            (report.kept, "kept", "kept"), (report.failed, "failed", "failed"),
        ],
        report.bytes, seconds,
    )  # fmt: skip
