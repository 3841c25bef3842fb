"""A sync in steps, with changes and other syncs between them: what a power cut then leaves."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import container_checks
import pytest
from seam import Call, disk_calls, refusing

import winkfs

base = container_checks.base  # fixture

Files = dict[str, bytes]
Steps = Generator[Callable[[], None], None, None]
Watch = Callable[[Path], "Disk"]
SECTOR = 512
BLOCKS = 8192  # bytes of the two superblocks


@pytest.fixture
def watch() -> Iterator[Callable[[Path], Disk]]:
    """-> a function that watches what happens to a file from then on."""
    with ExitStack() as stack:

        def watch(path: Path) -> Disk:
            disk = Disk(path)
            stack.enter_context(disk_calls(disk))
            return disk

        yield watch


class Disk:
    """What is written to BASE.data, and what of it a power cut leaves."""

    def __init__(self, path: Path) -> None:
        self.path, self.durable = path, bytearray(path.read_bytes().rstrip(b"\0"))
        self.pending: list[tuple[int, bytes]] = []
        self.at_a_sync: Callable[[], None] = lambda: None

    def __call__(self, call: Call) -> None:
        if call.path != str(self.path):
            return
        if call.verb in ("write", "patch"):
            self.pending.append((call.offset, call.data))
        elif call.verb == "sync":
            self.at_a_sync()
            for offset, data in self.pending:
                _lay(self.durable, offset, data)
            self.pending = []

    def cut(self, to: Path, dice: random.Random) -> None:
        """Write the durable bytes, and of each later write those sectors that made it. Superblocks
        come whole or not at all: one that is torn says less than the other, which is not of
        interest."""
        image, share = bytearray(self.durable), dice.choice([0, 0.3, 0.7, 1])
        for offset, data in self.pending:
            at = 0
            while at < len(data):
                stop = min(len(data), at + SECTOR - (offset + at) % SECTOR)
                stop = len(data) if offset < BLOCKS else stop
                if dice.random() < share:
                    _lay(image, offset + at, data[at:stop])
                at = stop
        to.write_bytes(image)
        os.truncate(to, max(len(image), self.path.stat().st_size))  # the reserve


def _lay(image: bytearray, offset: int, data: bytes) -> None:
    image.extend(bytes(max(offset + len(data) - len(image), 0)))
    image[offset : offset + len(data)] = data


def change(container: winkfs.Container, files: Files, dice: random.Random, turn: int) -> None:
    name, data = f"n{dice.randrange(12)}", b"<%d>" % turn * dice.choice([0, 1, 50, 3000])
    verb = dice.choice(["put", "append", "write", "delete", "rename", "mtime", "cut"])
    if verb == "put" or name not in files:
        container.put(name, data)
        files[name] = data
    elif verb == "append":
        container.append(name, data)
        files[name] += data
    elif verb == "write":
        at = dice.randrange(len(files[name]) + 1)
        container.write(name, at, data)
        files[name] = files[name][:at] + data + files[name][at + len(data) :]
    elif verb == "delete":
        container.delete(name)
        del files[name]
    elif verb == "rename":
        new = f"n{dice.randrange(12)}"
        container.rename(name, new)
        files[new] = files.pop(name)
    elif verb == "cut":
        container.truncate(name, len(files[name]) // 2)
        files[name] = files[name][: len(files[name]) // 2]
    else:
        container.utime(name, turn)


def stored(base: Path, mode: str) -> Files:
    with winkfs.open(base, mode) as container:
        return {entry.name: entry.read() for entry in container.scan()}


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_leaves_what_was_there_when_a_sync_began(
    base: Path, seed: int, watch: Watch
) -> None:
    dice, files = random.Random(seed), Files()
    other = base.parent / "cut" / "c"
    other.parent.mkdir()
    winkfs.create(base).close()
    disk = watch(base.with_name("c.data"))
    states, acknowledged = [Files()], 0  # as of the begin of each sync
    running: tuple[Steps, Callable[[], None] | None, int] | None = None
    container = winkfs.open(base, "a")
    for turn in range(120):
        for _ in range(dice.choice([0, 1, 3])):
            change(container, files, dice, turn)
        act = dice.random()
        if running is None and act < 0.5:
            states.append(dict(files))
            steps = container.syncing()
            running = steps, next(steps, None), len(states) - 1
        elif running is not None and act < 0.6:
            steps, wait, number = running
            if wait is None:
                acknowledged, running = max(acknowledged, number), None
            else:
                wait()
                running = steps, next(steps, None), number
        elif act > 0.93:
            states.append(dict(files))
            container.sync()
            acknowledged = len(states) - 1
        if dice.random() < 0.5:
            disk.cut(other.with_name("c.data"), dice)
            other.with_name("c.idx").unlink(missing_ok=True)
            if dice.random() < 0.5:
                shutil.copy(base.with_name("c.idx"), other.with_name("c.idx"))
            found = stored(other, "r")
            assert found in states[acknowledged:], f"turn {turn}"
            if dice.random() < 0.2:
                assert stored(other, "a") == found
                assert winkfs.verify(other).problems == []
    if running is not None:
        running[0].close()
    container.close()
    assert stored(base, "r") == files
    assert winkfs.verify(base).problems == []


def test_a_failed_step_is_final(tmp_path: Path) -> None:
    base = tmp_path / "c"
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    container.put("b", b"2")
    steps = container.syncing()
    wait = next(steps)
    with disk_calls(refusing("sync")), pytest.raises(OSError, match="Input/output") as caught:
        wait()
    with pytest.raises(OSError):
        steps.throw(caught.value)
    for attempt in (
        container.sync,
        lambda: container.put("c", b"3"),
        container.syncing().__next__,
    ):
        with pytest.raises(OSError):
            attempt()
    assert container.read("a") == b"1"
    assert "b" not in container
    with pytest.raises(OSError):
        container.close()
    assert stored(base, "a") == {"a": b"1"}


def test_delflags_of_what_came_during_a_sync_wait_for_the_next(tmp_path: Path) -> None:
    """Else a power cut could leave the old inode marked, and not the new one."""
    base = tmp_path / "c"
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    store = container.store
    old = store.index.lookup(b"a/I0")
    container.put("b", b"2")
    steps = container.syncing()
    wait = next(steps)
    container.put("a", b"11")
    while True:
        wait()
        following = next(steps, None)
        if following is None:
            break
        wait = following
    assert not store.kv.get(old).deleted
    container.sync()
    assert store.kv.get(old).deleted
    container.close()
    assert winkfs.verify(base).problems == []


def test_a_running_sync_keeps_its_published_flags_from_another(
    tmp_path: Path, watch: Watch
) -> None:
    """The second version is durable, but the sync has not ended; the third one is on its way."""
    base, other = tmp_path / "c", tmp_path / "cut" / "c"
    other.parent.mkdir()
    container = winkfs.create(base)
    container.put("a", b"1")
    container.sync()
    disk = watch(tmp_path / "c.data")
    container.put("a", b"22")
    steps = container.syncing()
    next(steps)()
    next(steps)()
    container.put("a", b"333")
    images: list[bytes] = []

    def cut() -> None:
        flags = [(offset, data) for offset, data in disk.pending if len(data) == 1]
        image = bytearray(disk.durable)
        for offset, data in flags:
            _lay(image, offset, data)
        images.append(bytes(image))

    disk.at_a_sync = cut
    container.sync()
    for image in images[:1]:
        other.with_name("c.data").write_bytes(image.ljust(1 << 22, b"\0"))
        assert stored(other, "r") == {"a": b"22"}
    assert next(steps, None) is None
    container.close()
    assert stored(base, "r") == {"a": b"333"}
    assert winkfs.verify(base).problems == []
