"""The format "winkfs": what Spark makes of `spark.read.format("winkfs")` and the like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from winkfs.spark.reading.options import Options
    from winkfs.spark.reading.partition import Ordered, Scan

STREAMING: Final = ("startingOffset", "maxFilesPerTrigger", "maxBytesPerTrigger")


class WinkfsDataSource(DataSource):  # type: ignore[misc]
    """format("winkfs"). Spark sees it through `pyspark_winkfs.DefaultSource`."""

    @classmethod
    def name(cls) -> str:
        return "winkfs"

    def schema(self) -> str:
        from winkfs.spark.reading.options import Options, ddl_of

        return ddl_of(Options.of(self.options, STREAMING))  # Spark does not say what it is for

    def reader(self, schema: StructType) -> DataSourceReader:
        from winkfs.spark.reading.options import Options

        options = Options.of(self.options)
        if options.pushdown == "off":
            return WinkfsReader(options, schema)
        if options.pushdown == "native":
            from winkfs.spark.reading.pushdown import check_version

            check_version()
        return FilteringReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from winkfs.spark.writing.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> Any:
        from winkfs.spark.streaming.source import stream_reader

        return stream_reader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from winkfs.spark.streaming.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class WinkfsReader(DataSourceReader):  # type: ignore[misc]
    """Plans a scan, and reads its partitions."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises ValueError for a schema with other columns."""
        from winkfs.spark.reading.options import check

        self.columns = check(schema)
        self.settings: dict[str, Any] = {
            "batch": options.batch, "largest": options.largest, "mode": options.mode,
            "verify": options.verify, "include_dirs": options.include_dirs,
        }  # fmt: skip
        self.fields = schema
        self.options: Options | None = options

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"options": None}  # a task needs none, and they may be long

    def partitions(self) -> list[Scan | Ordered]:
        from winkfs.spark.reading.plan import partitions

        assert self.options is not None
        return partitions(self.options, contents="content" in self.columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from winkfs.spark.reading.batches import Reading, batches
        from winkfs.spark.reading.options import arrow_schema

        return batches(Reading(arrow_schema(self.fields), self.columns, **self.settings), partition)


class FilteringReader(WinkfsReader):
    """One that filters of the query make read less. Spark applies them all the same."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        from winkfs.spark.reading.pushdown import narrowed

        assert self.options is not None
        selection = narrowed(self.options.selection, filters)
        self.options = replace(self.options, selection=selection)
        return filters
