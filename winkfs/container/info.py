"""What `winkfs info` says of a container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from winkfs.names import FILES
from winkfs.units import time_text

if TYPE_CHECKING:
    from winkformats.kv.sequence import KVSeq
    from winkformats.kv.superblock import Superblock
    from winkfs.container.store import Store

Record = dict[str, Any]
EXACT: Final = 1 << 30  # bytes of entries that are gone through to count the dead ones
PER_ENTRY: Final = 40  # bytes of an entry beside its value, about: header, key, checksum


def info(base: str) -> Record:
    """Raises FormatError where BASE.data is not the data file of a container; OSError."""
    from winkfs.container.store import Store

    store = Store(base, writable=False, load=False)
    try:
        settings, kv = store.settings, store.kv
        record: Record = {"base": base}
        record["variant"] = "append only" if settings.ao else "plain"
        record["classic"] = settings.classic
        record |= _index_record(store)
        record |= _columns_record(store)
        record |= _space_record(kv)
        record["last_sync"] = time_text(kv.superblock.get("SYNCTIME"))
        record["clean"] = kv.superblock.get("SYNCSIZE", kv.end) == kv.end and not kv.truncated
        record["file_sizes"] = _sizes(base)
        record["problems"] = list(store.notes)
        record["superblock"] = variables_of(kv.superblock)
        return record
    finally:
        store.abandon()


def _index_record(store: Store) -> Record:
    """Whether BASE.idx covers all of the data file; without one the files are not counted."""
    from winkfs.container.ondisk.idx import open_base

    kv = store.kv
    base = open_base(store.base + ".idx", store.settings, kv.superblock, kv.end)
    if base is None:
        return {"files": None, "index": {"current": False}}
    current = base.covered == kv.end
    load = round(base.live / base.shape.htsize, 3)
    index = {"current": current, "cells": base.shape.htsize, "load_factor": load}
    files = base.live if current else None
    if base.damaged:
        what = f"files in {base.damaged} damaged places are not in its index: run winkfs verify"
        store.note(f"{store.kv.storage.name}: {what}")
    base.storage.close()
    return {"files": files, "index": index}


def _columns_record(store: Store) -> Record:
    """BASE.cols, where there is one."""
    from winkfs.container.ondisk.cols import open_columns

    if not Path(store.base + ".cols").exists():
        return {}
    columns = open_columns(store)
    if columns is None:
        return {"columns": {"current": False}}
    with columns:
        return {"columns": {"current": True, "files": columns.files, "chunks": len(columns.chunks)}}


def _space_record(kv: KVSeq) -> Record:
    """Where the bytes of the data file are. Content is that of files, holes included."""
    from winkformats.errors import FormatError
    from winkformats.kv.scan import dead_bytes

    block = kv.superblock
    used = kv.end - kv.start
    content, inodes = block.get("DTOTSZ", 0), block.get("ITOTSZ", 0)
    dead, exact = 0, True
    if kv.entries != kv.aentries:
        try:
            exact = used <= EXACT
            dead = dead_bytes(kv.storage, kv.layout, kv.start, kv.end) if exact else -1
        except FormatError:  # verify says what is wrong
            dead, exact = -1, False
        if not exact:
            live = min(content + inodes + PER_ENTRY * kv.aentries, used)
            dead = used - live
    return {
        "entries": kv.entries,
        "live_entries": kv.aentries,
        "content_bytes": content,
        "inode_bytes": inodes,
        "live_bytes": used - dead,
        "dead_bytes": dead,
        "dead_bytes_exact": exact,
    }


def _sizes(base: str) -> Record:
    """Bytes of each file that is there, and the blocks it takes on the disk."""
    sizes = {}
    for suffix in FILES:
        path = Path(base + suffix)
        if path.exists():
            status = path.stat()
            sizes[base + suffix] = {"size": status.st_size, "on_disk": 512 * status.st_blocks}
    return sizes


def variables_of(block: Superblock) -> Record:
    return {**block, "PURPOSE": block.purpose}
