"""Copies of containers that are being written, at any moment: see copies.py."""

from __future__ import annotations

import pytest
from copies import copies

pytestmark = pytest.mark.slow

# kind -> (lives in the suite, with --soak); of each so many copies
LIVES = {
    "plain": (2, 60),
    "ao": (1, 20),
    "plain md5": (1, 20),
    "columns": (1, 20),
    "zstd": (1, 20),
    "mount": (1, 20),
}
COPIES = 9


@pytest.mark.few(1)
@pytest.mark.soak
@pytest.mark.parametrize("kind", LIVES)
def test_a_copy_of_a_container_in_use_loses_no_file_silently(
    kind: str, seed: int, soak: bool
) -> None:
    """Read in order it shows a sync; in any order that, or damage; a writer and repair agree."""
    for number in range(seed, seed + LIVES[kind][soak]):
        found = copies(kind, number, COPIES)
        assert found["in order: whole"] >= COPIES // 3
