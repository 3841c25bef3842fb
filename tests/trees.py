"""Directory trees for the tests of pack and unpack, and what they look at afterwards."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import winkfs
from winkfs.archive.items import STREAM_BYTES
from winkfs.archive.pack import pack

LINK, DIR = winkfs.FileType.LINK, winkfs.FileType.DIR
VARIANTS = [{}, {"ao": True}, {"classic": True}, {"ao": True, "classic": True}]
NS = 1_700_000_000_123_456_789


def make_tree(root: Path) -> Path:
    """A small tree with every kind of thing that a container holds."""
    (root / "docs/old").mkdir(parents=True)
    (root / "empty dir").mkdir()
    (root / "docs/a.html").write_bytes(b"<p>a</p>")
    (root / "docs/old/b.html").write_bytes(b"b" * 5000)
    (root / "empty").write_bytes(b"")
    (root / "large").write_bytes(random.Random(1).randbytes(999) * (STREAM_BYTES // 500))
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0o600)
    (root / "docs/old").chmod(0o700)
    (root / "link").symlink_to("docs/a.html")
    (root / "dangling").symlink_to("no/where")
    (root / "Grüße\n").write_bytes(b"newline")
    Path(os.fsdecode(bytes(root) + b"/caf\xe9")).write_bytes(b"latin")
    paths = sorted(root.rglob("*"), key=lambda p: -len(p.parts))
    for i, path in enumerate(paths):
        times = (NS - i * 10**9, NS - i * 10**9)
        os.utime(path, ns=times, follow_symlinks=False)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


def snapshot(root: Path, *, second: bool = False) -> dict[str, tuple[object, ...]]:
    """Everything that has to come back, by name."""
    found = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        mtime = status.st_mtime_ns // 10**9 if second else status.st_mtime_ns
        mode = stat.S_IFMT(status.st_mode) if path.is_symlink() else status.st_mode
        found[str(path.relative_to(root))] = (content, mode, mtime, status.st_uid, status.st_gid)
    return found


def files_beside(base: Path) -> list[str]:
    return sorted(p.name for p in base.parent.iterdir() if p.name.startswith(base.name))


@pytest.fixture
def place(tree: Path, tmp_path: Path) -> Iterator[Path]:
    """A directory with a tree, of a user whom the modes of files bind: not root."""
    pack(tree, tmp_path / "warm")  # imports what it needs while it may
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        make_tree(Path(name, "tree"))
        if user == 0:
            for path in (Path(name), *Path(name).rglob("*")):
                os.chown(path, 65534, -1, follow_symlinks=False)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A filesystem of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield disk  # type: ignore[misc]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
