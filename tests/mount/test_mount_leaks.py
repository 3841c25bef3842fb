"""Mounts that come and go, and a server that lives long, keep nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import warm
from mounting import empty as empty  # a fixture
from mounting import is_readable, mounted, server_of
from openfiles import descriptors

pytestmark = [pytest.mark.mount, pytest.mark.soak, pytest.mark.in_memory]


@pytest.mark.long
def test_24_mounts_in_a_row_leave_nothing_behind(empty: str, tmp_path: Path) -> None:
    warm.run(["--version"], 20)  # whoever runs the commands keeps pipes
    before = descriptors()
    servers, places = [], []
    for turn in range(24):
        with mounted(empty, *(["--ro"] if turn % 4 == 3 else [])) as there:
            servers.append(os.pidfd_open(server_of(there)))
            places.append(there)
            if turn % 4 != 3:
                (there / f"f{turn}").write_bytes(b"x" * 10_000)
            assert len(os.listdir(there)) == turn + 1 - (turn + 1) // 4
    assert [is_readable(server, 5) for server in servers] == [True] * 24  # all have ended
    for server in servers:
        os.close(server)
    assert [place for place in places if place.exists()] == []
    assert [os.readlink(f"/proc/self/fd/{number}") for number in descriptors() - before] == []
    left = {path.suffix for path in tmp_path.iterdir()}
    assert left <= {".data", ".idx", ".cat", ".lock"}, left
    assert Path(empty + ".lock").read_bytes() == b""


def memory_of(server: int) -> int:
    """Bytes of anonymous memory."""
    status = Path(f"/proc/{server}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def churn(top: Path, files: int) -> None:
    """Make, list, read and remove files, a hundred at a time."""
    for first in range(0, files, 100):
        place = top / f"d{first}"
        place.mkdir()
        for number in range(first, first + 100):
            (place / f"name-{number}").write_bytes(b"%d" % number * 100)
        for entry in os.scandir(place):
            assert os.path.getsize(entry.path) == len(Path(entry.path).read_bytes())
            os.unlink(entry.path)
        place.rmdir()


@pytest.mark.long
def test_memory_stays_while_files_come_and_go(empty: str, amount: Callable[[str], int]) -> None:
    files = amount("churn")
    with mounted(empty, "-o", "sync_every=0.5", patience=1800) as there:
        server = server_of(there)
        descriptors = Path(f"/proc/{server}/fd")
        churn(there, files // 2)
        before = memory_of(server), len(list(descriptors.iterdir()))
        churn(there, files // 2)
        after = memory_of(server), len(list(descriptors.iterdir()))
    assert after[1] <= before[1] + 2, "open files"
    grown = after[0] - before[0]
    assert grown < (2 << 20), f"{grown} bytes more after {files // 2} files"


def test_memory_stays_while_one_file_is_written_again_and_again(
    empty: str, amount: Callable[[str], int]
) -> None:
    rounds = amount("churn") // 2
    with mounted(empty, "-o", "sync_every=0.5", patience=1800) as there:
        server = server_of(there)
        sizes = []
        with (there / "f").open("w+b", buffering=0) as file:
            for number in range(rounds):
                file.seek(number * 7919 % 1000 * 4096)
                file.write(b"%4096d" % number)
                if number in (rounds // 2, rounds - 1):
                    sizes.append(memory_of(server))
    assert sizes[1] - sizes[0] < (4 << 20), f"{sizes} bytes"
