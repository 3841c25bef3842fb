"""Folders of RabbitMQ: how one is detected, and what must happen before it is changed.

After a clean shutdown a broker keeps its index in files beside the segments, and trusts it: if a
segment has been changed meanwhile, its queues crash at the first read. Without `clean.dot` it
rebuilds its index from the segments.

    msg_store_index.ets  rows {msg_location, id, references, segment, offset, size}
    file_summary.ets     rows {file_summary, segment, bytes held, left, right, bytes, ...}, in later
                         versions without left and right
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np

from winkformats.disk.paths import absolute
from winkformats.disk.storage import Directory
from winkformats.messagestore import ets
from winkformats.messagestore.index import LAST, MessageRows, words_of
from winkformats.messagestore.journal import INDEX, JOURNAL
from winkformats.messagestore.segment import ID
from winkfs.errors import CorruptError, Refusal

CLEAN: Final = "clean.dot"
TABLE: Final = "msg_store_index.ets"
SUMMARY: Final = "file_summary.ets"
FILES: Final = (CLEAN, TABLE, SUMMARY)
FOLDERS: Final = ("msg_store_persistent", "msg_store_transient")
OLD: Final = ".old"  # suffix of a file that the broker must not use any more


def evidence(directory: Directory) -> str:
    """Return what shows that a folder with segments is a broker's; "": it is ours, or new."""
    names = directory.list()
    for name in FILES:
        if name in names:
            return f"{name} is there"
    ours = any(name == INDEX or name.startswith(JOURNAL) for name in names)
    segments = any(name.endswith((".rdq", ".sqs")) for name in names)
    return "segments without an index of winkfs" if segments and not ours else ""


def evidence_beside(directory: Directory) -> str:
    """Return the evidence for a segment that is changed alone, if its folder may have no index."""
    for name in FILES:
        if directory.exists(name):
            return f"{name} is there"
    folder = PurePath(absolute(directory.path)).name
    return f"it is named {folder}" if folder in FOLDERS else ""


class Recorded(NamedTuple):
    """The index of a broker as of its clean shutdown.

    rows     its messages, in the segments of these numbers
    numbers  the segments whose content it records
    notes    why other segments are not among them, a line each
    """

    rows: MessageRows
    numbers: set[int]
    notes: list[str]


def recorded(
    directory: Directory, sizes: dict[int, int], report: Callable[[str], object]
) -> Recorded | None:
    """Return the index of the broker; None: there was no clean shutdown. A segment that has changed
    since then is left out, with a note.

    sizes   bytes of the segments that exist
    report  called with a line for each segment that is gone
    """
    if not directory.exists(CLEAN):
        return None
    try:
        messages, files = (
            _table(directory, name, row)
            for name, row in ((TABLE, "msg_location"), (SUMMARY, "file_summary"))
        )
        held = [row for row in messages if _integer(row[1])]
        columns = np.array([[_integer(row[i]) for row in held] for i in (2, 3, 4, 1)], np.int64)
        ids = b"".join(_id(row[0]) for row in held)
        if (
            (columns < 0).any()
            or (columns > LAST).any()
            or len({row[0] for row in held}) < len(held)
        ):
            raise ValueError("a number that can be none, or an id that comes twice")
        known = {
            _integer(row[0]): (_integer(row[1]), _integer(row[4 if len(row) > 6 else 2]))
            for row in files
        }
    except (CorruptError, FileNotFoundError, ValueError, IndexError) as error:
        note = (
            f"the broker's index is not read, each message of the segments is there once: {error}"
        )
        return Recorded(MessageRows.joined([]), set(), [note])
    rows = MessageRows(words_of(ids), *columns)
    good, notes = set[int](), list[str]()
    for number in sorted({*known, *rows.file.tolist()}):
        here = rows.file == number
        mine, end = rows.size[here], int((rows.offset + rows.size)[here].max(initial=0))
        if known.get(number) == (int(mine.sum()), sizes.get(number)) and end <= sizes[number]:
            good.add(number)
        elif number in sizes:
            what = "not as the broker left it, each message in it is there once"
            notes.append(f"segment {number} is {what}")
        elif len(mine):
            report(f"{directory.path}: segment {number} is missing: {len(mine)} messages are lost")
    return Recorded(rows.take(np.isin(rows.file, list(good))), good, notes)


def _table(directory: Directory, name: str, row: str) -> list[tuple[ets.Field, ...]]:
    with directory.open(name, follow=False) as storage:
        return ets.rows(storage, row)


def _integer(field: ets.Field) -> int:
    if not isinstance(field, int):
        raise ValueError(f"{field!r} is no number")
    return field


def _id(field: ets.Field) -> bytes:
    if not isinstance(field, bytes) or len(field) != ID:
        raise ValueError(f"{field!r} is no id")
    return field


def check(found: str, path: str, *, more: str = "") -> None:
    """Raise Refusal if there is evidence. more: a further reason, which the change has."""
    if not found:
        return
    raise Refusal(
        f"a folder of RabbitMQ ({found}){more}: stop the broker, then use --force (in Python "
        f"force=True), which renames {CLEAN} to {CLEAN}{OLD} before the change, so that the broker "
        "makes its index anew when it starts: changed segments beside its old index crash its "
        "queues",
        path,
    )


def take_over(directory: Directory) -> None:
    """Make the broker rebuild its index at its next start. Durable. Raises OSError."""
    if not directory.exists(CLEAN):
        return
    for name in directory.list():  # an index of winkfs is older: the broker has run since
        if name == INDEX or name.startswith(JOURNAL):
            directory.unlink(name)
    directory.rename(CLEAN, f"{CLEAN}{OLD}")
    directory.sync()
