"""BASE: how a container is named, and its files."""

from __future__ import annotations

import os
from typing import Final

DATA: Final = ".data"
DERIVED: Final = (".idx", ".time", ".names", ".cols")
"""The files that are made again from BASE.data; a new kind belongs here, and nowhere else."""
FILES: Final = (DATA, *DERIVED)
LOCK: Final = ".lock"
SUFFIXES: Final = (*FILES, LOCK)
TEMPORARIES: Final = (".tmp", ".new")
"""Behind a suffix: a file that is being written, and takes the place of the other."""
PARTIAL: Final = ".partial"
"""Between BASE and a suffix: of a container that `pack` has not finished."""


def base_of(path: str | os.PathLike[str]) -> str:
    """BASE of a container, given BASE or BASE.data."""
    text = os.fspath(path).removesuffix(DATA)
    if text.endswith("/") or not text:
        raise ValueError(f"BASE is a path with a name at its end, not {text!r}")
    return text
