"""`winkfs info`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import JSON, complete_file, emit, printable, say
from winkfs.names import FILES

if TYPE_CHECKING:
    from winkformats.kv.sequence import KVSeq
    from winkformats.kv.superblock import Superblock
    from winkfs.container.store import Store

Record = dict[str, Any]
EXACT: Final = 1 << 30  # bytes of entries that are gone through to count the dead ones
PER_ENTRY: Final = 40  # bytes of an entry beside its value, about: header, key, checksum


@click.command()
@click.argument("base", metavar="BASE|DIR|FILE", shell_complete=complete_file)
@JSON
def info(base: str, as_json: bool) -> int:
    """Show the state of a container, data set, digest set, order, mount or single file.

    For a container: variant, files, live and dead bytes, whether the index is current, the last
    sync, its files and the variables of its superblock. Above 1 GiB the dead bytes are an estimate.
    For a mounted directory: the container and the counters of its server. For a single file: the
    properties of the kvseq, hindex or perm. A truncated file is a problem (exit status 1); to find
    other problems use verify.
    """
    from winkfs.cli.mount import mount_record, mounted
    from winkfs.registry import kind_of

    data = base.removesuffix(".data") + ".data"
    if Path(data).exists():
        record = container_record(data.removesuffix(".data"))
    elif mount := mounted(base):
        record = mount_record(mount)
        if not as_json and record.get("unsynced_since", "") is None:
            del record["unsynced_since"]  # nothing is unsynced, which is not unknown
    elif (found := kind_of(base.rstrip("/") or "/"))[0].folder:
        record = found[0].function("info")(found[1])
    elif Path(base).is_dir():
        raise click.ClickException(f"{base}: a directory on which no container is mounted")
    else:
        record = file_record(base)
    problems: list[str] = record.get("problems", [])
    if as_json:
        emit(record)
        return 1 if problems else 0
    _print({key: value for key, value in record.items() if key != "problems"})
    for problem in problems:
        say(problem)
    return 1 if problems else 0


# --- a container ---


def container_record(base: str) -> Record:
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
        record["last_sync"] = _time(kv.superblock.get("SYNCTIME"))
        record["clean"] = kv.superblock.get("SYNCSIZE", kv.end) == kv.end and not kv.truncated
        record["file_sizes"] = _sizes(base)
        record["problems"] = list(store.notes)
        record["superblock"] = _variables(kv.superblock)
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


# --- a single file ---


def file_record(file: str) -> Record:
    """Raises FormatError where it is none of ours; OSError."""
    from winkformats.disk.paths import open_file
    from winkformats.kv.superblock import FORMAT_NAMES, read_superblock

    with open_file(file) as storage:
        block = read_superblock(storage)
        form, purpose = block["FORMAT"], block.purpose
        record: Record = {"file": file, "format": FORMAT_NAMES.get(form, f"{form:#x}")}
        record |= {"purpose": purpose, "size": storage.size()}
        record["filesize"] = block.get("FILESIZE", storage.size())
        describe = DESCRIBE.get((form, purpose)) or DESCRIBE.get((form, ""))
        record |= describe(block) if describe else {}
        record["last_sync"] = _time(block.get("SYNCTIME"))
        cut = record["size"] < record["filesize"]
        record["problems"] = [f"{file}: cut short, {record['size']} of {record['filesize']} bytes "
                              "are there"] if cut else []  # fmt: skip
        record["superblock"] = _variables(block)
        return record


def describe_kvseq(block: Mapping[str, int]) -> Record:
    return {"entries": block.get("ENTRIES"), "live_entries": block.get("AENTRIES")}


def describe_times(block: Mapping[str, int]) -> Record:
    marks = {"marks": block.get("ENTRIES"), "seconds_between": block.get("TIMEMP")}
    last = {"last_mark": _time(block.get("TIMEMARK")), "last_mtime": _time(block.get("LASTMT"))}
    return marks | last


def describe_columns(block: Mapping[str, int]) -> Record:
    entries = block.get("ENTRIES")  # of each chunk one for each of 8 columns, then the table
    return {"chunks": None if entries is None else entries // 8, "covers": block.get("DATAEND")}


def describe_hindex(block: Mapping[str, int]) -> Record:
    cells, taken, live = block["HTSIZE"], block.get("ENTRIES", 0), block.get("AENTRIES", 0)
    load = round(taken / cells, 3) if cells > 0 else None
    return {"cells": cells, "taken": taken, "live_entries": live, "load_factor": load}


def describe_perm(block: Mapping[str, int]) -> Record:
    return {"pairs": block.get("PERMSIZE")}


DESCRIBE: Final[dict[tuple[int, str], Callable[[Superblock], Record]]] = {
    (0x10, ""): describe_kvseq,
    (0x10, "FSYSTIME"): describe_times,
    (0x10, "FSYSCOLS"): describe_columns,
    (0x20, ""): describe_hindex,
    (0x30, ""): describe_perm,
}  # FORMAT and PURPOSE; "" for any other purpose


# --- output ---


def _variables(block: Superblock) -> Record:
    return {**block, "PURPOSE": block.purpose}


def _time(seconds: int | None) -> str | None:
    """ISO 8601 in UTC; None for none, and for what is no time a calendar knows."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _print(record: Record, indent: str = "") -> None:
    width = max((len(key) for key in record), default=0) + 1
    for key, value in record.items():
        label = printable(key)
        if isinstance(value, dict):
            sys.stdout.write(f"{indent}{label}:\n")
            _print(value, indent + "  ")
        else:
            sys.stdout.write(f"{indent}{label + ':':{width}} {_said(value)}\n")


def _said(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
