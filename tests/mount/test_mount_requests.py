"""How often the kernel asks the server of a mount when files are made: each request is a wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mount_requests import NAMES, counted
from mounting import base as base

from winkmount.kernel import protocol as p

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

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


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (make, {p.LOOKUP: 1, p.CREATE: 1, p.WRITE: 1, p.RELEASE: 1}),
        (unpack, {p.LOOKUP: 1, p.CREATE: 1, p.WRITE: 1, p.RELEASE: 1, p.SETATTR: 3, p.GETXATTR: 1}),
    ],
)
def test_a_new_file_takes_few_requests(
    base: str, tmp_path: Path, work: Callable[[Path], None], wanted: dict[int, int]
) -> None:
    with counted(base, tmp_path) as mount:
        for number in range(FILES):
            work(mount.directory / f"new{number}")
        found = mount.after_release(FILES)
    allowed = {NAMES.get(opcode, str(opcode)): count for opcode, count in wanted.items()}
    for request, count in found.items():
        assert count <= FILES * allowed.get(request, 0) + ONCE, request
    assert {found[str(opcode)] for opcode in (p.CREATE, p.WRITE, p.RELEASE)} == {FILES}
