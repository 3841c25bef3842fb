"""A WARC or ARC file (plain, or packed by gzip) as a stream of items: what a crawl fetched.

Of each `response` with an HTTP status of 200 to 299, and each `resource` and `conversion` record
(as in WET files): content: the body as a browser would see it (chunks joined, gzip undone), mtime:
WARC-Date; and the columns of SCHEMA. Other records are counted by their types.
Names are those of `winkfs.archive.webnames`; of several captures in one file the first has the
plain name here, and `winkfs.spark.jobs.captures` gives it to the newest of all.
"""

from __future__ import annotations

import io
import mmap
import pickle
import re
import struct
import tempfile
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from winkformats.errors import FormatError
from winkformats.extsort import BIAS
from winkfs.archive.http import Response, Undecodable, parse
from winkfs.archive.items import Item, Note, Notes, Ratio, clamped, in_time_order
from winkfs.archive.webnames import apart, at_time, microseconds, place_of
from winkfs.archive.webrecords import ABOUT, GZIP, Record, is_archive, records
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import EPOCH, in_utc, to_attributes
from winkfs.entry import FileType
from winkfs.names import MAX_NAME, to_bytes
from winkfs.units import nearest_ns

NUMBER: Final = struct.Struct(">Q")  # of a row
SCHEMA: Final = {
    "url": "string", "status": "int64", "content_type": "string", "date": "timestamp",
    "digest": "string",
}  # fmt: skip
STORED_STATUS: Final = range(200, 300)  # of HTTP
WHOLE: Final = ("resource", "conversion")  # records whose block is the document
UNDATED: Final = "WARC-Date is missing or no date: the mtime is that of the HTTP header, or 1970"
CUT: Final = "cut short by the crawler (WARC-Truncated)"
SHORT: Final = "the body is shorter than its Content-Length"
_DIGITS: Final = re.compile(r"(\d{4})-?(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?\d{0,3}")
_LEAP: Final = re.compile(r":60(?=[.Z+-]|$)")


class Capture(NamedTuple):
    """A document of the web as it was at a time.

    base    its name if it were the only one
    url     normalized, see `webnames.Place`
    when    microseconds since 1970; None: not known
    mark    XXH3 of its content
    stored  the name that it has
    """

    base: bytes
    url: bytes
    when: int | None
    mark: int
    stored: bytes


class Warc:
    """The documents in a WARC or ARC file, as a source of `pack`.

    captures  the documents that were yielded
    again     number of duplicates, with equal URL, time and content, that were not yielded

    path     the file
    note     called with each record that cannot be read, by its URL if that is known
    ratio    limit of the bytes of a decoded body for each byte in the file
    raises   FormatError if there is no record; OSError
    """

    def __init__(self, path: str, note: Notes, ratio: Ratio | None = None) -> None:
        self._path, self._note, self._failed = path, note, False
        self._ratio = ratio or Ratio()
        self.captures: list[Capture] = []
        self.again = 0
        self._names: dict[bytes, bytes] = {}  # that were given -> URL
        self._seen: set[tuple[bytes, int | None, int]] = set()

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        rows = self._rows()
        if not by_mtime:
            yield from rows
            return
        found = (  # those without a time first
            (
                -BIAS if row.mtime_ns is None else row.mtime_ns,
                NUMBER.pack(number) + pickle.dumps(tuple(row)),
            )
            for number, row in enumerate(rows)
        )
        for _, record in in_time_order(tempfile.gettempdir(), found):
            yield Row(*pickle.loads(memoryview(record)[NUMBER.size :]))

    def _rows(self) -> Iterator[Row]:
        kinds: dict[str, int] = {}
        with Path(self._path).open("rb") as file:
            if file.seek(0, io.SEEK_END) == 0:
                raise FormatError(f"{self._path}: empty: not a WARC file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data[:3] != GZIP and not is_archive(data[:64]):
                    raise FormatError(f"{self._path}: not a WARC file")
                for record in records(file, data, self._bad):
                    kinds[record.kind] = kinds.get(record.kind, 0) + 1
                    if row := self._row(record):
                        yield row
        if not self._failed and not kinds.keys() & {"response", *WHOLE}:
            there = ", ".join(f"{n} {kind or 'without a type'}" for kind, n in kinds.items())
            what = f"no response in it: its records are {there or 'none'}"
            self._note(Note(to_bytes(self._path), what, False))

    def _row(self, record: Record) -> Row | None:
        kind, name = record.kind, record.url
        if kind in ABOUT:
            return None
        if kind not in WHOLE and kind != "response":
            what = f"a record of type {kind}" if kind else "a record without a type"
            self._note(Note(name or b"byte %d" % record.place, what, False, True))
            return None
        if not name:
            self._bad(b"byte %d" % record.place, "it has no URL")
            return None
        if len(name) > MAX_NAME or b"\0" in name:
            self._bad(name[:200], f"a name has at most {MAX_NAME:,} bytes, and no NUL")
            return None
        if b"warc-segment-number" in record.headers:
            self._bad(name, "it is in several records (WARC-Segment-Number)")
            return None
        if kind in WHOLE:
            headers = {b"content-type": record.headers.get(b"content-type", b"")}
            found = Response(0, headers, record.block, False)  # as it is
        elif not _is_http(record):
            self._note(Note(name, "not fetched by HTTP", False))
            return None
        else:
            try:
                found = parse(record.block, ok=STORED_STATUS, ratio=self._ratio)
            except Undecodable as error:
                self._bad(name, f"the body cannot be decoded: {error}")
                return None
            if found.status not in STORED_STATUS:
                self._note(Note(name, f"HTTP status {found.status}", False, True))
                return None
        return self._made(record, name, found)

    def _made(self, record: Record, name: bytes, found: Response) -> Row | None:
        if b"warc-truncated" in record.headers:
            self._note(Note(name, CUT, False, True, kept=True))
        elif found.short:
            self._note(Note(name, SHORT, False, True, kept=True))
        written = record.headers.get(b"warc-date", b"")
        date = date_of(written) or _http_date(written)
        moment = date or _http_date(found.headers.get(b"date", b"")) or EPOCH
        if date is None:
            self._note(Note(name, UNDATED, False, True, kept=True))
        stored = self._named(name, date, found.body)
        if stored is None:
            return None
        digest = record.headers.get(b"warc-payload-digest")
        known = {
            "url": _text(name), "status": found.status or None,
            "content_type": found.kind or None, "date": date,
            "digest": _text(digest) if digest else None,
        }  # fmt: skip
        xattrs = to_attributes(SCHEMA, known)
        exact = (moment - EPOCH) // timedelta(microseconds=1) * 1000
        if exact != (mtime := nearest_ns(exact)):
            self._note(clamped(name))
        return Row(stored, found.body, mtime, FileType.FILE, xattrs=xattrs)

    def _named(self, url: bytes, date: datetime | None, body: bytes) -> bytes | None:
        """Return a name that no other document of this file has; None: it is a duplicate."""
        place, when, mark = place_of(url), microseconds(date), xxhash.xxh3_64_intdigest(body)
        if (place.url, when, mark) in self._seen:
            self.again += 1
            return None
        self._seen.add((place.url, when, mark))
        name = place.name
        if name in self._names:
            if self._names[name] != place.url:
                name = apart(name, place.url)
            if name in self._names:
                name = (
                    at_time(name, when)
                    if at_time(name, when) not in self._names
                    else (at_time(name, when, mark))
                )
        self._names[name] = place.url
        self.captures.append(Capture(place.name, place.url, when, mark, name))
        return name

    def _bad(self, name: bytes, what: str) -> None:
        self._failed = True
        self._note(Note(name, what, True))


def _is_http(record: Record) -> bool:
    if record.url[:4].lower() != b"http":
        return False
    kind = record.headers.get(b"content-type", b"application/http").lower()
    return kind.startswith(b"application/http")


def date_of(text: bytes) -> datetime | None:
    """Parse WARC-Date: ISO 8601, or digits as in ARC files -> the time; None: it is not one."""
    words = _LEAP.sub(":59", text.decode("latin-1").strip())
    try:
        if found := _DIGITS.fullmatch(words):
            year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
            return datetime(year, month or 1, day or 1, hour, minute, second, tzinfo=UTC)
        return in_utc(datetime.fromisoformat(words))
    except (ValueError, OverflowError):
        return None


def _http_date(text: bytes) -> datetime | None:
    try:
        return in_utc(parsedate_to_datetime(text.decode("latin-1")))
    except (ValueError, TypeError, OverflowError):
        return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
