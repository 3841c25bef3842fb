"""Which file descriptors this process has open, for tests of what is left behind."""

from __future__ import annotations

import gc
import os


def descriptors() -> frozenset[str]:
    """Open descriptors, after what earlier tests left to the garbage collector was closed.

    Compare with <=: a thread of another test may close one of its own meanwhile.
    """
    gc.collect()
    return frozenset(os.listdir("/proc/self/fd"))
