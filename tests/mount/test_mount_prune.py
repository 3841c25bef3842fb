"""Files that were written and closed do not stay in the kernel's memory."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from container_checks import put_many
from mounting import base as base
from mounting import not_by_libfuse, serving, soon
from mounting import there as there

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

# A server that says how many numbers it remembers, each time the kernel has forgotten some.
SERVER = """
import sys
from winkfs.cli import main
from winkfs.mounting import container
from winkmount.kernel import giving, nodes
container.KEPT_FILES, giving.KNOWN_NUMBERS, giving.PRUNED = 64, 200, 16
forget, log = nodes.NodeTable.forget, sys.argv[1]
def counted(paths, number, count):
    forget(paths, number, count)
    with open(log, "w") as file:
        file.write(str(len(paths.known)))
nodes.NodeTable.forget = counted
sys.argv[:] = ["winkfs", *sys.argv[2:]]
main()
"""
FILES = 400


@not_by_libfuse("knows no notice for it")
def test_the_kernel_forgets_what_was_written(base: str, there: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with forgetting(base, log, there):
        held = (there / "held").open("wb")  # one that is in use stays
        (there / "mapped").write_bytes(b"first")
        for number in range(FILES):
            (there / f"f{number}").write_bytes(b"%d" % number)
            if number == FILES // 2:
                time.sleep(0.1)
        soon(lambda: log.exists() and 0 < known(log) < 100)
        assert 64 < known(log) < 100
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


@not_by_libfuse("knows no notice for it")
def test_the_kernel_forgets_what_was_looked_at(base: str, there: Path, tmp_path: Path) -> None:
    put_many(base, ((f"d{i % 9}/f{i}", b"%d" % i) for i in range(FILES)))
    log = tmp_path / "log"
    with forgetting(base, log, there):
        held = [(there / f"d{i % 9}/f{i}").open("rb") for i in range(20)]  # in use: they stay
        for _ in range(3):
            for number in range(FILES):
                assert (there / f"d{number % 9}/f{number}").stat().st_size == len(str(number))
            time.sleep(0.1)
        soon(lambda: os.stat(there / "d0/f0") and 0 < known(log) < 260)
        assert 100 < known(log) < 260
        for number, file in enumerate(held):
            assert file.read() == b"%d" % number
            file.close()
        for number in range(FILES):
            (there / f"d{number % 9}/f{number}").rename(there / f"{number}")
        assert [(there / f"{i}").read_bytes() for i in range(FILES)] == [
            b"%d" % i for i in range(FILES)
        ]


@contextmanager
def forgetting(base: str, log: Path, there: Path) -> Iterator[None]:
    release = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    if release < (6, 18):
        pytest.skip("the kernel knows no notice for it")
    command = [sys.executable, "-c", SERVER, str(log), "mount", "-f", base, str(there)]
    with serving(command, there):
        yield


def known(log: Path) -> int:
    return int(log.read_text() or 0)
