"""How long the server of a mount asks for the next request before it sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import base as base
from mounting import mounted, server_of

from winkmount.kernel.device import (
    DRIVER,
    FIRST_REST,
    IDLE_AFTER,
    LATENCY,
    MOST_AWAKE,
    MOST_REST,
    WAITS_COUNTED,
    Awake,
    Spinning,
)


@pytest.fixture
def latency(tmp_path: Path) -> str:
    path = tmp_path / "latency"
    path.touch()
    return os.fspath(path)


@pytest.fixture
def awake(tmp_path: Path, latency: str) -> Iterator[Awake]:
    driver = tmp_path / "driver"
    driver.write_text("haltpoll\n")
    awake = Awake(latency, driver)
    yield awake
    awake.end()


def holds(pid: int | str, path: str) -> bool:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.path.realpath(link) == os.path.realpath(path) for link in links)


def waits(spinning: Spinning, requests: int, *, in_vain: bool) -> int:
    """After how many of these requests it asks for the next one."""
    found = 0
    for _ in range(requests):
        if spinning.until():
            found += 1
            if in_vain:
                spinning.in_vain()
    return found


def test_it_goes_on_asking_as_long_as_requests_come(awake: Awake) -> None:
    spinning = Spinning(1e-4, awake)
    assert waits(spinning, 10 * WAITS_COUNTED, in_vain=False) == 10 * WAITS_COUNTED
    before, until = time.perf_counter(), spinning.until()
    assert before + 1e-4 <= until <= time.perf_counter() + 1e-4


def test_where_none_comes_it_rests_for_longer_each_time(awake: Awake) -> None:
    spinning = Spinning(1e-4, awake)
    assert waits(spinning, WAITS_COUNTED, in_vain=True) == WAITS_COUNTED
    rest = FIRST_REST
    while rest < MOST_REST:
        assert waits(spinning, rest, in_vain=True) == 0
        assert waits(spinning, WAITS_COUNTED, in_vain=True) == WAITS_COUNTED
        rest *= 2
    many = 100 * MOST_REST
    assert waits(spinning, many, in_vain=True) < many * 2 * WAITS_COUNTED / MOST_REST


def test_when_they_come_again_it_asks_again(awake: Awake) -> None:
    spinning = Spinning(1e-4, awake)
    waits(spinning, 100 * MOST_REST, in_vain=True)
    waits(spinning, MOST_REST + WAITS_COUNTED, in_vain=False)
    assert waits(spinning, 1000, in_vain=False) == 1000


def test_none_at_all(awake: Awake) -> None:
    assert waits(Spinning(0.0, awake), 1000, in_vain=True) == 0


few = pytest.mark.skipif((os.cpu_count() or 1) > MOST_AWAKE, reason="too many processors")


@few
def test_processors_are_kept_awake_while_waits_pay(awake: Awake, latency: str) -> None:
    spinning = Spinning(1e-4, awake)
    waits(spinning, WAITS_COUNTED, in_vain=False)
    assert not holds("self", latency)
    waits(spinning, 1, in_vain=False)
    assert holds("self", latency)
    assert Path(latency).read_bytes() == bytes(4)
    waits(spinning, 2 * WAITS_COUNTED, in_vain=True)
    assert not holds("self", latency)


def test_other_processors_and_users_keep_the_latency(tmp_path: Path, latency: str) -> None:
    driver = tmp_path / "driver"
    for text, path in (("intel_idle\n", latency), ("haltpoll\n", f"{tmp_path}/none")):
        driver.write_text(text)
        awake = Awake(path, driver)
        awake.begin()
        assert not holds("self", latency)
        awake.end()


@few
@pytest.mark.mount
@pytest.mark.in_memory
def test_a_mount_keeps_processors_awake_only_while_it_is_asked(base: str) -> None:
    if not (os.access(LATENCY, os.W_OK) and DRIVER.read_text() == "haltpoll\n"):
        pytest.skip("processors of another kind, or not ours")
    with mounted(base) as directory:
        server, held = server_of(directory), set[bool]()
        for number in range(40 * WAITS_COUNTED):
            (directory / f"new-{number}").touch()
            if number % WAITS_COUNTED == 0:
                held.add(holds(server, LATENCY))
        time.sleep(IDLE_AFTER * 1e-3 + 0.2)
        assert not holds(server, LATENCY)
        assert True in held or os.getloadavg()[0] > 1  # others may want the processors


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
