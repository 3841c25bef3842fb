"""The cast of the container: which modules build a table of files, make a pass over a data file,
and read an entry. Each has its reason."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import house

pytestmark = pytest.mark.slow

TABLES = {
    "container.table": "defines it",
    "container.bulk": "of what is put",
    "container.survey": "of inodes",
    "container.ondisk.block": "of blocks of the catalog",
    "container.namesorter": "of blocks of its scratch file",
    "container.catalog": "of names that are gone",
    "container.select": "of one inode that a condition is asked of",
    "mounting.datasetnames": "of names of several shards",
    "arrow.records": "of records of a store",
    "tables": "of files of another store, as `Stat`",
    "container.directories": "of directories without an entry",
    "cli.find": "of the last parts of names",
}
PASSES = {
    "container.survey": "defines it: entries and inodes of a range, damage to a callback",
    "container.recovery": "rebuild and replay",
    "container.verify": "with all checks; and of BASE.cat",
    "container.repair": "what is there in a damaged file",
    "container.compact": "what lives goes to another file",
    "container.salvage": "whatever is intact, whatever else is not",
    "container.frames": "dictionaries that the superblock has lost",
    "container.ondisk.time": "BASE.time",
    "archive.copying": "what a copy has, or gets",
    "dataset.shard": "the record of a shard without a catalog",
    "dataset.compaction": "bytes that a compaction would give back",
    "results.check": "a digest set",
    "results.digestshard": "a digest set",
    "mounting.appendonly": "files by time",
    "spark.streaming": "a batch of an append-only container",
}
ENTRIES = {
    "container.datafile": "defines it: an entry by position",
    "container.read": "contents of one file and of many",
    "container.short": "one file by pread, for threads without the lock",
    "container.survey": "inodes at positions, and their attributes",
    "container.scan": "in the window of a scan",
    "container.recovery": "which delflags are due",
    "container.checks": "what extents point to",
    "container.repair": "what an inode has left",
    "container.compact": "what lives",
    "container.copier": "what lives, for another container",
    "container.salvage": "inodes behind broken lengths",
    "container.frames": "dictionaries",
    "remote.signed": "where in the data file contents are",
    "container.write": "what a handle of several syncs has in memory",
    "container.select": "attributes that a condition is asked of",
    "container.ondisk.chain": "inodes that build on others",
    "container.ondisk.inode": "attributes",
    "mounting.lookup": "what a mount reads, by pread",
    "arrow.rows": "contents as an Arrow array",
    "results.digestshard": "records of a digest set",
}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(house.tree(path)))


def dotted(function: ast.expr) -> str:
    """Return the text of a name with its dots; "()": what is no name."""
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "()"


@functools.cache
def calls(path: Path) -> set[str]:
    """What a module calls."""
    return {dotted(node.func) for node in nodes(path) if isinstance(node, ast.Call)}


def builds_a_table(path: Path) -> bool:
    return not calls(path).isdisjoint(["FileTable", "FileTable.of"])


def makes_a_pass(path: Path) -> bool:
    wanted = {"scan", "scan_intact", "dead_bytes", "inode_rows"}
    wanted |= {f"kvscan.{name}" for name in wanted}
    ours = "from winkformats.kv import scan" in path.read_text() or any(
        isinstance(node, ast.ImportFrom)
        and node.module in ("winkformats.kv.scan", "winkfs.container.survey")
        and not wanted.isdisjoint(alias.name for alias in node.names)
        for node in nodes(path)
    )
    return ours and not wanted.isdisjoint(calls(path))


def reads_an_entry(path: Path) -> bool:
    ends = ("kv.get", "kv.get_many", "layout.read", "layout.decode", "entry_at")
    return (
        any(
            text.endswith(ends) or text in ("values_at", "entries_at", "lookup.value")
            for text in calls(path)
        )
        or "kv.get," in path.read_text()
    )


@pytest.mark.parametrize(
    ("does", "reasons"),
    [(builds_a_table, TABLES), (makes_a_pass, PASSES), (reads_an_entry, ENTRIES)],
)
def test_the_list_is_that_of_the_code(
    does: Callable[[Path], bool], reasons: dict[str, str]
) -> None:
    ours = {
        name.removeprefix("winkfs."): path
        for name, path in house.modules().items()
        if name.startswith("winkfs.") and not name.startswith("winkfs.stores.")
    }
    found = {name for name, path in ours.items() if does(path)}
    assert found == set(reasons)
