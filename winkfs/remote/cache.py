"""A cache on the disk of blocks of catalogs, for containers that are far.

A block is in the file FOLDER/xx/HASH-BYTES, named by the XXH3-64 that its bytes must have, and is
compared with that at each use: so it is never wrong or old, serves every generation that has the
block, and processes share it without a lock. The blocks that were used least recently are removed
when all of them have more bytes than the limit.

FOLDER is $WINKFS_CACHE, or `winkfs` in the folder of caches of the user ($XDG_CACHE_HOME or
~/.cache); the limit is $WINKFS_CACHE_SIZE (1G; 0: no cache).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from winkformats.hashing import xxh3_signed
from winkfs.errors import Refusal
from winkfs.units import parse_size

SIZE: Final = 1 << 30  # bytes, at most
SWEPT: Final = 16  # at a sixteenth of the limit that was written the folder is looked at
KEPT: Final = 0.8  # of the limit, that a sweep leaves


class BlockCache:
    """The cache in a folder. Errors of the disk make it do nothing."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._written = 0  # bytes since the last sweep

    @classmethod
    def of_user(cls) -> BlockCache | None:
        """Return the cache of this user; None: there is to be none. Raises Refusal."""
        given = os.environ.get("WINKFS_CACHE_SIZE", "")
        limit = parse_size(given) if given else SIZE
        if limit is None:
            raise Refusal(f"WINKFS_CACHE_SIZE is {given!r}: bytes, or 500M, 2G; 0: no cache")
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(os.environ.get("WINKFS_CACHE") or Path(base) / "winkfs").expanduser()
        return cls(folder, limit) if limit > 0 and folder.is_absolute() else None

    def _path(self, hashed: int, size: int) -> Path:
        name = f"{hashed & (1 << 64) - 1:016x}-{size}"
        return self.folder / name[:2] / name

    def get(self, hashed: int, size: int) -> bytes | None:
        """Return the block with this hash and size, if it is there and whole."""
        path = self._path(hashed, size)
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if len(data) == size and xxh3_signed(data) == hashed:
                os.utime(path)  # it was used
                return data
            path.unlink()
        return None

    def put(self, hashed: int, data: bytes) -> None:
        """Keep a block, if it has this hash."""
        if xxh3_signed(data) != hashed:
            return
        path = self._path(hashed, len(data))
        temporary = path.parent / f".{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(data)
            temporary.rename(path)
        except OSError:  # a full disk, or no permission: it is a cache
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._written += len(data)
        if self._written * SWEPT > self.limit:
            self._written = 0
            self.sweep()

    def files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of last use, bytes and path of the blocks, and of what killed writers left."""
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            with contextlib.suppress(OSError), os.scandir(folder) as listing:
                for entry in listing:
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime, status.st_size, Path(entry.path)

    def sweep(self) -> None:
        """Remove the blocks that were used least recently, down to KEPT of the limit."""
        found = sorted(self.files())
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for _, size, path in found:
            if total <= KEPT * self.limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def clear(self) -> int:
        """Remove all blocks -> their bytes."""
        total = sum(size for _, size, _ in self.files())
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            shutil.rmtree(folder, ignore_errors=True)
        return total
