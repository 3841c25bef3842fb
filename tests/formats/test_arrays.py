"""Which of several rows with one key counts, and the order of texts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from constants import shrink
from hypothesis import given
from hypothesis import strategies as st

from winkformats import arrays
from winkformats.arrays import superseded

# Few keys, and fewer hashes than keys: most hashes have several keys.
KEYS = st.lists(st.sampled_from([b"%d" % i for i in range(9)]), max_size=40)


def plainly(keys: list[bytes]) -> list[int]:
    return [i for i, key in enumerate(keys) if key in keys[i + 1 :]]


@given(KEYS, st.integers(1, 9), st.integers(1, 5))
def test_the_last_row_of_a_key_wins_among_colliding_hashes(
    keys: list[bytes], hashes: int, together: int
) -> None:
    values = np.array([int(key) % hashes for key in keys], np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, "arrays", rows=together)
        found = superseded(values, keys.__getitem__)
    assert found.tolist() == plainly(keys)


@given(KEYS)
def test_the_last_row_of_a_number_counts(keys: list[bytes]) -> None:
    assert superseded(np.array(list(map(int, keys)), np.int64)).tolist() == plainly(keys)


def test_no_key_is_asked_for_where_no_hash_comes_twice() -> None:
    def key_at(row: int) -> bytes:
        raise AssertionError(row)

    assert superseded(np.arange(1000, dtype=np.uint64), key_at).tolist() == []


@given(st.lists(st.text("ab/é\U00010000", min_size=1, max_size=30).map(str.encode)), st.booleans())
def test_texts_are_put_in_byte_order_and_equal_ones_in_theirs(
    texts: list[bytes], ordered: bool
) -> None:
    texts = sorted(texts) if ordered else texts
    wanted = sorted(range(len(texts)), key=texts.__getitem__)
    with pytest.MonkeyPatch.context() as patch:
        for least in (0, 1 << 14):
            shrink(patch, "arrays", ranked=least)
            assert arrays.text_order(arrays.text_column(texts)).tolist() == wanted


@given(st.lists(st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, 2**40])))
def test_numbers_are_put_in_order_and_equal_ones_in_theirs(numbers: list[int]) -> None:
    found = arrays.number_order(np.array(numbers, np.int64))
    assert found.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


def test_many_texts_that_begin_alike_are_put_in_order() -> None:
    chance = random.Random(1)
    ends = [(i % 7, chance.randrange(9000)) for i in range(20_000)]
    texts = [b"the same in all of them/%d/%d" % end for end in ends]
    found = arrays.text_order(arrays.text_column(texts))
    assert found.tolist() == sorted(range(len(texts)), key=texts.__getitem__)
