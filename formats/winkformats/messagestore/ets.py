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
from typing import Final

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
Field = int | bytes  # bytes: a binary, or the name of an atom


def rows(storage: Storage, name: str) -> list[tuple[Field, ...]]:
    """Read the rows of a table whose tuples begin with the atom `name`, without the atom.

    raises  CorruptError if it is not such a table, or not complete
    memory  that of all rows
    """

    def wrong(what: str, at: int) -> CorruptError:
        return CorruptError(f"a table of a broker: {what}", file=storage.name, offset=at)

    data = storage.read(0, storage.size())
    if not data.startswith(HEAD):
        raise wrong("its header is wrong, or it was not closed", 0)
    found, at = list[tuple[Field, ...]](), len(HEAD)
    while at + ITEM.size <= len(data):
        size, mark = ITEM.unpack_from(data, at)
        start = at + ITEM.size + SUM * (size >= CHECKED_FROM)
        term = data[start : start + size]
        if mark != MARK or len(term) < size:
            raise wrong("an item that is none", at)
        if END in term:
            if _count(term) not in (None, len(found)):
                raise wrong(f"{len(found)} rows are there, of {_count(term)}", at)
            return found
        if at > len(HEAD):
            row = _tuple(term)
            if row is None or row[0] != name.encode():
                raise wrong(f"a row that is no {name}", at)
            found.append(row[1:])
        at = start + size
    raise wrong("it has no end", at)


def _tuple(term: bytes) -> tuple[Field, ...] | None:
    """Decode a tuple of integers, atoms and binaries; None: it is none."""
    if len(term) < 3 or term[:2] != bytes((VERSION, ord("h"))):
        return None
    found, at = list[Field](), 3
    try:
        for _ in range(term[2]):
            tag = term[at : at + 1]
            if tag == b"a":
                value: Field = term[at + 1]
                at += 2
            elif tag == b"b":
                value = INTEGER.unpack_from(term, at + 1)[0]
                at += 5
            else:
                width = {b"d": 2, b"v": 2, b"w": 1, b"s": 1, b"m": 4}[tag]
                start = at + 1 + width
                value = term[start : start + int.from_bytes(term[at + 1 : start], "big")]
                at = start + len(value)
            found.append(value)
    except (KeyError, IndexError, struct.error):
        return None
    return tuple(found) if found and at == len(term) else None


def _count(term: bytes) -> int | None:
    """Return the number of rows in the last item of a table; None: it has none."""
    _, name, rest = term.partition(b"count")
    if name and rest[:1] == b"a":
        return rest[1]
    if name and rest[:1] == b"b" and len(rest) >= 5:
        return int(INTEGER.unpack_from(rest, 1)[0])
    return None
