"""Requests that wait for the disk: a thread answers them, and who is killed meanwhile is let go.

The kernel makes a process wait for an answer once its request was read, also one that was killed.
It tells of each signal that comes to who waits, of the first alone, and not which one it was. A
signal that has a handler ends no fsync, here as in other file systems.
"""

from __future__ import annotations

import errno
import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

LOOK: Final = 0.05  # seconds between two looks at who was sent a signal and waits
MASKS: Final = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")  # the first two: pending signals
ENDS: Final = ~sum(
    1 << number - 1
    for number in (
        signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH,
        signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    )
)  # fmt: skip # signals that end who has no handler for them

log = logging.getLogger("winkmount")


class Waiting:
    """The requests of one mount that were read and wait.

    answer  -> an errno or 0, and what is to be said: of opcode, node and body of a request
    reply   says that to the kernel: unique, errno, data
    """

    def __init__(
        self,
        answer: Callable[[int, int, memoryview], tuple[int, bytes]],
        reply: Callable[[int, int, bytes], None],
    ) -> None:
        self._answer, self._reply = answer, reply
        self._thread = ThreadPoolExecutor(1, "winkmount-sync")
        self._callers: dict[int, int] = {}  # unique -> thread that asked; whoever pops it, replies
        self._signalled: set[int] = set()
        self._lock = threading.Lock()  # of `_signalled`, and of whether somebody looks

    def put(self, opcode: int, unique: int, node: int, body: memoryview, caller: int) -> None:
        """Have a request answered. `caller`: the thread that asks."""
        self._callers[unique] = caller
        self._thread.submit(self._run, opcode, unique, node, bytes(body))

    def interrupt(self, unique: int) -> None:
        """A signal came to the caller of a request."""
        if unique not in self._callers:
            return
        with self._lock:
            first = not self._signalled
            self._signalled.add(unique)
        if first:
            threading.Thread(target=self._look, name="winkmount-signals", daemon=True).start()

    def close(self) -> None:
        """Return when all are answered."""
        self._thread.shutdown()

    def _run(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if unique in self._callers:
            self._end(unique, *self._answer(opcode, node, memoryview(body)))

    def _end(self, unique: int, code: int, data: bytes = b"") -> None:
        if self._callers.pop(unique, None) is None:
            return
        try:
            self._reply(unique, code, data)
        except OSError as error:
            log.error("the answer to a request that waited: %s", error)

    def _look(self) -> None:
        """Let those go that were killed, as long as anybody waits who was sent a signal."""
        while True:
            for unique in list(self._signalled):
                if is_killed(self._callers.get(unique, 0)):
                    self._end(unique, errno.EINTR)
            with self._lock:
                self._signalled &= self._callers.keys()
                if not self._signalled:
                    return
            time.sleep(LOOK)


def is_killed(thread: int) -> bool:
    """Whether a signal has come that ends the thread. 0: one that is not known here."""
    if not thread:
        return False
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return True
    masks = {name: int(value, 16) for name, _, value in map(_partition, lines) if name in MASKS}
    pending, shared, *handled = (masks.get(name, 0) for name in MASKS)
    for mask in handled:
        pending, shared = pending & ~mask, shared & ~mask
    return (pending | shared) & ENDS != 0


def _partition(line: str) -> tuple[str, str, str]:
    return line.partition(":\t")
