"""Gather: rows of bytes from many places of a buffer, and the numbers in them as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rows_at(view: Any, pos: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Gather `width` bytes from each position -> uint8[n, width]: one memcpy a row."""
    rows = np.ndarray((len(view) - width + 1,), f"V{width}", view, 0, (1,))[pos]
    return rows.view(np.uint8).reshape(len(pos), width)


def row_bytes(matrix: npt.NDArray[Any]) -> list[bytes]:
    """The rows of a contiguous matrix as bytes objects: 14 ns each."""
    rows: list[bytes] = matrix.view(f"V{matrix.shape[1] * matrix.itemsize}").ravel().tolist()
    return rows


def column(rows: npt.NDArray[np.uint8], dtype: str, at: int) -> npt.NDArray[Any]:
    """The number that stands `at` bytes into each row, without a copy."""
    return np.ndarray((len(rows),), dtype, rows, at, (rows.shape[1],))
