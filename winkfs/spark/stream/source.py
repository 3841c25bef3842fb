"""The streaming source: spark.readStream.format("winkfs").load(an ao container or a data set).

A batch is what came between two offsets, of each name the newest; see `tail`. The reader on the
driver keeps nothing but offsets, and each trigger asks the disk anew.

    option              default
    startingOffset      earliest   what is there now, then what comes; latest: only what comes
    maxFilesPerTrigger             files of a batch, at most
    maxBytesPerTrigger             bytes of their content, at most, but one file at least
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_winkfs import one_line
from winkfs.spark.read.options import Options, count, given_of, one_of, size_of, value_of
from winkfs.spark.source import STREAMING, WinkfsReader
from winkfs.spark.stream.changefeed import Limit, Offset, open_tail

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # 4.1: a batch is all there is
    ReadAllAvailable = ReadMaxBytes = ReadMaxFiles = SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def stream_reader(options: Mapping[str, str], schema: StructType) -> WinkfsStreamReader:
    """Raises ValueError: one line that says what is wrong."""
    given = given_of(options)
    asked = Options.of(options, STREAMING)
    for name in ("orderBy", "asOf", "pushdown"):
        if name.lower() in given:
            raise ValueError(f"option {name} is not for streams")
    if len(asked.sources) != 1:
        raise ValueError("a stream reads one container or data set: give one path")
    return WinkfsStreamReader(asked, schema, _Limits.of(given))


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the options of a stream say."""

    latest: bool = False
    files: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _Limits:
        start = value_of(given, "startingOffset", one_of(earliest=False, latest=True))
        files = value_of(given, "maxFilesPerTrigger", count)
        size = value_of(given, "maxBytesPerTrigger", lambda text: size_of(text, 1))
        if ReadMaxFiles is object and (files or size):
            name = "maxFilesPerTrigger" if files else "maxBytesPerTrigger"
            raise ValueError(f"option {name} needs Spark 4.2: leave it out")
        return cls(bool(start), files, size)


class WinkfsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One query's reader. An offset: see `tail`."""

    def __init__(self, options: Options, schema: StructType, limits: _Limits) -> None:
        self._batches = WinkfsReader(options, schema)
        self._options, self._limits = options, limits
        self._target: Offset | None = None  # of Trigger.AvailableNow

    @one_line
    def initialOffset(self) -> Offset:
        with open_tail(self._options) as tail:
            return tail.latest(None) if self._limits.latest else tail.earliest()

    @one_line
    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Spark 4.1 gives neither argument."""
        limits = self._limits
        free = limit is None or isinstance(limit, ReadAllAvailable)
        with open_tail(self._options) as tail:
            end = self._target or tail.latest(start)
            if start is not None and "snapshot" in start and "snapshot" in end:
                end = end | {"snapshot": start["snapshot"]}  # equal offsets are equal as JSON
            if start is None or free or (limits.files is None and limits.bytes is None):
                return end
            return tail.cut(start, end, Limit(limits.files, limits.bytes))

    def getDefaultReadLimit(self) -> Any:
        if self._limits.files is not None:
            return ReadMaxFiles(self._limits.files)
        if self._limits.bytes is not None:
            return ReadMaxBytes(self._limits.bytes)
        return ReadAllAvailable()

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:
        with open_tail(self._options) as tail:
            self._target = tail.latest(None)

    @one_line
    def reportLatestOffset(self) -> Offset:
        with open_tail(self._options) as tail:
            return tail.latest(None)

    @one_line
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        contents = "content" in self._batches.columns
        with open_tail(self._options) as tail:
            return tail.partitions(start, end, contents=contents)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line:
            yield from self._batches.read(partition)

    def commit(self, end: Offset) -> None:
        """There is nothing to let go of."""

    def stop(self) -> None:
        """The same."""
