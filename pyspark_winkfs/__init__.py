"""What makes Spark find the format "winkfs" by name: it imports each top-level `pyspark_*` package.

Light, for that happens with each first look-up of a session. Its classes travel by value, so that
they arrive, and can say what to do, where a Python of Spark has no winkfs.
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
    """The module `traceback` for Spark's daemon, without those of a JVM that has hung up.

    It does so where a query has enough rows, and after a minute in which a worker was idle.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()


def unalarmed() -> None:
    """Have the daemon that this process is a fork of, if it is one, not print these tracebacks.

    It prints them where it speaks with the JVM through Unix sockets.
    """
    main: Any = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == "pyspark.daemon":
        main.traceback = Tracebacks


class OneLine(contextlib.ContextDecorator):
    """An error of ours in the block comes out of Spark as its one line. WINKFS_TRACEBACK=1 in the
    environment of the workers leaves it the stack.

    Spark asks for this variable when it reports what ends a Python worker; it goes with the worker.
    """

    def __enter__(self) -> None:
        unalarmed()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ours = isinstance(error, OSError | ValueError | ImportError)
        in_worker = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
        if ours and in_worker and not os.environ.get("WINKFS_TRACEBACK"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


one_line = OneLine()


def module(name: str) -> Any:
    """A module of winkfs.spark, with all it needs. Raises ImportError that says what to do."""
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
    """format("winkfs"): stands for `winkfs.spark.source.WinkfsDataSource`."""

    @classmethod
    def name(cls) -> str:
        return "winkfs"

    def _source(self) -> Any:
        module("reading.options")  # numpy, xxhash and others with it
        return module("source").WinkfsDataSource(self.options)

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
        # Not in one line: Spark calls stop() of what it did not get, and that error hides ours.
        return self._source().streamReader(schema)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self._source().streamWriter(schema, overwrite)


class Reader(DataSourceReader):  # type: ignore[misc]
    """Stands for `winkfs.spark.reading.reader.WinkfsReader`, which is unpickled when it is used."""

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
        # Spark's stand-ins, up to 4.1 and later, where there are no tasks
        if partition is not None and partition.value is not None:
            with one_line:
                yield from self._real().read(pickle.loads(partition.value))


class FilteringReader(Reader):
    """Only that it has this method makes Spark push filters down."""

    @one_line
    def pushFilters(self, filters: list[Any]) -> Any:
        return self._real().pushFilters(filters)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
unalarmed()  # the process that looks formats up is not asked again
