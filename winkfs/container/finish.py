"""Finish what an unclean end left: delflags of what was superseded, and the counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from winkformats.errors import CorruptError

if TYPE_CHECKING:
    from winkfs.container.datafile import DataFile
    from winkfs.container.rebuild import Rebuilt


def finish_rebuilt(data: DataFile, found: Rebuilt) -> None:
    """After a rebuild, for a writer. Counters that were wrong are right on disk on return."""
    kv, block = data.kv, data.kv.superblock
    counters = {"ENTRIES": kv.entries, "ITOTSZ": data.itotsz, "DTOTSZ": data.dtotsz}
    unclean = block.get("SYNCSIZE", kv.end) != kv.end
    doubtful = unclean or found.unfinished or block.get("AENTRIES") != kv.aentries
    if not data.settings.havedups and doubtful:
        # AENTRIES counts what should be marked deleted as if it were: equal means nothing is left.
        done = finish(data, found.unfinished, found.heirs)
        kv.aentries -= done + finish(data, found.dead.tolist(), found.heirs)
    counters["AENTRIES"] = kv.aentries
    wrong = any(block[name] != value for name, value in counters.items() if name in block)
    if wrong or unclean or block.damage is not None:
        data.sync_data()


def finish(data: DataFile, superseded: Sequence[int], heirs: Mapping[int, int]) -> int:
    """Set the delflags of superseded inodes and of the entries that only they own.

    heirs   FILEID -> position of the live inode, of files whose older inodes are among them
    ->      how many were not set before
    """
    kv = data.kv
    if not kv.layout.delflag or not superseded:
        return 0
    todo: list[int] = []
    kv.show(kv.end - 1)
    for pos in superseded:
        try:
            _, inode, _ = data.inode_at(pos)
            heir = heirs.get(inode.fileid)
            keep = data.inode_at(heir)[1].pointers if heir else []
        except CorruptError as error:
            data.note(error)
            continue
        todo += [
            p for p in [pos, *(set(inode.pointers) - set(keep))] if kv.storage.read(p, 1) == b"\0"
        ]
    todo = list(dict.fromkeys(todo))
    if todo:
        kv.confirm()  # or what replaces them may not be on the disk
        kv.mark_deleted(todo)
    return len(todo)
