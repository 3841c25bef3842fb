"""Random reads and writes of one file, in every way there is, against a bytearray.

    python fsx.py FILE --seed N --operations N [--largest BYTES] [--state FILE]

The file is as it was left when FILE.model (beside --state) is given again, so that a remount can
lie between two runs. Exit status 1: a byte or a size is wrong; the last operations are printed.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import mmap
import os
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH = 1, 2
SHOWN = 30  # operations before a difference


class Wrong(Exception):
    """The file is not what it should be; the text says where."""


class Exerciser:
    """One file and its model.

    largest     bytes the file may grow to
    content     what it holds at the beginning
    """

    def __init__(self, path: Path, seed: int, largest: int, content: bytes) -> None:
        self.path, self.largest = path, largest
        self.model = bytearray(content)
        self.chance = random.Random(seed)
        self.noise = random.Random(seed).randbytes(2 * largest)
        self.history: deque[str] = deque(maxlen=SHOWN)
        self.mapped: mmap.mmap | None = None
        self.can_punch = self.can_seek = True
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.check_all()
        weights: dict[Callable[[], None], int] = {
            self.write: 30, self.read: 30, self.truncate: 8, self.map_write: 10,
            self.map_read: 10, self.punch: 4, self.allocate: 2, self.append: 3, self.holes: 2,
            self.size: 10, self.reopen: 2, self.sync: 2, self.rename: 1, self.unmap: 3,
        }  # fmt: skip
        self.verbs, self.weights = list(weights), list(weights.values())

    def run(self, operations: int) -> None:
        for verb in self.chance.choices(self.verbs, self.weights, k=operations):
            verb()
        self.reopen()
        self.check_all()

    # what is checked

    def note(self, *what: object) -> None:
        self.history.append(" ".join(map(str, what)))

    def expect(self, data: bytes, offset: int) -> None:
        wanted = self.model[offset : offset + len(data)]
        if data != wanted:
            at = next(i for i, (a, b) in enumerate(zip(data, wanted, strict=True)) if a != b)
            found, stood = data[at : at + 16], bytes(wanted[at : at + 16])
            raise Wrong(f"at {offset + at}: {found!r} instead of {stood!r}")

    def check_all(self) -> None:
        data = self.path.read_bytes()
        if len(data) != len(self.model):
            raise Wrong(f"{len(data)} bytes instead of {len(self.model)}")
        self.expect(data, 0)

    def size(self) -> None:
        found = os.fstat(self.file).st_size
        self.note("size", found)
        if found != len(self.model) or os.stat(self.path).st_size != found:
            raise Wrong(f"{found} bytes instead of {len(self.model)}")

    # what is done

    def span(self, limit: int) -> tuple[int, int]:
        """-> offset, size within `limit` bytes."""
        offset = self.chance.randrange(limit) if limit else 0
        if self.chance.random() < 0.3:
            offset &= ~4095
        longest = self.chance.choice([10, 5000, 40_000, self.largest // 4])
        return offset, self.chance.randrange(1 + min(longest, limit - offset))

    def data(self, size: int) -> bytes:
        at = self.chance.randrange(len(self.noise) - size)
        return self.noise[at : at + size]

    def _put(self, offset: int, data: bytes) -> None:
        if data and offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data

    def write(self) -> None:
        offset, size = self.span(self.largest)
        self.note("write", offset, size)
        data = self.data(size)
        if os.pwrite(self.file, data, offset) != size:
            raise Wrong("a short write")
        self._put(offset, data)

    def append(self) -> None:
        offset, size = len(self.model), min(4000, self.largest - len(self.model))
        self.note("append", offset, size)
        data = self.data(size)
        os.lseek(self.file, 0, os.SEEK_END)
        os.write(self.file, data)
        self._put(offset, data)

    def read(self) -> None:
        offset, size = self.span(self.largest)
        self.note("read", offset, size)
        data = os.pread(self.file, size, offset)
        if len(data) != max(0, min(size, len(self.model) - offset)):
            raise Wrong(f"{len(data)} bytes read of a file of {len(self.model)}")
        self.expect(data, offset)

    def truncate(self) -> None:
        size = self.span(self.largest)[0]
        self.note("truncate", len(self.model), "to", size)
        self.unmap()
        if self.chance.random() < 0.5:
            os.ftruncate(self.file, size)
        else:
            os.truncate(self.path, size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def _map(self) -> mmap.mmap | None:
        """The file as a shared mapping, which stays until its size changes."""
        if self.mapped is not None and len(self.mapped) != len(self.model):
            self.unmap()
        if self.mapped is None and self.model:
            self.mapped = mmap.mmap(self.file, 0)
        return self.mapped

    def unmap(self) -> None:
        if self.mapped is not None:
            self.note("unmap")
            self.mapped.close()
            self.mapped = None

    def map_write(self) -> None:
        mapped = self._map()
        if mapped is not None:
            offset, size = self.span(len(self.model))
            self.note("map write", offset, size)
            data = self.data(size)
            mapped[offset : offset + size] = data
            self._put(offset, data)
            if self.chance.random() < 0.2:
                self.note("msync")
                mapped.flush()

    def map_read(self) -> None:
        mapped = self._map()
        if mapped is not None:
            offset, size = self.span(len(self.model))
            self.note("map read", offset, size)
            self.expect(mapped[offset : offset + size], offset)

    def punch(self) -> None:
        offset, size = self.span(self.largest)
        if self.can_punch and size:
            self.note("punch", offset, size)
            self.can_punch = self._fallocate(PUNCH | KEEP_SIZE, offset, size)
            if self.can_punch:
                end = min(offset + size, len(self.model))
                self.model[offset:end] = bytes(max(0, end - offset))

    def allocate(self) -> None:
        offset, size = self.span(self.largest)
        how = self.chance.choice([0, KEEP_SIZE])
        if self.can_punch and size:
            self.note("allocate", how, offset, size)
            if self._fallocate(how, offset, size) and not how:
                self.model.extend(bytes(max(0, offset + size - len(self.model))))

    def _fallocate(self, how: int, offset: int, size: int) -> bool:
        """-> False where the file system has none."""
        if LIBC.fallocate(self.file, how, ctypes.c_int64(offset), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            if code == errno.EOPNOTSUPP:
                return False
            raise OSError(code, os.strerror(code))
        return True

    def holes(self) -> None:
        """Where SEEK_DATA says there is none, zeros are. The kernel does not tell a FUSE server of
        what was written through a mapping before it asks."""
        if self.mapped is not None:
            self.mapped.flush()
        offset = self.chance.randrange(self.largest)
        self.note("data from", offset)
        try:
            data = os.lseek(self.file, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = len(self.model)
        if data < min(offset, len(self.model)) or any(self.model[offset:data]):
            raise Wrong(f"data from {offset} on said to begin at {data}")

    def reopen(self) -> None:
        self.note("close, open")
        self.unmap()
        os.close(self.file)
        self.file = os.open(self.path, os.O_RDWR)

    def rename(self) -> None:
        self.note("rename")
        new = self.path.with_suffix(".a" if self.path.suffix == ".b" else ".b")
        self.path = self.path.rename(new)

    def sync(self) -> None:
        self.note("fsync")
        os.fsync(self.file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("model", type=Path, help="what the file holds, on another file system")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--largest", type=int, default=256 << 10, help="bytes of the file")
    given = parser.parse_args()
    content = given.model.read_bytes() if given.model.exists() else b""
    exerciser = Exerciser(given.path, given.seed, given.largest, content)
    try:
        exerciser.run(given.operations)
    except (Wrong, OSError) as error:
        sys.exit(f"seed {given.seed}: {error}\n" + "\n".join(exerciser.history))
    exerciser.path.rename(given.path)
    given.model.write_bytes(exerciser.model)


if __name__ == "__main__":
    main()
