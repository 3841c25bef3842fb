"""File systems to compare. Each is a context manager: mounted on entry, gone on exit.

    with winkfs_mount(base, point, "--ro") as mounted:
        os.listdir(mounted.path)

A server that hangs blocks sync and unmount for the whole machine, so each has a watchdog that ends
its connection. A tool that cannot mount ends the benchmark with one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common import Phases

from winkmount.mounts import Mount, connection, mount_at

PATIENCE: Final = 300.0  # seconds a mount may live
START: Final = 120.0  # seconds until it must be there
TICK: Final = os.sysconf("SC_CLK_TCK")
ANONYMOUS: Final = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
WINKFS: Final = str(Path(sys.executable).with_name("winkfs"))
NAIVE: Final = str(Path(__file__).with_name("naivefs.py"))


@dataclass(frozen=True)
class Mounted:
    """path: where the files are; server: its process id, 0 where the kernel serves."""

    path: Path
    server: int = 0

    def cpu(self) -> float:
        """Seconds the server was on the processor."""
        if not self.server:
            return 0.0
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def anonymous(self) -> float:
        """RssAnon of the server, MiB."""
        if not self.server:
            return 0.0
        found = ANONYMOUS.search(Path(f"/proc/{self.server}/status").read_text())
        assert found, "every process has RssAnon"
        return int(found[1]) / 1024

    def used(self) -> Phases:
        """What the server took so far, for `report.server`."""
        return {"cpu": self.cpu(), "anonymous": self.anonymous()}


Rival = Callable[[], AbstractContextManager[Mounted]]


def winkfs_mount(base: Path, point: Path, *options: str) -> AbstractContextManager[Mounted]:
    return served([WINKFS, "mount", "-f", str(base), str(point), *options], point)


def squashfuse(image: Path, point: Path) -> AbstractContextManager[Mounted]:
    return served(["squashfuse_ll", "-f", str(image), str(point)], point)


def ratarmount(tar: Path, point: Path) -> AbstractContextManager[Mounted]:
    """The index is made by the first mount and kept beside the tar file."""
    return served(["ratarmount", "-f", "--index-file", f"{tar}.index", str(tar), str(point)], point)


def bindfs(directory: Path, point: Path) -> AbstractContextManager[Mounted]:
    return served(["bindfs", "-f", str(directory), str(point)], point)


def naive(binding: str, point: Path) -> AbstractContextManager[Mounted]:
    return served([sys.executable, NAIVE, binding, str(point)], point)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[Mounted]:
    """A directory as it is."""
    path.mkdir(exist_ok=True)
    yield Mounted(path)


@contextlib.contextmanager
def loop(image: Path, point: Path) -> Iterator[Mounted]:
    """An image, mounted by the kernel. Only root may."""
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop,ro", image, point], check=True)
    try:
        yield Mounted(point)
    finally:
        _umount(point)


@contextlib.contextmanager
def served(command: list[str], point: Path) -> Iterator[Mounted]:
    """The mount of a server that stays in the foreground. It answers when this yields."""
    point.mkdir(exist_ok=True)
    with tempfile.TemporaryFile() as said:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            mount = _appears(point, server)
            if mount is None:
                said.seek(0)
                text = said.read().decode(errors="replace").strip()
                sys.exit(
                    f"{' '.join(command)}: no mount: {(text or 'nothing said').splitlines()[-1]}"
                )
            with _watched(mount):
                os.stat(point)  # the kernel holds this back until the server answers
                yield Mounted(point, server.pid)
                _umount(point)
                server.wait(PATIENCE)
        finally:
            if (left := mount_at(str(point))) is not None:
                _abort(left)
                subprocess.run(["umount", "-l", point], check=False)
            server.kill()
            server.wait()


def _appears(point: Path, server: subprocess.Popen[bytes]) -> Mount | None:
    deadline = time.monotonic() + START
    while server.poll() is None and time.monotonic() < deadline:
        if mount := mount_at(str(point)):
            return mount
        time.sleep(0.001)
    return None


@contextlib.contextmanager
def _watched(mount: Mount) -> Iterator[None]:
    watchdog = threading.Timer(PATIENCE, _abort, (mount,))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _abort(mount: Mount) -> None:
    """End the connection from the kernel's side: all who wait for it get ECONNABORTED."""
    if mount_at(mount.point) != mount:
        return  # it is gone, and its number may be that of another connection
    print(f"{mount.point} hung, or was left behind: ended", file=sys.stderr)
    (connection(mount) / "abort").write_text("1")


def _umount(point: Path) -> None:
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    for _ in range(20):  # something may still look at it
        done = subprocess.run([*command, point], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    sys.exit(done.stderr.strip())


# --- which there are ---


def present(rivals: Mapping[str, tuple[str, Rival]]) -> dict[str, Rival]:
    """Those whose program is installed; it is "" where none is needed. One line tells of others."""
    found = {}
    for name, (program, rival) in rivals.items():
        if program and not shutil.which(program):
            print(f"{name} is left out: {program} is not installed", file=sys.stderr)
        elif program == "mount" and os.geteuid() != 0:
            print(f"{name} is left out: only root may mount it", file=sys.stderr)
        else:
            found[name] = rival
    return found


def versions(**commands: str) -> str:
    """What each program says of its version, for a note below the table."""
    told = []
    for name, option in commands.items():
        if shutil.which(name):
            done = subprocess.run([name, option], capture_output=True, text=True, check=False)
            number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
            told.append(f"{name} {number[0] if number else '?'}")
    return ", ".join(told)
