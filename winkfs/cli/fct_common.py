"""What the `fct` commands share: opening a file of any format, arguments, one-line errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winkfs.container.basepath import FILES

if TYPE_CHECKING:  # the commands import what they need when they run: --help has to be quick
    from winkformats.disk.storage import Storage
    from winkformats.hindex.hindex import KeyOf

FILE = click.argument("file", type=click.Path(dir_okay=False))


def integer(text: str) -> int:
    """A whole number, decimal or with 0x, as an argument or option."""
    try:
        return int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a whole number") from None


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """What formats and disk refuse becomes one line and exit 1."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except BrokenPipeError:
            raise  # click ends quietly: `fct list | head`
        except OSError as error:
            what = error.strerror or str(error)
            text = f"{error.filename}: {what}" if error.filename else what
            raise click.ClickException(text) from None
        except ValueError as error:  # FormatError is one
            raise click.ClickException(str(error)) from None

    return wrapped


@contextlib.contextmanager
def opened(file: str, *, writable: bool = False) -> Iterator[Storage]:
    """The file; who writes a container's file holds the container's lock meanwhile."""
    from winkformats.disk.paths import open_file
    from winkformats.kv.superblock import read_superblock
    from winkfs.container.ondisk.lock import WriterLock

    with contextlib.ExitStack() as stack:
        path = Path(file)
        if writable and path.suffix in FILES:
            with open_file(file) as storage:
                belongs = read_superblock(storage).purpose.startswith("FSYS")
            if belongs:  # the lock comes before the file is opened: a writer may replace it
                stack.callback(WriterLock(str(path.with_suffix(""))).release)
        yield stack.enter_context(open_file(file, "w" if writable else "r"))


@contextlib.contextmanager
def container_in(
    file: str, *, writable: bool = False, data: str | None = None, key: bytes = b""
) -> Iterator[tuple[str, Any]]:
    """(name of the format, the KVSeq, HIndex or Perm in a file); closed at the end.

    data    the kvseq whose keys an hindex compares; without it the stored hash decides
    key     the key that is looked for
    """
    from winkformats.errors import FormatError
    from winkformats.kv.superblock import FORMAT_NAMES, read_superblock

    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(opened(file, writable=writable))
        block = read_superblock(storage)
        if block["FORMAT"] not in FORMAT_NAMES:
            raise FormatError(f"{file}: FORMAT {block['FORMAT']:#x} is not known")
        form = FORMAT_NAMES[block["FORMAT"]]
        more = {}
        if form == "hindex":
            trusted = stored_hash(file, block.get("CELLSZ", 1), key)
            more = {"key_of": stack.enter_context(keys_in(data)) if data else trusted}
        container = format_class(form).open(storage, writable, **more)
        if getattr(container, "truncated", False):
            click.echo(f"{file}: cut short; this is what is left", err=True)
        yield form, container
        container.close()


def stored_hash(file: str, cellsz: int, key: bytes) -> KeyOf:
    """Keys for an hindex without its kvseq: the stored hash has agreed already, if there is one."""

    def key_of(pointer: int) -> bytes:
        if cellsz < 2:
            raise ValueError(
                f"{file}: its cells hold no hash (CELLSZ 1): name the kvseq with --data"
            )
        return key

    return key_of


@contextlib.contextmanager
def keys_in(data: str) -> Iterator[KeyOf]:
    """kv_pointer -> key of a kvseq file."""
    from winkformats.disk.paths import open_file
    from winkformats.kv.sequence import KVSeq

    with open_file(data) as storage:
        container = KVSeq.open(storage)
        yield lambda pointer: container.get(pointer).key


def format_class(form: str) -> Any:
    """-> KVSeq, HIndex or Perm."""
    if form == "kvseq":
        from winkformats.kv.sequence import KVSeq

        return KVSeq
    if form == "hindex":
        from winkformats.hindex.hindex import HIndex

        return HIndex
    from winkformats.perm import Perm

    return Perm


def parse_variable(name: str, value: str) -> tuple[str, int]:
    """NAME and a number or text -> a superblock variable. Raises BadParameter."""
    from winkformats.kv.superblock import text_value

    if not (name.isascii() and name.isprintable() and " " not in name and 1 <= len(name) <= 8):
        raise click.BadParameter(f"variable name {name!r} must be 1 to 8 characters of ASCII")
    try:
        number = int(value, 0) if name != "PURPOSE" else text_value(value)
    except ValueError:
        try:
            number = text_value(value)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is neither a whole number nor up to 8 characters of ASCII"
            ) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise click.BadParameter(f"{value} does not fit into 64 bits")
    return name, number
