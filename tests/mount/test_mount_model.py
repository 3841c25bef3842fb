"""Random operations on a mounted container and on a directory of the disk give the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import pytest
from model_chooser import Chooser
from model_operations import Twin
from model_worker import Differ, compare
from mounting import TESTS, all_at_once, mounted

import winkfs
from winkmount.binding import BINDINGS

pytestmark = [pytest.mark.mount, pytest.mark.soak]

WORKER = TESTS / "model_worker.py"
WORKERS = 3
ONE_CALL = {"pwrite", "write", "ftruncate", "truncate", "fchmod", "chmod", "fchown", "chown"}
ONE_CALL |= {"rename", "unlink", "mkdir", "rmdir", "utimens", "setxattr", "removexattr"}
PATIENCE = 1800.0  # seconds for one mount of a soak


@pytest.fixture
def memory() -> Iterator[Path]:
    with folders.in_memory() as folder:
        yield folder


def each_on_its_own(there: Path, disk: Path, seed: int, operations: int) -> None:
    commands = []
    for worker in range(WORKERS):
        tops = [top / f"own{worker}" for top in (there, disk)]
        for top in tops:
            top.mkdir(exist_ok=True)
        numbers = ["--seed", seed * 100 + worker, "--operations", operations // WORKERS]
        commands.append([WORKER, *tops, *numbers])
    all_at_once(*commands)


def all_in_one_directory(there: Path, disk: Path, seed: int, operations: int) -> None:
    tops = [top / "shared" for top in (there, disk)]
    for top in tops:
        top.mkdir(exist_ok=True)
    logs = ["--lock", disk.with_suffix(".lock"), "--log", disk.with_suffix(f".log{seed}")]
    given = [WORKER, *tops, *logs, "--operations", operations // WORKERS, "--seed"]
    all_at_once(*[[*given, seed * 100 + 50 + worker] for worker in range(WORKERS)])


# of the operations a binding takes one in so many
PART = {"kernel": 2, "fusepy": 20}


@pytest.mark.parametrize(
    "binding",
    [pytest.param(one, marks=[pytest.mark.long] if one == "fusepy" else []) for one in BINDINGS],
)
def test_random_operations_do_as_on_a_disk(
    tmp_path: Path, memory: Path, seed: int, amount: Callable[[str], int], binding: str
) -> None:
    """Three processes, each in a directory of its own, then all in one; twice, with a remount."""
    base, disk = str(memory / "corpus"), tmp_path / "disk"
    winkfs.create(base).close()
    disk.mkdir()
    operations = amount("operations") // PART[binding]
    options = ["-o", "sync_every=0.3", "--binding", binding]
    for turn in range(2):
        with mounted(base, *options, patience=PATIENCE) as there:
            compare(Twin(there), Twin(disk))
            each_on_its_own(there, disk, seed + turn, operations * 3 // 4)
            all_in_one_directory(there, disk, seed + turn, operations // 4)
            compare(Twin(there), Twin(disk))
        assert winkfs.verify(base).problems == []
    with mounted(base, "--ro") as there:
        compare(Twin(there), Twin(disk))


def test_two_different_trees_are_distinguished(tmp_path: Path) -> None:
    """The worker finds a byte, a mode, a time or a name that only one tree has."""
    for change in (
        lambda top: (top / "d/f").write_bytes(b"y"),
        lambda top: (top / "d/f").chmod(0o600),
        lambda top: os.utime(top / "d/f", (1, 2)),
        lambda top: (top / "d/f").rename(top / "d/g"),
        lambda top: os.setxattr(top / "d/f", "user.x", b"1"),
    ):
        tops = [tmp_path / name for name in ("left", "right")]
        for top in tops:
            (top / "d").mkdir(parents=True, exist_ok=True)
            (top / "d/f").write_bytes(b"x")
            os.utime(top / "d/f", (1, 1))
        compare(Twin(tops[0]), Twin(tops[1]))
        change(tops[1])
        with pytest.raises(Differ):
            compare(Twin(tops[0]), Twin(tops[1]))
        subprocess.run(["rm", "-r", *tops], check=True)


@pytest.fixture
def mask() -> Iterator[None]:
    """The operations set the umask of this process."""
    before = os.umask(0o22)
    yield
    os.umask(before)


@pytest.mark.usefixtures("mask")
def test_random_operations_on_an_append_only_container(
    memory: Path, seed: int, amount: Callable[[str], int]
) -> None:
    """What is refused changes nothing; what is there stays the same over remounts."""
    base = str(memory / "log")
    winkfs.create(base, ao=True, timemp=1).close()
    before: dict[bytes, tuple[object, ...]] = {}
    chooser, refused = Chooser(seed), 0
    for _ in range(3):
        with mounted(base, "-o", "sync_every=0.3", patience=PATIENCE) as there:
            twin = Twin(there)
            assert without_directories(twin) == before
            for _ in range(amount("operations") // 20):
                operation = chooser.next(list(twin.files))
                if operation[0] == "rename" and operation[1] == operation[2]:
                    continue  # see "The server hangs" in docs/mount.md
                watched = operation[0] in ONE_CALL and chooser.chance.random() < 0.2
                state = twin.state() if watched else {}
                answer = twin.do(operation)
                assert answer not in ("EIO", "ENOSYS"), operation
                if watched and answer == "EPERM":
                    assert without_times(twin.state()) == without_times(state), operation
                    refused += 1
                if answer == "EPERM" and str(operation[0]).startswith("rename"):
                    twin.close_all()  # for libfuse an open target is two files from here on
            twin.close_all()
            before = without_directories(twin)
        assert winkfs.verify(base).problems == []
    assert refused > 10


def without_times(state: dict[bytes, tuple[Any, ...]]) -> dict[bytes, tuple[Any, ...]]:
    """The kernel may keep the time a file had before it was stored behind a later one, until a call
    on it is refused; a time that was refused is tested in test_mount_ao."""
    return {name: (shown[:5], *rest) for name, (shown, *rest) in state.items()}


def without_directories(twin: Twin) -> dict[bytes, tuple[object, ...]]:
    """What is kept of a tree whose directories may have no entries; times count in seconds."""
    return {
        name: (shown[:5], what)
        for name, (shown, _, what) in twin.state().items()
        if what is not None
    }
