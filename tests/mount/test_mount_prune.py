"""Files that were written and closed do not stay in the kernel's memory."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import pytest
from mounting import base as base
from mounting import need_fuse, not_by_libfuse, serving

# A server that says how many numbers it remembers, each time the kernel has forgotten some.
SERVER = """
import sys
from winkfs.cli import main
from winkmount.kernel import engine, nodes
engine.KEPT, engine.PRUNED = 64, 16
forget, told = nodes.NodePaths.forget, sys.argv[1]
def counted(paths, number, count):
    forget(paths, number, count)
    with open(told, "w") as file:
        file.write(str(len(paths.known)))
nodes.NodePaths.forget = counted
sys.argv[:] = ["winkfs", *sys.argv[2:]]
main()
"""
FILES = 600


@pytest.mark.mount
@not_by_libfuse("knows no notice for it")
def test_the_kernel_forgets_what_was_written(base: str, tmp_path: Path) -> None:
    need_fuse()
    release = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    if release < (6, 18):
        pytest.skip("the kernel knows no notice for it")
    told, there = tmp_path / "told", tmp_path / "there"
    there.mkdir()
    command = [sys.executable, "-c", SERVER, str(told), "mount", "-f", base, str(there)]
    with serving(command, there):
        held = (there / "held").open("wb")  # one that is in use stays
        (there / "mapped").write_bytes(b"first")
        for number in range(FILES):
            (there / f"f{number}").write_bytes(b"%d" % number)
            if number == FILES // 2:
                time.sleep(0.1)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (told.exists() and 0 < known(told) < 100):
            time.sleep(0.05)
        assert 64 < known(told) < 100
        held.write(b"held")
        held.close()
        assert (there / "held").read_bytes() == b"held"
        assert [(there / f"f{i}").read_bytes() for i in range(FILES)] == [
            b"%d" % i for i in range(FILES)
        ]
        assert len(os.listdir(there)) >= FILES + 2
        for number in range(FILES):
            os.unlink(there / f"f{number}")
        assert not list(there.glob("f[0-9]*"))


def known(told: Path) -> int:
    return int(told.read_text() or 0)
