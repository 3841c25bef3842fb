"""Late fetch: contents for the rows that remain after filters, sorts and joins of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkfs.arrow.pieces import Piece, batch_ranges
from winkfs.errors import need_installed
from winkfs.spark.reading.options import FIELDS, REFS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from winkformats.arrays import Int64
    from winkfs.arrow.held import Held

Fetcher = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
NEEDED: Final = (*REFS, "size")
BATCH: Final = 8 << 20  # bytes of content that are fetched together


def fetch_content(df: DataFrame, mode: str = "FAILFAST", batch_bytes: int = BATCH) -> DataFrame:
    """Add the column `content` to rows of a read with content="ref".

    df     has the columns _container, _contid, _pos, _pointer and size; others are kept
    mode   FAILFAST: a damaged content ends the job; PERMISSIVE: it is null, and the column _error
           has the reason; DROPMALFORMED: its row is left out
    ->     all rows in their order
    raises ValueError for a missing column or a wrong mode; in the tasks: StalePlan if a container
           was replaced, CorruptError
    cost   contents that are close together are read together, within batch_bytes. Contents are not
           shuffled: sort and join references, then fetch.

        df = winkfs.spark.read(spark, corpus, content="ref")
        by_size = df.repartitionByRange(8, "size").sortWithinPartitions("size")
        fetch_content(by_size)                                # sorted, and faster
        fetch_content(df.join(labels, "path"))                # only the rows of a join
        # rows in the order of the container, if their order does not matter
        fetch_content(df.where(...).sortWithinPartitions("_container", "_pos"))
    """
    need_installed("fetch_content", "pyarrow")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from winkfs.spark.reading.options import MODES, size_of
    from winkfs.spark.session import compiled

    missing = [name for name in NEEDED if name not in df.columns]
    if missing:
        raise ValueError(
            f"fetch_content needs the column {missing[0]}: read with content='ref', and keep "
            + ", ".join(NEEDED)
        )
    if "content" in df.columns:
        raise ValueError("fetch_content adds the column content, which is there already: drop it")
    if mode.upper() not in MODES:
        raise ValueError(f"mode is {mode!r}: it takes {', '.join(MODES)}")
    size_of(str(batch_bytes), 1, 1 << 30)
    for name in NEEDED:
        kind = df.schema[name].dataType.simpleString()
        if kind != FIELDS[name]:
            raise ValueError(f"fetch_content: column {name} is {FIELDS[name]}, not {kind}")
    schema = StructType([*df.schema.fields, StructField("content", BinaryType())])
    if mode.upper() == "PERMISSIVE" and "_error" not in df.columns:
        schema = schema.add("_error", "string")
    with compiled(df.sparkSession):
        return df.mapInArrow(_Fetch(mode.upper(), batch_bytes), schema)


def fetcher(mode: str = "FAILFAST", batch_bytes: int = BATCH) -> Fetcher:
    """Return a function from batches with the columns NEEDED to batches with `content`, for tasks
    that process the content themselves, so that it does not pass through the JVM."""
    return _Fetch(mode, batch_bytes)


@dataclass(slots=True)
class _Fetch:
    """The work of a task of `fetch_content`."""

    mode: str
    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark_winkfs import one_line
        from winkfs.spark.workers import freeze

        freeze()
        with one_line:
            yield from self._fetched(batches)

    def _fetched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from winkfs.arrow.held import Held

        held = Held()
        try:
            for batch in batches:
                for part in self._cut(batch):
                    found = self._fetch(part, held)
                    if found.num_rows:
                        yield found
        finally:
            held.close()

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Divide a batch into parts whose contents fit into memory."""
        from winkfs.arrow.arrays import numbers

        for at, stop in batch_ranges(numbers(batch.column("size")), self.batch):
            yield batch.slice(at, stop - at)

    def _fetch(self, part: pa.RecordBatch, held: Held) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        from winkfs.arrow import arrays

        known = arrays.bools(part.column("_pointer").is_valid())
        places: list[Int64] = [np.flatnonzero(~known)]
        contents: list[pa.Array] = [pa.nulls(len(places[0]), pa.binary())]
        errors: dict[int, str] = dict.fromkeys(places[0].tolist(), "no reference")
        pos, pointer, size = map(arrays.numbers, map(part.column, ("_pos", "_pointer", "size")))
        for (base, contid), rows in _by_container(part, known):
            source = held.of((base, contid), Piece(base, contid, 0, True, 0, 0))
            found, wrong = source.read(pos[rows], pointer[rows], size[rows])
            source.drop()
            places.append(rows)
            contents.append(found)
            errors |= {int(rows[i]): str(error) for i, error in wrong.items()}
        if errors and self.mode == "FAILFAST":
            from winkfs.errors import Refusal

            raise Refusal(
                f"{errors[min(errors)]}; mode='PERMISSIVE' gives such rows an _error, "
                "'DROPMALFORMED' leaves them out"
            )
        content = pa.concat_arrays(contents)
        order = np.concatenate(places)
        if (np.diff(order) < 0).any():
            content = content.take(arrays.column(np.argsort(order)))
        columns, names = [*part.columns, content], [*part.schema.names, "content"]
        if self.mode == "PERMISSIVE":
            texts = arrays.texts([errors.get(i) for i in range(part.num_rows)])
            if "_error" in names:
                at = names.index("_error")
                columns[at] = pc.coalesce(columns[at], texts)
            else:
                columns, names = [*columns, texts], [*names, "_error"]
        made = pa.RecordBatch.from_arrays(columns, names=names)
        if self.mode == "DROPMALFORMED" and errors:
            made = made.filter(pc.is_valid(content))
        return made


def _by_container(part: pa.RecordBatch, known: Any) -> Iterator[tuple[tuple[str, int], Int64]]:
    """Yield path and CONTID of each container, with the rows that refer to it."""
    from winkfs.arrow.arrays import bools, numbers

    names = part.column("_container").dictionary_encode()
    texts = names.dictionary.to_pylist()
    code = numbers(names.indices)
    known = known & bools(names.indices.is_valid())
    contid = numbers(part.column("_contid"))
    for number, base in enumerate(texts):
        rows = np.flatnonzero((code == number) & known)
        for one in np.unique(contid[rows]).tolist():
            yield (base, one), rows[contid[rows] == one]
