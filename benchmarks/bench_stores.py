"""How fast are messages written, read and removed by id, beside SQLite, LMDB and RocksDB?

Messages of 1 KiB with random ids of 16 bytes, in the message store and its rivals; 200,000 of them,
with --full 1,000,000. Unsynced, where nothing else is said. At once: 1,000 in a call, and in
a transaction where there is one; singly: a call, and a transaction, each. What the rivals do in
a step of its own for each record is measured with a tenth of the records. Raw: os.write of pieces
of 1 MiB, and what it costs to read them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import samples
from common import Case, Options, Phases, Watch, evict, interleaved, options, scratch
from report import Goal, Report
from rivals import RIVALS, Messages, Pairs, Rival, parts_of

from winkformats.messagestore.index import Index, MessageRows, words_of
from winkformats.messagestore.segment import ID

PIECE: Final = 1 << 20  # bytes of a raw write or read
OURS: Final = "winkfs"
RAW: Final = "raw"
SIZE: Final = samples.KIB  # bytes of a body
BATCH: Final = 1000
COLD: Final = 2000  # messages that are read singly from the disk
SYNCED: Final = 300  # calls that sync
SYSTEMS: Final[dict[str, Callable[..., Rival]]] = {OURS: Messages, **RIVALS}
GOALS: Final = {
    "write, singly": Goal(200_000),
    "write, at once": Goal(400_000),
    "write, all in a call": Goal(400_000),
    "read, singly": Goal(150_000),
    "read, 1,000 at once": Goal(400_000),
    "read, 10,000 at once": Goal(400_000),
    "open after an unclean end": Goal(1_000_000),
    "open without its index": Goal(1_000_000),
}
STEPS: Final = (
    "write, singly", "write, at once", "write, all in a call", "read, singly",
    "read, 1,000 at once", "read, 10,000 at once", "read, singly, cold",
    "read, 10,000 at once, cold", "remove, singly", "remove, 1,000 at once",
    "open after a clean end", "open after an unclean end", "open without its index",
    "write, each synced", "write, each 100 synced",
)  # fmt: skip


def main() -> None:
    asked = options(__doc__, own=lambda parser: parser.add_argument(
        "--full", action="store_true", help="1,000,000 messages, and an index of 10,000,000"
    ))  # fmt: skip
    count = asked.size(1_000_000 if asked.own.full else 200_000, 5_000)
    name = "stores-full" if asked.own.full else "stores"
    report = Report(
        asked, name, "How fast are messages written, read and removed by id?",
        ("what", *SYSTEMS, RAW, "goal"),
    )  # fmt: skip
    pairs = pairs_of(count)
    with scratch(asked) as place:
        cases: dict[str, Case] = {
            name: lambda name=name: life(name, place, pairs)  # type: ignore[misc]
            for name in SYSTEMS
        }
        joined = b"".join(body for _, body in pairs)
        cases[RAW] = lambda: raw(place, joined)
        found = interleaved(cases, asked.runs)
    report.keep(f"{count:,} x 1 KiB", found)
    table(report, found, count)
    memory(asked, report)
    report.note(f"{count:,} messages of 1 KiB. Messages a second, and CPU us of each.")
    report.note(
        "A process that ends loses up to 1 MiB of unsynced messages of winkfs, all that RocksDB "
        "has in memory without a log, and nothing of the others."
    )
    report.finish()


def pairs_of(count: int) -> list[tuple[bytes, bytes]]:
    data = np.random.default_rng(samples.SEED + 1).bytes(count * ID)
    ids = (data[at : at + ID] for at in range(0, len(data), ID))
    return list(zip(ids, samples.values(samples.equal_sizes(count, SIZE)), strict=True))


def table(report: Report, found: dict[str, dict[str, list[float]]], count: int) -> None:
    for step in STEPS:
        cells, ours = [], 0.0
        for name in (*SYSTEMS, RAW):
            runs = found[name].get(step)
            if runs is None:
                cells.append("")
                continue
            of = found[name][f"{step}, count"][0]
            rate = of / statistics.median(runs)
            cpu = statistics.median(found[name][f"{step}, CPU"]) / of * 1e6
            ours = rate if name == OURS else ours
            cells.append(f"{rate:,.0f} ({cpu:.2f})")
        report.row(step, *cells, report.verdict(GOALS[step], ours) if step in GOALS else "")
    mine = found[OURS]["write, singly"]
    times = statistics.median(
        a / b for a, b in zip(found[RAW]["write, at once"], mine, strict=True)
    )
    report.note(f"write, singly: {times:.2f} of the speed of raw writes; goal 0.7.")
    speed = count * (SIZE + 21) / 1e6 / statistics.median(found[OURS]["open after an unclean end"])
    report.note(f"open after an unclean end: {speed:,.0f} MB/s; the goal is 500, or the records.")


def memory(asked: Options, report: Report) -> None:
    """Of the index alone."""
    for count in (1_000_000, 10_000_000) if asked.own.full else (100_000, 1_000_000):
        index, generator = Index(), np.random.default_rng(samples.SEED)
        for at in range(0, count, 4096):
            n = min(4096, count - at)
            column = np.arange(at, at + n)
            index.add_many(
                MessageRows(words_of(generator.bytes(n * ID)), column >> 14, column, column, column)
            )
        figure = index.memory / len(index)
        report.row(
            f"index of {count:,}: bytes a message", f"{figure:.0f}",
            *("" for _ in (*RIVALS, RAW)), report.verdict(Goal(100, at_most=True), figure),
        )  # fmt: skip


# --- the steps ---


def life(name: str, place: Path, pairs: Pairs) -> Phases:
    """What is done with a store, on new ones where it is to be empty."""
    steps, kind = Watch(), SYSTEMS[name]
    one = pairs if name == OURS else pairs[: len(pairs) // 10]
    with made(kind, place) as store, steps.of("write, singly", len(one)):
        put = store.put
        for id, body in one:
            put(id, body)
    path = place / "store"
    with made(kind, place, keep=True) as store, steps.of("write, at once", len(pairs)):
        for some in parts_of(pairs, BATCH):
            store.put_many(some)
    store = kind(path)
    reads(steps, store, pairs)
    removes(steps, store, pairs, len(one))
    shutil.rmtree(path)
    if name == OURS:
        with made(kind, place) as store, steps.of("write, all in a call", len(pairs)):
            store.put_many(pairs)
    if name != "RocksDB, no WAL":
        unclean(steps, kind, path, pairs)
        for step, size in (("write, each synced", 1), ("write, each 100 synced", 100)):
            if name in (OURS, "SQLite, NORMAL", "LMDB", "RocksDB, WAL"):
                synced(steps, kind, place, pairs[: SYNCED * size], step, size)
    return steps.phases


@contextmanager
def made(
    kind: Callable[..., Rival], place: Path, *, keep: bool = False, durable: bool = False
) -> Iterator[Rival]:
    store = kind(place / "store", durable=durable)
    store.open(new=True)
    yield store
    store.close()
    if not keep:
        shutil.rmtree(store.path)


def reads(steps: Watch, store: Rival, pairs: Pairs) -> None:
    ids = [id for id, _ in pairs]
    random.Random(samples.SEED).shuffle(ids)
    bodies = dict(pairs)
    store.open()
    for some in parts_of(ids, 10_000):  # all is in the page cache, and in those of the store
        assert store.get_many(some[:1])[0] == bodies[some[0]]
        store.get_many(some)
    with steps.of("read, singly", len(ids)):
        get = store.get
        for id in ids:
            get(id)
    for step, size in (("read, 1,000 at once", 1000), ("read, 10,000 at once", 10_000)):
        with steps.of(step, len(ids)):
            for some in parts_of(ids, size):
                store.get_many(some)
    cold(steps, store, ids)


def cold(steps: Watch, store: Rival, ids: list[bytes]) -> None:
    for step, size in (("read, singly, cold", 1), ("read, 10,000 at once, cold", 10_000)):
        store.close()
        evict(*store.files())
        store.open()
        if size == 1:
            get, few = store.get, ids[:COLD]
            with steps.of(step, len(few)):
                for id in few:
                    get(id)
        else:
            with steps.of(step, len(ids)):
                for some in parts_of(ids, size):
                    store.get_many(some)


def removes(steps: Watch, store: Rival, pairs: Pairs, singly: int) -> None:
    ids = [id for id, _ in pairs]
    random.Random(samples.SEED + 2).shuffle(ids)
    half = len(ids) // 2
    with steps.of("remove, singly", min(singly, half)):
        remove = store.remove
        for id in ids[: min(singly, half)]:
            remove(id)
    with steps.of("remove, 1,000 at once", len(ids) - half):
        for some in parts_of(ids[half:], BATCH):
            store.remove_many(some)
    store.close()


def unclean(steps: Watch, kind: Callable[..., Rival], path: Path, pairs: Pairs) -> None:
    """Open what a process left that ended; what was closed; and without an index."""
    process = multiprocessing.get_context("spawn").Process(
        target=write_and_die, args=(kind, path, len(pairs))
    )
    process.start()
    process.join()
    store, last = kind(path), pairs[-1]
    opened = ["open after an unclean end", "open after a clean end"]
    if isinstance(store, Messages):
        opened += ["open without its index"]
    for step in opened:
        if step == "open without its index":
            for file in (*path.glob("index"), *path.glob("refs.*")):
                file.unlink()
        with steps.of(step, len(pairs)):
            store.open()
            found = store.get(last[0])
        assert found == last[1], step
        if isinstance(store, Messages):
            assert len(store.store) == len(pairs), step
        store.close()
    shutil.rmtree(path)


def write_and_die(kind: Callable[..., Rival], path: Path, count: int) -> None:
    """In a process of its own: write all, and end without closing."""
    store = kind(path)
    store.open(new=True)
    for some in parts_of(pairs_of(count), BATCH):
        store.put_many(some)
    if isinstance(store, Messages):
        store.store.sync()
    os._exit(0)


def synced(
    steps: Watch, kind: Callable[..., Rival], place: Path, pairs: Pairs, step: str, size: int
) -> None:
    with made(kind, place, durable=True) as store, steps.of(step, len(pairs)):
        for some in parts_of(pairs, size):
            store.put_many(some)


def raw(place: Path, data: bytes) -> Phases:
    """The same bytes in a plain file."""
    steps, path, view = Watch(), place / "raw", memoryview(data)
    pieces = [view[at : at + PIECE] for at in range(0, len(view), PIECE)]
    with path.open("x+b", buffering=0) as file:
        fd = file.fileno()
        with steps.of("write, at once", len(data) // SIZE):
            for piece in pieces:
                os.write(fd, piece)
        for step in ("open after an unclean end", "read, 10,000 at once, cold"):
            if "cold" in step:
                evict(path)
            with steps.of(step, len(data) // SIZE):
                for at in range(0, len(data), PIECE):
                    os.pread(fd, PIECE, at)
        synced_raw(steps, path.with_name("synced"), data)
    path.unlink()
    return steps.phases


def synced_raw(steps: Watch, path: Path, data: bytes) -> None:
    with path.open("x+b", buffering=0) as file:
        for step, size in (("write, each synced", 1), ("write, each 100 synced", 100)):
            with steps.of(step, SYNCED * size):
                for i in range(SYNCED):
                    file.write(data[i * size * SIZE : (i + 1) * size * SIZE])
                    os.fdatasync(file.fileno())
    path.unlink()


if __name__ == "__main__":
    main()
