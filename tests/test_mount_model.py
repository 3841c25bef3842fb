"""Random operations on a mounted container and on a directory of the disk give the same."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from mounting import mounted

import winkfs

NAMES = [f"{a}{b}" for a in ("", "p/", "q/", "p/s/") for b in "xyz"] + ["p", "q", "p/s"]


class Twin:
    """One of the two trees, with the files a program has open in it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.files: dict[int, int] = {}

    def do(self, operation: Callable[[Twin], object]) -> object:
        try:
            return operation(self)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def open(self, slot: int, name: str, flags: int) -> None:
        if slot in self.files:
            os.close(self.files.pop(slot))
        self.files[slot] = os.open(self.top / name, flags, 0o644)

    def state(self) -> dict[str, tuple[int, object]]:
        found: dict[str, tuple[int, object]] = {}
        for path in sorted(self.top.rglob("*")):
            mode = path.lstat().st_mode
            content: object = path.readlink() if stat.S_ISLNK(mode) else None
            if stat.S_ISREG(mode):
                content = path.read_bytes()
            found[str(path.relative_to(self.top))] = mode, content
        return found

    def close(self) -> None:
        for file in self.files.values():
            os.close(file)


def size_of(file: Path | int) -> int | None:
    found = os.stat(file, follow_symlinks=isinstance(file, int))
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def next_operation(chance: random.Random) -> tuple[str, Callable[[Twin], object]]:
    """A random operation; every random choice is made here, once for both trees."""
    a, b, slot = chance.choice(NAMES), chance.choice(NAMES), chance.randrange(3)
    offset, size = chance.randrange(4) * 700, chance.randrange(3000)
    data, mode = chance.randbytes(size), chance.choice([0o644, 0o600, 0o755])
    flags = chance.choice([os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY])
    flags |= chance.choice([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC])
    operations: list[tuple[str, Callable[[Twin], object]]] = [
        (f"open {slot} {a} {flags:o}", lambda t: t.open(slot, a, flags)),
        (f"pwrite {slot} {offset}+{size}", lambda t: os.pwrite(t.files[slot], data, offset)),
        (f"write {slot} {size}", lambda t: os.write(t.files[slot], data)),
        (f"pread {slot} {offset}+{size}", lambda t: os.pread(t.files[slot], size, offset)),
        (f"ftruncate {slot} {offset}", lambda t: os.ftruncate(t.files[slot], offset)),
        (f"fstat {slot}", lambda t: size_of(t.files[slot])),
        (f"fsync {slot}", lambda t: os.fsync(t.files[slot])),
        (f"close {slot}", lambda t: os.close(t.files.pop(slot))),
        (f"put {a} {size}", lambda t: (t.top / a).write_bytes(data)),
        (f"get {a}", lambda t: (t.top / a).read_bytes()),
        (f"size {a}", lambda t: size_of(t.top / a)),
        (f"truncate {a} {offset}", lambda t: os.truncate(t.top / a, offset)),
        (f"unlink {a}", lambda t: os.unlink(t.top / a)),
        (f"mkdir {a}", lambda t: os.mkdir(t.top / a)),
        (f"rmdir {a}", lambda t: os.rmdir(t.top / a)),
        (f"rename {a} {b}", lambda t: os.rename(t.top / a, t.top / b)),
        (f"symlink {a}", lambda t: os.symlink("target", t.top / a)),
        (f"chmod {a} {mode:o}", lambda t: os.chmod(t.top / a, mode)),
        (f"list {a}", lambda t: sorted(os.listdir(t.top / a))),
    ]
    return chance.choice(operations)


def differ(twins: list[Twin], chance: random.Random, count: int) -> None:
    history = []
    for _ in range(count):
        name, operation = next_operation(chance)
        slot_missing = name.split()[1].isdigit() and int(name.split()[1]) not in twins[0].files
        if slot_missing and not name.startswith("open"):
            continue
        history.append(name)
        results = [twin.do(operation) for twin in twins]
        if name.startswith("fstat") and results[0] in ("ENOENT", "ESTALE"):
            continue  # libfuse knows no path of what was removed with its directory
        assert results[0] == results[1], (results, history[-40:])
    assert twins[0].state() == twins[1].state(), history[-40:]


@pytest.mark.mount
@pytest.mark.parametrize(("seed", "binding"), [(1, "mfusepy"), (2, "mfusepy"), (3, "fusepy")])
def test_random_operations_do_as_on_a_disk(tmp_path: Path, seed: int, binding: str) -> None:
    chance = random.Random(seed)
    base, model = str(tmp_path / "corpus"), tmp_path / "model"
    winkfs.create(base).close()
    model.mkdir()
    for _ in range(2):
        with mounted(base, "-o", "sync_every=0.3", "--binding", binding) as there:
            twins = [Twin(there), Twin(model)]
            try:
                differ(twins, chance, 600)
            finally:
                for twin in twins:
                    twin.close()
        assert winkfs.verify(base).problems == []
    with mounted(base, "--ro") as there:
        assert Twin(there).state() == Twin(model).state()


@pytest.mark.mount
def test_random_operations_on_an_append_only_container(tmp_path: Path) -> None:
    """Many are refused; what is there stays the same over remounts, and in order."""
    chance = random.Random(4)
    base = str(tmp_path / "log")
    winkfs.create(base, ao=True, timemp=1).close()
    before: dict[str, object] = {}
    for _ in range(3):
        with mounted(base, "-o", "sync_every=0.3") as there:
            twin = Twin(there)
            assert {name: content for name, (_, content) in twin.state().items()} == before
            for _ in range(500):
                name, operation = next_operation(chance)
                if name.split()[1].isdigit() and int(name.split()[1]) not in twin.files:
                    twin.open(int(name.split()[1]), f"x{chance.randrange(9)}", os.O_CREAT)
                assert twin.do(operation) not in ("EIO", "ENOSYS"), name
            twin.close()
            before = {name: content for name, (_, content) in twin.state().items()}
        assert winkfs.verify(base).problems == []
