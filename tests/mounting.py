"""Real mounts for tests: made by a subprocess, watched, and gone at the end whatever happens.

A hung FUSE server blocks sync(2) and unmount for the whole machine, so every mount here has a
watchdog that aborts its connection.

    with mounted(base, "-o", "ro") as directory: ...      # winkfs mount, in the background
    with serving([program, ...], directory): ...          # any program that mounts there
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from marks import needs
from memory_source import MemorySource

import winkfs
from winkmount.binding import ENVIRONMENT, KERNEL, missing
from winkmount.mounts import Mount, canonical, connection, mount_at
from winkmount.options import Options
from winkmount.service import Request

WINKFS = (sys.executable, "-c", "import sys; from winkfs.cli import main; sys.exit(main())")
TESTS = Path(__file__).parent
PATIENCE = 60.0  # seconds one mount may live before it counts as hung
BINDING = os.environ.get(ENVIRONMENT) or KERNEL  # of all mounts that do not name one


def not_by_libfuse(reason: str) -> pytest.MarkDecorator:
    """Mark what libfuse 2 cannot do: see docs/mount.md."""
    return pytest.mark.skipif(BINDING != KERNEL, reason=f"libfuse 2 {reason}")


@contextmanager
def dead() -> Iterator[None]:
    """A file of a dead mount is closed: with libfuse 2 the kernel asks the server, who is gone."""
    with suppress(*([] if BINDING == KERNEL else [OSError])):
        yield


def need_fuse(binding: str | None = None) -> None:
    """Skip where the machine cannot mount; on CI that is an error."""
    needs("mount")
    lack = None
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lack = "/dev/fuse is missing, or not for this user"
    elif missing(binding or BINDING):
        lack = missing(binding or BINDING)
    elif os.geteuid() != 0 and not shutil.which("fusermount3"):
        lack = "fusermount3 is missing"
    if lack:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must be able to mount: {lack}")
        pytest.skip(lack)


@contextmanager
def mounted(
    base: str | os.PathLike[str], *options: str, patience: float = PATIENCE
) -> Iterator[Path]:
    """`winkfs mount BASE DIR OPTIONS` on a new directory -> DIR."""
    need_fuse()
    directory = Path(tempfile.mkdtemp(prefix="winkfs-mount-"))
    try:
        with mounted_on(directory, base, *options, patience=patience):
            yield directory
    finally:
        directory.rmdir()


@contextmanager
def mounted_on(
    directory: Path, base: str | os.PathLike[str], *options: str, patience: float = PATIENCE
) -> Iterator[None]:
    """Run `winkfs mount BASE DIR OPTIONS`, and `winkfs umount DIR` at the end."""
    winkfs_command("mount", os.fspath(base), directory, *options)
    with watched(directory, patience):
        yield
        winkfs_command("umount", directory)


@contextmanager
def serving(
    command: Sequence[str], directory: Path, patience: float = PATIENCE
) -> Iterator[subprocess.Popen[str]]:
    """Run a program that mounts on `directory` and serves in the foreground -> the process."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        soon(lambda: mount_at(canonical(directory)) or server.poll() is not None, 20)
        assert server.poll() is None, server.communicate()[1]
        with watched(directory, patience):
            yield server
            server.send_signal(signal.SIGTERM)
            _, answer = server.communicate(timeout=30)
            assert server.returncode == 0, answer
    finally:
        server.kill()
        server.communicate()


@contextmanager
def watched(directory: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Abort the mount after `patience` seconds, and at the end if it is still there."""
    point = canonical(directory)
    assert mount_at(point) is not None, f"{directory} is not mounted"
    bitten = threading.Event()

    def bite() -> None:
        bitten.set()
        abort_at(point)

    watchdog = threading.Timer(patience, bite)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
        assert not bitten.is_set(), f"the mount on {directory} hung"
        assert mount_at(point) is None, f"{directory} is still mounted"
    finally:
        watchdog.cancel()
        if mount_at(point) is not None:
            abort_at(point)
            subprocess.run(["umount", "-l", point], capture_output=True, check=False)


def abort_at(point: str) -> None:
    """Abort what is mounted now: the number of an earlier mount may be that of a stranger."""
    mount = mount_at(point)
    if mount is not None:
        abort(mount)


def forget(mount: Path) -> None:
    """Have the kernel forget the names of a mount that is not in use, if we are root. To drop all
    caches would disturb the tests beside this one."""
    if os.geteuid() == 0:
        subprocess.run(["mount", "-i", "-o", "remount", mount], check=True)


def server_of(directory: Path, kind: str = "winkfs") -> int:
    """-> the process id of the server of a mount."""
    return int(os.getxattr(directory, f"user.{kind}.pid"))


def is_readable(descriptor: int, seconds: float) -> bool:
    """Whether it can be read within a time. select() takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def wait_for_the_end(server: int) -> None:
    """server  pidfd; a process id would stay with a zombie for as long as init likes"""
    assert is_readable(server, 30), "the server did not end"
    os.close(server)


def leave_dead(directory: Path, kind: str = "winkfs") -> None:
    """kill -9 the server of a mount; the dead mount stays."""
    server = os.pidfd_open(server_of(directory, kind))
    signal.pidfd_send_signal(server, signal.SIGKILL)
    wait_for_the_end(server)


def need(*tools: str) -> None:
    """Skip where a program is missing; on CI that is an error."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must have {', '.join(missing)}: see scripts/system-packages")
        pytest.skip(f"{', '.join(missing)} not installed")


def run(*command: str | Path, cwd: Path | None = None, seconds: float = PATIENCE) -> str:
    """-> what a program wrote to stdout; it must exit with 0."""
    done = subprocess.run(command, capture_output=True, cwd=cwd, timeout=seconds)
    assert done.returncode == 0, f"{command}: {os.fsdecode(done.stderr)}"
    return os.fsdecode(done.stdout)


def same(left: Path, right: Path) -> None:
    """Two trees hold the same, with the same modes, sizes and times."""
    run("diff", "-r", "--no-dereference", left, right)
    for path in left.rglob("*"):
        a, b = path.lstat(), (right / path.relative_to(left)).lstat()
        assert (a.st_mode, a.st_mtime_ns) == (b.st_mode, b.st_mtime_ns), path
        assert a.st_size == b.st_size or path.is_dir(), path


def winkfs_command(*arguments: str | Path) -> None:
    if arguments[0] == "mount":
        need_fuse()
    status, _, answer = warm.run([str(argument) for argument in arguments], PATIENCE)
    assert status == 0, f"{arguments[0]} failed: {answer}"


def abort(mount: Mount) -> None:
    """End a FUSE connection from the kernel's side: all its waiters get ECONNABORTED."""
    control = connection(mount)
    if not control.exists():
        with suppress(OSError):
            subprocess.run(
                ["mount", "-t", "fusectl", "fusectl", str(control.parent)],
                capture_output=True,
                check=False,
            )
    with suppress(OSError):
        (control / "abort").write_text("1")


def soon(fact: Callable[[], object], seconds: float = 15) -> None:
    """Wait for a fact. A mount that follows looks once a second, and the kernel believes names for
    another one."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def refused(*codes: int) -> pytest.RaisesExc[OSError]:
    """Expect an OSError with one of these error numbers."""
    return pytest.raises(OSError, check=lambda error: error.errno in codes)


def all_refused(code: int, *attempts: Callable[[], object]) -> None:
    """Make each call, which must raise an OSError with this error number."""
    for attempt in attempts:
        with refused(code):
            attempt()


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cool(path: str | Path) -> None:
    """Drop a file from the page cache, where its filesystem can."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def all_at_once(*commands: Sequence[object], seconds: float | None = None) -> None:
    """Run Python with these arguments, all at the same time; each must exit with 0."""
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
        for command in commands
    ]  # fmt: skip
    try:
        answer = [process.communicate(timeout=seconds)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * len(running), "\n".join(answer)


def grep(there: Path) -> set[str]:
    """Run grep over all files, each of 20 lines with `needle` -> the names of those that were
    there all the time."""
    done = subprocess.run(["grep", "-rc", "needle", there], capture_output=True, text=True)
    counts = dict(line.rsplit(":", 1) for line in done.stdout.splitlines())
    gone = set()
    for line in done.stderr.splitlines():
        path, _, why = line.removeprefix("grep: ").partition(": ")
        assert why == "No such file or directory", line
        gone.add(path)
    assert {path for path, count in counts.items() if count != "20"} <= gone
    return {Path(path).name for path in counts.keys() - gone}


# --- what several tests of mounts begin with ---


def command(*arguments: str | Path, cwd: Path | None = None) -> tuple[int, str]:
    """-> exit status, what it wrote to stderr."""
    status, out, err = warm.run([str(argument) for argument in arguments], PATIENCE, cwd)
    assert out == ""
    return status, err.removeprefix("winkfs: ").rstrip("\n")


def request(there: Path, source: object = MemorySource, **fuse: str | bool) -> Request:
    return Request(source, "memory", "/memory", str(there), Options(fuse=dict(fuse)))  # type: ignore[arg-type]


@pytest.fixture
def base(tmp_path: Path) -> str:
    name = str(tmp_path / "corpus")
    with winkfs.create(name) as container:
        container.put("f", b"x")
        container.put("d/g", b"y", mode=0o644)
    return name


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """Make a container without files."""
    winkfs.create(tmp_path / "empty").close()
    return str(tmp_path / "empty")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    need_fuse()
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def place(mount: Path, request: pytest.FixtureRequest) -> Path:
    """Make a directory of the test's own in a mount that several share."""
    place = mount / request.node.name.replace("[", "-").rstrip("]")
    place.mkdir()
    return place


def stored(base: str, name: str) -> bytes | None:
    """What another process sees in the container."""
    with winkfs.open(base) as container:
        return container.read(name) if name in container else None


def verified(base: str) -> bool:
    done = subprocess.run([*WINKFS, "verify", base], capture_output=True, timeout=60)
    return done.returncode == 0


def libraries(patch: pytest.MonkeyPatch, versions: Mapping[str, int]) -> None:
    """Have these libraries of libfuse on this machine, with what their `fuse_version` says."""

    def load(name: str) -> SimpleNamespace:
        if name not in versions:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(fuse_version=lambda: versions[name])

    patch.setattr(ctypes, "CDLL", load)
