"""What the kernel forgets, how often, and what it asks to be let go of: by requests of its own."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from memory_source import MemorySource
from mounting import mounted, sync
from stored import make

from winkmount.kernel import protocol as p
from winkmount.kernel.device import Connection, Pace
from winkmount.kernel.nodes import NodeTable
from winkmount.kernel.server import Server
from winkmount.served import Served
from winkmount.source import Steps

pytestmark = pytest.mark.in_memory
FILES = 40


class Slow(MemorySource):
    """Its fsync waits."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.goes_on = threading.Event(), threading.Event()

    def syncing(self, id: int | None) -> Steps:
        yield self._wait

    def _wait(self) -> None:
        self.began.set()
        assert self.goes_on.wait(20)


class Kernel:
    """The other side of the device, whose requests a real server answers."""

    def __init__(self) -> None:
        self._socket, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(20)
        self._unique = 0
        self.source = Slow()
        connection = Connection(device.detach(), Pace(0.0, 0))
        self.device = connection.device
        self.server = Server(Served(self.source, "memory"), connection)
        self._ending, self._end = os.pipe()
        work = partial(connection.serve, self.server, self._ending)
        self._thread = threading.Thread(target=work)
        self._thread.start()

    @property
    def nodes(self) -> NodeTable:
        assert self.server.table is not None
        return self.server.table

    def send(self, opcode: int, node: int, body: bytes) -> int:
        """-> the unique number of the request."""
        self._unique += 2
        head = struct.pack("=IIQQIIII", 40 + len(body), opcode, self._unique, node,
                           0, 0, os.getpid(), 0)  # fmt: skip
        self._socket.send(head + body)
        return self._unique

    def answer(self) -> tuple[int, int, bytes]:
        """-> unique number, errno, data."""
        data = self._socket.recv(p.REQUEST)
        length, code, unique = p.OUT.unpack_from(data)
        assert length == len(data)
        return unique, -code, data[p.OUT.size :]

    def ask(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        unique = self.send(opcode, node, body)
        answered, code, data = self.answer()
        assert answered == unique
        return code, data

    def look_up(self, name: str, node: int = p.TOP) -> int:
        code, data = self.ask(p.LOOKUP, node, name.encode() + b"\0")
        assert code == 0
        return int(p.LONG.unpack_from(data)[0])

    def stat(self, node: int) -> int:
        """-> an errno or 0."""
        return self.ask(p.GETATTR, node, bytes(16))[0]

    def forget(self, node: int, count: int) -> None:
        self.send(p.FORGET, node, p.LONG.pack(count))

    def forget_many(self, *pairs: tuple[int, int]) -> None:
        numbers = b"".join(struct.pack("=QQ", *pair) for pair in pairs)
        self.send(p.BATCH_FORGET, 0, struct.pack("=II", len(pairs), 0) + numbers)

    def interrupt(self, unique: int) -> None:
        self.send(p.INTERRUPT, 0, p.LONG.pack(unique))

    def end(self) -> None:
        self.source.goes_on.set()
        os.write(self._end, b"x")
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.server.close()
        os.close(self.device)
        os.close(self._end)
        os.close(self._ending)
        self._socket.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    for i in range(FILES):
        kernel.source.create(kernel.source.root, b"f%d" % i, 0o644, 0, 0)
    yield kernel
    kernel.end()


def test_what_is_forgotten_as_often_as_it_was_given_is_gone(kernel: Kernel) -> None:
    nodes = kernel.nodes
    given = [kernel.look_up(f"f{i}") for i in range(FILES) for _ in range(3)]
    assert len(set(given)) == FILES and len(nodes.known) == FILES + 1
    kernel.forget_many(*((node, 2) for node in set(given)))
    assert [kernel.stat(node) for node in set(given)] == [0] * FILES
    first, *others = sorted(set(given))
    kernel.forget(first, 1)
    assert kernel.stat(first) == errno.ESTALE and kernel.stat(others[0]) == 0
    kernel.forget_many(*((node, 1) for node in others))
    assert kernel.stat(p.TOP) == 0
    assert list(nodes.known) == [p.TOP] and not nodes.listed
    assert not nodes._names and not nodes._more
    assert kernel.server.giving.given == 0


def test_idle_memory_is_freed_after_many_forgets(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not while requests come. A dict that has grown stays as large."""
    monkeypatch.setattr("winkmount.kernel.giving.REST_AFTER", 30)
    rested = threading.Event()
    kernel.source.rest = rested.set  # type: ignore[attr-defined]
    nodes, giving = kernel.nodes, kernel.server.giving
    given = [kernel.look_up(f"f{i}") for i in range(FILES)]
    giving.new.update(given)
    for number in given:
        giving.closed(number)
    before = sys.getsizeof(nodes.known), sys.getsizeof(nodes._names)
    kernel.forget_many(*((node, 1) for node in given[:20]))
    assert not rested.wait(0.1)
    kernel.forget_many(*((node, 1) for node in given[20:-1]))
    assert rested.wait(20)
    assert (sys.getsizeof(nodes.known), sys.getsizeof(nodes._names)) < before
    assert list(giving._closed) == given[-1:] and kernel.stat(given[-1]) == 0
    rested.clear()
    assert kernel.stat(p.TOP) == 0 and not rested.wait(0.1)


def test_excess_and_unknown_forgets_are_ignored(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = kernel.look_up("f1"), kernel.look_up("f2")
    kernel.forget(one, 1 << 40)
    kernel.forget(one, 1)
    kernel.forget_many((p.TOP, 5), (123_456_789, 3), (one, 2), ((1 << 64) - 1, 1))
    kernel.forget_many()
    kernel.forget(p.TOP, 1 << 50)
    assert kernel.stat(one) == errno.ESTALE
    assert kernel.stat(other) == kernel.stat(p.TOP) == 0
    assert kernel.stat(kernel.look_up("f1")) == 0
    assert not caplog.records


def test_a_signal_during_an_fsync_loses_no_answer(kernel: Kernel) -> None:
    """One that does not kill; and signals for requests that have been answered, or never were."""
    node = kernel.look_up("f1")
    _, opened = kernel.ask(p.OPEN, node, p.OPEN_IN.pack(os.O_RDWR, 0))
    unique = kernel.send(p.FSYNC, node, opened[:8] + bytes(8))
    assert kernel.source.began.wait(20)
    for number in (unique, unique, unique - 2, unique + 1000, 0, (1 << 64) - 1):
        kernel.interrupt(number)
    assert kernel.stat(node) == 0  # others are served meanwhile
    kernel.source.goes_on.set()
    assert kernel.answer() == (unique, 0, b"")
    kernel.interrupt(unique)
    assert kernel.stat(node) == 0


@pytest.mark.mount
def test_mounts_of_one_container_push_no_pages_of_another_state(tmp_path: Path) -> None:
    """What is read in order is pushed into the page cache: of the mount that it belongs to."""
    base = tmp_path / "c"
    make(base, ((f"d/f{i:03}", b"old %d" % i * 500) for i in range(FILES)))

    def contents(there: Path) -> list[bytes]:
        return [(there / f"d/f{i:03}").read_bytes() for i in range(FILES)]

    old = [b"old %d" % i * 500 for i in range(FILES)]
    with mounted(base) as there, mounted(base, "--ro") as before:
        assert contents(before) == contents(there) == old
        for i in range(0, FILES, 2):
            (there / f"d/f{i:03}").write_bytes(b"new %d" % i)
        new = [b"new %d" % i if i % 2 == 0 else old[i] for i in range(FILES)]
        sync(there)
        with mounted(base, "--ro") as after:
            for _ in range(2):
                assert contents(after) == new
                assert contents(before) == old
                assert contents(there) == new
