"""The messages of a store as `Records`: their ids in hexadecimal digits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import directory_of
from winkformats.messagestore.index import Rows
from winkformats.messagestore.segment import ID
from winkfs.errors import NoSuchFile
from winkfs.stores.messagestore import broker
from winkfs.stores.messagestore.store import MessageStore
from winkfs.stores.records import HandleRecords, Ids, Part, Progress, Row, batches

ROWS: Final = 1 << 14


def migrate(path: str, progress: Progress | None = None, *, force: bool = False) -> dict[str, Any]:
    """See `MessageStore.migrate`: -> how many segments there were, and messages in them.

    raises  Refusal where the folder is a broker's, unless `force`: no broker reads the result
    """
    if not force:
        found = broker.evidence(directory_of(path))
        broker.check(found, path, more="; no released broker reads the .sqs that migrate writes")
    with closing(MessageStore(path, "a", force=force)) as store:
        return {"segments": store.migrate(progress), "messages": len(store)}


class MessageRecords(HandleRecords):
    """A message store. What is put without an id gets a random one."""

    counts = True
    store: MessageStore

    def __init__(self, path: str, mode: str = "r", **options: Any) -> None:
        """`options`: of `MessageStore`. Raises as that does."""
        super().__init__(path)
        self.store = MessageStore(path, mode, **options)

    def rows(self, *parts: Part) -> Iterator[Row]:
        found = self.store.rows([int(part.file.partition(".")[0]) for part in parts] or None)
        for at in range(0, len(found.file), ROWS):
            yield from self._rows(found.take(np.arange(at, min(at + ROWS, len(found.file)))))

    def _rows(self, found: Rows) -> Iterator[Row]:
        text = found.ids.astype(">u8").tobytes().hex()
        ids = [text[at : at + 2 * ID] for at in range(0, len(text), 2 * ID)]
        files, offsets = found.file.tolist(), found.offset.tolist()
        known = {file: self.store.form(file) for file in set(files)}
        sizes = [
            size - (known[file][1] or self.store.beside(file, offset))
            for file, offset, size in zip(files, offsets, found.size.tolist(), strict=True)
        ]
        names = [known[file][0] for file in files]
        return map(Row, ids, sizes, names, offsets, found.refs.tolist())

    def listing(self) -> Iterator[tuple[Ids, Int64]]:
        for found in self.store.index.rows():
            ids = found.ids.astype(">u8").tobytes().hex().encode()
            yield np.frombuffer(ids, f"S{2 * ID}"), found.size

    def parts(self) -> list[Part]:
        segments = sorted(self.store.segments.items())
        return [Part(segment.name, segment.valid) for _, segment in segments if segment.count]

    def row(self, id: str) -> Row:
        place = self.store.place(_bytes(id))
        if place is None:
            raise NoSuchFile("no such message", f"{self.base}: {id}")
        name, beside = self.store.form(place.file)
        size = place.size - (beside or self.store.beside(place.file, place.offset))
        return Row(id.lower(), size, name, place.offset, place.refs)

    def find(self, ids: Iterable[str]) -> Iterator[Row]:
        yield from self._rows(self.store.places(bytes.fromhex("".join(ids))))

    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        for some in batches(rows):
            yield from self.store.read_many([bytes.fromhex(row.id) for row in some])

    def put(self, id: str | None, body: bytes) -> str:
        msg_id = secrets.token_bytes(ID) if id is None else _bytes(id)
        self.store.write(msg_id, body)
        return msg_id.hex()

    def remove(self, id: str) -> None:
        self.store.remove(_bytes(id))

    def sync(self) -> None:
        self.store.sync()

    def compact(
        self, progress: Callable[[int], None] | None = None, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        return self.store.compact(progress, dry_run=dry_run)._asdict()


def _bytes(id: str) -> bytes:
    try:
        found = bytes.fromhex(id)
    except ValueError:
        found = b""
    if len(found) != ID or len(id) != 2 * ID:
        raise NoSuchFile(f"{id!r} can be no id of a message: that is {2 * ID} hexadecimal digits")
    return found
