"""Reading pieces of stores as Arrow batches."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from winkformats.arrays import Bools, Int64
from winkformats.errors import CorruptError, FormatError
from winkfs.arrow import arrays
from winkfs.arrow.pieces import POS_BITS, Named, Piece, Recorded, batch_ranges
from winkfs.arrow.rows import PieceSource, lost
from winkfs.container.table import FileTable
from winkfs.dataset.shard import tombstones
from winkfs.entry import DEFAULT_MODES
from winkfs.errors import Refusal, StalePlan
from winkfs.names import MARK, to_path
from winkfs.units import MICRO

ROW_BYTES: Final = 128  # approximate bytes of memory of a row beside its content
ROWS_AT_ONCE: Final = 1 << 13  # rows that are looked up together
MODES: Final = np.array(DEFAULT_MODES, np.int32)
LEAVE: Final = "leave it out by where, and read it with open_file"
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


Pieces = Sequence[Piece] | Mapping[int, Piece]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of a read beside its pieces.

    schema   of the batches
    columns  for each of its fields one of COLUMNS, or a column of the user
    batch    bytes of content in a batch; a larger content is alone in its batch
    largest  bytes of the largest content that is read
    mode     what a damaged or too large file does: RAISE: raises its error; FAILFAST: raises a
             Refusal that names Spark's options; PERMISSIVE: is a row with `_error`; DROPMALFORMED:
             is left out
    typed    types of the columns of the user
    problem  called with a line for each such file that does not raise
    """

    schema: pa.Schema
    columns: Sequence[str]
    batch: int
    largest: int
    mode: str
    verify: bool
    include_dirs: bool
    typed: Mapping[str, str] = field(default_factory=dict)
    problem: Callable[[str], None] | None = None

    @property
    def contents(self) -> bool:
        return "content" in self.columns

    def weights(self, sizes: Int64) -> Int64:
        """Estimate the bytes of memory of rows with contents of these sizes."""
        return np.where(sizes <= self.largest, sizes, 0) * self.contents + ROW_BYTES


def batches(reading: Reading, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Read pieces, one after another, in the order of the inodes. Raises CorruptError, Refusal
    under FAILFAST; StalePlan; FormatError; OSError."""
    for piece in pieces:
        if piece.gone:
            yield from _gone(reading, piece)
            continue
        try:
            source = OpenPiece(reading, piece)
        except (FormatError, StalePlan) as error:
            if reading.problem is None:
                raise
            reading.problem(str(lost(piece, error)))
            continue
        with source as opened:
            yield from opened.batches()


def _gone(reading: Reading, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield rows of deleted files: those of the piece, or those that its tombstones name."""
    with OpenPiece(replace(reading, columns=()), replace(piece, gone=False)) as opened:
        if piece.tombs:
            names = tombstones(opened.source.store, piece.tombs)[0]
        else:
            names = [name for rows in opened.source.chunks() for name in rows.names]
    for at in range(0, len(names), ROWS_AT_ONCE):
        some = names[at : at + ROWS_AT_ONCE]
        known = {
            "path": arrays.texts(list(map(to_path, some))), "name_raw": arrays.binaries(some),
            "_change": arrays.same("delete", len(some)),
            "_generation": arrays.same(piece.generation, len(some)),
        }  # fmt: skip
        yield _batch_of(reading, known, len(some))


def _batch_of(reading: Reading, known: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    """Return rows with some columns; all others are null, or empty if they may not be null."""
    values = [
        known[column] if column in known else _blank(field, count)
        for column, field in zip(reading.columns, reading.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(values, schema=reading.schema)


def _blank(field: pa.Field, count: int) -> pa.Array:
    values = pa.nulls(count, field.type)
    blank = {"string": "", "binary": b""}.get(str(field.type), 0)
    return values if field.nullable else values.fill_null(blank)


def _cut(reading: Reading, rows: FileTable) -> Iterator[FileTable]:
    """Divide rows into parts of batch bytes; a larger row is alone."""
    return itertools.starmap(rows.part, batch_ranges(reading.weights(rows.size), reading.batch))


def ordered(reading: Reading, pieces: Pieces, shard: Int64, pos: Int64) -> Iterator[pa.RecordBatch]:
    """Read files in a given order: see `batches`. A file that is not there is left out.

    shard  index, or key, in `pieces` of each file, int64[n]
    pos    positions of the inodes, int64[n]
    """
    with ExitStack() as stack:
        opened: dict[int, OpenPiece] = {}
        for at in range(0, len(pos), ROWS_AT_ONCE):
            numbers, places = shard[at : at + ROWS_AT_ONCE], pos[at : at + ROWS_AT_ONCE]
            parts = []
            for number in np.unique(numbers).tolist():
                if number not in opened:
                    opened[number] = stack.enter_context(OpenPiece(reading, pieces[number]))
                    opened[number].source.prepare(np.unique(pos[shard == number]))
                parts.append(opened[number].found(np.flatnonzero(numbers == number), places))
            yield from _in_order(reading, parts)
        for one in opened.values():
            yield from one.damaged()


def _in_order(reading: Reading, parts: list[Found]) -> Iterator[pa.RecordBatch]:
    place = np.concatenate([part.place for part in parts])
    weight = reading.weights(np.concatenate([part.rows.size for part in parts]))
    order = np.argsort(place)
    place = place[order]
    for at, stop in batch_ranges(weight[order], reading.batch):
        found, good, places = [], [], []
        for part in parts:
            a, b = np.searchsorted(part.place, [place[at], place[stop - 1] + 1]).tolist()
            if a < b:
                whole, fine = part.opened.batch(part.rows.take(np.arange(a, b)))
                found.append(whole)
                good.append(fine)
                places.append(part.place[a:b])
                part.opened.source.contents.drop()
        back = np.argsort(np.concatenate(places))
        whole = found[0] if len(found) == 1 else pa.concat_batches(found).take(arrays.column(back))
        yield from kept(reading, whole, np.concatenate(good)[back])


@dataclass(slots=True)
class Found:
    """Files of one container in an order, and their places in it, ascending."""

    opened: OpenPiece
    rows: FileTable
    place: Int64


class OpenPiece:
    """An open piece; `source`: what reads it, if that is open already."""

    def __init__(self, reading: Reading, piece: Piece, source: Any = None) -> None:
        self.reading, self.piece = reading, piece
        self._damaged: list[CorruptError] = []
        self.source = source
        if source is not None:
            return
        if isinstance(piece, Recorded):
            from winkfs.arrow.records import RecordsSource

            self.source = RecordsSource(
                piece, contents=reading.contents, batch=reading.batch, largest=reading.largest,
                typed=reading.typed,
            )  # fmt: skip
        elif isinstance(piece, Named):
            from winkfs.arrow.named import NamedSource

            self.source = NamedSource(piece, include_dirs=reading.include_dirs, typed=reading.typed)
        else:
            self.source = PieceSource(
                piece, verify=reading.verify, include_dirs=reading.include_dirs,
                contents=reading.contents, typed=reading.typed, problem=self.problem,
            )  # fmt: skip

    def __enter__(self) -> OpenPiece:
        return self

    def __exit__(self, *exc: object) -> None:
        self.source.__exit__(*exc)

    def problem(self, error: CorruptError) -> None:
        """Raise or note damage whose file is not known, as `mode` has it."""
        if self.reading.mode in ("FAILFAST", "RAISE"):
            raise error
        if self.reading.problem is not None:
            self.reading.problem(str(error))
        self._damaged.append(error)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all of the piece: see `batches`."""
        reading = self.reading
        for rows in self.source.chunks():
            for part in _cut(reading, rows):
                yield from kept(reading, *self.batch(part))
                self.source.contents.drop()
        yield from self.damaged()

    def found(self, places: Int64, pos: Int64) -> Found:
        """Return the rows at pos[places], in that order."""
        wanted = pos[places]
        ascending = np.unique(wanted)
        rows = self.source.at(ascending)
        index = np.searchsorted(rows.pos, wanted)
        there = rows.pos[np.minimum(index, len(rows) - 1)] == wanted if len(rows) else index < 0
        return Found(self, rows.take(index[there]), places[there])

    def batch(self, rows: FileTable) -> tuple[pa.RecordBatch, Bools]:
        """Read rows, at least one, as a batch -> it, and which rows are without error."""
        made = _Batch(self, rows)
        made.read()
        good = np.ones(len(rows), bool)
        good[list(made.errors)] = False
        return made.record(), good

    def damaged(self) -> Iterator[pa.RecordBatch]:
        """Yield rows for damaged inodes, with their positions and errors only."""
        if not self._damaged or self.reading.mode != "PERMISSIVE":
            return
        texts = [str(error) for error in self._damaged]
        known = {
            "_error": arrays.texts(texts), "_container": arrays.same(self.piece.base, len(texts)),
            "_contid": arrays.same(self.piece.contid, len(texts)),
            "_pos": arrays.column(np.array([error.offset for error in self._damaged], np.int64)),
        }  # fmt: skip
        yield _batch_of(self.reading, known, len(texts))


def kept(reading: Reading, whole: pa.RecordBatch, good: Bools) -> Iterator[pa.RecordBatch]:
    """Yield the batch with the rows that `mode` keeps, if there are any."""
    if reading.mode == "DROPMALFORMED" and not good.all():
        whole = whole.filter(arrays.column(good))
    if whole.num_rows:
        yield whole


@dataclass(slots=True)
class _Batch:
    """Files of one container that become a record batch."""

    opened: OpenPiece
    rows: FileTable
    content: pa.Array | None = None
    modes: pa.Array | None = None
    errors: dict[int, Exception] = field(default_factory=dict)

    def read(self) -> None:
        """Read contents and modes. Raises Refusal under FAILFAST; the first error under RAISE."""
        reading = self.opened.reading
        if reading.contents:
            self._read_contents()
        elif reading.mode in ("PERMISSIVE", "DROPMALFORMED") and reading.problem is None:
            self._too_large(self.rows.size > reading.largest)  # as in a read with contents
        if "mode" in reading.columns:
            self._read_modes()
        if self.errors:
            self._report()

    def _report(self) -> None:
        """Raise the first error, or report all, as `mode` has it."""
        reading = self.opened.reading
        for i, error in sorted(self.errors.items()):
            line = f"{to_path(self.rows.name(i))}: {error}"
            if reading.mode == "RAISE":
                raise error
            if reading.mode == "FAILFAST":
                raise Refusal(
                    f"{line}; mode=PERMISSIVE gives such rows an _error, DROPMALFORMED leaves them "
                    "out", self.opened.piece.base,
                )  # fmt: skip
            if reading.problem is not None:
                reading.problem(line)

    def _read_contents(self) -> None:
        rows, contents = self.rows, self.opened.source.contents
        largest = self.opened.reading.largest
        if int(rows.size.max()) <= largest:
            self.content, self.errors = contents.of(rows)
            return
        large = rows.size > largest
        small = np.flatnonzero(~large)
        part, errors = contents.of(rows.take(small))
        self.errors = {int(small[i]): error for i, error in errors.items()}
        self._too_large(large)
        place = np.full(len(rows), len(small))
        place[small] = np.arange(len(small))
        self.content = arrays.taken(pa.concat_arrays([part, pa.nulls(1, pa.binary())]), place)

    def _too_large(self, large: Bools) -> None:
        reading = self.opened.reading
        for i in np.flatnonzero(large).tolist():
            what = f"{self.rows.size[i]} bytes, more than maxContentBytes {reading.largest}"
            name = None
            if reading.mode == "RAISE":
                what = (
                    f"{self.rows.size[i]} bytes, more than the 2 GiB of a value in Arrow: {LEAVE}"
                )
                name = to_path(self.rows.name(i))
            self.errors[i] = Refusal(what, name, number=errno.EFBIG)

    def _read_modes(self) -> None:
        modes = MODES[self.rows.ftype]
        unknown = np.zeros(len(modes), bool)
        for i in np.flatnonzero(self.rows.special).tolist():
            try:
                modes[i] = self.opened.source.contents.mode(self.rows, i)
            except CorruptError as error:
                unknown[i] = True
                self.errors.setdefault(i, error)
        self.modes = arrays.column(modes, missing=unknown)

    def record(self) -> pa.RecordBatch:
        reading = self.opened.reading
        typed = self.opened.source.values(self.rows) if reading.typed else {}
        values = [
            arrays.of_column(typed[column]) if column in typed else COLUMNS[column](self)
            for column in reading.columns
        ]
        return pa.RecordBatch.from_arrays(values, schema=reading.schema)

    # --- columns ---

    def _names(self) -> pa.Array:
        rows = self.rows
        offsets = (rows.name_ends - rows.name_ends[0]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.names_joined)]
        return pa.BinaryArray.from_buffers(pa.binary(), len(rows), buffers)

    def _paths(self) -> pa.Array:
        names, raw = self._names(), self.rows.names_joined
        ascii = int(raw.max(initial=0)) < 0x80
        if not ascii or (raw == MARK[0]).any():
            text = raw.tobytes()
            if MARK in text or not (ascii or _is_utf8(text, self.rows)):
                names = _escaped(names, self.rows)
        return names.view(pa.string())

    def _errors(self) -> pa.Array:
        if not self.errors:
            return pa.nulls(len(self.rows), pa.string())
        lines = {i: str(error) for i, error in self.errors.items()}
        return arrays.texts([lines.get(i) for i in range(len(self.rows))])

    def _refs(self) -> pa.Array:
        return arrays.column(self.rows.pos | self.opened.piece.number << POS_BITS)

    def _same(self, value: str | int) -> pa.Array:
        return arrays.same(value, len(self.rows))


def _is_utf8(text: bytes, rows: FileTable) -> bool:
    """Return whether each name is UTF-8: all bytes are, and no name begins inside a character."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return not bool(((rows.name_bytes[rows.name_ends[:-1]] & 0xC0) == 0x80).any())


def _escaped(names: pa.Array, rows: FileTable) -> pa.Array:
    """Replace names that are no UTF-8, or contain an escape, by those of `names.to_path`."""
    import pyarrow.compute as pc

    raw, start = rows.names_joined, rows.name_ends[:-1] - rows.name_ends[0]
    suspect = np.flatnonzero((raw >= 0x80) | (raw == MARK[0]))
    index = np.unique(np.searchsorted(start, suspect, "right") - 1)
    mask = np.zeros(len(rows), bool)
    mask[index] = True
    texts = [to_path(rows.name(i)).encode() for i in index.tolist()]
    return pc.replace_with_mask(names, arrays.column(mask), arrays.binaries(texts))


COLUMNS: Final[dict[str, Callable[[_Batch], pa.Array]]] = {
    "path": _Batch._paths,
    "name_raw": _Batch._names,
    "size": lambda made: arrays.column(made.rows.size),
    "mtime": lambda made: arrays.column(made.rows.mtime // MICRO, TIMESTAMP),
    "mtime_ns": lambda made: arrays.column(made.rows.mtime),
    "content": lambda made: made.content,
    "ftype": lambda made: arrays.column(made.rows.ftype.astype(np.int32)),
    "mode": lambda made: made.modes,
    "_error": _Batch._errors,
    "_container": lambda made: made._same(made.opened.piece.base),
    "_contid": lambda made: made._same(made.opened.piece.contid),
    "ref": lambda made: made._refs(),
    "_ref": lambda made: made._refs(),
    "_pos": lambda made: arrays.column(made.rows.pos),
    "_pointer": lambda made: arrays.column(made.rows.pointer),
    "_generation": lambda made: made._same(made.opened.piece.generation),
    "_change": lambda made: made._same("put"),
}
