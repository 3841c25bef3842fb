"""How much memory this process may have, and how to have less of it. Imports little: some of it
must be settled before numpy is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

AMPLE: Final = 4 << 30  # bytes of memory
M_ARENA_MAX: Final = -8  # malloc.h


def memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may have, with its part of the page cache: those of the
    machine, or of a cgroup that it is in. Cost: reads some small files."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = groups / "memory" if controllers else groups
            for group in (place := root / name.lstrip("/"), *place.parents):
                for limit in (group / "memory.max", group / "memory.limit_in_bytes"):
                    with contextlib.suppress(OSError, ValueError):  # there is none, or "max"
                        most = min(most, int(limit.read_text()))
                if group == root:
                    break
    return most


def has_ample_memory() -> bool:
    """Whether some ten MiB more in memory take nothing from others. Cost: see `memory`."""
    return memory() >= AMPLE


def save_memory() -> None:
    """Where memory is not ample, have the libraries of this process be sparing with it.

    To be called before numpy is imported. numpy has the kernel give its large arrays two MiB where
    a page is touched, and the C library has a heap for each thread: `pack` has 35 MiB, not 58.
    """
    if not has_ample_memory():
        os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
