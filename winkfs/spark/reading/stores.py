"""Stores of the paths of a query, their columns, and stores that are read by name.

A container or a data set is planned and read by bytes, a store of records as described in
`records`. For other kinds of store the planner lists the files, and tasks read them by name.
"""

from __future__ import annotations

import contextlib
import glob
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from winkformats.disk.paths import absolute
from winkformats.disk.schemes import is_far
from winkfs.arrow.named import FoundStore, is_records
from winkfs.arrow.named import part_of as named_part
from winkfs.arrow.pieces import PlannedPiece
from winkfs.errors import NoSuchFile
from winkfs.names import DATA, base_of
from winkfs.registry import find_kind
from winkfs.spark.reading.options import ALIASES, FIELDS, REFS, Options, column_of, type_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from winkfs.dataset.manifest import AsOf
    from winkfs.dataset.shard import Shard
    from winkfs.dataset.snapshot import Snapshot

STORES: Final = "stores"  # their key in `Options.seen`


def stores_of(sources: Iterable[str]) -> list[FoundStore]:
    """Return the stores that paths and patterns name, each once, with absolute paths.

    raises  NoSuchFile
    """
    return list({path: (kind, path) for one in sources for kind, path in _expand(one)}.values())


def _expand(source: str) -> list[FoundStore]:
    path = absolute(source)
    if found := _open_store(path):
        return [found]
    if not glob.has_magic(path) or is_far(path):
        raise NoSuchFile(f"no such container or data set (there is no BASE{DATA})", source)
    names = {*glob.glob(path), *(base_of(name) for name in glob.glob(base_of(path) + DATA))}
    if many := [found for name in sorted(names) if (found := _open_store(name))]:
        return many
    raise NoSuchFile("no container or data set fits this pattern", source)


def _open_store(path: str) -> FoundStore | None:
    """Return the store at a path, None if there is none with files to read."""
    found = find_kind(path)
    return found if found is not None and found[0].has("open") else None


def found_stores(options: Options) -> list[FoundStore]:
    """Return `stores_of` the options, which are searched once."""
    if STORES not in options.seen:
        options.seen[STORES] = stores_of(options.sources)
    found: list[FoundStore] = options.seen[STORES]
    return found


def snapshot_of(options: Options, store: FoundStore) -> Snapshot:
    """Return the snapshot of a container or data set, which is read once. Raises as `snapshot`."""
    kind, path = store
    key = path, pinned(options.as_of, path)
    if key not in options.seen:
        options.seen[key] = kind.function("shards", path)(*key)
    found: Snapshot = options.seen[key]
    return found


def shards_of(options: Options, stores: Iterable[FoundStore]) -> list[tuple[Shard, int]]:
    """Return the shards of containers and data sets, each with its generation.

    raises  ValueError for a store of another kind; as `snapshot`
    """
    shards = []
    for kind, path in stores:
        if not kind.has("shards"):
            raise ValueError(f"{path}: is a {kind.name}: that is for containers and data sets")
        seen = snapshot_of(options, (kind, path))
        shards += [(shard, seen.generation) for shard in seen.shards]
    return shards


def pinned(as_of: AsOf, path: str) -> AsOf:
    """Return the time or generation of a store. A plan that was made before names generations as a
    JSON object by the paths of their stores, see `lazy`."""
    if isinstance(as_of, str) and as_of.startswith("{"):
        found: int | None = json.loads(as_of).get(path)
        return found
    return as_of


def worth_opening(options: Options, shards: list[tuple[Shard, int]]) -> list[tuple[Shard, int]]:
    """Return the shards that may have selected files, by their records in the manifest."""
    if options.selection.everything:
        return shards
    from winkfs.dataset.shard import may_have

    found = may_have([shard for shard, _ in shards], options.selection)
    return [one for one, may in zip(shards, found, strict=True) if may]


# --- stores that are read by name ---


def part_of(options: Options, contents: bool, store: FoundStore) -> PlannedPiece | None:
    """Return the selected files of a store; None: there are none. Cost: a scan."""
    kind, path = store
    if options.as_of is not None:
        raise ValueError(f"{path}: a {kind.name} has no generations: asOf is for a data set")
    try:
        return named_part((kind, path), options.selection, contents, refs=options.content == "ref")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# --- columns ---


def typed_of(options: Options) -> dict[str, str]:
    """Return the columns of the stores beside the built-in ones: name -> type.

    cost  reads the superblock of a container, or the manifest of a data set; opens other stores
    """
    from winkfs.dataset.records import union

    found = []
    for kind, path in found_stores(options):
        if options.changes and kind.versions:  # also of shards that were removed since
            from winkfs.dataset.manifest import Log

            log = Log(path)
            made = log.manifests(log.newest(), log.head().oldest)
            found += [record.schema for manifest in made for record in manifest.added]
        if kind.has("shards"):
            found.append(snapshot_of(options, (kind, path)).columns)
        else:
            with kind.function("open", path)(path) as reader:
                found.append(reader.columns)
    return union(found)


def _all_records(options: Options) -> bool:
    """Return whether all stores are stores of records."""
    for kind, path in found_stores(options):
        if kind.has("shards"):
            return False
        with kind.function("open", path)(path) as reader:
            if not is_records(reader):
                return False
    return True


def _asked_for(options: Options, names: Iterable[str]) -> dict[str, str]:
    """Return the columns of the user if one of the names is not built in, else none."""
    own = {*map(str.lower, FIELDS), *ALIASES}
    return _there(options) if any(name.lower() not in own for name in names) else {}


def _there(options: Options) -> dict[str, str]:
    """Return `typed_of`, or none if a store is missing, which the planner reports."""
    with contextlib.suppress(OSError):
        return typed_of(options)
    return {}


def ddl_of(options: Options) -> str:
    """Return the default schema as DDL. Raises ValueError for a wrong column."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields_of(options))


def fields_of(options: Options) -> list[tuple[str, str]]:
    """Return name and SQL type of each column of the default schema. Raises ValueError for a wrong
    column."""
    if options.columns is not None:
        names, typed = options.columns, _asked_for(options, options.columns)
    else:
        typed = {} if options.binary_file else _there(options)
        names = _default(options, typed)
    fields = [(name, type_of(column_of(name, typed), typed)) for name in names]
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"option columns names a column twice: {','.join(names)}")
    return fields


def _default(options: Options, typed: Iterable[str]) -> tuple[str, ...]:
    named: tuple[str, ...] = ("path", "modificationTime", "length") if options.binary_file else (
        "path", "size", "mtime",
    )  # fmt: skip
    content = {"inline": ("content",), "lazy": ("content",), "ref": REFS, "none": ()}[
        options.content
    ]
    if "id" in typed and _all_records(options):
        named, typed = ("id", "size"), [name for name in typed if name != "id"]
    found = (*named, *content, *typed, *(("_error",) if options.mode == "PERMISSIVE" else ()))
    return (*found, "_change", "_generation") if options.changes else found


def check(schema: StructType, options: Options) -> tuple[list[str], dict[str, str]]:
    """Check a schema -> its columns, and the types of those of the user.

    raises  ValueError
    """
    typed = _asked_for(options, [field.name for field in schema.fields])
    columns = []
    for given in schema.fields:
        column = column_of(given.name, typed)
        found, wanted = given.dataType.simpleString(), type_of(column, typed)
        if found != wanted:
            raise ValueError(f"column {given.name} is {wanted}, not {found}: cast it after load()")
        columns.append(column)
    names = [field.name.lower() for field in schema.fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the schema names a column twice: {', '.join(sorted(twice))}")
    return columns, {name: kind for name, kind in typed.items() if name in columns}
