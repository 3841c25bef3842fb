"""Column: the values of many files in a column of the user.

In BASE.cat the values of a block, little-endian, each part at a multiple of 8:

    uint32 n, flags (1: some are null, 2: all are), words, bytes of a code
    with nulls: a bit for each row, least first, 1: it has a value
    numbers: n of 8 bytes; bool: n bits; all else: n codes, uint32[words + 1] ends, the words
Without codes the words are those of the rows, in order.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64
from winkfs.container.ondisk.typed import (
    EPOCH,
    LEAST,
    MICROSECOND,
    MOST,
    NUMBERS,
    Texts,
    to_value,
)

HEAD: Final = struct.Struct("<IIII")
SOME_NULL, ALL_NULL = 1, 2


@dataclass(frozen=True, slots=True)
class Column:
    """n values of one type.

    valid    bool[n]  True for values that are not null
    numbers  int64[n], float64[n] or bool[n]; of other types: indices of words
    words    texts, each distinct one once, or one for each row
    """

    kind: str
    valid: Bools
    numbers: npt.NDArray[Any]
    words: list[bytes]

    def __len__(self) -> int:
        return len(self.valid)

    @classmethod
    def nulls(cls, kind: str, n: int) -> Column:
        return cls(kind, np.zeros(n, bool), np.zeros(n, dtype_of(kind)), [])

    @classmethod
    def of(cls, kind: str, texts: Texts) -> Column:
        """Return a column of texts; a text that is not valid for the type is null."""
        known, words = dict.fromkeys(texts), list[bytes]()
        if known.keys() <= {None}:
            return cls.nulls(kind, len(texts))
        if kind in NUMBERS:
            values = {text: _number(kind, text) for text in known}
        else:
            words = [text for text in known if text is not None
                     and to_value(kind, text) is not None]  # fmt: skip
            values = {word: code for code, word in enumerate(words)}
        found = list(map(values.get, texts))
        valid = np.fromiter((value is not None for value in found), bool, len(found))
        numbers = np.array([0 if value is None else value for value in found], dtype_of(kind))
        return cls(kind, valid, numbers, words)

    def texts(self) -> Texts:
        """Return the values as texts: the inverse of `of`."""
        if self.kind in NUMBERS:
            numbers = self.numbers
            if self.kind == "timestamp":
                strings = np.datetime_as_string(numbers.astype("M8[us]"), unit="us")
                found: list[Any] = [b"%bZ" % text for text in strings.astype("S26").tolist()]
            elif self.kind == "bool":
                found = [b"true" if value else b"false" for value in numbers.tolist()]
            else:
                found = [repr(value).encode() for value in numbers.tolist()]
        else:
            found = list(map((list[Any](self.words) or [None]).__getitem__, self.numbers.tolist()))
        if self.valid.all():
            return found
        return [t if ok else None for t, ok in zip(found, self.valid.tolist(), strict=True)]

    def cast(self, kind: str) -> Column:
        """Return the values as another type; a value that does not fit it is null."""
        return self if kind == self.kind else Column.of(kind, self.texts())

    def take(self, chosen: npt.NDArray[Any]) -> Column:
        """Return the rows with these indices, or those marked, bool[n]."""
        return Column(self.kind, self.valid[chosen], self.numbers[chosen], self.words)

    @staticmethod
    def concat(parts: Sequence[Column]) -> Column:
        """Concatenate columns of one type, at least one."""
        valid = np.concatenate([part.valid for part in parts])
        kind = parts[0].kind
        if kind in NUMBERS:
            return Column(kind, valid, np.concatenate([part.numbers for part in parts]), [])
        codes: dict[bytes, int] = {}
        numbers = []
        for part in parts:
            place = [codes.setdefault(word, len(codes)) for word in part.words] or [0]
            numbers.append(np.array(place, np.int64)[part.numbers])
        return Column(kind, valid, np.concatenate(numbers), list(codes))

    def encode(self) -> bytes:
        """Encode the values of a block for BASE.cat."""
        n, whole = len(self), bool(self.valid.all())
        if not self.valid.any():
            return HEAD.pack(n, ALL_NULL, 0, 0)
        parts = [] if whole else [np.packbits(self.valid, bitorder="little").tobytes()]
        words, wide = list[bytes](), 0
        if self.kind == "bool":
            parts.append(np.packbits(self.numbers, bitorder="little").tobytes())
        elif self.kind in NUMBERS:
            parts.append(self.numbers.astype(self.numbers.dtype.newbyteorder("<")).tobytes())
        else:
            order, codes = np.unique(self.numbers[self.valid], return_inverse=True)
            words = list(map(self.words.__getitem__, order.tolist()))
            if 2 * len(words) <= n:
                wide = 1 if len(words) <= 256 else 2
                row = np.zeros(n, f"<u{wide}")
                row[self.valid] = codes
                parts.append(row.tobytes())
            else:
                words = [text or b"" for text in self.texts()]
            ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
            parts += [ends.astype("<u4").tobytes(), b"".join(words)]
        head = HEAD.pack(n, 0 if whole else SOME_NULL, len(words), wide)
        return head + b"".join(part + bytes(-len(part) % 8) for part in parts)

    @classmethod
    def decode(cls, kind: str, value: bytes, rows: int) -> Column:
        """Decode the values of a block of `rows` rows. Raises ValueError."""
        try:
            return cls._decoded(kind, value, rows)
        except (struct.error, IndexError) as error:
            raise ValueError(f"values that cannot be: {error}") from None

    @classmethod
    def _decoded(cls, kind: str, value: bytes, rows: int) -> Column:
        n, flags, words, wide = HEAD.unpack_from(value)
        if n != rows:  # checked before memory is allocated
            raise ValueError("a column of another length")
        if flags == ALL_NULL:
            return cls.nulls(kind, n)
        if flags > ALL_NULL or wide not in (0, 1, 2):
            raise ValueError("values that cannot be")
        at, valid = HEAD.size, np.ones(n, bool)
        if flags:
            valid, at = _bits(value, n, at)
        if kind == "bool":
            return cls(kind, valid, _bits(value, n, at)[0], [])
        if kind in NUMBERS:
            form = "<f8" if kind == "float64" else "<i8"
            return cls(kind, valid, np.frombuffer(value, form, n, at), [])
        numbers = np.arange(n)
        if wide:
            numbers = np.frombuffer(value, f"<u{wide}", n, at).astype(np.int64)
            at += _padded(n * wide)
        ends = np.frombuffer(value, "<u4", words + 1, at).tolist()
        at += _padded(4 * (words + 1))
        texts = [value[at + a : at + b] for a, b in itertools.pairwise(ends)]
        if len(numbers) and int(numbers.max()) >= len(texts):
            raise ValueError("values that cannot be")
        return cls(kind, valid, numbers, texts)

    def zone(self) -> tuple[int, int, int]:
        """Return the number of nulls, and least and greatest `key_of` of the others; 0, 0: all are
        null."""
        nulls = len(self) - int(self.valid.sum())
        if nulls == len(self):
            return nulls, 0, 0
        used = self.numbers if not nulls else self.numbers[self.valid]
        if self.kind in NUMBERS:
            keys = keys_of(self.kind, used)
            return nulls, int(keys.min()), int(keys.max())
        texts = list(map(self.words.__getitem__, np.unique(used).tolist()))
        return nulls, key_of(self.kind, min(texts)), key_of(self.kind, max(texts))


def dtype_of(kind: str) -> npt.DTypeLike:
    """Return the dtype of the numbers of a `Column`."""
    return {"bool": np.bool_, "float64": np.float64}.get(kind, np.int64)


def _number(kind: str, text: bytes | None) -> Any:
    value = to_value(kind, text)
    if kind == "timestamp" and value is not None:
        return (value - EPOCH) // MICROSECOND
    return value


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _bits(value: bytes, n: int, at: int) -> tuple[Bools, int]:
    size = -(-n // 8)
    raw = np.frombuffer(value, np.uint8, size, at)
    return np.unpackbits(raw, count=n, bitorder="little").view(bool), at + _padded(size)


# --- an order of values as int64: of numbers exactly, of texts by their first 8 bytes ---


def key_of(kind: str, value: Any) -> int:
    """Return the sort key of a value: of a number as in `Column.numbers`, or of a text."""
    if kind not in NUMBERS:
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big") + LEAST
    return int(keys_of(kind, np.array([value]))[0]) if kind == "float64" else int(value)


def keys_of(kind: str, numbers: npt.NDArray[Any]) -> Int64:
    """Return the sort keys of many numbers, int64[n]; as in Spark, nan is greatest, and 0 equals
    -0."""
    if kind != "float64":
        return numbers.astype(np.int64)
    bits = (numbers + 0.0).view(np.int64)
    keys = np.where(bits < 0, bits ^ MOST, bits)
    return np.where(np.isnan(numbers), MOST, keys)
