"""Power cuts at any moment of many random lives of queues: see ledgerq_lives.py."""

from __future__ import annotations

import pytest
from ledgerq_lives import VARIANTS, Life

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_has_what_was_acknowledged(
    kind: str, seed: int, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was pushed and synced is lost, nothing that was consumed and synced is handed
    out again, every image opens, to look and to write, and LedgerQ can read it, too."""
    Life.small(monkeypatch)
    wanted = 34_000 if soak else 200
    assert Life.lives(kind, seed, wanted)["images"] >= wanted
