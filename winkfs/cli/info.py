"""The command info."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from winkformats.disk.paths import open_file
from winkfs.cli._common import JSON, VERSION, complete_file, print_facts
from winkfs.names import DATA
from winkfs.registry import find_kind
from winkfs.units import size_text, time_text

if TYPE_CHECKING:
    from winkformats.kv.superblock import Superblock

Record = dict[str, Any]
PAYS: Final = 0.1  # dead share from which a compaction is proposed
MANY: Final = 100_000  # files from which a catalog is
SIZES: Final = ("bytes", "size", "on_disk")  # how a name of bytes ends


@click.command()
@click.argument("base", metavar="BASE|DIR|FILE", shell_complete=complete_file)
@JSON
@click.option("--raw", is_flag=True, help="Print all facts, and the variables of the superblock.")
@VERSION
def info(base: str, as_json: bool, raw: bool) -> int:
    """Show the state of a container, data set, digest set, order, mount or single file.

    For a container: files, bytes of their contents, bytes on the disk, which share of the data is
    dead, whether index and catalog are current, the last sync, and what to do, if anything. --raw
    and --json have all facts. Above 1 GiB the dead bytes are an estimate.

    For a mounted directory: the container and the counters of its server. For a single file: the
    properties of the kvseq, hindex or perm. A truncated file is a problem (exit status 1); to find
    other problems use verify.
    """
    from winkformats.disk.schemes import is_far
    from winkfs.cli.mount import mount_record, mounted

    mount = None if is_far(base) or Path(base + DATA).exists() else mounted(base)
    shown: Callable[[Record], Record] = people
    if mount:
        record = mount_record(mount)
        if not as_json and record.get("unsynced_since", "") is None:
            del record["unsynced_since"]  # it would be printed as unknown, but all is synced
    elif (found := find_kind(base.rstrip("/") or "/")) and (found[0].folder or base[-1:] != "/"):
        record = found[0].function("info", found[1])(found[1])
        if found[0].name == "container":
            shown = container_lines
    elif Path(base).is_dir():
        raise click.ClickException(f"{base}: a directory on which no container is mounted")
    else:
        record = file_record(base)
    return print_facts(record if as_json or raw else shown(record), as_json)


# --- for people ---


def people(record: Mapping[str, Any]) -> Record:
    """Return facts with sizes for people, and without the superblock."""
    found: Record = {}
    for key, value in record.items():
        if isinstance(value, dict):
            value = people(value)
        elif type(value) is int and key.endswith(SIZES):
            value = size_text(value)
        if key != "superblock":
            found[key] = value
    return found


def container_lines(record: Record) -> Record:
    """Return what a container has for people, and what to do."""
    index, catalog, base = record["index"], record.get("catalog"), shlex.quote(record["base"])
    files, dead, live = record["files"], record["dead_bytes"], record["live_bytes"]
    used = dead + live
    share, about = dead / used if used else 0.0, "" if record["dead_bytes_exact"] else "about "
    on_disk = sum(sizes["on_disk"] for sizes in record["file_sizes"].values())
    do = []
    if share >= PAYS:
        do.append(f"winkfs compact {base} (reclaims {about}{size_text(dead)})")
    if files is None:
        do.append(f"winkfs reindex {base} (each program that opens it makes its index)")
    elif files >= MANY and not (catalog and catalog["current"]):
        do.append(f"winkfs reindex {base} (each listing makes the catalog)")
    if record["problems"]:
        do.append(f"winkfs verify {base}")
    variant = record["variant"] + (", classic" if record["classic"] else "")
    compression = record.get("compression")
    return {
        "container": f"{record['base']} ({variant})",
        "files": None if files is None else f"{files:,}",
        "contents": size_text(record["content_bytes"]),
        "on disk": size_text(on_disk),
        "dead": f"{about}{size_text(dead)}, {100 * share:.0f} % of the data",
        **({"compression": _compression_text(compression)} if compression else {}),
        **({"columns": _columns_text(record["fields"])} if "fields" in record else {}),
        "index": _index_text(index),
        "catalog": "none" if catalog is None else "current" if catalog["current"] else "behind",
        "last sync": record["last_sync"],
        **({} if record["clean"] else {"state": "not closed, or more came since"}),
        **({"to do": "; ".join(do)} if do else {}),
        "problems": record["problems"],
    }


def _columns_text(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields.items())


def _index_text(index: Mapping[str, Any]) -> str:
    if "cells" not in index:
        return "none"
    return "current" if index["current"] else f"{size_text(index['tail_bytes'])} behind"


def _compression_text(compression: Mapping[str, Any]) -> str:
    stored, ratio = size_text(compression["compressed_bytes"]), compression["ratio"]
    dictionary = compression["dictionary_bytes"]
    text = f"{compression['codec']}:{compression['level']}, {stored}, ratio {ratio}"
    return text + (f", dictionary of {size_text(dictionary)}" if dictionary else "")


# --- info of a single file ---


def file_record(file: str) -> Record:
    """Return what the superblock of a file has. Raises FormatError for any other file; OSError."""
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
        record["problems"] = [f"{file}: truncated, {record['size']} of {record['filesize']} bytes "
                              "are there"] if cut else []  # fmt: skip
        record["superblock"] = block.record()
        return record


def describe_hindex(block: Mapping[str, int]) -> Record:
    cells, taken, live = block["HTSIZE"], block.get("ENTRIES", 0), block.get("AENTRIES", 0)
    load = round(taken / cells, 3) if cells > 0 else None
    return {"cells": cells, "taken": taken, "live_entries": live, "load_factor": load}


DESCRIBE: Final[dict[tuple[int, str], Callable[[Superblock], Record]]] = {
    (0x10, ""): lambda block: {
        "entries": block.get("ENTRIES"), "live_entries": block.get("AENTRIES"),
    },
    (0x10, "FSYSTIME"): lambda block: {
        "marks": block.get("ENTRIES"), "seconds_between": block.get("TIMEMP"),
        "last_mark": time_text(block.get("TIMEMARK")),
        "last_mtime": time_text(block.get("LASTMT")),
    },
    (0x20, ""): describe_hindex,
    (0x30, ""): lambda block: {"pairs": block.get("PERMSIZE")},
}  # fmt: skip
"""By FORMAT and PURPOSE; "" for any other purpose."""
