"""Which files that are listed come with numbers and attributes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

HELD: Final = 1100  # bytes that the kernel keeps for a number: an inode, and a name
SHARE: Final = 8  # of the memory that is free: one part of so many is for them
LEAST: Final = 1 << 16  # numbers
FREELY: Final = 1 << 18  # numbers that are given whether files are looked at or not
LOOK: Final = 1.0  # seconds until the next look at what is free
PROBES: Final = 8  # one of so many replies leaves a file out
IN_VAIN: Final = 8  # of which so many were not looked up: files are not looked at


class Giving:
    """Decides whether the kernel is given the numbers of files that it only lists.

    It keeps an inode of 1 KB for each until it forgets it, which it says, and makes one in 2 to 3
    us, where a name alone takes 0.3: that pays where the file is looked at, which then costs no
    request. The first FREELY are given in any case. Further ones as long as files are looked at:
    they are where a file is looked up that was listed without a number; so of those with numbers a
    few are left out, too. Beyond a part of the memory that is free none are given.

    held    numbers that the kernel was given and has not forgotten
    """

    def __init__(self) -> None:
        self.held = 0
        self._most, self._due = 0, 0.0  # how many it may have; when that is looked at again
        self._wanted = False
        self._bare = 0  # the directory listed last in which a file had no number
        self._replies = self._in_vain = 0

    def begins(self) -> None:
        """A directory is listed from its start. Cost: sometimes a look at the free memory."""
        now = time.monotonic()
        if now >= self._due:
            self._most, self._due = _most(), now + LOOK

    def gives(self, node: int, count: int) -> tuple[bool, bool]:
        """Whether to give so many more numbers of files of a directory; and whether all of them,
        or not the last."""
        after = self.held + count
        if after <= min(FREELY, self._most):
            return True, True
        if not self._wanted or after > self._most:
            self._bare = node
            return False, False
        self._replies += 1
        if self._replies % PROBES:
            return True, True
        self._bare, self._in_vain = node, self._in_vain + 1
        self._wanted = self._in_vain < IN_VAIN
        return True, False

    def looked_up(self, parent: int) -> None:
        """The kernel asks for a file in a directory, and is given its number."""
        self.held += 1
        if parent == self._bare:
            self._wanted, self._in_vain = True, 0

    def forgotten(self, count: int) -> None:
        self.held = max(self.held - count, 0)


def _most() -> int:
    """How many numbers the kernel may have of files that are only listed."""
    with Path("/proc/meminfo").open("rb") as file:
        free = next((line for line in file if line.startswith(b"MemAvailable:")), b" 0")
    return max(int(free.split()[1]) * 1024 // SHARE // HELD, LEAST)
