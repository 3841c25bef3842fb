"""Giving: decides which numbers the kernel gets, and which it has to forget."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from winkmount.kernel.nodes import NodeTable

NUMBER_BYTES: Final = 1100  # bytes that the kernel keeps for a number: an inode, and a name
MEMORY_SHARE: Final = 8  # of the memory that is free: one part of so many is for them
LEAST_NUMBERS: Final = 1 << 16  # numbers
FREE_NUMBERS: Final = 1 << 18  # numbers that are given whether files are looked at or not
LOOK_EVERY: Final = 1.0  # seconds until the next look at what is free
PROBES: Final = 8  # one of so many replies leaves a file out
IN_VAIN: Final = 1 << 17  # numbers since a file was looked up: find looks after 100,000 names

KNOWN_NUMBERS: Final = 1 << 18  # numbers of files that it may have, 100 MB here
LISTED_NUMBERS: Final = 1 << 20  # those of files that were only listed, 120 MB here
REST_AFTER: Final = 1 << 14  # numbers that are forgotten before memory is given back
MOST_PRUNED: Final = 1 << 12  # of those that were listed, at once
PRUNED: Final = 256  # files that it is made to forget at once


class Giving:
    """Decides whether the kernel is given the numbers of files that it only lists, and has it
    forget some that it was given first.

    It keeps an inode of 1 KB for each until it forgets it, which it reports, and making an inode
    takes it several times as long as a name alone. That pays if the file is looked at, which then
    costs no request. The first FREE_NUMBERS are given at once, further ones as long as files
    are looked at: the sign of that is a look-up of a file that was listed without a number, so a
    few are left out among those with numbers. Beyond a part of the free memory none are given.

    Of a Source that changes, the server remembers numbers, too. So the kernel is made to forget
    them beyond KNOWN_NUMBERS and LISTED_NUMBERS, and new files that are closed beyond `kept`: it
    would rather keep their inodes than pages of other programs.

    given   numbers that the kernel was given and has not forgotten
    new     of these those of new files that are open
    """

    def __init__(
        self, prune: Callable[[Sequence[int]], bool], table: NodeTable | None, kept: int = 0
    ) -> None:
        """
        prune  has the kernel forget files that are not in use -> False: it cannot
        table  None: nothing is remembered of the numbers
        kept   see `Changing`
        """
        self._prune_now, self._table, self._kept = prune, table, kept
        self.given = 0
        self._most, self._next_look = 0, 0.0  # how many it may have; when that is looked at again
        self._wanted = False
        self._bare = 0  # the directory listed last in which a file had no number
        self._replies = self._in_vain = 0  # since a file without a number was looked up
        self._prunes, self._beyond = True, 0  # numbers beyond KNOWN_NUMBERS since the last prune
        self.new = set[int]()
        self._closed = deque[int]()  # files that were new
        self._forgotten = 0  # numbers since the last rest

    # files that are listed

    def begins(self) -> None:
        """Note that a directory is listed from its start. Cost: sometimes a look at the free
        memory."""
        now = time.monotonic()
        if now >= self._next_look:
            self._most, self._next_look = _most(), now + LOOK_EVERY

    def gives(self, node: int, count: int) -> int:
        """Return to how many of so many files of a directory the kernel gets numbers."""
        table = self._table
        if table is not None:
            if not (self._prunes or len(table.listed) < LISTED_NUMBERS):
                return 0
            # without lasting ids they are remembered as if they were looked up
            if not table.lasting and len(table.known) >= KNOWN_NUMBERS:
                return 0
        after = self.given + count
        if after <= min(FREE_NUMBERS, self._most):
            return count
        if not self._wanted or after > self._most:
            self._bare = node
            return 0
        self._replies += 1
        self._in_vain += count
        if self._replies % PROBES:
            return count
        self._bare, self._wanted = node, self._in_vain < IN_VAIN
        return count - 1

    def looked_up(self, parent: int) -> None:
        """Note that the kernel looks up a file in a directory."""
        if parent == self._bare:
            self._wanted, self._in_vain = True, 0

    # numbers that are given and forgotten

    def gave(self, count: int = 1) -> None:
        """Note that the kernel got so many numbers."""
        self.given += count
        table = self._table
        if table is None or not self._prunes:
            return
        if len(table.known) > KNOWN_NUMBERS:
            self._beyond += count
            if self._beyond >= PRUNED:
                self._prune(table.known, 1, 2 * self._beyond)  # without the top directory
                self._beyond = 0
        beyond = len(table.listed) - LISTED_NUMBERS
        if beyond > 0:
            self._prune(table.listed, 0, min(beyond, MOST_PRUNED))

    def _prune(self, numbers: dict[int, Any], skip: int, count: int) -> None:
        """Have the kernel forget the first of these behind `skip`, which become the last. It
        reports later which it forgot; what is in use stays."""
        old = list(itertools.islice(numbers, skip, skip + count))
        for number in old:
            numbers[number] = numbers.pop(number)
        self._prunes = self._prune_now(old)

    def closed(self, number: int) -> None:
        """Note that a file was closed."""
        if number in self.new:
            self.new.discard(number)
            self._closed.append(number)
            if len(self._closed) >= self._kept + PRUNED:
                self._prunes = self._prune_now([self._closed.popleft() for _ in range(PRUNED)])

    def forget(self, numbers: Sequence[int]) -> None:
        """Note the numbers that the kernel has forgotten: each and how often, in turns."""
        self._forgotten += len(numbers) // 2
        self.given = max(self.given - sum(numbers[1::2]), 0)
        if self._table is not None:
            for number, count in zip(numbers[::2], numbers[1::2], strict=True):
                self._table.forget(number, count)

    def rest(self) -> bool:
        """Give memory back -> whether there was much."""
        if self._table is None or self._forgotten < REST_AFTER:
            return False
        self._forgotten = 0
        self._table.shrink()
        known = self._table.known
        self._closed = deque(number for number in self._closed if number in known)
        return True


def _most() -> int:
    """Return how many numbers the kernel may have of files that are only listed."""
    with Path("/proc/meminfo").open("rb") as file:
        free = next((line for line in file if line.startswith(b"MemAvailable:")), b" 0")
    return max(int(free.split()[1]) * 1024 // MEMORY_SHARE // NUMBER_BYTES, LEAST_NUMBERS)
