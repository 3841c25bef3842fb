"""-o follow: a read-only mount that shows what another process syncs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mounting import mounted, soon

import winkfs

pytestmark = pytest.mark.in_memory


@pytest.fixture
def base(tmp_path: Path) -> str:
    name = str(tmp_path / "corpus")
    with winkfs.create(name) as container:
        container.put("old", b"old", mtime=1)
        container.put("d/same", b"content", mtime=1)
        container.put("gone", b"gone", mtime=1)
    return name


@pytest.mark.mount
def test_changes_of_another_process_come_through(base: str) -> None:
    with mounted(base, "--ro", "--follow") as there, winkfs.open(base, "a") as writer:
        assert sorted(os.listdir(there)) == ["d", "gone", "old"]
        assert (there / "old").read_bytes() == b"old"
        assert (there / "d/same").read_bytes() == b"content"
        assert not (there / "d/new").exists()
        writer.put("d/new", b"new")
        writer.append("old", b" and more")
        writer.write("d/same", 0, b"CONTENT")
        writer.delete("gone")
        time.sleep(0.1)
        assert not (there / "d/new").exists()
        writer.sync()
        soon(lambda: (there / "d/new").exists())
        soon(lambda: (there / "old").read_bytes() == b"old and more")
        soon(lambda: (there / "d/same").read_bytes() == b"CONTENT")
        soon(lambda: not (there / "gone").exists())
        assert sorted(os.listdir(there)) == ["d", "old"]
        assert sorted(os.listdir(there / "d")) == ["new", "same"]


@pytest.mark.mount
def test_followed_server_that_is_quiet_writes_nothing(base: str) -> None:
    with mounted(base, "-oro,follow") as there:
        before = os.stat(f"{base}.data")
        time.sleep(1.2)
        assert (there / "old").read_bytes() == b"old"
        after = os.stat(f"{base}.data")
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
