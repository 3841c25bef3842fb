"""Histories of writers that race on a store which loses answers: see `simulated.histories`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated.histories import play


@pytest.mark.soak
def test_each_commit_is_there_once_or_not_at_all(amount: Callable[[str], int], seed: int) -> None:
    done = unknown = 0
    for number in range(seed, seed + amount("histories")):
        try:
            story = play(number)
        except BaseException:
            print(f"again with --seed {number} --histories 1")
            raise
        done += len(story.done)
        unknown += len(story.unknown)
    assert done > unknown or amount("histories") < 100
