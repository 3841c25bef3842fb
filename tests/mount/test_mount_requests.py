"""How often the kernel asks the server of a mount when files are made: each request is a wait."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from mounting import base as base
from mounting import need_fuse, serving
from mounting import there as there

from winkmount.kernel import protocol as p

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

COUNTING = """
import collections, json, sys
from winkmount.kernel.server import Server
asked, answer = collections.Counter(), Server.answer

def counted(self, opcode, node, body):
    asked[opcode] += 1
    return answer(self, opcode, node, body)

Server.answer = counted
from winkfs.cli import main
code = main(["mount", "-f", "--binding", "kernel", *sys.argv[2:]])
with open(sys.argv[1], "w") as file:
    json.dump(asked, file)
sys.exit(code)
"""
FILES = 20
ONCE = 3  # requests of a kind that come beside: of the top directory and the test itself


def make(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, bytes(4096))
    os.close(descriptor)


def unpack(path: Path) -> None:
    """As `tar` does it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, bytes(4096))
    os.utime(descriptor, ns=(5, 5))
    os.fchown(descriptor, os.getuid(), os.getgid())
    os.fchmod(descriptor, 0o644)
    os.close(descriptor)
    assert path.stat().st_mtime_ns == 5


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (make, {p.LOOKUP: 1, p.CREATE: 1, p.WRITE: 1, p.RELEASE: 1}),
        (unpack, {p.LOOKUP: 1, p.CREATE: 1, p.WRITE: 1, p.RELEASE: 1, p.SETATTR: 3, p.GETXATTR: 1}),
    ],
)
def test_a_new_file_takes_few_requests(
    base: str, there: Path, tmp_path: Path, work: Callable[[Path], None], wanted: dict[int, int]
) -> None:
    need_fuse("kernel")
    log = tmp_path / "asked"
    with serving([sys.executable, "-c", COUNTING, str(log), base, str(there)], there):
        for number in range(FILES):
            work(there / f"new{number}")
    found = Counter({int(opcode): count for opcode, count in json.loads(log.read_text()).items()})
    for opcode, count in found.items():
        assert count <= FILES * wanted.get(opcode, 0) + ONCE, opcode
    assert found[p.CREATE] == found[p.WRITE] == found[p.RELEASE] == FILES
