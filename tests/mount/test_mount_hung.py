"""A server that is killed or hangs leaves nobody waiting: every caller gets an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mounting import base as base  # fixtures
from mounting import (
    command,
    mounted,
    mounted_on,
    not_by_libfuse,
    server_of,
    stored,
    verified,
    wait_for_the_end,
)
from mounting import there as there

pytestmark = [pytest.mark.in_memory, pytest.mark.mount]

# what a process asks of a mount -> one that waits for the answer
CALLS = {
    "stat": "os.stat(there + '/nothing')",
    "list": "os.listdir(there)",
    "read": "open(there + '/f', 'rb').read()",
    "create": "open(there + '/more', 'xb').close()",
    "write": "file.write(b'x')",
    "fsync": "os.fsync(file.fileno())",
    "statfs": "os.statvfs(there)",
}
PROGRAM = """
import os, sys
there = sys.argv[1]
file = open(there + '/written', 'ab', buffering=0)
print("ready", flush=True)
sys.stdin.readline()
try:
    {call}
except OSError as error:
    print(error.errno)
"""
TIMEOUT = ("-o", "timeout=15,sync_every=1000")
KERNEL = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))


@contextmanager
def callers(directory: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each of CALLS; it asks when it is given a line."""
    found = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(call=call), str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for call in CALLS.values()
    ]  # fmt: skip
    try:
        for caller in found:
            assert caller.stdout and caller.stdout.readline() == "ready\n"
        yield found
    finally:
        for caller in found:
            caller.kill()
            caller.communicate()


def stop(server: int, found: list[subprocess.Popen[str]]) -> None:
    """Suspend a server, and let all ask it."""
    signal.pidfd_send_signal(server, signal.SIGSTOP)
    for caller in found:
        assert caller.stdin
        caller.stdin.write("\n")
        caller.stdin.flush()
    time.sleep(0.3)
    assert all(caller.poll() is None for caller in found)


def ended(found: list[subprocess.Popen[str]], seconds: float) -> None:
    """All have got an error within a time."""
    deadline = time.monotonic() + seconds
    for caller in found:
        answer, _ = caller.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        assert answer.strip().isdigit(), (caller.args, answer)


def test_a_killed_server_leaves_no_caller_waiting(base: str, there: Path) -> None:
    with mounted_on(there, base, "-o", "sync_every=1000"), callers(there) as found:
        server = os.pidfd_open(server_of(there))
        stop(server, found)
        signal.pidfd_send_signal(server, signal.SIGKILL)
        ended(found, 10)
        wait_for_the_end(server)
    assert verified(base)


@not_by_libfuse("does not tell the kernel how long it may take")
@pytest.mark.skipif(KERNEL < (6, 14), reason="Linux 6.14 has timeouts of FUSE")
@pytest.mark.slow
def test_a_hung_server_blocks_no_caller_and_loses_nothing(base: str, there: Path) -> None:
    """It goes on when the kernel has ended the mount: then it stores what was written."""
    with mounted_on(there, base, *TIMEOUT):
        (there / "before").write_bytes(b"acknowledged")
        with callers(there) as found:
            server = os.pidfd_open(server_of(there))
            stop(server, found)
            ended(found, 45)
        signal.pidfd_send_signal(server, signal.SIGCONT)
        wait_for_the_end(server)
    assert stored(base, "before") == b"acknowledged"
    assert stored(base, "written") == b""
    assert verified(base)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [(), ("--ro",)])
def test_a_caller_that_waits_for_a_hung_server_is_freed_by_force(
    base: str, options: tuple[str, ...]
) -> None:
    with mounted(base, *options) as directory:
        server = os.pidfd_open(server_of(directory))
        code = "import os, sys; print('', flush=True); os.stat(sys.argv[1] + '/nothing')"
        caller = subprocess.Popen(
            [sys.executable, "-c", code, str(directory)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        signal.pidfd_send_signal(server, signal.SIGSTOP)
        assert caller.stdout and caller.stdout.readline() == "\n"
        time.sleep(0.3)
        assert caller.poll() is None
        assert command("umount", "--force", directory) == (0, "")
        _, answer = caller.communicate(timeout=10)
        assert "OSError" in answer or "ConnectionAborted" in answer
        signal.pidfd_send_signal(server, signal.SIGCONT)
        wait_for_the_end(server)
        assert command("mount", base, directory) == (0, "")
