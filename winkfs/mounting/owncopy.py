"""Copies of a container's own data file that are written into its mount.

Such a copy would never end: the file grows by what is copied. Where a file begins with the
superblock of the container, all that the container grew by since is kept out of it.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final

from winkformats.kv.superblock import MAGIC, PAIR, SECTOR
from winkfs.errors import Refusal
from winkfs.names import to_str

if TYPE_CHECKING:
    from winkfs.container.store import Store

log = logging.getLogger("winkfs.mount")
PROBE: Final = 512  # bytes that are compared at a time


class OwnCopies(dict[int, int]):
    """id of a file that begins as the data file does -> size of the data file at that time."""

    def check(self, store: Store, id: int, offset: int, data: bytes, path: bytes) -> None:
        """Check a write before it is done. Raises Refusal EFBIG for what the data file got since
        the copy began."""
        storage = store.kv.storage
        contid = store.settings.contid
        ours = not contid or PAIR.pack(b"CONTID  ", contid) in data[:SECTOR]
        if offset == 0 and data.startswith(MAGIC) and ours:
            self[id] = storage.size()
        start = max(offset, self.get(id, offset + len(data)))
        rest = memoryview(data)[start - offset :] if start < offset + len(data) else b""
        if _shared(bytes(rest), storage.read(start, len(rest)) if rest else b""):
            what = "the container's own data file, which grows by this copy: it ends at"
            log.warning("%s: %s %d bytes", to_str(path), what, self[id])
            raise Refusal(os.strerror(errno.EFBIG), to_str(path), number=errno.EFBIG)


def _shared(one: bytes, other: bytes) -> bool:
    """Return whether a part of both is equal, except zeros, which are reserved space."""
    return any(
        one[at : at + PROBE] == other[at : at + PROBE] and any(one[at : at + PROBE])
        for at in range(0, len(one), PROBE)
    )
