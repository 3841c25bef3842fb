"""How fast are records pushed and popped, beside SQLite-backed queues and a plain append?

Records of 256 bytes: 200,000, of the SQLite queues 2,000, for persist-queue syncs each transaction,
and a pop of litequeue takes the longer the more messages there were. The Ring Page buffer has
64 KiB of memory, and is flushed behind the pushes: all is on the disk, and comes back from there.
In turn: each record is popped right behind its push. Durable: a sync, or a transaction, for a
hundred. Append: os.write of each record; its pops are reads of the file.

Written: bytes that system calls write for each byte of records, as /proc/self/io counts them; for
records of several sizes as the Ring Page buffer counts, beside what whole records in pages take.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import samples
from common import Case, Options, Phases, Watch, interleaved, options, scratch
from report import Goal, Report

from winkformats.ringpage.page import HEAD, SHORT
from winkfs.stores.ringpage import Ring, create

SIZE: Final = 256  # bytes of a record
SYNCED: Final = 2000  # records that are pushed with a sync behind each EACH
EACH: Final = 100
MEMORY: Final = 64 << 10  # bytes of records that wait in memory
SIZES: Final = (16, 64, 256, 1000, 2050, 3000, 4062)
AMPLIFIED: Final = 8 << 20  # bytes of records of each of these
PAGE: Final = 4096
STEPS: Final = (
    "push, overflow",
    "pop, overflow",
    "push and pop in turn",
    "push, durable",
    "written",
)
GOAL: Final = Goal(1.05, at_most=True)


class Queue(ABC):
    """A queue in a folder, open. `share`: of the records it is measured with so many."""

    share = 1.0
    push: Callable[[bytes], object]
    pop: Callable[[], object]

    @abstractmethod
    def __init__(self, place: Path, *, durable: bool) -> None: ...

    def together(self) -> AbstractContextManager[object]:
        """For records that become durable at its end."""
        return nullcontext()

    def sync(self) -> None:  # noqa: B027 - most have nothing left
        """All that was pushed is on the disk."""

    @abstractmethod
    def close(self) -> None: ...


class RingQueue(Queue):
    """winkfs: a Ring Page buffer that has room for all."""

    def __init__(self, place: Path, *, durable: bool) -> None:
        create(place / "ring", pages=20_000)
        self.ring = Ring(place / "ring", "a", memory=MEMORY)
        self.push, self.pop = self.ring.push, self.ring.pop

    def sync(self) -> None:
        self.ring.flush()

    def close(self) -> None:
        self.ring.close()


class PersistQueue(Queue):
    """persist-queue, without its pickle."""

    share = 0.01

    def __init__(self, place: Path, *, durable: bool) -> None:
        self.queue = _module("persistqueue").SQLiteQueue(
            os.fspath(place), auto_commit=not durable, serializer=_Plain, db_file_name="q.db"
        )
        self.push, self.pop = self.queue.put, self.queue.get
        self.sync = self.queue.task_done if durable else super().sync  # type: ignore[method-assign]

    def close(self) -> None:
        self.queue.close()


class _Plain:
    """A serializer of persist-queue that leaves bytes as they are."""

    @staticmethod
    def dumps(value: bytes) -> bytes:
        return value

    @staticmethod
    def loads(value: bytes) -> bytes:
        return value


class LiteQueue(Queue):
    """litequeue: to pop is to take a message, and to say that it is done."""

    share = 0.01

    def __init__(self, place: Path, *, durable: bool) -> None:
        self.queue = _module("litequeue").LiteQueue(place / "q.db")
        self.push, self.pop = self.queue.put, self._pop
        if durable:
            self.queue.conn.execute("PRAGMA synchronous = FULL")

    def _pop(self) -> object:
        message = self.queue.pop()
        self.queue.done(message.message_id)
        return message.data

    def together(self) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = self.queue.transaction()
        return found

    def close(self) -> None:
        self.queue.close()


class Append(Queue):
    """A plain file: no queue, but what a disk can do."""

    def __init__(self, place: Path, *, durable: bool) -> None:
        self.fd = os.open(place / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.push, self.pop = partial(os.write, self.fd), self._pop
        self.at = 0

    def _pop(self) -> object:
        data = os.pread(self.fd, SIZE, self.at)
        self.at += SIZE
        return data

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        os.close(self.fd)


OURS: Final = "Ring Page buffer"
QUEUES: Final[dict[str, type[Queue]]] = {
    OURS: RingQueue,
    "persist-queue": PersistQueue,
    "litequeue": LiteQueue,
    "append": Append,
}


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        sys.exit(f"{name}, a rival, is not installed: pip install persist-queue litequeue")


def main() -> None:
    asked = options(__doc__)
    count = asked.size(200_000, 5_000)
    report = Report(
        asked, "queues", "How fast are records pushed and popped?", ("what", *QUEUES, "goal")
    )
    bodies = samples.values(samples.equal_sizes(count, SIZE))
    with scratch(asked) as place:
        cases: dict[str, Case] = {
            name: lambda kind=kind: life(kind, place, bodies)  # type: ignore[misc]
            for name, kind in QUEUES.items()
        }
        found = interleaved(cases, asked.runs)
        report.keep(f"{count:,} x {SIZE}", found)
        table(report, found)
        amplification(asked, report, place)
    report.note(f"{count:,} records of {SIZE} bytes. Records a second, and CPU us of each.")
    report.note("A process that ends loses what waits in the memory of the Ring Page buffer.")
    report.finish()


def table(report: Report, found: dict[str, dict[str, list[float]]]) -> None:
    for step in STEPS[:-1]:
        cells = []
        for runs in found.values():
            of = runs[f"{step}, count"][0]
            cpu = statistics.median(runs[f"{step}, CPU"]) / of * 1e6
            cells.append(f"{of / statistics.median(runs[step]):,.0f} ({cpu:.2f})")
        report.row(step, *cells, "")
    written = [statistics.median(runs["written"]) for runs in found.values()]
    verdict = report.verdict(GOAL, written[0])
    report.row("written, push, overflow", *(f"{figure:.3f}" for figure in written), verdict)


def amplification(asked: Options, report: Report, place: Path) -> None:
    """What the Ring Page buffer writes, and what whole records in pages would take."""
    for size in SIZES:
        path = place / "amplified"
        create(path, pages=4000)
        with Ring(path, "a", memory=MEMORY) as ring:
            ring.push_many([bytes(size)] * (asked.size(AMPLIFIED, AMPLIFIED // 8) // size))
            figure = ring.stats()["write_amplification"]
        path.unlink()
        whole = PAGE / ((PAGE - HEAD.size) // (size + SHORT.size) * size)
        cells = f"{figure:.3f}", *[""] * (len(QUEUES) - 1)
        goal = report.verdict(GOAL, figure) if size == SIZE else ""
        report.row(f"written, of {size} bytes; whole ones {whole:.2f}", *cells, goal)


def life(kind: type[Queue], place: Path, bodies: list[bytes]) -> Phases:
    steps = Watch()
    some = bodies[: int(len(bodies) * kind.share)]
    with made(kind, place) as queue:
        before = written()
        with steps.of("push, overflow", len(some)):
            push = queue.push
            for body in some:
                push(body)
            queue.sync()
        size = written() - before
        with steps.of("pop, overflow", len(some)):
            pop = queue.pop
            popped = [pop() for _ in some]
        assert popped == some, kind
    with made(kind, place) as queue, steps.of("push and pop in turn", len(some)):
        push, pop = queue.push, queue.pop
        for body in some:
            push(body)
            pop()
    few = bodies[:SYNCED]
    with made(kind, place, durable=True) as queue, steps.of("push, durable", len(few)):
        for at in range(0, len(few), EACH):
            with queue.together():
                for body in few[at : at + EACH]:
                    queue.push(body)
            queue.sync()
    steps.phases["written"] = size / (len(some) * SIZE)
    return steps.phases


@contextmanager
def made(kind: type[Queue], place: Path, *, durable: bool = False) -> Iterator[Queue]:
    folder = place / "queue"
    folder.mkdir()
    queue = kind(folder, durable=durable)
    yield queue
    queue.close()
    shutil.rmtree(folder)


def written() -> int:
    """Bytes that this process gave to system calls that write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


if __name__ == "__main__":
    main()
