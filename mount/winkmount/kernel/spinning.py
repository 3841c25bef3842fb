"""How long a server asks for the next request before it sleeps: as long as that pays."""

from __future__ import annotations

import time
from typing import Final

TRIES: Final = 32  # waits between two looks at how many were in vain
REST: Final = 16  # requests without a wait after the first look that finds too many
MOST_REST: Final = 512  # after many such looks


class Spinning:
    """When to go on asking. Where half of the waits are in vain it sleeps at once for a while, each
    time for twice as long: whoever asks has other things to do, or others want the processors, and
    then a wait takes them from who would ask.

    seconds  of a wait; 0: never
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits = self._vain = 0  # since the last look
        self._left, self._rest = 0, REST  # requests without a wait: still, and the next time

    def until(self) -> float:
        """Until when to ask, by `time.perf_counter`, now that a request is answered; 0.0: not."""
        if self._waits == TRIES:
            self._look()
        if self._left:
            self._left -= 1
            return 0.0
        if not self._seconds:
            return 0.0
        self._waits += 1
        return time.perf_counter() + self._seconds

    def in_vain(self) -> None:
        """No request came so long."""
        self._vain += 1

    def _look(self) -> None:
        if 2 * self._vain >= self._waits:
            self._left, self._rest = self._rest, min(2 * self._rest, MOST_REST)
        else:
            self._rest = REST
        self._waits = self._vain = 0
