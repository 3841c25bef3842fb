"""What extents tell: where data and holes are, and a text for people."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from winkfs.container.ondisk.extent import Extent

SHOWN: Final = 64  # extents in a text


def find_data(extents: Sequence[Extent], offset: int, *, hole: bool) -> int:
    """Offset of the first byte from `offset` on that is (not) in a hole; see `Source.seek`."""
    at = 0
    for pointer, _, size in extents:
        at += size
        if at > offset and (pointer == 0) == hole:
            return max(offset, at - size)
    if hole:
        return max(offset, at)
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))


def text_of(extents: Sequence[Extent]) -> str:
    """`bytes@position` each, `bytes+skipped@position` where the first of an entry are not used,
    `bytes@hole` and `bytes@memory`; the first of many, and how many there are."""
    parts = []
    for pointer, skip, size in extents[:SHOWN]:
        place = "hole" if pointer == 0 else "memory" if pointer < 0 else str(pointer)
        parts.append(f"{size}+{skip}@{place}" if skip else f"{size}@{place}")
    if len(extents) > SHOWN:
        parts.append(f"... {len(extents)} in all")
    return " ".join(parts)
