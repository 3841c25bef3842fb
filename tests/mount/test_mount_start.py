"""How a server starts, with whatever it finds."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mounting
import pytest
from memory_source import MemorySource
from mounting import (
    WINKFS,
    command,
    leave_dead,
    mounted,
    mounted_on,
    refused,
    request,
    soon,
    stored,
    watched,
)
from private import Private, packages

import winkfs
from winkmount import service
from winkmount.mounts import canonical, mount_at, mounts, unmount
from winkmount.service import serve_in_background

pytestmark = pytest.mark.in_memory

base, there = mounting.base, mounting.there  # fixtures


@pytest.mark.mount
def test_mount_over_a_dead_one_clears_it_away(base: str, there: Path) -> None:
    with mounted_on(there, base):
        leave_dead(there)
        with refused(errno.ENOTCONN):
            (there / "f").read_bytes()
        assert command("mount", base, there) == (0, "")
        assert (there / "f").read_bytes() == b"x"
        assert len([mount for mount in mounts() if mount.point == canonical(there)]) == 1


@pytest.mark.mount
def test_dead_mount_of_another_kind_is_left_alone(base: str, there: Path) -> None:
    assert serve_in_background(request(there, MemorySource)) == ""
    with watched(there):
        leave_dead(there, "memory")
        assert command("mount", base, there) == (1, f"{there}: a dead mount, unmount it first")
        unmount(there, "memory")


@pytest.mark.mount
def test_a_directory_that_is_not_empty_is_reported(base: str, there: Path) -> None:
    (there / "hidden").touch()
    status, text = command("mount", base, there)
    with watched(there):
        assert (status, text) == (0, f"{there} is not empty: what it holds is hidden by the mount")
        assert sorted(os.listdir(there)) == ["d", "f"]
        assert command("umount", there) == (0, "")
    assert os.listdir(there) == ["hidden"]


@pytest.mark.mount
def test_container_and_directory_of_one_name(base: str) -> None:
    Path(base).mkdir()
    with mounted_on(Path(base), base):
        assert Path(base, "f").read_bytes() == b"x"


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_matter(base: str, there: Path, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    assert subprocess.run([*shell, *WINKFS, "mount", base, there], timeout=60).returncode == 0
    with watched(there):
        (there / "new").write_bytes(b"kept")
        assert subprocess.run([*shell, *WINKFS, "umount", there], timeout=60).returncode == 0
    assert stored(base, "new") == b"kept"


@pytest.mark.mount
def test_parent_with_busy_threads_can_start_servers(
    there: Path, amount: Callable[[str], int]
) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            service.log.debug("%s", [bytes(1000) for _ in range(100)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(amount("servers")):
            assert serve_in_background(request(there, MemorySource)) == ""
            with watched(there):
                (there / "f").write_bytes(b"x")
                unmount(there, "memory")
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.mount
def test_interrupted_caller_gets_no_mount(base: str, there: Path, tmp_path: Path) -> None:
    """SIGINT while the server opens its Source, which here takes until `go` exists."""
    script = f"""
import pathlib, sys, time
sys.path[:0] = {[*packages(), os.path.dirname(os.path.dirname(__file__))]!r}
from memory_source import MemorySource
from mounting import request
from winkmount.service import serve_in_background
def slow():
    pathlib.Path({str(tmp_path / "opening")!r}).touch()
    while not pathlib.Path({str(tmp_path / "go")!r}).exists():
        time.sleep(0.01)
    return MemorySource()
serve_in_background(request(pathlib.Path({str(there)!r}), slow))
"""
    caller = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    soon((tmp_path / "opening").exists)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(20) != 0
    (tmp_path / "go").touch()
    assert_no_mount(there, "memory")


def assert_no_mount(there: Path, kind: str) -> None:
    """It may be there for a moment."""
    time.sleep(0.5)
    deadline = time.monotonic() + 10
    while mount_at(canonical(there)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = mount_at(canonical(there))
    if left:
        unmount(there, kind)
    assert left is None


@pytest.mark.mount
def test_signal_in_the_middle_of_a_fork_is_not_lost(base: str, there: Path) -> None:
    script = f"""
import atexit, os, signal, sys, time
sys.path[:0] = {packages()!r}
from winkfs.cli import main
me = os.getpid()
atexit.register(lambda: os.getpid() == me and time.sleep(2))  # the server comes up before its end
os.register_at_fork(after_in_parent=lambda: os.getpid() == me and os.kill(me, signal.SIGTERM))
sys.exit(main())
"""
    command = [sys.executable, "-c", script, "mount", base, there]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60)
    assert_no_mount(there, "winkfs")
    assert (done.returncode, done.stderr) == (143, b"winkfs: stopped by SIGTERM\n")


@pytest.mark.mount
def test_next_mount_waits_for_a_server_that_is_ending(base: str, there: Path) -> None:
    for name, ends in (("python", False), (service.ENDING, True)):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, base, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            assert holder.stdout is not None and holder.stdin is not None
            assert holder.stdout.readline() == b"held\n"
            if ends:
                threading.Timer(1.5, holder.stdin.close).start()
            status, text = command("mount", base, there)
            assert (status, f"process {holder.pid}" in text) == ((0, False) if ends else (1, True))
            holder.kill()
    with watched(there):
        assert command("umount", there) == (0, "")


HOLDER = """
import fcntl, os, sys
lock = open(sys.argv[1] + ".lock", "wb")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(b"%d\\n" % os.getpid())
lock.flush()
open("/proc/self/comm", "w").write(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def test_is_ending_holds_only_during_the_end_of_a_server() -> None:
    before = Path("/proc/self/comm").read_text()
    assert not service.is_ending(os.getpid())
    with service.ending():
        assert service.is_ending(os.getpid())
    assert Path("/proc/self/comm").read_text() == before
    assert not service.is_ending(2**30)


@pytest.mark.mount
def test_one_writer_and_any_number_of_readers(base: str) -> None:
    with mounted(base, "--ro") as one, mounted(base) as writer, mounted(base, "--ro") as two:
        (writer / "new").write_bytes(b"new")
        os.sync()
        for reader in (one, two):
            assert sorted(os.listdir(reader)) == ["d", "f"]
            with refused(errno.EROFS):
                (reader / "new").write_bytes(b"")


@pytest.mark.mount
def test_mount_inside_a_mount(base: str, there: Path) -> None:
    with mounted_on(there, base):
        inner = there / "d"
        assert command("create", there / "inner") == (0, "")
        status, text = command("mount", there / "inner", inner)
        assert status == 0 and "hidden" in text
        with watched(inner):
            (inner / "deep").write_bytes(b"deep")
            assert command("umount", there) == (1, f"{there}: busy: {inner} is mounted in it")
            assert command("umount", inner) == (0, "")
        assert (inner / "g").read_bytes() == b"y"
    with winkfs.open(base) as container:
        assert {"inner.data", "inner.idx"} < set(container.names())


@pytest.mark.mount
def test_empty_container_can_be_mounted(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "empty").close()
    for options in ([], ["--ro"]):
        with mounted(tmp_path / "empty", *options) as there:
            assert os.listdir(there) == []


@pytest.mark.mount
def test_a_read_only_disk_names_the_mount_option(base: str, tmp_path: Path) -> None:
    script = f"""
        mkdir {tmp_path}/there
        mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}
        {sys.executable} -c "import sys; sys.path[:0] = {packages()!r}
from winkfs.cli import main
sys.exit(main())" mount {base} {tmp_path}/there
    """
    done = Private(tmp_path).run(script)
    answer = f"winkfs: {base}.data: Read-only file system: mount it with --ro to read only\n"
    assert (done.returncode, done.stderr) == (1, answer)
