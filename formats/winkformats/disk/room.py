"""Memory limit of this process, and settings that save memory. Imports little, because some of
these must be made before numpy is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

AMPLE: Final = 4 << 30  # bytes of memory from which nothing is saved
M_ARENA_MAX: Final = -8  # malloc.h


def memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that this process may use, with its part of the page cache: those
    of the machine, or of a cgroup that it is in. Cost: reads some small files."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = groups / "memory" if controllers else groups
            for group in (place := root / name.lstrip("/"), *place.parents):
                for limit in (group / "memory.max", group / "memory.limit_in_bytes"):
                    with contextlib.suppress(OSError, ValueError):  # no limit, or "max"
                        most = min(most, int(limit.read_text()))
                if group == root:
                    break
    return most


def has_ample_memory() -> bool:
    """Return whether buffers of tens of MiB are affordable. Cost: see `memory`."""
    return memory() >= AMPLE


def save_memory() -> None:
    """Reduce the memory use of numpy and the C library, if memory is not ample.

    Call it before numpy is imported. numpy asks for huge pages, so that each touched page of a
    large array takes 2 MiB; the C library has a heap for each thread.
    """
    if not has_ample_memory():
        os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
