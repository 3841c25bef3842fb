"""Data source "winkfs" for Spark, which imports each top-level `pyspark_*` package to find formats.

The module imports little, since this happens at the first look-up of each session. Its classes are
pickled by value, so that a Python of Spark without winkfs can raise a helpful error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource", "one_line"]


class Tracebacks:
    """The module `traceback` for Spark's daemon, which ignores connections that the JVM closed.

    The JVM closes them when a query has enough rows, and after a worker was idle for a minute.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()


def quiet_daemon() -> None:
    """Keep Spark's daemon, if this process is one or its fork, from printing these tracebacks.

    It prints them if it is connected to the JVM by Unix sockets.
    """
    main: Any = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        main.traceback = Tracebacks


class OneLine(contextlib.ContextDecorator):
    """Context in which Spark reports an error of winkfs as one line. WINKFS_TRACEBACK=1 in the
    environment of the workers keeps the traceback.

    Spark reads the variable SPARK_HIDE_TRACEBACK when it reports the error that ends a worker.
    """

    def __enter__(self) -> None:
        quiet_daemon()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ours = isinstance(error, OSError | ValueError | ImportError)
        in_worker = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
        if ours and in_worker and not os.environ.get("WINKFS_TRACEBACK"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


one_line = OneLine()


def module(name: str) -> Any:
    """Import a module of winkfs.spark. Raises ImportError with advice."""
    try:
        return import_module(f"winkfs.spark.{name}")
    except ImportError as error:
        raise ImportError(
            f"{sys.executable}, the Python that Spark runs here, cannot import winkfs ({error}): "
            "set PYSPARK_PYTHON to one that can before the session starts, or run in it: "
            "pip install 'winkfs[spark]', or hand winkfs over: spark.sparkContext.addPyFile(zip) "
            "before winkfs.spark.register(spark)"
        ) from None


class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source "winkfs", which delegates to `winkfs.spark.source.WinkfsDataSource`."""

    @classmethod
    def name(cls) -> str:
        return "winkfs"

    def _source(self) -> Any:
        module("reading.options")  # with numpy, xxhash and others
        source = module("source").WinkfsDataSource(self.options)
        module("workers").freeze()
        return source

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if state.pop("planned", False):
            state["options"] = {}  # tasks have no use for a list of a million paths
        return state

    @one_line
    def schema(self) -> Any:
        return self._source().schema()

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        reader = self._source().reader(schema)
        self.planned = True
        filtering = type(reader).pushFilters is not DataSourceReader.pushFilters
        return FilteringReader(reader) if filtering else Reader(reader)

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return self._source().writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> Any:
        # Without one_line: on an error Spark calls stop() of a missing reader, which hides it.
        return self._source().streamReader(schema)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self._source().streamWriter(schema, overwrite)


class Reader(DataSourceReader):  # type: ignore[misc]
    """Wrapper of `winkfs.spark.reading.reader.WinkfsReader`, which is unpickled when it is used."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __getstate__(self) -> dict[str, Any]:
        return {"pickled": pickle.dumps(self.reader)}

    def _real(self) -> Any:
        if "reader" not in self.__dict__:
            module("reading.batches")
            self.reader = pickle.loads(self.pickled)
        return self.reader

    @one_line
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(pickle.dumps(task)) for task in self._real().partitions()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # None, or without a value: a placeholder of Spark for a plan without tasks.
        if partition is not None and partition.value is not None:
            with one_line:
                yield from self._real().read(pickle.loads(partition.value))


class FilteringReader(Reader):
    """Reader with the method that makes Spark push filters down."""

    @one_line
    def pushFilters(self, filters: list[Any]) -> Any:
        return self._real().pushFilters(filters)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
quiet_daemon()  # also for the process that looks up formats
