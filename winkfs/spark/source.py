"""Data source "winkfs": the entry point of Spark for readers, writers and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader

from winkfs.spark.reading.options import STREAMING, Options
from winkfs.spark.reading.reader import FilteringReader, WinkfsReader
from winkfs.spark.reading.tables import is_table, table_schema, with_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _checked(options: Options) -> Options:
    """Raise ValueError for what a source cannot do alone."""
    if options.content == "lazy":
        raise ValueError(
            "content=lazy is for winkfs.spark.read(spark, path, content='lazy'), which adds a "
            "function to what the source reads"
        )
    return options


class WinkfsDataSource(DataSource):  # type: ignore[misc]  # PySpark has no types
    """The data source "winkfs", which Spark calls through `pyspark_winkfs.DefaultSource`."""

    @classmethod
    def name(cls) -> str:
        return "winkfs"

    def schema(self) -> str | StructType:
        from winkfs.spark.reading.stores import ddl_of, fields_of

        options = _checked(Options.of(self.options, STREAMING))  # for reads and streams alike
        if not is_table(self.options):
            return ddl_of(options)
        return table_schema(self.options, options, fields_of(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _checked(Options.of(with_table(self.options, schema)))
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
        from winkfs.spark.streaming import stream_reader

        return stream_reader(with_table(self.options, schema, stream=True), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from winkfs.spark.writing.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
