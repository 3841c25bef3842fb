"""Stores of records by id, winkfs's and others, that answer to the same calls.

A store is opened anew for each part of a benchmark. `put` and `remove` of one record are a
transaction of their own where there are transactions; those of many are one. `durable` stores
sync each.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from common import MAP_SIZE, lmdb_module

from winkfs.stores.messagestore.store import MessageStore, create

Pairs = Sequence[tuple[bytes, bytes]]  # id, body
CACHE: Final = 1 << 30  # bytes of RocksDB's cache of blocks: all that is read again is in memory
BUFFER: Final = 64 << 20  # bytes of RocksDB's table in memory; its own default


class Rival(ABC):
    """A store at `path`. Its calls are attributes, which are bound functions."""

    put: Callable[[bytes, bytes], object]
    get: Callable[[bytes], bytes]
    remove: Callable[[bytes], object]
    put_many: Callable[[Iterable[tuple[bytes, bytes]]], object]
    get_many: Callable[[Sequence[bytes]], Sequence[bytes]]
    remove_many: Callable[[Sequence[bytes]], object]

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self.path, self.durable = path, durable

    @abstractmethod
    def open(self, *, new: bool = False) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def files(self) -> list[Path]:
        return [path for path in self.path.rglob("*") if path.is_file() and path.stat().st_size]


class Messages(Rival):
    """winkfs. Unsynced writes are in memory until a buffer of 1 MiB is full."""

    def open(self, *, new: bool = False) -> None:
        if new:
            create(os.fspath(self.path))
        self.store = store = MessageStore(self.path, "a", sync="always" if self.durable else "none")
        self.put, self.get, self.remove = store.write, store.read, store.remove
        self.put_many, self.get_many = store.write_many, store.read_many
        self.remove_many = store.remove_many

    def close(self) -> None:
        self.store.close()
        del self.put, self.get, self.remove, self.put_many, self.get_many, self.remove_many


class Sqlite(Rival):
    """One table, whose key is the id, of this type. WAL."""

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = False,
        synchronous: str = "NORMAL",
        key: str = "BLOB",
    ) -> None:
        super().__init__(path, durable=durable)
        self.key = key
        self.synchronous = "FULL" if durable else synchronous

    def open(self, *, new: bool = False) -> None:
        self.path.mkdir(exist_ok=True)
        self.db = db = sqlite3.connect(self.path / "db", isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={self.synchronous}")
        if new:
            db.execute(f"CREATE TABLE records (id {self.key} PRIMARY KEY, body BLOB)")
        run = db.execute
        self.put = lambda id, body: run("INSERT INTO records VALUES (?, ?)", (id, body))
        self.get = lambda id: run("SELECT body FROM records WHERE id = ?", (id,)).fetchone()[0]
        self.remove = lambda id: run("DELETE FROM records WHERE id = ?", (id,))

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._all("INSERT INTO records VALUES (?, ?)", pairs)

    def get_many(self, ids: Sequence[bytes]) -> Sequence[bytes]:
        marks = ",".join("?" * len(ids))
        found = dict(self.db.execute(f"SELECT * FROM records WHERE id IN ({marks})", ids))
        return [found[id] for id in ids]

    def remove_many(self, ids: Sequence[bytes]) -> None:
        self._all("DELETE FROM records WHERE id = ?", ([id] for id in ids))

    def _all(self, statement: str, rows: Iterable[Any]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany(statement, rows)
        self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()


class Lmdb(Rival):
    def __init__(self, path: Path, *, durable: bool = False, writemap: bool = False) -> None:
        super().__init__(path, durable=durable)
        self.writemap = writemap

    def open(self, *, new: bool = False) -> None:
        self.env = lmdb_module().open(
            os.fspath(self.path), map_size=MAP_SIZE, sync=self.durable, writemap=self.writemap
        )
        self.begin = self.env.begin

    def put(self, id: bytes, body: bytes) -> None:
        with self.begin(write=True) as transaction:
            transaction.put(id, body)

    def get(self, id: bytes) -> bytes:
        with self.begin() as transaction:
            found: bytes = transaction.get(id)
        return found

    def remove(self, id: bytes) -> None:
        with self.begin(write=True) as transaction:
            transaction.delete(id)

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        with self.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs)

    def get_many(self, ids: Sequence[bytes]) -> Sequence[bytes]:
        with self.begin() as transaction:
            return list(map(transaction.get, ids))

    def remove_many(self, ids: Sequence[bytes]) -> None:
        with self.begin(write=True) as transaction:
            for id in ids:
                transaction.delete(id)

    def close(self) -> None:
        self.env.close()
        del self.env, self.begin


class Rocks(Rival):
    """Not compressed: bodies are random. Without its log (`wal`), what is in memory is lost."""

    def __init__(self, path: Path, *, durable: bool = False, wal: bool = True) -> None:
        super().__init__(path, durable=durable)
        self.wal = wal

    def open(self, *, new: bool = False) -> None:
        rocks = rocks_module()
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocks.DBCompressionType.none())
        options.set_write_buffer_size(BUFFER)
        table = rocks.BlockBasedOptions()
        table.set_block_cache(rocks.Cache(CACHE))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        writes = rocks.WriteOptions()
        writes.sync = self.durable
        writes.disable_wal = not self.wal
        self.db = db = rocks.Rdict(os.fspath(self.path), options)
        db.set_write_options(writes)
        self.put, self.get, self.remove = db.__setitem__, db.__getitem__, db.__delitem__
        self.get_many = db.__getitem__
        self.batch, self.write = partial(rocks.WriteBatch, raw_mode=True), db.write

    def put_many(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        batch = self.batch()
        put = batch.put
        for id, body in pairs:
            put(id, body)
        self.write(batch)

    def remove_many(self, ids: Sequence[bytes]) -> None:
        batch = self.batch()
        for id in ids:
            batch.delete(id)
        self.write(batch)

    def close(self) -> None:
        self.db.close()
        del self.db, self.put, self.get, self.remove, self.get_many, self.write


def rocks_module() -> ModuleType:
    """RocksDB, or one line that says how to get it."""
    try:
        import rocksdict
    except ImportError:
        sys.exit("RocksDB, a rival, is not installed: pip install 'winkfs[bench]'")
    module: ModuleType = rocksdict
    return module


RIVALS: Final[dict[str, Callable[..., Rival]]] = {
    "SQLite, NORMAL": partial(Sqlite, synchronous="NORMAL"),
    "SQLite, OFF": partial(Sqlite, synchronous="OFF"),
    "LMDB": Lmdb,
    "LMDB, writemap": partial(Lmdb, writemap=True),
    "RocksDB, WAL": Rocks,
    "RocksDB, no WAL": partial(Rocks, wal=False),
}


def parts_of(items: Sequence[Any], size: int) -> Iterable[Any]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
