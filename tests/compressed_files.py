"""Containers with compressed content, for tests: documents, and how they may be put."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import winkfs
from winkfs import Container, FileType, Row
from winkfs.container.ondisk.inode import FRAME, Extent, Inode

WORDS = b"the quick brown fox jumps over lazy dogs and <p class='text'> some </p> markup".split()
MTIME = 1_700_000_000


def document(number: int, size: int = 3000) -> bytes:
    """Text that others resemble."""
    dice = random.Random(number)
    words = b" ".join(dice.choices(WORDS, k=size // 5 + 1))
    return (b"<html><head><title>%d</title></head>" % number + words)[:size]


def documents(count: int = 60) -> dict[str, bytes]:
    """Small ones, large ones, empty ones, and what no codec makes smaller."""
    files = {f"d/{i:03}.html": document(i, 300 + 97 * i) for i in range(count)}
    files["empty"], files["short"] = b"", b"abc"
    files["large"] = document(1, 700_000)
    files["random"], files["random large"] = _noise(5_000), _noise(600_000)
    files["zeros"] = bytes(300_000)
    return files


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def put_batch(c: Container, files: dict[str, bytes]) -> None:
    import pyarrow as pa

    columns = {"path": list(files), "content": pa.array(list(files.values()), pa.binary())}
    c.put_batch(pa.RecordBatch.from_pydict(columns | {"mtime": [float(MTIME)] * len(files)}))


def append(c: Container, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        c.put(name, b"", mtime=MTIME)
        for at in range(0, len(data), 100_000):
            c.append(name, data[at : at + 100_000])


def each(put: Callable[[Container, str, bytes], object]) -> Callable[..., None]:
    def put_all(c: Container, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            put(c, name, data)

    return put_all


PUTS: dict[str, Callable[[Container, dict[str, bytes]], Any]] = {
    "put": each(lambda c, name, data: c.put(name, data, mtime=MTIME)),
    "put with attributes": each(lambda c, name, data: c.put(name, data, mtime=MTIME, mode=0o640)),
    "put_many": lambda c, files: c.put_many((n, d, MTIME) for n, d in files.items()),
    "put_rows": lambda c, files: c.put_rows(
        Row(n, d, MTIME * 10**9, FileType.EXEC) for n, d in files.items()
    ),
    "put_rows with attributes": lambda c, files: c.put_rows(
        Row(n, d, MTIME * 10**9, mode=0o600, uid=7, gid=8) for n, d in files.items()
    ),
    "put_batch": put_batch,
    "put_file": each(
        lambda c, name, data: c.put_file(name, io.BytesIO(data), mtime_ns=MTIME * 10**9)
    ),
    "append": append,
}


def make(base: Path, files: dict[str, bytes], way: str = "put_many", **options: Any) -> None:
    with winkfs.create(base, **{"compress": "zstd", **options}) as c:
        PUTS[way](c, files)


def forge(base: Path, frame: bytes, size: int, skip: int = FRAME) -> None:
    """A container with documents "a" and "f", whose size is given as that of a frame."""
    make(base, {"a": document(1)})
    with winkfs.open(base, "a") as c:
        store = c.store
        fileid = store.new_fileid()
        pos = store.kv.append(b"%x/D0" % fileid, frame)
        inode = Inode(fileid, size, FileType.FILE, 1, [Extent(pos, skip, size)])
        value = inode.encode(store.settings.form, store.settings.isz)
        at = store.kv.append(b"f/I0", value)
        store.itotsz += len(value)
        store.dtotsz += size
        store.index.assign(b"f/I0", at, new=True)


def frames_of(c: Container, name: str) -> list[int]:
    """Positions of the frames of a file."""
    return [extent.pointer for extent in c.extents(name) if extent.skip >= 1 << 62]
