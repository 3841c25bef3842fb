"""Power cuts at any moment of many random lives: see lives.py."""

from __future__ import annotations

import pytest
from lives import VARIANTS, live

LIVES = (16, 800)  # of each kind: in the suite, with --soak


@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_shows_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """No more than a sync is missing or too many; every image opens and verifies."""
    images = sum(live(kind, number) for number in range(seed, seed + LIVES[soak]))
    assert images > 20 * LIVES[soak]
