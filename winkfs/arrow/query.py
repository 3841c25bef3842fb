"""SQL over the files of a store, by DuckDB: the table `files`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar

from winkfs.errors import Refusal, need
from winkfs.reader import BATCH_BYTES, Reader, need_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.registry import AsOf

T = TypeVar("T")
ROWS_AT_ONCE: Final = 1 << 13  # of a result
ONLY_NAMED: Final = ("content", "name_raw", "mtime_ns", "ftype", "mode")
WORD: Final = re.compile(r"\w+")


class _Worker:
    """A thread that calls DuckDB, which looks at no signals: the calling one can be interrupted."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pool = ThreadPoolExecutor(1, "winkfs-query")

    def run(self, call: Callable[..., T], *given: Any) -> T:
        """Call a function and wait for it; an exception that is raised meanwhile ends the query."""
        future = self._pool.submit(call, *given)
        try:
            return future.result()
        except BaseException:
            self._interrupt(future)
            raise

    def _interrupt(self, future: Future[Any]) -> None:
        """Interrupt a call until it ends: DuckDB forgets an interrupt that comes too early."""
        while not future.done():
            self._connection.interrupt()
            wait([future], 0.05)

    def end(self, batches: Iterator[Any]) -> None:
        """End a query whose result was not read to its end: to free it while DuckDB's own threads
        work on it would wait for them."""
        with suppress(Exception):  # of DuckDB: the query was interrupted, or closed before
            while True:
                future = self._pool.submit(next, batches, None)
                self._interrupt(future)
                if future.result() is None:
                    return

    def close(self) -> None:
        self._pool.shutdown()


class Result:
    """The result of a query, as batches. Close it, or use it in a `with`."""

    def __init__(
        self, stack: ExitStack, worker: _Worker, batches: pa.RecordBatchReader, base: str
    ) -> None:
        self._stack, self._worker, self._batches, self._base = stack, worker, batches, base

    @property
    def schema(self) -> pa.Schema:
        return self._batches.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Raises Refusal of one line for an error of DuckDB."""
        import duckdb

        try:
            while (batch := self._worker.run(next, self._batches, None)) is not None:
                yield batch
        except (duckdb.Error, OSError) as error:
            raise Refusal(_line(error), self._base) from error

    def to_arrow(self) -> pa.Table:
        """Return the rest of the result as a table, and end the query."""
        import pyarrow as pa

        with self:
            return pa.Table.from_batches(list(self), schema=self.schema)

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the query. Idempotent."""
        self._worker.end(self._batches)
        self._batches = self._batches.schema.empty_table().to_reader()
        self._stack.close()


def query(
    path: str | os.PathLike[str] | Reader,
    sql: str,
    *,
    where: str | None = None,
    as_of: AsOf | None = None,
) -> Result:
    """Run a query of DuckDB on the table `files`: path, size, mtime, the columns of the user, and,
    where the query names them, content, name_raw, mtime_ns, ftype and mode.

    path    a container, a data set or another store, or an open one
    where   only files for which it is true, see `Container.scan`: evaluated on the catalog, before
            any content is read
    raises  as `winkfs.open`; ValueError for a wrong `where`; Refusal of one line for a wrong query,
            and without duckdb
    cost    one read of the files each time that the query reads `files`; contents only if it names
            them
    """
    duckdb = need("duckdb", "winkfs.query")
    from winkfs.registry import open_silently

    if not isinstance(sql, str):
        raise TypeError(f"a query is a text, not {type(sql).__name__}")
    with ExitStack() as stack:
        reader = path if isinstance(path, Reader) else None
        if reader is None:
            reader = stack.enter_context(open_silently(path, as_of=as_of))  # type: ignore[arg-type]
        connection = stack.enter_context(duckdb.connect())
        worker = stack.enter_context(closing(_Worker(connection)))
        spill = stack.enter_context(TemporaryDirectory(prefix="winkfs-query-"))
        words = {word.lower() for word in WORD.findall(sql)}
        named = [name for name in ONLY_NAMED if name in words]
        files = _Files(reader, ["path", "size", "mtime", *reader.columns, *named], where)
        try:
            connection.execute(f"set temp_directory = '{spill}'")
            connection.register("files", files)
            found = worker.run(connection.sql, sql)
            if found is None:
                raise Refusal("the query has no result: it begins with select", reader.base)
            fetch = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
            batches = worker.run(fetch, ROWS_AT_ONCE)
        except duckdb.Error as error:
            raise Refusal(_line(error), reader.base) from None
        return Result(stack.pop_all(), worker, batches, reader.base)


class _Files:
    """The files of a reader as a source of DuckDB, which asks for a stream each time that it reads
    the schema, or the files."""

    def __init__(self, reader: Reader, names: Sequence[str], where: str | None) -> None:
        """Raises ValueError for a wrong `where`."""
        self._reader, self._reading = reader, need_arrow()
        self._asked = self._reading.wanted(
            reader, names, where, "", None, None, True, BATCH_BYTES, False
        )

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._reading.stream(self._reader, self._asked).__arrow_c_stream__(requested_schema)


def _line(error: Exception) -> str:
    """Return the first line of a message of DuckDB, without the traceback that pyarrow adds."""
    return str(error).strip().splitlines()[0].partition(" Detail: Python exception")[0]
