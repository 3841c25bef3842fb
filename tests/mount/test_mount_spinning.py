"""How long the server of a mount asks for the next request before it sleeps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mounting import base as base
from mounting import mounted, server_of

from winkmount.kernel.device import MOST_REST, REST, TRIES, Spinning


def waits(spinning: Spinning, requests: int, *, in_vain: bool) -> int:
    """After how many of these requests it asks for the next one."""
    found = 0
    for _ in range(requests):
        if spinning.until():
            found += 1
            if in_vain:
                spinning.in_vain()
    return found


def test_it_goes_on_asking_as_long_as_requests_come() -> None:
    spinning = Spinning(1e-4)
    assert waits(spinning, 10 * TRIES, in_vain=False) == 10 * TRIES
    assert time.perf_counter() < spinning.until() < time.perf_counter() + 1e-4


def test_where_none_comes_it_rests_for_longer_each_time() -> None:
    spinning = Spinning(1e-4)
    assert waits(spinning, TRIES, in_vain=True) == TRIES
    rest = REST
    while rest < MOST_REST:
        assert waits(spinning, rest, in_vain=True) == 0
        assert waits(spinning, TRIES, in_vain=True) == TRIES
        rest *= 2
    many = 100 * MOST_REST
    assert waits(spinning, many, in_vain=True) < many * 2 * TRIES / MOST_REST


def test_when_they_come_again_it_asks_again() -> None:
    spinning = Spinning(1e-4)
    waits(spinning, 100 * MOST_REST, in_vain=True)
    waits(spinning, MOST_REST + TRIES, in_vain=False)
    assert waits(spinning, 1000, in_vain=False) == 1000


def test_none_at_all() -> None:
    assert waits(Spinning(0.0), 1000, in_vain=True) == 0


def on_the_processor(pid: int) -> float:
    """Seconds of all its threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) * 1e-9


@pytest.mark.mount
@pytest.mark.in_memory
def test_an_idle_mount_takes_no_time_on_a_processor(base: str) -> None:
    with mounted(base, "-o", "sync_every=3600") as directory:
        server = server_of(directory)
        for number in range(100):
            (directory / f"new-{number}").touch()
        assert on_the_processor(server) > 0
        time.sleep(0.1)
        before = on_the_processor(server)
        time.sleep(1)
        assert on_the_processor(server) - before < 0.005
