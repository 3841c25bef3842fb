"""`winkfs store`: stores of records with ids, such as message stores and LogStores."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

import winkfs
from winkfs.cli._common import (
    JSON,
    STDIN,
    Failures,
    Group,
    Progress,
    complete_file,
    complete_folder,
    opened_any,
    pairs,
    print_facts,
    printable,
    warn,
)
from winkfs.cli.verbs import DIR, bodies_of, put_all, report_check
from winkfs.registry import Kind, find_kind, kinds_with
from winkfs.units import parse_size

if TYPE_CHECKING:
    from winkfs.stores.records import Records, Row

Record = dict[str, Any]
IDS: Final = click.argument("ids", metavar="ID...", nargs=-1, required=True)
FORCE: Final = click.option(
    "--force", is_flag=True,
    help="Change a folder of RabbitMQ, too. Stop the broker first: its clean.dot is renamed to "
    "clean.dot.old, so that it makes its index anew when it starts.",
)  # fmt: skip


@click.group(cls=Group)
def store() -> None:
    """Create, change and maintain stores of records with ids.

    \b
    message  message store of RabbitMQ classic queues (.rdq, .sqs):
             references are counted, ids are 32 hexadecimal digits
    log      LogStore: records have versions and come in transactions,
             ids are numbers

    DIR is the folder of the store; its kind is detected. ls, cat, info, verify and mount show the
    records of such a folder as files with their ids as names.
    """


@contextlib.contextmanager
def records(base: str, mode: str = "r", *, force: bool = False) -> Iterator[Records]:
    """Open the store of records at DIR; its refusals name it. On damage see `opened`."""
    from winkfs.stores.records import Records

    kind, path = store_at(base)
    with opened_any(path, mode, None, **forced(kind, force)) as found:
        if not isinstance(found, Records):
            raise _no_records(kind, base)
        try:
            yield found
        except winkfs.FormatError:
            raise
        except ValueError as error:  # not an id
            raise winkfs.Refusal(str(error), base) from None


def store_at(base: str) -> tuple[Kind, str]:
    """Return the kind of the store at a path, and its canonical path. Raises NoSuchFile; Refusal
    for a store that does not contain records."""
    found = find_kind(base)
    if found is None and os.path.isdir(base):
        raise winkfs.Refusal("a folder, but no store: see winkfs store create --help", base)
    if found is None:
        raise winkfs.NoSuchFile("no such store", base)
    if found[0].has("shards") or not found[0].has("open"):
        raise _no_records(found[0], base)
    return found


def forced(kind: Kind, force: bool) -> dict[str, bool]:
    """Return the options of a kind that --force sets. Raises UsageError if it has none."""
    if force and not kind.has("broker"):
        raise click.UsageError(f"--force is for the folders of a broker, not for a {kind.name}")
    return {"force": True} if force else {}


def _no_records(kind: Kind, base: str) -> winkfs.Refusal:
    return winkfs.Refusal(f"winkfs store is for stores of records, and this is a {kind.name}", base)


# --- create ---


def kinds() -> dict[str, Kind]:
    """Return the kinds that can be created by their short names, as `log` for a log store."""
    return {kind.name.removesuffix(" store"): kind for kind in kinds_with("create")}


def complete_kind(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a kind for the shell."""
    return [CompletionItem(name) for name in kinds() if name.startswith(incomplete)]


@store.command()
@DIR
@click.option("--kind", "name", required=True, metavar="KIND", shell_complete=complete_kind,
              help="message or log, or another that is installed.")  # fmt: skip
@click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE",
              help="A setting of the kind; a wrong NAME lists the settings.")  # fmt: skip
def create(base: str, name: str, options: tuple[str, ...]) -> None:
    """Make an empty store in the folder DIR.

    DIR is created if it does not exist.
    """
    known = kinds()
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise click.UsageError(f"{name!r} is no kind of store: there are {names}")
    function = known[name].function("create", base)
    made = function(base, **_settings(function, name, pairs(options, "VALUE")))
    if made is not None:
        made.close()


def _settings(function: Callable[..., Any], kind: str, given: Mapping[str, str]) -> Record:
    """Return the options of a kind, each of the type of its default; numbers may have units as
    sizes have them (`winkfs.units`).

    raises  UsageError
    """
    known = list(inspect.signature(function).parameters.values())[1:]
    defaults = {one.name: one.default for one in known if one.kind is not one.VAR_KEYWORD}
    if wrong := [name for name in given if name not in defaults]:
        known_names = f"there are {', '.join(defaults)}" if defaults else "it has none"
        raise click.UsageError(f"a {kind} store has no option {wrong[0]!r}: {known_names}")
    return {name: _value(name, word, defaults[name]) for name, word in given.items()}


def _value(name: str, word: str, default: object) -> Any:
    if isinstance(default, bool):
        if word not in ("true", "false"):
            raise click.UsageError(f"option {name} is true or false, not {word!r}")
        return word == "true"
    if isinstance(default, str):
        return word
    number = parse_size(word)
    if number is None and isinstance(default, int):
        raise click.UsageError(f"option {name} is a number as 500, 16M or 1G, not {word!r}")
    return word if number is None else number


# --- records ---


@store.command()
@DIR
@click.argument("files", metavar="[FILE]...", nargs=-1, shell_complete=complete_file)
@click.option("--id", "id", metavar="ID", help="The id of the record; for one FILE.")
@click.option("--lines", is_flag=True, help="Each line of the FILEs is a record.")
@FORCE
def put(base: str, files: tuple[str, ...], id: str | None, lines: bool, force: bool) -> None:
    """Add a record for each FILE, and print their ids.

    The ids are printed, one a line, when the records are durable. Without a FILE, or for -,
    standard input is read. Of a folder, all files below it are put in byte order of their paths;
    links are left out. Without --id the store chooses the ids. A record that exists gets one more
    reference in a message store, a new version in a LogStore.
    """
    if id is not None and (lines or len(files) > 1 or any(map(os.path.isdir, files))):
        raise click.UsageError("--id goes with one FILE")
    with records(base, "a", force=force) as found:
        put_all(found, ([body] for body in bodies_of(files, lines)),
                lambda batch: [found.put(id, body) for body in batch])  # fmt: skip


@store.command()
@DIR
@click.argument("id")
@click.option("-o", "--output", "out", metavar="FILE", shell_complete=complete_file,
              help="Write it to FILE, not to standard output.")  # fmt: skip
def get(base: str, id: str, out: str | None) -> None:
    """Write the body of a record to standard output, or to a file."""
    with records(base) as found:
        body = next(iter(found.bodies([found.row(id)])))
    if out is None or out == STDIN:
        sys.stdout.buffer.write(body)
    else:
        Path(out).write_bytes(body)


def _for_each(
    found: Records, ids: tuple[str, ...], failures: Failures, work: Callable[[str], None]
) -> None:
    """Process each of the ids; a missing or wrong one is reported in one line."""
    for id in ids:
        try:
            work(id)
        except winkfs.NoSuchFile as error:
            failures.add(id, error.strerror or str(error))
        except ValueError as error:  # FormatError is one
            failures.add(id, str(error))


@store.command()
@DIR
@IDS
def cat(base: str, ids: tuple[str, ...]) -> int:
    """Write the bodies of records to standard output.

    A missing or damaged record is an error (exit status 1); all others are written.
    """
    failures = Failures(base)
    with records(base) as found:

        def write(id: str) -> None:
            sys.stdout.buffer.write(next(iter(found.bodies([found.row(id)]))))

        _for_each(found, ids, failures, write)
    return failures.status


@store.command()
@DIR
@IDS
@FORCE
def rm(base: str, ids: tuple[str, ...], force: bool) -> int:
    """Remove records.

    If references are counted, one reference of each is removed. A missing record is an error (exit
    status 1); all others are removed.
    """
    failures = Failures(base)
    with records(base, "a", force=force) as found:
        _for_each(found, ids, failures, found.remove)
        found.sync()
    return failures.status


@store.command()
@DIR
@JSON
def ls(base: str, as_json: bool) -> None:
    """List the records with id, size, file and offset.

    References are listed too, if they are counted. The order is that of the files and of the
    offsets in them.
    """
    with records(base) as found:
        write = _json if as_json else _line
        if not as_json:
            refs = f"{'REFS':>6}  " if found.counts else ""
            width = 20 if found.numbers else 32
            click.echo(f"{'ID':{width}}  {'SIZE':>12}  {refs}{'OFFSET':>12}  FILE")
        for row in found.rows():
            sys.stdout.write(write(found, row))


def _json(found: Records, row: Row) -> str:
    id = row.id if found.numbers else json.dumps(row.id)
    refs = "" if row.refs is None else f'"refs": {row.refs}, '
    file = json.dumps(row.file)
    return f'{{"id": {id}, "size": {row.size}, {refs}"file": {file}, "offset": {row.offset}}}\n'


def _line(found: Records, row: Row) -> str:
    refs = "" if row.refs is None else f"{row.refs:6}  "
    width = 20 if found.numbers else 32
    return f"{row.id:{width}}  {row.size:12}  {refs}{row.offset:12}  {printable(row.file)}\n"


# --- the whole ---


@store.command()
@DIR
@JSON
def verify(base: str, as_json: bool) -> int:
    """Read and check everything. Changes nothing.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    store_at(base)
    return report_check(base, "record", winkfs.verify, as_json)


@store.command()
@DIR
@JSON
def stats(base: str, as_json: bool) -> None:
    """Show the number of records and bytes, and other counters."""
    with records(base) as found:
        facts = {"records": len(found), **found.stats()}
    print_facts({"base": base, "kind": store_at(base)[0].name} | facts, as_json)


@store.command()
@DIR
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@FORCE
@JSON
def compact(base: str, dry_run: bool, force: bool, as_json: bool) -> int:
    """Reclaim the space of records that were removed or replaced.

    Readers continue meanwhile.
    """
    with records(base, "a", force=force) as found, Progress("compacting", "bytes") as bar:
        done = found.compact(bar, dry_run=dry_run)
    return print_facts({"base": base, "dry_run": dry_run, **done}, as_json)


@store.command()
@DIR
@click.argument("target", shell_complete=complete_folder)
@JSON
def salvage(base: str, target: str, as_json: bool) -> int:
    """Copy the intact records of a damaged store.

    DIR may be in any state; TARGET is a new store. Prints what was saved and what was lost, in
    bytes; the exit status is 1 if anything was lost.
    """
    kind, path = store_at(base)
    function = kind.function("salvage", path)
    with Progress("salvaging", "bytes") as bar:
        facts = function(path, target, bar)
    lost = any(value for name, value in facts.items() if "lost" in name)
    return print_facts(facts, as_json) or int(lost)


@store.command()
@DIR
@FORCE
@JSON
def migrate(base: str, force: bool, as_json: bool) -> None:
    """Rewrite a message store: all .rdq files become .sqs files.

    No released version of RabbitMQ reads .sqs files: a broker whose folder was migrated has lost
    its messages. Then only winkfs reads them.
    """
    kind, path = store_at(base)
    function = kind.function("migrate", path)
    with Progress("migrating", "bytes") as bar:
        facts = function(path, bar, **forced(kind, force))
    print_facts({"base": base, **facts}, as_json)
    if facts.get("segments"):
        warn(f"{base}: no released version of RabbitMQ reads its .sqs files")
