"""onConflict=error: nothing is written over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from winkfs.container.ondisk.inodekeys import SUFFIX
from winkfs.dataset.hidden import hidden_rows
from winkfs.dataset.hiddenfile import hidden_of
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import ShardRecord, State
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.transaction import Transaction
from winkfs.spark.write.shard import conflict


def refuse_doubles(transaction: Transaction, before: State, records: list[ShardRecord]) -> None:
    """Raise FileExists where a file has the name of one in another shard. Cost: 0.5 us a file."""
    old = () if transaction.operation == "overwrite" else before.shards
    place = transaction.location
    new = [replace(r, path=f"{place}/{r.path.rpartition('/')[2]}") for r in records]
    known = hidden_of(Log(transaction.root), before) if old else {}
    known = {record.path: known.get(record.path, NOTHING) for record in old}
    found = hidden_rows(transaction.root, [*old, *new], known)
    for record in [*old, *new]:
        more = np.setdiff1d(found[record.path], known.get(record.path, NOTHING))
        if len(more):
            store = Shard(f"{transaction.root}/{record.path}", record).open()
            try:
                name = store.key_at(int(more[0]))[: -len(SUFFIX)]
            finally:
                store.abandon()
            what = "the data set has this file" if record in old else "two tasks have this path"
            raise conflict(name, what)
