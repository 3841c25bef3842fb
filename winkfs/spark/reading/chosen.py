"""Selections with contents whose files the tasks choose, not the planner.

A task gets a range of positions of a container and the selection, and reads the catalog itself. So
a plan costs nothing for each file. The weight of a piece is estimated: the selection is tried on a
few blocks of the catalogs of a few shards.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import Final, NamedTuple

from winkformats.errors import CorruptError
from winkfs.arrow.pieces import OPEN, ROW, Chosen, Piece, PlannedPiece, piece_of
from winkfs.container.catalog import open_catalog
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.select import listed, query_of, rows_now
from winkfs.container.store import Store
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.errors import DerivedDamage
from winkfs.spark.reading.options import Options

MAX_DECIDED: Final = 1 << 17  # files up to which the planner chooses: its tasks weigh the same,
OPENING: Final = 512  # where a shard counts as so many
LOOK: Final = 64  # weight of a file that is looked at, bytes
LEAST_SHARE: Final = 1 / 16  # of the content, since files that are chosen may be close together
FEW_SHARDS: Final = 2  # shards in which the planner looks up paths
SAMPLED_SHARDS: Final = 2
SAMPLED_BLOCKS: Final = 8  # of a shard


class Sample(NamedTuple):
    """Of some containers: files, those looked at and chosen, bytes of content, and of that chosen.
    All but the first and the fourth are estimated."""

    files: float = 0
    looked: float = 0
    chosen: float = 0
    content: float = 0
    chosen_content: float = 0

    def weight(self, files: int, content: int) -> int:
        """Return the weight of a container with so many files and bytes."""
        files_share = files / max(self.files, 1)
        share = max(self.chosen_content / max(self.content, 1), LEAST_SHARE)
        rows = (LOOK * self.looked + ROW * self.chosen) * files_share
        return OPEN + int(rows + share * content)


def for_tasks(
    options: Options, shards: list[tuple[Shard, int]], contents: bool
) -> list[PlannedPiece] | None:
    """Return pieces whose tasks choose their files; None: the planner is to choose them.

    shards  of a data set, those that may have such files
    raises  StalePlan; FormatError; OSError
    cost    opens SAMPLED_SHARDS of them, and reads SAMPLED_BLOCKS blocks of each; none for paths
    """
    if options.selection.paths is not None:
        return None if len(shards) <= FEW_SHARDS else _looked_up(options, shards, contents)
    files = sum(shard.record.files for shard, _ in shards)
    if _few(files, len(shards)):
        return None
    found = []
    for shard, _ in shards[:: -(-len(shards) // SAMPLED_SHARDS)]:
        with shard.open(load=False) as store:
            catalog = open_catalog(store, behind=0)
            found.append(_sampled(options, store, catalog, shard.record.files))
    sample = Sample(*map(sum, zip(*found, strict=True)))
    if _few(files * sample.looked / max(sample.files, 1), len(shards)):
        return None
    return [
        PlannedPiece(
            _chosen(options, piece_of(shard, number)),
            sample.weight(shard.record.files, shard.record.content), shard.hidden,
        )
        for shard, number in shards
        if shard.record.files > len(shard.hidden)
    ]  # fmt: skip


def _looked_up(
    options: Options, shards: list[tuple[Shard, int]], contents: bool
) -> list[PlannedPiece]:
    """Return pieces whose tasks look up the paths of the selection. Their weights are as if each
    shard had equally many of these."""
    count = len(options.selection.paths or ())
    found = []
    for shard, number in shards:
        record, there = shard.record, count / len(shards)
        content = record.content / max(record.files, 1) if contents else 0
        weight = OPEN + int(LOOK * count + there * (ROW + content))
        found.append(PlannedPiece(_chosen(options, piece_of(shard, number)), weight, shard.hidden))
    return found


def of_container(options: Options, shard: Shard, store: Store) -> PlannedPiece | None:
    """Return such a piece of a container that may grow; None: the planner is to choose its files,
    also if the catalog is not current."""
    if options.selection.paths is not None:
        return None
    catalog = open_catalog(store, behind=0)
    if catalog is None or _few(catalog.row_count, 1):
        if catalog is not None:
            catalog.close()
        return None
    files, place = catalog.row_count, catalog.place
    sample = _sampled(options, store, catalog, files)
    if _few(sample.looked, 1):
        return None
    piece = replace(_chosen(options, piece_of(shard, 0)), place=place)
    return PlannedPiece(piece, sample.weight(files, shard.record.content), NOTHING)


def _chosen(options: Options, whole: Piece) -> Chosen:
    return Chosen(
        whole.base, whole.contid, whole.size, whole.grows, whole.low, whole.high,
        generation=whole.generation, selection=options.selection,
        strict=options.mode == "FAILFAST",
    )  # fmt: skip


def _few(files: float, shards: int) -> bool:
    return files + OPENING * shards <= MAX_DECIDED


def _sampled(options: Options, store: Store, catalog: Catalog | None, files: int) -> Sample:
    """Try the selection on a few blocks; without an intact catalog all is chosen. Closes it."""
    content = store.dtotsz
    everything = Sample(files, files, files, content, content)
    if catalog is None:
        return everything
    query, ignore = query_of(options.selection), lambda error: None
    with catalog, contextlib.suppress(DerivedDamage, CorruptError):
        run = catalog.runs[0]
        start = max(bisect_right(run.firsts, query.low) - 1, 0)
        stop = len(run.firsts) if query.high is None else bisect_left(run.firsts, query.high)
        numbers = range(start, stop)[:: max(-(-(stop - start) // SAMPLED_BLOCKS), 1)]
        rows = looked = size = 0
        for number in numbers:
            low = max(run.firsts[number], query.low)
            high = query.high if number + 1 == stop else run.firsts[number + 1]
            looked += run.starts[number + 1] - run.starts[number]
            for found in rows_now(store, catalog, query._replace(low=low, high=high)):
                there = listed(store, found, query, options.selection, ignore)
                rows, size = rows + len(there), size + int(there.size.sum())
        scale = max(stop - start, 0) / max(len(numbers), 1)
        return Sample(files, looked * scale, rows * scale, content, size * scale)
    return everything
