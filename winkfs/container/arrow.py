"""Arrow arrays as values of columns, and Arrow batches as files that are put.

pyarrow is imported where it is needed: only those that have it call what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from winkfs.container.ondisk.column import RANGES, Column, Lists
from winkfs.container.ondisk.typed import (
    DIGITS,
    LEAST,
    LISTS,
    MOST,
    TO_TEXT,
    Schema,
    Texts,
    decimal_of,
)
from winkfs.errors import need
from winkfs.names import names_in
from winkfs.units import to_ns

TAKEN_UP: Final = frozenset(["content", "mtime", "mtime_ns", "size"])  # beside names and columns
PART_ROWS: Final = 2048  # of an Arrow batch that are put together
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999


def kind_of_arrow(kind: Any) -> str | None:
    """Return the type of a column for values of this Arrow type; None: there is none."""
    import pyarrow.types as of

    if of.is_dictionary(kind):
        return kind_of_arrow(kind.value_type)
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        listed = f"list<{kind_of_arrow(kind.value_type)}>"
        return listed if listed in ("list<string>", *LISTS) else None
    if of.is_decimal(kind):
        whole = kind.precision <= DIGITS and 0 <= kind.scale <= kind.precision
        return f"decimal({kind.precision},{kind.scale})" if whole else None
    if of.is_timestamp(kind):
        return "datetime" if kind.tz is None else "timestamp"
    tests = (
        (of.is_string, "string"), (of.is_large_string, "string"), (of.is_binary, "binary"),
        (of.is_large_binary, "binary"), (of.is_fixed_size_binary, "binary"),
        (of.is_string_view, "string"), (of.is_binary_view, "binary"), (of.is_boolean, "bool"),
        (of.is_integer, "int64"), (of.is_floating, "float64"),
        (of.is_date, "date"),
    )  # fmt: skip
    return next((found for test, found in tests if test(kind)), None)


WIDER: Final = frozenset([
    ("int64", "float64"), ("string", "binary"), ("date", "timestamp"), ("datetime", "timestamp"),
    ("date", "datetime"), ("list<int64>", "list<float64>"),
])  # fmt: skip
"""Types of Arrow, as `kind_of_arrow` returns them, whose values a column of another type takes."""


def fits(form: Any, kind: str) -> bool:
    """Return whether a column takes values of an Arrow type; single values may not fit it."""
    import pyarrow as pa

    if pa.types.is_dictionary(form):
        form = form.value_type
    found = kind_of_arrow(form)
    if found == kind or (found, kind) in WIDER:
        return True
    if decimal_of(kind):
        return found == "int64" or pa.types.is_decimal(form)
    is_list = pa.types.is_list(form) or pa.types.is_large_list(form)
    return is_list and form.value_type == pa.null() and kind.startswith("list<")


def texts_of_arrow(name: str, kind: str, array: Any) -> Texts:
    """Return the texts of an Arrow array for a column of this type.

    raises  ValueError in one line
    """
    import pyarrow as pa

    if array.type == pa.null():
        return [None] * len(array)
    if not fits(array.type, kind):
        raise ValueError(f"column {name} is {kind}, not {array.type}: cast it")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if kind in ("string", "binary"):
            texts: Texts = array.cast(pa.large_binary()).to_pylist()
        elif kind == "int64":
            texts = array.cast(pa.int64()).cast(pa.string()).cast(pa.binary()).to_pylist()
        elif kind in ("timestamp", "datetime"):
            texts = _texts_of_times(kind, array)
        elif kind == "date":
            texts = _texts_of_numbers(kind, array.cast(pa.date32()).cast(pa.int32()))
        elif decimal_of(kind):
            texts = _texts_of_decimals(kind, array)
        elif kind in LISTS:
            texts = _texts_of_lists(kind, array)
        else:
            write = TO_TEXT[kind]
            texts = [None if value is None else write(value) for value in array.to_pylist()]
        return texts
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else "a value of another type"
        raise ValueError(f"column {name}: {what}") from None


def _texts_of_times(kind: str, array: Any) -> Texts:
    import pyarrow as pa

    stamped = pa.types.is_timestamp(array.type)
    finer = stamped and array.type.unit == "ns"  # only these may lose digits
    form = pa.timestamp("us", array.type.tz if stamped else None)
    return _texts_of_numbers(kind, array.cast(form, safe=not finer).cast(pa.int64()))


def _texts_of_numbers(kind: str, numbers: Any) -> Texts:
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    values = numbers.fill_null(0).to_numpy()
    low, high = RANGES.get(kind, (EARLIEST, LATEST))
    if len(values) and not (values.min() >= low and values.max() <= high):
        raise ValueError("a time that is not in the years 1 to 9999")
    return Column(kind, valid, values, []).texts()


def _texts_of_decimals(kind: str, array: Any) -> Texts:
    import pyarrow as pa

    whole = array.cast(pa.decimal128(*(decimal_of(kind) or (DIGITS, 0))))
    valid = whole.is_valid().to_numpy(zero_copy_only=False)
    halves = np.frombuffer(whole.buffers()[1] or b"", np.int64)[2 * whole.offset :][
        : 2 * len(whole)
    ]
    numbers = (halves[1::2].astype(object) << 64) + halves[::2].astype(np.uint64).astype(object)
    return Column(kind, valid, np.where(valid, numbers, 0), []).texts()


def arrow_type(kind: str) -> Any:
    """Return the Arrow type of the values of a column, one that Spark uses."""
    import pyarrow as pa

    if parameters := decimal_of(kind):
        return pa.decimal128(*parameters)
    return {
        "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_(), "int64": pa.int64(),
        "float64": pa.float64(), "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(),
        "datetime": pa.timestamp("us"), "list<string>": pa.list_(pa.string()),
        "list<int64>": pa.list_(pa.int64()), "list<float64>": pa.list_(pa.float64()),
    }[kind]  # fmt: skip


def _texts_of_lists(kind: str, array: Any) -> Texts:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    whole = array.cast(pa.large_list(arrow_type(LISTS[kind])))
    flat = whole.flatten()  # without those of null lists
    lengths = pc.list_value_length(whole).fill_null(0).to_numpy()
    valid = flat.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    texts: Texts = list(Lists(ends, flat.fill_null(0).to_numpy(), valid).texts())
    there = whole.is_valid().to_pylist()
    return [text if ok else None for text, ok in zip(texts, there, strict=True)]


def arrow_parts(
    batch: Any, schema: Schema, entries: Callable[[Sequence[Texts]], list[bytes]]
) -> Iterator[tuple[Any, ...]]:
    """Yield parts of an Arrow batch as arguments of `bulk.BulkPut.put_columns`.

    entries  makes attribute entries of the texts of all columns
    raises   ValueError in one line for columns that are missing or of wrong types; TypeError;
             Refusal without pyarrow
    """
    pa = need("pyarrow", "put_batch", "arrow")

    if not isinstance(batch, pa.RecordBatch):
        if not hasattr(batch, "__arrow_c_stream__"):
            kind = type(batch).__name__
            raise TypeError(f"it takes an Arrow RecordBatch, or a Table or stream, not {kind}")
        for one in pa.RecordBatchReader.from_stream(batch):
            yield from arrow_parts(one, schema, entries)
        return
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
    for extra in there.keys() - {name, *TAKEN_UP} - schema.keys():
        known = ", ".join(schema) or "there are none"
        raise ValueError(f"the container has no column {extra!r} ({known}): add it first")
    for at in range(0, batch.num_rows, PART_ROWS):
        part = {key: column.slice(at, PART_ROWS) for key, column in there.items()}
        names = names_in(name, part[name].cast(pa.large_binary()).to_pylist())
        contents = part["content"].cast(pa.large_binary())
        attrs = None
        if part.keys() & schema.keys():
            none: Texts = [None] * len(names)
            attrs = entries([
                texts_of_arrow(column, kind, part[column]) if column in part else none
                for column, kind in schema.items()
            ])  # fmt: skip
        views = [memoryview(content.as_buffer()) for content in contents]
        times = part.get("mtime_ns", part.get("mtime"))
        yield names, views, _times(times, len(names), exact="mtime_ns" in part), None, attrs


def _times(array: Any, n: int, *, exact: bool) -> list[int | None]:
    """Return mtimes in nanoseconds, None: now. Raises ValueError if a file cannot have one.

    exact  numbers are nanoseconds, not seconds
    """
    if array is None:
        return [None] * n
    found = array.to_pylist() if exact else times_of_arrow(array)
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
