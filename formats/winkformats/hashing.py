"""Hash algorithms of keys (HTALGO): the slot of a key, and the 64 bits that its cell stores.

    HTALGO  hash of the key               slot bits                            S
    1       MD5                           low 63 of the digest (big-endian)    first 8 bytes
    2       XXH3-64, seed 0               low 63                               all 64 bits
    3       MurmurHash3 x64 128, seed 0   low 63 of the first 8 (little)       those 8 bytes

The slot is the 63 bits modulo HTSIZE. With 2 and 3 it follows from S.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from winkformats import native
from winkformats.arrays import Int64, UInt64
from winkformats.errors import FormatError

if TYPE_CHECKING:
    from winkformats.disk.storage import Buffer

MD5: Final = 1
XXH3: Final = 2
MURMUR3: Final = 3
MASK63: Final = (1 << 63) - 1
SLOT_FROM_S: Final = frozenset({XXH3, MURMUR3})

Key = bytes | bytearray | memoryview
_TWO = struct.Struct(">QQ")


def check(htalgo: int, file: str = "") -> int:
    """Return htalgo. Raises FormatError if no such algorithm is defined."""
    if htalgo not in (MD5, XXH3, MURMUR3):
        where = f"{file}: " if file else ""
        raise FormatError(f"{where}HTALGO {htalgo} is not a known hash algorithm (1, 2, 3)")
    return htalgo


def hash_key(htalgo: int, key: Key) -> tuple[int, int]:
    """Hash a key -> (S, the 63 bits that give the slot)."""
    if htalgo == XXH3:
        s = xxhash.xxh3_64_intdigest(key)
        return s, s & MASK63
    if htalgo == MURMUR3:
        s = int.from_bytes(_murmur3([key])[:8], "little")
        return s, s & MASK63
    s, low = _TWO.unpack(_md5([key]))
    return s, low & MASK63


def hash_keys(htalgo: int, keys: Iterable[Key]) -> tuple[UInt64, UInt64]:
    """Hash n keys -> S: uint64[n], slot bits: uint64[n]. Cost: with XXH3 one call in C a key."""
    if htalgo == XXH3:
        s = xxh3_many(keys)
        return s, s & np.uint64(MASK63)
    if htalgo == MURMUR3:
        s = np.frombuffer(_murmur3(keys), "<u8").reshape(-1, 2)[:, 0].astype(np.uint64)
        return s, s & np.uint64(MASK63)
    pair = np.frombuffer(_md5(keys), ">u8").reshape(-1, 2).astype(np.uint64)
    return np.ascontiguousarray(pair[:, 0]), pair[:, 1] & np.uint64(MASK63)


def _md5(keys: Iterable[Key]) -> bytes:
    """Hash keys -> the 16 bytes of each, concatenated."""
    from hashlib import md5  # late: only classic containers use it

    return b"".join([md5(key, usedforsecurity=False).digest() for key in keys])


def _murmur3(keys: Iterable[Key]) -> bytes:
    """Hash keys -> the 16 bytes of each, concatenated."""
    import mmh3  # late: few tables use it

    return b"".join([mmh3.hash_bytes(bytes(key), 0, True) for key in keys])


def xxh3_signed(data: Buffer) -> int:
    """Return XXH3-64 of a buffer as catalogs store it: its bytes as a little-endian int64."""
    return int.from_bytes(xxhash.xxh3_64_digest(data), "little", signed=True)


def xxh3_many(buffers: Iterable[Buffer], seeds: UInt64 | None = None) -> UInt64:
    """Hash each buffer with XXH3-64 and its seed -> uint64[n]. Cost: one call in C for each.

    seeds  uint64[n]; None: all 0
    """
    if native.code is not None:
        return np.frombuffer(native.code.hash_each(buffers, seeds), np.uint64)
    columns = (buffers,) if seeds is None else (buffers, seeds.tolist())
    found = b"".join(map(xxhash.xxh3_64_digest, *columns))  # faster than a list of numbers
    return np.frombuffer(found, ">u8").astype(np.uint64)


def xxh3_at(data: Buffer, starts: Int64, stops: Int64, seeds: UInt64 | None = None) -> UInt64:
    """Hash each data[starts[i]:stops[i]] with XXH3-64 and its seed -> uint64[n]."""
    if native.code is not None:
        into = np.empty(len(starts), np.uint64)
        starts, stops = np.ascontiguousarray(starts), np.ascontiguousarray(stops)
        native.code.hash_at(data, starts, stops, seeds, into)
        return into
    slices = map(slice, starts.tolist(), stops.tolist())  # an iterator, to save memory
    return xxh3_many(map(data.__getitem__, slices), seeds)
