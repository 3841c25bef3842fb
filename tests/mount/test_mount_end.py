"""How a server ends, and that it leaves nothing behind."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mounting
import pytest
from constants import shrink
from memory_source import MemorySource
from mounting import (
    command,
    request,
    run,
    server_of,
    stored,
    verified,
    wait_for_the_end,
    watched,
)
from openfiles import descriptors
from stored import read

from winkmount import service
from winkmount.binding import MountError
from winkmount.mounts import canonical, mount_at, unmount
from winkmount.options import Options
from winkmount.service import Request, serve_in_background

pytestmark = pytest.mark.in_memory

base, there = mounting.base, mounting.there  # fixtures


@pytest.mark.mount
def test_lazy_unmount_keeps_what_the_last_user_writes(base: str, there: Path) -> None:
    assert command("mount", base, there) == (0, "")
    with watched(there):
        server = os.pidfd_open(server_of(there))
        with (there / "new").open("wb", buffering=0) as opened:
            assert command("umount", "--lazy", there) == (0, "")
            assert mount_at(canonical(there)) is None
            opened.write(b"late")
    wait_for_the_end(server)
    assert stored(base, "new") == b"late"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have little time to answer, and umount to wait in silence."""
    shrink(monkeypatch, "a mount", answer=0.3, wait=0.2)


@pytest.mark.mount
@pytest.mark.usefixtures("impatient")
def test_hung_server_does_not_hang_the_next_commands(base: str, there: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to be sure of ending it")
    assert command("mount", base, there) == (0, "")
    with watched(there):
        server = os.pidfd_open(server_of(there))
        signal.pidfd_send_signal(server, signal.SIGSTOP)
        try:
            with pytest.raises(MountError, match="no answer: winkfs umount --force"):
                service.check(Request(MemorySource, "winkfs", base, str(there), Options()))
            assert command("umount", "--force", there) == (0, "")
        finally:
            signal.pidfd_send_signal(server, signal.SIGCONT)
    wait_for_the_end(server)
    assert verified(base)


def noted(there: Path, release: Callable[[], object]) -> list[str]:
    """Unmount, and release the mount when it is stated what keeps the server -> what is stated."""
    printed: list[str] = []

    def note(line: str) -> None:
        printed.append(line)
        release()

    unmount(there, "winkfs", note=note)
    return printed


@pytest.mark.mount
@pytest.mark.usefixtures("impatient")
def test_umount_names_the_processes_that_keep_the_server(base: str, there: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare for a mount namespace")
    assert command("mount", base, there) == (0, "")
    with watched(there):
        server = server_of(there)
        with subprocess.Popen(
            ["unshare", "--mount", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdin and other.stdout
            other.stdin.write(b"it runs\n")
            other.stdin.flush()
            other.stdout.readline()
            printed = noted(there, other.kill)  # the last mount goes, then the server
    why = f"process {other.pid} (cat) has it mounted too"
    assert printed == [f"{there}: unmounted; waiting for its server, process {server}: {why}"]


@pytest.mark.mount
@pytest.mark.usefixtures("impatient")
def test_umount_names_the_other_mount_points(base: str, there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root for a bind mount")
    other = tmp_path / "other"
    other.mkdir()
    assert command("mount", base, there) == (0, "")
    with watched(there):
        subprocess.run(["mount", "--bind", there, other], check=True)
        printed = noted(there, partial(run, "umount", other))
    assert len(printed) == 1 and printed[0].endswith(f": it is mounted on {other} too")


@pytest.mark.mount
def test_forced_unmount_of_a_server_that_answers_syncs(base: str, there: Path) -> None:
    assert command("mount", base, there, "-osync_every=3600") == (0, "")
    with watched(there):
        (there / "new").write_bytes(b"kept")
        assert command("umount", "--force", there) == (0, "")
    assert read(base, "new", mode="a") == b"kept"


@pytest.mark.long
@pytest.mark.mount
def test_mounts_and_unmounts_leave_nothing_behind(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def left() -> tuple[object, ...]:
        return (
            threading.active_count(), _children(), os.listdir(tmp_path / "temporary"),
            mount_at(canonical(there)),
        )  # fmt: skip

    def once() -> None:
        assert serve_in_background(request(there, MemorySource)) == ""
        server = os.pidfd_open(server_of(there, "memory"))
        (there / "f").write_bytes(b"x")
        unmount(there, "memory")
        wait_for_the_end(server)

    once()
    before, files = left(), descriptors()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(24):
        once()
    assert left() == before
    assert descriptors() <= files
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1024, "KiB"


def _children() -> list[str]:
    tasks = Path("/proc/self/task")
    return [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


@pytest.mark.mount
def test_failed_mounts_leave_nothing_behind(there: Path) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    before, children = descriptors(), _children()
    for _ in range(5):
        with pytest.raises(MountError):
            serve_in_background(request(there, refuse))
    assert descriptors() <= before
    assert _children() == children
