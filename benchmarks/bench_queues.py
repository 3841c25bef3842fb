"""How fast are messages pushed and popped, beside SQLite-backed queues and a plain append?

Messages of 256 bytes: 100,000, with --full 1,000,000, of the rivals that take longer 1,000 or
2,000. Not synced: what was pushed may be lost in a power cut; the SQLite-backed queues have
synchronous=NORMAL then, and FULL where each call is synced. Append: os.write; its pops are reads.

Open: 10,000,000 messages of 32 bytes, of the rivals fewer, as the table says; after a clean end, or
as a process that is killed leaves them, with a full last segment, which is the worst; and the first
message is popped. Memory: the anonymous one of a process that pushes them, and of another that
opens them and pops the first.

Written: bytes that system calls write for each byte of messages, as /proc/self/io counts them; for
records of several sizes as the Ring Page buffer counts, beside what whole records in pages take.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import samples
from common import Case, Options, Phases, Watch, evict, interleaved, options, scratch, warm
from report import Goal, Report
from rival_queues import (
    MEMORY,
    OURS,
    PRIORITIES,
    QUEUES,
    RING,
    SIZE,
    Append,
    Queue,
    Sync,
    Use,
)
from rivals import parts_of

from winkformats.ringpage.page import HEAD, SHORT_LENGTH
from winkfs.stores.ringpage import Ring, create

BATCH: Final = 100
SYNCED: Final = 300  # calls that sync, and as many batches
SMALL: Final = 32  # bytes of a message of those that are opened
BODY: Final = bytes(range(SMALL))
MANY: Final = 10_000_000  # of them
PART: Final = 10_000
SIZES: Final = (16, 64, 256, 1000, 2050, 3000, 4062)
AMPLIFIED: Final = 8 << 20  # bytes of records of each of these
PAGE: Final = 4096
WRITTEN: Final = "written"
AMPLIFICATION: Final = Goal(1.05, at_most=True)
PER_MESSAGE: Final = Goal(40, at_most=True)  # bytes
OPEN: Final = Goal(1000, at_most=True)  # ms
KILLED: Final = "-killed"  # behind the name of a folder
OPENINGS: Final = {
    "open after a clean end, warm": ("", warm),
    "open after an unclean end, warm": (KILLED, warm),
    "open after a clean end, cold": ("", evict),
    "open after an unclean end, cold": (KILLED, evict),
}
SEGMENT: Final = re.compile(r"\d{20}\.log")
ANONYMOUS: Final = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """What is done with each message, or with BATCH of them at once."""

    name: str
    call: str
    use: Use = "arrival"
    sync: Sync = "none"
    goal: Goal | None = None

    def of(self, kind: type[Queue]) -> bool:
        calls = {"push", "pop"} if self.call == "turn" else {self.call}
        return self.use in kind.uses and self.sync in kind.syncs and calls <= kind.calls


STEPS: Final = (
    Step("push", "push", goal=Goal(200_000)),
    Step("push, synced each second", "push", sync="interval"),
    Step("push, each synced", "push", sync="each"),
    Step("push with a priority", "push_by", "priority"),
    Step("push, 100 at once", "push_many", goal=Goal(500_000)),
    Step("push, 100 at once, each synced", "push_many", sync="each"),
    Step("pop", "pop", goal=Goal(150_000)),
    Step("pop by priority", "pop", "priority"),
    Step("pop, 100 at once", "pop_many"),
    Step("pop and acknowledge", "pop", "ack"),
    Step("pop and acknowledge, 100 at once", "pop_many", "ack"),
    Step("pop and acknowledge, each synced", "pop", "ack", "each"),
    Step("push and pop in turn", "turn"),
)


def main() -> None:
    asked = options(__doc__, own=lambda parser: parser.add_argument(
        "--full", action="store_true",
        help="1,000,000 messages; 10,000,000 with priorities are opened, too",
    ))  # fmt: skip
    count = asked.size(1_000_000 if asked.own.full else 100_000, 5_000)
    report = Report(
        asked, "queues-full" if asked.own.full else "queues",
        "How fast are messages pushed and popped?", ("what", *QUEUES, "goal"),
    )  # fmt: skip
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
        kept(asked, report, place)
    report.note(f"{count:,} messages of {SIZE} bytes. Messages a second, and CPU us of each.")
    report.note(
        "A process that ends loses up to 1 MiB of unsynced messages of the LedgerQ queue, what "
        "waits in the memory of the Ring Page buffer, and nothing of the others."
    )
    report.note("persist-queue in files syncs each hundredth message, and its state never.")
    report.finish()


def table(report: Report, found: dict[str, dict[str, list[float]]]) -> None:
    for step in STEPS:
        cells, ours = [], 0.0
        for name, runs in found.items():
            if step.name not in runs:
                cells.append("")
                continue
            of = runs[f"{step.name}, count"][0]
            rate = of / statistics.median(runs[step.name])
            cpu = statistics.median(runs[f"{step.name}, CPU"]) / of * 1e6
            ours = rate if name == OURS else ours
            cells.append(f"{rate:,.0f} ({cpu:.2f})")
        report.row(step.name, *cells, report.verdict(step.goal, ours))
    written = {name: statistics.median(runs[WRITTEN]) for name, runs in found.items()}
    report.row(
        f"{WRITTEN}, push", *(f"{figure:.3f}" for figure in written.values()),
        f"ring {report.verdict(AMPLIFICATION, written[RING])}",
    )  # fmt: skip


def row(report: Report, what: str, cells: dict[str, str], goal: str = "") -> None:
    report.row(what, *(cells.get(name, "") for name in QUEUES), goal)


def amplification(asked: Options, report: Report, place: Path) -> None:
    """What the Ring Page buffer writes, and what whole records in pages would take."""
    for size in SIZES:
        path = place / "amplified"
        create(path, pages=4000)
        with Ring(path, "a", memory=MEMORY) as ring:
            ring.push_many([bytes(size)] * (asked.size(AMPLIFIED, AMPLIFIED // 8) // size))
            figure = ring.stats()["write_amplification"]
        path.unlink()
        whole = PAGE / ((PAGE - HEAD.size) // (size + SHORT_LENGTH.size) * size)
        goal = report.verdict(AMPLIFICATION, figure) if size == SIZE else ""
        row(report, f"{WRITTEN}, of {size} bytes; whole ones {whole:.2f}",
            {RING: f"{figure:.3f}"}, goal)  # fmt: skip


# --- the steps ---


def life(kind: type[Queue], place: Path, bodies: list[bytes]) -> Phases:
    steps = Watch()
    some = bodies[: kind.few]
    for step in STEPS:
        if step.of(kind):
            few = some[: SYNCED * (BATCH if "many" in step.call else 1)]
            ACTIONS[step.call](steps, step, kind, place, few if step.sync == "each" else some)
    return steps.phases


def push(steps: Watch, step: Step, kind: type[Queue], place: Path, bodies: list[bytes]) -> None:
    with made(kind, place, step) as queue:
        before = written()
        with steps.of(step.name, len(bodies)):
            if step.call == "push_many":
                for some in parts_of(bodies, BATCH):
                    queue.push_many(some)
            elif step.call == "push_by":
                for i, body in enumerate(bodies):
                    queue.push_by(body, i % PRIORITIES)
            else:
                call = queue.push
                for body in bodies:
                    call(body)
        if step.name == "push":
            queue.flush()
            steps.phases[WRITTEN] = (written() - before) / (len(bodies) * SIZE)


def pop(steps: Watch, step: Step, kind: type[Queue], place: Path, bodies: list[bytes]) -> None:
    """The pushes before are not synced one by one, whatever the step does."""
    expected = bodies
    if step.use == "priority":
        ranks = [i % PRIORITIES for i in range(len(bodies))]
        expected = [bodies[i] for i in sorted(range(len(bodies)), key=lambda i: -ranks[i])]
    folder = folder_of(place)
    queue = kind(folder, step.use, "none")
    fill(queue, bodies, step.use)
    queue.close()
    queue = kind(folder, step.use, step.sync, new=False)
    found: list[object] = []
    with steps.of(step.name, len(bodies)):
        if step.call == "pop_many":
            many = queue.pop_many
            while len(found) < len(bodies):
                found += many(BATCH)
        else:
            call = queue.pop
            found = [call() for _ in bodies]
    assert queue.bodies(found) == expected, (kind, step)
    queue.close()
    shutil.rmtree(folder)


def in_turn(steps: Watch, step: Step, kind: type[Queue], place: Path, bodies: list[bytes]) -> None:
    with made(kind, place, step) as queue, steps.of(step.name, len(bodies)):
        push, pop = queue.push, queue.pop
        for body in bodies:
            push(body)
            pop()


ACTIONS: Final[dict[str, Callable[..., None]]] = {
    "push": push, "push_by": push, "push_many": push, "pop": pop, "pop_many": pop, "turn": in_turn,
}  # fmt: skip


def fill(queue: Queue, bodies: Sequence[bytes], use: Use) -> None:
    if use == "priority":
        for i, body in enumerate(bodies):
            queue.push_by(body, i % PRIORITIES)
    elif "push_many" in queue.calls:
        for some in parts_of(bodies, BATCH):
            queue.push_many(some)
    else:
        for body in bodies:
            queue.push(body)


def folder_of(place: Path) -> Path:
    folder = place / "queue"
    folder.mkdir()
    return folder


@contextmanager
def made(kind: type[Queue], place: Path, step: Step) -> Iterator[Queue]:
    folder = folder_of(place)
    queue = kind(folder, step.use, step.sync)
    yield queue
    queue.close()
    shutil.rmtree(folder)


def written() -> int:
    """Bytes that this process gave to system calls that write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


# --- many messages: memory, disk, and how long they take to open ---


def kept(asked: Options, report: Report, place: Path) -> None:
    """Queues that hold many messages, by arrival and by priority."""
    counts: dict[Use, int] = {"arrival": MANY, "priority": MANY if asked.own.full else MANY // 10}
    for use, count in counts.items():
        kinds = {
            name: kind for name, kind in QUEUES.items() if use in kind.uses and kind is not Append
        }
        sizes = {
            name: min(asked.size(count, count // 1000), kind.held) for name, kind in kinds.items()
        }
        row(report, f"by {use}: messages of {SMALL} bytes", _cells(sizes, "{:,}"))
        folders = {name: place / f"{kind.__name__}-{use}" for name, kind in kinds.items()}
        pushed, opened, disk = {}, {}, {}
        for name, kind in kinds.items():
            pushed[name] = in_process(push_all, kind, folders[name], use, sizes[name])
            size = sum(file.stat().st_size for file in files_of(folders[name]))
            disk[name] = size / sizes[name]
            image(folders[name], other := place / "other")
            opened[name] = in_process(open_and_pop, kind, other, use, sizes[name])
            shutil.rmtree(other)
        goal = report.verdict(PER_MESSAGE, pushed[OURS]) if use == "priority" else ""
        row(report, f"by {use}: memory, bytes a message, pushed", _cells(pushed, "{:.1f}"), goal)
        goal = report.verdict(PER_MESSAGE, opened[OURS]) if use == "priority" else ""
        row(report, f"by {use}: memory, bytes a message, opened", _cells(opened, "{:.1f}"), goal)
        row(report, f"by {use}: on the disk, bytes a message", _cells(disk, "{:.1f}"))
        openings(asked, report, place, use, folders)
        for folder in folders.values():
            shutil.rmtree(folder)
            shutil.rmtree(f"{folder}{KILLED}")


def _cells(figures: Mapping[str, float], form: str) -> dict[str, str]:
    return {name: form.format(figure) for name, figure in figures.items()}


def openings(
    asked: Options, report: Report, place: Path, use: Use, folders: dict[str, Path]
) -> None:
    cases: dict[str, Case] = {
        name: lambda name=name: opening(QUEUES[name], folders[name], place, use)  # type: ignore[misc]
        for name in folders
    }
    found = interleaved(cases, asked.runs)
    report.keep(f"open, by {use}", found)
    for step in OPENINGS:
        cells, ours = {}, 0.0
        for name, runs in found.items():
            took, cpu = (statistics.median(runs[of]) * 1e3 for of in (step, f"{step}, CPU"))
            ours = took if name == OURS else ours
            cells[name] = f"{took:,.1f} ms ({cpu:,.1f})"
        row(report, f"by {use}: {step}", cells, report.verdict(OPEN, ours))


def opening(kind: type[Queue], folder: Path, place: Path, use: Use) -> Phases:
    steps = Watch()
    for step, (end, prepare) in OPENINGS.items():
        image(Path(f"{folder}{end}"), other := place / "other")
        prepare(*files_of(other))
        with steps.of(step, 1):
            queue = kind(other, use, "none", new=False)
            found = queue.pop()
        assert queue.bodies([found]) == [BODY], (kind, step)
        queue.close()
        shutil.rmtree(other)
    return steps.phases


def image(folder: Path, to: Path) -> None:
    """A queue that may change: what no queue changes any more has the same file."""
    ended = sorted(file.stem for file in folder.rglob("*.log") if SEGMENT.fullmatch(file.name))[:-1]

    def copy(one: str, other: str) -> None:
        (os.link if Path(one).stem in ended else shutil.copyfile)(one, other)

    shutil.copytree(folder, to, copy_function=copy)


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def in_process(work: Callable[..., None], *arguments: object) -> float:
    """Bytes of anonymous memory for each message that a process of its own needs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    found: float = ours.recv()
    process.join()
    assert process.exitcode == 0, arguments
    return found


def push_all(pipe: Connection, kind: type[Queue], folder: Path, use: Use, count: int) -> None:
    """Push messages. What a kill would leave is kept before the clean end."""
    folder.mkdir()
    queue, before = kind(folder, use, "none"), anonymous()
    for at in range(0, count, PART):
        fill(queue, [BODY] * min(PART, count - at), use)
    queue.flush()
    pipe.send((anonymous() - before) / count)
    image(folder, Path(f"{folder}{KILLED}"))
    queue.close()


def open_and_pop(pipe: Connection, kind: type[Queue], folder: Path, use: Use, count: int) -> None:
    before = anonymous()
    queue = kind(folder, use, "none", new=False)
    assert queue.bodies([queue.pop()]) == [BODY]
    pipe.send((anonymous() - before) / count)
    queue.close()


def anonymous() -> int:
    """Bytes of memory of this process beside the pages of files."""
    gc.collect()
    found = ANONYMOUS.search(Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


if __name__ == "__main__":
    main()
