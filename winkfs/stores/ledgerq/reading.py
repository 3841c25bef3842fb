"""Reading messages of a queue: by id, by time, in order of arrival, and by priority."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from google_crc32c import value as crc32c

from winkformats.ledgerq.entry import DATA, HEAD, LEAST, LOW, PRIORITY, SUM, Message, decode
from winkformats.ledgerq.segment import RESIDUE, START, WINDOW, Walk
from winkfs.errors import FormatError, NoSuchFile
from winkfs.stores.ledgerq.files import Files, Segment

READ_BYTES: Final = 8192  # read for one message; messages as near as this are read together
PROBE_BYTES: Final = 1 << 20  # of each segment in which priorities are looked for
_new: Final = tuple.__new__


class Reading:
    """The messages in the segments. Not for several threads at once."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def pending(self, at: list[int]) -> int:
        """Count the messages from the position of their priority on, by their ids."""
        count, lowest, highest = 0, min(at), max(at)
        for segment in self._from(lowest):
            if lowest == highest or segment.first >= highest:
                count += segment.last - max(segment.first, lowest) + 1
            else:
                for (ids, _), position in zip(self.files.tables(segment), at, strict=True):
                    count += len(ids) - bisect_left(ids, position)
        return count

    def have_priorities(self, start: int) -> bool:
        """Return whether a message from this id on has a priority; of each segment the first
        PROBE_BYTES are read."""
        for segment in self._from(start):
            if segment.tables is not None:
                if any(ids for ids, _ in segment.tables[1:]):
                    return True
                continue
            try:
                walk = Walk(self.files.storage(segment), *self._at(segment, start))
            except FileNotFoundError:  # it was removed meanwhile
                continue
            size = min(self.files.readable(segment), walk.offset + PROBE_BYTES)
            while walk.step(size):
                if any(row[2] & PRIORITY for row in walk.rows()):
                    return True
        return False

    def _at(self, segment: Segment, id: int) -> tuple[int, int]:
        """Return an offset before the messages from `id` on, and an id below those behind it."""
        at = -1 if id <= segment.first else self.files.sparse(segment).before(id)
        return self._row(segment, at) or (START, max(segment.first - 1, 0))

    def _row(self, segment: Segment, at: int) -> tuple[int, int] | None:
        """Return the place of a row of the index, as `_at` does; None: it names no entry. Rows have
        no checksum."""
        if at < 0:
            return None
        sparse = self.files.sparse(segment)
        offset, id = sparse.offsets[at], sparse.ids[at]
        self.files.readable(segment)
        head = self.files.storage(segment).read(offset, HEAD.size)
        if len(head) == HEAD.size:
            _, _, _, found, timestamp = HEAD.unpack(head)
            if (found, timestamp) == (id, sparse.times[at]):
                return offset, id - 1
        self.files.warn(f"{self.files.path(segment)}: a row of its index is wrong: message {id}")
        return None

    def _from(self, id: int) -> list[Segment]:
        """Return the segments with messages of this id or higher ones."""
        return [
            segment
            for segment in self.files.segments.values()
            if segment.last >= id and segment.first
        ]

    def find(self, id: int) -> Message | None:
        """Return the message with an id, or None. Raises CorruptError; FormatError; OSError.

        cost  a read of 4 KiB, and of the segment's index the first time
        """
        for segment in self._from(id):
            if segment.first > id:
                break
            walk = Walk(self.files.storage(segment), *self._at(segment, id))
            size = self.files.readable(segment)
            while walk.last < id and walk.step(size, READ_BYTES):
                for _, kind, _, found, _, at in walk.rows():
                    if found == id and kind == DATA:
                        return decode(
                            walk.data, at, file=self.files.path(segment), offset=walk.base + at,
                            segment=segment.number,
                        )  # fmt: skip
        return None

    def at_time(self, timestamp: int) -> int:
        """Return the id of the first message enqueued then or later, else that behind the last."""
        segments = [segment for segment in self.files.segments.values() if segment.first]
        first = bisect_left([self.files.sparse(one).times[0] for one in segments], timestamp) - 1
        if first >= 0 and self._row(segments[first], 0) is None:
            first = 0
        for segment in segments[max(first, 0) :]:
            place = self._row(segment, self.files.sparse(segment).before_time(timestamp))
            walk = Walk(self.files.storage(segment), *(place or (START, segment.first - 1)))
            size = self.files.readable(segment)
            while walk.step(size, READ_BYTES):
                for _, _, _, id, time, _ in walk.rows():
                    if time >= timestamp:
                        return id
        return self.files.last + 1

    # --- in order ---

    def arrivals(self, start: int) -> Iterator[Message | None]:
        """Yield the messages from an id on, by arrival, and None each time no message is left.

        Damage is reported and skipped. Ends when `changes` of the files has grown.
        """
        files = self.files
        changes = files.changes
        segment = next(iter(self._from(start)), None) or files.newest
        while segment is None:
            yield None
            if changes != files.changes:
                return
            segment = next(iter(files.segments.values()), None)
        while segment is not None:
            number, path = segment.number, files.path(segment)
            walk = Walk(files.storage(segment), *self._at(segment, start))
            changes = files.changes  # to open it may have closed another
            while True:
                more = walk.step(files.readable(segment))
                for begin, stop in walk.bad:
                    files.warn_bad(segment, begin, stop)
                walk.bad.clear()
                if not more:
                    following = files.next(number)
                    if following is not None:
                        if walk.tail >= 0:
                            files.warn_bad(segment, walk.tail, segment.size)
                        files.warn_short(segment, walk)
                        break
                    yield None
                    if changes != files.changes:
                        return
                    continue
                data, base, unpack = walk.data, walk.base, HEAD.unpack_from
                for at in walk.places:
                    length, kind, flags, id, timestamp = unpack(data, at)
                    if kind != DATA or id < start:
                        continue
                    if flags:
                        message = self._decoded(data, at, path, base + at, number)
                        if message is None:
                            continue
                    else:
                        payload = data[at + HEAD.size : at + length - SUM.size]
                        message = _new(
                            Message,
                            (id, payload, timestamp, LOW, None, {}, base + at, number, 1),
                        )
                    yield message
                    if changes != files.changes:
                        return
            segment = following

    def all(self, start: int = 1) -> Iterator[Message]:
        """Yield all messages from an id on, by arrival, also while the segments change."""
        while True:
            try:
                for message in self.arrivals(start):
                    if message is None:
                        return
                    start = message.id + 1
                    yield message
            except FileNotFoundError:
                self.look_again()

    def look_again(self) -> None:
        """Load the segments again because one is gone. Raises NoSuchFile if nothing has changed."""
        before = self.files.changes
        self.files.load(follow=True)
        if before == self.files.changes:
            raise NoSuchFile("a segment is gone: open it anew", self.files.directory.path)

    def _decoded(self, data: bytes, at: int, path: str, offset: int, number: int) -> Message | None:
        """Decode a message; None: it is damaged, which is reported."""
        try:
            return decode(data, at, file=path, offset=offset, segment=number)
        except FormatError as error:
            self.files.warn(str(error))
            return None

    def of_priority(self, priority: int, start: int) -> Iterator[Message | None]:
        """Yield the messages of a priority from an id on; see `arrivals`.

        cost  16 bytes of memory for each message of the segments that are being read
        """
        files, changes = self.files, self.files.changes
        number = next((s.number for s in self._from(start)), max(files.segments, default=0))
        while True:
            segment = files.segments.get(number)
            if segment is not None:
                ids, offsets = files.tables(segment)[priority]
                changes = files.changes
                while (at := bisect_left(ids, start)) < len(ids):
                    some = ids[at : at + 256]
                    for message in self._read(segment, some, offsets[at : at + 256]):
                        yield message
                        if changes != files.changes:
                            return
                    start = some[-1] + 1
            following = files.next(number)
            if following is not None:
                number = following.number
                continue
            yield None
            if changes != files.changes:
                return

    def _read(
        self,
        segment: Segment,
        ids: array[int],
        offsets: "array[int]",  # noqa: UP037
    ) -> Iterator[Message]:
        """Yield the messages with these ids, which are at these offsets."""
        files = self.files
        size, storage, path = (
            files.readable(segment),
            files.storage(segment),
            files.path(segment),
        )
        count, data, base = len(ids), b"", 0
        for i, (id, offset) in enumerate(zip(ids, offsets, strict=True)):
            at = offset - base
            if not data or at + HEAD.size > len(data):
                far = offsets[-1] - offset
                near = far <= (count - i) * READ_BYTES
                wanted = min(far + READ_BYTES, WINDOW) if near else READ_BYTES
                data, base, at = storage.read(offset, min(wanted, size - offset)), offset, 0
            if at + HEAD.size <= len(data):
                length, kind, _, found, _ = HEAD.unpack_from(data, at)
                if at + length > len(data) and LEAST <= length <= size - offset:
                    data, base, at = storage.read(offset, max(length, READ_BYTES)), offset, 0
                good = LEAST <= length <= len(data) - at and found == id and kind == DATA
                if good and crc32c(data[at : at + length]) == RESIDUE:
                    message = self._decoded(data, at, path, offset, segment.number)
                    if message is not None:
                        yield message
                    continue
            files.warn(f"{path}: message {id} at byte {offset} is damaged")
