"""Server: answers the requests of the kernel for one mount, of any Source.

What a request asks for is answered by the parts of the server: names, extended attributes, files
and directories. Each has a table of its answers, by opcode. What holds for all requests is here:
the lock, what is refused, what is tried again, and what is logged.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np

from winkmount.kernel import protocol as p
from winkmount.kernel.ahead import Reads
from winkmount.kernel.device import Connection, Pace, mount, signals, unmount
from winkmount.kernel.entries import Shown
from winkmount.kernel.files import FileRequests
from winkmount.kernel.giving import Giving
from winkmount.kernel.listings import FixedDirectories, OpenDirectories
from winkmount.kernel.names import Names
from winkmount.kernel.nodes import NodeTable
from winkmount.served import FOREVER, Served
from winkmount.source import Nodes

WANTED: Final = (
    p.ASYNC_READ | p.ATOMIC_O_TRUNC | p.BIG_WRITES | p.DO_READDIRPLUS | p.ASYNC_DIO
    | p.PARALLEL_DIROPS | p.MAX_PAGES | p.CACHE_SYMLINKS | p.HANDLE_KILLPRIV_V2 | p.NO_OPEN_SUPPORT
)  # fmt: skip
SYNCS: Final = frozenset({p.FSYNC, p.FSYNCDIR})  # they wait for the disk, without the lock

log = logging.getLogger("winkmount")


class Server:
    """The requests of one mount.

    A `NodeTable` maps the kernel's numbers to the ids of the Source. A tree that never changes has
    `Nodes`: the kernel gets the Source's own numbers.
    """

    def __init__(
        self,
        served: Served,
        connection: Connection | None = None,
        shown: Shown = Shown(),  # noqa: B008 # it is frozen
        nodes: Nodes | None = None,
    ) -> None:
        """
        connection  None: requests are answered by `answer` alone
        nodes       of a tree that never changes
        """
        self._served, self._source, self._connection = served, served.source, connection
        self.table = NodeTable(self._source) if nodes is None else None
        numbers = nodes or self.table
        assert numbers is not None
        kept = served.changing.kept if self._source.writable else 0
        prune = connection.prune if connection else _cannot_prune
        self.giving = Giving(prune, self.table, kept)
        names = Names(served, numbers, self.giving, shown)
        files = FileRequests(served, numbers, names, self.giving)
        self.calls: p.Calls = names.calls | files.calls
        self._reads: Reads | None = None
        if self.table is not None:
            self.calls |= OpenDirectories(served, self.table, self.giving, shown).calls
        elif nodes is not None:
            self.calls |= FixedDirectories(served, nodes, self.giving, shown).calls
            if connection is not None:
                answer = partial(self._answer_held, p.READ)
                self._reads = Reads(served, nodes, connection, answer, self._limit)
        self._patience = served.source.patience
        self._until = dict[int, float]()  # of requests that other threads answer
        self._thread = ThreadPoolExecutor(1, "winkmount-sync")  # waits for the disk
        if connection is not None:
            served.caller = connection.caller

    def close(self) -> None:
        self._thread.shutdown()
        if self._reads is not None:
            self._reads.close()

    # what a connection asks, see `device.Server`

    def request(self, opcode: int, unique: int, node: int, body: memoryview) -> bool:
        """Answer a request, or have it answered by another thread."""
        assert self._connection is not None
        if self._patience:
            until = (self._connection.arrived or time.monotonic()) + self._patience
            self._source.limit(until)
            self._until[unique] = until
        if opcode in SYNCS and self._source.writable:
            self._connection.hold(unique)
            self._thread.submit(self._answer_held, opcode, unique, node, bytes(body))
            return False
        if opcode == p.READ and self._reads and self._reads.later(unique, node, body):
            return False
        if self._patience:
            self._until.pop(unique, None)
        self._connection.reply(unique, *self.answer(opcode, node, body))
        return True

    def _limit(self, unique: int) -> None:
        """Give this thread the time that is left to a request which it is going to answer."""
        if self._patience:
            self._source.limit(self._until.pop(unique, 0.0) or time.monotonic())

    def _answer_held(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        """Answer a request that the connection holds, in another thread."""
        assert self._connection is not None
        if unique not in self._connection.callers.waiting:  # it was killed and has its answer
            return
        try:
            self._connection.reply(unique, *self.answer(opcode, node, memoryview(body)))
        except OSError as error:
            log.error("the answer to a request that waited: %s", error)

    def forget(self, opcode: int, node: int, body: memoryview) -> None:
        """Note which numbers the kernel no longer holds."""
        if opcode == p.FORGET:
            numbers = [node, *p.LONG.unpack_from(body)]
        else:
            numbers = np.frombuffer(body, np.int64)[1:].tolist()
        with self._served.mutex:
            self.giving.forget(numbers)

    def idle(self) -> bool:
        return self._reads is None or not self._reads.busy

    def rest(self) -> None:
        with self._served.mutex:
            rested = self.giving.rest()
        if rested:
            self._source.rest()

    # what holds for all requests

    def answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        """Return an errno or 0, and the reply.

        A call is made once more if the Source has forgotten the id of a directory, or recovers from
        damage; after damage not one that changes something, since it may be half done.
        """
        call, changes, source = self.calls.get(opcode), opcode in p.CHANGES, self._source
        try:
            if call is None:  # not implemented; no change of a read-only tree is
                return errno.EROFS if changes and not source.writable else errno.ENOSYS, b""
            if opcode in SYNCS:
                return 0, call(node, body)
            with self._served.mutex:
                try:
                    if changes:
                        self._served.begin_change()
                    return 0, call(node, body)
                except OSError as error:
                    if error.errno != errno.ESTALE or self.table is None:
                        raise
                    self.table.look_again()
                except Exception as error:
                    if changes or not source.heal(error):
                        raise
                return 0, call(node, body)
        except OSError as error:
            if error.errno == errno.EIO and self._patience:
                log.error("%s: %s", error.filename or name_of(call), error.strerror)
            if error.errno:
                return error.errno, b""
            log.exception("%s of number %d", name_of(call), node)
        except Exception as error:
            log.error("%s of number %d: %s", name_of(call), node, error)
            log.debug("%s", name_of(call), exc_info=True)
        return errno.EIO, b""


def _cannot_prune(numbers: Sequence[int]) -> bool:
    return False


def name_of(call: p.Call | None) -> str:
    """Return the name of a request, for the log."""
    return getattr(call, "__name__", "request").strip("_")


def serve(
    served: Served, nodes: Nodes | None, point: str, options: dict[str, str | bool], pace: Pace
) -> None:
    """Mount, and answer the kernel until the mount is gone or a signal comes. Raises Refused."""
    shown = Shown.take(options)
    device = mount(point, options)
    try:
        connection = Connection(device, pace)
        wanted = WANTED | (p.AUTO_INVAL_DATA if served.caching.names != FOREVER else 0)
        with signals() as ending:
            if connection.begin(wanted):
                served.on_start()
                server = Server(served, connection, shown, nodes)
                try:
                    connection.serve(server, ending)
                finally:
                    server.close()
    finally:
        unmount(device, point)
