"""Conversion of numpy arrays and bytes to Arrow columns, and back, for short-lived Python workers.

`pa.array`, `pa.scalar`, `to_numpy` and `fill_null` with a number import pandas if it is installed,
which is slow in each new Python worker; `take` imports `pyarrow.compute`, which is slow, too. The
functions of this module import neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from winkformats.arrays import Bools, Int64
from winkformats.kv.entry import MASK64
from winkfs.container.arrow import arrow_type
from winkfs.container.ondisk.column import Column, is_exact
from winkfs.container.ondisk.typed import decimal_of, is_number, to_value

try:
    from pyarrow._compute import call_function
except ImportError:  # the documented place, for other versions of pyarrow
    from pyarrow.compute import call_function


def column(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, missing: Bools | None = None
) -> pa.Array:
    """Return a column of integers or bools. Contiguous integers are not copied.

    kind     an Arrow type of equal width; None: that of the array
    missing  bool[n]: which are null
    """
    if values.dtype == np.bool_:
        data, found = _bits(values), pa.bool_()
    else:
        data, found = np.ascontiguousarray(values), pa.from_numpy_dtype(values.dtype)
    valid = None if missing is None else pa.py_buffer(_bits(~missing))
    buffers = [valid, pa.py_buffer(data)]
    return pa.Array.from_buffers(found if kind is None else kind, len(values), buffers)


def of_column(given: Column) -> pa.Array:
    """Return the values of a column of the user, of the types that Spark uses."""
    kind = arrow_type(given.kind)
    if decimal_of(given.kind):
        return _decimals(given, kind)
    missing = None if given.valid.all() else ~given.valid
    if is_number(given.kind):
        narrow = given.kind == "date"
        values = given.numbers.astype(np.int32) if narrow else given.numbers
        return column(values, kind, missing)
    if not given.valid.any():
        return pa.nulls(len(given), kind)
    # A part of a column has the words of the whole.
    used, index = np.unique(given.numbers, return_inverse=True)
    return call_function("take", [_words(given, used, kind), column(index, missing=missing)])


def _words(given: Column, used: Int64, kind: pa.DataType) -> pa.Array:
    """Return the texts or lists with these numbers of a column."""
    if given.lists is not None:
        lists = given.lists.rows(used, np.ones(len(used), bool))
        missing = None if lists.valid.all() else ~lists.valid
        values = column(lists.values, kind.value_type, missing)
        return pa.ListArray.from_arrays(column(lists.ends.astype(np.int32)), values)
    words = list(map(given.words.__getitem__, used.tolist()))
    if given.kind != "list<string>":
        return binaries(words).view(kind)
    # Where each row has a word, that of a null is b"".
    found = [to_value(given.kind, word) or [] for word in words]
    ends = np.cumsum([0, *map(len, found)], dtype=np.int32)
    return pa.ListArray.from_arrays(column(ends), texts(list(itertools.chain(*found))))


def _decimals(given: Column, kind: pa.DataType) -> pa.Array:
    """Return decimals, of 128 bits each."""
    numbers = given.numbers
    words = np.empty((len(numbers), 2), np.int64)
    if is_exact(given.kind):
        words[:, 0], words[:, 1] = numbers, numbers >> 63
    else:
        words[:, 0] = (numbers & MASK64).astype(np.uint64).view(np.int64)
        words[:, 1] = (numbers >> 64).astype(np.int64)
    valid = None if given.valid.all() else pa.py_buffer(_bits(given.valid))
    return pa.Array.from_buffers(kind, len(numbers), [valid, pa.py_buffer(words)])


def binaries(values: Sequence[bytes | memoryview | None]) -> pa.Array:
    """Return a binary column, less than 2 GiB in all; None is null."""
    sizes = [0 if value is None else len(value) for value in values]
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    valid = pa.py_buffer(_bits(~missing)) if missing.any() else None
    data = b"".join(value for value in values if value is not None)
    return _binary(np.cumsum([0, *sizes], dtype=np.int64), data, len(values), valid)


def contents(values: Sequence[bytes | Exception | None]) -> tuple[pa.Array, dict[int, Exception]]:
    """Return a binary column, with null for None and errors, and the errors by index."""
    errors = {i: value for i, value in enumerate(values) if isinstance(value, Exception)}
    return binaries([None if isinstance(v, Exception) else v for v in values]), errors


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return a column of strings; None is null."""
    return binaries([None if value is None else value.encode() for value in values]).view(
        pa.string()
    )


def same(value: str | int, count: int) -> pa.Array:
    """Return a column with one string, or int64, `count` times."""
    if isinstance(value, int):
        return column(np.full(count, value, np.int64))
    data = value.encode()
    ends = np.arange(count + 1, dtype=np.int64) * len(data)
    return _binary(ends, data * count, count).view(pa.string())


def rows(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Convert uint8[n, width] to a binary column of n values, without a copy."""
    n, width = matrix.shape
    return _binary(np.arange(n + 1, dtype=np.int64) * width, np.ascontiguousarray(matrix), n)


def _binary(ends: Int64, data: Any, count: int, valid: pa.Buffer | None = None) -> Any:
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]} bytes in one column of Arrow")
    buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _bits(values: Bools) -> npt.NDArray[np.uint8]:
    return np.packbits(values, bitorder="little")


def taken(array: pa.Array, index: Int64) -> pa.Array:
    """Return the values at these indices, as `array.take` does."""
    return call_function("take", [array, column(index)])


def numbers(array: pa.Array) -> Int64:
    """Return the values of a column of integers or times, int64[n]; 0 for null."""
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64)
    width = array.type.bit_width // 8
    found = np.frombuffer(array.buffers()[1], f"i{width}", len(array), array.offset * width)
    found = found.astype(np.int64, copy=False)
    return np.where(bools(array.is_valid()), found, 0) if array.null_count else found


def bools(array: pa.Array) -> Bools:
    """Return the values of a column of bools without nulls, bool[n]."""
    if not len(array):
        return np.empty(0, np.bool_)
    start, stop = array.offset, array.offset + len(array)
    raw = np.frombuffer(array.buffers()[1], np.uint8, -(-stop // 8))
    return np.unpackbits(raw, count=stop, bitorder="little")[start:].view(np.bool_)


def layout(array: pa.Array) -> tuple[Int64, memoryview]:
    """Return the offsets, int64[n + 1], and the bytes of a binary column. A null has no bytes."""
    _, offsets, data = array.buffers()
    width = 8 if str(array.type).startswith("large") else 4
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), memoryview(b"")
    ends = np.frombuffer(offsets, f"i{width}", len(array) + 1, array.offset * width)
    return ends.astype(np.int64), memoryview(b"" if data is None else data)


def views(array: pa.Array) -> Iterator[memoryview]:
    """Yield the values of a binary column as views of its buffer."""
    ends, data = layout(array)
    return (data[a:b] for a, b in itertools.pairwise(ends.tolist()))
