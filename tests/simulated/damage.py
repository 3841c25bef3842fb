"""Damage to a sector of any file of a store, and what its users then see.

    python tests/simulated/damage.py container 0 1000     # states 0 .. 1000 of a kind of store

A state follows from the kind, `derived` and a number. Of each it is counted what was handed out
wrong, what was missing without a word, which exceptions nobody expects, and whether all files that
the damage did not hit could be read.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "results")]

import numpy as np
import pytest
from constants import make_chains
from folders import MEMORY
from test_digests import make, pairs

import winkfs
import winkfs.dataset.compaction
from winkformats.errors import FormatError
from winkfs.container.salvage import salvage
from winkfs.results import orders
from winkfs.results import store as results
from winkfs.results.orders import Order, Range

SECTOR, HALF = 512, 4096  # bytes: half of two superblocks
DAMAGES = ("flip", "zero", "swap", "double", "stale")
# Not .hidden: who deleted a file is told by that and by one tombstone. See test_dataset_hidden.
DERIVED = (".idx", ".cat", ".time", ".hindex")
EXPECTED = (FormatError, OSError)
WRONG = ("wrong", "silent", "uncaught", "unreadable", "verify silent", "lost by a writer")


# --- stores -------------------------------------------------------------------------------------


class Store:
    """A store in a folder, made in stages, so that sectors have something they held before."""

    has_writer = True
    damages: ClassVar[tuple[str, ...]] = DAMAGES
    removed_last: ClassVar[frozenset[str]] = frozenset()  # names that the last entries take away

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.earlier: dict[Path, list[bytes]] = {}
        for stage in self.stages():
            stage()
            self.remember()
        self.truth = {name: value for name, value in self.read_all() if value is not None}
        assert len(self.truth) > 20
        self.places = self.where()

    def stages(self) -> Iterator[Callable[[], object]]:
        raise NotImplementedError

    def remember(self) -> None:
        for path in self.paths():
            self.earlier.setdefault(path, []).append(path.read_bytes())

    def paths(self) -> list[Path]:
        """In the order in which they were made: the names of jobs are random."""
        order = {path: number for number, path in enumerate(self.earlier)}
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        found.sort(key=lambda path: (order.get(path, len(order)), path.name, path))
        return [path for path in found if path.suffix != ".lock" and path.stat().st_size]

    def base(self, folder: Path) -> Path:
        return folder

    def open(self, folder: Path, mode: str = "r") -> Any:
        return winkfs.open(self.base(folder), mode)

    def verify(self, folder: Path) -> Any:
        return winkfs.verify(self.base(folder))

    def change(self, folder: Path) -> None:
        """What a writer may do."""
        with self.open(folder, "a") as store:
            store.put("zz-new", b"new")

    def read_all(self) -> Iterator[tuple[str, Any]]:
        with self.open(self.folder) as store:
            for entry in store.scan():
                yield entry.name, (entry.read(), entry.mtime_ns, entry.ftype)

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        """By data file: (from, to, name) of the bytes of each file. Hit there, it may be lost."""
        raise NotImplementedError

    def look(self, folder: Path) -> Seen:
        """Everything by all ways. Raises what nobody expects."""
        seen = Seen()
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            try:
                store = self.open(folder)
            except EXPECTED as error:
                seen.reported.append(str(error))
                return seen
            try:
                self.look_at(store, seen)
                seen.reported += [str(warning.message) for warning in reported]
                seen.reported += store.problems
            finally:
                store.close()
        return seen

    def look_at(self, store: Any, seen: Seen) -> None:
        for name in self.truth:
            with self.expecting(seen.errors, name):
                stat = store.stat(name)
                seen.found[name] = (store.read(name), stat.mtime_ns, stat.ftype)
        problems: list[object] = []
        try:
            for entry in store.scan(problem=lambda *reported: problems.append(reported)):
                with self.expecting(seen.errors, f"{entry.name} in a scan"):
                    value = (entry.read(), entry.mtime_ns, entry.ftype)
                    if entry.name in seen.listed:
                        seen.errors["twice " + entry.name] = AssertionError("listed twice")
                    seen.listed[entry.name] = value
            seen.listing = True
        except EXPECTED as error:
            problems.append(error)
        seen.reported += map(str, problems)
        with suppress(*EXPECTED):
            seen.names = set(store.names())

    @staticmethod
    def expecting(errors: dict[str, Exception], name: str) -> suppress:
        return _Noting(errors, name)


class _Noting(suppress):
    def __init__(self, errors: dict[str, Exception], name: str) -> None:
        super().__init__(*EXPECTED)
        self.errors, self.name = errors, name

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, EXPECTED):
            self.errors[self.name] = error.with_traceback(None)  # which holds files open
            error.__context__ = None
        return super().__exit__(kind, error, trace)


@dataclass
class Seen:
    """What a user gets of a store. reported: its own problems."""

    found: dict[str, Any] = field(default_factory=dict)
    listed: dict[str, Any] = field(default_factory=dict)
    names: set[str] | None = None
    listing: bool = False  # went on to its end
    errors: dict[str, Exception] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)

    def take(self, parts: Iterable[Mapping[str, Any]]) -> None:
        """Take in all of a listing, or the error that ends it."""
        try:
            for part in parts:
                self.listed |= part
            self.listing = True
        except EXPECTED as error:
            self.reported.append(str(error))


def fill(names: str, rng: random.Random) -> list[tuple[str, bytes, int]]:
    sizes = (0, 3, 100, 600, 900, 1500, 3000)
    return [(f"{names}{i:02}", rng.randbytes(rng.choice(sizes)), 10**9 + i) for i in range(14)]


class ContainerStore(Store):
    settings: ClassVar[dict[str, bool]] = {}
    removed_last: ClassVar[frozenset[str]] = frozenset({"b02"})

    def base(self, folder: Path) -> Path:
        return folder / "c"

    def stages(self) -> Iterator[Callable[[], object]]:
        rng = random.Random(1)
        base = self.base(self.folder)
        yield lambda: self._first(rng)
        yield lambda: self._more(rng)
        yield lambda: winkfs.reindex(base)
        yield lambda: self._last(rng)
        yield lambda: winkfs.reindex(base)

    def _first(self, rng: random.Random) -> None:
        with winkfs.create(self.base(self.folder), **self.settings) as c:
            c.put_many(fill("a", rng))
            c.sync()
            c.put("big", rng.randbytes(20_000), mtime=10**9 + 50)

    def _more(self, rng: random.Random) -> None:
        with self.open(self.folder, "a") as c:
            c.put_many([(n, d, t + 100) for n, d, t in fill("b", rng)])
            c.put("a01", b"again" * 100, mtime=10**9 + 200)
            c.delete("a02")
            if not self.settings.get("ao"):
                c.rename("a03", "renamed")
                c.append("a04", rng.randbytes(800))
                c.write("big", 5_000, b"middle" * 100)
                c.chmod("a05", 0o600 if not self.settings.get("classic") else 0o755)

    def _last(self, rng: random.Random) -> None:
        with self.open(self.folder, "a") as c:
            c.put_many([(n, d, t + 300) for n, d, t in fill("c", rng)])
            c.delete("b02")

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        return {self.base(self.folder).with_suffix(".data"): places(self.base(self.folder))}


def places(base: Path) -> list[tuple[int, int, str]]:
    with winkfs.open(base) as container:
        store = container.store  # type: ignore[union-attr]
        found = []
        for entry in container.scan():
            pos = store.index.lookup(entry.name.encode() + b"/I0")
            inode = store.inode_at(pos)[1]
            for at in (pos, *(link.pos for link in inode.links), *inode.pointers):
                size = store.kv.get(at).size if at else 0
                found.append((at, at + size, entry.name))
        return found


class ChainStore(ContainerStore):
    """Inodes that build on others."""

    def stages(self) -> Iterator[Callable[[], object]]:
        patch = pytest.MonkeyPatch()
        make_chains(patch)
        for number in range(4):
            yield from list(super().stages())[number : number + 1]
            yield self._overwrite
        yield lambda: winkfs.reindex(self.base(self.folder))
        patch.undo()

    def _overwrite(self) -> None:
        rng = random.Random(5)
        with self.open(self.folder, "a") as c:
            for _ in range(3):
                for name in ("big", "a06", "a07", "a08"):
                    c.write(name, rng.randrange(90), rng.randbytes(40))
                c.sync()


class AoStore(ContainerStore):
    settings: ClassVar[dict[str, bool]] = {"ao": True}


class ClassicStore(ContainerStore):
    settings: ClassVar[dict[str, bool]] = {"classic": True}


class DataSetStore(Store):
    def stages(self) -> Iterator[Callable[[], object]]:
        rng = random.Random(2)
        yield lambda: self._commit(fill("a", rng), [])
        yield lambda: self._commit(fill("b", rng), ["a02", "a03"])
        yield lambda: self._commit([("a04", b"again" * 50, 10**9 + 500)], ["b01"])
        yield lambda: self._commit(fill("c", rng), [])
        yield lambda: winkfs.reindex(self.folder)

    def _commit(self, files: list[tuple[str, bytes, int]], gone: list[str]) -> None:
        with winkfs.dataset.create(self.folder) as d:
            for name in gone:
                d.delete(name)
            for name, data, mtime in files:
                d.put(name, data, mtime)

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        found = {}
        for path in self.folder.rglob("*.data"):
            found[path] = places(path.with_suffix(""))
        return found


class DigestStore(Store):
    has_writer = False
    damages = (*DAMAGES, "cut")

    def stages(self) -> Iterator[Callable[[], object]]:
        content = {b"doc:%d;" % i: d for i, d in enumerate(pairs(60).values())}
        yield lambda: make(self.folder / "d", content, shards=2)

    def base(self, folder: Path) -> Path:
        return folder / "d"

    def open(self, folder: Path, mode: str = "r") -> Any:
        return winkfs.digests.open(self.base(folder))

    def read_all(self) -> Iterator[tuple[str, Any]]:
        with self.open(self.folder) as digests:
            yield from digests.items()

    def look_at(self, store: Any, seen: Seen) -> None:
        for name in self.truth:
            with self.expecting(seen.errors, name):
                found = store.get(name)
                if found is not None:
                    seen.found[name] = found
                else:
                    seen.errors[name] = FileNotFoundError(name)
        with suppress(*EXPECTED):
            many = store.get_many(list(self.truth))
            for name, found in zip(self.truth, many, strict=True):
                if found != self.truth[name]:
                    seen.found[name] = found  # None: silent
                    seen.errors.pop(name, None)
        seen.take({name: found} for name, found in store.items())

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        found = {}
        for path in self.folder.rglob("*.kvseq"):
            data = path.read_bytes()
            starts = sorted((data.index(name.encode()), name) for name in self.truth
                            if name.encode() in data)  # fmt: skip
            ends = [at for at, _ in starts[1:]] + [len(data)]
            found[path] = [(a - 16, b, name) for (a, name), b in zip(starts, ends, strict=True)]
        return found


class OpenOrder:
    """An order as a store: names are "part:row"."""

    problems = ()

    def __init__(self, order: Order) -> None:
        self.order = order

    def read(self, where: Range) -> dict[str, tuple[int, ...]]:
        rows = np.stack(self.order.read(where)).T.tolist()
        return {f"{where.part}:{where.start + i}": tuple(row) for i, row in enumerate(rows)}

    def parts(self, size: int) -> Iterator[dict[str, tuple[int, ...]]]:
        for where in self.order.ranges(size):
            yield self.read(where)

    def close(self) -> None:
        """It holds nothing open."""


class OrderStore(Store):
    """An order of a data set, read in ranges of RANGE rows. What is damaged in a part may cost all
    of it."""

    has_writer = False
    damages = (*DAMAGES, "cut")
    RANGE = 150

    def stages(self) -> Iterator[Callable[[], object]]:
        yield self._make

    def base(self, folder: Path) -> Path:
        return folder / "o"

    def paths(self) -> list[Path]:
        return [path for path in super().paths() if self.base(self.folder) in path.parents]

    def _make(self) -> None:
        corpus = self.folder / "corpus"
        for job in range(2):
            with winkfs.dataset.create(corpus) as d:
                d.put_many((f"{job}/{i}", b"%d" % i) for i in range(500))
        with winkfs.open(corpus) as d:
            shards = [(s.record.path, s.record, winkfs.open(s.base)) for s in d.shards]  # type: ignore[union-attr]
            found = []
            for number, (_, _, container) in enumerate(shards):
                found += [(number, pos) for pos in container.store.index.positions().tolist()]
                container.close()
        random.Random(4).shuffle(found)
        folder = results.begin(self.base(self.folder), orders.NAME)
        parts = []
        for part in range(2):
            mine = np.array(found[part::2], np.int64)
            rows = orders.OrderedFiles(mine[:, 0], mine[:, 1], np.arange(len(mine)) // 3)
            parts.append(orders.write_part(folder / f"part-{part:05}.perm", [rows], 7))
        known = tuple(orders.OrderedShard(path, r.contid, r.size) for path, r, _ in shards)
        orders.publish(folder, Order(folder, str(corpus), 2, "group", "name", known, tuple(parts)))

    def open(self, folder: Path, mode: str = "r") -> Any:
        return OpenOrder(orders.open(self.base(folder)))

    def read_all(self) -> Iterator[tuple[str, Any]]:
        order = self.open(self.folder)
        for part in order.parts(self.RANGE):
            yield from part.items()

    def look_at(self, store: Any, seen: Seen) -> None:
        for part in range(2):
            for start in range(0, 500, self.RANGE):
                where = Range(part, start, min(start + self.RANGE, 500))
                names = [f"{part}:{row}" for row in range(where.start, where.stop)]
                try:
                    seen.found |= store.read(where)
                except EXPECTED as error:
                    seen.errors |= dict.fromkeys(names, error)
        seen.take(store.parts(self.RANGE))

    def where(self) -> dict[Path, list[tuple[int, int, str]]]:
        found = {}
        for path in self.base(self.folder).rglob("*.perm"):
            part = int(path.stem.split("-")[1])
            names = [name for name in self.truth if name.startswith(f"{part}:")]
            found[path] = [(0, path.stat().st_size, name) for name in names]
        return found


STORES: dict[str, type[Store]] = {
    "plain": ContainerStore,
    "chains": ChainStore,
    "ao": AoStore,
    "classic": ClassicStore,
    "data set": DataSetStore,
    "digest set": DigestStore,
    "order": OrderStore,
}


# --- damage -------------------------------------------------------------------------------------


def damaged(
    kind: str, data: bytes, earlier: list[bytes], rng: random.Random
) -> tuple[bytes, set[int]] | None:
    """-> the bytes, and the offsets where sectors changed; None: this cannot be done here."""
    sectors = range(0, len(data), SECTOR)
    content = bytearray(data)
    a, b = rng.choice(sectors), rng.choice(sectors)
    if kind == "flip":
        bit = rng.randrange(8 * len(data))
        content[bit >> 3] ^= 1 << (bit & 7)
    elif kind == "zero":
        content[a : a + SECTOR] = bytes(len(content[a : a + SECTOR]))
    elif kind == "cut":
        del content[rng.choice((a, rng.randrange(len(data)))) :]
    elif kind == "stale":
        old = rng.choice(earlier)
        there = [s for s in range(0, min(len(old), len(data)) - SECTOR + 1, SECTOR)
                 if old[s : s + SECTOR] != data[s : s + SECTOR]]  # fmt: skip
        if not there:
            return None
        a = rng.choice(there)
        content[a : a + SECTOR] = old[a : a + SECTOR]
    elif len(data[a : a + SECTOR]) == len(data[b : b + SECTOR]):
        content[b : b + SECTOR] = data[a : a + SECTOR]
        if kind == "swap":
            content[a : a + SECTOR] = data[b : b + SECTOR]
    if content == data:
        return None
    if kind == "cut":  # nothing of the file may be left
        return bytes(content), set(sectors)
    changed = {s for s in sectors if content[s : s + SECTOR] != data[s : s + SECTOR]}
    return bytes(content), changed


class Trials:
    """Trials of a store whose files are damaged: `count` of them, `failures` a line each."""

    store: Store

    def __init__(self, folder: Path) -> None:
        (folder / "store").mkdir()
        self.folder, self.copy = folder / "store", folder / "copy"
        self.count: Counter[str] = Counter()
        self.failures: list[str] = []

    def fail(self, what: str, where: str, found: object) -> None:
        self.count[what] += 1
        self.failures.append(f"{what}: {where}: {str(found)[:400]}")

    @contextmanager
    def judging(self, where: str) -> Iterator[None]:
        """Without warnings; an exception is a failure."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception:
            self.fail("uncaught", where, traceback.format_exc(limit=-3).replace("\n", " "))

    def written_over(self) -> Seen:
        """What there is behind a writer that does not know of the damage."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder, self.copy)
        with suppress(*EXPECTED):
            self.store.change(self.copy)
        return self.store.look(self.copy)

    def show(self) -> None:
        """Print the first failures of each kind, as many as sys.argv[4] says, or 3."""
        shown: Counter[str] = Counter()
        for line in self.failures:
            shown[line.split(":")[0]] += 1
            if shown[line.split(":")[0]] <= int((sys.argv[4:] or ["3"])[0]):
                print("   ", line, flush=True)


class States(Trials):
    """States of a kind of store, with or without its derived files."""

    def __init__(self, kind: str, folder: Path, *, derived: bool = True) -> None:
        super().__init__(folder)
        self.kind, self.derived = kind, derived
        self.store = STORES[kind](self.folder)

    def run(self, number: int) -> None:
        """One state, counted in `count`; what is wrong is noted in `failures`."""
        rng = random.Random(f"{self.kind} {number}")
        if not self.derived:  # a reader may have made some
            for path in self.store.paths():
                if path.suffix in DERIVED:
                    path.unlink()
        paths = self.store.paths()
        data = [path for path in paths if path.suffix in (".data", ".kvseq", ".perm")]
        path = rng.choice(data if rng.random() < 0.5 else paths)
        kind, before = rng.choice(self.store.damages), path.read_bytes()
        done = damaged(kind, before, self.store.earlier[path], rng)
        if done is None:
            return
        self.count["states"] += 1
        where = f"{self.kind} {number}: {kind} {path.name} at {min(done[1])}"
        where += "" if self.derived else ", no derived files"
        path.write_bytes(done[0])
        with self.judging(where):
            self.judge(where, path, done[1], rng)
        path.write_bytes(before)

    def hit_by(self, path: Path, sectors: set[int]) -> set[str]:
        """The files of which some bytes are in these sectors."""
        hit = {
            name
            for a, b, name in self.store.places.get(path, ())
            if any(a < s + SECTOR and s < b for s in sectors)
        }
        if {0, HALF} <= {s - s % HALF for s in sectors}:  # both superblocks
            hit |= {name for _, _, name in self.store.places.get(path, ())}
        return hit

    def judge(self, where: str, path: Path, sectors: set[int], rng: random.Random) -> None:
        hit = self.hit_by(path, sectors)
        seen = self.store.look(self.folder)
        self.compare(seen, hit, where)
        if rng.random() < 0.25:
            report = self.store.verify(self.folder)
            if not report.problems and self.incomplete(seen):
                self.fail("verify silent", where, seen.errors)
        if self.store.has_writer and rng.random() < 0.1:
            self.write_over(hit, where)

    def compare(self, seen: Seen, hit: set[str], where: str) -> None:
        truth = self.store.truth
        # Where nothing good follows the damage, the file is as it was when it ended there.
        ends = any("no good one behind it" in line for line in seen.reported)
        older = hit | self.store.removed_last if ends else frozenset[str]()
        wrong = [n for n, v in seen.found.items() if v != truth[n] and n not in older]
        wrong += [n for n, v in seen.listed.items() if v != truth.get(n) and n not in older]
        wrong += [n for n in (seen.names or set()) - older if n not in truth]
        wrong += [n for n in seen.errors if n.startswith("twice ")]
        if wrong:
            self.fail("wrong", where, wrong)
        gone = [n for n, error in seen.errors.items() if isinstance(error, FileNotFoundError)]
        gone += [n for n in truth if seen.listing and n not in seen.listed]
        if gone and not self.reports_damage(seen):
            self.fail("silent", where, sorted(set(gone))[:8])
        others = [n for n in truth if n not in hit and seen.found.get(n) != truth[n]]
        if others:
            reported = [str(seen.errors.get(n)) for n in others[:1]] + seen.reported[:2]
            self.fail("unreadable", where, f"{len(others)} others: {reported}")

    def reports_damage(self, seen: Seen) -> bool:
        return bool(seen.reported) or any(" in a scan" in name for name in seen.errors)

    def incomplete(self, seen: Seen) -> bool:
        return any(seen.found.get(n) != value for n, value in self.store.truth.items())

    def write_over(self, hit: set[str], where: str) -> None:
        """A writer that does not know: files that the damage did not hit stay."""
        seen, truth = self.written_over(), self.store.truth
        if not seen.found:
            return  # nothing could be read before, and that is counted
        lost = [n for n in truth if n not in hit and seen.found.get(n) != truth[n]]
        if lost:
            self.fail("lost by a writer", where, f"{lost[:5]}: {seen.reported[:2]}")


class Salvages(States):
    """The same of what a salvage makes of the data file: files that the damage did not hit have all
    that they had, the FILEID too, and the container is sound."""

    def __init__(self, kind: str, folder: Path, *, derived: bool = True) -> None:
        super().__init__(kind, folder, derived=derived)
        with self.store.open(self.folder) as container:
            self.ids = {name: container.stat(name).fileid for name in self.store.truth}

    def judge(self, where: str, path: Path, sectors: set[int], rng: random.Random) -> None:
        hit, found = self.hit_by(path, sectors), self.copy / "c"
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.mkdir()
        done = salvage(self.store.base(self.folder), found)
        seen = self.store.look(self.copy)
        seen.reported += done.problems
        names = dict.fromkeys(seen.names or ())
        for known in (seen.listed, names):
            for name in [name for name in known if name.startswith("lost+found/")]:
                del known[name]
        seen.names = set(names)
        self.compare(seen, hit, where)
        problems = self.store.verify(self.copy).problems
        if problems:
            self.fail("verify", where, problems)
        with winkfs.open(found) as container:
            ids = {name: container.stat(name).fileid for name in seen.found}
        wrong = [name for name in ids if name not in hit and ids[name] != self.ids[name]]
        if wrong or len(set(ids.values())) < len(ids):
            self.fail("wrong", where, f"FILEIDs of {wrong[:5]}")


def run(kind: str, numbers: range, *, derived: bool, trials: type[States] = States) -> States:
    """These states, in memory."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        states = trials(kind, Path(folder), derived=derived)
        for number in numbers:
            states.run(number)
        return states


def main() -> None:
    kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for derived in (True, False):
        states = run(kind, range(first, last), derived=derived)
        print(kind, "with" if derived else "without", "derived files:", dict(states.count))
        states.show()


if __name__ == "__main__":
    main()
