"""The Python processes of Spark: planners, and workers of tasks."""

from __future__ import annotations

import gc
from typing import Final

FROZEN_CALLS: Final = 3  # first calls of a process that freeze, since later ones import, too
_frozen = 0


def freeze() -> None:
    """Exclude existing objects from garbage collection, in the first calls in a process.

    Spark's worker collects after each task or plan, which would visit all objects of the modules.
    """
    global _frozen
    if _frozen < FROZEN_CALLS:
        _frozen += 1
        gc.freeze()
