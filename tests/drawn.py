"""How many examples Hypothesis draws, and how many random lives, images and damages a test takes:
an eighth of them in the suite, all with `--all`.

    @settings(max_examples=examples(100))

A test without a number of its own draws ALL of them, or an eighth.
"""

from __future__ import annotations

from hypothesis import settings

ALL = 60


def examples(number: int) -> int:
    """Return how many of a test's examples are drawn under the profile in use."""
    return max(number * settings().max_examples // ALL, 1)
