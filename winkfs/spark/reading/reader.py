"""Reader of a scan: plans it in a short process on the driver, reads its partitions in tasks.

Shards of a data set never change: a task gets a range of positions and finds the files itself. A
container may grow while a query runs, so its tasks get their files as of the plan, or the place of
the catalog that has them. Planning that opens containers is in `selected`, which is imported only
if a query needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from winkfs.arrow.pieces import OPEN, PlannedPiece, listed, piece_of, weight_of
from winkfs.spark.reading.options import Options, arrow_schema
from winkfs.spark.reading.partition import Ordered, Scan, linked, scans, task_count

TASK_CONTENT: Final = 2 << 30  # bytes of content of a task that reads them lazily

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from winkfs.dataset.shard import Shard


PARTS_OF_TASK: Final = 4  # shards of a listing that are not cut, if so many make a task


class WinkfsReader(DataSourceReader):  # type: ignore[misc]  # PySpark has no types
    """Plans a scan, and reads its partitions."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the schema. Raises ValueError for an unknown column."""
        from winkfs.spark.reading.stores import check

        self.columns, typed = check(schema, options)
        self.settings: dict[str, Any] = {
            "batch": options.batch, "largest": options.largest, "mode": options.mode,
            "verify": options.verify, "include_dirs": options.include_dirs,
            "typed": typed,
        }  # fmt: skip
        self.fields = schema
        self.options: Options | None = options

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"options": None}  # tasks do not need them, and they may be long

    def partitions(self) -> list[Scan | Ordered]:
        assert self.options is not None
        if "_ref" in self.columns:
            return linked(numbered(self.options))
        return linked(partitions(self.options, contents="content" in self.columns))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from winkfs.arrow.batches import Reading
        from winkfs.spark.reading.batches import batches

        return batches(Reading(arrow_schema(self.fields), self.columns, **self.settings), partition)


class FilteringReader(WinkfsReader):
    """Reader that uses filters of the query to read less. Spark applies the filters, too."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        from winkfs.spark.reading.pushdown import narrowed

        assert self.options is not None
        selection = narrowed(self.options.selection, filters)
        self.options = replace(self.options, selection=selection)
        return filters


def partitions(options: Options, *, contents: bool) -> list[Scan | Ordered]:
    """Return the tasks of a scan.

    contents  whether contents are read, not only metadata
    raises    NoSuchFile, StalePlan, ValueError, FormatError, OSError
    cost      without a selection only reads the manifest; with one, see `select` for each shard
              that may have such files by its names and mtimes in the manifest
    """
    from winkfs.spark.reading.stores import (
        found_stores,
        part_of,
        shards_of,
        typed_of,
        worth_opening,
    )

    stores = found_stores(options)
    if options.changes:
        from winkfs.spark.reading.selected import changes

        return changes(options, contents, stores)
    if options.selection.where is not None:
        bound = options.selection.where.bound(typed_of(options))
        options = replace(options, selection=replace(options.selection, where=bound))
    if options.order.startswith("perm:"):
        from winkfs.spark.reading.selected import by_order

        return by_order(options, contents, stores)
    if options.order != "offset":
        from winkfs.spark.reading.selected import in_order

        shards = shards_of(options, stores)
        return in_order(options, contents, worth_opening(options, shards))
    parts, named = list[PlannedPiece](), list[PlannedPiece]()
    for kind, path in stores:
        if not kind.has("shards"):
            if part := part_of(options, contents, (kind, path)):
                named.append(part)
        elif kind.versions or options.as_of is not None:
            shards = worth_opening(options, shards_of(options, [(kind, path)]))
            parts += _pieces(options, contents, shards)
        else:
            from winkfs.spark.reading.selected import part_now

            if part := part_now(options, contents, path):
                parts.append(part)
    return scans(options, parts + named)


def _pieces(
    options: Options, contents: bool, shards: list[tuple[Shard, int]]
) -> Iterable[PlannedPiece]:
    """Return the pieces of the shards of a data set."""
    chosen = options.selection
    if (contents and not chosen.everything) or chosen.paths is not None:
        from winkfs.spark.reading.chosen import for_tasks

        found = for_tasks(options, shards, contents)
        if found is not None:
            return found
    weight = sum(OPEN + weight_of(shard, contents) for shard, _ in shards)
    count = task_count(options, weight, 0)
    least = weight / count / PARTS_OF_TASK if count > 1 else weight
    return itertools.chain.from_iterable(
        _parts(options, contents, shard, number, least) for shard, number in shards
    )


def numbered(options: Options) -> list[Scan | Ordered]:
    """Return the tasks of a scan without contents whose pieces have the numbers of their containers
    in the plan, see `lazy.Places`. A whole scan has tasks of at most TASK_CONTENT bytes."""
    from winkfs.spark.reading.stores import found_stores, shards_of

    stores = found_stores(options)
    shards = [shard for shard, _ in shards_of(options, stores)]
    if options.selection.everything and options.split is None:
        content = sum(shard.record.size for shard in shards)
        options = replace(options, partitions=max(options.partitions, content // TASK_CONTENT))
    numbers = {shard.base: number for number, shard in enumerate(shards)}
    tasks = partitions(options, contents=False)
    for task in tasks:
        task.pieces = tuple(replace(piece, number=numbers[piece.base]) for piece in task.pieces)
    return tasks


def _parts(
    options: Options, contents: bool, shard: Shard, generation: int, least: float
) -> Iterator[PlannedPiece]:
    """Yield the piece of a shard; a listed one of more than the least weight can be cut."""
    whole, weight = piece_of(shard, generation), OPEN + weight_of(shard, contents)
    if not shard.grows and shard.record.files <= len(shard.hidden):
        return
    if not shard.grows and not contents and options.selection.paths is None:
        part = PlannedPiece(listed(whole, options.selection), weight, shard.hidden)
        if weight > least:
            from winkfs.spark.reading.selected import with_cuts

            part = with_cuts(options, part, shard)
        yield part
        return
    if not shard.grows and options.selection.everything:
        yield PlannedPiece(whole, weight, shard.hidden)
        return
    from winkfs.spark.reading.selected import part_now

    if now := part_now(options, contents, shard.base, shard, generation):
        yield now
