"""Records of a WARC or ARC file, plain or packed by gzip, one after the other.

A record that is damaged, cut short, or has a wrong length is reported and costs itself: reading
goes on at the next place where a record begins. A record is whole where its block is followed by
the next record or the end; else its Content-Length is wrong, and it is not taken.

FastWARC, if it is there, reads a file up to the first thing that is odd. From there on, and for ARC
files, `Stream` does, which knows where things are and what is wrong with them.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, BinaryIO, Final, NamedTuple

from winkfs.archive.http import headers_of, quoted

GZIP: Final = b"\x1f\x8b\x08"
INPUT_BYTES: Final = 64 << 10  # compressed bytes that are decompressed at a time
MAX_HEADER_BYTES: Final = 1 << 20  # of a record
MAX_READ_BYTES: Final = 1 << 20  # already read, that are kept
MAX_LINE_BYTES: Final = 8 << 10  # of the first line of a record
ABOUT: Final = ("warcinfo", "request")  # records about other records
_MEMBER: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
_WARC: Final = re.compile(rb"WARC/[01]\.\d{1,3}[ \t]*\r?\n(?=[A-Za-z][\w-]*[ \t]*:)")
_ARC: Final = re.compile(rb"[A-Za-z][\w+.-]*:[^\s]* [\w.:-]+ \d{8,17} [^\n]*?(?<= )\d+[ \t]*\r?\n")
_URL: Final = re.compile(rb"[A-Za-z][A-Za-z\d+.-]*:[\x21-\x7e\x80-\xff]+\Z|byte \d+\Z")
_BLANK: Final = re.compile(rb"\n\r?\n")
_SPACE: Final = re.compile(rb"[\r\n]*")
Bad = Callable[[bytes, str], None]
"""Called with the name of a record, or its place, and the fault."""


class Record(NamedTuple):
    """A record. `kind`: WARC-Type in lower case; `headers`: names in lower case; `block`: all after
    the header; `place`: the byte of the file at which it, or its gzip member, begins."""

    kind: str
    headers: dict[bytes, bytes]
    block: bytes
    place: int

    @property
    def url(self) -> bytes:
        return self.headers.get(b"warc-target-uri", b"").strip(b"<> ")


def is_archive(start: bytes) -> bool:
    """Return whether the start of a file, decompressed, is that of a WARC or ARC file."""
    return start.lstrip(b"\r\n").startswith((b"WARC/", b"filedesc://"))


class Stream:
    """The bytes of a file, decompressed as far as they were needed.

    buffer  decompressed bytes; of a plain file all
    at      index in it of the next byte to be read
    damage  (byte, reason) why it cannot be read on; None: it can
    """

    def __init__(self, data: Any, place: int = 0) -> None:
        """Begin at byte `place` of the file."""
        self._data, self.packed = data, data[:3] == GZIP
        self.buffer: Any = b"" if self.packed else data
        self.at = 0 if self.packed else place
        self.damage: tuple[int, str] | None = None
        self._unpacker: Any = None
        self._next = place  # byte of the file that is unpacked next
        self._members: list[tuple[int, int]] = []  # index in the buffer, byte of the file of each

    def place(self, index: int) -> int:
        """Return the byte of the file for an index in the buffer: of a packed one, where the member
        begins."""
        if not self.packed:
            return index
        number = self._number(index)
        return self._members[number][1] if number >= 0 else 0

    def _number(self, index: int) -> int:
        """Return the number of the member that has an index, -1: none that is known."""
        return bisect.bisect_right(self._members, index, key=itemgetter(0)) - 1

    def more(self) -> bool:
        """Decompress more -> whether there was anything."""
        if not self.packed or self.damage is not None:
            return False
        if self._unpacker is None and not self._begin_member():
            return False
        piece = self._data[self._next : self._next + INPUT_BYTES]
        if not piece:
            self.damage = self._next, "the file ends within a gzip member"
            return False
        try:
            self._add(self._unpacker.decompress(piece))
        except zlib.error:
            self._add(self._up_to_damage(piece))
            return True
        self._next += len(piece) - len(self._unpacker.unused_data)
        if self._unpacker.eof:
            self._unpacker = None
        return True

    def _add(self, data: bytes) -> None:
        if not self.buffer:
            self.buffer = data
            return
        if isinstance(self.buffer, bytes):
            self.buffer = bytearray(self.buffer)
        self.buffer += data

    def _begin_member(self) -> bool:
        start = self._data[self._next : self._next + 3]
        if start != GZIP:
            if self._data[self._next : self._next + INPUT_BYTES].strip(b"\0"):
                self.damage = self._next, "no gzip member begins there"
            return False
        self._unpacker = zlib.decompressobj(31)
        self._members.append((len(self.buffer), self._next))
        return True

    def _up_to_damage(self, piece: bytes) -> bytes:
        """Return the bytes of a damaged piece up to the damage, and set `damage`."""
        unpacker, at = zlib.decompressobj(31), self._members[-1][1]
        while at < self._next:
            step = min(INPUT_BYTES, self._next - at)
            unpacker.decompress(self._data[at : at + step])
            at += step
        found = bytearray()
        for i in range(len(piece)):
            try:
                found += unpacker.decompress(piece[i : i + 1])
            except zlib.error as error:
                self.damage = self._next + i, "gzip: " + str(error).rpartition(": ")[2]
                break
        return bytes(found)

    def drop(self) -> None:
        """Forget bytes that were read, if these are all, or many."""
        if self.packed and (self.at == len(self.buffer) or self.at > MAX_READ_BYTES):
            at, self.at = self.at, 0
            self.buffer = self.buffer[at:]
            last = max(self._number(at), 0)
            self._members = [(start - at, place) for start, place in self._members[last:]]

    def resume(self, start: re.Pattern[bytes]) -> bool:
        """Continue after damage at the next member in which a record begins -> whether there is
        one."""
        place = self._members[-1][1] if self._members else -1
        self.damage = self._unpacker = None
        self.buffer, self.at = b"", 0
        for found in _MEMBER.finditer(self._data, place + 1):
            unpacker = zlib.decompressobj(31)
            try:
                first = unpacker.decompress(self._data[found.start() : found.start() + INPUT_BYTES])
            except zlib.error:
                continue
            if start.search(first):
                self._next = found.start()
                self._members = []
                return True
        return False

    def find(
        self, pattern: re.Pattern[bytes], start: int, stop: int = sys.maxsize
    ) -> re.Match[bytes] | None:
        """Search from an index on, to index `stop`, the end or damage."""
        found = pattern.search(self.buffer, start, stop)
        while found is None and len(self.buffer) < stop:
            start = max(start, len(self.buffer) - MAX_LINE_BYTES)
            if not self.more():
                return None
            found = pattern.search(self.buffer, start, stop)
        return found

    def reach(self, start: int, stop: int) -> int:
        """Decompress up to index `stop` of a block that begins at `start` -> its end: before `stop`
        at the end of the file, or if a new member begins with a record."""
        while len(self.buffer) <= stop + 4 and self._edge(start, stop) == stop:
            within_member = self._unpacker is not None and self.damage is None
            if (len(self.buffer) >= stop and not within_member) or not self.more():
                break
        return min(self._edge(start, stop), len(self.buffer))

    def _edge(self, start: int, stop: int) -> int:
        for index, _ in reversed(self._members):
            if index <= start:
                break
            if index < stop and is_archive(bytes(self.buffer[index : index + 16])):
                return index
        return stop


def records(file: BinaryIO, data: Any, bad: Bad) -> Iterator[Record]:
    """Yield the records of a file; the block of one in ABOUT may be left empty.

    data    its bytes: an mmap
    bad     called with each record that cannot be read
    cost    memory: a record, and a few MiB
    """
    last, known = yield from _quickly(file, data)
    start = 0
    if last is not None:
        # If members and records do not coincide, FastWARC reports wrong places.
        faults: list[bytes] = []
        again = next(_slowly(data, last.place, lambda name, _: faults.append(name)), None)
        if again is not None and again.headers == last.headers and not faults:
            start, known = last.place, 1
    yield from islice(_slowly(data, start, bad), known, None)


def _quickly(file: BinaryIO, data: Any) -> Generator[Record, None, tuple[Record | None, int]]:
    """Yield records, read by FastWARC, each once the next one was found -> the last one that was
    yielded, from which to continue, and their number."""
    held: Record | None = None
    last: Record | None = None
    count = 0
    with contextlib.suppress(ImportError, OSError):
        from fastwarc.warc import ArchiveIterator

        file.seek(0)
        for record in ArchiveIterator(file, parse_http=False):
            if held is not None and record.stream_pos <= held.place:
                break  # several records in a gzip member: it does not report where they begin
            if held is not None:
                last, count = held, count + 1
                yield held
            held = _taken(record, data)
            if held is None:
                break
    return last, count


def _taken(record: Any, data: Any) -> Record | None:
    """Return a record of FastWARC; None: it is unusual."""
    place = record.stream_pos
    headers = {name.lower(): value for name, value in record.headers.items_bytes()}
    kind = headers.get(b"warc-type", b"").decode("latin-1").lower()
    if data[:3] == GZIP and data[place : place + 3] != GZIP:
        return None
    if headers.get(b"content-length") != b"%d" % record.content_length:
        return None
    if kind in ABOUT:
        return Record(kind, headers, b"", place)
    block = record.reader.read()
    return Record(kind, headers, block, place) if len(block) == record.content_length else None


def _slowly(data: Any, place: int, bad: Bad) -> Iterator[Record]:
    """Yield the records from byte `place` on, at which one begins."""
    stream = Stream(data, place)
    while len(stream.buffer) < 16 and stream.more():
        pass
    arc = bytes(stream.buffer[:64]).lstrip(b"\r\n").startswith(b"filedesc:")
    reader = _Arc(stream, bad) if arc else _Reader(stream, bad)
    while True:
        yield from reader.run()
        if stream.damage is None or not stream.resume(reader.start):
            return


class _Reader:
    """Reads the records of a WARC stream, up to its end or damage."""

    start = _WARC

    def __init__(self, stream: Stream, bad: Bad) -> None:
        self._stream, self._bad = stream, bad
        self._reported = False  # the damage of the stream

    def run(self) -> Iterator[Record]:
        stream, self._reported = self._stream, False
        while self._skip_space():
            begin = stream.at
            found = self._head()
            if found is not None:
                record = self._record(begin, *found)
                if record is not None:
                    yield record

    def _skip_space(self) -> bool:
        """Skip bytes between records -> whether there is another record."""
        stream = self._stream
        while True:
            found = _SPACE.match(stream.buffer, stream.at)
            stream.at = found.end() if found else stream.at
            stream.drop()
            if stream.at < len(stream.buffer):
                return True
            if not stream.more():
                if stream.damage is not None and not self._reported:
                    self._report(b"byte %d" % stream.place(stream.at), "")
                return False

    def _head(self) -> tuple[dict[bytes, bytes], int] | None:
        """Read a header -> it, and the index of the block. None: it is invalid, and the stream is
        at the next record."""
        stream = self._stream
        begin = stream.at
        while len(stream.buffer) - begin < 64 and stream.more():
            pass
        if self.start.match(stream.buffer, begin) is None:
            name = b"byte %d" % stream.place(begin)
            line = quoted(bytes(stream.buffer[begin : begin + 64]))
            self._go_on(name, begin, f"no record begins there: {line}")
            return None
        end = self._end_of_head(begin)
        if end is None:
            self._go_on(b"byte %d" % stream.place(begin), begin + 5, "its header does not end")
            return None
        return self._headers(bytes(stream.buffer[begin:end])), end

    def _end_of_head(self, begin: int) -> int | None:
        found = self._stream.find(_BLANK, begin, begin + MAX_HEADER_BYTES)
        return found.end() if found else None

    def _headers(self, head: bytes) -> dict[bytes, bytes]:
        return headers_of(head)

    def _record(self, begin: int, headers: dict[bytes, bytes], start: int) -> Record | None:
        stream = self._stream
        kind = headers.get(b"warc-type", b"").decode("latin-1").lower()
        record = Record(kind, headers, b"", stream.place(begin))
        name = record.url or b"byte %d" % record.place
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 18:
            what = f"its Content-Length is no number: {quoted(length)}" if length else None
            self._go_on(name, start, what or "it has no Content-Length")
            return None
        stop = start + int(length)
        reached = stream.reach(start, stop)
        if reached < stop or not self._ends(stop):
            self._wrong_length(name, start, stop, reached)
            return None
        stream.at = stop
        return record._replace(block=bytes(stream.buffer[start:stop]))

    def _ends(self, stop: int) -> bool:
        """Return whether a record, or the end, follows a block that ends at `stop`."""
        stream = self._stream
        found = _SPACE.match(stream.buffer, stop)
        end = found.end() if found else stop
        if end == len(stream.buffer):
            return stream.damage is None or stream.place(stop) != stream.place(end)
        if stream.buffer[stop:end].count(b"\n") >= 2:
            return True
        return self.start.match(stream.buffer, end) is not None

    def _wrong_length(self, name: bytes, start: int, stop: int, reached: int) -> None:
        stream = self._stream
        if stream.damage is not None and reached >= len(stream.buffer) - 4:
            self._report(name, "")
            stream.at = len(stream.buffer)
            return
        found = stream.find(self.start, start)
        if found is None:
            what = f"it is cut short after {reached - start} of {stop - start} bytes"
            if reached == stop:
                what = f"its Content-Length is {stop - start}, but its block goes on"
            self._go_on(name, len(stream.buffer), what)
            return
        size = len(bytes(stream.buffer[start : found.start()]).rstrip(b"\r\n"))
        what = (
            f"its Content-Length is {stop - start}, but the next record begins after {size} bytes"
        )
        self._report(name, what)
        stream.at = found.start()

    def _go_on(self, name: bytes, start: int, what: str) -> None:
        """Report a record, and go to the next one from an index on."""
        stream = self._stream
        found = stream.find(self.start, start)
        self._report(name, what)
        stream.at = found.start() if found else len(stream.buffer)

    def _report(self, name: bytes, what: str) -> None:
        damage = self._stream.damage
        if damage is not None and not _URL.match(name):  # the name may be damaged, too
            name = b"byte %d" % self._stream.place(self._stream.at)
        if damage is not None:
            what, self._reported = f"damaged at byte {damage[0]}: {damage[1]}", True
        self._bad(name, what)


class _Arc(_Reader):
    """Reads an ARC stream; a record begins with a line: URL, address, date, type, .., length."""

    start = _ARC

    def _end_of_head(self, begin: int) -> int | None:
        found = self.start.match(self._stream.buffer, begin)
        return found.end() if found else None

    def _headers(self, head: bytes) -> dict[bytes, bytes]:
        url, _, date, kind, *_, length = head.split()
        of_file = url.lower().startswith(b"filedesc:")
        return {
            b"warc-type": b"warcinfo" if of_file else b"response", b"warc-target-uri": url,
            b"warc-date": date, b"content-length": length,
            b"content-type": b"application/http" if url[:4].lower() == b"http" else kind,
        }  # fmt: skip
