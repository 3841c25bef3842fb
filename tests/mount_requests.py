"""What the kernel asks of the server of a mount: a read-only mount whose libfuse writes a line a
request, and the counts of it.

    with counted(base, "follow") as mount:
        ...                                  # use mount.directory
        before = mount.requests()
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mounting import need_fuse, serving

_LOOKUP = re.compile(r"^LOOKUP (/.*)$", re.MULTILINE)
_OPCODE = re.compile(r"^unique: \d+, opcode: (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Counted:
    """A mount, and the log of its requests."""

    directory: Path
    log: Path

    def requests(self) -> Counter[str]:
        """How many of each kind came so far: LOOKUP, READ, READDIRPLUS ..."""
        return Counter(_OPCODE.findall(self._text()))

    def looked_up(self, end: str) -> list[str]:
        """Paths with such an end that the server was asked for."""
        return [path for path in _LOOKUP.findall(self._text()) if path.endswith(end)]

    def _text(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def counted(base: Path, place: Path, *options: str) -> Iterator[Counted]:
    """Mount BASE read-only on PLACE/there; the log is beside it."""
    need_fuse("mfusepy")
    directory, log = place / "there", place / "requests.log"
    directory.mkdir()
    words = [sys.executable, __file__, str(base), str(directory), str(log), *options]
    with serving(words, directory, patience=240):
        yield Counted(directory, log)


def _serve(base: str, directory: str, log: str, *options: str) -> None:
    import os

    import winkfs
    from winkfs.mounting.container import ContainerSource
    from winkmount.options import parse
    from winkmount.service import Request, serve

    parsed = parse(["ro", *options])
    parsed.fuse["debug"] = True
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    serve(
        Request(
            lambda: ContainerSource(winkfs.open(base)), "winkfs", base, directory, parsed, "mfusepy"
        )
    )


if __name__ == "__main__":
    _serve(*sys.argv[1:])
