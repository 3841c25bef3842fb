"""How fast are records put, committed and read in a LogStore, beside SQLite, LMDB and RocksDB?

Records of 1 KiB, 200,000 of them, with --full 1,000,000; transactions of 100, unsynced where
nothing else is said. The rivals have the same numbers as keys: SQLite integers, the others in
8 bytes, ascending. The LogStore checks the CRC-32 of each record it reads.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import samples
from common import Case, Options, Phases, Watch, interleaved, options, scratch
from report import Goal, Report
from rivals import Lmdb, Rival, Rocks, Sqlite, parts_of

from winkfs.stores.logstore.store import LogStore

OURS: Final = "winkfs"
SIZE: Final = samples.KIB
COMMIT: Final = 100  # records of a transaction
SYNCED: Final = 300  # transactions that are synced
SNAPSHOTS: Final = 1000
SMALL: Final = 16  # bytes of a record of the store of which there are many snapshots
RIVALS: Final[dict[str, Callable[..., Rival]]] = {
    "SQLite, NORMAL": partial(Sqlite, key="INTEGER"), "LMDB": Lmdb, "RocksDB, WAL": Rocks,
}  # fmt: skip
GOALS: Final = {
    "put singly, commit of 100": Goal(150_000),
    "put_many, commit of 100": Goal(150_000),
    "snapshots, with a get each": Goal(1000),
}
STEPS: Final = (
    "put singly, commit of 100", "put_many, commit of 100", "put_many, commit of 100, synced",
    "get singly", "get, 1,000 at once", "get, 10,000 at once", "update_many, commit of 100",
    "snapshots, with a get each", "compaction, MiB/s", "open with its saved table",
    "open without it, by replay",
)  # fmt: skip


def main() -> None:
    asked = options(__doc__, own=lambda parser: parser.add_argument(
        "--full", action="store_true", help="1,000,000 records; snapshots of 10,000,000"
    ))  # fmt: skip
    count = asked.size(1_000_000 if asked.own.full else 200_000, 5_000)
    report = Report(
        asked, "stores-log-full" if asked.own.full else "stores-log",
        "How fast are records put, committed and read in a LogStore?",
        ("what", OURS, *RIVALS, "goal"),
    )  # fmt: skip
    bodies = samples.values(samples.equal_sizes(count, SIZE))
    with scratch(asked) as place:
        cases: dict[str, Case] = {OURS: lambda: ours(place, bodies)}
        for name in RIVALS:
            cases[name] = lambda name=name: theirs(place, name, bodies)  # type: ignore[misc]
        found = interleaved(cases, asked.runs)
        report.keep(f"{count:,} x 1 KiB", found)
        for step in STEPS:
            _row(report, step, found)
        many = asked.size(10_000_000 if asked.own.full else 1_000_000, 20_000)
        snapshots(asked, report, place, many)
    report.note(f"{count:,} records of 1 KiB. Records a second, and CPU us of each.")
    report.finish()


def _row(report: Report, step: str, found: dict[str, dict[str, list[float]]]) -> None:
    cells, mine = [], 0.0
    for name, runs in found.items():
        if not runs.get(f"{step}, count", [0])[0]:
            cells.append("")
            continue
        of = runs[f"{step}, count"][0]
        rate = of / statistics.median(runs[step])
        mine = rate if name == OURS else mine
        cells.append(f"{rate:,.0f} ({statistics.median(runs[f'{step}, CPU']) / of * 1e6:,.2f})")
    report.row(step, *cells, report.verdict(GOALS[step], mine) if step in GOALS else "")


# --- the steps ---


def ours(place: Path, bodies: list[bytes]) -> Phases:
    steps, path = Watch(), os.fspath(place / "log")
    store = LogStore.create(path)
    with steps.of("put singly, commit of 100", len(bodies)):
        for some in parts_of(bodies, COMMIT):
            for body in some:
                store.put(body)
            store.commit(sync=False)
    store.close()
    shutil.rmtree(path)
    store = LogStore.create(path)
    with steps.of("put_many, commit of 100", len(bodies)):
        for some in parts_of(bodies, COMMIT):
            store.put_many(some)
            store.commit(sync=False)
    recids = list(range(1, len(bodies) + 1))
    assert store.get(recids[-1]) == bodies[-1]
    random.Random(samples.SEED).shuffle(recids)
    got(steps, recids, store.get, store.get_many)
    with steps.of("snapshots, with a get each", SNAPSHOTS):
        for recid in recids[:SNAPSHOTS]:
            with store.snapshot() as snapshot:
                snapshot.get(recid)
    half = recids[: len(recids) * 6 // 10]
    with steps.of("update_many, commit of 100", len(half)):
        for some in parts_of(half, COMMIT):
            store.update_many(some, bodies[: len(some)])
            store.commit(sync=False)
    store.commit()
    steps.ready()
    done = store.compact()
    steps.step("compaction, MiB/s")
    steps.phases["compaction, MiB/s, count"] = done["bytes"] / 2**20
    store.close()
    for step in ("open with its saved table", "open without it, by replay"):
        if "replay" in step:
            (Path(path) / "index").unlink()
        with steps.of(step, len(bodies)):
            store = LogStore(path, "a")
        assert len(store) == len(bodies)
        store.close()
    shutil.rmtree(path)
    store = LogStore.create(path)
    few = bodies[: SYNCED * COMMIT]
    with steps.of("put_many, commit of 100, synced", len(few)):
        for some in parts_of(few, COMMIT):
            store.put_many(some)
            store.commit()
    store.close()
    shutil.rmtree(path)
    return steps.phases


def got(
    steps: Watch, ids: list[Any], get: Callable[[Any], Any], get_many: Callable[[Any], Any]
) -> None:
    """All is in the page cache, and in those of the stores, after the first time."""
    for some in parts_of(ids, 10_000):
        get_many(some)
    with steps.of("get singly", len(ids)):
        for id in ids:
            get(id)
    for step, size in (("get, 1,000 at once", 1000), ("get, 10,000 at once", 10_000)):
        with steps.of(step, len(ids)):
            for some in parts_of(ids, size):
                get_many(some)


def theirs(place: Path, name: str, bodies: list[bytes]) -> Phases:
    steps, kind = Watch(), RIVALS[name]
    key: Callable[[int], Any] = int if "SQLite" in name else lambda i: i.to_bytes(8, "big")
    pairs = [(key(i), body) for i, body in enumerate(bodies, 1)]
    for durable in (True, False):
        store = kind(place / "rival", durable=durable)
        store.open(new=True)
        if durable:
            few = pairs[: SYNCED * COMMIT]
            with steps.of("put_many, commit of 100, synced", len(few)):
                for some in parts_of(few, COMMIT):
                    store.put_many(some)
            store.close()
            shutil.rmtree(store.path)
    with steps.of("put_many, commit of 100", len(pairs)):
        for some in parts_of(pairs, COMMIT):
            store.put_many(some)
    ids = [id for id, _ in pairs]
    random.Random(samples.SEED).shuffle(ids)
    got(steps, ids, store.get, store.get_many)
    shots(steps, store, ids[:SNAPSHOTS])
    store.close()
    with steps.of("open with its saved table", len(pairs)):
        store.open()
        store.get(ids[0])
    store.close()
    shutil.rmtree(store.path)
    return steps.phases


def shots(steps: Watch, store: Rival, ids: list[Any]) -> None:
    if isinstance(store, Rocks):
        with steps.of("snapshots, with a get each", len(ids)):
            for id in ids:
                store.db.snapshot()[id]
    elif isinstance(store, Lmdb):
        with steps.of("snapshots, with a get each", len(ids)):
            for id in ids:
                with store.begin() as transaction:
                    transaction.get(id)


def snapshots(asked: Options, report: Report, place: Path, count: int) -> None:
    """Of a store of many records, while they change."""
    path = os.fspath(place / "many")
    store = LogStore.create(path)
    for at in range(0, count, 100_000):
        store.put_many([at.to_bytes(SMALL, "big")] * min(100_000, count - at))
        store.commit(sync=False)
    steps = Watch()
    chosen = random.Random(samples.SEED).choices(range(1, count + 1), k=SNAPSHOTS)
    seen = []
    for recid in chosen[: SNAPSHOTS // 10]:
        seen.append(store.snapshot())
        store.update(recid, b"other")
        store.commit(sync=False)
    assert sum(one.get(recid) != b"other" for one, recid in zip(seen, chosen, strict=False))
    for one in seen:
        one.close()
    with steps.of("snapshots", SNAPSHOTS):
        for recid in chosen:
            with store.snapshot() as snapshot:
                snapshot.get(recid)
    figure = SNAPSHOTS / steps.phases["snapshots"]
    cpu = steps.phases["snapshots, CPU"] / SNAPSHOTS * 1e6
    report.row(
        f"snapshots of {count:,} records, with a get each", f"{figure:,.0f} ({cpu:,.2f})",
        *("" for _ in RIVALS), report.verdict(Goal(1000), figure),
    )  # fmt: skip
    report.keep("snapshots", steps.phases)
    store.close()
    shutil.rmtree(path)


if __name__ == "__main__":
    main()
