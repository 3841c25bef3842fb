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
from winkformats.messagestore.index import LAST, MessageRows, first_of_each, words_of
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
        messages = _table(directory, TABLE, "msg_location")
        files = _table(directory, SUMMARY, "file_summary")
        refs = messages.integers(1)
        held = refs != 0
        columns = [messages.integers(field, held) for field in (2, 3, 4)] + [refs[held]]
        rows = MessageRows(words_of(messages.binaries(0, ID, held)), *columns)
        numbers = [files.integers(field) for field in (0, 1, 4 if len(files.fields) > 6 else 2)]
        known = {number: tuple(counts) for number, *counts in np.transpose(numbers).tolist()}
        if any((column < 0).any() or (column > LAST).any() for column in columns):
            raise ValueError("a number that can be none")
        if not first_of_each(rows.ids).all():
            raise ValueError("an id that comes twice")
    except (CorruptError, FileNotFoundError, ValueError, IndexError) as error:
        note = (
            f"the broker's index is not read, each message of the segments is there once: {error}"
        )
        return Recorded(MessageRows.joined([]), set(), [note])
    bytes_held = dict.fromkeys(known, (0, 0, 0))
    order = np.argsort(rows.file, kind="stable")
    present, begins = np.unique(rows.file[order], return_index=True)
    for number, of in zip(present.tolist(), np.split(order, begins[1:]), strict=False):
        end = int((rows.offset[of] + rows.size[of]).max())
        bytes_held[number] = int(rows.size[of].sum()), end, len(of)
    good, notes = set[int](), list[str]()
    for number, (valid, end, count) in sorted(bytes_held.items()):
        if known.get(number) == (valid, sizes.get(number)) and end <= sizes[number]:
            good.add(number)
        elif number in sizes:
            what = "not as the broker left it, each message in it is there once"
            notes.append(f"segment {number} is {what}")
        elif count:
            report(f"{directory.path}: segment {number} is missing: {count} messages are lost")
    return Recorded(rows.take(np.isin(rows.file, list(good))), good, notes)


def _table(directory: Directory, name: str, row: str) -> ets.Table:
    with directory.open(name, follow=False) as storage:
        return ets.read_table(storage, row)


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
