"""One file of a store removed, cut, zeroed, flipped or replaced by an older copy, and its reads.

    python tests/simulated/lost_files.py plain 0 2000     # states 0 .. 2000 of a kind of store

A state follows from the kind and its number: first each file removed, emptied, zeroed and replaced
by each of its older copies, then places and bits that are drawn. Nothing may be missing, or as it
was before, without a report; and never is there anything that no state had.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

sys.path += [str(Path(__file__).parents[1])]

import pytest
from constants import shrink
from damage import (
    EXPECTED,
    SECTOR,
    AoStore,
    ChainStore,
    ClassicStore,
    ContainerStore,
    DataSetStore,
    Seen,
    Store,
    Trials,
)
from folders import MEMORY

import winkfs
from winkfs.registry import verify
from winkfs.stores.ledgerq import Queue, Rotation
from winkfs.stores.ledgerq import create as create_queue
from winkfs.stores.logstore.store import LogStore
from winkfs.stores.messagestore.store import MessageStore
from winkfs.stores.messagestore.store import create as create_messages
from winkfs.stores.ringpage.ring import Ring
from winkfs.stores.ringpage.ring import create as create_ring

WRONG = ("garbage", "silent", "uncaught", "verify silent", "lost by a writer")
State = dict[str, Any]


class CompressedStore(ContainerStore):
    settings: ClassVar[dict[str, Any]] = {"compress": "zstd"}


class ColumnStore(ContainerStore):
    settings: ClassVar[dict[str, Any]] = {"columns": {"n": "int64"}}


class TailStore(ContainerStore):
    """Derived files that cover a part of the data file: a close leaves those of many files."""

    def stages(self) -> Iterator[Callable[[], object]]:
        yield from super().stages()
        yield self._behind

    def _behind(self) -> None:
        base, rng = self.base(self.folder), random.Random(3)
        kept = {path: path.read_bytes() for path in self.paths() if path.suffix != ".data"}
        with winkfs.open(base, "a") as c:
            c.put("a01", b"in the tail" * 20, mtime=10**9 + 600)
            c.put("tail", rng.randbytes(700), mtime=10**9 + 601)
            c.delete("b03")
            c.rename("b04", "moved")
        for path, data in kept.items():
            path.write_bytes(data)


class BareStore(ContainerStore):
    """BASE.data alone."""

    def remember(self) -> None:
        for path in self.paths():
            if path.suffix != ".data":
                path.unlink()
        super().remember()


class Messages(Store):
    """A store of the other founding formats: names are made of its ids.

    back    whether what was removed may be there again: at least once is what it promises
    unsure  files without a checksum that another program writes, too: nothing shows that
            their content is wrong
    """

    back = True
    unsure: tuple[str, ...] = ()
    path: str
    seed: int
    turns: tuple[int, ...]

    def __init__(self, folder: Path) -> None:
        self.written: list[tuple[str, Any]] = []  # also what was removed at once
        super().__init__(folder)

    def base(self, folder: Path) -> Path:
        return folder / self.path

    def stages(self) -> Iterator[Callable[[], object]]:
        rng = random.Random(self.seed)
        yield self.create
        for turn in self.turns:
            yield partial(self.more, rng, turn)

    def create(self) -> None:
        raise NotImplementedError

    def more(self, rng: random.Random, turn: int) -> None:
        raise NotImplementedError

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        return {}

    def verify(self, folder: Path) -> Any:
        return verify(self.base(folder))

    def pairs(self, store: Any, seen: Seen) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def read_all(self) -> Iterator[tuple[str, Any]]:
        with self.open(self.folder) as store:
            yield from self.pairs(store, Seen())

    def look_at(self, store: Any, seen: Seen) -> None:
        with self.expecting(seen.errors, "in a scan"):
            for name, value in self.pairs(store, seen):
                seen.found[name] = value
            seen.listing = True
        seen.reported += getattr(store, "notes", [])


class QueueStore(Messages):
    unsure = ("metadata.dat",)
    path, seed, turns = "q", 4, (0, 15, 4, 0, 13)  # messages that are popped

    def open(self, folder: Path, mode: str = "r") -> Any:
        return Queue(self.base(folder), mode, rotation=Rotation(messages=10))

    def create(self) -> None:
        create_queue(self.base(self.folder))

    def more(self, rng: random.Random, turn: int) -> None:
        with self.open(self.folder, "a") as queue:
            bodies = [rng.randbytes(rng.choice((5, 60, 400))) for _ in range(23)]
            self.written += zip(map(str, queue.push_many(bodies)), bodies, strict=True)
            if turn:
                queue.pop_many(turn)

    def pairs(self, store: Any, seen: Seen) -> Iterator[tuple[str, Any]]:
        for message in store.messages():
            yield str(message.id), message.payload

    def change(self, folder: Path) -> None:
        with self.open(folder, "a") as queue:
            queue.push(b"new")


class RingStore(Messages):
    path, seed, turns = "ring", 5, (0, 12, 5)  # records that are popped

    def open(self, folder: Path, mode: str = "r") -> Any:
        return Ring(self.base(folder), mode)

    def create(self) -> None:
        create_ring(self.base(self.folder), pages=16)

    def more(self, rng: random.Random, turn: int) -> None:
        with self.open(self.folder, "a") as ring:
            bodies = [rng.randbytes(rng.choice((5, 60, 900))) for _ in range(40)]
            self.written += [(body.hex(), body) for body in bodies]
            ring.push_many(bodies)
            ring.pop_many(turn)

    def pairs(self, store: Any, seen: Seen) -> Iterator[tuple[str, Any]]:
        for record in store.records():
            yield record.body.hex(), record.body

    def change(self, folder: Path) -> None:
        with self.open(folder, "a") as ring:
            ring.push(b"new")


class MessagesStore(Messages):
    path, seed, turns = "m", 6, (0, 1, 2)

    def open(self, folder: Path, mode: str = "r") -> Any:
        return MessageStore(os.fspath(self.base(folder)), mode)

    def stages(self) -> Iterator[Callable[[], object]]:
        with pytest.MonkeyPatch.context() as patch:
            shrink(patch, "a message store", segment=3000)
            yield from super().stages()

    def create(self) -> None:
        create_messages(os.fspath(self.base(self.folder)), checksums=True)

    def more(self, rng: random.Random, turn: int) -> None:
        ids = [(100 * turn + i).to_bytes(16, "big") for i in range(30)]
        with self.open(self.folder, "a") as store:
            bodies = [(id, rng.randbytes(rng.choice((5, 60, 700)))) for id in ids]
            self.written += [(id.hex(), body) for id, body in bodies]
            store.write_many(bodies)
            store.remove_many(ids[::3])

    def pairs(self, store: Any, seen: Seen) -> Iterator[tuple[str, Any]]:
        for number in range(3):
            for i in range(30):
                id = (100 * number + i).to_bytes(16, "big")
                if id in store:
                    with self.expecting(seen.errors, id.hex()):
                        yield id.hex(), store.read(id)

    def change(self, folder: Path) -> None:
        with self.open(folder, "a") as store:
            store.write(b"n" * 16, b"new")


class LogsStore(Messages):
    back = False

    path, seed, turns = "log", 7, (0, 1, 2, 3)

    def open(self, folder: Path, mode: str = "r") -> Any:
        return LogStore(os.fspath(self.base(folder)), mode)

    def create(self) -> None:
        path = os.fspath(self.base(self.folder))
        LogStore.create(path, file_size=4096, cutoff=500, save_every=3).close()

    def more(self, rng: random.Random, turn: int) -> None:
        with self.open(self.folder, "a") as store:
            old = list(store.recids())
            for recid in old[:: 5 - turn]:
                store.delete(recid)
            store.commit()
            for recid in [recid for recid in old if recid in store][::3]:
                store.update(recid, rng.randbytes(90))
            for _ in range(20):
                store.put(rng.randbytes(rng.choice((5, 60, 400, 900))))
                store.commit()

    def pairs(self, store: Any, seen: Seen) -> Iterator[tuple[str, Any]]:
        for recid in list(store.recids()):
            with self.expecting(seen.errors, str(recid)):
                yield str(recid), store.get(recid)

    def change(self, folder: Path) -> None:
        with self.open(folder, "a") as store:
            store.put(b"new")


KINDS: dict[str, type[Store]] = {
    "plain": ContainerStore,
    "chains": ChainStore,
    "ao": AoStore,
    "classic": ClassicStore,
    "compressed": CompressedStore,
    "columns": ColumnStore,
    "tail": TailStore,
    "data alone": BareStore,
    "data set": DataSetStore,
    "queue": QueueStore,
    "ring": RingStore,
    "messages": MessagesStore,
    "log": LogsStore,
}


# --- damage ---------------------------------------------------------------------------------------


Change = Callable[[bytes], bytes | None]
"""The bytes of a file, changed; None: it is removed."""


def whole_changes(data: bytes, earlier: list[bytes]) -> dict[str, Change]:
    """Those that hit all of a file."""
    found: dict[str, Change] = {
        "removed": lambda _: None,
        "emptied": lambda _: b"",
        "zeroed": lambda data: bytes(len(data)),
        "cut to half": lambda data: data[: len(data) // 2],
        "cut by a byte": lambda data: data[:-1],
    }
    for number, old in enumerate(dict.fromkeys(earlier)):
        if old != data:
            found[f"older copy {number}"] = lambda _, old=old: old
        if len(old) < len(data):
            found[f"cut to the size of copy {number}"] = lambda data, old=old: data[: len(old)]
    return found


def drawn(data: bytes, rng: random.Random, kind: str) -> tuple[str, Change]:
    at = rng.randrange(len(data))
    if kind == "cut":
        return f"cut to {at}", lambda data: data[:at]
    if kind == "zeros":
        stop = min(at + rng.choice((8, SECTOR, 4096)), len(data))
        return f"zeros from {at} to {stop}", lambda data: data[:at] + bytes(stop - at) + data[stop:]
    bit = rng.randrange(8)
    return (
        f"bit {bit} of byte {at} flipped",
        lambda data: data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :],
    )


class States(Trials):
    """States of a kind of store."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(folder)
        self.kind = kind
        self.truths: list[State] = []
        self.store = self._made(KINDS[kind])
        self.truth = self.truths[-1]
        self.history: dict[str, list[Any]] = {}
        for written in (getattr(self.store, "written", ()), *(t.items() for t in self.truths)):
            for name, value in written:
                self.history.setdefault(name, []).append(value)
        self.files = {path: path.read_bytes() for path in self.store.paths()}
        self.there = set(self.folder.rglob("*"))
        self.whole = [
            (path, name, change)
            for path, data in self.files.items()
            for name, change in whole_changes(data, self.store.earlier.get(path, [])).items()
        ]

    def _made(self, kind: type[Store]) -> Store:
        truths = self.truths

        class Remembering(kind):  # type: ignore[valid-type, misc]
            def remember(self) -> None:
                super().remember()
                truths.append({n: v for n, v in self.read_all() if v is not None})

        made: Store = Remembering(self.folder)
        return made

    def run(self, number: int) -> None:
        """One state, counted in `count`; what is wrong is noted in `failures`."""
        rng = random.Random(f"{self.kind} {number}")
        if number < len(self.whole):
            path, name, change = self.whole[number]
        else:
            path = rng.choice([path for path, data in self.files.items() if data])
            kinds = ["cut", "zeros", "flip", "flip"]
            if self.kind == "classic" and path.suffix == ".data":
                kinds = ["cut"]  # content has no checksum: what is changed in it is not noticed
            name, change = drawn(self.files[path], rng, rng.choice(kinds))
        done = change(self.files[path])
        self.count["states"] += 1
        where = f"{self.kind} {number}: {path.name}: {name}"
        if done is None:
            path.unlink()
        else:
            path.write_bytes(done)
        with self.judging(where):
            self.judge(where, path, rng)
        self.restore(path)

    def restore(self, path: Path) -> None:
        path.write_bytes(self.files[path])
        for other in self.folder.rglob("*"):
            if other.is_file() and other not in self.there:
                other.unlink()

    def judge(self, where: str, path: Path, rng: random.Random) -> None:
        seen = self.store.look(self.folder)
        unsure = path.name in self.store.unsure if isinstance(self.store, Messages) else False
        self.compare(seen, where, unsure=unsure)
        lacks = any(seen.found.get(name) != value for name, value in self.truth.items())
        judged = lacks and not unsure and not self.is_earlier(seen)
        if rng.random() < 0.25 and judged and not self.verified():
            self.fail("verify silent", where, seen.reported[:2])
        if rng.random() < 0.1:
            self.write_over(seen, where)

    def verified(self) -> list[str]:
        try:
            found: list[str] = self.store.verify(self.folder).problems
        except EXPECTED as error:
            return [str(error)]
        return found

    def is_earlier(self, seen: Seen) -> bool:
        """Whether all is as it was at an earlier moment: a copy of that is what is there."""
        whole = all(isinstance(error, FileNotFoundError) for error in seen.errors.values())
        read = seen.found | seen.listed
        return whole and seen.listing and any(read == truth for truth in self.truths)

    def compare(self, seen: Seen, where: str, *, unsure: bool) -> None:
        read = [*seen.found.items(), *seen.listed.items()]
        garbage = [n for n, value in read if value not in self.history.get(n, ())]
        garbage += [n for n in (seen.names or set()) if n not in self.history]
        garbage += [n for n in seen.errors if n.startswith("twice ")]
        if garbage:
            self.fail("garbage", where, garbage[:8])
        older = [n for n, value in read if value != self.truth.get(n)]
        older += [n for n in (seen.names or set()) if n not in self.truth]
        if getattr(self.store, "back", False):
            older = [n for n in older if n in self.truth]
        opened = bool(seen.found or seen.listing or not seen.reported)
        gone = [n for n, error in seen.errors.items() if isinstance(error, FileNotFoundError)]
        gone += [n for n in self.truth if opened and n not in seen.found and n not in seen.errors]
        gone += [n for n in self.truth if seen.listed and seen.listing and n not in seen.listed]
        reported = bool(seen.reported) or any("in a scan" in name for name in seen.errors)
        for what, names in (("older", older), ("gone", gone)):
            if names and reported:
                self.count[f"{what}, reported"] += 1
            elif names and self.is_earlier(seen):
                self.count["an earlier state"] += 1
            elif names and unsure:
                self.count["moved by a file without a checksum"] += 1
            elif names:
                self.fail("silent", where, f"{what}: {sorted(set(names))[:8]}")
        self.count["not opened"] += not opened
        if opened and not older and not gone:
            self.count["named errors" if seen.errors else "no file lost"] += 1

    def write_over(self, before: Seen, where: str) -> None:
        """A writer that does not know: what could be read stays."""
        seen = self.written_over()
        lost = [
            n
            for n, value in before.found.items()
            if value == self.truth.get(n) and seen.found.get(n) != value
        ]
        if lost:
            self.fail("lost by a writer", where, f"{lost[:5]}: {seen.reported[:2]}")


def run(kind: str, numbers: range) -> States:
    """These states, in memory."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        states = States(kind, Path(folder))
        for number in numbers:
            states.run(number)
        return states


def main() -> None:
    warnings.simplefilter("ignore")
    kinds = list(KINDS) if sys.argv[1] == "all" else [sys.argv[1]]
    total: Counter[str] = Counter()
    for kind in kinds:
        states = run(kind, range(int(sys.argv[2]), int(sys.argv[3])))
        print(kind, dict(states.count), flush=True)
        total += states.count
        states.show()
    print("all", dict(total))


if __name__ == "__main__":
    main()
