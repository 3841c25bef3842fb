"""Which file descriptors this process has open, for tests of what is left behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def descriptors() -> frozenset[str]:
    """Open descriptors, after what earlier tests left to the garbage collector was closed.

    Compare with <=, and only where no files of a folder can be named (`opened`): a thread of
    another test may open and close one of its own meanwhile.
    """
    gc.collect()
    return frozenset(os.listdir("/proc/self/fd"))


def opened(folder: str | os.PathLike[str]) -> list[str]:
    """Return the paths at or below a folder that this process has open, one per descriptor,
    after what was left to the garbage collector was closed."""
    gc.collect()
    return _opened(folder)


def _opened(folder: str | os.PathLike[str]) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return sorted(path for path in found if Path(path).is_relative_to(folder))


def held(folder: str | os.PathLike[str]) -> list[str]:
    """Return the paths at or below a folder that this process has open or mapped, now."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[-1] for line in lines]
    return _opened(folder) + sorted(path for path in paths if Path(path).is_relative_to(folder))
