"""Stream: the rows of a sampler in its order, read ahead, for iterable-style loaders."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import numpy as np

from winkformats.arrays import Int64
from winkfs.errors import need
from winkfs.loaders.rows import Rows, Windows
from winkfs.loaders.sampler import Sampler
from winkfs.units import as_int, shown

Yields = Literal["rows", "batches", "arrow"]
FAR_THREADS: Final = 4  # of "auto", for stores on object storage
MOST_THREADS: Final = 256
HELD_BYTES: Final = 256 << 20  # of a store on object storage, read together; and as many ahead
MOST_HELD: Final = 1 << 10  # batches of them
Group = tuple[list[Int64], list[Int64]]
ALONE: Final = (-1, 1)  # in the place of worker and workers: this process is none of them
T = TypeVar("T")
R = TypeVar("R")


class Stream:
    """The rows of a sampler: an iterable-style data set, for PyTorch one of its IterableDataset.

    In workers of PyTorch's DataLoader the batches of the rank go to the workers in turn. Its state
    counts the rows that were yielded; that of a worker belongs to this worker.
    """

    def __init__(
        self,
        rows: Rows,
        sampler: Sampler | None = None,
        *,
        workers: int | Literal["auto"] = "auto",
        yields: Yields = "rows",
    ) -> None:
        """Begin where the sampler is.

        sampler  None: `Sampler(rows)`
        workers  threads that read ahead, a batch each; "auto": 4 of a store on object storage, else
                 none
        yields   "rows": row by row; "batches": lists of rows, as the sampler has them; "arrow":
                 these as Arrow batches
        raises   ValueError; TypeError; Refusal without pyarrow
        """
        sampler = Sampler(rows) if sampler is None else sampler
        if not isinstance(sampler, Sampler) or sampler.rows is not rows:
            raise ValueError("the sampler of a stream is one of its rows: Sampler(rows, ..)")
        if yields not in ("rows", "batches", "arrow"):
            raise ValueError(f"yields is 'rows', 'batches' or 'arrow', not {shown(yields)}")
        if yields == "arrow":
            need("pyarrow", "a stream of Arrow batches", "arrow")
        self.rows, self.sampler, self.yields = rows, sampler, yields
        auto = FAR_THREADS if rows.far else 0
        self.threads = auto if workers == "auto" else as_int(workers, "workers", 0, MOST_THREADS)
        self._start, self._turns, self._part = 0, 0, 0  # of what was yielded: see `state_dict`
        self._resume, self._worker = (0, 0), ALONE
        self._begun, self._place = False, (0, 0)
        _enrol()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _enrol()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch: see `Sampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

    def part(self, worker: int, workers: int) -> Stream:
        """Return the stream of one of some workers, for loaders that are not PyTorch's."""
        made = copy(self)
        workers = as_int(workers, "workers", 1)
        made._place = as_int(worker, "worker", 0, workers - 1), workers
        made.sampler = copy(self.sampler)
        return made

    # --- reading ---

    def __iter__(self) -> Iterator[Any]:
        """Yield rows or batches: from the position of a state that was loaded, or from the start of
        the epoch.

        raises  ValueError if the state is that of a worker of another number of workers
        """
        sampler = self.sampler
        worker, workers = self._place if self._place[1] else _worker()
        turn, part = self._resume
        if self._resume != (0, 0) and (worker, workers) != self._worker:
            raise ValueError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is "
                f"worker {worker} of {workers}: take that of the sampler"
            )
        start, epoch = sampler.begin(), sampler.epoch
        self._start, self._turns, self._part, self._begun = start, turn, part, True
        self._resume, self._worker = (0, 0), (worker, workers)
        for found in self._read(start, sampler.own(start)[max(worker, 0) :: workers][turn:]):
            if self.yields == "rows":
                for row in found[part:]:
                    self._part += 1
                    if self._part == len(found):
                        self._count()
                    yield row
                if len(found) <= part:
                    self._count()  # all of it was yielded before, or left out
            else:
                self._count()
                yield found
            part = 0
        if (worker, workers) == ALONE:  # else the state of the worker is that of the end
            if sampler.epoch == epoch and not sampler.followed:
                sampler.end_epoch()
            self._begun = False

    def _count(self) -> None:
        """Note that a batch was yielded."""
        self._turns, self._part = self._turns + 1, 0
        if self._worker == ALONE and not self.sampler.followed:
            self.sampler.note(self._start, self._turns)

    def _read(self, start: int, numbers: range) -> Iterator[Any]:
        """Yield batches, read ahead."""
        if not self.threads:
            yield from map(self._batch, self._numbers(start, numbers))
        elif self.rows.far:
            before: Windows = {}
            for windows, some in _ahead(self._held, self._groups(start, numbers), 1):
                for each in some:
                    yield self._batch(each, [before, windows])
                before = windows
        else:
            yield from _ahead(self._batch, self._numbers(start, numbers), 2 * self.threads)

    def _numbers(self, start: int, numbers: range) -> Iterator[Int64]:
        return (self.sampler.numbers(start, number) for number in numbers)

    def _groups(self, start: int, numbers: range) -> Iterator[Group]:
        """Yield rows that are read together, those of a window of the order up to a size, and the
        batches that end with them: all their rows are in this group and the one before."""
        sampler, rows, done = self.sampler, list[Int64](), list[Int64]()
        size, end = 0, -1
        for number in numbers:
            position = start + number * sampler.batch
            left = found = sampler.numbers(start, number)
            while len(left):
                if end < 0:
                    end = sampler.ahead(min(position, sampler.total - 1))
                part = left[: max(end - position, 0)] if end < sampler.total else left
                more = self.rows.bytes_of(part)
                if len(part) and (not rows or size + more <= HELD_BYTES):
                    rows.append(part)
                    size, position, left = size + more, position + len(part), left[len(part) :]
                if len(left):
                    yield rows, done
                    rows, done, size, end = [], [], 0, -1
            done.append(found)
            if len(done) >= MOST_HELD:
                yield rows, done
                rows, done, size = [], [], 0
        if done:
            yield rows, done

    def _held(self, group: Group) -> tuple[Windows, list[Int64]]:
        rows, batches = group
        return (self.rows.held(np.concatenate(rows)) if rows else {}), batches

    def _batch(self, numbers: Int64, windows: Sequence[Windows] = ()) -> Any:
        rows = self.rows.taken(numbers, windows)
        if self.yields == "arrow":
            import pyarrow as pa

            return pa.RecordBatch.from_pylist(rows)
        return rows

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for JSON: after what was yielded. That of a worker of PyTorch is for
        the worker of that number."""
        state, (worker, workers) = self.sampler.state_dict(), self._worker
        turns, part = (self._turns, self._part) if self._begun else self._resume
        if self._worker == ALONE:
            turns = 0 if self._begun else turns  # the sampler has counted them
        elif self._begun or turns or part:
            state |= {"worker": [worker, workers]}
            if self._begun:
                state["seen"] = self._start
        return state | {name: n for name, n in (("turns", turns), ("part", part)) if n}

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, also that of a sampler: see `Sampler.load_state_dict`."""
        self.sampler.load_state_dict(state, strict=strict)
        turn, part = (as_int(state.get(name, 0), name, 0) for name in ("turns", "part"))
        worker, workers = state.get("worker", ALONE)
        self._resume, self._worker, self._begun = (turn, part), (worker, workers), False


def _ahead(call: Callable[[T], R], given: Iterator[T], count: int) -> Iterator[R]:
    """Yield the results of calls in threads, of which `count` run ahead."""
    waiting = deque[Future[R]]()
    pool = ThreadPoolExecutor(max(count // 2, 1), thread_name_prefix="winkfs-stream")
    try:
        while True:
            for each in islice(given, count + 1 - len(waiting)):
                waiting.append(pool.submit(call, each))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


def _worker() -> tuple[int, int]:
    """Return number and count of the workers of PyTorch, if this process is one of them."""
    torch = sys.modules.get("torch.utils.data")
    info = None if torch is None else torch.get_worker_info()
    return ALONE if info is None else (info.id, info.num_workers)


def _enrol() -> None:
    """Make Stream an IterableDataset of PyTorch, where that is imported."""
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and not issubclass(Stream, torch.IterableDataset):
        torch.IterableDataset.register(Stream)
