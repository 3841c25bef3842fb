"""Index of a message store: the place and the number of references of each message.

A table in memory with open addressing, of slots of four words of 8 bytes:

    word  meaning
    0, 1  the id, big-endian
    2     file << 32 | offset; FREE: nothing is there; GONE: what was there is removed
    3     size << 32 | references

At most two of three slots are in use: 48 to 96 bytes for each message. A single look-up uses a
memoryview of the table, many use numpy.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, UInt64

WORDS: Final = 4  # of a slot
FREE: Final = (1 << 64) - 1
GONE: Final = FREE - 1
LOW: Final = (1 << 32) - 1
LAST: Final = (1 << 31) - 1  # highest number of a file
MASK: Final = (1 << 64) - 1
MIN_SLOTS: Final = 1 << 10
IDS: Final = struct.Struct(">QQ")
LOOKED_UP_TOGETHER: Final = 1 << 16  # messages
ONE_BY_ONE: Final = 24  # ids up to which single look-ups are faster than a step with numpy
Slots = npt.NDArray[np.uint64]  # [n, WORDS]
_new: Final = tuple.__new__


class Place(NamedTuple):
    """Place of a message: file, offset and size of its record; number of its references."""

    file: int
    offset: int
    size: int
    refs: int


class MessageRows(NamedTuple):
    """Many messages: ids uint64[n, 2], and the columns of `Place`, int64[n] each."""

    ids: UInt64
    file: Int64
    offset: Int64
    size: Int64
    refs: Int64

    def take(self, which: Int64 | Bools | slice) -> MessageRows:
        ids, file, offset, size, refs = self
        return MessageRows(ids[which], file[which], offset[which], size[which], refs[which])

    @classmethod
    def joined(cls, parts: Sequence[MessageRows]) -> MessageRows:
        """Join several parts, or none."""
        if not parts:
            none = np.empty(0, np.int64)
            return cls(np.empty((0, 2), np.uint64), none, none, none, none)
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))


def words_of(ids: bytes) -> UInt64:
    """Convert concatenated ids to uint64[n, 2]."""
    return np.frombuffer(ids, ">u8").reshape(-1, 2).astype(np.uint64)


def first_of_each(ids: UInt64) -> Bools:
    """Return which of ids, uint64[n, 2], are the first of their kind."""
    # In a good store all ids differ, mostly in one word: comparing both words would cost more.
    words = np.sort(ids[:, 1])
    first = np.ones(len(words), bool)
    if (words[1:] == words[:-1]).any():
        first[:] = False
        first[np.unique(ids, axis=0, return_index=True)[1]] = True
    return first


def ids_of(rows: MessageRows) -> list[bytes]:
    """Return the ids of rows as bytes."""
    data = rows.ids.astype(">u8").tobytes()
    return [data[at : at + 16] for at in range(0, len(data), 16)]


class Index:
    """Message id -> `Place`. Not for several threads at once."""

    def __init__(self, room: int = 0) -> None:
        """Make an empty index; room: number of messages that are expected."""
        self.count = 0
        # Odd and secret, so that ids cannot be chosen that all have one home.
        self._factors = secrets.randbits(64) | 1, secrets.randbits(64) | 1
        self._make(room)

    def __len__(self) -> int:
        return self.count

    @property
    def memory(self) -> int:
        """Size of the table, bytes."""
        return self._table.nbytes

    def _make(self, room: int) -> None:
        slots = max(MIN_SLOTS, 1 << (room * 3 // 2).bit_length())
        self._table: Slots = np.empty((slots, WORDS), np.uint64)
        self._table[:, 2] = FREE
        self._words = self._table.data.cast("B").cast("Q")
        self._mask, self._shift = slots - 1, 65 - slots.bit_length()
        self._used = 0  # slots that are not free
        self._most = slots * 2 // 3

    # --- one message ---

    def _find(self, high: int, low: int) -> int:
        """Return the offset of an id in `_words`; of a missing id ~offset of a place for it."""
        a, b = self._factors
        at = ((high * a ^ low * b) * a & MASK) >> self._shift << 2
        words, last, gone = self._words, self._mask << 2, -1
        while True:
            where = words[at + 2]
            if where == FREE:
                return ~at if gone < 0 else ~gone
            if where == GONE:
                gone = at if gone < 0 else gone
            elif words[at + 1] == low and words[at] == high:
                return at
            at = at + WORDS & last

    def get(self, msg_id: bytes) -> Place | None:
        """Return the place of a message, None if it is missing."""
        at = self._find(*IDS.unpack(msg_id))
        if at < 0:
            return None
        where, what = self._words[at + 2], self._words[at + 3]
        # Place(...) would run Python code.
        return _new(Place, (where >> 32, where & LOW, what >> 32, what & LOW))

    def __contains__(self, msg_id: bytes) -> bool:
        return self._find(*IDS.unpack(msg_id)) >= 0

    def put(self, msg_id: bytes, place: Place) -> None:
        """Add a message, or change its place."""
        high, low = IDS.unpack(msg_id)
        at = self._find(high, low)
        words = self._words
        if at < 0:
            at = ~at
            if words[at + 2] == FREE:
                if self._used >= self._most:
                    self._grow(1)
                    return self.put(msg_id, place)
                self._used += 1
            self.count += 1
            words[at], words[at + 1] = high, low
        file, offset, size, refs = place
        words[at + 2], words[at + 3] = file << 32 | offset, size << 32 | refs
        return None

    def add(self, msg_id: bytes, file: int, offset: int, size: int) -> bool:
        """Add a message with one reference -> False if it exists already, and is unchanged."""
        high, low = IDS.unpack(msg_id)
        a, b = self._factors
        at, words = ((high * a ^ low * b) * a & MASK) >> self._shift << 2, self._words
        if words[at + 2] != FREE:
            at = ~self._find(high, low)
            if at < 0:
                return False
        if words[at + 2] == FREE:
            if self._used >= self._most:
                self._grow(1)
                return self.add(msg_id, file, offset, size)
            self._used += 1
        self.count += 1
        words[at], words[at + 1] = high, low
        words[at + 2], words[at + 3] = file << 32 | offset, size << 32 | 1
        return True

    def hold(self, msg_id: bytes, change: int) -> Place | None:
        """Change the number of references of a message -> its place then; None: it is missing.

        Without references it is removed. Raises ValueError for a number that is not valid.
        """
        at = self._find(*IDS.unpack(msg_id))
        if at < 0:
            return None
        where, what = self._words[at + 2], self._words[at + 3]
        refs = (what & LOW) + change
        if not 0 <= refs <= LOW:
            raise ValueError(f"{msg_id.hex()}: {refs} references")
        if refs:
            self._words[at + 3] = what - (what & LOW) + refs
        else:
            self._words[at + 2] = GONE
            self.count -= 1
        return Place(where >> 32, where & LOW, what >> 32, refs)

    def remove(self, msg_id: bytes) -> None:
        """Remove a message. Raises KeyError."""
        at = self._find(*IDS.unpack(msg_id))
        if at < 0:
            raise KeyError(msg_id.hex())
        self._words[at + 2] = GONE
        self.count -= 1

    # --- many messages ---

    def _homes(self, ids: UInt64) -> Int64:
        a, b = map(np.uint64, self._factors)
        mixed = (ids[:, 0] * a ^ ids[:, 1] * b) * a >> np.uint64(self._shift)
        return mixed.astype(np.int64)

    def _find_many(self, ids: UInt64) -> Int64:
        """Return the slots of ids, -1: missing."""
        found = np.full(len(ids), -1, np.int64)
        todo, slots = np.arange(len(ids)), self._homes(ids)
        # The last few ids would take many steps.
        while len(todo) > ONE_BY_ONE:
            rows, wanted = self._table[slots], ids[todo]
            hit = (rows[:, 1] == wanted[:, 1]) & (rows[:, 0] == wanted[:, 0])
            hit &= rows[:, 2] < GONE
            found[todo[hit]] = slots[hit]
            on = ~hit & (rows[:, 2] != FREE)
            todo, slots = todo[on], slots[on] + 1 & self._mask
        for i, (high, low) in zip(todo.tolist(), ids[todo].tolist(), strict=True):
            found[i] = max(self._find(high, low) >> 2, -1)
        return found

    def get_many(self, ids: UInt64) -> tuple[MessageRows, Bools]:
        """Return the rows of messages, in the order of their ids, and which ids exist."""
        step = LOOKED_UP_TOGETHER
        slots = np.concatenate(
            [self._find_many(ids[at : at + step]) for at in range(0, len(ids), step)]
            or [np.empty(0, np.int64)]
        )
        there = slots >= 0
        return _rows(self._table[slots[there]]), there

    def add_many(self, rows: MessageRows) -> None:
        """Add messages that are missing, each once."""
        if self._used + len(rows.ids) > self._most:
            self._grow(len(rows.ids))
        for at in range(0, len(rows.ids), LOOKED_UP_TOGETHER):
            part = rows.take(np.arange(at, min(at + LOOKED_UP_TOGETHER, len(rows.ids))))
            self._add(_slots(part))
            self.count += len(part.ids)

    def swap_many(self, before: MessageRows, after: MessageRows) -> Int64:
        """Move the messages whose place is that in `before` to that in `after`; references stay.

        ->  number of references, int64[n]; 0: not moved, since its place was different
        """
        step = LOOKED_UP_TOGETHER
        found = [
            self._swap_part(*(rows.take(slice(at, at + step)) for rows in (before, after)))
            for at in range(0, len(before.file), step)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _swap_part(self, before: MessageRows, after: MessageRows) -> Int64:
        slots = self._find_many(before.ids)
        rows = self._table[slots]  # any row for -1
        refs = (rows[:, 3] & np.uint64(LOW)).astype(np.int64)
        here = (slots >= 0) & (rows[:, 2] == _packed(before.file, before.offset))
        here &= rows[:, 3] == _packed(before.size, refs)
        refs[~here] = 0
        self._table[slots[here], 2:] = _slots(after._replace(refs=refs))[here, 2:]
        return refs

    def _add(self, values: Slots) -> None:
        """Put missing ids into free slots."""
        slots = self._homes(values[:, :2])
        while len(values) > ONE_BY_ONE:
            free = self._table[slots, 2] == FREE
            # Of several ids with one slot the last one written gets it.
            self._table[slots[free]] = values[free]
            rows = self._table[slots]
            done = (rows[:, 1] == values[:, 1]) & (rows[:, 0] == values[:, 0])
            done &= rows[:, 2] < GONE
            self._used += int(done.sum())
            values, slots = values[~done], slots[~done] + 1 & self._mask
        for row in values.tolist():
            at = self._find(row[0], row[1])
            if at < 0:
                at = ~at
                self._used += self._words[at + 2] == FREE
            for i, word in enumerate(row, at):
                self._words[i] = word

    def _grow(self, more: int) -> None:
        rows = self._table[self._table[:, 2] < GONE]
        self._make(self.count + more + self.count // 8)  # some room, to grow less often
        for at in range(0, len(rows), LOOKED_UP_TOGETHER):
            self._add(rows[at : at + LOOKED_UP_TOGETHER])

    def rows(self) -> Iterator[MessageRows]:
        """Yield all messages, in no order, in parts. A message that changes meanwhile may be
        missing, or be in a part with its old or new place."""
        table = self._table
        for at in range(0, len(table), LOOKED_UP_TOGETHER):
            some = table[at : at + LOOKED_UP_TOGETHER]
            yield _rows(some[some[:, 2] < GONE])


def _slots(rows: MessageRows) -> Slots:
    found = np.empty((len(rows.ids), WORDS), np.uint64)
    found[:, :2] = rows.ids
    found[:, 2], found[:, 3] = _packed(rows.file, rows.offset), _packed(rows.size, rows.refs)
    return found


def _packed(high: Int64, low: Int64) -> UInt64:
    found: UInt64 = (high << 32 | low).view(np.uint64)
    return found


def _rows(slots: Slots) -> MessageRows:
    where, what = slots[:, 2].view(np.int64), slots[:, 3].view(np.int64)
    return MessageRows(slots[:, :2], where >> 32, where & LOW, what >> 32, what & LOW)
