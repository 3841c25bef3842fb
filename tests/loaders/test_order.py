"""Orders: permutations by a key, of all rows or in windows of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from winkfs.loaders.order import Blocks, Disk, Full
from winkfs.loaders.permutation import Permutation


@pytest.mark.parametrize("n", [1, 2, 3, 255, 256, 1023, 1024, 1025, 4096, 4097, 70_000])
def test_a_permutation_has_each_number_once_and_goes_back(n: int) -> None:
    permutation, every = Permutation(n, 5), np.arange(n)
    found = permutation.at(every)
    assert np.array_equal(np.sort(found), every)
    assert np.array_equal(permutation.back(found), every)


@pytest.mark.few
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 300, 1100])
@pytest.mark.parametrize(("block", "window"), [(1, 1), (16, 1), (16, 4), (7, 3), (1024, 64)])
def test_blocks_have_each_row_once_from_any_position(n: int, block: int, window: int) -> None:
    order = Blocks(n, 3, block, window)
    every = order.take(0, n)
    assert np.array_equal(np.sort(every), np.arange(n))
    middle = n // 3
    assert np.array_equal(Blocks(n, 3, block, window).take(middle, n), every[middle:])


def test_a_window_is_some_whole_blocks_of_all_parts() -> None:
    n, block, window = 6400, 10, 8
    order = Blocks(n, 1, block, window)
    assert [order.ahead(at) for at in (0, 79, 80)] == [80, 80, 160]
    for start in range(0, n, block * window):
        rows = np.sort(order.take(start, order.ahead(start)))
        blocks = np.unique(rows // block)
        assert len(rows) == block * window
        assert np.array_equal(blocks // (n // block // window), np.arange(window))


def test_the_order_is_the_same_for_ever() -> None:
    """A state of an old version goes on in the same order."""
    assert Full(10**9, 7).take(10**8, 10**8 + 3).tolist() == FULL
    assert Blocks(10**7, 7, 1024, 64).take(12345, 12349).tolist() == BLOCKS
    assert Permutation(5, 1).at(np.arange(5)).tolist() == FEW


FULL = [909134558, 653708046, 866036330]
BLOCKS = [9194753, 5796400, 7217175, 9459939]
FEW = [1, 2, 3, 0, 4]


@pytest.mark.parametrize("shuffle", ["blocks", "full"])
def test_an_order_looks_random(shuffle: str) -> None:
    """A row is at each place of an epoch as often, and says nothing of those that follow. Of a
    block, whose rows stay near each other, one is counted."""
    n, bins, counts, keys = 50_000, 20, np.zeros((20, 20)), 30 if shuffle == "blocks" else 4
    for key in range(keys):
        order = Full(n, key) if shuffle == "full" else Blocks(n, key, 64, 64)
        rows = order.take(0, n)
        for lag in (1, 2, 3, 10, 100) if key < 4 else ():
            centred = rows - rows.mean()
            assert abs((centred[:-lag] * centred[lag:]).mean() / centred.var()) < 0.01
        counted = np.flatnonzero(rows % 64 == 0) if shuffle == "blocks" else np.arange(n)
        np.add.at(counts, (counted * bins // n, rows[counted] * bins // n), 1)
    expected = counts.sum() / bins**2
    chi_square, free = ((counts - expected) ** 2 / expected).sum(), (bins - 1) ** 2
    assert chi_square < free + 5 * np.sqrt(2 * free)


def test_other_keys_are_other_orders() -> None:
    orders = {tuple(Blocks(1000, key, 16, 4).take(0, 20).tolist()) for key in range(50)}
    assert len(orders) == 50
    assert Disk(5).take(1, 4).tolist() == [1, 2, 3]
