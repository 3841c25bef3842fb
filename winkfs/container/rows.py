"""Rows: files to be indexed, as columns, and how to find double names among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import Int64, UInt64
from winkformats.hindex import table


@dataclass
class Rows:
    """Files to be indexed, as columns.

    s       uint64[n]  S of the key
    bits    uint64[n]  slot bits, or None where they follow from S
    pos     int64[n]   kv_pointer of the inode
    """

    s: UInt64
    bits: UInt64 | None
    pos: Int64

    def slot_bits(self) -> UInt64:
        return table.bits_of(self.s) if self.bits is None else self.bits


def hash_rows(htalgo: int, keys: Iterable[hashing.Key], pos: Int64) -> Rows:
    s, bits = hashing.hash_keys(htalgo, keys)
    return Rows(s, None if htalgo in hashing.SLOT_FROM_S else bits, pos)


class Column:
    """A column of any length. It grows in place: to join parts would hold all of them twice."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._data: npt.NDArray[Any] = np.empty(0, dtype)
        self._count = 0

    def add(self, part: npt.NDArray[Any]) -> None:
        """Add values; where they do not fit the type, it becomes int64."""
        data, stop = self._data, self._count + len(part)
        if data.itemsize == 4 and len(part) and (part.min() < 0 or part.max() >= 1 << 32):
            data = self._data = data.astype(np.int64)
        if stop > len(data):  # realloc moves pages of a large block, it does not copy them
            data.resize(max(stop, len(data) + len(data) // 8), refcheck=False)
        data[self._count : stop] = part
        self._count = stop

    def take(self) -> npt.NDArray[Any]:
        """The values; the column is empty after that."""
        data, self._data = self._data, np.empty(0, self._data.dtype)
        data.resize(self._count, refcheck=False)
        self._count = 0
        return data


def join_rows(parts: list[Rows]) -> Rows:
    """One set of columns; `parts` is emptied column by column, so that memory is not held twice."""
    whole = [part for part in parts if len(part.pos)]
    if len(whole) < 2:
        parts.clear()
        return whole[0] if whole else Rows(np.empty(0, np.uint64), None, np.empty(0, np.int64))
    s = np.concatenate([p.s for p in parts])
    bits = None
    if whole[0].bits is not None:
        bits = np.concatenate([p.bits for p in parts if p.bits is not None])
    for part in parts:
        part.s = np.empty(0, np.uint64)
    pos = np.concatenate([p.pos for p in parts])
    parts.clear()
    return Rows(s, bits, pos)


def doubles(values: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """A stable order of the values, and where in it a value equals the next; empty if nowhere.

    cost    memory: 8 bytes a value, 17 where there are doubles
    """
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    del ordered
    order = np.argsort(values, kind="stable")
    equal = np.empty(len(order) - 1, bool)
    for at in range(0, len(equal), table.BUCKET):  # in pieces: no temporaries of 8 bytes a value
        part = values[order[at : at + table.BUCKET + 1]]
        equal[at : at + table.BUCKET] = part[1:] == part[:-1]
    return order, np.flatnonzero(equal)
