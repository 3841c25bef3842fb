"""A mount whose disk is slow to sync, or refuses to: who waits, and for what."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from container_checks import put_many
from mounting import (
    TESTS,
    all_refused,
    command,
    not_by_libfuse,
    refused,
    server_of,
    serving,
    stored,
    sync,
    verified,
)
from mounting import base as base  # a fixture
from mounting import there as there  # a fixture
from threaded import in_threads

import winkfs

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]

SLOW = 1.5  # seconds of a sync; two come for each fsync


@pytest.fixture
def control(tmp_path: Path) -> Path:
    control = tmp_path / "control"
    control.write_text("")
    return control


@pytest.fixture
def mount(base: str, there: Path, control: Path) -> Iterator[Path]:
    with serving(server(control, base, there), there, patience=120):
        yield there
        control.write_text("")


def server(control: Path, base: str, there: Path, every: str = "3600") -> list[str]:
    program = [sys.executable, str(TESTS / "faulty_disk.py"), str(control)]
    return [*program, "mount", "-f", "--sync-every", every, base, str(there)]


def within(seconds: float, call: Callable[[], object]) -> object:
    begun = time.monotonic()
    found = call()
    taken = time.monotonic() - begun
    assert taken < seconds, f"{taken:.1f} s"
    return found


def requests_of_all_kinds(there: Path) -> None:
    """None of them may take long."""
    limit = SLOW / 2
    for number in range(3):
        new = there / f"new{number}"
        within(limit, lambda: new.write_bytes(b"new"))  # noqa: B023 # called at once
        assert within(limit, new.read_bytes) == b"new"
        within(limit, lambda: new.chmod(0o600))  # noqa: B023
        within(limit, lambda: new.rename(there / f"d/moved{number}"))  # noqa: B023
        within(limit, lambda: (there / "d").stat())
        assert "g" in within(limit, lambda: os.listdir(there / "d"))  # type: ignore[operator]
        assert within(limit, (there / "d/g").read_bytes) == b"y"


@not_by_libfuse("lets all wait for an fsync")
def test_others_are_served_while_an_fsync_waits(base: str, mount: Path, control: Path) -> None:
    (mount / "file").write_bytes(b"before")
    control.write_text(f"slow {SLOW}")
    waiter = threading.Thread(target=sync, args=(mount / "file",))
    waiter.start()
    time.sleep(0.3)
    requests_of_all_kinds(mount)
    assert waiter.is_alive()
    waiter.join()
    control.write_text("")
    assert stored(base, "file") == b"before"
    sync(mount)
    assert stored(base, "d/moved2") == b"new"


WAITER = """
import ctypes, os, signal, sys
file = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGALRM, lambda *_: None)  # without SA_RESTART
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
print("begins", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
os._exit(ctypes.get_errno() if libc.fsync(file) else 0)  # with the handler until the end
"""


@contextmanager
def begun(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line before its work on a file."""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


@contextmanager
def waiting(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for an fsync, and to which signals come that it has a handler for."""
    with begun(WAITER, path) as process:
        time.sleep(0.3)
        yield process


@pytest.mark.few(1)
@not_by_libfuse("keeps who waits for an fsync until it is done")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_killed_during_an_fsync_need_not_wait(
    base: str, mount: Path, control: Path, number: int
) -> None:
    for name in ("file", "other"):  # of one file, the kernel lets no second fsync begin
        (mount / name).write_bytes(b"x")
    control.write_text(f"slow {SLOW}")
    with waiting(mount / "file") as first, waiting(mount / "other") as second:
        for process in (second, first):  # the second is in the queue
            process.send_signal(number)
            within(SLOW / 3, process.wait)
            assert process.returncode == -number
    requests_of_all_kinds(mount)
    control.write_text("")
    sync(mount)
    assert stored(base, "file") == b"x"


def test_a_signal_with_a_handler_ends_no_fsync(base: str, mount: Path, control: Path) -> None:
    (mount / "file").write_bytes(b"x")
    control.write_text("slow 0.4")
    with waiting(mount / "file") as process:
        assert process.wait(timeout=30) == 0
    assert stored(base, "file") == b"x"


def test_several_fsyncs_at_once_end_all(base: str, mount: Path, control: Path) -> None:
    control.write_text("slow 0.1")

    def write(name: str) -> None:
        for turn in range(3):
            fd = os.open(mount / name, os.O_RDWR | os.O_CREAT)
            os.pwrite(fd, b"%d" % turn, turn)
            os.fsync(fd)
            os.close(fd)
            assert stored(base, name) == b"012"[: turn + 1], name

    in_threads(*[partial(write, f"t{n}") for n in range(5)])


def test_others_are_served_while_the_background_sync_waits(
    base: str, there: Path, control: Path
) -> None:
    with serving(server(control, base, there, "0.2"), there, patience=120):
        control.write_text(f"slow {SLOW}")
        for _ in range(3):
            (there / "file").write_bytes(b"x")
            time.sleep(0.3)
            requests_of_all_kinds(there)
            for number in range(3):
                (there / f"d/moved{number}").unlink()
        control.write_text("")
    assert verified(base)


def test_random_work_with_slow_syncs_is_all_there(
    base: str, mount: Path, control: Path, amount: Callable[[str], int]
) -> None:
    """Threads write and fsync files of their own, while others make and remove names."""
    control.write_text("slow 0.02")
    kept: dict[str, bytes] = {}
    stop = time.monotonic() + amount("seconds")

    def write(name: str) -> None:
        dice, content = random.Random(name), bytearray()
        with (mount / name).open("r+b" if (mount / name).exists() else "w+b", buffering=0) as file:
            while time.monotonic() < stop:
                at = dice.randrange(len(content) + 1)
                data = dice.randbytes(dice.choice([1, 300, 9000]))
                os.pwrite(file.fileno(), data, at)
                content[at : at + len(data)] = data
                if dice.random() < 0.3:
                    os.fsync(file.fileno())
                    kept[name] = bytes(content)
        kept[name] = bytes(content)

    def churn(name: str) -> None:
        number = 0
        while time.monotonic() < stop:
            number += 1
            path = mount / f"{name}{number % 7}"
            path.write_bytes(b"%d" % number * 50)
            path.rename(mount / f"{name}-{number % 5}")
            if number % 3 == 0:
                (mount / f"{name}-{number % 5}").unlink()

    in_threads(
        *[partial(write, f"w{n}") for n in range(3)], *[partial(churn, f"c{n}") for n in range(2)]
    )
    for name, data in kept.items():
        assert (mount / name).read_bytes() == data
    sync(mount)
    for name, data in kept.items():
        assert stored(base, name) == data


# --- a sync that fails ---


def test_umount_reports_a_server_that_failed_to_close(
    base: str, there: Path, control: Path
) -> None:
    with serving(server(control, base, there), there, patience=120) as process:
        (there / "file").write_bytes(b"kept")
        control.write_text("fail at the end")
        status, answer = command("umount", there)
        assert status == 1 and "its server ended with an error" in answer
        process.communicate(timeout=30)
        assert process.returncode != 0
        process.returncode = 0
    assert stored(base, "file") == b"kept"


def test_nothing_is_acknowledged_after_a_failed_fsync(
    base: str, there: Path, control: Path
) -> None:
    with serving(server(control, base, there), there, patience=120) as process:
        file = os.open(there / "file", os.O_RDWR | os.O_CREAT)
        os.write(file, b"kept")
        os.fsync(file)
        os.write(file, b" and lost")
        (there / "lost").write_bytes(b"x")
        control.write_text("fail")
        with refused(errno.EIO):
            os.fsync(file)
        for _ in range(2):
            all_refused(errno.EIO, lambda: os.fsync(file), lambda: sync(there))
            with refused(errno.EROFS, errno.EIO):
                os.pwrite(file, b"more", 0)
            with refused(errno.EROFS, errno.EIO):
                (there / "new").touch()
        assert (there / "d/g").read_bytes() == b"y"
        assert "file" in os.listdir(there)
        os.close(file)
        status, answer = command("umount", there)
        assert status == 1 and "not unmounted" in answer
        status, answer = command("umount", "--lazy", there)
        assert status == 1 and "not all is on the disk" in answer
        process.communicate(timeout=30)
        assert process.returncode != 0
        process.returncode = 0
    assert stored(base, "file") == b"kept"
    with winkfs.open(base, "a") as container:
        assert "lost" not in container
    assert verified(base)


# --- reads that wait for the disk ---

READER = """
import os, sys
print("begun", flush=True)
print(len(open(sys.argv[1], "rb", buffering=0).read()))
"""


@pytest.mark.few(1)
@not_by_libfuse("keeps who waits for a read until it is done")
@pytest.mark.parametrize(
    "options",
    [["--ro"], [], ["-o", "spin=0"]],
    ids=["read-only", "writable", "without-a-spin"],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_killed_during_a_read_need_not_wait(
    base: str, there: Path, control: Path, options: list[str], number: int
) -> None:
    """Also who waits behind it; and who is not killed gets what was asked for."""
    put_many(base, ((f"many/{i}", b"%d" % i * 999) for i in range(9)))
    with serving([*server(control, base, there), *options], there, patience=120):
        assert len(os.listdir(there / "many")) == 9
        control.write_text("read 2.5")
        with (
            begun(READER, there / "many/1") as first,
            begun(READER, there / "many/2") as second,
            begun(READER, there / "many/3") as third,
        ):
            time.sleep(0.8)
            for process in (second, first):
                process.send_signal(number)
                within(0.8, process.wait)
                assert process.returncode == -number
            assert third.poll() is None
            control.write_text("")
            assert third.stdout is not None
            assert within(6, third.stdout.read) == "999\n"
        assert [(there / f"many/{i}").read_bytes() for i in range(9)] == [
            b"%d" % i * 999 for i in range(9)
        ]


def test_a_signal_with_a_handler_ends_no_read(base: str, there: Path, control: Path) -> None:
    with serving(server(control, base, there), there, patience=120):
        os.stat(there / "d/g")
        control.write_text("read 1")
        program = f"import signal; signal.signal(10, lambda *_: None)\n{READER}"
        with begun(program, there / "d/g") as process:
            for _ in range(3):
                time.sleep(0.3)
                process.send_signal(10)
            assert process.stdout is not None
            assert within(10, process.stdout.read) == "1\n"
        control.write_text("")


def test_an_idle_mount_is_no_work(base: str, mount: Path) -> None:
    """Neither for the thread that answers, nor for the one that stands by."""
    os.listdir(mount)
    pid = server_of(mount)
    time.sleep(1)

    def switches() -> int:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    before = switches()
    time.sleep(1.5)
    assert switches() - before <= 2
