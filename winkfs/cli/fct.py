"""`winkfs fct`: look into and change a single kvseq, hindex or perm file."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli import fct_entries
from winkfs.cli.fct_common import (
    FILE,
    format_class,
    integer,
    one_line_errors,
    opened,
    parse_variable,
)

if TYPE_CHECKING:
    from winkformats.kv.superblock import Superblock

OPTIONS_OF: Final = {
    "kvseq": {"keyrepr", "valrepr", "kvdelfl", "align", "kvcksum", "contid", "htalgo"},
    "hindex": {"htsize", "htalgo", "cellsz", "htfree", "htdel"},
    "perm": {"htsize", "htalgo"},
}
CLASSIC: Final = {
    "kvseq": {"kvcksum": 0},
    "hindex": {"htalgo": 1, "cellsz": 1, "sbcksum": False},
    "perm": {"htalgo": 1, "sbcksum": False},
}
FIXED: Final = ("SBSIZE", "FORMAT")  # no --set: the file would be another one


@click.group()
def fct() -> None:
    """Single files: superblock, entries, cells and pairs of kvseq, hindex and perm."""


for command in (fct_entries.add, fct_entries.list_, fct_entries.get, fct_entries.group):
    fct.add_command(command)


# --- superblock ---


@fct.command()
@FILE
@click.option(
    "--set",
    "changes",
    nargs=2,
    multiple=True,
    metavar="VAR VALUE",
    help="Give a variable a value, a number or up to 8 characters; several times if wanted.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@one_line_errors
def superblock(file: str, changes: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Print every variable of FILE's superblock.

    --set changes variables first; SBCKSUM stays right. Nothing else in the file is touched and
    nothing checks that the values make sense for it.
    """
    from winkformats.kv.superblock import read_superblock, write_first, write_second

    values = dict(parse_variable(name, value) for name, value in changes)
    for name in values.keys() & set(FIXED):
        raise click.BadParameter(f"{name} is fixed when a file is created")
    with opened(file, writable=bool(changes)) as storage:
        block = read_superblock(storage)
        if values:
            block.update(values)
            write_first(storage, block)
            storage.sync()
            write_second(storage, block)
    if as_json:
        click.echo(json.dumps({**block, "PURPOSE": block.purpose}))
        return
    for name, value in block.items():
        click.echo(f"{name:8}  {value:>20}  {meaning(block, name)}".rstrip())


def meaning(block: Superblock, name: str) -> str:
    """What a number says to a person, '' where it speaks for itself."""
    from winkformats.kv.superblock import FORMAT_NAMES, INCOMPAT_BITS, value_text

    value = block[name]
    if name == "FORMAT":
        return FORMAT_NAMES.get(value, "unknown")
    if name == "INCOMPAT":
        return ", ".join(text for bit, text in INCOMPAT_BITS.items() if value & bit)
    if name == "SYNCTIME":
        from datetime import UTC, datetime

        with contextlib.suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return ""
    text = value_text(value)
    is_text = text.isascii() and text.isprintable() and text and name not in ("SBCKSUM", "CONTID")
    return f'"{text}"' if is_text and value >> 56 > 0 else ""


# --- create ---


@fct.command()
@FILE
@click.option("--format", "form", type=click.Choice(list(OPTIONS_OF)), required=True)
@click.option("--purpose", default="", help="Up to 8 characters.")
@click.option("--sbsize", type=integer, default="4096", help="Bytes of the superblock.")
@click.option("--keyrepr", type=integer, help="kvseq: representation of keys, 0 to 514.")
@click.option("--valrepr", type=integer, help="kvseq: representation of values, 0 to 514.")
@click.option("--kvdelfl", type=click.IntRange(0, 1), help="kvseq: 1 for entries with a delflag.")
@click.option("--align", type=integer, help="kvseq: entries start at multiples of this.")
@click.option("--kvcksum", type=click.IntRange(0, 1), help="kvseq: 1 for entries with a checksum.")
@click.option("--contid", type=integer, help="kvseq: identity that checksums are bound to.")
@click.option("--htsize", type=integer, help="hindex: number of cells; perm: range of hashes.")
@click.option("--htalgo", type=integer, help="Hash algorithm: 1 MD5, 2 XXH3, 3 Murmur3.")
@click.option("--cellsz", type=integer, help="hindex: words of a cell.")
@click.option("--htfree", type=integer, help="hindex: pointer that marks free cells.")
@click.option("--htdel", type=integer, help="hindex: pointer that marks deleted cells.")
@click.option("--classic", is_flag=True, help="Only variables of the original formats.")
@click.option(
    "--var",
    "variables",
    nargs=2,
    multiple=True,
    metavar="VAR VALUE",
    help="A further variable of the superblock.",
)
@one_line_errors
def create(
    file: str,
    form: str,
    purpose: str,
    sbsize: int,
    classic: bool,
    variables: tuple[tuple[str, str], ...],
    **shape: int | None,
) -> None:
    """Create an empty FILE; a file that exists is left alone."""
    from winkformats.disk.paths import locate

    given = {name: value for name, value in shape.items() if value is not None}
    for name in given.keys() - OPTIONS_OF[form]:
        raise click.UsageError(f"--{name} does not go with --format {form}")
    options: dict[str, Any] = {**(CLASSIC[form] if classic else {}), **given}
    options["extra"] = dict(parse_variable(name, value) for name, value in variables)
    if form == "hindex":
        options.setdefault("htsize", 65)  # it grows
    directory, name = locate(file)
    with directory.create_new(name) as storage:
        try:
            format_class(form).create(storage, purpose=purpose, sbsize=sbsize, **options).close()
            directory.sync()
        except BaseException:
            directory.unlink(name)
            raise
