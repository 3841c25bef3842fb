"""A cache on the disk of what is read of containers that are far.

    blocks   of catalogs, in the files FOLDER/xx/HASH-BYTES, named by the XXH3-64 that the bytes
             must have: so one is never wrong or old, and serves every generation that has it
    pieces   of objects, in the files FOLDER/xx/KEY.pieces, one for SEGMENT bytes of an object. KEY
             is a hash of the identity of the object (URL, size, ETag, first bytes) and the number
             of the segment

A file of pieces is a sequence of records, which are appended with one call each:

    offset  size  type  field   meaning
    0       8     Q     start   offset of the bytes in the object
    8       8     Q     length  bytes
    16      8     Q     hash    XXH3-64 of identity, start, length and the bytes
    24      n           bytes

What is read is compared with its hash at each use, so processes share all of it without a lock; of
a writer that was killed a reader ignores what is incomplete, and removes a file that is damaged.
The files that were used least recently are removed when all of them have more bytes than the limit.

FOLDER is $WINKFS_CACHE, or `winkfs` in the folder of caches of the user ($XDG_CACHE_HOME or
~/.cache); the limit is $WINKFS_CACHE_SIZE (1G; 0: no cache).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import shutil
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import xxhash

from winkformats.disk.storage import Buffer
from winkformats.hashing import xxh3_signed
from winkfs.errors import Refusal
from winkfs.units import parse_size

SIZE: Final = 1 << 30  # bytes, at most
SWEPT: Final = 16  # at a sixteenth of the limit that was written the folder is looked at
KEPT: Final = 0.8  # of the limit, that a sweep leaves
SEGMENT: Final = 256 << 10  # bytes of an object whose pieces are in one file
MOST_PIECES: Final = 3 * SEGMENT  # bytes of such a file
PIECES: Final = ".pieces"
HEAD: Final = struct.Struct("<QQQ")


class DiskCache:
    """The cache in a folder. Errors of the disk make it do nothing."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit, self._place = folder, limit, os.fspath(folder)
        # Bytes since the last sweep; drawn, so that short processes sweep as often as long ones.
        self._written = random.randrange(limit // SWEPT + 1)

    @classmethod
    def of_user(cls) -> DiskCache | None:
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
        self._count(len(data))

    def _count(self, size: int) -> None:
        """Count bytes that were written, and sweep if they are many."""
        self._written += size
        if self._written * SWEPT > self.limit:
            self._written = 0
            self.sweep()

    # --- pieces of objects ---

    def _pieces_path(self, identity: bytes, segment: int) -> str:
        key = hashlib.blake2b(identity + segment.to_bytes(8, "little"), digest_size=16).hexdigest()
        return f"{self._place}/{key[:2]}/{key}{PIECES}"  # Path would take longer than all else

    def pieces(self, identity: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of the pieces of an object that have bytes of [start, stop)."""
        for segment in range(start // SEGMENT, -(-stop // SEGMENT)):
            path = self._pieces_path(identity, segment)
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                size = min(os.fstat(file).st_size, MOST_PIECES)
                data = memoryview(os.read(file, size))
                os.utime(file)  # it was used
            except OSError:
                continue
            finally:
                os.close(file)
            if not (yield from _records(data, identity, segment, start, stop)):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def keep(self, identity: bytes, start: int, data: bytes) -> None:
        """Keep a piece of an object, which the caller has just read of it."""
        rest = memoryview(data)
        while rest:
            part = rest[: SEGMENT - start % SEGMENT]
            if not self._append(identity, start, part):
                return
            start, rest = start + len(part), rest[len(part) :]
        self._count(len(data))

    def _append(self, identity: bytes, start: int, part: memoryview) -> bool:
        path, flags = self._pieces_path(identity, start // SEGMENT), os.O_WRONLY | os.O_APPEND
        record: list[Buffer] = [HEAD.pack(start, len(part), _hash(identity, start, part)), part]
        try:
            try:
                file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = HEAD.size + len(part)
                full = os.fstat(file).st_size + size > MOST_PIECES  # they overlap
                whole = not full and os.writev(file, record) == size
            finally:
                os.close(file)
            if not whole:
                os.unlink(path)
        except OSError:  # a full disk, or no permission: it is a cache
            return False
        return True

    # --- its files ---

    def files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of last use, bytes and path of all files, also of what killed writers left."""
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            with contextlib.suppress(OSError), os.scandir(folder) as listing:
                for entry in listing:
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime, status.st_size, Path(entry.path)

    def sweep(self) -> None:
        """Remove the files that were used least recently, down to KEPT of the limit."""
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
        """Remove all files -> their bytes."""
        total = sum(size for _, size, _ in self.files())
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            shutil.rmtree(folder, ignore_errors=True)
        return total


def _hash(identity: bytes, start: int, part: memoryview) -> int:
    found = xxhash.xxh3_64(identity + struct.pack("<QQ", start, len(part)))
    found.update(part)
    return found.intdigest()


def _records(
    data: memoryview, identity: bytes, segment: int, start: int, stop: int
) -> Generator[tuple[int, bytes], None, bool]:
    """Yield the pieces in a file that have bytes of [start, stop) -> whether it is not damaged."""
    low, high, at = segment * SEGMENT, (segment + 1) * SEGMENT, 0
    while at + HEAD.size <= len(data):
        first, length, hashed = HEAD.unpack_from(data, at)
        if not (low <= first < high and 0 < length <= high - first):
            return False
        part = data[at + HEAD.size : at + HEAD.size + length]
        if len(part) == length and first < stop and first + length > start:
            if _hash(identity, first, part) != hashed:
                return False
            yield first, bytes(part)
        at += HEAD.size + length
    return True
