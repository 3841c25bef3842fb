"""Which path runs: the compiled one, where it was built, or the one in Python, which it follows.

`code` is the compiled module; None: there is none, or the environment has WINKFS_NATIVE=0. Who has
a fast path looks at it in each call, and gives the same answers without it, errors and bytes
included.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

VARIABLE: Final = "WINKFS_NATIVE"
VERSION: Final = 9  # of the C sources: one that was built of older ones is not used


def built() -> Any:
    """The compiled module; None: there is none for this Python, or one of other sources."""
    try:
        found: Any = importlib.import_module("winkformats._native")
    except ImportError:
        return None
    return found if getattr(found, "VERSION", 0) == VERSION else None


code: Any = None if os.environ.get(VARIABLE) == "0" else built()


def name() -> str:
    """What runs, for people."""
    return "pure Python" if code is None else "compiled"
