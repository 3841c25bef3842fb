"""Column: the values of many files in a column of the user.

In BASE.cat the values of a block, little-endian, each part at a multiple of 8:

    uint32 n, flags (1: some are null, 2: all are), words, bytes of a code
    with nulls: a bit for each row, least first, 1: it has a value
    numbers: n of 8 bytes, of 16 for decimals of more than 18 digits; bool: n bits
    lists of numbers: uint32[n + 1] ends, and the elements, of 8 bytes each; `words` is how many
        there are. With 4 in the flags a bit for each element stands before them, 1: it is not null
    all else: n codes, uint32[words + 1] ends, the words
Without codes the words are those of the rows, in order.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64
from winkfs.container.ondisk.typed import (
    EPOCH,
    EPOCH_DAY,
    LEAST,
    LISTS,
    LOCAL_EPOCH,
    MICROSECOND,
    MOST,
    NARROW,
    Texts,
    decimal_of,
    decimal_text,
    is_number,
    json_of,
    scaled,
    to_value,
)

HEAD: Final = struct.Struct("<IIII")
SOME_NULL, ALL_NULL, NULL_ELEMENTS = 1, 2, 4
DAYS: Final = (date.min.toordinal() - EPOCH_DAY, date.max.toordinal() - EPOCH_DAY)
DAY_US: Final = 86_400_000_000
RANGES: Final = {"date": DAYS, "datetime": (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)}


class Lists(NamedTuple):
    """Lists of numbers, one after the other.

    ends    int64[m + 1]            where in the elements each list ends, from 0 on
    values  int64[e] or float64[e]  the elements, 0 if null
    valid   bool[e]                 True for elements that are not null
    """

    ends: Int64
    values: npt.NDArray[Any]
    valid: Bools

    @classmethod
    def of(cls, kind: str, lists: Sequence[Sequence[Any]]) -> Lists:
        """Return lists of Python's numbers, None: null."""
        flat = list(itertools.chain.from_iterable(lists))
        valid = np.fromiter((item is not None for item in flat), bool, len(flat))
        values = np.array([0 if item is None else item for item in flat], LISTS[kind])
        return cls(np.cumsum([0, *map(len, lists)], dtype=np.int64), values, valid)

    def texts(self) -> list[bytes]:
        """Return the lists as JSON."""
        items = self.values.tolist()
        for place in np.flatnonzero(~self.valid).tolist():
            items[place] = None
        cuts = itertools.pairwise(self.ends.tolist())
        return [json_of(items[a:b]) for a, b in cuts]

    def rows(self, numbers: Int64, valid: Bools) -> Lists:
        """Return the lists with these numbers; an empty one where it is not valid."""
        if not valid.any():
            return Lists(np.zeros(len(valid) + 1, np.int64), self.values[:0], self.valid[:0])
        lengths = np.where(valid, np.diff(self.ends)[numbers], 0)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        place = np.repeat(self.ends[numbers] - ends[:-1], lengths) + np.arange(int(ends[-1]))
        return Lists(ends, self.values[place], self.valid[place])

    def having(self, value: float, wanted: bool) -> Bools:
        """Return which lists have an element or, not `wanted`, have neither it nor a null, bool[m].

        nan equals nan, as in Spark.
        """
        hits = np.isnan(self.values) if value != value else self.values == value
        sums = np.concatenate([[0], np.cumsum(hits & self.valid if wanted else hits | ~self.valid)])
        found: Bools = (sums[self.ends[1:]] > sums[self.ends[:-1]]) == wanted
        return found

    @staticmethod
    def concat(parts: Sequence[Lists]) -> Lists:
        """Concatenate lists of one type."""
        starts = np.cumsum([0, *(part.ends[-1] for part in parts)])
        ends = [part.ends[1:] + start for part, start in zip(parts, starts.tolist(), strict=False)]
        return Lists(
            np.concatenate([[0], *ends]), np.concatenate([part.values for part in parts]),
            np.concatenate([part.valid for part in parts]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """n values of one type.

    valid    bool[n]  True for values that are not null
    numbers  int64[n], float64[n] or bool[n]; of decimals of more than 18 digits object[n], int;
             of other types: indices of words or lists
    words    texts, each distinct one once, or one for each row
    lists    of lists of numbers, instead of words
    """

    kind: str
    valid: Bools
    numbers: npt.NDArray[Any]
    words: list[bytes]
    lists: Lists | None = None

    def __len__(self) -> int:
        return len(self.valid)

    @classmethod
    def nulls(cls, kind: str, n: int) -> Column:
        lists = Lists.of(kind, []) if kind in LISTS else None
        return cls(kind, np.zeros(n, bool), np.zeros(n, dtype_of(kind)), [], lists)

    @classmethod
    def of(cls, kind: str, texts: Texts) -> Column:
        """Return a column of texts; a text that is not valid for the type is null."""
        known, words, lists = dict.fromkeys(texts), list[bytes](), None
        if known.keys() <= {None}:
            return cls.nulls(kind, len(texts))
        if is_number(kind):
            values = _numbers(kind, known)
        elif kind in LISTS:
            found = {text: to_value(kind, text) for text in known}
            some = [text for text, value in found.items() if value is not None]
            lists = Lists.of(kind, [found[text] for text in some])
            values = {text: code for code, text in enumerate(some)}
        else:
            words = [text for text in known if text is not None
                     and to_value(kind, text) is not None]  # fmt: skip
            values = {word: code for code, word in enumerate(words)}
        each = list(map(values.get, texts))
        valid = np.fromiter((value is not None for value in each), bool, len(each))
        numbers = np.array([0 if value is None else value for value in each], dtype_of(kind))
        return cls(kind, valid, numbers, words, lists)

    def texts(self) -> Texts:
        """Return the values as texts: the inverse of `of`."""
        if is_number(self.kind):
            found: list[Any] = self._number_texts()
        else:
            words = self.words if self.lists is None else self.lists.texts()
            found = list(map((list[Any](words) or [None]).__getitem__, self.numbers.tolist()))
        if self.valid.all():
            return found
        return [t if ok else None for t, ok in zip(found, self.valid.tolist(), strict=True)]

    def _number_texts(self) -> list[bytes]:
        kind, numbers = self.kind, self.numbers
        if kind == "date":
            days: list[bytes] = (
                np.datetime_as_string(numbers.astype("M8[D]")).astype("S10").tolist()
            )
            return days
        if kind in ("timestamp", "datetime"):
            strings = np.datetime_as_string(numbers.astype("M8[us]"), unit="us")
            times: list[bytes] = strings.astype("S26").tolist()
            return [b"%bZ" % text for text in times] if kind == "timestamp" else times
        if kind == "bool":
            return [b"true" if value else b"false" for value in numbers.tolist()]
        if parameters := decimal_of(kind):
            return [decimal_text(value, parameters[1]) for value in numbers.tolist()]
        return [repr(value).encode() for value in numbers.tolist()]

    def cast(self, kind: str) -> Column:
        """Return the values as another type; a value that does not fit it is null."""
        return self if kind == self.kind else Column.of(kind, self.texts())

    def take(self, chosen: npt.NDArray[Any]) -> Column:
        """Return the rows with these indices, or those marked, bool[n]."""
        return Column(
            self.kind, self.valid[chosen], self.numbers[chosen], self.words, self.lists
        )  # fmt: skip

    @staticmethod
    def concat(parts: Sequence[Column]) -> Column:
        """Concatenate columns of one type, at least one."""
        valid = np.concatenate([part.valid for part in parts])
        kind = parts[0].kind
        if is_number(kind):
            return Column(kind, valid, np.concatenate([part.numbers for part in parts]), [])
        lists = [part.lists for part in parts if part.lists is not None]
        if lists:
            starts = np.cumsum([0, *(len(part.ends) - 1 for part in lists)]).tolist()
            places = [part.numbers + at for part, at in zip(parts, starts, strict=False)]
            return Column(kind, valid, np.concatenate(places), [], Lists.concat(lists))
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
        flags = 0 if whole else SOME_NULL
        parts = [] if whole else [np.packbits(self.valid, bitorder="little").tobytes()]
        words, wide = list[bytes](), 0
        if self.kind == "bool":
            parts.append(np.packbits(self.numbers, bitorder="little").tobytes())
        elif self.numbers.dtype == object:
            each = self.numbers.tolist()
            parts.append(b"".join(value.to_bytes(16, "little", signed=True) for value in each))
        elif is_number(self.kind):
            parts.append(self.numbers.astype(self.numbers.dtype.newbyteorder("<")).tobytes())
        elif self.lists is not None:
            lists = self.lists.rows(self.numbers, self.valid)
            parts.append(lists.ends.astype("<u4").tobytes())
            if not lists.valid.all():
                flags |= NULL_ELEMENTS
                parts.append(np.packbits(lists.valid, bitorder="little").tobytes())
            parts.append(lists.values.astype(lists.values.dtype.newbyteorder("<")).tobytes())
            head = HEAD.pack(n, flags, len(lists.values), 8)
            return head + b"".join(part + bytes(-len(part) % 8) for part in parts)
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
        head = HEAD.pack(n, flags, len(words), wide)
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
        lists, nulls = kind in LISTS, flags & SOME_NULL
        if flags & ~(SOME_NULL | NULL_ELEMENTS * lists) or wide not in (
            (8,) if lists else (0, 1, 2)
        ):
            raise ValueError("values that cannot be")
        at, valid = HEAD.size, np.ones(n, bool)
        if nulls:
            valid, at = _bits(value, n, at)
        if kind == "bool":
            return cls(kind, valid, _bits(value, n, at)[0], [])
        if is_number(kind):
            return cls(kind, valid, _decoded_numbers(kind, value, n, at), [])
        if lists:
            some = _decoded_lists(kind, value, n, at, words, bool(flags & NULL_ELEMENTS))
            return cls(kind, valid, np.arange(n), [], some)
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
        if self.lists is not None:
            return nulls, 0, 0
        used = self.numbers if not nulls else self.numbers[self.valid]
        if is_number(self.kind):
            keys = keys_of(self.kind, used)
            return nulls, int(keys.min()), int(keys.max())
        texts = list(map(self.words.__getitem__, np.unique(used).tolist()))
        return nulls, key_of(self.kind, min(texts)), key_of(self.kind, max(texts))


def dtype_of(kind: str) -> npt.DTypeLike:
    """Return the dtype of the numbers of a `Column`."""
    if is_exact(kind):
        return {"bool": np.bool_, "float64": np.float64}.get(kind, np.int64)
    return object


def is_exact(kind: str) -> bool:
    """Return whether sort keys of different numbers of a type always differ: not of decimals of
    more than 18 digits."""
    return (decimal_of(kind) or (0, 0))[0] <= NARROW


def _numbers(kind: str, texts: Iterable[bytes | None]) -> dict[bytes | None, Any]:
    """Return the number of each text, None: null."""
    values = {text: to_value(kind, text) for text in texts}
    if kind in ("int64", "float64", "bool"):
        return values
    number = _NUMBER.get(kind)
    if number is None:
        precision, scale = decimal_of(kind) or (0, 0)
        number = partial(scaled, precision=precision, scale=scale)
    return {text: None if value is None else number(value) for text, value in values.items()}


_NUMBER: Final[dict[str, Callable[[Any], int]]] = {
    "timestamp": lambda value: (value - EPOCH) // MICROSECOND,
    "date": lambda value: value.toordinal() - EPOCH_DAY,
    "datetime": lambda value: (value - LOCAL_EPOCH) // MICROSECOND,
}


def _decoded_numbers(kind: str, value: bytes, n: int, at: int) -> npt.NDArray[Any]:
    """Decode the numbers of a block. Raises ValueError for those that the type does not have."""
    parameters = decimal_of(kind)
    if not is_exact(kind):
        halves = np.frombuffer(value, "<i8", 2 * n, at).reshape(n, 2)
        low = halves[:, 0].astype(np.uint64)
        numbers: npt.NDArray[Any] = (halves[:, 1].astype(object) << 64) + low.astype(object)
    else:
        numbers = np.frombuffer(value, "<f8" if kind == "float64" else "<i8", n, at)
    low_end, high_end = RANGES.get(kind, (0, 0))
    if parameters is not None:
        low_end, high_end = 1 - 10 ** parameters[0], 10 ** parameters[0] - 1
    if high_end and n and not low_end <= numbers.min() <= numbers.max() <= high_end:
        raise ValueError("values that cannot be")
    return numbers


def _decoded_lists(kind: str, value: bytes, n: int, at: int, elements: int, nulls: bool) -> Lists:
    """Decode the lists of a block. Raises ValueError."""
    ends = np.frombuffer(value, "<u4", n + 1, at).astype(np.int64)
    at += _padded(4 * (n + 1))
    if ends[0] or ends[-1] != elements or (np.diff(ends) < 0).any():
        raise ValueError("values that cannot be")
    if elements > len(value):  # checked before memory is allocated
        raise ValueError("values that cannot be")
    valid = np.ones(elements, bool)
    if nulls:
        valid, at = _bits(value, elements, at)
    form = "<f8" if LISTS[kind] == "float64" else "<i8"
    return Lists(ends, np.frombuffer(value, form, elements, at), valid)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def _bits(value: bytes, n: int, at: int) -> tuple[Bools, int]:
    size = -(-n // 8)
    raw = np.frombuffer(value, np.uint8, size, at)
    return np.unpackbits(raw, count=n, bitorder="little").view(bool), at + _padded(size)


# --- an order of values as int64: of most numbers exactly, of texts by their first 8 bytes ---


def key_of(kind: str, value: Any) -> int:
    """Return the sort key of a value: of a number as in `Column.numbers`, or of a text."""
    if not is_number(kind):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big") + LEAST
    if not is_exact(kind):
        return int(value) // _step(kind)
    return int(keys_of(kind, np.array([value]))[0]) if kind == "float64" else int(value)


def _step(kind: str) -> int:
    return int(10 ** ((decimal_of(kind) or (NARROW, 0))[0] - NARROW))


def keys_of(kind: str, numbers: npt.NDArray[Any]) -> Int64:
    """Return the sort keys of many numbers, int64[n]; as in Spark, nan is greatest, and 0 equals
    -0. Of decimals of more than 18 digits these are the first 18."""
    if numbers.dtype == object:
        return (numbers // _step(kind)).astype(np.int64)
    if kind != "float64":
        return numbers.astype(np.int64)
    bits = (numbers + 0.0).view(np.int64)
    keys = np.where(bits < 0, bits ^ MOST, bits)
    return np.where(np.isnan(numbers), MOST, keys)
