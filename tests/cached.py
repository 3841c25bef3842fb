"""Which pages of files are in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from winkformats.disk.pagecache import PAGE


def resident(path: Path, length: int | None = None) -> npt.NDArray[np.bool_]:
    """Which pages of a file, or of its first `length` bytes, are in the page cache: bool[pages]."""
    length = path.stat().st_size if length is None else length
    with path.open("rb") as file, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as view:
        base = np.frombuffer(view, np.uint8)
        vector = np.zeros(-(-length // PAGE), np.uint8)
        mincore = ctypes.CDLL(None).mincore
        pointers = (ctypes.c_void_p(base.ctypes.data), ctypes.c_size_t(length))
        assert mincore(*pointers, ctypes.c_void_p(vector.ctypes.data)) == 0
        del base
    return (vector & 1) == 1


def pages(*paths: Path) -> int:
    """How many pages of files are in the page cache."""
    return sum(int(resident(path).sum()) for path in paths)


def evict(*paths: Path) -> None:
    """Have the page cache drop files; skips where the kernel keeps them (tmpfs)."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if pages(*paths):
        pytest.skip("this filesystem does not drop pages")
