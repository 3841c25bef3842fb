"""`winkfs fct`: inspect and change a single kvseq, hindex or perm file, or a segment of a message
store."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from itertools import starmap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from winkformats.disk.paths import locate, open_file
from winkformats.errors import FormatError
from winkfs.cli._common import Group, answer, printable
from winkfs.container.ondisk.lock import WriterLock
from winkfs.names import FILES, to_str
from winkfs.units import time_text

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkformats.extsort import Pair
    from winkformats.hindex.hindex import Cell, KeyOf
    from winkformats.kv.sequence import KVSeq
    from winkformats.kv.superblock import Superblock
    from winkformats.messagestore.segment import SegmentScan
    from winkformats.perm import Compare

FILE = click.argument("file", type=click.Path(dir_okay=False))
SHOWN: Final = 60  # characters of a key or value in a listing for people
Row = dict[str, Any]
DATA = click.option(
    "--data",
    metavar="KVSEQ",
    type=click.Path(dir_okay=False),
    help="The kvseq that the pointers refer to: compares keys instead of stored hashes.",
)
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
CLASSES: Final = {
    "kvseq": "kv.sequence:KVSeq", "hindex": "hindex.hindex:HIndex", "perm": "perm:Perm",
}  # fmt: skip
FIXED: Final = ("SBSIZE", "FORMAT")  # no --set: the file would be another one


@click.group(cls=Group)
def fct() -> None:
    """Inspect or change a single file: superblock, entries, cells and pairs."""


def integer(text: str) -> int:
    """Parse a whole number, decimal or with 0x, of an argument or option."""
    try:
        return int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a whole number") from None


@contextlib.contextmanager
def opened(file: str, *, writable: bool = False) -> Iterator[tuple[Storage, Superblock]]:
    """Open a file -> it, and its superblock. A file of a container is opened for changes under the
    container's lock."""
    from winkformats.kv.superblock import read_superblock

    with contextlib.ExitStack() as stack:
        path = Path(file)
        if writable and path.suffix in FILES:
            with open_file(file) as storage:
                belongs = read_superblock(storage).purpose.startswith("FSYS")
            if belongs:  # the lock comes before the file is opened: a writer may replace it
                stack.callback(WriterLock(str(path.with_suffix(""))).release)
        storage = stack.enter_context(open_file(file, "w" if writable else "r"))
        yield storage, read_superblock(storage)


@contextlib.contextmanager
def container_in(
    file: str, *, writable: bool = False, data: str | None = None, key: bytes = b""
) -> Iterator[tuple[str, Any]]:
    """Open the KVSeq, HIndex or Perm in a file -> (name of the format, it).

    data    the kvseq whose keys an hindex compares; without it the stored hash decides
    key     the key to look up
    """
    from winkformats.kv.superblock import FORMAT_NAMES

    with contextlib.ExitStack() as stack:
        storage, block = stack.enter_context(opened(file, writable=writable))
        if block["FORMAT"] not in FORMAT_NAMES:
            raise FormatError(f"{file}: FORMAT {block['FORMAT']:#x} is not known")
        form = FORMAT_NAMES[block["FORMAT"]]
        more = {}
        if form == "hindex":
            trusted = stored_hash(file, block.get("CELLSZ", 1), key)
            more = {"key_of": stack.enter_context(keys_in(data)) if data else trusted}
        container = format_class(form).open(storage, writable, **more)
        if getattr(container, "truncated", False):
            click.echo(f"{file}: truncated; this is what is left", err=True)
        yield form, container
        container.close()


def stored_hash(file: str, cellsz: int, key: bytes) -> KeyOf:
    """Return the keys for an hindex without its kvseq, whose stored hash has matched already."""

    def key_of(pointer: int) -> bytes:
        if cellsz < 2:
            raise ValueError(
                f"{file}: its cells hold no hash (CELLSZ 1): name the kvseq with --data"
            )
        return key

    return key_of


@contextlib.contextmanager
def keys_in(data: str) -> Iterator[KeyOf]:
    """Open a kvseq -> a function from kv_pointer to key."""
    with open_file(data) as storage:
        container = format_class("kvseq").open(storage)
        yield lambda pointer: container.get(pointer).key


def format_class(form: str) -> Any:
    """Return the class KVSeq, HIndex or Perm."""
    return pkgutil.resolve_name(f"winkformats.{CLASSES[form]}")


def parse_variable(name: str, value: str) -> tuple[str, int]:
    """Return a superblock variable from NAME and a number or text. Raises BadParameter."""
    from winkformats.kv.superblock import TEXTS, text_value

    if not (name.isascii() and name.isprintable() and " " not in name and 1 <= len(name) <= 8):
        raise click.BadParameter(f"variable name {name!r} must be 1 to 8 characters of ASCII")
    try:
        number = text_value(value) if name in TEXTS else int(value, 0)
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


@fct.command(context_settings={"ignore_unknown_options": True})  # negative numbers are values
@FILE
@click.argument("key")
@click.argument("value")
@click.option("--word", "words", type=integer, multiple=True, help="hindex: another word.")
@DATA
def add(file: str, key: str, value: str, words: tuple[int, ...], data: str | None) -> None:
    """Add an entry and print its place.

    \b
    kvseq   KEY VALUE       (VALUE - reads standard input)   prints its position
    hindex  KEY POINTER     (an existing KEY is replaced)    prints its slot
    perm    POINTER HASH                                     prints its index
    """
    name = os.fsencode(key)
    with container_in(file, writable=True, data=data, key=name) as (form, container):
        if words and form != "hindex":
            raise click.UsageError(f"--word does not go with a {form} file")
        if form == "kvseq":
            body = sys.stdin.buffer.read() if value == "-" else os.fsencode(value)
            place = container.append(name, body)
        elif form == "hindex":
            place = container.insert(name, integer(value), words)
        else:
            place = container.append(integer(key), integer(value))
    click.echo(place)


@fct.command("list")
@FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_(file: str, as_json: bool) -> None:
    """List the entries, used cells or pairs of a file.

    \b
    kvseq   position, size, - or D (deleted), key, length of the value, value
    hindex  slot, pointer, stored hash, further words
    perm    index, pointer, hash
    """
    with container_in(file) as (form, container):
        for row in rows_of(form, container):
            click.echo(json.dumps(row) if as_json else line(row))


def rows_of(form: str, container: Any) -> Iterator[Row]:
    """Yield the entries, cells or pairs of a KVSeq, HIndex or Perm."""
    if form == "hindex":
        yield from starmap(cell_row, container.iterate())
    elif form == "perm":
        yield from starmap(pair_row, enumerate(container.iterate()))
    else:
        for entry in container.iterate():
            yield {
                "pos": entry.pos,
                "size": entry.size,
                "deleted": entry.deleted,
                "key": to_str(entry.key),
                "length": len(entry.value),
                "value": to_str(entry.value),
            }


def cell_row(slot: int, cell: Cell) -> Row:
    row: Row = {"slot": slot, "pointer": cell[0]}
    if len(cell) > 1:
        row["s"] = f"{cell[1]:016x}"
    return row | ({"words": list(cell[2:])} if len(cell) > 2 else {})


def pair_row(index: int, pair: Pair) -> Row:
    return {"index": index, "pointer": pair[0], "hash": pair[1]}


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people: columns, with long values cut and unprintable ones escaped."""
    cells = []
    for name, value in row.items():
        if name == "deleted":
            cells.append("D" if value else "-")
        elif name in ("key", "value"):
            cells.append(short(value))
        elif name == "words":
            cells += map(str, value)
        else:
            cells.append(f"{value:>12}")
    return "  ".join(cells)


def short(value: str) -> str:
    """Return at most SHOWN characters of a value, escaped for a terminal."""
    return printable(value[:SHOWN]) + ("..." if len(value) > SHOWN else "")


@fct.command(context_settings={"ignore_unknown_options": True})
@FILE
@click.argument("which", metavar="KEY|INDEX")
@click.option("--at", is_flag=True, help="KEY is a position in a kvseq or a slot of an hindex.")
@DATA
def get(file: str, which: str, at: bool, data: str | None) -> None:
    """Print one entry.

    \b
    kvseq   KEY        the raw value of the last live entry with that key
    hindex  KEY        slot, pointer, stored hash, further words
    perm    INDEX      index, pointer, hash
    """
    key = os.fsencode(which)
    with container_in(file, data=data, key=key) as (form, container):
        if form == "kvseq":
            value = container.get(integer(which)).value if at else find(container, key)
            click.echo(value, nl=False)
        elif form == "hindex":
            slot = integer(which) if at else container.hash(key)
            if slot is None:
                raise click.ClickException(f"{file}: no key {short(which)}")
            click.echo(line(cell_row(slot, container.get(slot))))
        else:
            index = integer(which)
            click.echo(line(pair_row(index, container.get(index))))


def find(container: KVSeq, key: bytes) -> bytes:
    """Return the value of the last live entry with a key. Cost: reads the whole file."""
    found = None
    for entry in container.iterate():
        if entry.key == key:
            found = found if entry.deleted else entry.value
    if found is None:
        raise ValueError(f"{container.storage.name}: no key {short(to_str(key))}")
    return found


@fct.command()
@FILE
@DATA
@click.option(
    "--memory",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="MiB of memory; more pairs are sorted through a file beside FILE.",
)
def group(file: str, data: str | None, memory: int) -> None:
    """Sort the pairs of a perm by hash.

    With --data, pairs with equal hashes are sorted by key.
    """
    with container_in(file, writable=True) as (form, container), contextlib.ExitStack() as stack:
        if form != "perm":
            raise click.ClickException(f"{file}: only a perm can be grouped, this is a {form}")
        compare = comparison(stack.enter_context(keys_in(data))) if data else None
        container.group(compare, budget=memory << 20)


def comparison(key_at: KeyOf) -> Compare:
    def compare(a: Pair, b: Pair) -> int:
        one, other = key_at(a[0]), key_at(b[0])
        return (one > other) - (one < other)

    return compare


# --- superblock ---


@fct.command()
@FILE
@click.option(
    "--set",
    "changes",
    nargs=2,
    multiple=True,
    metavar="VAR VALUE",
    help="Set a variable to a number or to up to 8 characters; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def superblock(file: str, changes: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Print every variable of FILE's superblock.

    --set changes variables first and updates SBCKSUM. It changes nothing else in the file, and does
    not check that the values make sense.
    """
    from winkformats.kv.superblock import write_first, write_second

    values = dict(parse_variable(name, value) for name, value in changes)
    for name in values.keys() & set(FIXED):
        raise click.BadParameter(f"{name} is fixed when a file is created")
    with opened(file, writable=bool(changes)) as (storage, block):
        if values:
            block.update(values)
            write_first(storage, block)
            storage.sync()
            write_second(storage, block)
    lines = (f"{name:8}  {value:>20}  {meaning(block, name)}" for name, value in block.items())
    answer(block.record(), as_json, *map(str.rstrip, lines))


def meaning(block: Superblock, name: str) -> str:
    """Return the meaning of a variable's number for people, "" if the number is enough."""
    from winkformats.kv.superblock import FORMAT_NAMES, INCOMPAT_BITS, value_text

    value = block[name]
    if name == "FORMAT":
        return FORMAT_NAMES.get(value, "unknown")
    if name == "INCOMPAT":
        return ", ".join(text for bit, text in INCOMPAT_BITS.items() if value & bit)
    if name == "SYNCTIME":
        return time_text(value) or ""
    text = value_text(value)
    is_text = text.isascii() and text.isprintable() and text and name not in ("SBCKSUM", "CONTID")
    return f'"{text}"' if is_text and value >> 56 > 0 else ""


# --- create ---


@fct.command()
@FILE
@click.option("--format", "form", type=click.Choice(list(OPTIONS_OF)), required=True)
@click.option("--purpose", default="", help="Up to 8 characters.")
@click.option("--sbsize", type=integer, default="4096", help="Size of the superblock in bytes.")
@click.option("--keyrepr", type=integer, help="kvseq: representation of keys, 0 to 514.")
@click.option("--valrepr", type=integer, help="kvseq: representation of values, 0 to 514.")
@click.option("--kvdelfl", type=click.IntRange(0, 1), help="kvseq: 1 for entries with a delflag.")
@click.option("--align", type=integer, help="kvseq: entries start at multiples of this.")
@click.option("--kvcksum", type=click.IntRange(0, 1), help="kvseq: 1 for entries with a checksum.")
@click.option("--contid", type=integer, help="kvseq: id that is part of the checksums.")
@click.option("--htsize", type=integer, help="hindex: number of cells; perm: range of hashes.")
@click.option("--htalgo", type=integer, help="Hash algorithm: 1 MD5, 2 XXH3, 3 Murmur3.")
@click.option("--cellsz", type=integer, help="hindex: words per cell.")
@click.option("--htfree", type=integer, help="hindex: pointer that marks free cells.")
@click.option("--htdel", type=integer, help="hindex: pointer that marks deleted cells.")
@click.option("--classic", is_flag=True, help="Use only variables of the original formats.")
@click.option(
    "--var",
    "variables",
    nargs=2,
    multiple=True,
    metavar="VAR VALUE",
    help="Another variable of the superblock.",
)
def create(
    file: str,
    form: str,
    purpose: str,
    sbsize: int,
    classic: bool,
    variables: tuple[tuple[str, str], ...],
    **shape: int | None,
) -> None:
    """Create an empty FILE. An existing file is not changed."""
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


# --- segments of a message store ---


def version_of(file: str) -> ModuleType:
    """Return the module for the version of a segment, by the suffix of its name."""
    from winkformats.messagestore import rdq, sqs

    for version in (rdq, sqs):
        if file.endswith(version.SUFFIX):
            return version
    raise click.ClickException(f"{file}: not a segment of a message store: no .rdq or .sqs")


def found_in(version: ModuleType, storage: Storage) -> SegmentScan:
    """Return the messages of a segment, and of one of version 1 also the bytes between them."""
    from winkformats.messagestore import rdq

    return rdq.survey(storage) if version is rdq else version.scan(storage)


@fct.command()
@FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def scan(file: str, as_json: bool) -> None:
    """List the messages of a message store's segment.

    Columns: id, size of the record, offset. Damage in a segment of version 2 is reported last, and
    the exit status is 1. In one of version 1, bytes that are not a message are reported on standard
    error: they are damage, or remains that the broker left.
    """
    version = version_of(file)
    with open_file(file) as storage:
        found = found_in(version, storage)
    for message in found.messages:
        row = message._asdict() | {"msg_id": message.msg_id.hex()}
        click.echo(json.dumps(row) if as_json else line(row))
    if found.lost:
        click.echo(f"{file}: {found.lost_text}", err=True)
    if not found.error:
        return
    if as_json:
        click.echo(json.dumps({"error": found.error, "offset": found.end}))
        raise SystemExit(1)
    raise click.ClickException(f"{file}: {found.error_text} at byte {found.end}")


@fct.command()
@FILE
@click.option(
    "--keep", "ids", required=True, metavar="IDS", type=click.Path(dir_okay=False),
    help="A file with the ids to keep, in hexadecimal, one a line.",
)  # fmt: skip
@click.option("--no-truncate", is_flag=True, help="Leave the end of the segment as it is.")
@click.option(
    "--force", is_flag=True,
    help="Change a segment in a folder of RabbitMQ, too. Stop the broker first: its clean.dot is "
    "renamed to clean.dot.old, so that it makes its index anew when it starts.",
)  # fmt: skip
def compact(file: str, ids: str, no_truncate: bool, force: bool) -> None:
    """Move the messages to keep to the front of a segment.

    The segment is changed in place and truncated. The list may contain ids of other segments, as
    that of a whole store. Prints {"truncate_size": bytes, "moved": messages}. No store may have the
    segment open.
    """
    import numpy as np

    from winkfs.stores.messagestore import broker

    version, wanted = version_of(file), ids_in(ids)
    directory, _ = locate(file)
    if not force:
        broker.check(broker.evidence_beside(directory), file)
    with open_file(file, "w") as storage:
        found = found_in(version, storage)
        if found.error:
            raise click.ClickException(
                f"{file}: {found.error_text} at byte {found.end}: a damaged segment is not changed"
            )
        if found.lost:
            raise click.ClickException(f"{file}: {found.lost_text}: nothing was changed")
        kept = [message for message in found.messages if message.msg_id in wanted]
        if wanted and not kept and found.rows:
            raise click.ClickException(
                f"{file}: it has none of the messages listed, such as {min(wanted).hex()}; to drop "
                "all of its messages, give an empty list"
            )
        broker.take_over(directory)
        offsets, sizes = (np.array([message[i] for message in kept], np.int64) for i in (2, 1))
        plan = version.compact(storage, offsets, sizes)
        storage.sync()
        if not no_truncate and plan.size < storage.size():
            storage.truncate(plan.size)
            storage.sync()
    click.echo(json.dumps({"truncate_size": plan.size, "moved": len(plan.targets)}))


def ids_in(path: str) -> set[bytes]:
    """Return the ids in a file. Raises ClickException."""
    from winkformats.messagestore.segment import ID

    found = set()
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = bytes.fromhex(os.fsdecode(line.strip()))
        except ValueError:
            one = b""
        if len(one) != ID:
            raise click.ClickException(
                f"{path}, line {number}: not an id of {2 * ID} hexadecimal digits"
            )
        found.add(one)
    return found
