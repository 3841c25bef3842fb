"""LogStore: records by number in an append-only log, with transactions and snapshots."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.stores.logstore.log import Full
    from winkfs.stores.logstore.store import LogStore, Snapshot
    from winkfs.stores.logstore.transaction import Conflict, Transaction

__all__ = ["Conflict", "Full", "LogStore", "Snapshot", "Transaction"]
__getattr__ = exports(
    globals(),
    {
        "Conflict": "transaction", "Full": "log", "LogStore": "store", "Snapshot": "store",
        "Transaction": "transaction",
    },
)  # fmt: skip
