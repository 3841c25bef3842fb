"""Extents as columns, against a file of numbered bytes."""

from __future__ import annotations

import random

import pytest

from winkfs.container.ondisk.chain import laid_over, layer, sum_of
from winkfs.container.ondisk.inode import Extent, ExtentArray, cut

Byte = tuple[int, int]  # entry, offset in its value; (0, 0) in a hole


def overlay(base: list[Extent], patches: list[tuple[int, Extent]]) -> ExtentArray:
    """The extents of a file after overwrites."""
    old = ExtentArray.of(base)
    return laid_over(layer(sum_of(old), patches), old)


def spelled(extents: list[Extent]) -> list[Byte]:
    found: list[Byte] = []
    for pointer, skip, size in extents:
        found += [(pointer, skip + i) if pointer else (0, 0) for i in range(size)]
    return found


def some_extents(chance: random.Random, count: int) -> list[Extent]:
    return [
        Extent(pointer, chance.randrange(5) if pointer else 0, chance.randrange(1, 9))
        for pointer in (chance.choice([0, 100 + i, 100 + i]) for i in range(count))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_part_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    extents = some_extents(chance, 12)
    size = sum(e.size for e in extents)
    array = ExtentArray.of(extents)
    assert list(array) == extents
    for _ in range(50):
        start, stop = chance.randrange(size + 3), chance.randrange(size + 3)
        assert list(array.part(start, stop)) == cut(extents, start, stop), (start, stop)
    assert list(array.pointers) == sorted({e.pointer for e in extents if e.pointer})


@pytest.mark.parametrize("seed", range(60))
def test_overlay_is_what_overwrites_leave(seed: int) -> None:
    chance = random.Random(seed)
    extents = some_extents(chance, chance.choice([1, 5, 30]))
    expected = spelled(extents)
    patches = []
    for number in range(chance.choice([1, 3, 40])):
        at = chance.randrange(len(expected) + 1)
        patch = Extent(chance.choice([0, 900 + number]), 0, chance.randrange(1, 12))
        patches.append((at, patch))
        expected[at : at + patch.size] = spelled([patch])
    found = overlay(extents, patches)
    assert spelled(list(found)) == expected
    assert min(e.size for e in found) > 0


def test_overlay_on_an_empty_file() -> None:
    assert list(overlay([], [(0, Extent(7, 0, 5))])) == [Extent(7, 0, 5)]


def test_pieces_of_one_entry_side_by_side_are_one_extent() -> None:
    base = [Extent(7, 0, 100)]
    found = overlay(base, [(10, Extent(8, 0, 10)), (10, Extent(7, 10, 10))])
    assert list(found) == [Extent(7, 0, 100)]


def test_an_empty_array_has_no_parts() -> None:
    empty = ExtentArray.of([])
    assert list(empty.part(0, 10)) == list(empty) == list(empty[:3]) == []
