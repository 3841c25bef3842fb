"""LogStore: records by number in an append-only log, with transactions and snapshots."""

from winkfs.stores.logstore.log import Full as Full
from winkfs.stores.logstore.store import Conflict as Conflict
from winkfs.stores.logstore.store import LogStore as LogStore
from winkfs.stores.logstore.store import Snapshot as Snapshot
from winkfs.stores.logstore.store import Transaction as Transaction
