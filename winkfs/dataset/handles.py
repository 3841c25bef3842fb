"""The containers of a snapshot, opened when they are asked for."""

from __future__ import annotations

import os
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64
from winkformats.errors import FormatError
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.inode import inode_key
from winkfs.dataset.shard import Shard
from winkfs.errors import NoSuchFile, StalePlan, warn_of_damage

OPEN: Final = 100  # containers kept open, with four or five descriptors each


class Handles:
    """The shards of a snapshot by number, the winner last. For one thread at a time."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self._ranges = [shard.record.names for shard in shards]
        self._open: OrderedDict[int, Container] = OrderedDict()
        self._problems: dict[int, list[str]] = {}  # of each that was opened
        weakref.finalize(self, _let_go, self._open, os.getpid())

    def container(self, number: int) -> Container:
        """For reading, as of the snapshot. Raises StalePlan; FormatError; OSError."""
        found = self._open.get(number)
        if found is not None:
            self._open.move_to_end(number)
            return found
        shard = self.shards[number]
        try:
            found = open_container(shard.base)
        except NoSuchFile:
            raise StalePlan("a shard is gone: it was vacuumed, or lost", shard.base) from None
        try:
            shard.check(found.parts()[0])
            if number not in self._problems:
                warn_of_damage(found.base, found.problems)
        except BaseException:
            found.close()
            raise
        found.freeze()
        self._problems[number] = found.problems
        self._open[number] = found
        if len(self._open) > OPEN:
            self._open.popitem(last=False)[1].close()
        return found

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def problems(self) -> list[str]:
        """The damage that was met in those opened so far."""
        return [problem for found in self._problems.values() for problem in found]

    # --- names ---

    def find(self, name: bytes) -> int:
        """Number of the shard whose file of this name is to be seen, -1: none.

        raises  FormatError where one that cannot be opened may have it: a file in an older one that
                is not hidden is right all the same
        cost    a look into the index of each shard that may have the name, the winner first
        """
        key = inode_key(name)
        damage: FormatError | None = None
        for number in range(len(self.shards) - 1, -1, -1):
            if not self._may_have(number, name, name):
                continue
            try:
                pos = self.container(number).parts()[0].index.lookup(key)
            except FormatError as error:
                damage = self._note(number, error)
                continue
            if pos:  # hidden: only a tombstone wins over the first that is found
                hidden = self.shards[number].hidden
                at = int(hidden.searchsorted(pos))
                if at == len(hidden) or hidden[at] != pos:
                    return number
                break
        if damage is not None:
            raise damage
        return -1

    def find_many(self, names: Sequence[bytes]) -> Int64:
        """The same for many names, int64[n]: by their hashes, so that a file may be missing yet."""
        keys = [inode_key(name) for name in names]
        found = np.full(len(keys), -1, np.int64)
        todo = np.arange(len(keys))
        low, high = (min(names), max(names)) if names else (b"", b"")
        damaged: dict[int, FormatError] = {}
        for number in range(len(self.shards) - 1, -1, -1):
            if not len(todo):
                break
            if not self._may_have(number, low, high):
                continue
            try:
                index = self.container(number).parts()[0].index
                pos = index.candidates([keys[i] for i in todo.tolist()])
            except FormatError as error:
                damaged[number] = self._note(number, error)
                continue
            hit = pos > 0
            seen = hit.copy()
            seen[hit] = ~self._hidden(number, pos[hit])
            found[todo[seen]] = number
            todo = todo[~hit]
        for number, damage in damaged.items():
            for i in np.flatnonzero(found < 0).tolist():
                if self._may_have(number, names[i], names[i]):
                    raise damage
        return found

    def _note(self, number: int, error: FormatError) -> FormatError:
        """Tell of a shard that cannot be opened, once."""
        if number not in self._problems:
            self._problems[number] = [str(error)]
            warn_of_damage(self.shards[number].base, self._problems[number])
        return error

    def _may_have(self, number: int, low: bytes, high: bytes) -> bool:
        """Whether a shard may have one of the names low .. high."""
        if not self.shards[number].record.files:
            return False
        known = self._ranges[number]
        return known is None or (known[0] <= high and low <= known[1])

    def _hidden(self, number: int, positions: Int64) -> Bools:
        """Which of these positions are hidden, bool[n]."""
        hidden = self.shards[number].hidden
        if not len(hidden):
            return np.zeros(len(positions), bool)
        at = np.minimum(np.searchsorted(hidden, positions), len(hidden) - 1)
        same: Bools = hidden[at] == positions
        return same

    def may_have_prefix(self, number: int, prefix: bytes) -> bool:
        """Whether a shard may have names with this prefix."""
        known = self._ranges[number]
        if not prefix or known is None:
            return True
        return known[0][: len(prefix)] <= prefix <= known[1]


def _let_go(containers: OrderedDict[int, Container], pid: int) -> None:
    """Close what is left open when nobody has the data set any more."""
    if containers and os.getpid() == pid:
        first = next(iter(containers.values())).base
        while containers:
            containers.popitem()[1].close()
        warnings.warn(
            f"unclosed data set: its shard {first} was open", ResourceWarning, stacklevel=3
        )
