"""Orders, published as a job does it."""

from __future__ import annotations

from pathlib import Path

from winkfs.results import orders
from winkfs.results import store as results
from winkfs.results.orders import Order, OrderedFiles, OrderedShard

SHARDS = (OrderedShard("job/00000-0", 1, 5000), OrderedShard("job/00001-0", 2, 6000))


def make(
    target: Path,
    *parts: OrderedFiles,
    kind: str = "sort",
    of: Path | str = "/corpus",
    generation: int = 3,
    shards: tuple[OrderedShard, ...] = SHARDS,
    most: int = 1000,
) -> Order:
    """Publish an order of these files -> the order, as it is read again.

    of      the container or data set
    most    files of a part
    """
    folder = results.begin(target, orders.NAME)
    written = [
        orders.write_part(folder / f"part-{i:05d}.perm", [part], most)
        for i, part in enumerate(parts)
    ]
    order = Order(folder, str(of), generation, kind, "path", shards, tuple(written))
    orders.publish(folder, order)
    return orders.open(target)
