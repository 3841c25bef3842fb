"""Outcome of a task of `ingest`, and the lines on what it left out or changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from winkfs.archive.items import Note
from winkfs.archive.warc import Capture
from winkfs.dataset.records import ShardRecord
from winkfs.errors import Refusal
from winkfs.names import to_str
from winkfs.spark.jobs.session import MAX_LISTED, Bad
from winkfs.units import NAMED

MAX_REASONS: Final = 100  # different reasons that are listed
OTHER: Final = "another reason"
MAX_NAME: Final = 100  # characters of a name in a message


class Reason(NamedTuple):
    """Reason why files were left out, or stored differently: their number, the first names."""

    number: int
    first: list[str]
    kept: bool


@dataclass(slots=True)
class Done:
    """Result of a task for a unit; called with a note on each file that is not packed unchanged.

    fail_fast  the first bad record is an error
    record     the new shard; None: it has no files
    """

    where: str = ""
    fail_fast: bool = False
    record: ShardRecord | None = None
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    changed: int = 0
    bad: int = 0
    replaced: int = 0
    listed: list[Bad] = field(default_factory=list)
    reasons: dict[str, Reason] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)

    def __call__(self, note: Note) -> None:
        name = to_str(note.name) or self.where
        if not note.failed:
            self.changed += note.kept
            self.left_out += not note.kept
            add_reasons(self.reasons, {note.what: Reason(1, [name], note.kept)})
            return
        if self.fail_fast:
            raise Refusal(note.what if name == self.where else f"{name}: {note.what}", self.where)
        self.bad += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Bad(self.where, name, note.what))


def add_reasons(total: dict[str, Reason], more: dict[str, Reason]) -> None:
    """Add reasons to `total`; beyond MAX_REASONS they are counted as OTHER."""
    for what, reason in more.items():
        key = what if what in total or len(total) < MAX_REASONS else OTHER
        number, first, kept = total.get(key, Reason(0, [], reason.kept))
        total[key] = Reason(number + reason.number, (first + reason.first)[:NAMED], kept)


def lines_of(reasons: dict[str, Reason]) -> Iterator[str]:
    """Yield a line for each reason, the most frequent first."""
    for what, reason in sorted(reasons.items(), key=lambda item: -item[1].number):
        names = ", ".join(
            name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in reason.first
        )
        more = ", .." if reason.number > len(reason.first) else ""
        verb = "stored, but" if reason.kept else "left out:"
        yield f"{reason.number:,} {verb} {what} ({names}{more})"
