"""Power cuts at any moment of many random lives: see lives.py."""

from __future__ import annotations

import itertools

import pytest
from lives import VARIANTS, live

IMAGES = {"plain": 440, "ao": 440, "classic": 400, "plain md5": 200, "mount": 400, "data set": 160}
SOAK = 50  # times as many


@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_shows_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """No more than a sync is missing or too many; every image opens and verifies."""
    wanted, images = IMAGES[kind] * (SOAK if soak else 1), 0
    for number in itertools.count(seed):
        images += live(kind, number)
        if images >= wanted:
            break
