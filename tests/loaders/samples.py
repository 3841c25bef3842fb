"""Containers and data sets for tests of loaders, and what their rows are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import winkfs
import winkfs.dataset
from winkfs.loaders import Rows, Sampler

SMALL: dict[str, Any] = {"batch": 7, "block": 16, "window": 4}


def numbered(base: Path, count: int, size: int = 20) -> str:
    """Make a container of files that are named by their number."""
    with winkfs.create(base) as c:
        c.put_many((f"{i:05}", b"%5d" % i * (size // 5)) for i in range(count))
    return str(base)


def data_set(base: Path, count: int) -> str:
    """Make a data set of three shards, of which the last replaces and deletes files of others."""
    names = [f"{i:05}" for i in range(count)]
    with winkfs.dataset.create(base) as made:
        made.add_columns({"n": "int64"})
        made.put_many((name, name.encode()) for name in names[: count // 2])
    with winkfs.open(base, "a") as made:
        made.put_many((name, name.encode(), None, {"n": 1}) for name in names[count // 2 :])
    with winkfs.open(base, "a") as made:
        made.put(names[0], b"new")
        made.delete(names[1])
    return str(base)


def paths(batches: Iterable[Any]) -> list[list[str]]:
    """Return the paths of the rows of batches."""
    return [[row["path"] for row in batch] for batch in batches]


def epoch(rows: Rows, **options: Any) -> list[list[int]]:
    """Return the batches of a new sampler."""
    return list(Sampler(rows, **{**SMALL, **options}))
