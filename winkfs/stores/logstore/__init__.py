"""LogStore: records by number in an append-only log, with transactions and snapshots."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.stores.logstore.log import Full as Full
    from winkfs.stores.logstore.store import LogStore as LogStore
    from winkfs.stores.logstore.store import Snapshot as Snapshot
    from winkfs.stores.logstore.transaction import Conflict as Conflict
    from winkfs.stores.logstore.transaction import Transaction as Transaction

HOME = {
    "Conflict": "transaction", "Full": "log", "LogStore": "store", "Snapshot": "store",
    "Transaction": "transaction",
}  # fmt: skip
__getattr__ = exports(globals(), HOME)
