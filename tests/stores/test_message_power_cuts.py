"""Power cuts at any moment of many random lives of message stores: see message_lives.py."""

from __future__ import annotations

import itertools

import pytest
from message_lives import VARIANTS, live, small

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_has_what_was_acknowledged(
    kind: str, seed: int, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was synced is lost, nothing that was removed and synced is back, every image
    opens, to read and to write, and again."""
    small(monkeypatch)
    images = 0
    for number in itertools.count(seed):
        images += live(kind, number).images
        if images >= (34_000 if soak else 500):
            break
