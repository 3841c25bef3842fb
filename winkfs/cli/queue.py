"""`winkfs queue`: queues of messages, in the files of LedgerQ."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import click

from winkfs.cli._common import (
    DURATION,
    JSON,
    SIZE,
    TIME,
    Group,
    answer,
    complete_folder,
    counted,
    pairs,
    printable,
    warn,
)
from winkfs.cli.verbs import (
    ALL,
    CONTENTS,
    COUNT,
    DIR,
    LINES,
    batches_of,
    bodies_of,
    put_all,
    report_check,
    reporting,
    show_rows,
    show_stats,
    written,
)
from winkfs.errors import NoSuchFile, Refusal
from winkfs.stores import ledgerq
from winkfs.units import NANO, time_text

PRIORITIES: Final = ("low", "medium", "high")
BATCH: Final = 16  # messages that are popped at a time
MAIN: Final = ""  # the consumer that has no name
ORIGINAL: Final = "dlq.original_msg_id"
DLQ_SUFFIXES: Final = (".dlq", "/dlq")  # behind the path of a queue: its queue of dead letters
CONSUMER: Final = click.option("--consumer", metavar="NAME", default=MAIN,
                               help="Use the position of this consumer (see seek).")  # fmt: skip


@click.group(cls=Group)
def queue() -> None:
    """Create and use queues of messages, by arrival or by priority.

    DIR is a folder in the files of LedgerQ 1.4.1. Messages have ids from 1 on. Several commands may
    push and pop at the same time. peek, ls, stats, verify and dlq change nothing and take no lock.
    """


def opened(
    base: str, *, change: bool = False, **options: Any
) -> AbstractContextManager[ledgerq.Queue]:
    """Return the queue, open; to change it, shared with other processes."""
    if change:
        check(base)
    return reporting(ledgerq.Queue(base, "a" if change else "r", shared=change, **options))


def check(base: str) -> None:
    """Raise NoSuchFile if there is no queue, so that no other folder becomes one."""
    if not ledgerq.is_queue(base):
        ledgerq.Queue(base).close()  # its error states why


@queue.command()
@DIR
@click.option("--by-priority", is_flag=True, help="Hand out high before medium before low.")
@click.option("--consumer", "consumers", metavar="NAME", multiple=True,
              help="Add a consumer with a position of its own.")  # fmt: skip
def create(base: str, by_priority: bool, consumers: tuple[str, ...]) -> None:
    """Make an empty queue in the folder DIR.

    The folder is made if it does not exist. These options are kept in the queue. Others belong
    to commands: expiry to push, limits to compact.
    """
    ledgerq.create(base, by_priority=by_priority)
    with opened(base, change=True) as found:
        for name in consumers:
            found.add_consumer(name)
    click.echo(f"{base}: read by {'priority' if by_priority else 'arrival'}")


# --- messages ---


@queue.command()
@DIR
@CONTENTS
@click.option("--lines", is_flag=True, help="Add each line of the CONTENTs as a message.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="For a queue by priority (low).")
@click.option("--ttl", type=DURATION, metavar="DURATION", help="Time until the messages expire.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="Header added to every message; may be repeated.")  # fmt: skip
@click.option("--key", metavar="KEY",
              help="Push only if no message had KEY in the window; for one CONTENT.")  # fmt: skip
@click.option("--window", type=DURATION, default="1h", metavar="DURATION",
              help="Window of --key (1h).")  # fmt: skip
@click.option("--compress", type=click.IntRange(1, 9), metavar="LEVEL",
              help="Compress with gzip from 1 KiB on: 1 fast to 9 small.")  # fmt: skip
@click.option("--segment-size", type=SIZE, metavar="SIZE",
              help="Begin a new file of messages after this size (64M).")  # fmt: skip
@click.option("--segment-messages", type=click.IntRange(1), metavar="N",
              help="Begin one after this many messages (1000000).")  # fmt: skip
def push(
    base: str,
    files: tuple[str, ...],
    lines: bool,
    priority: str | None,
    ttl: int | None,
    headers: tuple[str, ...],
    key: str | None,
    window: int,
    compress: int | None,
    segment_size: int | None,
    segment_messages: int | None,
) -> None:
    """Add a message for each CONTENT; print their ids.

    An id is a line, printed when the message is durable. Without CONTENT, and for -, standard
    input is read. Of a folder, all files below it are added, in byte order of their paths,
    without links. Lines of a pipe can be popped as they come. With --key the id of the message
    with that key is printed.
    """
    options: dict[str, Any] = {
        "ttl": ttl, "headers": pairs(headers, "VALUE"), "compress": compress,
        "priority": None if priority is None else PRIORITIES.index(priority),
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value not in (None, {})}
    limits = {"bytes": segment_size, "messages": segment_messages}
    rotation = ledgerq.Rotation(**{name: size for name, size in limits.items() if size is not None})
    if key is not None and (lines or len(files) > 1 or any(map(os.path.isdir, files))):
        raise click.UsageError("--key goes with one CONTENT")
    with opened(base, change=True, rotation=rotation) as found:
        if options.get("priority") and not found.by_priority:
            raise Refusal("is read by arrival: see winkfs queue create --by-priority", base)
        if key is None:
            batches = batches_of(files, lines)
            put_all(found, batches, lambda batch: found.push_many(batch, **options))
            return
        (body,) = bodies_of(files, lines=False)
        id, new = found.push_once(body, key, window=window, **options)
        found.sync()
        if not new:
            warn(f"{base}: nothing is pushed: {key} is the key of message {id}")
        click.echo(id)


@queue.command()
@DIR
@COUNT
@ALL
@LINES
@CONSUMER
@click.option("--wait", is_flag=True, help="Wait for messages.")
@click.option("--timeout", type=DURATION, metavar="DURATION",
              help="Wait until no message has come for this time.")  # fmt: skip
@click.option("--visible", type=DURATION, default="10s", metavar="DURATION",
              help="Lease of messages while they are written (10s).")  # fmt: skip
@JSON
def pop(
    base: str,
    count: int,
    every: bool,
    lines: bool,
    consumer: str,
    wait: bool,
    timeout: int | None,
    visible: int,
    as_json: bool,
) -> None:
    """Take the next message, or more, and write it to standard output.

    They are consumed when they are written, up to 16 at a time: if that fails, they come again, and
    after a kill when --visible is over. --json: an object a line, with payload_b64. Without a
    message the exit status is 1, except with --all. With --wait, --all never ends.
    """
    patience = float(timeout or 0) if timeout is not None or not wait else float("inf")
    done = 0
    with opened(base, change=True) as found:
        for some in _popped(found, None if every else count, patience, visible, consumer):
            unwritten = [message.id for message in some]
            try:
                done += _write(found, some, lines, as_json)
                sys.stdout.flush()
                found.ack(*unwritten, consumer=consumer)
                unwritten = []
            finally:
                for id in unwritten:
                    found.nack(id, "could not be written", consumer=consumer)
        if not done and not every:
            raise _empty(found, consumer)


def _popped(
    found: ledgerq.Queue, count: int | None, patience: float, visible: float, consumer: str
) -> Iterator[list[ledgerq.Message]]:
    """Pop up to `count` messages, None: all; until none has come for `patience` seconds."""
    while count is None or count:
        size = BATCH if count is None else min(BATCH, count)
        some = found.pop_many(size, visible=visible, consumer=consumer)
        if not some:
            waited = found.pop(visible=visible, timeout=patience, consumer=consumer)
            if waited is None:
                return
            some = [waited]
        yield some
        count = None if count is None else count - len(some)


def _empty(found: ledgerq.Queue, consumer: str) -> NoSuchFile:
    facts = found.stats()
    leased = (facts if consumer == MAIN else facts["consumers"][consumer])["in_flight"]
    also = f", and {leased} that are leased" if leased else ""
    return NoSuchFile(f"is empty: there is no message{also}", found.path)


@queue.command()
@DIR
@COUNT
@ALL
@LINES
@CONSUMER
@JSON
def peek(base: str, count: int, every: bool, lines: bool, consumer: str, as_json: bool) -> None:
    """Write the next message, or more, to standard output, as pop does. They stay."""
    with opened(base) as found:
        messages = islice(found.messages(consumer=consumer), None if every else count)
        if not _write(found, messages, lines, as_json) and not every:
            raise _empty(found, consumer)


def _write(
    found: ledgerq.Queue, messages: Iterable[ledgerq.Message], lines: bool, as_json: bool
) -> int:
    """Write messages to standard output -> how many."""
    facts = partial(_facts, found) if as_json else None
    return sum(1 for _ in written(messages, "payload", facts, lines))


def _facts(found: ledgerq.Queue, message: ledgerq.Message) -> dict[str, Any]:
    from winkformats.ledgerq.segment import name_of

    # None if it means nothing: LedgerQ stores no priority for a low one.
    known = PRIORITIES[message.priority] if found.by_priority or message.priority else None
    return {
        "id": message.id, "offset": message.offset, "segment": name_of(message.segment),
        "timestamp_ns": message.timestamp, "priority": known,
        "expires_ns": message.expires, "headers": message.headers, "size": len(message.payload),
        "sha256": sha256(message.payload).hexdigest(),
    }  # fmt: skip


def _line(facts: dict[str, Any]) -> str:
    shown, pushed = facts["priority"] or "-", time_text(facts["timestamp_ns"] / NANO)
    row = "{id:<20}  {size:12}  {shown:8}  {time:20}  {offset:12}  {segment}"
    return row.format(**facts, shown=shown, time=pushed)


@queue.command()
@DIR
@click.option("-a", "--all", "every", is_flag=True,
              help="Also consumed and expired messages, by arrival.")  # fmt: skip
@CONSUMER
@JSON
def ls(base: str, every: bool, consumer: str, as_json: bool) -> None:
    """List the messages in the order in which they are read. Changes nothing."""
    with opened(base) as found:
        messages = found.all_messages() if every else found.messages(consumer=consumer)
        header = f"{'ID':20}  {'SIZE':>12}  {'PRIORITY':8}  {'PUSHED':20}  {'OFFSET':>12}  FILE"
        show_rows(header, _line, map(partial(_facts, found), messages), as_json)


# --- the whole ---


@queue.command()
@DIR
@JSON
def stats(base: str, as_json: bool) -> None:
    """Show counts of messages, positions of consumers, and bytes."""
    with opened(base) as found:
        show_stats(found, "queue", "problems", as_json)


@queue.command()
@DIR
@JSON
def verify(base: str, as_json: bool) -> int:
    """Read and check all messages and their indexes. Changes nothing.

    Prints one line per problem; the exit status is 1 if there is any.
    """
    from winkfs.stores.ledgerq.records import verify as run

    return report_check(
        base, "message", run, as_json,
        lambda report: {"problems": report.problems, "messages": report.files}
        | ({"more_problems": report.more} if report.more else {}),
    )  # fmt: skip


@queue.command()
@DIR
@JSON
def repair(base: str, as_json: bool) -> None:
    """Write damaged files anew, so that LedgerQ opens the queue. No other process may have it open.

    Bytes that are no messages are kept beside it, in files that end in .cut. push and pop repair
    only what they need; this reads everything.
    """
    from winkfs.stores.ledgerq.records import repair as run

    check(base)
    steps = run(base)
    lines = map(printable, steps or [f"{base}: nothing to repair"])
    answer({"base": base, "steps": steps}, as_json, *lines)


@queue.command()
@DIR
@click.option("--max-age", type=DURATION, metavar="DURATION",
              help="Stop when no message is older than this.")  # fmt: skip
@click.option("--max-size", type=SIZE, metavar="SIZE",
              help="Stop when the queue is at most this size.")  # fmt: skip
@click.option("--max-segments", type=click.IntRange(1), metavar="N",
              help="Stop when there are at most N files of messages.")  # fmt: skip
@click.option("--keep", type=click.IntRange(1), default=1, metavar="N",
              help="Keep at least N files of messages (1).")  # fmt: skip
@click.option("--unread", is_flag=True, help="Also remove files with unread messages.")
@click.option("-n", "--dry-run", is_flag=True, help="Only report what would be removed.")
@JSON
def compact(
    base: str,
    max_age: int | None,
    max_size: int | None,
    max_segments: int | None,
    keep: int,
    unread: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the oldest files whose messages all consumers have read."""
    with opened(base, change=not dry_run) as found:
        done = found.compact(
            seconds=max_age, bytes=max_size, segments=max_segments, least=keep, unread=unread,
            dry_run=dry_run,
        )  # fmt: skip
        lost = f", with {counted(done.unread, 'unread message')}" if done.unread else ""
        verb = "would be removed" if dry_run else "removed"
        gone = counted(done.segments, "segment")
        record = {"base": base, "dry_run": dry_run, **done._asdict()}
        answer(record, as_json, f"{base}: {gone} of {done.bytes} bytes {verb}{lost}")


@queue.command()
@DIR
@click.argument("id", type=click.IntRange(1), required=False)
@click.option("--time", "when", type=TIME, metavar="T",
              help="To the first message pushed at T or later.")  # fmt: skip
@click.option("--first", is_flag=True, help="To the first message.")
@click.option("--last", is_flag=True, help="Behind the last message.")
@click.option("--remove", is_flag=True, help="Remove the consumer; compact ignores it then.")
@CONSUMER
def seek(
    base: str,
    id: int | None,
    when: float | None,
    first: bool,
    last: bool,
    remove: bool,
    consumer: str,
) -> None:
    """Move a consumer to message ID, or to another position, also back.

    A --consumer that does not exist is added.
    """
    if (id is not None) + (when is not None) + first + last + remove != 1:
        raise click.UsageError("one of these is needed: ID, --time, --first, --last or --remove")
    if remove and consumer == MAIN:
        raise click.UsageError("--remove goes with --consumer")
    with opened(base, change=True) as found:
        if remove:
            found.remove_consumer(consumer)
            return
        if consumer != MAIN:
            found.add_consumer(consumer)
        if when is not None:
            found.seek_time(when, consumer=consumer)
        else:
            found.seek(id or (1 if first else found.next_id), consumer=consumer)
        facts = found.stats()
        at = (facts if consumer == MAIN else facts["consumers"][consumer])["read_id"]
        click.echo(f"{base}: message {at} is next")


# --- dead letters ---


@queue.command()
@DIR
@click.option("--dead-letters", "place", metavar="PATH", shell_complete=complete_folder,
              help="The queue of the dead letters (DIR.dlq, or DIR/dlq).")  # fmt: skip
@click.option("--requeue", is_flag=True, help="Push them to DIR again, the oldest first.")
@click.option("-n", "--count", type=click.IntRange(1), help="Up to this many (all).")
@JSON
def dlq(base: str, place: str | None, requeue: bool, count: int | None, as_json: bool) -> None:
    """List the messages of DIR that failed too often.

    They are in a queue of their own. DIR may be that queue itself. --json: as ls, with the
    reason in the headers dlq.*.
    """
    check(base)
    letters = _letters(base) if place is None else place
    if not requeue:
        _list_letters(base if letters is None else letters, count, as_json, some=letters is None)
        return
    if letters is None:
        raise Refusal("has no queue of dead letters beside it: see --dead-letters", base)
    check(letters)
    if os.path.samefile(base, letters):
        raise Refusal("its dead letters lie in another queue: see --dead-letters", base)
    with opened(base, change=True, dead_letters=letters) as found:
        done = found.requeue(count)
        found.problems += found.dead_letters().problems
        line = f"{base}: {counted(done, 'message')} pushed again"
        answer({"base": base, "requeued": done}, as_json, line)


def _letters(base: str) -> str | None:
    places = [base.rstrip("/") + suffix for suffix in DLQ_SUFFIXES]
    return next(filter(ledgerq.is_queue, places), None)


def _list_letters(place: str, count: int | None, as_json: bool, *, some: bool) -> None:
    """List the messages of a queue; some: only those with the headers of a dead letter."""
    with opened(place) as found:
        letters = (m for m in found.messages() if not some or ORIGINAL in m.headers)
        header = f"{'ID':20}  {'SIZE':>12}  {'WAS':>20}  {'FAILED':24}  {'TIMES':>5}  WHY"
        show_rows(header, _letter, map(partial(_facts, found), islice(letters, count)), as_json)


def _letter(facts: dict[str, Any]) -> str:
    was, when, times, why = (
        printable(facts["headers"].get(f"dlq.{name}", "-"))
        for name in ("original_msg_id", "last_failure", "retry_count", "failure_reason")
    )
    row = "{id:<20}  {size:12}  {was:>20}  {when:24}  {times:>5}  {why}"
    return row.format(**facts, was=was, when=when, times=times, why=why)
