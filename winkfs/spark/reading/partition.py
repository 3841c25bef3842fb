"""Tasks of a scan of Spark, and the division of pieces into tasks of equal weight.

A task is sent a Scan or an Ordered. Both are small.
"""

from __future__ import annotations

import os
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from winkfs.arrow.pieces import Piece, PlannedPiece, divide
from winkfs.remote.find import links_to
from winkfs.remote.links import Links

if TYPE_CHECKING:
    from winkfs.spark.reading.options import Options

MAX_TASK: Final = 512 << 20  # bytes of a task; smaller ones have more overhead
MIN_TASK: Final = 16 << 20  # bytes that are worth a task
MAX_SENT_ROWS: Final = 1 << 20  # rows of a task that is sent their positions, about 2 MiB


class Scan(InputPartition):  # type: ignore[misc]
    """A task that reads pieces one after another, in the order of the inodes.

    links  to objects that it reads, see `linked`
    """

    links: Links = {}  # noqa: RUF012

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class Ordered(InputPartition):  # type: ignore[misc]
    """A task that reads visible files in a given order.

    pieces  whole containers
    shard   packed index into `pieces` of each file; pos: packed position of its inode
    order   instead: folder, part, first and last row of an order, see `winkfs.results.orders`
    links   as of a Scan
    """

    links: Links = {}  # noqa: RUF012

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        shard: bytes = b"",
        pos: bytes = b"",
        order: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(None)
        self.pieces, self.shard, self.pos, self.order = pieces, shard, pos, order


def task_count(options: Options, weight: int, rows: int) -> int:
    """Return the number of tasks for a total weight and a number of rows."""
    if options.split is not None:
        count = -(-weight // options.split)
    else:
        cores = len(os.sched_getaffinity(0))
        count = max(-(-weight // MAX_TASK), min(weight // MIN_TASK, cores))
        even = -(-count // cores) * cores
        count = even if even * MIN_TASK <= weight else count
    return max(count, options.partitions, -(-rows // MAX_SENT_ROWS), 1)


def linked(tasks: list[Scan | Ordered]) -> list[Scan | Ordered]:
    """Give tasks links to what they read on object storage, so that executors need no keys."""
    links = links_to(piece.base for task in tasks for piece in task.pieces)
    for task in tasks if links else ():
        task.links = dict(
            chain.from_iterable(links.get(piece.base, {}).items() for piece in task.pieces)
        )
    return tasks


def scans(options: Options, parts: list[PlannedPiece]) -> list[Scan | Ordered]:
    """Divide parts, in their order, into tasks of equal weight."""
    weight = sum(map(attrgetter("weight"), parts))
    rows = sum(len(part.rows) for part in parts if part.rows is not None)
    count = task_count(options, weight, rows)
    return list(map(Scan, divide(parts, count)))
