"""Work on millions of small files, in a process of its own that `bench_memory` watches.

    python memory_work.py {import,put,reindex,verify,scan,lmdb,tar} BASE COUNT

`tar` writes a tar file of the files to standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

TEXT: Final = Path(__file__).read_bytes()
MAP_SIZE: Final = 16 << 30  # bytes LMDB may grow to; costs nothing
BLOCK: Final = 512
TOGETHER: Final = 1000  # members of a tar file in one write


def files(count: int) -> Iterator[tuple[str, bytes]]:
    """Files of 60 to 140 bytes, 100 on average."""
    for i in range(count):
        start = i % 256
        yield f"folder{i // 1000:05d}/file{i:08d}.txt", TEXT[start : start + 60 + i * 7 % 81]


def put(base: str, count: int) -> None:
    import winkfs

    with winkfs.create(base) as container:
        container.put_many(files(count))


def reindex(base: str, count: int) -> None:
    import winkfs

    assert winkfs.reindex(base) == count


def verify(base: str, count: int) -> None:
    import winkfs

    found = winkfs.verify(base)
    assert (found.problems, found.files) == ([], count)


def scan(base: str, count: int) -> None:
    import winkfs

    with winkfs.open(base) as container:
        assert sum(len(entry.read()) > 0 for entry in container.scan()) == count


def lmdb(base: str, count: int) -> None:
    """The rival: all puts in one transaction."""
    import lmdb as module

    environment = module.open(base, map_size=MAP_SIZE)
    with environment.begin(write=True) as transaction:
        for name, data in files(count):
            transaction.put(name.encode(), data)
    environment.close()


def only_import(base: str, count: int) -> None:
    """What Python and the libraries take by themselves."""
    import winkfs

    assert callable(winkfs.reindex)
    time.sleep(0.2)  # long enough to be seen


def tar(base: str, count: int) -> None:
    """A tar file (ustar) on standard output; Python's tarfile takes ten times as long."""
    parts = []
    for number, (name, data) in enumerate(files(count)):
        parts += [tar_header(name, len(data)), data, bytes(-len(data) % BLOCK)]
        if number % TOGETHER == 0:
            _write(sys.stdout.buffer, parts)
            parts = []
    _write(sys.stdout.buffer, [*parts, bytes(2 * BLOCK)])


def _write(file: BinaryIO, parts: list[bytes]) -> None:
    file.write(b"".join(parts))


def tar_header(name: str, size: int) -> bytes:
    """Name, mode, owner, size, mtime, checksum, type and magic of a member."""
    head = name.encode().ljust(100, b"\0")
    head += b"0000644\0" + 2 * b"0000000\0" + b"%011o\0" % size + b"%011o\0" % 1_700_000_000
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(BLOCK - 265)
    total = sum(head) + 8 * ord(" ") + sum(tail)
    return head + b"%06o\0 " % total + tail


WORK: Final = {
    "import": only_import, "put": put, "reindex": reindex, "verify": verify, "scan": scan,
    "lmdb": lmdb, "tar": tar,
}  # fmt: skip

if __name__ == "__main__":
    WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
