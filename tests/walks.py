"""Walks: which functions of the product one call of a user passes, and in how many files.

    python tests/walks.py [-v] [ROOT]

prints them for the tree of ROOT, this one by default; -v: each call. A walk counts calls of Python
functions, generators and lambdas too, with `sys.setprofile`.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

PRODUCT = ("winkfs", "formats", "mount", "pyspark_winkfs")
ROOT = Path(__file__).resolve().parent.parent


class Call(NamedTuple):
    file: str
    name: str


class Walk:
    """The calls of the product between `with` and the end of its block."""

    def __init__(self, root: Path = ROOT) -> None:
        self._own = tuple(f"{root / part}{os.sep}" for part in PRODUCT)
        self.steps: list[Call] = []

    def __enter__(self) -> Walk:
        gc.disable()  # what others have dropped is no step of ours
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._own):
            self.steps.append(Call(code.co_filename, code.co_qualname))

    @property
    def calls(self) -> int:
        return len(self.steps)

    @property
    def files(self) -> int:
        return len({step.file for step in self.steps})


def mount_create(folder: Path, root: Path = ROOT, *, first: bool = False) -> Walk:
    """`open(O_CREAT | O_EXCL)` of a new name in a mounted container with 50 files: the requests of
    the kernel, a lookup that finds nothing, create, and a getattr of the new file.

    first   of the first file after the mount, in a top directory with 1,000 files: names that are
            searched in BASE.cat come into memory
    """
    with _mounted(
        folder, (f"{i}" if first else f"d/{i}" for i in range(1000 if first else 50))
    ) as (asked):
        above = 1 if first else asked.look_up(b"d")
        if not first:
            asked.create(above, b"warm")
        with Walk(root) as walk:
            asked.create(above, b"new")
    return walk


def mount_read(folder: Path, root: Path = ROOT) -> Walk:
    """A read of an open file of a writable mount."""
    with _mounted(folder, (f"d/{i}" for i in range(50))) as asked:
        above = asked.look_up(b"d")
        for name in (b"7", b"8"):
            number = asked.look_up(name, above)
            handle = asked.open(number)
            with Walk(root) as walk:
                assert asked.read(number, handle) == b"x" * 100
    return walk


class _Asked:
    """Requests to a server, with bodies that are made before."""

    def __init__(self, answer: Callable[[int, int, memoryview], tuple[int, bytes]]) -> None:
        self._answer = answer

    def _ask(self, opcode: int, number: int, body: bytes) -> bytes:
        code, data = self._answer(opcode, number, memoryview(body))
        assert code == 0
        return data

    def look_up(self, name: bytes, above: int = 1) -> int:
        return int.from_bytes(self._ask(1, above, name + b"\0")[:8], "little")

    def create(self, above: int, name: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        assert self.look_up(name, above) == 0
        made = self._ask(35, above, struct.pack("=IIII", flags, 0o644, 0, 0) + name + b"\0")
        self._ask(3, int.from_bytes(made[:8], "little"), bytes(16))

    def open(self, number: int) -> bytes:
        return self._ask(14, number, bytes(8))[:8]

    def read(self, number: int, handle: bytes) -> bytes:
        return self._ask(15, number, handle + struct.pack("=QI", 0, 4096) + bytes(20))


@contextmanager
def _mounted(folder: Path, names: Iterable[str]) -> Iterator[_Asked]:
    base = folder / "walked"
    _made(base, ((name, b"x" * 100) for name in names))
    from winkfs.container.container import Container
    from winkfs.mounting.container import ContainerSource
    from winkmount.kernel.server import Server
    from winkmount.served import Served

    served = Served(ContainerSource(Container(str(base), "a", mapped=False)), "winkfs")
    server = Server(served)
    try:
        yield _Asked(server.answer)
    finally:
        server.close()
        served.close()


def put(folder: Path, root: Path = ROOT, **attributes: Any) -> Walk:
    """`put` of one new document."""
    import winkfs

    with winkfs.create(folder / "put") as container:
        container.put("warm", b"1", **attributes)
        container.sync()
        with Walk(root) as walk:
            container.put("new", b"hello", **attributes)
    return walk


def put_mode(folder: Path, root: Path = ROOT) -> Walk:
    """`put` of one new document with `mode=`."""
    return put(folder, root, mode=0o600)


def put_over(folder: Path, root: Path = ROOT) -> Walk:
    """`put` over a document."""
    import winkfs

    with winkfs.create(folder / "put") as container:
        container.put_many([("warm", b"1"), ("old", b"1")])
        container.put("warm", b"hello")
        with Walk(root) as walk:
            container.put("old", b"hello")
    return walk


def open_close(folder: Path, root: Path = ROOT) -> Walk:
    """A container of a document is opened to read, and closed."""
    winkfs = _made(folder / "put", [("first", b"1")])
    winkfs.open(folder / "put").close()
    with Walk(root) as walk:
        winkfs.open(folder / "put").close()
    return walk


def open_put_close(folder: Path, root: Path = ROOT) -> Walk:
    """A container of two documents is opened, gets one more, and is closed."""
    winkfs = _made(folder / "put", [("first", b"1")])
    for name in ("second", "new"):
        with Walk(root) as walk, winkfs.open(folder / "put", "a") as container:
            container.put(name, b"hello")
    return walk


def stat(folder: Path, root: Path = ROOT) -> Walk:
    """`stat` of a document."""
    with _two_extents(folder) as reader, Walk(root) as walk:
        reader.stat("document")
    return walk


def contains(folder: Path, root: Path = ROOT) -> Walk:
    """`in`, of a document and of a name that is missing."""
    with _two_extents(folder) as reader, Walk(root) as walk:
        assert "document" in reader
        assert "missing" not in reader
    return walk


def read_two_extents(folder: Path, root: Path = ROOT) -> Walk:
    """`read` of a document of two extents."""
    with _two_extents(folder) as reader, Walk(root) as walk:
        reader.read("document")
    return walk


def _two_extents(folder: Path) -> Any:
    """A reader of a container with such a document. It knows that its index is right."""
    import winkfs

    with winkfs.create(folder / "two") as container:
        container.put("document", b"1" * 1000)
        container.sync()
        container.append("document", b"2")
    reader = winkfs.open(folder / "two")
    assert "missing" not in reader
    return reader


FIFTY = [(f"d/{i}", b"x" * 1000) for i in range(50)]


def _made(base: Path, rows: Iterable[tuple[str, bytes]]) -> ModuleType:
    """Make a container with these documents; return the winkfs of the tree that is walked
    through."""
    import winkfs

    with winkfs.create(base) as container:
        container.put_many(rows)
    return winkfs


def read_part(folder: Path, root: Path = ROOT) -> Walk:
    """`read(name, offset, size)` of a document."""
    winkfs = _made(folder / "read", FIFTY)
    with winkfs.open(folder / "read") as reader:
        reader.read("d/1", 10, 20)
        with Walk(root) as walk:
            reader.read("d/2", 10, 20)
    return walk


def reindex(folder: Path, root: Path = ROOT) -> Walk:
    """`reindex` of a container with 50 documents."""
    winkfs = _made(folder / "reindexed", FIFTY)
    winkfs.reindex(folder / "reindexed")
    with Walk(root) as walk:
        winkfs.reindex(folder / "reindexed")
    return walk


def queue_push(folder: Path, root: Path = ROOT) -> Walk:
    """A push to a queue whose segment is open."""
    from winkfs.stores.ledgerq import Queue

    with Queue(folder / "jobs", "a", sync="none", make=True) as jobs:
        jobs.push(b"first")
        with Walk(root) as walk:
            jobs.push(b"payload")
    return walk


def main(root: Path, *, verbose: bool) -> None:
    sys.path[:0] = [str(root), str(root / "formats"), str(root / "mount")]
    for what in (
        put, put_mode, put_over, open_close, open_put_close, stat, contains, read_two_extents,
        read_part, mount_create, mount_read, reindex, queue_push,
    ):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            walk = what(Path(folder), root)
        print(f"{what.__name__}: {walk.calls} calls, {walk.files} files")
        if verbose:
            print(
                *(f"    {Path(step.file).relative_to(root)} {step.name}" for step in walk.steps),
                sep="\n",
            )


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    main(Path(given[0]).resolve() if given else ROOT, verbose="-v" in sys.argv)
