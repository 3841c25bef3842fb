"""Arrow arrays as values of columns, and Arrow batches as files that are put.

pyarrow is imported where it is needed: only those that have it call what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from winkfs.container.ondisk.column import Column
from winkfs.container.ondisk.typed import LEAST, MOST, NUMBERS, TO_TEXT, Schema, Texts, to_value
from winkfs.errors import need
from winkfs.units import to_ns

PART_ROWS: Final = 2048  # of an Arrow batch that are put together
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999


def kind_of_arrow(kind: Any) -> str | None:
    """Return the type of a column for values of this Arrow type; None: there is none."""
    import pyarrow.types as of

    if of.is_dictionary(kind):
        return kind_of_arrow(kind.value_type)
    if of.is_list(kind) or of.is_large_list(kind):
        return "list<string>" if kind_of_arrow(kind.value_type) == "string" else None
    tests = (
        (of.is_string, "string"), (of.is_large_string, "string"), (of.is_binary, "binary"),
        (of.is_large_binary, "binary"), (of.is_fixed_size_binary, "binary"),
        (of.is_boolean, "bool"), (of.is_integer, "int64"), (of.is_floating, "float64"),
        (of.is_timestamp, "timestamp"), (of.is_date, "timestamp"),
    )  # fmt: skip
    return next((found for test, found in tests if test(kind)), None)


def texts_of_arrow(name: str, kind: str, array: Any) -> Texts:
    """Return the texts of an Arrow array for a column of this type.

    raises  ValueError in one line
    """
    import pyarrow as pa

    if array.type == pa.null():
        return [None] * len(array)
    found = kind_of_arrow(array.type)
    if found != kind and (found, kind) not in (("int64", "float64"), ("string", "binary")):
        raise ValueError(f"column {name} is {kind}, not {array.type}: cast it")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if kind in ("string", "binary"):
            texts: Texts = array.cast(pa.large_binary()).to_pylist()
        elif kind == "int64":
            texts = array.cast(pa.int64()).cast(pa.string()).cast(pa.binary()).to_pylist()
        elif kind == "timestamp":
            texts = _texts_of_times(array)
        else:
            write = TO_TEXT[kind]
            texts = [None if value is None else write(value) for value in array.to_pylist()]
        return texts
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else "a value of another type"
        raise ValueError(f"column {name}: {what}") from None


def _texts_of_times(array: Any) -> Texts:
    import pyarrow as pa

    stamped = pa.types.is_timestamp(array.type)
    finer = stamped and array.type.unit == "ns"  # only these may lose digits
    form = pa.timestamp("us", array.type.tz if stamped else None)
    numbers = array.cast(form, safe=not finer).cast(pa.int64())
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    values = numbers.fill_null(0).to_numpy()
    if len(values) and not (values.min() >= EARLIEST and values.max() <= LATEST):
        raise ValueError("a time that is not in the years 1 to 9999")
    return Column("timestamp", valid, values, []).texts()


def to_arrow(column: Column) -> Any:
    """Return the values of a column as an Arrow array, of the types that Spark uses."""
    import pyarrow as pa

    kind = column.kind
    if kind in NUMBERS:
        form = {"bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64()}.get(kind)
        missing = None if column.valid.all() else ~column.valid
        found = pa.array(column.numbers, mask=missing, from_pandas=False)
        return found.cast(form or pa.timestamp("us", "UTC"))
    texts = column.texts()
    if kind == "list<string>":
        return pa.array([to_value(kind, text) for text in texts], pa.list_(pa.string()))
    return pa.array(texts, pa.binary() if kind == "binary" else pa.string())


def arrow_parts(
    batch: Any, schema: Schema, entries: Callable[[Sequence[Texts]], list[bytes]]
) -> Iterator[tuple[Any, ...]]:
    """Yield parts of an Arrow batch as arguments of `bulk.BulkPut.put_columns`.

    entries  makes attribute entries of the texts of all columns
    raises   ValueError in one line for columns that are missing or of wrong types; TypeError;
             Refusal without pyarrow
    """
    pa = need("pyarrow", "put_batch")

    if isinstance(batch, pa.Table):
        for one in batch.to_batches():
            yield from arrow_parts(one, schema, entries)
        return
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"it takes an Arrow RecordBatch or Table, not {type(batch).__name__}")
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(there) < batch.num_columns:
        raise ValueError(f"a column of the batch is there twice: {', '.join(batch.schema.names)}")
    name = "path" if "path" in there else "name"
    for needed in (name, "content"):
        if needed not in there:
            raise ValueError(f"the batch has no column {needed}: it has {', '.join(there)}")
        if there[needed].null_count:
            raise ValueError(f"the column {needed} of the batch has nulls")
        if kind_of_arrow(there[needed].type) not in ("string", "binary"):
            raise ValueError(f"the column {needed} of the batch is {there[needed].type}: cast it")
    for extra in there.keys() - {name, "content", "mtime"} - schema.keys():
        known = ", ".join(schema) or "there are none"
        raise ValueError(f"the container has no column {extra!r} ({known}): add it first")
    for at in range(0, batch.num_rows, PART_ROWS):
        part = {key: column.slice(at, PART_ROWS) for key, column in there.items()}
        names = part[name].cast(pa.large_binary()).to_pylist()
        contents = part["content"].cast(pa.large_binary())
        attrs = None
        if part.keys() & schema.keys():
            none: Texts = [None] * len(names)
            attrs = entries([
                texts_of_arrow(column, kind, part[column]) if column in part else none
                for column, kind in schema.items()
            ])  # fmt: skip
        views = [memoryview(content.as_buffer()) for content in contents]
        yield names, views, _times(part.get("mtime"), len(names)), None, attrs


def _times(array: Any, n: int) -> list[int | None]:
    """Return mtimes in nanoseconds, None: now. Raises ValueError if a file cannot have one."""
    if array is None:
        return [None] * n
    found = times_of_arrow(array)
    if any(ns is not None and not LEAST <= ns <= MOST for ns in found):
        raise ValueError("the column mtime of the batch has a time outside 1677 to 2262")
    return found


def times_of_arrow(array: Any) -> list[int | None]:
    """Convert timestamps, or seconds, to nanoseconds of any number of bits."""
    import pyarrow as pa

    if pa.types.is_timestamp(array.type):
        unit = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[array.type.unit]
        found = array.cast(pa.int64()).to_pylist()
        return [None if value is None else value * unit for value in found]
    return [None if value is None else to_ns(value) for value in array.to_pylist()]
