"""Requests to the server of a mount: made by a test, without a kernel; and those of the kernel,
counted.

    asker = Asker(MemorySource())
    asker.mkdir("/d", 0o755)             # see `winkmount.fusepy.Paths`
    asker.entries(asker.opendir("/"))

    with counted(base, place, "--ro") as mount:
        ...                              # use mount.directory
        mount.requests()
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from mounting import need_fuse, serving

from winkmount.fusepy import Paths
from winkmount.kernel import protocol as p
from winkmount.served import Caching, Served
from winkmount.source import Amendment, Source

NAMES = {p.LOOKUP: "LOOKUP", p.READ: "READ", p.GETATTR: "GETATTR", p.READDIRPLUS: "READDIRPLUS"}


class Entry(NamedTuple):
    """An entry of a directory. `number` and `mode`: 0 if the request is for names alone."""

    name: bytes
    offset: int
    id: int
    number: int
    mode: int


def info(flags: int = os.O_RDWR) -> SimpleNamespace:
    """Make what an open file is asked with."""
    return SimpleNamespace(flags=flags, fh=0, direct_io=0, keep_cache=0)


class Asker(Paths):
    """Asks a server by paths and by numbers. Raises OSError."""

    def __init__(self, source: Source, name: str = "memory", caching: Caching = Caching()) -> None:  # noqa: B008 # it is frozen
        self.source, self.served = source, Served(source, name, caching)
        super().__init__(self.served)

    def close(self) -> None:
        self("destroy", "/")
        self.served.close()

    def entries(
        self, handle: int, offset: int = 0, room: int = 1 << 20, *, plus: bool = False, at: int = 1
    ) -> list[Entry]:
        """Return entries of the open directory with a number, from an offset on."""
        data = self.ask(
            p.READDIRPLUS if plus else p.READDIR, at, p.READ_IN.pack(handle, offset, room)
        )
        assert len(data) <= room
        return list(parsed(data, plus=plus))

    def amend(self, number: int, change: Amendment) -> tuple[int, ...]:
        """Set attributes -> those after that: fields of `protocol.ATTR_OUT`."""
        mode, uid, gid, mtime_ns = change
        what = (
            p.SET_MODE * (mode is not None) | p.SET_UID * (uid != -1) | p.SET_GID * (gid != -1)
            | p.SET_MTIME * (mtime_ns is not None) | p.SET_ATIME
        )  # fmt: skip
        time = divmod(mtime_ns or 0, 10**9)
        body = p.SETATTR_IN.pack(what, 0, 0, *time, mode or 0, max(uid, 0), max(gid, 0))
        return p.ATTR_OUT.unpack(self.ask(p.SETATTR, number, body))[3:]


def parsed(data: bytes, *, plus: bool) -> Iterator[Entry]:
    """Take the answer to a READDIR or READDIRPLUS apart."""
    at = 0
    while at < len(data):
        number = mode = 0
        if plus:
            number, *_, mode = p.ENTRY_OUT.unpack_from(data, at)[:16]
            at += p.ENTRY_OUT.size
        id, offset, length, _ = p.DIRENT.unpack_from(data, at)
        at += p.DIRENT.size
        yield Entry(data[at : at + length], offset, id, number, mode)
        at += -(-length // 8) * 8


# --- the kernel's requests, counted ---


@dataclass(frozen=True)
class Counted:
    """A mount, and the log of its requests: the name of a request, or LOOKUP and what it is for."""

    directory: Path
    log: Path

    def requests(self) -> Counter[str]:
        """Return how many of each kind came so far: LOOKUP, READ, READDIRPLUS ..."""
        return Counter(line.partition(" ")[0] for line in self._lines())

    def after_release(self, files: int, patience: float = 10) -> Counter[str]:
        """Return the requests once so many files were released: close() does not wait for that."""
        limit = time.monotonic() + patience
        while (found := self.requests())[str(p.RELEASE)] < files and time.monotonic() < limit:
            time.sleep(0.01)
        return found

    def looked_up(self, end: str) -> list[str]:
        """Return the names with such an end that the server was asked for."""
        names = (line.partition(" ")[2] for line in self._lines() if line.startswith("LOOKUP "))
        return [name for name in names if name.endswith(end)]

    def _lines(self) -> list[str]:
        return self.log.read_text(errors="replace").split("\n")[:-1]


@contextmanager
def counted(base: Path, place: Path, *options: str) -> Iterator[Counted]:
    """Mount BASE on PLACE/there; the log is beside it."""
    need_fuse("kernel")
    directory, log = place / "there", place / "requests.log"
    directory.mkdir()
    log.touch()
    words = [sys.executable, __file__, str(log), str(base), str(directory), *options]
    with serving(words, directory, patience=240):
        yield Counted(directory, log)


def _serve(log: str, *arguments: str) -> int:
    from winkfs.cli import main
    from winkmount.kernel.server import Server

    answer = Server.answer
    out = Path(log).open("a", buffering=1)  # noqa: SIM115 # as long as the process

    def noted(self: Server, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        name = f" {os.fsdecode(bytes(body[:-1]))}" if opcode == p.LOOKUP else ""
        out.write(f"{NAMES.get(opcode, opcode)}{name}\n")
        return answer(self, opcode, node, body)

    Server.answer = noted  # type: ignore[method-assign]
    return main(["mount", "-f", "--binding", "kernel", *arguments])


if __name__ == "__main__":
    sys.exit(_serve(*sys.argv[1:]))
