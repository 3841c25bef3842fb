"""Callers that wait for an answer, and are let go if they are killed."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

LOOK_EVERY: Final = 0.05  # seconds between two looks at callers that were sent a signal and wait
MASKS: Final = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")  # the first two: pending signals
FATAL: Final = ~sum(
    1 << number - 1
    for number in (
        signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH,
        signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    )
)  # fmt: skip # signals that end a process without a handler for them


class Callers:
    """Callers that wait for an answer that takes long: those that are killed meanwhile are let go.

    The kernel makes a process wait for an answer once its request was read, also one that was
    killed. It reports the first signal that comes to a caller, and not which one it is. A signal
    that has a handler ends no call, as in other file systems.

    waiting  unique number of a request -> the thread that asked; the thread that pops it, answers
    """

    def __init__(self, reply: Callable[[int, int, bytes], None]) -> None:
        """`reply`: answers the kernel: unique, errno, data."""
        self._reply = reply
        self.waiting: dict[int, int] = {}
        self._signalled: set[int] = set()
        self._lock = threading.Lock()  # of `_signalled`, and of whether a thread looks

    def interrupt(self, unique: int) -> None:
        """Note that a signal came to the caller of a request."""
        if unique not in self.waiting:
            return
        with self._lock:
            first = not self._signalled
            self._signalled.add(unique)
        if first:
            threading.Thread(target=self._look, name="winkmount-signals", daemon=True).start()

    def _look(self) -> None:
        """Let callers go that were killed, as long as one waits that was sent a signal."""
        while True:
            for unique in list(self._signalled):
                killed = is_killed(self.waiting.get(unique, 0))
                if killed and self.waiting.pop(unique, None) is not None:
                    with suppress(OSError):
                        self._reply(unique, errno.EINTR, b"")
            with self._lock:
                self._signalled &= self.waiting.keys()
                if not self._signalled:
                    return
            time.sleep(LOOK_EVERY)


def is_killed(thread: int) -> bool:
    """Return whether a signal has come that ends the thread. 0: one that is not known here."""
    if not thread:
        return False
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return True
    fields = (line.partition(":\t") for line in lines)
    masks = {name: int(value, 16) for name, _, value in fields if name in MASKS}
    pending, shared, *handled = (masks.get(name, 0) for name in MASKS)
    for mask in handled:
        pending, shared = pending & ~mask, shared & ~mask
    return (pending | shared) & FATAL != 0
