"""Repair: manifests that are damaged or lost are made whole.

Each is made from its copy. Where the newest one and its copy are both damaged nothing can be
committed, for what follows it would not know what it did. It is then made anew from what is left of
its text, if the shards prove that; else the generation is given up, and the one before is the
newest. What was damaged is kept beside, as `*.damaged`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from winkformats.errors import CorruptError, FormatError
from winkfs.container.ondisk.columnsfile import open_columns
from winkfs.dataset.manifest import FOLDER, Log, encoded, root_of
from winkfs.dataset.manifestfolder import COPY, MANIFEST, Folder
from winkfs.dataset.records import Manifest, ShardRecord, State
from winkfs.dataset.survey import describe
from winkfs.dataset.verify import orphans
from winkfs.errors import StalePlan, WinkError

DAMAGED: Final = ".damaged"
Versions = Mapping[str, tuple[bytes, bool]]
"""Suffix -> bytes, and whether they are whole, of a manifest and of its copy."""


@dataclass(slots=True)
class Repaired:
    """What a repair did, or would do.

    mended  a line for each manifest that was damaged or lost
    copies  how many were made of manifests that had none, or a damaged one
    left    what cannot be mended
    """

    mended: list[str] = field(default_factory=list)
    copies: int = 0
    left: list[str] = field(default_factory=list)


def repair(path: str | os.PathLike[str], *, apply: bool = False) -> Repaired:
    """Make the manifests whole, from their copies, and the newest one readable.

    apply   else it is only said what would be done
    raises  NoSuchFile; FormatError; OSError
    """
    log, done = Log(root_of(path)), Repaired()
    folder = Folder(f"{log.root}/{FOLDER}")
    numbers = folder.numbers()
    newest = True
    for number in reversed(numbers):
        versions = _versions(log, folder, number)
        whole = [data for data, good in versions.values() if good]
        if not whole and newest and number > numbers[0]:
            _mend_newest(log, folder, number, versions, done, apply=apply)
            continue
        newest = False
        if not whole:
            done.left.append(f"{log.root}: generation {number} is damaged, and so is its copy: it "
                             "cannot be read, others can; vacuum removes it in time")  # fmt: skip
        elif not all(good for _, good in versions.values()) or len(versions) < 2:
            if versions.get(MANIFEST, (b"", False))[1]:
                done.copies += 1
            else:
                done.mended.append(f"{log.root}: manifest {number} from its copy")
            if apply:
                _set_aside(folder, number, versions)
                folder.renew(number, whole[0])
    return done


def _versions(log: Log, folder: Folder, number: int) -> Versions:
    found = {}
    for file, data in folder.read(number):
        good = False
        with contextlib.suppress(CorruptError):
            good = Manifest.decode(data, file=file).generation == number
        found[COPY if file.endswith(COPY) else MANIFEST] = data, good
    return found


def _set_aside(folder: Folder, number: int, versions: Versions) -> None:
    """Keep what is damaged under another name. It is durable with the next sync."""
    for suffix, (_, good) in versions.items():
        if not good:
            name = folder.name(number, suffix)
            folder.files.rename(name, f"{name}.{secrets.token_hex(4)}{DAMAGED}")


def _mend_newest(
    log: Log, folder: Folder, number: int, versions: Versions, done: Repaired, *, apply: bool
) -> None:
    before: State | None = None
    with contextlib.suppress(FormatError, StalePlan):
        before = log.state(number - 1)
    proven = [_proven(log.root, before, data) for data, _ in versions.values() if before]
    made = next((found for found in proven if found is not None), None)
    if made is not None and before is not None:
        done.mended.append(f"{log.root}: manifest {number} from the shards of {made.job}")
    else:
        known = {record.path for record in before.shards} if before else set()
        known |= {record.path for _, found in log.history() if isinstance(found, Manifest)
                  for record in found.added}  # fmt: skip
        lost = [path for path in orphans(log.root, known) if path[0] != "_"]
        there = f": its shards may be {', '.join(lost)}" if lost and before else ""
        done.mended.append(f"{log.root}: generation {number} is given up, {number - 1} is the "
                           f"newest{there} (`winkfs dataset add` takes them, vacuum removes "
                           "them)")  # fmt: skip
    if apply:
        _set_aside(folder, number, versions)
        if made is not None and before is not None:
            folder.renew(number, encoded(made, made.apply(before)))
        folder.files.sync()


def _proven(root: str, before: State, data: bytes) -> Manifest | None:
    """An append that the rest of its text tells, if the shards are exactly what that says."""
    try:
        told = Manifest.parse(data, file=root)
    except FormatError:
        return None
    generation = before.generation + 1
    ranks = [(generation, place) for place in range(len(told.added))]
    batches = [before.streams.get(query, (-1, -1))[0] + 1 for query in told.streams]
    if (
        (told.generation, told.operation) != (generation, "append")
        or (told.removed, told.oldest) != ((), before.oldest)
        or [record.rank for record in told.added] != ranks
        or list(told.streams.values()) != batches
        or {record.path.partition("/")[0] for record in told.added} - {told.job}
        or {record.path for record in told.added} & {record.path for record in before.shards}
        or not all(_is_there(root, record) for record in told.added)
    ):
        return None
    when = told.time_ns if before.time_ns < told.time_ns <= time.time_ns() else before.time_ns + 1
    return replace(told, time_ns=when, metrics={}, checkpoint=None)


def _is_there(root: str, record: ShardRecord) -> bool:
    """Whether a shard is what its record says."""
    base = f"{root}/{record.path}"
    tombs_at = record.tombs_at if record.tombstones else 0
    try:
        seen = describe(base, record.path, tombs_at, open_columns(base))
    except (FormatError, WinkError, OSError):
        return False
    return replace(seen, rank=record.rank) == record
