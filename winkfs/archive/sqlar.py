"""SQLite archives (`sqlite3 -A`) as entries: a table sqlar with name, mode, mtime, sz and data.

The file is only read, and never locked: changes in a log beside it are refused.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from winkformats.errors import FormatError
from winkfs.archive.items import PERMISSIONS, Content, Meta, Unreadable
from winkfs.archive.members import Entry, missing
from winkfs.entry import FileType
from winkfs.units import FAR, NANO

LOGS: Final = ("-wal", "-journal")
MODE: Final = 0xFFFF  # bits of a mode
ROWS: Final = "select rowid, name, mode, mtime, sz, length(cast(data as blob)) from sqlar"
DATA: Final = "select cast(data as blob) from sqlar where rowid = ?"


@contextlib.contextmanager
def opened(path: str) -> Iterator[Iterable[Entry]]:
    """Open an SQLite archive: see `members.Opener`."""
    for end in LOGS:
        log = Path(path + end)
        if log.exists() and log.stat().st_size:
            what = f"changes in {log.name} are not in it yet: sqlite3 FILE vacuum brings them there"
            raise FormatError(what)
    place = quote(os.fsencode(os.path.abspath(path)))
    file = sqlite3.connect(f"file:{place}?mode=ro&immutable=1", uri=True)
    file.text_factory = bytes
    try:
        file.execute("pragma trusted_schema = off")
        yield _entries(file)
    except sqlite3.Error as error:
        raise FormatError(f"a damaged SQLite file: {error}") from None
    finally:
        file.close()


def _entries(file: sqlite3.Connection) -> Iterator[Entry]:
    tables = file.execute("select name from sqlite_master where type = 'table'")
    if (b"sqlar",) not in tables.fetchall():
        raise FormatError("an SQLite file without a table sqlar, so it is no archive")
    try:
        rows = file.execute(ROWS)
    except sqlite3.OperationalError as error:
        raise FormatError(f"its table sqlar is not that of an archive: {error}") from None
    owner = os.geteuid(), os.getegid()
    for row, name, mode, mtime, size, stored in rows:
        if not (isinstance(name, bytes) and isinstance(mode, int) and isinstance(size, int)):
            shown = name if isinstance(name, bytes) else b"row %d" % row
            yield missing(shown, "its row is damaged: name, mode or size is of another type")
            continue
        seconds = min(max(mtime, -FAR), FAR) if isinstance(mtime, int | float) else 0
        meta = Meta(int(seconds * NANO), mode & PERMISSIONS, *owner)
        yield _entry(file, row, name, mode & MODE, size, stored or 0, meta)


def _entry(
    file: sqlite3.Connection, row: int, name: bytes, mode: int, size: int, stored: int, meta: Meta
) -> Entry:
    kind, unheld = stat.S_IFMT(mode), None
    if size < 0 or kind == stat.S_IFLNK:
        ftype, size = FileType.LINK, stored
    elif kind == stat.S_IFDIR:
        ftype, size = FileType.DIR, 0
    else:
        ftype = FileType.FILE
        if kind not in (0, stat.S_IFREG):
            unheld = "a device, fifo or socket: left out"
    fault = None
    if stored > size and ftype == FileType.FILE:
        fault = f"damaged: it has {stored:,} bytes of data for {size:,} of content"
    content = partial(_content, file, row, size, stored)
    return Entry(name, ftype, size, meta, content, fault, unheld)


def _content(file: sqlite3.Connection, row: int, size: int, stored: int) -> tuple[Content, bool]:
    found = file.execute(DATA, (row,)).fetchone()
    data: bytes = found[0] or b""
    if stored == size:
        at = 0

        def take(count: int) -> bytes:
            nonlocal at
            at += count
            return data[at - count : at]

        return Content(take, size, None), False
    return Content(_Inflated(data, size).take, size, None), False


class _Inflated:
    """Data that zlib has compressed, read forwards. size: bytes that they become."""

    def __init__(self, data: bytes, size: int) -> None:
        self._state: Any = zlib.decompressobj()
        self._data, self._left = data, size

    def take(self, count: int) -> bytes:
        """Return the next bytes. Raises Unreadable, also if there are more at the end."""
        parts: list[bytes] = []
        missing = count
        try:
            while missing:
                part = self._state.decompress(self._data, missing)
                self._data = self._state.unconsumed_tail
                if not part:
                    raise Unreadable("damaged: its data end early")
                parts.append(part)
                missing -= len(part)
            self._left -= count
            if not self._left and (self._state.decompress(self._data, 1) or not self._state.eof):
                raise Unreadable("damaged: its data do not end where they should")
        except zlib.error as error:
            raise Unreadable(f"damaged: {error}") from None
        return b"".join(parts)
