"""Stream: the rows of a sampler in its order, read ahead, for iterable-style loaders."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, Literal

from winkfs.errors import need
from winkfs.loaders.rows import Rows
from winkfs.loaders.sampler import Sampler
from winkfs.units import as_int, shown

Yields = Literal["rows", "batches", "arrow"]
FAR_THREADS: Final = 4  # of "auto", for stores on object storage
MOST_THREADS: Final = 256


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
        self._resume, self._worker = (0, 0), (0, 1)
        self._begun = False
        _enrol()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _enrol()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch: see `Sampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

    # --- reading ---

    def __iter__(self) -> Iterator[Any]:
        """Yield rows or batches: from the position of a state that was loaded, or from the start of
        the epoch.

        raises  ValueError if the state is that of a worker of another number of workers
        """
        sampler, (worker, workers) = self.sampler, _worker()
        turn, part = self._resume
        if self._resume != (0, 0) and (worker, workers) != self._worker:
            raise ValueError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is "
                f"worker {worker} of {workers}: take that of the sampler"
            )
        start, epoch = sampler.begin(), sampler.epoch
        self._start, self._turns, self._part, self._begun = start, turn, part, True
        self._resume, self._worker = (0, 0), (worker, workers)
        for found in self._read(start, sampler.own(start)[worker::workers][turn:]):
            if self.yields == "rows":
                for row in found[part:]:
                    self._part += 1
                    if self._part == len(found):
                        self._count()
                    yield row
            else:
                self._count()
                yield found
            if self._part:
                self._count()  # of a batch all of which was yielded before, or left out
            part = 0
        if sampler.epoch == epoch and not sampler.followed:
            sampler.end_epoch()
        self._begun = False

    def _count(self) -> None:
        """Note that a batch was yielded."""
        self._turns, self._part = self._turns + 1, 0
        if self._worker[1] == 1 and not self.sampler.followed:
            self.sampler.note(self._start, self._turns)

    def _read(self, start: int, numbers: range) -> Iterator[Any]:
        """Yield batches, of which `threads` are read at a time."""
        calls = (self.sampler.numbers(start, number) for number in numbers)
        if not self.threads:
            yield from map(self._batch, calls)
            return
        waiting = deque[Future[Any]]()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="winkfs-stream")
        try:
            while True:
                for call in islice(calls, 2 * self.threads - len(waiting)):
                    waiting.append(pool.submit(self._batch, call))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    def _batch(self, numbers: Any) -> Any:
        rows = self.rows.__getitems__(numbers)
        if self.yields == "arrow":
            import pyarrow as pa

            return pa.RecordBatch.from_pylist(rows)
        return rows

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for JSON: after what was yielded. That of a worker of PyTorch is for
        the worker of that number."""
        state = self.sampler.state_dict()
        if not self._begun:
            turn, part = self._resume
            return state | ({"turns": turn, "part": part} if turn or part else {})
        if self._worker[1] == 1:
            return state | ({"part": self._part} if self._part else {})
        return state | {
            "seen": self._start, "turns": self._turns, "part": self._part,
            "worker": list(self._worker),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Go on where a state was taken, also that of a sampler: see `Sampler.load_state_dict`."""
        self.sampler.load_state_dict(state, strict=strict)
        turn, part = (as_int(state.get(name, 0), name, 0) for name in ("turns", "part"))
        worker, workers = state.get("worker", (0, 1))
        self._resume, self._worker, self._begun = (turn, part), (worker, workers), False


def _worker() -> tuple[int, int]:
    """Return number and count of the workers of PyTorch, if this process is one of them."""
    torch = sys.modules.get("torch.utils.data")
    info = None if torch is None else torch.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _enrol() -> None:
    """Make Stream an IterableDataset of PyTorch, where that is imported."""
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and not issubclass(Stream, torch.IterableDataset):
        torch.IterableDataset.register(Stream)
