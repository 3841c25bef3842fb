"""-o low_latency: the processors stay awake while requests come, and only then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from constants import shrink
from mounting import base as base
from mounting import mounted, request, server_of
from mounting import there as there

from winkmount import guard as awake
from winkmount.binding import MountError
from winkmount.options import Options
from winkmount.service import check

pytestmark = pytest.mark.in_memory


def holds(pid: int, device: str) -> bool:
    links = (os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    return device in links


def soon(pid: int, device: str, held: bool) -> bool:
    deadline = time.monotonic() + 10
    while holds(pid, device) != held and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds(pid, device) == held


@pytest.mark.mount
def test_processors_that_stay_awake_for_ever(base: str) -> None:
    if not os.access(awake.LATENCY_DEVICE, os.W_OK):
        pytest.skip(f"{awake.LATENCY_DEVICE} is missing, or not for this user")
    with mounted(base, "-o", "low_latency") as directory:
        server = server_of(directory)
        for number in range(3):
            (directory / f"new-{number}").touch()
            assert soon(server, awake.LATENCY_DEVICE, held=True)
            assert soon(server, awake.LATENCY_DEVICE, held=False)


@pytest.mark.slow
def test_a_lock_that_asks_for_no_wakefulness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "device"
    shrink(monkeypatch, "device of wakefulness", str(device))
    lock = awake.AwakeLock()
    with lock, lock:  # an operation calls another
        assert soon(os.getpid(), str(device), held=True)
    assert soon(os.getpid(), str(device), held=False)
    assert device.read_bytes() == bytes(4)


@pytest.mark.mount
def test_who_may_not_keep_them_awake_is_told(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "device of wakefulness", str(tmp_path / "none"))
    asked = request(there)
    asked.options.low_latency = True
    with pytest.raises(MountError, match=r"low_latency: .*none cannot be written: leave it out"):
        check(asked)
    asked.options.low_latency = False
    assert check(asked) == str(there)
    assert asked.options == Options()
