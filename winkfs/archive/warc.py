"""A WARC file (plain or compressed by record) as a stream of items: what a crawl fetched.

Of each `response` record with an HTTP status of 200 to 299: name: the URL, content: the body as a
browser would see it (chunks joined, gzip undone), mtime: WARC-Date; and the columns of SCHEMA.
Reading goes on at the next record after a damaged one.
"""

from __future__ import annotations

import io
import mmap
import pickle
import re
import struct
import tempfile
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from winkformats.errors import FormatError
from winkformats.extsort import BIAS, SortedRecords
from winkfs.archive.items import Item, Note, Notes
from winkfs.container.ondisk.inode import FileType
from winkfs.container.ondisk.typed import to_attributes
from winkfs.container.writemany import Row
from winkfs.errors import Refusal
from winkfs.names import MAX_NAME, to_bytes
from winkfs.units import nearest_ns

# mtime_ns + BIAS, whether it is known, number, bytes of name and of pickled attributes
ORDER: Final = struct.Struct(">Q?QHI")
SCHEMA: Final = {
    "url": "string", "status": "int64", "content_type": "string", "date": "timestamp",
    "digest": "string",
}  # fmt: skip
GZIP: Final = b"\x1f\x8b\x08"
_STARTS: Final = {True: re.compile(rb"\x1f\x8b\x08[\x00-\x1f]"), False: re.compile(rb"WARC/[01]\.")}


def missing() -> str | None:
    """Why WARC files cannot be read here."""
    try:
        import fastwarc.warc  # noqa: F401
    except ImportError:
        return "reading WARC files needs FastWARC: pip install 'winkfs[pipeline]'"
    return None


class Warc:
    """The responses in a WARC file.

    path     the file
    note     hears of each record that cannot be read, by its URL if that is known
    raises   Refusal where FastWARC is missing; FormatError where there is no record; OSError
    """

    def __init__(self, path: str, note: Notes) -> None:
        if problem := missing():
            raise Refusal(problem, path)
        self._path, self._note = path, note

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        rows = self._rows()
        if not by_mtime:
            yield from rows
            return
        with SortedRecords(tempfile.gettempdir()) as records:
            for number, row in enumerate(rows):
                records.add(_record(row, number))
            yield from map(_row, records)

    def _rows(self) -> Iterator[Row]:
        with Path(self._path).open("rb") as file:
            if file.seek(0, io.SEEK_END) == 0:
                raise FormatError(f"{self._path}: empty: not a WARC file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                packed = data[:3] == GZIP
                if not packed and not _STARTS[False].match(data):
                    raise FormatError(f"{self._path}: not a WARC file")
                yield from self._all(file, data, _STARTS[packed].search)

    def _all(self, file: Any, data: Any, search: Callable[..., Any]) -> Iterator[Row]:
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        start: int | None = 0
        while start is not None:
            file.seek(start)
            at, known = start, start == 0  # of the last record; whether there really is one
            try:
                for record in ArchiveIterator(
                    file, record_types=WarcRecordType.response, parse_http=False
                ):
                    at, known = record.stream_pos, True
                    if row := self._row(record, record.reader.read()):
                        yield row
                return
            except OSError as error:
                if known:  # else it was a place that only looked like a record
                    self._bad(b"byte %d" % at, f"damaged, this record or the next: {error}")
            found = search(data, at + 1)
            start = found.start() if found else None

    def _row(self, record: Any, raw: bytes) -> Row | None:
        """raw: all bytes of the record, header of HTTP included."""
        url = record.headers.get_bytes(b"WARC-Target-URI")
        if not url or len(raw) != record.content_length:
            what = f"the record is cut short after {len(raw)} of {record.content_length} bytes"
            self._bad(url or b"byte %d" % record.stream_pos, what if url else "it has no URL")
            return None
        name = url.strip(b"<> ")
        if not record.is_http:
            self._note(Note(name, "not fetched by HTTP", False))
            return None
        try:
            status, kind, body = _body(raw)
        except OSError as error:
            self._bad(name, f"the body cannot be decoded: {error}")
            return None
        if not 200 <= status < 300:
            self._note(Note(name, f"HTTP status {status}" if status else "no HTTP status", False))
            return None
        if len(name) > MAX_NAME or b"\0" in name:
            self._bad(name[:200], f"a name has at most {MAX_NAME:,} bytes, and no NUL")
            return None
        digest = record.headers.get_bytes(b"WARC-Payload-Digest")
        known = {
            "url": _text(name), "status": status, "content_type": kind or None,
            "date": record.record_date, "digest": _text(digest) if digest else None,
        }  # fmt: skip
        xattrs = to_attributes(SCHEMA, known)
        return Row(name, body, _mtime(record.record_date), FileType.FILE, xattrs=xattrs)

    def _bad(self, name: bytes, what: str) -> None:
        self._note(Note(name, what, True))


def _record(row: Row, number: int) -> bytes:
    """A row as bytes that sort by mtime, those without one first, then by number."""
    known = row.mtime_ns is not None
    name, xattrs = to_bytes(row.name), pickle.dumps(row.xattrs)
    mtime = (row.mtime_ns or 0) + BIAS if known else 0
    return ORDER.pack(mtime, known, number, len(name), len(xattrs)) + name + xattrs + row.data


def _row(record: bytes) -> Row:
    mtime, known, _, length, size = ORDER.unpack_from(record)
    at = ORDER.size + length
    name, xattrs, data = record[ORDER.size : at], record[at : at + size], record[at + size :]
    mtime_ns = mtime - BIAS if known else None
    return Row(name, data, mtime_ns, FileType.FILE, xattrs=pickle.loads(xattrs))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _body(raw: bytes) -> tuple[int, str, bytes]:
    """A response of HTTP -> its status (0: none), type, and its body decoded. Raises OSError.

    A record of its own: one that is read from a file cannot be gone on from after an error.
    """
    from fastwarc.warc import WarcRecord, WarcRecordType

    record = WarcRecord()
    record.init_headers(WarcRecordType.response)
    record.is_http = True
    record.set_bytes_content(raw)
    record.parse_http(auto_decode="all")
    headers = record.http_headers
    kind = _text(headers.get_bytes(b"Content-Type") or b"").strip()
    return headers.status_code or 0, kind, record.reader.read()


def _mtime(date: datetime | None) -> int | None:
    """Nanoseconds, exact. None: now."""
    if date is None:
        return None
    delta = date - datetime(1970, 1, 1, tzinfo=UTC)
    return nearest_ns((delta // timedelta(microseconds=1)) * 1000)
