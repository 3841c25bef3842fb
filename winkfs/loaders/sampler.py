"""Sampler: batches of numbers of rows, in an order that a key determines, which resumes exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, TypeVar

import numpy as np

from winkformats.arrays import Int64
from winkfs.errors import Refusal
from winkfs.loaders.order import Blocks, Disk, Full, Order
from winkfs.loaders.permutation import key_of
from winkfs.loaders.rows import Rows
from winkfs.units import as_int, shown

T = TypeVar("T")
Shuffle = Literal["blocks", "full"] | None
VERSION: Final = 1  # of a state
MOST: Final = 1 << 40
CHUNK: Final = 1 << 12  # positions that are worked out together, where a rank has most of them


class Sampler:
    """Batches of numbers of rows: a `batch_sampler` of PyTorch's DataLoader, and of others.

    The order of an epoch is a function of the rows, `seed` and the epoch. Its batches go to the
    ranks in turn, so a state is one number: how many rows were handed out, by all ranks. It is good
    for other numbers of ranks, workers, and rows in a batch.

    An epoch that has ended makes `epoch` one higher; `set_epoch` is for loops that count
    themselves.
    """

    def __init__(
        self,
        rows: Rows,
        batch: int = 256,
        *,
        seed: int = 0,
        shuffle: Shuffle = "blocks",
        block: int = 1024,
        window: int = 64,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
        pad: bool = False,
    ) -> None:
        """Begin with epoch 0.

        batch      rows of a batch of one rank
        shuffle    "blocks": blocks of `block` rows that are neighbours, of which `window` are read
                   together and mixed; "full": all rows; None: as they lie on the disk
        rank       of this process, and `world`, the number of ranks; None: those of the environment
                   (RANK, WORLD_SIZE), else 0 of 1
        drop_last  leave out the last rows, so that all ranks have as many full batches
        pad        instead repeat some rows, for that. Else each row comes once, the last batch may
                   be shorter, and some ranks may have a batch less
        raises     ValueError; TypeError
        """
        if not isinstance(rows, Rows):
            raise TypeError(f"a sampler takes winkfs.Rows, not {shown(rows)}")
        self.rows, self.batch = rows, as_int(batch, "batch", 1, MOST)
        self.seed = as_int(seed, "seed", -(1 << 63), (1 << 63) - 1)
        if shuffle not in ("blocks", "full", None):
            raise ValueError(f"shuffle is 'blocks', 'full' or None, not {shown(shuffle)}")
        self.shuffle: Shuffle = shuffle
        self.block = as_int(block, "block", 1, MOST)
        self.window = as_int(window, "window", 1, 1 << 16)
        self.rank, self.world = _place(rank, world)
        if drop_last and pad:
            raise ValueError("drop_last and pad exclude each other")
        self.drop_last, self.pad = bool(drop_last), bool(pad)
        self._mixed = _mixture(rows)
        self.total = sum(count for _, _, count in self._mixed)
        self._check()
        self.epoch, self._seen, self._start = 0, 0, 0
        self._followed = False
        self._order: tuple[int, Order] | None = None
        self._chunk = -1, 0, np.empty(0, np.int64)  # epoch, first position, and what is there

    def _check(self) -> None:
        if not self.total:
            where = self.rows.where
            raise ValueError("there are no rows" + (f": no file is {where}" if where else ""))
        batches = self.total // self.batch if self.drop_last else -(-self.total // self.batch)
        if batches < self.world and not self.pad:
            raise ValueError(
                f"{self.total} rows are {batches} batches of {self.batch}, and there are "
                f"{self.world} ranks: take a smaller batch, or pad=True"
            )

    # --- the order ---

    def _ordered(self) -> Order:
        if self._order is None or self._order[0] != self.epoch:
            key, n = key_of(self.seed, self.epoch), self.total
            made: Order
            if self.shuffle == "blocks":
                made = Blocks(n, key, self.block, self.window)
            else:
                made = Full(n, key) if self.shuffle else Disk(n)
            self._order = self.epoch, made
        return self._order[1]

    def _placed(self, start: int, stop: int) -> Int64:
        """Return the places of positions; those of the next batches are found with them."""
        order = self._ordered()
        if 4 * self.batch * self.world > CHUNK:
            return order.take(start, stop)
        epoch, first, found = self._chunk
        if epoch != self.epoch or not first <= start <= stop <= first + len(found):
            found = order.take(start, max(min(start + CHUNK, self.total), stop))
            self._chunk, first = (self.epoch, start, found), start
        return found[start - first : stop - first]

    def take(self, start: int, stop: int) -> Int64:
        """Return the rows at positions [start, stop) of this epoch, of all ranks, int64[n]."""
        places = self._placed(start, stop)
        if len(self._mixed) == 1 and self._mixed[0][1] == self._mixed[0][2]:
            return places
        ends = np.cumsum([count for _, _, count in self._mixed])
        which = np.searchsorted(ends, places, "right")
        first, rows, count = np.array(self._mixed).T
        at = places - (ends - count)[which]
        # Of a weight below 1, each epoch has the rows after those of the one before.
        found: Int64 = first[which] + (at + self.epoch * count[which]) % rows[which]
        return found

    def ahead(self, position: int) -> int:
        """Return the end of the positions that are best read together with this one."""
        return self._ordered().ahead(position)

    # --- batches ---

    def _batches(self, start: int) -> int:
        """Return the number of batches of all ranks from a position on."""
        left = max(self.total - start, 0)
        if self.drop_last:
            return left // self.batch // self.world * self.world
        found = -(-left // self.batch)
        return -(-found // self.world) * self.world if self.pad else found

    def own(self, start: int) -> range:
        """Return the numbers of the batches of this rank, counted from a position on."""
        return range(self.rank, self._batches(start), self.world)

    def numbers(self, start: int, number: int) -> Int64:
        """Return the rows of a batch, counted from a position on."""
        low = start + number * self.batch
        high = low + self.batch
        found = self.take(min(low, self.total), min(high, self.total))
        while self.pad and len(found) < self.batch:
            more = min(self.batch - len(found), self.total)
            found = np.concatenate([found, self.take(0, more)])
        return found

    def __len__(self) -> int:
        """Return the number of batches that this rank has left of the epoch."""
        return len(self.own(self._start))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of this rank: from the position of a state that was loaded, or from the
        start of the epoch."""
        start, epoch, followed = self.begin(), self.epoch, self._followed
        for turn, number in enumerate(self.own(start)):
            if self.epoch != epoch:
                raise Refusal("set_epoch was called while the sampler was iterated: begin anew")
            found: list[int] = self.numbers(start, number).tolist()
            if not followed:
                self.note(start, turn + 1)
            yield found
        if self.epoch == epoch and not followed:
            self.end_epoch()

    def begin(self) -> int:
        """Begin to iterate -> the position to begin at. The next iteration is of a whole epoch."""
        start, self._start = self._start, 0
        if not self._followed:
            self._seen = start
        return start

    def note(self, start: int, turns: int) -> None:
        """Note that all ranks have had some batches from a position on."""
        self._seen = min(start + turns * self.world * self.batch, self.total)

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader over this sampler, and count those that were handed out:
        loaders ask for batches ahead, which a state must not count."""
        start, epoch = self._start, self.epoch
        self._followed, self._seen = True, start
        try:
            for turn, found in enumerate(loader):
                self.note(start, turn + 1)
                yield found
        finally:
            self._followed, self._start = False, 0
        if self.epoch == epoch:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self._seen, self._start = self.epoch + 1, 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; nothing changes if it is the current one."""
        epoch = as_int(epoch, "epoch", 0, MOST)
        if epoch != self.epoch:
            self.epoch, self._seen, self._start = epoch, 0, 0

    # --- state ---

    @property
    def followed(self) -> bool:
        """Return whether `over` counts what is handed out."""
        return self._followed

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for JSON: after the batches that were handed out, of all ranks."""
        return {
            "version": VERSION, "data": self.rows.data, "where": self.rows.where,
            "seed": self.seed, "epoch": self.epoch, "seen": self._seen,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken; the next iteration begins there.

        strict  False: also with other data, another condition or seed
        raises  ValueError
        """
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise ValueError(f"no state of a sampler of this version: {shown(state)}")
        mine = self.state_dict()
        if strict:
            for name, what in (("data", "other data"), ("where", "another where"),
                               ("seed", "another seed")):  # fmt: skip
                if state.get(name) != mine[name]:
                    raise ValueError(
                        f"the state is of {what} ({shown(state.get(name))}, here "
                        f"{shown(mine[name])}): strict=False goes on nevertheless"
                    )
        epoch = as_int(state.get("epoch"), "epoch", 0, MOST)
        seen = as_int(state.get("seen"), "seen", 0, None if not strict else self.total)
        self.epoch, self._seen = epoch, min(seen, self.total)
        self._start = self._seen


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return rank and number of ranks. Raises ValueError."""
    if (rank is None) != (world is None):
        raise ValueError("rank and world go together: give both, or none")
    if rank is None or world is None:
        rank, world = _environment("RANK", 0), _environment("WORLD_SIZE", 1)
    world = as_int(world, "world", 1)
    return as_int(rank, "rank", 0, world - 1), world


def _environment(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else otherwise
    except ValueError:
        raise ValueError(f"{name} is {text!r} in the environment: a number is needed") from None


def _mixture(rows: Rows) -> list[tuple[int, int, int]]:
    """Return for each store its first row, the number of its rows, and that of an epoch."""
    if rows.weights is None:
        return [(0, len(rows), len(rows))]
    found, first = list[tuple[int, int, int]](), 0
    for count, weight in zip(rows.source_rows, rows.weights, strict=True):
        if count:
            found.append((first, count, max(round(count * weight), 1)))
        first += count
    return found
