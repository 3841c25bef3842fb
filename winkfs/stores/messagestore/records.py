"""Messages of a store as `Records`, with ids in hexadecimal digits; verify, salvage, migrate."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import directory_of
from winkformats.disk.storage import Storage
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import MessageRows, ids_of
from winkformats.messagestore.segment import ID, Message
from winkfs.container.verify import Report
from winkfs.errors import CorruptError, NoSuchFile
from winkfs.stores.messagestore import broker
from winkfs.stores.messagestore.recovery import Segment, listed, load, neutral
from winkfs.stores.messagestore.store import MessageStore, create
from winkfs.stores.records import HandleRecords, Ids, Part, Progress, Row, batches, building

ROWS_AT_ONCE: Final = 1 << 14  # rows made at a time
SEARCH_BYTES: Final = 1 << 20  # bytes searched at a time for the next record
MAX_RECORD_BYTES: Final = 64 << 20  # bytes of a record that the search accepts


def migrate(path: str, progress: Progress | None = None, *, force: bool = False) -> dict[str, Any]:
    """Rewrite segments of version 1, as `MessageStore.migrate`; return their number, and messages.

    raises  Refusal if the folder is a broker's, unless `force`: no broker reads the result
    """
    if not force:
        more = "; no released broker reads the .sqs that migrate writes"
        broker.check(broker.evidence(directory_of(path)), path, more=more)
    with closing(MessageStore(path, "a", force=force)) as store:
        return {"segments": store.migrate(progress), "messages": len(store)}


class MessageRecords(HandleRecords):
    """Messages of a message store. A message that is put without an id gets a random one."""

    counts = True
    store: MessageStore

    def __init__(self, path: str, mode: str = "r", **options: Any) -> None:
        """`options`: those of `MessageStore`. Raises as `MessageStore`."""
        super().__init__(path)
        self.store = MessageStore(path, mode, **options)

    def rows(self, *parts: Part) -> Iterator[Row]:
        found = self.store.rows([int(part.file.partition(".")[0]) for part in parts] or None)
        for at in range(0, len(found.file), ROWS_AT_ONCE):
            yield from self._rows(
                found.take(np.arange(at, min(at + ROWS_AT_ONCE, len(found.file))))
            )

    def _rows(self, found: MessageRows) -> Iterator[Row]:
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
        for found in self.store.core.index.rows():
            ids = found.ids.astype(">u8").tobytes().hex().encode()
            yield np.frombuffer(ids, f"S{2 * ID}"), found.size

    def data_files(self) -> list[Part]:
        segments = sorted(self.store.core.segments.items())
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
        done = self.store.compact(progress, dry_run=dry_run)
        return {
            "files": done.files, "bytes_before": done.before, "bytes_after": done.after,
            "moved": done.moved, "problems": list(done.problems),
        }  # fmt: skip


def _bytes(id: str) -> bytes:
    try:
        found = bytes.fromhex(id)
    except ValueError:
        found = b""
    if len(found) != ID or len(id) != 2 * ID:
        raise NoSuchFile(f"{id!r} can be no id of a message: that is {2 * ID} hexadecimal digits")
    return found


# --- to check, and to salvage ---


def verify(path: str, progress: Callable[[int], None] | None = None) -> Report:
    """Read every message and every record once. Memory: the index, and the ids of a segment."""
    report = Report()
    directory = directory_of(path)
    state = load(directory, report.add, removed=True)
    report.notes += [f"{path}: {note}" for note in (state.recorded.notes if state.recorded else ())]
    rows = MessageRows.joined(list(state.index.rows()))
    for number, segment in state.segments.items():
        try:
            with directory.open(segment.name, follow=False) as storage, neutral(storage):
                _check(segment, storage, rows.take(rows.file == number), report)
        except OSError as error:
            report.add(f"{path}/{segment.name}: {error}")
        if progress is not None:
            progress(segment.size)
    return report


def _check(segment: Segment, storage: Storage, rows: MessageRows, report: Report) -> None:
    """Check that each message of the index is a record, and that the records follow each other."""
    places = zip(ids_of(rows), rows.offset.tolist(), rows.size.tolist(), strict=True)
    for msg_id, offset, size in places:
        report.files += 1
        try:
            data = storage.read(offset, size)
            report.bytes += len(segment.body(data, msg_id, storage.name, offset))
        except CorruptError as error:
            report.add(f"{error}: message {msg_id.hex()}")
    if segment.version is sqs:
        found = sqs.scan(storage)
        if found.error and found.end < segment.size:
            report.add(f"{storage.name}: {found.error_text} at byte {found.end}")


def salvage(path: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
    """Write all messages that can be found into a new store.

    A damaged segment is searched byte by byte for the next record. If the index is good, only its
    messages are written, with their references; otherwise all that are found.

    ->      messages and bytes that were saved, messages of the index and bytes that were lost
    raises  FileExists if the target is not empty; OSError
    """
    problems: list[str] = []
    directory = directory_of(path)
    state = load(directory, problems.append, removed=True)
    recorded = state.recorded.numbers if state.recorded else set()
    saved = taken = lost = 0
    with building(target, "message store") as made:
        create(made, checksums=state.checksums)
        with MessageStore(made, "a") as into:
            for number, segment in listed(directory).items():
                with directory.open(segment.name, follow=False) as storage, neutral(storage):
                    messages, bad = everything(segment, storage)
                    lost += bad
                    for message in messages:
                        place = state.index.get(message.msg_id)
                        known = state.generation or number in recorded
                        if place is None and known and not problems:
                            continue  # it was removed
                        if place is not None and place[:2] != (number, message.offset):
                            continue
                        data = storage.read(message.offset, message.size)
                        try:
                            _, body = segment.version.decode(data, file="", offset=message.offset)
                        except CorruptError:
                            lost += message.size
                            continue
                        if message.msg_id in into:
                            continue
                        for _ in range(1 if place is None else place.refs):
                            into.write(message.msg_id, body)
                        saved += 1
                        taken += len(body)
                if progress is not None:
                    progress(segment.size)
            missing = sum(
                int((~into.core.index.get_many(rows.ids)[1]).sum()) for rows in state.index.rows()
            )
    return {
        "messages": saved, "bytes": taken, "lost_messages": missing, "lost_bytes": lost,
        "problems": problems,
    }  # fmt: skip


def everything(segment: Segment, storage: Storage) -> tuple[list[Message], int]:
    """Return all records of a segment that look whole, and the number of bytes outside of them."""
    if segment.version is rdq:
        survey = rdq.survey(storage)
        return survey.messages, survey.lost_bytes
    found: list[Message] = []
    lost, at, size = 0, sqs.START, storage.size()
    while at < size:
        part = sqs.scan(storage, start=at, checked=True, repeated=True)
        found += part.messages
        if part.end >= size:
            break
        at = _next(storage, part.end + 1, size)
        lost += at - part.end
    return found, lost


def _next(storage: Storage, start: int, size: int) -> int:
    """Return where, from `start` on, a record begins that leads to another record or to the end."""
    for base in range(start, size, SEARCH_BYTES):
        data = storage.read(base, SEARCH_BYTES + sqs.HEAD.size)
        raw = np.frombuffer(data, np.uint8)
        for at in np.flatnonzero(
            (raw[:SEARCH_BYTES] >= sqs.HOLE) & (raw[:SEARCH_BYTES] <= sqs.CHECKED)
        ).tolist():
            if at + sqs.RECORD.size > len(data):
                break
            kind, length = sqs.RECORD.unpack_from(data, at)
            stop = base + at + length
            if (
                sqs.LEAST[kind] <= length <= MAX_RECORD_BYTES
                and stop <= size
                and _leads(storage, stop, size)
            ):
                return base + at
    return size


def _leads(storage: Storage, at: int, size: int) -> bool:
    """Return whether a record may begin here, or the file ends."""
    if at == size:
        return True
    head = storage.read(at, sqs.RECORD.size)
    if head[0] == sqs.SMALL_HOLE:
        return True
    if len(head) < sqs.RECORD.size or head[0] not in sqs.LEAST:
        return False
    kind, length = sqs.RECORD.unpack(head)
    return bool(sqs.LEAST[kind] <= length)
