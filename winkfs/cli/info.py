"""`winkfs info`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import JSON, complete_file, emit, printable, say
from winkfs.container.info import variables_of
from winkfs.names import DATA
from winkfs.units import time_text

if TYPE_CHECKING:
    from winkformats.kv.superblock import Superblock

Record = dict[str, Any]


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
    from winkfs.registry import find_kind

    mount = None if Path(base + DATA).exists() else mounted(base)
    if mount:
        record = mount_record(mount)
        if not as_json and record.get("unsynced_since", "") is None:
            del record["unsynced_since"]  # nothing is unsynced, which is not unknown
    elif (found := find_kind(base.rstrip("/") or "/")) and (found[0].folder or base[-1:] != "/"):
        record = found[0].function("info", found[1])(found[1])
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
        record["last_sync"] = time_text(block.get("SYNCTIME"))
        cut = record["size"] < record["filesize"]
        record["problems"] = [f"{file}: cut short, {record['size']} of {record['filesize']} bytes "
                              "are there"] if cut else []  # fmt: skip
        record["superblock"] = variables_of(block)
        return record


def describe_kvseq(block: Mapping[str, int]) -> Record:
    return {"entries": block.get("ENTRIES"), "live_entries": block.get("AENTRIES")}


def describe_times(block: Mapping[str, int]) -> Record:
    marks = {"marks": block.get("ENTRIES"), "seconds_between": block.get("TIMEMP")}
    last = {
        "last_mark": time_text(block.get("TIMEMARK")),
        "last_mtime": time_text(block.get("LASTMT")),
    }
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
