"""Shuffled epochs from a store of objects, for bench_loaders.py --remote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench_remote import use_s3
from loader_rivals import BATCH, batches
from webstore import BUCKET, S3, Store

import winkfs


def wink(store: Store, system: Any, local: Path) -> int:
    """By windows that are read ahead, without a cache on the disk."""
    use_s3(store)
    rows = winkfs.Rows(f"s3://{BUCKET}/winkfs/c")
    sampler = winkfs.Sampler(rows, BATCH)
    return sum(1 for _ in winkfs.Stream(rows, sampler))


def mds(store: Store, system: Any, local: Path) -> int:
    system.load()
    os.environ.update({name.upper(): value for name, value in S3.items()})
    os.environ["S3_ENDPOINT_URL"] = store.endpoint
    data = system.lib.StreamingDataset(
        remote=f"s3://{BUCKET}/mds", local=str(local), shuffle=True, batch_size=BATCH,
        num_canonical_nodes=1,
    )  # fmt: skip
    return sum(1 for _ in data)


def lance(store: Store, system: Any, local: Path) -> int:
    system.load()
    options = {**S3, "aws_endpoint": store.endpoint}
    data = system.lib.dataset(f"s3://{BUCKET}/lance", storage_options=options)
    found = 0
    for numbers in batches(system.count):
        found += len(data.take(numbers, columns=["content"])["content"].to_pylist())
    return found


EPOCHS: Final[dict[str, Callable[[Store, Any, Path], int]]] = {
    "Blocks": wink, "Mds": mds, "Lance": lance,
}  # fmt: skip
