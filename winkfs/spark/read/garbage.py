"""The garbage collector in Spark's Python workers."""

from __future__ import annotations

import gc
from typing import Final

TASKS: Final = 3  # modules are imported in the second one too
_frozen = 0


def freeze() -> None:
    """Let the garbage collector pass over what is there by now, in the first tasks of a process.

    Spark's worker collects after each task, which takes 40 ms with pyarrow and pandas imported,
    10 ms where only the first task freezes, and 3 ms after this.
    """
    global _frozen
    if _frozen < TASKS:
        _frozen += 1
        gc.freeze()
