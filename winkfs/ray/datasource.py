"""The source: files of a store as a Dataset of Ray, a part of the store a task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import absolute
from winkfs.errors import need
from winkfs.names import Name
from winkfs.ray.filters import columns_of, condition
from winkfs.reader import BATCH_BYTES, Part, Reader, need_arrow
from winkfs.registry import AsOf, open_silently

need("ray.data", "winkfs.ray", "ray")
from ray.data import Datasource, ReadTask  # noqa: E402
from ray.data.block import BlockMetadata  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa

    from winkfs.arrow.reading import OnError
    from winkfs.units import Time


STUB: Final = "__bsp_stub"  # the column of blocks whose rows are only counted


class WinkDatasource(Datasource):  # type: ignore[misc]  # Ray is not typed for mypy
    """Files of a store, for `ray.data.read_datasource`, at the state of its tasks; a data set at
    the generation of now.

    Ray asks it for the columns that are used, and leaves filters to it (`expr=`), which are
    evaluated on the catalog as far as `where` can, and on the batches. The arguments are those of
    `Reader.to_batches` and `winkfs.open`.

    on_error  of a damaged file: "raise"; "skip": it is left out, with a DamageWarning in the task;
              or a function that is called with a line for each, in the task
    raises  what `winkfs.open` raises; ValueError; Refusal without pyarrow
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Sequence[str] | None = None,
        *,
        where: str | None = None,
        prefix: Name = "",
        since: Time | None = None,
        until: Time | None = None,
        as_of: AsOf | None = None,
        batch_bytes: int = BATCH_BYTES,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__()
        problem = need_arrow().problem_of(on_error)
        self._projection_map: dict[str, str] | None = None
        self._predicate_expr: Any = None
        self._path, self._as_of, self._where = absolute(os.fspath(path)), as_of, where
        self._options: dict[str, Any] = {
            "prefix": prefix, "since": since, "until": until, "batch_bytes": batch_bytes,
            "problem": problem,
        }  # fmt: skip
        with self._open() as reader:
            if as_of is None:  # of a data set
                self._as_of = getattr(reader, "generation", None)
            schema = reader.to_batches(columns, where=where, **self._options).schema
            self._typed, self._filters = reader.columns, reader.takes_where
        self._schema: pa.Schema = schema

    def _open(self) -> Reader:
        return open_silently(self._path, as_of=self._as_of)

    def get_name(self) -> str:
        """Return the name of its tasks."""
        return "Wink"

    def supports_projection_pushdown(self) -> bool:
        return True

    def supports_predicate_pushdown(self) -> bool:
        return True

    def _asked(self) -> tuple[list[str], list[str], str | None]:
        """Return the columns of the blocks, those to be read, and the condition."""
        names = self._schema.names
        if self._projection_map is not None:
            names = [name for name in names if name in self._projection_map]
        predicate = self._predicate_expr
        also = sorted(columns_of(predicate) - {*names}) if predicate is not None else []
        pushed = predicate is not None and self._filters
        text = condition(predicate, self._typed) if pushed else None
        conditions = [f"({each})" for each in (self._where, text) if each]
        return names, [*names, *also] or ["size"], " and ".join(conditions) or None

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the approximate bytes of all blocks. Cost: opens the store."""
        _, read, where = self._asked()
        with self._open() as reader:
            found: list[Any] = list(reader.parts(1, read, where=where, **self._options))
        return int(sum(part.weight for part in found))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Divide the files among at most `parallelism` tasks of about equal bytes."""
        names, read, where = self._asked()
        with self._open() as reader:
            found: list[Any] = list(
                reader.parts(max(parallelism, 1), read, where=where, **self._options)
            )
        schema = _chosen(self._schema.empty_table(), names).schema
        tasks = []
        for part in found:
            facts = BlockMetadata(
                num_rows=None, size_bytes=part.weight, input_files=[part.base], exec_stats=None
            )
            work = partial(_read, part, names, self._predicate_expr, per_task_row_limit)
            tasks.append(ReadTask(work, facts, schema=schema))
        if not tasks:
            facts = BlockMetadata(num_rows=0, size_bytes=0, input_files=None, exec_stats=None)
            tasks.append(ReadTask(partial(_nothing, schema), facts, schema=schema))
        return tasks


def _chosen(table: pa.Table, names: list[str]) -> pa.Table:
    """Return columns of a table; of none a placeholder of Ray, as a block would lose its rows."""
    import pyarrow as pa

    found = table.select(names)
    return found if names else pa.table({STUB: pa.nulls(table.num_rows)})


def _nothing(schema: pa.Schema) -> list[pa.Table]:
    return [schema.empty_table()]


def _read(part: Part, names: list[str], predicate: Any, limit: int | None) -> Iterator[pa.Table]:
    """Yield the files of a part as tables."""
    import pyarrow as pa

    left = limit
    for batch in part.to_batches():
        table = pa.Table.from_batches([batch])
        if predicate is not None:
            table = table.filter(predicate.to_pyarrow())
        if left is not None:
            table = table.slice(0, left)
            left -= len(table)
        yield _chosen(table, names)
        if left == 0:
            return
