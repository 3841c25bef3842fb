"""The streaming source: spark.readStream.format("winkfs").load(PATH).

PATH is that of an append-only container, of a data set or of a queue.

    option              default
    startingOffset      earliest   existing files, then new ones; latest: only new ones; for a queue
                                   also the id of the first message
    maxFilesPerTrigger             most files of a batch, or messages of a queue
    maxBytesPerTrigger             most bytes of their content, but at least one file
    failOnDataLoss      true       false: ignore messages that were removed before they were read

A batch contains the files between two offsets, of each name the newest. The reader on the driver
keeps only offsets, and reads the state of the source again at each trigger.

    of a container   {"contid": .., "position": ..}: bytes of the data file; all before it was read
    of a data set    {"snapshot": G, "generation": g, "shard": i, "position": p}: all generations
                     before g were read, and of the shards that g added the first i, and of the next
                     one the inodes before byte p. Generation G, with which the stream began, is
                     read as a whole; of later ones the shards that they added
    of a queue       {"id": i}: all messages before it were read, consumed by others or not

Each offset also has "first": the position, generation or id with which the stream began. When a
failed first batch is run again, Spark asks for the initial offset again, although the source may
have grown; the end of the batch, in the checkpoint, has the original one.

The rows of a range never change: of several entries with one name the last one in the range counts,
a file that was deleted in it is left out, and files that are replaced or deleted after it are
included. So a file that is replaced comes again in a later batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_winkfs import one_line
from winkformats import hashing
from winkformats.arrays import Int64, superseded
from winkformats.errors import raise_it
from winkfs.arrow.pieces import OPEN, Piece, PlannedPiece, Recorded, piece_of, weight_of
from winkfs.container.select import columns_between
from winkfs.container.store import Store
from winkfs.container.survey import InodeRows, files_at, inode_rows
from winkfs.container.table import FileTable
from winkfs.dataset.hidden import hidden_rows
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import by_rank
from winkfs.dataset.shard import NOTHING, Shard
from winkfs.dataset.snapshot import snapshot_of
from winkfs.errors import StalePlan
from winkfs.spark.reading.options import (
    STREAMING,
    Options,
    count,
    flag,
    given_of,
    size_of,
    value_of,
)
from winkfs.spark.reading.partition import Ordered, Scan, linked, scans
from winkfs.spark.reading.reader import WinkfsReader
from winkfs.spark.reading.stores import stores_of
from winkfs.stores.records import Arrivals, batches

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1: batches are not limited
    ReadAllAvailable = ReadMaxBytes = ReadMaxFiles = SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from winkfs.registry import Kind

Offset = dict[str, Any]
"""An offset, which Spark writes to the checkpoint at each trigger."""

ORIGIN = ("snapshot", "first")  # keys with equal values in all offsets of a stream


def _origin(offset: Offset) -> Offset:
    return {key: offset[key] for key in ORIGIN if key in offset}


def _going_on(end: Offset, start: Offset) -> Offset:
    """Return `end` with the origin of `start`: equal offsets must be equal as JSON."""
    return {key: value for key, value in end.items() if key not in ORIGIN} | _origin(start)


@dataclass(frozen=True, slots=True)
class Limit:
    """Remaining limits of a batch; None: no limit.

    fresh   the batch is empty, and takes one file of any size
    """

    files: int | None
    bytes: int | None
    fresh: bool = True

    def holds(self, files: int, size: int) -> bool:
        """Return whether there is room for `files` files of `size` bytes in all."""
        return (self.files is None or files <= self.files) and (
            self.bytes is None or size <= self.bytes
        )

    def fits(self, sizes: Int64) -> int:
        """Return how many files of these sizes fit, from the first on."""
        count = len(sizes) if self.files is None else min(self.files, len(sizes))
        if self.bytes is not None:
            count = min(count, int(np.searchsorted(np.cumsum(sizes), self.bytes, "right")))
        return max(count, min(1, len(sizes))) if self.fresh else count

    def less(self, files: int, size: int) -> Limit:
        """Return the limit after these files."""
        return Limit(
            None if self.files is None else self.files - files,
            None if self.bytes is None else self.bytes - size,
            self.fresh and files == 0,
        )


def open_feed(options: Options) -> ContainerFeed | DatasetFeed | ArrivalsFeed:
    """Open the source of a stream, a context manager. Raises NoSuchFile; ValueError for a plain
    container; FormatError."""
    kind, path = stores_of(options.sources)[0]
    if not kind.has("shards"):
        return ArrivalsFeed(options, kind, path)
    return DatasetFeed(options, path) if kind.versions else ContainerFeed(options, path)


# --- a container ---


class ContainerFeed:
    """An append-only container as a log."""

    def __init__(self, options: Options, base: str) -> None:
        self._options, self._base = options, base
        self._store = Store(base, writable=False, load=False)
        if not self._store.settings.ao:
            self._store.abandon()
            raise ValueError(
                f"{base}: a stream reads an append-only container (ao) or a data set; in this "
                "container files can change in place: read it with spark.read"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._store.abandon()

    def earliest(self) -> Offset:
        return self._beginning(self._store.kv.start)

    def latest(self, start: Offset | None) -> Offset:
        """Return the offset of the last sync. Raises StalePlan if `start` is after that."""
        if start is None:
            return self._beginning(self._store.kv.end)
        self._check(start)
        return _going_on(self._offset(self._store.kv.end), start)

    def began(self, end: Offset) -> Offset:
        """Return the offset that the stream of `end` began with."""
        return end | {"position": end["first"]}

    def _beginning(self, position: int) -> Offset:
        return self._offset(position) | {"first": position}

    def _offset(self, position: int) -> Offset:
        return {"contid": self._store.settings.contid, "position": position}

    def _check(self, offset: Offset) -> int:
        """Return the position of an offset. Raises StalePlan."""
        if "position" not in offset or "snapshot" in offset:
            raise _stale(self._base, "the checkpoint is that of a data set or a queue")
        if offset.get("contid") != self._store.settings.contid:
            raise _stale(self._base, "another container has its place, as after a compaction")
        position = int(offset["position"])
        if position > self._store.kv.end:
            raise _stale(
                self._base,
                f"it has {self._store.kv.end} bytes, and {position} were read: an older state of "
                "it was put in its place",
            )
        return position

    def cut(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """Return the end of the batch that begins at `start`. Cost: reads the batch."""
        at = self._check(start)
        for rows in self._rows(at, self._check(end)):
            files = np.flatnonzero(rows.size > 0)  # without tombstones
            sizes = rows.lsize[files]
            fits = limit.fits(sizes)
            if fits < len(files):
                return _going_on(self._offset(int(rows.pos[files[fits]])), start)
            limit = limit.less(len(files), int(sizes.sum()))
        return end

    def partitions(self, start: Offset, end: Offset, *, contents: bool) -> list[Scan | Ordered]:
        low, high = self._check(start), self._check(end)
        _forward(self._base, low <= high)
        positions, keys = [NOTHING], []
        gone = [np.empty(0, np.bool_)]
        for rows in self._rows(low, high):
            positions.append(rows.pos)
            gone.append(rows.size == 0)
            keys.append(hashing.hash_keys(hashing.XXH3, rows.keys)[0])
        pos = np.concatenate(positions)
        if not len(pos):
            return []
        here = ~np.concatenate(gone)
        s = np.concatenate(keys)
        here[superseded(s, lambda row: self._store.key_at(int(pos[row])))] = False
        files = _selected(self._options, files_at(self._store, pos[here]), NOTHING)
        if not len(files):
            return []
        piece = Piece(self._base, self._store.settings.contid, high, True, low, high)
        return scans(self._options, [PlannedPiece.of_rows(piece, files.pos, files.size, contents)])

    def _rows(self, low: int, high: int) -> Iterator[InodeRows]:
        """Yield the inodes in [low, high), also tombstones. Raises CorruptError."""
        store = self._store
        for _, rows in inode_rows(
            store.kv.storage, store.kv.layout, store.settings, low, high, problem=raise_it
        ):
            yield rows


# --- a data set ---


class DatasetFeed:
    """The generations of a data set as a log."""

    def __init__(self, options: Options, root: str) -> None:
        self._options, self._log = options, Log(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: nothing is open."""

    def earliest(self) -> Offset:
        """Return the offset before all files of the newest generation."""
        newest = self._log.newest()
        return self._beginning(newest, newest)

    def latest(self, start: Offset | None) -> Offset:
        newest = self._log.newest()
        if start is None:
            return self._beginning(newest, newest + 1)
        self._check(start, newest)
        return _going_on(self._offset(newest + 1), start)

    def began(self, end: Offset) -> Offset:
        """Return the offset that the stream of `end` began with."""
        return self._beginning(int(end["snapshot"]), int(end["first"]))

    def _beginning(self, snapshot: int, generation: int) -> Offset:
        return self._offset(generation) | {"snapshot": snapshot, "first": generation}

    @staticmethod
    def _offset(generation: int, shard: int = 0, position: int = 0) -> Offset:
        return {"generation": generation, "shard": shard, "position": position}

    def _check(self, offset: Offset, newest: int) -> None:
        if "snapshot" not in offset:
            raise _stale(self._log.root, "the checkpoint is that of a container or a queue")
        if int(offset["generation"]) > newest + 1:
            raise _stale(
                self._log.root,
                f"its newest generation is {newest}, and {int(offset['generation']) - 1} was read: "
                "another data set, or an older state of it, was put in its place",
            )

    def _added(self, snapshot: int, generation: int) -> list[Shard]:
        """Return the shards that a generation added, in order; for the first one all shards.

        raises  StalePlan
        """
        try:
            if generation == snapshot:
                return list(snapshot_of(self._log, self._log.state(generation)).shards)
            manifest = self._log.read(generation)
        except StalePlan:
            raise _stale(
                self._log.root, f"generation {generation} was vacuumed before it was read"
            ) from None
        added = () if manifest.rewrites else manifest.added
        return [Shard(f"{self._log.root}/{record.path}", record) for record in added]

    def cut(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """Return the end of the batch that begins at `start`. Cost: the columns of one shard."""
        for generation, number, shard, low, high in self._range(start, end):
            record = shard.record
            if low == 0 and high == record.size and limit.holds(record.files, record.content):
                limit = limit.less(record.files, record.content)
                continue
            rows = columns_between(shard.base, low, high)
            fits = limit.fits(rows.size)
            if fits < len(rows):
                position = int(rows.pos[fits]) if fits else low
                return _going_on(self._offset(generation, number, position), start)
            limit = limit.less(len(rows), int(rows.size.sum()))
        return end

    def _range(self, start: Offset, end: Offset) -> Iterator[tuple[int, int, Shard, int, int]]:
        """Yield generation, number in it, shard, and the range [low, high) of its inodes."""
        newest = self._log.newest()
        self._check(start, newest)
        self._check(end, newest)
        first, last = _key(start), _key(end)
        _forward(self._log.root, first <= last)
        for generation in range(first[0], last[0] + (last[1:] > (0, 0))):
            shards = self._added(int(start["snapshot"]), generation)
            for number, shard in enumerate(shards):
                low = first[2] if (generation, number) == first[:2] else 0
                high = last[2] if (generation, number) == last[:2] else shard.record.size
                if (generation, number) >= first[:2] and (generation, number, low) < last:
                    yield generation, number, shard, low, high

    def partitions(self, start: Offset, end: Offset, *, contents: bool) -> list[Scan | Ordered]:
        found = list(self._range(start, end))
        hidden = self._hidden([part[:3] for part in found], int(start["snapshot"]))
        parts = []
        for generation, _, shard, low, high in found:
            gone = hidden[shard.record.path]
            piece = replace(piece_of(shard, generation), low=low, high=high)
            if self._options.selection.everything:
                share = (high - low) / shard.record.size
                parts.append(
                    PlannedPiece(piece, OPEN + int(share * weight_of(shard, contents)), gone)
                )
                continue
            rows = _selected(self._options, columns_between(shard.base, low, high), gone)
            if len(rows):
                parts.append(PlannedPiece.of_rows(piece, rows.pos, rows.size, contents))
        return scans(self._options, parts) if parts else []

    def _hidden(self, shards: list[tuple[int, int, Shard]], snapshot: int) -> dict[str, Int64]:
        """Return for each shard of a range the inodes that another one in it replaces or deletes.

        A shard in which the range ends counts as a whole: its other files are in the next batch.
        """
        known = {shard.record.path: shard.hidden for generation, _, shard in shards
                 if generation == snapshot}  # fmt: skip
        records = by_rank(shard.record for _, _, shard in shards)
        try:
            return hidden_rows(self._log.root, records, known)
        except StalePlan:
            raise _stale(self._log.root, "shards were vacuumed before they were read") from None


def _key(offset: Offset) -> tuple[int, int, int]:
    return int(offset["generation"]), int(offset["shard"]), int(offset["position"])


def _selected(options: Options, rows: FileTable, gone: Int64) -> FileTable:
    """Return the files that the options select, without those with inodes at `gone`."""
    rows = rows.take(options.selection.chosen(rows))
    return rows.visible(gone, include_dirs=options.include_dirs)


# --- a queue ---


class ArrivalsFeed:
    """A store whose ids ascend by arrival, as a log. It stays open, and is refreshed."""

    def __init__(self, options: Options, kind: Kind, path: str) -> None:
        if options.selection.where is not None:
            raise ValueError(f"{path}: is a {kind.name}: where is for containers and data sets")
        self._options, self._path = options, path
        self._opener = kind.function("open", path)
        store = self._opener(path)
        if not isinstance(store, Arrivals):
            store.close()
            what = "a stream reads a container, a data set or a queue"
            raise ValueError(f"{path}: is a {kind.name}: {what}")
        self.store = store

    def __enter__(self) -> Self:
        self.store.refresh()
        return self

    def __exit__(self, *exc: object) -> None:
        """Keep the store open, until `stop` of the reader."""

    def _first(self) -> int:
        runs = self.store.runs()
        return runs[0].first if runs else self.store.next_id

    def earliest(self) -> Offset:
        return self._beginning(self._first())

    def at(self, id: int) -> Offset:
        """Return the offset of an id. Raises ValueError for one that no message has had yet."""
        if not 0 < id <= self.store.next_id:
            there = f"the next message is {self.store.next_id}"
            raise ValueError(f"option startingOffset is {id}, and {there}: {self._path}")
        return self._beginning(id)

    def latest(self, start: Offset | None) -> Offset:
        """Return the offset after the last message. Raises StalePlan if `start` is after that."""
        if start is None:
            return self._beginning(self.store.next_id)
        self._check(start)
        return _going_on({"id": self.store.next_id}, start)

    def began(self, end: Offset) -> Offset:
        """Return the offset that the stream of `end` began with."""
        return self._beginning(int(end["first"]))

    @staticmethod
    def _beginning(id: int) -> Offset:
        return {"id": id, "first": id}

    def _check(self, offset: Offset) -> int:
        """Return the id of an offset. Raises StalePlan."""
        if "id" not in offset:
            raise _stale(self._path, "the checkpoint is that of a container or a data set")
        id = int(offset["id"])
        if id > self.store.next_id:
            raise _stale(
                self._path,
                f"the next message is {self.store.next_id}, and those before {id} were read: "
                "another queue, or an older state of it, was put in its place",
            )
        return id

    def cut(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """Return the end of the batch that begins at `start`. A limit of bytes makes it read it."""
        low, high = max(self._check(start), self._first()), self._check(end)
        if limit.files is not None:
            high = min(high, low + limit.files)
        if limit.bytes is not None:
            for rows in batches(self.store.between(low, high, lambda what: None)):
                sizes = np.array([row.size for row in rows], np.int64)
                fits = limit.fits(sizes)
                if fits < len(rows):
                    return _going_on({"id": int(rows[fits].id)}, start)
                limit = limit.less(len(rows), int(sizes.sum()))
        return _going_on({"id": high}, start)

    def partitions(
        self, start: Offset, end: Offset, *, contents: bool, whole: bool = True
    ) -> list[Scan | Ordered]:
        from winkfs.arrow.records import part_between  # late: only for queues

        low, high = self._check(start), self._check(end)
        _forward(self._path, low <= high)
        if low == high:
            return []
        piece = Recorded(
            self._path, 0, 0, True, low, high, opener=self._opener,
            selection=self._options.selection, arrived=True, whole=whole,
        )  # fmt: skip
        return scans(self._options, [part_between(self.store, piece, contents)])


def _stale(where: str, why: str) -> StalePlan:
    return StalePlan(f"the stream cannot go on: {why}. Begin anew with another checkpoint", where)


def _forward(where: str, does: bool) -> None:
    """Raise StalePlan for a batch whose start is after its end."""
    if not does:
        raise _stale(
            where,
            "its first batch failed, and the checkpoint of an older version does not have where "
            "it began",
        )


def stream_reader(options: Mapping[str, str], schema: StructType) -> WinkfsStreamReader:
    """Make the reader of a stream. Raises ValueError of one line."""
    given = given_of(options)
    asked = Options.of(options, STREAMING)
    for name in ("orderBy", "asOf", "pushdown"):
        if name.lower() in given:
            raise ValueError(f"option {name} is not for streams")
    if len(asked.sources) != 1:
        raise ValueError("a stream reads one container, data set or queue: give one path")
    return WinkfsStreamReader(asked, schema, _Limits.of(given))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The options of a stream."""

    start: str | int = "earliest"
    files: int | None = None
    bytes: int | None = None
    whole: bool = True

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _Limits:
        start = value_of(given, "startingOffset", _start)
        files = value_of(given, "maxFilesPerTrigger", count)
        size = value_of(given, "maxBytesPerTrigger", lambda text: size_of(text, 1))
        if ReadMaxFiles is object and (files or size):
            name = "maxFilesPerTrigger" if files else "maxBytesPerTrigger"
            raise ValueError(f"option {name} needs Spark 4.2: leave it out")
        whole = value_of(given, "failOnDataLoss", flag)
        return cls(start or "earliest", files, size, whole is not False)


def _start(text: str) -> str | int:
    if text.strip().isdecimal() and int(text):
        return int(text)
    if text.strip().lower() not in ("earliest", "latest"):
        raise ValueError("earliest or latest, or of a queue the id of a message")
    return text.strip().lower()


class WinkfsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reader of one streaming query. For offsets see the module."""

    def __init__(self, options: Options, schema: StructType, limits: _Limits) -> None:
        self._batches = WinkfsReader(options, schema)
        self._options, self._limits = options, limits
        self._target: Offset | None = None  # of Trigger.AvailableNow
        self._followed: ArrivalsFeed | None = None
        self._began: Offset = {}  # initial offset that this process returned

    def _feed(self) -> ContainerFeed | DatasetFeed | ArrivalsFeed:
        if self._followed is not None:
            return self._followed
        feed = open_feed(self._options)
        if isinstance(feed, ArrivalsFeed):
            self._followed = feed
        elif isinstance(self._limits.start, int) or not self._limits.whole:
            name = "failOnDataLoss=false" if not self._limits.whole else "an id as startingOffset"
            with feed:
                raise ValueError(f"{name} is for a queue: {self._options.sources[0]}")
        return feed

    @one_line
    def initialOffset(self) -> Offset:
        with self._feed() as feed:
            if isinstance(feed, ArrivalsFeed) and isinstance(self._limits.start, int):
                self._began = feed.at(self._limits.start)
            else:
                latest = self._limits.start == "latest"
                self._began = feed.latest(None) if latest else feed.earliest()
        return self._began

    @one_line
    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the end of the next batch; Spark 4.1 passes neither argument."""
        limits = self._limits
        free = limit is None or isinstance(limit, ReadAllAvailable)
        with self._feed() as feed:
            end = dict(self._target or feed.latest(start))
            if start is not None or self._began:
                end = _going_on(end, self._began if start is None else start)
            else:
                end.pop("first", None)  # 4.1 after a restart: the origin is not known here
            if start is None or free or (limits.files is None and limits.bytes is None):
                return end
            return feed.cut(start, end, Limit(limits.files, limits.bytes))

    def getDefaultReadLimit(self) -> Any:
        if self._limits.files is not None:
            return ReadMaxFiles(self._limits.files)
        if self._limits.bytes is not None:
            return ReadMaxBytes(self._limits.bytes)
        return ReadAllAvailable()

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:
        with self._feed() as feed:
            self._target = feed.latest(None)

    @one_line
    def reportLatestOffset(self) -> Offset:
        with self._feed() as feed:
            return feed.latest(None)

    @one_line
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        contents = "content" in self._batches.columns
        with self._feed() as feed:
            if "first" in end and _origin(start) != _origin(end):
                start = feed.began(end)  # a first batch, run again
            elif ReadMaxFiles is not object:  # with 4.1 offsets after a restart have no origin
                _forward(self._options.sources[0], "first" in end or "first" not in start)
            if isinstance(feed, ArrivalsFeed):
                return feed.partitions(start, end, contents=contents, whole=self._limits.whole)
            return linked(feed.partitions(start, end, contents=contents))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line:
            yield from self._batches.read(partition)

    def commit(self, end: Offset) -> None:
        """Do nothing: there is nothing to release."""

    def stop(self) -> None:
        if self._followed is not None:
            self._followed.store.close()
