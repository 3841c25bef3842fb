"""Headers of many members of a tar file, by array operations: see `tarheader`."""

from __future__ import annotations

from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, UInt8
from winkfs.archive.tarheader import BLOCK, FIELD, USTAR, pax_header, pax_time_text
from winkfs.units import NANO

PLACES: Final = 100, 108, 116, 124, 136  # of numbers in a block
DIGITS: Final = 7, 7, 7, 11, 11
USUAL_TIMES: Final = 10**9 * NANO, 9 * 10**9 * NANO


def encode_many(names: list[bytes], numbers: Int64, kinds: UInt8) -> UInt8:
    """Return the blocks of n members whose fields all fit, uint8[n, BLOCK]: see `encode`.

    numbers  int64[5, n]: modes, uids, gids, sizes, mtimes
    """
    blocks = np.zeros((len(names), BLOCK), np.uint8)
    blocks[:, :FIELD] = np.array(names, f"S{FIELD}").view(np.uint8).reshape(-1, FIELD)
    for at, digits, values in zip(PLACES, DIGITS, numbers, strict=True):
        blocks[:, at : at + digits] = _digits(values, 8 ** np.arange(digits)[::-1], 8)
    blocks[:, 148:156] = ord(" ")
    blocks[:, 156] = kinds
    blocks[:, 257:] = np.frombuffer(USTAR, np.uint8)
    sums = blocks.sum(axis=1, dtype=np.int64)
    blocks[:, 148:154] = _digits(sums, 8 ** np.arange(6)[::-1], 8)
    blocks[:, 154] = 0
    return blocks


def mtimes_many(ns: Int64) -> UInt8:
    """Return the blocks of n pax headers of an mtime alone, uint8[n, 2, BLOCK]: see `pax_header`.

    ns  nanoseconds, in which `is_usual`
    """
    one = pax_header({b"mtime": pax_time_text(USUAL_TIMES[0] + 1)})
    blocks = np.repeat(np.frombuffer(one, np.uint8).reshape(1, 2, BLOCK), len(ns), axis=0)
    at = one.index(b"mtime=", BLOCK) - BLOCK + len(b"mtime=")
    seconds, part = np.divmod(ns, NANO)
    blocks[:, 1, at : at + 10] = _digits(seconds, 10 ** np.arange(10)[::-1], 10)
    blocks[:, 1, at + 11 : at + 20] = _digits(part, 10 ** np.arange(9)[::-1], 10)
    return blocks


def is_usual(ns: Int64) -> Bools:
    """Return which times have seconds of ten digits, bool[n]."""
    return (ns >= USUAL_TIMES[0]) & (ns < USUAL_TIMES[1])


def _digits(values: Int64, places: Int64, base: int) -> UInt8:
    """Return the digits of numbers as ASCII, uint8[n, number of places]."""
    found: UInt8 = (values[:, None] // places % base + ord("0")).astype(np.uint8)
    return found
