"""Tables that a broker writes at a clean shutdown, in the format of Erlang's ets:tab2file.

    offset  size  type  field    meaning
    0       4     4s    magic    1, 2, 3, 4
    4       4     4s    status   99, 88, 77, 11: it was closed
    then items:
    0       4     I     size     bytes of the term
    4       4     4s    mark     98, 87, 76, 65
    8       16          md5      of the size; only where that is 65528 or more
            size        term     external term of Erlang

Big-endian. The first item describes the table; its rows follow, a tuple each, and at the end a list
of the atom '$end_of_table' and properties of the table, such as the number of rows.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.messagestore.erlang import VERSION

HEAD: Final = bytes((1, 2, 3, 4, 99, 88, 77, 11))
ITEM: Final = struct.Struct(">I4s")
MARK: Final = bytes((98, 87, 76, 65))
CHECKED_FROM: Final = 65528  # bytes of a term from which its size has a checksum
SUM: Final = 16
END: Final = b"$end_of_table"
INTEGER: Final = struct.Struct(">i")
TUPLE: Final = ord("h")
BYTE, INT32 = ord("a"), ord("b")  # integers
WIDTHS: Final = {ord("d"): 2, ord("v"): 2, ord("w"): 1, ord("s"): 1, ord("m"): 4}
"""Atoms and binaries: bytes of the length."""
AT_ONCE: Final = 1 << 16  # rows that are decoded together
PAST: Final = 8  # bytes behind the end of a file that may be looked at
_WIDTH: Final = np.full(256, -1, np.int64)
_WIDTH[[*WIDTHS, BYTE, INT32]] = [*WIDTHS.values(), 1, 4]


class Field(NamedTuple):
    """A field of all rows.

    number  int64[n]: the integer, or the offset of a binary or of the name of an atom in the file
    size    int64[n]: bytes of these; -1: an integer
    """

    number: Int64
    size: Int64


class Table(NamedTuple):
    """Rows of a table as columns, without their atom. raw: bytes of the file."""

    raw: npt.NDArray[np.uint8]
    fields: list[Field]

    def integers(self, field: int, rows: npt.NDArray[np.bool_] | slice = slice(None)) -> Int64:
        """Return a field, int64[n]. Raises ValueError if it is no integer; IndexError."""
        number, size = (column[rows] for column in self._field(field))
        if (size >= 0).any():
            raise ValueError("a field is no number")
        return number

    def binaries(self, field: int, width: int, rows: npt.NDArray[np.bool_]) -> bytes:
        """Return the binaries of a field, joined. Raises ValueError for one of another width."""
        start, size = (column[rows] for column in self._field(field))
        if (size != width).any():
            raise ValueError(f"a field has not {width} bytes")
        parts = (start[at : at + AT_ONCE] for at in range(0, len(start), AT_ONCE))
        return b"".join(self.raw[part[:, None] + np.arange(width)].tobytes() for part in parts)

    def _field(self, field: int) -> Field:
        return self.fields[field] if self.fields else Field(*np.empty((2, 0), np.int64))


def read_table(storage: Storage, name: str) -> Table:
    """Read the rows of a table whose tuples begin with the atom `name`: integers of 32 bits, atoms,
    binaries.

    raises  CorruptError if it is not such a table, or not complete
    memory  that of the file, and 16 bytes for each field
    """

    def wrong(what: str, at: int) -> CorruptError:
        return CorruptError(f"a table of a broker: {what}", file=storage.name, offset=at)

    data = storage.read(0, storage.size())
    if not data.startswith(HEAD):
        raise wrong("its header is wrong, or it was not closed", 0)
    items, at, end = list[int](), len(HEAD), data.find(END)
    while True:
        if at + ITEM.size > len(data):
            raise wrong("it has no end", at)
        size, mark = ITEM.unpack_from(data, at)
        start = at + ITEM.size + SUM * (size >= CHECKED_FROM)
        stop = start + size
        if mark != MARK or stop > len(data):
            raise wrong("an item that is none", at)
        if start <= end <= stop - len(END):
            break
        items.append(at)
        at = stop
    rows = max(len(items) - 1, 0)  # the first describes the table
    if _count(data[start:stop]) not in (None, rows):
        raise wrong(f"{rows} rows are there, of {_count(data[start:stop])}", at)
    raw, blocks = np.frombuffer(data + bytes(PAST), np.uint8), list[list[Field]]()
    bounds = np.array([*items, at], np.int64)
    for low in range(1, len(items), AT_ONCE):
        some = bounds[low : low + AT_ONCE + 1]
        starts = some[:-1] + ITEM.size
        starts += SUM * (some[1:] - starts - SUM >= CHECKED_FROM)
        fields, bad = _decoded(raw, starts, some[1:], name.encode())
        if bad.any() or (blocks and len(fields) != len(blocks[0])):
            raise wrong(f"a row that is no {name}", int(some[np.argmax(bad)]))
        blocks.append(fields)
    columns = zip(*blocks, strict=True)
    return Table(raw, [Field(*map(np.concatenate, zip(*parts, strict=True))) for parts in columns])


def _decoded(
    raw: npt.NDArray[np.uint8], at: Int64, ends: Int64, name: bytes
) -> tuple[list[Field], npt.NDArray[np.bool_]]:
    """Decode tuples from `at` to `ends` -> their fields behind the first, which is the name; which
    rows are something else."""
    head = np.array([VERSION, TUPLE, raw[at[0] + 2]], np.uint8)
    bad = (raw[np.minimum(at, ends)[:, None] + np.arange(3)] != head).any(1) | (at + 3 > ends)
    at, found = np.where(bad, ends, at + 3), list[Field]()
    for _ in range(head[2]):
        tag, word = raw[at], raw[at[:, None] + np.arange(1, 5)].astype(">u1").view(">u4")[:, 0]
        width = _WIDTH[tag]
        value = word.astype(np.int64) >> 8 * (4 - np.maximum(width, 0))
        whole = (tag == BYTE) | (tag == INT32)
        value = np.where(tag == INT32, word.view(">i4"), value)
        size = np.where(whole, -1, value)
        start = at + 1 + np.maximum(width, 0)
        stop = start + np.maximum(size, 0)
        bad |= (width < 0) | (stop > ends)
        at = np.where(bad, ends, stop)
        found.append(Field(np.where(whole, value, start), size))
    bad |= at != ends
    if not found:
        return [], np.ones_like(bad)
    start, size = found.pop(0)
    bad |= size != len(name)
    letters = raw[np.where(bad, 0, start)[:, None] + np.arange(len(name))]
    return found, bad | (letters != np.frombuffer(name, np.uint8)).any(1)


def _count(term: bytes) -> int | None:
    """Return the number of rows in the last item of a table; None: it has none."""
    _, name, rest = term.partition(b"count")
    if name and rest[:1] == b"a":
        return rest[1]
    if name and rest[:1] == b"b" and len(rest) >= 5:
        return int(INTEGER.unpack_from(rest, 1)[0])
    return None
