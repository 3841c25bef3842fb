"""A small DataLoader, as PyTorch's: processes read batches ahead, which come in order."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from winkfs.loaders import Stream


def _indexed(rows: Any, pipe: Any) -> None:
    """Answer lists of numbers with rows, until None comes."""
    while (numbers := pipe.recv()) is not None:
        pipe.send(rows.__getitems__(numbers))


def _streamed(stream: Stream, worker: int, workers: int, pipe: Any) -> None:
    """Answer each question with the next batch; None: there is none."""
    batches = iter(stream.part(worker, workers))
    while pipe.recv() is not None:
        pipe.send(next(batches, None))


class DataLoader:
    """Batches of rows, read by `workers` processes; 0: by this one.

    data     Rows, or a Stream that yields batches
    sampler  of batches of numbers, for Rows
    """

    def __init__(
        self,
        data: Any,
        sampler: Iterable[Any] | None = None,
        workers: int = 0,
        context: str = "fork",
        prefetch: int = 2,
    ) -> None:
        self.data, self.sampler, self.workers = data, sampler, workers
        self._context, self._prefetch = multiprocessing.get_context(context), prefetch

    def __iter__(self) -> Iterator[Any]:
        if not self.workers:
            if self.sampler is None:
                yield from self.data
            else:
                yield from map(self.data.__getitems__, self.sampler)
            return
        pipes, processes = [], []
        for worker in range(self.workers):
            here, there = self._context.Pipe()
            given = (self.data, there)
            if self.sampler is None:
                given = (self.data, worker, self.workers, there)  # type: ignore[assignment]
            run = _streamed if self.sampler is None else _indexed
            process = self._context.Process(target=run, args=given, daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        self.pids = [process.pid for process in processes]
        try:
            yield from self._ordered(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()

    def _ordered(self, pipes: list[Any]) -> Iterator[Any]:
        questions = iter(self.sampler if self.sampler is not None else _forever())
        waiting, turn = deque[Any](), 0
        while True:
            while len(waiting) < self._prefetch * len(pipes):
                question = next(questions, None)
                if question is None:
                    break
                pipe = pipes[turn % len(pipes)]
                pipe.send(question)
                waiting.append(pipe)
                turn += 1
            if not waiting:
                break
            pipe = waiting.popleft()
            assert pipe.poll(20), "a worker hangs"
            answer = pipe.recv()
            if answer is None:
                break
            yield answer


def _forever() -> Iterator[bool]:
    while True:
        yield True
