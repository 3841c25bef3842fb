"""Rows: the files of containers and data sets by number, for map-style loaders."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, overload

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, raise_it
from winkfs.container.handle import check_columns
from winkfs.errors import DamageWarning, StalePlan, warn_caller
from winkfs.loaders.places import Places, Shared, Words, spans
from winkfs.loaders.places import found as found_places
from winkfs.loaders.reading import Found, ShardRows, values_of
from winkfs.loaders.sources import Source, Sources, places_of, sources_of
from winkfs.loaders.window import Window
from winkfs.registry import AsOf
from winkfs.units import NANO, shown

Row = dict[str, Any]
OnError = Literal["raise", "skip"] | Callable[[int, Exception], Any]
Windows = dict[int, Window]
"""What is held of some shards, by their number."""
ROW_BYTES: Final = 256  # of a row beside its content
LARGEST_BLOCK: Final = (32 << 20) - (64 << 10)  # bytes, that glibc counts
MOST_OPEN: Final = 100  # shards
MOST_OPEN_FAR: Final = 1000
BUILT_IN: Final = ("path", "content", "size", "mtime")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Rows:
    """The files of containers and data sets by number, in disk order: a map-style data set.

    A row is a dict of "path", "content" and the columns that were asked for. Its numbers belong to
    the state of the stores when it was made. Threads may share it; a forked child and a pickled
    copy open the stores again, at that state.

    columns  the columns of a row beside "path" and "content"
    weights  how often the rows of each store occur in an epoch of a `Sampler`
    skipped  rows that this process has left out, see `on_error`
    """

    def __init__(
        self,
        store: Source | Sequence[Source],
        *,
        where: str | None = None,
        columns: Sequence[str] = (),
        as_of: AsOf | None = None,
        content: bool = True,
        decode: Callable[[Row], Any] | None = None,
        on_error: OnError = "raise",
        weights: Sequence[float] | None = None,
    ) -> None:
        """Find the files.

        store     path of a container or data set, here or on object storage, one that is open, or
                  a list of them
        where     only files for which this condition is true: see `Container.scan`
        columns   those of the user, "size", or "mtime" (datetime, UTC)
        as_of     of data sets: a generation or a time, see `winkfs.open`
        content   False: rows without "content", which is then not read
        decode    called with each row, in the process that reads it -> what is returned for it
        on_error  of a row that is damaged, or whose `decode` raises: "raise"; "skip": a batch lacks
                  it; or a function that is called with its number and the error -> what is returned
                  for it, None: skip
        weights   of several stores: 2: each row twice in an epoch; 0.5: half of the rows, and the
                  others in the next
        raises    FileNotFoundError; ValueError; TypeError; FormatError; OSError
        cost      reads the catalogs, and no contents. Memory: 8 bytes a row, from 1 MiB on in a
                  file without a name, which processes of this machine share
        """
        self._sources = sources_of(store, where, as_of)
        self.columns = _checked_columns(columns, self._sources)
        if decode is not None and not callable(decode):
            raise TypeError(f"decode is a function of a row, not {shown(decode)}")
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(f"on_error is 'raise', 'skip' or a function, not {shown(on_error)}")
        if not isinstance(content, bool):
            raise TypeError(f"content is True or False, not {shown(content)}")
        self._decode, self._on_error, self._content = decode, on_error, content
        self.weights = _checked_weights(weights, len(self._sources.snapshots))
        self._places = places_of(self._sources, raise_it if on_error == "raise" else self._lost)
        self._begin()

    def _begin(self) -> None:
        self.skipped = getattr(self, "skipped", 0)
        self._typed = {
            name: kind for name, kind in self._sources.columns.items() if name in self.columns
        }
        self._shards = self._sources.shards
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._open: OrderedDict[int, ShardRows] = OrderedDict()
        weakref.finalize(self, _close, self._open)  # loaders have no place to close a data set
        _keep_freed()

    # --- what it is ---

    @property
    def data(self) -> str:
        """A hash of the files: equal for copies of a store, other for another generation."""
        return self._sources.identity()

    @property
    def where(self) -> str | None:
        return self._sources.where

    @property
    def source_rows(self) -> list[int]:
        """The number of rows of each store; those of the first come first."""
        bounds = np.cumsum([0, *self._sources.counts])
        return np.diff(self._places.starts[bounds]).tolist()  # type: ignore[no-any-return]

    @property
    def far(self) -> bool:
        """Return whether a store is on object storage."""
        from winkformats.disk.schemes import is_far

        return any(is_far(snapshot.root) for snapshot in self._sources.snapshots)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        stores = ", ".join(repr(snapshot.root) for snapshot in self._sources.snapshots)
        return f"<winkfs rows: {len(self)} of {stores}>"

    # --- rows ---

    @overload
    def __getitem__(self, number: int) -> Any: ...
    @overload
    def __getitem__(self, number: slice) -> list[Any]: ...
    def __getitem__(self, number: int | slice) -> Any:
        """Return a row, or several of a slice. Negative numbers count from the end.

        raises  IndexError; CorruptError, also where `on_error` skips; OSError
        """
        if isinstance(number, slice):
            return self.__getitems__(range(*number.indices(len(self))))
        found = self._made(self._read([number]), [operator.index(number)], alone=True)
        return found[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return rows, in the order of their numbers, with one read of each shard.

        raises  as `rows[i]`
        """
        return self._made(self._read(numbers), numbers)

    def __iter__(self) -> Iterator[Any]:
        """Yield all rows in disk order, many read at a time."""
        for start in range(0, len(self), 256):
            yield from self[start : start + 256]

    def _numbers(self, numbers: Any) -> Int64:
        found, count = _whole(numbers), len(self)
        if not len(found) or (found.min() >= 0 and found.max() < count):
            return found.astype(np.int64)  # type: ignore[no-any-return]
        wrong = np.flatnonzero((found < -count) | (found >= count))
        if len(wrong):
            raise IndexError(f"there is no row {found[wrong[0]]}: there are {count}")
        index: Int64 = found.astype(np.int64)
        index[index < 0] += count
        return index

    def _read(self, numbers: Any, windows: Sequence[Windows] = ()) -> Found:
        index = self._numbers(numbers)
        words = self._places.words[index]
        if len(self._shards) == 1:
            return self._of(0, words, windows)
        shard = np.searchsorted(self._places.starts, index, "right") - 1
        each = np.unique(shard).tolist()
        if len(each) == 1:
            return self._of(each[0], words, windows)
        found = Found.of(len(index))
        for number in each:
            at = np.flatnonzero(shard == number)
            found.put(at, self._of(number, words[at], windows))
        return found

    def _of(self, number: int, words: Words, windows: Sequence[Windows]) -> Found:
        options = self._content, bool(self._typed)
        held = [each[number] for each in windows if number in each]
        with self._shard(number) as shard:
            if not held:
                return shard.read(words, *options)
            return self._of_windows(shard, words, held, options)

    def _of_windows(
        self, shard: ShardRows, words: Words, held: list[Window], options: tuple[bool, bool]
    ) -> Found:
        found, left = Found.of(len(words)), np.ones(len(words), bool)
        for window in held:
            at = np.flatnonzero(left & window.has(words))
            if len(at):
                found.put(at, window.read(words[at], *options))
                left[at] = False
        if left.any():
            found.put(np.flatnonzero(left), shard.read(words[left], *options))
        return found

    # --- read together, on object storage ---

    def held(self, numbers: Int64) -> Windows:
        """Request all that some rows take, in large pieces, and keep it on the disk of this machine
        for `taken`. Raises StalePlan; OSError."""
        words = self._places.words[numbers]
        shard = np.searchsorted(self._places.starts, numbers, "right") - 1
        made: Windows = {}
        for number in np.unique(shard).tolist():
            with self._shard(number) as opened:
                made[number] = Window(opened, words[shard == number])
        return made

    def taken(self, numbers: Int64, windows: Sequence[Windows]) -> list[Any]:
        """Return rows, those of the windows without a request: see `__getitems__`."""
        return self._made(self._read(numbers, windows), numbers)  # type: ignore[arg-type]

    def bytes_of(self, numbers: Int64) -> int:
        """Return about how many bytes rows take, without those of several parts."""
        return int(spans(self._places.words[numbers]).sum()) + ROW_BYTES * len(numbers)

    def _made(self, found: Found, numbers: Sequence[int], *, alone: bool = False) -> list[Any]:
        """Return the rows that were read, decoded."""
        rows: list[Any] = (
            [{"path": p, "content": c} for p, c in zip(found.names, found.contents, strict=True)]
            if self._content
            else [{"path": path} for path in found.names]
        )
        if self.columns:
            self._add_columns(rows, found)
        if self._decode is None and not found.errors:
            return rows
        return self._decoded(rows, found, numbers, alone)

    def _add_columns(self, rows: list[Row], found: Found) -> None:
        if "size" in self.columns:
            for row, size in zip(rows, found.sizes.tolist(), strict=True):
                row["size"] = size
        if "mtime" in self.columns:
            for row, ns in zip(rows, found.mtimes.tolist(), strict=True):
                row["mtime"] = EPOCH + timedelta(seconds=ns // NANO, microseconds=ns % NANO // 1000)
        if self._typed:
            for i, (row, word) in enumerate(zip(rows, found.words, strict=True)):
                try:
                    row.update(values_of(word, self._typed))
                except CorruptError as error:
                    found.errors.setdefault(i, error)

    def _decoded(
        self, rows: list[Row], found: Found, numbers: Sequence[int], alone: bool
    ) -> list[Any]:
        made, decode, nothing = list[Any](), self._decode, object()
        for i, row in enumerate(rows):
            error: Exception | None = found.errors.get(i)
            result: Any = row
            if error is None and decode is not None:
                try:
                    result = decode(row)
                except Exception as failure:
                    if self._on_error == "raise":
                        raise
                    error = failure
            if error is not None:
                result = self._instead(int(numbers[i]), error, nothing)
                if result is nothing:
                    if alone:
                        raise error
                    continue
            made.append(result)
        return made

    def _instead(self, number: int, error: Exception, nothing: object) -> Any:
        """Return what is returned for a row that cannot be read; `nothing`: it is left out."""
        if self._on_error == "raise":
            raise error
        found = None if isinstance(self._on_error, str) else self._on_error(number, error)
        if found is not None:
            return found
        self.skipped += 1
        if self.skipped == 1:
            warn_caller(f"a row is left out: {error}", DamageWarning)
        return nothing

    def _lost(self, error: CorruptError) -> None:
        """Count damage of a catalog, whose files have no row."""
        self.skipped = getattr(self, "skipped", 0) + 1
        warn_caller(f"files are left out: {error}", DamageWarning)

    # --- shards ---

    @contextmanager
    def _shard(self, number: int) -> Iterator[ShardRows]:
        """Return an open shard, which is closed when no thread reads it any more."""
        with self._lock:
            if self._pid != os.getpid():
                _close(self._open)  # of the parent
                self._pid = os.getpid()
            found = self._open.get(number)
            if found is None:
                found = ShardRows(self._shards[number], self._sources.columns)
                self._open[number] = found
            self._open.move_to_end(number)
            found.users += 1
            if len(self._open) > (MOST_OPEN_FAR if found.far else MOST_OPEN):
                self._open.popitem(last=False)[1].leave()
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                if self._open.get(number) is not found:
                    found.leave()

    def close(self) -> None:
        """Close the stores; the next read opens them again. Idempotent."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].leave()  # other threads may be reading

    # --- pickle ---

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_sources", "columns", "_decode", "_on_error", "_content", "weights")
        state = {name: self.__dict__[name] for name in kept}
        shared = self._places.shared
        words = self._places.words.tobytes() if shared is None else None
        return state | {"places": (words, shared, self._places.starts.tolist()),
                        "rows": len(self), "digest": self._places.digest}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        words, shared, starts = state.pop("places")
        rows, digest = state.pop("rows"), state.pop("digest")
        self.__dict__.update(state)
        self._places = self._placed(words, shared, starts, rows, digest)
        self._begin()

    def _placed(
        self, words: bytes | None, shared: Shared | None, starts: list[int], rows: int, digest: int
    ) -> Places:
        if words is not None:
            return Places(np.frombuffer(words, np.uint64), np.array(starts))
        found = None if shared is None else found_places(shared, starts)
        if found is not None:
            return found
        found = places_of(self._sources, lambda error: None)
        if len(found) != rows or found.digest != digest:
            what = "has changed since these rows were made: make Rows anew"
            raise StalePlan(what, self._sources.snapshots[0].root)
        return found


def _keep_freed() -> None:
    """Have the allocator keep what batches free, which the next ones need, instead of returning it
    to the kernel. glibc keeps twice as much as the largest block that was freed, at most 64 MiB.

    cost  two system calls, and no memory
    """
    bytes(LARGEST_BLOCK)


def _whole(numbers: Any) -> Any:
    """Return numbers as an array of integers of any size. Raises TypeError."""
    try:
        found = np.asarray(numbers if hasattr(numbers, "__len__") else None)
    except ValueError:  # lists of different lengths
        found = np.empty((0, 0))
    if found.ndim == 1 and (found.dtype.kind in "iu" or all(type(n) is int for n in found)):
        return found
    what = f"numbers of rows are whole numbers, not {shown(numbers)}"
    if found.ndim == 2:
        what += ": a winkfs.Sampler yields batches, so PyTorch takes it as batch_sampler="
    raise TypeError(what)


def _close(opened: OrderedDict[int, ShardRows]) -> None:
    while opened:
        opened.popitem()[1].close()


def _checked_columns(columns: Sequence[str], sources: Sources) -> tuple[str, ...]:
    listed = isinstance(columns, Iterable) and not isinstance(columns, str | bytes)
    if not listed or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"columns is a list of names, not {shown(columns)}")
    known = {**sources.columns, **dict.fromkeys(BUILT_IN, "")}
    check_columns(columns, known)
    return tuple(name for name in dict.fromkeys(columns) if name not in ("path", "content"))


def _checked_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    try:
        found = tuple(map(float, weights))
    except (TypeError, ValueError):
        raise TypeError(f"weights is a list of numbers, not {shown(weights)}") from None
    if len(found) != count:
        raise ValueError(f"{len(found)} weights for {count} stores: give one for each")
    if not all(0 < weight < 1000 for weight in found):
        raise ValueError(f"weights are numbers above 0 and below 1000, not {shown(weights)}")
    return found
