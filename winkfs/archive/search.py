"""Search: the lines of contents that match patterns, as grep prints them.

The texts that each match of a pattern has are searched in the joined contents of many files, and
only lines that have them are matched. Contents are read in disk order, in several processes.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import pickle
import re
import signal
import struct
import warnings
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise, repeat
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from winkformats import native
from winkformats.arrays import Int64, among
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Buffer
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import MASK64
from winkfs.archive.pattern import LINE, Pattern, Spans, united
from winkfs.container.container import Container
from winkfs.container.select import Query, all_rows
from winkfs.container.store import Store
from winkfs.container.table import FileTable
from winkfs.container.where import parse
from winkfs.dataset.reading import DatasetReading
from winkfs.dataset.shard import Shard
from winkfs.dataset.snapshot import plain_shard
from winkfs.errors import NoSuchFile
from winkfs.names import to_str
from winkfs.reader import Problem, Reader
from winkfs.tables import tables

UNIT_BYTES: Final = 4 << 20  # of contents that a process takes at a time
UNIT_FILES: Final = 8 << 10
BATCH_BYTES: Final = 1 << 20  # of contents that are searched together: they stay in the cache
FEWER: Final = 16  # times as many contents are searched together as by themselves, at least
LARGE: Final = 1 << 20  # bytes of a content that is read by itself
PROCESS_BYTES: Final = 16 << 20  # of contents, from which several processes search
PER_FILE: Final = 256  # bytes that a file counts beside its content
SLACK: Final = 64  # bytes of an entry beside its value
SPARSE: Final = 4  # times the bytes of contents that are read at most, with what is between them
NAMES_AT_ONCE: Final = 256  # contents that are read by name together
PIPE_BYTES: Final = 1 << 20
F_SETPIPE_SZ: Final = 1031
SIZE: Final = struct.Struct(">Q")
Line = Callable[[str], None]
Mode = Literal["lines", "only", "count", "names"]
Printed = dict[int, tuple[bool, bytes | bytearray]]
"""Row -> whether it has selected lines, and what is printed."""


# --- a content ---


@dataclass(frozen=True, slots=True)
class Search:
    """A search: its patterns, and how lines are printed.

    mode            lines: those that are selected; only: their parts that match; count: how many;
                    names: of files that have any
    invert          select the lines that do not match
    named, numbered  print names, and numbers of lines
    text            print lines of binary contents, too
    most            selected lines of a file; None: all
    before, after   lines around them; any of both: groups are separated
    shown           how a name is printed
    """

    patterns: Sequence[Pattern]
    mode: Mode = "lines"
    invert: bool = False
    named: bool = True
    numbered: bool = False
    text: bool = False
    most: int | None = None
    before: int = 0
    after: int = 0
    shown: Callable[[bytes], bytes] = bytes

    @property
    def folded(self) -> bool:
        return any(pattern.folded for pattern in self.patterns)

    @property
    def separator(self) -> bytes:
        """The line between groups of lines."""
        return b"--\n" if self.mode == "lines" and (self.before or self.after) else b""

    def may_have(self, data: bytearray, ends: Sequence[int]) -> Sequence[int]:
        """Return which of the contents data[ends[i] : ends[i + 1]] may have a selected line.

        cost  a search of all for the literal of each pattern
        """
        literals = [(p.folded, of[0]) for p in self.patterns for of in p.literals]
        if self.invert or not all(pattern.literals for pattern in self.patterns):
            return range(len(ends) - 1)
        found = set[int]()
        folded = data[: ends[-1]].lower() if self.folded else data
        for ignore_case, literal in literals:
            text, at = folded if ignore_case else data, 0
            while (hit := text.find(literal, at, ends[-1])) >= 0:
                i = bisect_right(ends, hit) - 1
                at = ends[i + 1]
                if hit + len(literal) <= at:
                    found.add(i)
        return sorted(found)

    @property
    def joins(self) -> bool:
        """Return whether `joined` can search many contents."""
        known = all(pattern.literals for pattern in self.patterns)
        return known and not self.separator and native.code is not None

    def alone(self, data: memoryview, ends: Int64) -> list[int]:
        """Return which of the contents data[ends[i] : ends[i + 1]] `joined` cannot take: those
        without a line feed at the end, or with a NUL byte if lines are printed."""
        assert native.code is not None
        raw = np.frombuffer(data, np.uint8)
        found = raw[ends[1:] - 1] != LINE[0]
        printed = self.mode in ("lines", "only") and not self.text
        if printed and native.code.lines(data, (b"\0",), False):
            found |= np.minimum.reduceat(raw, ends[:-1]) == 0
        alone: list[int] = np.flatnonzero(found).tolist()
        return alone

    def joined(
        self, data: memoryview, ends: Int64, names: Callable[[Int64], list[bytes]]
    ) -> tuple[bool, bytes | bytearray]:
        """Return as `printed` of many contents, data[ends[i] : ends[i + 1]], by array operations.

        names  returns the names of the contents with these numbers
        """
        lines = united([pattern.lines_in(data) for pattern in self.patterns])
        if self.invert:
            breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == LINE[0])
            others = np.ones(len(breaks), bool)
            others[np.searchsorted(breaks, lines[:, 1])] = False
            starts = np.concatenate([[0], breaks[:-1] + 1])
            lines = np.stack([starts, breaks], axis=1)[others]
        if not len(lines) and self.mode != "count":
            return False, b""
        return self._printed_lines(data, ends, names, lines)

    def _printed_lines(
        self, data: memoryview, ends: Int64, names: Callable[[Int64], list[bytes]], lines: Int64
    ) -> tuple[bool, bytes | bytearray]:
        """Print lines of joined contents: see `Pattern.lines_in`."""
        file = np.searchsorted(ends, lines[:, 0], "right") - 1
        if self.most is not None and len(lines):
            first = np.searchsorted(file, file)
            kept = np.arange(len(lines)) - first < self.most
            lines, file = lines[kept], file[kept]
        some = bool(len(lines))
        if self.mode == "count":
            counts = np.bincount(file, minlength=len(ends) - 1).tolist()
            heads = [self._head(name, b":") for name in names(np.arange(len(ends) - 1))]
            pairs = zip(heads, counts, strict=True)
            return some, b"".join([b"%b%d\n" % pair for pair in pairs])
        if self.mode == "only":
            lines, file = self._parts(data, ends, lines, file)
        which, of = np.unique(file, return_inverse=True)
        if self.mode == "names":
            return some, b"".join([self.shown(name) + LINE for name in names(which)])
        assert native.code is not None
        heads = [self._head(name, b":") for name in names(which)]
        starts = ends[which] if self.numbered else None
        return some, native.code.headed(data, lines, of.astype(np.int64), heads, starts)

    def printed(self, name: bytes, content: bytes, binary: list[bytes]) -> tuple[bool, bytes]:
        """Return whether a content has selected lines, and what is printed of it.

        binary  gets the name of a content with a NUL byte whose lines would be printed
        """
        lines: Iterator[tuple[int, int]] = self._selected(content)
        lines = lines if self.most is None else islice(lines, self.most)
        if self.mode == "names":
            found = next(lines, None) is not None
            return found, self.shown(name) + LINE if found else b""
        if self.mode == "count":
            count = sum(1 for _ in lines)
            return count > 0, self._head(name, b":") + b"%d\n" % count
        first = next(lines, None)
        if first is None:
            return False, b""
        if not self.text and b"\0" in content:
            binary.append(name)
            return True, b""
        if self.separator:
            return True, self._around(name, content, [first, *lines])
        parts, number, at = list[bytes](), 1, 0
        head = self._head(name, b":")
        for start, end in (first, *lines):
            if self.numbered:
                number += content.count(LINE, at, start)
                at = start
            before = head + b"%d:" % number if self.numbered else head
            if self.mode == "only":
                line = content[start:end]
                for begin, stop in () if self.invert else self._matches(line):
                    parts += before, line[begin:stop], LINE
            else:
                parts += before, content[start:end], LINE
        return True, b"".join(parts)

    def _head(self, name: bytes, mark: bytes) -> bytes:
        return self.shown(name) + mark if self.named else b""

    def _selected(self, content: bytes) -> Spans:
        folded = content.lower() if self.folded else content
        runs = [pattern.lines(content, folded) for pattern in self.patterns]
        found = runs[0] if len(runs) == 1 else _each_once(heapq.merge(*runs))
        return _between(content, found) if self.invert else found

    def _parts(
        self, data: memoryview, ends: Int64, lines: Int64, file: Int64
    ) -> tuple[Int64, Int64]:
        """Return the parts of lines that match, and their files."""
        if self.invert:
            return lines[:0], file[:0]
        pattern = self.patterns[0]
        if len(self.patterns) == 1 and pattern.sure and self.most is None:
            spans = [found.span() for found in pattern.line.finditer(data)]
            parts = np.array(spans, np.int64).reshape(-1, 2)
            return parts, np.searchsorted(ends, parts[:, 0], "right") - 1
        rows = np.array([
            (start + begin, start + stop, number)
            for (start, end), number in zip(lines.tolist(), file.tolist(), strict=True)
            for begin, stop in self._matches(data[start:end])
        ], np.int64).reshape(-1, 3)  # fmt: skip
        return np.ascontiguousarray(rows[:, :2]), rows[:, 2]

    def _matches(self, line: Buffer) -> Iterable[tuple[int, int]]:
        """Return start and end of the parts that match and have bytes."""
        if len(self.patterns) > 1:
            return self._first_matches(line)
        found = self.patterns[0].line.finditer(line)
        return [span for span in [each.span() for each in found] if span[0] < span[1]]

    def _first_matches(self, line: Buffer) -> Spans:
        """Yield the first parts that match one of the patterns, of these the longest."""
        at = 0
        while at <= len(line):
            spans = [m.span() for p in self.patterns if (m := _some(p.line, line, at))]
            if not spans:
                return
            start, end = min(spans, key=lambda span: (span[0], -span[1]))
            yield start, end
            at = end

    def _around(self, name: bytes, content: bytes, lines: list[tuple[int, int]]) -> bytes:
        """Return the lines and those around them; groups are separated by a line `--`."""
        text = content.split(LINE)
        if not text[-1]:
            text.pop()
        chosen, number, at = list[int](), 0, 0
        for start, _ in lines:
            number += content.count(LINE, at, start)
            at = start
            chosen.append(number)
        parts, last, picked = list[bytes](), -1, frozenset(chosen)
        for i in chosen:
            first = max(i - self.before, last + 1)
            if parts and first > last + 1:
                parts.append(self.separator)
            until = min(i + self.after + 1, len(text))
            for k in range(first, until):
                mark = b":" if k in picked else b"-"
                where = b"%d%b" % (k + 1, mark) if self.numbered else b""
                parts += self._head(name, mark), where, text[k], LINE
            last = max(last, until - 1)
        return b"".join(parts)


def _some(pattern: re.Pattern[bytes], line: Buffer, at: int) -> re.Match[bytes] | None:
    """Return the first match that is not empty."""
    return next(
        (found for found in pattern.finditer(line, at) if found.end() > found.start()), None
    )


def _each_once(lines: Iterable[tuple[int, int]]) -> Spans:
    last = (-1, -1)
    for line in lines:
        if line != last:
            yield line
        last = line


def _between(content: bytes, lines: Iterable[tuple[int, int]]) -> Spans:
    """Yield the other lines of a content."""
    at, size = 0, len(content)
    for start, end in (*lines, (size, size)):
        while at < start:
            stop = content.find(LINE, at, start)
            stop = start if stop < 0 else stop
            yield at, stop
            at = stop + 1
        at = end + 1


# --- files ---


@dataclass(frozen=True, slots=True)
class Part:
    """Files to be searched, in the order in which they lie.

    shard  that has them; None: they are read by name
    """

    shard: Shard | None
    rows: FileTable


def parts_of(
    reader: Reader,
    prefix: bytes,
    problem: Problem,
    chosen: Callable[[FileTable], FileTable],
    where: str | None = None,
) -> Iterator[Part]:
    """Yield the files of a store whose names begin with a prefix, without directories and links.

    chosen  returns the rows that are meant
    """

    def kept(found: Iterable[FileTable]) -> FileTable:
        rows = [chosen(rows.visible(None, include_dirs=False)) for rows in found]
        whole = FileTable.concat([part for part in rows if len(part)])
        where_at = np.where(whole.pointer > 0, whole.pointer, whole.pos)
        return whole.take(np.argsort(where_at, kind="stable"))

    if isinstance(reader, Container):
        rows = kept(reader.rows(prefix, problem, where=where))
        with reader.lock:
            yield Part(plain_shard(reader.settled()), rows)
    elif isinstance(reader, DatasetReading):
        condition = None if where is None else parse(where).bound(reader.columns)
        query = Query.of_prefix(prefix, where=condition)
        for shard in reader.shards_now():
            try:
                with shard.pass_over(), shard.open() as store:
                    found = all_rows(store, contextlib.nullcontext(), problem, query)
                    rows = kept(r.take(~among(r.pos, shard.hidden)) for r in found)
            except CorruptError as error:
                problem(error)
                continue
            yield Part(shard, rows)
    else:
        yield Part(None, kept(tables(reader, prefix, problem, where=where)))


@dataclass(slots=True)
class Result:
    """The result of a unit.

    out       to be printed
    binary    names of binary files that match
    problems  lines on what could not be read
    """

    found: bool = False
    out: bytes = b""
    binary: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Searcher:
    """Searches units: rows of parts. Each process has its own, made after it was forked."""

    def __init__(self, reader: Reader, parts: Sequence[Part], search: Search) -> None:
        self._reader, self._parts, self._search = reader, parts, search
        self._number = -1  # of the part that is open
        self._store: Store | None = None
        self._pass: Any = None
        self._buffer = bytearray()

    def unit(self, unit: tuple[int, int, int]) -> Result:
        """Search the rows [start, stop) of a part."""
        number, start, stop = unit
        rows, result = self._parts[number].rows.part(start, stop), Result()
        printed: Printed = {}
        self._open(number)
        left = self._joined(rows, printed, result)
        self._by_name(rows, left, printed, result)
        result.found = any(found for found, _ in printed.values())
        texts = [printed[i][1] for i in sorted(printed)]
        result.out = self._search.separator.join(filter(None, texts))
        return result

    def close(self) -> None:
        if self._pass is not None:
            self._pass.close()
        if self._store is not None:
            self._store.abandon()
        self._store = self._pass = None

    def _open(self, number: int) -> None:
        if number == self._number:
            return
        self.close()
        self._number, shard = number, self._parts[number].shard
        if shard is None or native.code is None:
            return
        store = shard.open(load=False)
        self._store = store
        if store.kv.layout.standard:
            self._pass = store.kv.storage.bulk(store.kv.start, store.kv.end)

    def _joined(self, rows: FileTable, printed: Printed, result: Result) -> Int64:
        """Search plain contents that lie together -> the rows that are left."""
        every = np.arange(len(rows))
        if self._pass is None or self._store is None:
            return every
        end = self._store.kv.end
        plain = (rows.pointer > 0) & (rows.size <= LARGE) & (rows.size <= end - rows.pointer)
        plain &= ~rows.asked & (rows.size > 0)
        chosen, left = np.flatnonzero(plain), [np.flatnonzero(~plain)]
        at = 0
        sizes = np.cumsum(rows.size[chosen])
        while at < len(chosen):
            before = int(sizes[at - 1]) if at else 0
            stop = max(int(np.searchsorted(sizes, before + BATCH_BYTES, "right")), at + 1)
            left.append(self._batch(rows, chosen[at:stop], printed, result))
            at = stop
        return np.sort(np.concatenate(left))

    def _batch(self, rows: FileTable, index: Int64, printed: Printed, result: Result) -> Int64:
        """Search the contents of rows, which are read with one read -> those that are left."""
        assert self._store is not None
        assert native.code is not None
        pointer, size = rows.pointer[index], rows.size[index]
        begin, total = int(pointer[0]), int(size.sum())
        span = min(int((pointer + size).max()) + SLACK, self._store.kv.end) - begin
        if span > SPARSE * (total + PER_FILE * len(index)):
            return index
        window = self._pass.read(begin, span)
        ends = np.concatenate([[0], np.cumsum(size)])
        if len(self._buffer) < total:
            self._buffer = bytearray(total)
        good = np.zeros(len(index), bool)
        native.code.gather(
            window, pointer - begin, pointer, size, self._store.kv.layout.contid & MASK64,
            self._buffer, good,
        )  # fmt: skip
        search, places, all_good = self._search, ends.tolist(), bool(good.all())
        with memoryview(self._buffer)[:total] as data:
            alone = search.alone(data, ends) if all_good and search.joins else None
            if alone is not None and len(alone) * FEWER <= len(index):
                for start, stop in pairwise([-1, *alone, len(index)]):
                    some = slice(start + 1, stop)
                    self._together(rows, index[some], data, ends[start + 1 : stop + 1], printed)
                may: Sequence[int] = alone
                rest = index[:0]
            else:
                may = search.may_have(self._buffer, places)
                rest = np.setdiff1d(np.flatnonzero(good), may)
            names = rows.take(index[list(may)]).names
            for i, name in zip(may, names, strict=True):
                if all_good or good[i]:
                    content = bytes(data[places[i] : places[i + 1]])
                    printed[int(index[i])] = search.printed(name, content, result.binary)
        if search.mode == "count":
            for i in rest.tolist():
                printed[int(index[i])] = search.printed(rows.name(int(index[i])), b"", [])
        return index[~good]

    def _together(
        self, rows: FileTable, index: Int64, data: memoryview, ends: Int64, printed: Printed
    ) -> None:
        if len(index):
            printed[int(index[0])] = self._search.joined(
                data[ends[0] : ends[-1]], ends - ends[0], lambda n: rows.take(index[n]).names
            )

    def _by_name(self, rows: FileTable, index: Int64, printed: Printed, result: Result) -> None:
        names = rows.take(index).names if len(index) else []
        pairs = iter(zip(index.tolist(), names, rows.size[index].tolist(), strict=True))
        while some := list(islice(pairs, NAMES_AT_ONCE)):
            small = [(i, name) for i, name, size in some if size <= LARGE]
            try:
                contents: Iterable[bytes] = list(self._reader.get_many([n for _, n in small]))
            except (OSError, FormatError):  # one of them
                contents, small = repeat(b""), []
            for (i, name), content in zip(small, contents, strict=False):
                printed[i] = self._search.printed(name, content, result.binary)
            for i, name, _ in some:
                if i not in printed:
                    self._one(i, name, printed, result)

    def _one(self, i: int, name: bytes, printed: Printed, result: Result) -> None:
        try:
            printed[i] = self._search.printed(name, self._reader.read(name), result.binary)
        except NoSuchFile:  # removed meanwhile
            return
        except (OSError, FormatError) as error:
            result.problems.append(f"{self._reader.base}: {to_str(name)}: {error}")


def units_of(parts: Sequence[Part]) -> list[tuple[int, int, int]]:
    """Divide the rows of parts into units of about UNIT_BYTES."""
    units = []
    for number, part in enumerate(parts):
        ends, at = np.cumsum(part.rows.size + PER_FILE), 0
        while at < len(ends):
            before = int(ends[at - 1]) if at else 0
            stop = int(np.searchsorted(ends, before + UNIT_BYTES, "right"))
            stop = min(max(stop, at + 1), at + UNIT_FILES)
            units.append((number, at, stop))
            at = stop
    return units


def search_parts(
    reader: Reader, parts: Sequence[Part], search: Search, jobs: int
) -> Generator[Result, None, None]:
    """Yield the results of all files, in the order in which they lie.

    jobs  number of processes, at most; a store on a network is read by this one
    """
    units = units_of(parts)
    size = sum(int(part.rows.size.sum()) for part in parts)
    far = is_far(reader.base)
    jobs = 1 if far else min(jobs, len(units), max(size // PROCESS_BYTES, 1))
    make = partial(Searcher, reader, parts, search)
    if jobs > 1:
        yield from _in_forks(make, units, jobs)
        return
    with contextlib.closing(make()) as searcher:
        yield from map(searcher.unit, units)


# --- processes ---


def _in_forks(
    make: Callable[[], Searcher], units: Sequence[tuple[int, int, int]], jobs: int
) -> Iterator[Result]:
    """Search units in forked processes, which need not import or list anything again -> the
    results, in order. They end with this generator."""
    children: list[tuple[int, BinaryIO]] = []
    try:
        for number in range(jobs):
            children.append(_forked(make, units[number::jobs]))
        for number in range(len(units)):
            yield _received(children[number % jobs][1])
    finally:
        for pid, pipe in children:
            pipe.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _received(pipe: BinaryIO) -> Result:
    head = pipe.read(SIZE.size)
    if len(head) < SIZE.size:
        what = "a process that searches was killed, as when memory is short"
        raise ChildProcessError(errno.ECHILD, what)
    found = pickle.loads(pipe.read(SIZE.unpack(head)[0]))
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Result)
    return found


def _forked(
    make: Callable[[], Searcher], units: Sequence[tuple[int, int, int]]
) -> tuple[int, BinaryIO]:
    """Start a process -> its id, and the pipe with its results."""
    import fcntl

    out, into = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(into, F_SETPIPE_SZ, PIPE_BYTES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are idle
        pid = os.fork()
    if pid:
        os.close(into)
        return pid, os.fdopen(out, "rb")
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.close(out)
        with os.fdopen(into, "wb") as pipe:
            _serve(make, units, pipe)
        status = 0
    finally:
        os._exit(status)


def _serve(
    make: Callable[[], Searcher], units: Sequence[tuple[int, int, int]], pipe: BinaryIO
) -> None:
    found: Result | BaseException
    try:
        searcher = make()
        for unit in units:
            _send(searcher.unit(unit), pipe)
    except BrokenPipeError:  # the parent has ended
        return
    except Exception as error:
        found = error
        _send(found, pipe)


def _send(found: Result | BaseException, pipe: BinaryIO) -> None:
    data = pickle.dumps(found)
    pipe.write(SIZE.pack(len(data)) + data)
    pipe.flush()
