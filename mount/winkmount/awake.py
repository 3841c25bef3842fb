"""Keeping the processors awake while requests come.

A request that meets sleeping processors costs two wake-ups: the server's and the caller's. On a
virtual machine that is 100 us, three times what the work takes. Create + write 4 KiB + close:
1,800 files/s, and 6,500 with this.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Final

DEVICE: Final = "/dev/cpu_dma_latency"  # open: no processor sleeps deeper than was written into it
NO_SLEEP: Final = bytes(4)  # an int32: microseconds
LINGER: Final = 0.1  # seconds without a request after which they may sleep again


class AwakeLock:
    """The lock that every request takes, and so the one who knows that requests come.

    It concerns the whole machine: all its processors stay in their shallowest idle state from the
    first request of a burst until LINGER after the last. Cost: 0.3 us a request.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = threading.Event()
        self._asked = False
        threading.Thread(target=self._hold, daemon=True).start()

    def __enter__(self) -> bool:
        self._asked = True
        if not self._busy.is_set():
            self._busy.set()
        return self._lock.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def _hold(self) -> None:
        pause = threading.Event()
        while self._busy.wait():
            with Path(DEVICE).open("wb", buffering=0) as device:
                device.write(NO_SLEEP)
                while self._asked:
                    self._asked = False
                    pause.wait(LINGER)
            self._busy.clear()
