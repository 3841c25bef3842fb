"""Copies of containers in use: a life on a simulated disk, copied while it goes on.

    python tests/simulated/copies.py plain 17 200      # one life, 200 copies of it

Before each call to the disk what all files hold is noted. A copy then reads file by file, each in
pieces, every piece as of a moment of its own. Read in order, as cp, rsync and tar do, a copy must
show the files of some sync of that time. In any other order it may be damaged, but must say so.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from folders import in_memory
from lives import Life, State, differs, state_of
from simulated.disk import Event
from simulated.files import Bytes, File
from simulated.harness import Wrong, repeatable

import winkfs
from winkfs.container.compact import compact
from winkfs.container.repair import repair
from winkfs.errors import WinkError

HALF = 4096
SUFFIXES = (".data", ".idx", ".cat", ".time")


class Content(NamedTuple):
    """What a file holds: `size` bytes, those beyond `data` are zeros."""

    data: bytes
    size: int

    def part(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.size)
        return self.data[start:stop].ljust(max(stop - start, 0), b"\0")


@dataclass
class Moment:
    """What programs see: names of the files, what these hold, and the states of syncs."""

    names: dict[str, int]
    contents: dict[int, Content]
    states: list[State]


@dataclass
class Film:
    """All moments of a life."""

    life: Life
    moments: list[Moment] = field(default_factory=list)

    def watch(self, _: Event | None = None) -> None:
        before = self.moments[-1].contents if self.moments else {}
        names, contents = dict[str, int](), dict(before)  # files without a name may still be open
        for path, file in self.life.disk.files():
            names[path] = file.number
            contents[file.number] = _content(file, before.get(file.number))
        states = [dict(state) for state in (self.life.acked, *self.life.pending)]
        self.moments.append(Moment(names, contents, states))

    def states(self, first: int, last: int) -> list[State]:
        """Those of all syncs of some moments."""
        found: list[State] = []
        for moment in self.moments[max(first - 1, 0) : last + 2]:
            found += [state for state in moment.states if state not in found]
        return found


def _content(file: File, before: Content | None) -> Content:
    seen = file.seen()
    if before is not None and before.size == seen.size and before.data == seen.data:
        return before
    return Content(bytes(seen.data), seen.size)


def film(kind: str, seed: int, steps: int) -> Film:
    """Live, and note all moments."""
    life = Life.of(kind)(kind, seed, faults=False)
    taken = Film(life)
    try:
        taken.watch()
        life.disk.watch = taken.watch
        for _ in range(steps):
            life.since.append(dict(life.model))
            life.touched = set()
            life.choose()[1]()
        life.synced(life.end)
        taken.watch()
    finally:
        life.disk.watch = None
        life.end()
    return taken


class Plan(NamedTuple):
    """How a copy is taken.

    suffixes  files in the order in which they are read; the others are not copied
    times     of each of these, of each piece of it: the moment at which it is read
    cuts      where the pieces of .data begin, as parts of its size, behind the superblocks
    stat      the size is that of the first moment, as rsync and tar have it; else to the end
    order     in which the pieces of .data are read; None: as they stand
    """

    suffixes: tuple[str, ...]
    times: list[int]
    cuts: list[float]
    stat: bool
    order: list[int] | None

    @property
    def orderly(self) -> bool:
        return self.order is None


def plan(rng: random.Random, moments: int, *, orderly: bool) -> Plan:
    """Any plan for a copy of a life with so many moments."""
    chosen = [s for s in SUFFIXES if s == ".data" or rng.random() < 0.75]
    rng.shuffle(chosen)
    cuts = sorted(rng.random() for _ in range(rng.choice((0, 1, 3))))
    pieces = 3 + len(cuts)
    first = rng.randrange(moments)
    span = rng.choice((3, 20, 100, moments))
    last = min(first + span, moments - 1)
    times = sorted(rng.randint(first, last) for _ in range(pieces + len(chosen) - 1))
    order = None if orderly else rng.sample(range(pieces), pieces)
    return Plan(tuple(chosen), times, cuts, rng.random() < 0.5, order)


def take(made: Film, how: Plan, folder: Path) -> str | None:
    """Put the copy into an empty folder -> its BASE; None: there was no .data then."""
    times = iter(how.times)
    for suffix in how.suffixes:
        at = next(times)
        number = made.moments[at].names.get(f"c{suffix}")
        pieces = 3 + len(how.cuts) if suffix == ".data" else 1
        when = [at, *itertools.islice(times, pieces - 1)]
        if number is not None:
            with (folder / f"c{suffix}").open("wb") as file:
                content = _copied(made, how, number, when)
                file.write(content.data)
                file.truncate(content.size)
    return str(folder / "c") if (folder / "c.data").exists() else None


def _copied(made: Film, how: Plan, number: int, when: Sequence[int]) -> Bytes:
    shots = [made.moments[at].contents[number] for at in when]
    size = shots[0].size if how.stat else shots[-1].size
    if len(shots) == 1:
        return Bytes(bytearray(shots[0].data), shots[0].size)
    used = max(len(shot.data) for shot in shots)
    edges = [0, HALF, 2 * HALF, *(2 * HALF + int(c * (used - 2 * HALF)) for c in how.cuts), size]
    edges = [max(edges[: i + 1]) for i in range(len(edges))]
    order = how.order or range(len(shots))
    data = bytearray(size)
    for shot, piece in zip(shots, order, strict=True):
        part = shot.part(edges[piece], edges[piece + 1] if piece + 2 < len(edges) else size)
        data[edges[piece] : edges[piece] + len(part)] = part
    del data[size:]
    return Bytes(data.rstrip(b"\0"), size)


class Seen(NamedTuple):
    state: State | None  # None: it cannot be read as a whole
    problems: list[str]


def look(base: str) -> Seen:
    """What a reader sees."""
    try:
        with winkfs.open(base) as reader:
            return Seen(state_of(reader), list(reader.problems))
    except (WinkError, OSError) as error:
        return Seen(None, [str(error)])


def check(made: Film, how: Plan, rng: random.Random) -> str:
    """Take a copy and look at it -> "silent and whole", "reported". Raises Wrong."""
    with in_memory() as folder:
        base = take(made, how, folder)
        return "not there" if base is None else _checked(made, how, base, rng)


def _checked(made: Film, how: Plan, base: str, rng: random.Random) -> str:
    seen = look(base)
    allowed = made.states(how.times[0], how.times[-1])
    report = winkfs.verify(base)
    whole = seen.state is not None and any(not differs(seen.state, s) for s in allowed)
    if not whole:
        if not seen.problems and not report.problems:
            assert seen.state is not None
            reported = " | or | ".join(differs(seen.state, state) for state in allowed)
            raise Wrong(f"{how}: silent: {reported}")
        if how.orderly and not (how.stat and "cut short" in f"{seen.problems}"):
            raise Wrong(f"{how}: {seen.problems} {report.problems} {seen.state is None}")
    mended(base, how, seen, rng, whole=whole)
    return "whole" if whole else "reported"


def mended(base: str, how: Plan, seen: Seen, rng: random.Random, *, whole: bool) -> None:
    """Another state is of no use: a writer and a repair must leave what a reader sees, sound."""
    way = rng.randrange(3)
    if way == 0 and whole and not seen.problems:
        with winkfs.open(base, "a") as writer:
            same(how, state_of(writer), seen, "a writer")
            writer.put("new", b"new", mtime_ns=4 * 10**18)
            writer.sync()
            writer.delete("new")
        same(how, look(base).state, seen, "after a writer")
    elif way == 1 and whole and not seen.problems:
        compact(base)
        same(how, look(base).state, seen, "after compact")
    found = winkfs.verify(base).problems
    done = repair(base, apply=True)
    if found and not done.steps:
        raise Wrong(f"{how}: verify: {found[:3]}, but repair finds nothing")
    if problems := winkfs.verify(base).problems:
        raise Wrong(f"{how}: after repair: {problems[:3]}")
    after = look(base)
    if after.problems:
        raise Wrong(f"{how}: after repair: {after.problems[:3]}")
    if whole:
        same(how, after.state, seen, "after repair")
        if done.lost:
            raise Wrong(f"{how}: repair takes out {done.lost}")


def same(how: Plan, state: State | None, seen: Seen, when: str) -> None:
    if state is None or seen.state is None or (what := differs(state, seen.state)):
        raise Wrong(f"{how}: {when}: {what if state else 'unreadable'}")


def copies(kind: str, seed: int, count: int, steps: int = 40) -> dict[str, int]:
    """So many copies of one life -> how many were what. Raises Wrong, with what brings it back."""
    found: dict[str, int] = {}
    with repeatable(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made, rng = film(kind, seed, steps), random.Random(f"copies {kind} {seed}")
        for number in range(count):
            orderly = number % 3 < 2
            try:
                what = check(made, plan(rng, len(made.moments), orderly=orderly), rng)
            except Exception as error:
                line = f"python tests/simulated/copies.py '{kind}' {seed} {number + 1}"
                raise Wrong(f"{line}\n{type(error).__name__}: {error}") from error
            key = f"{'in order' if orderly else 'in any order'}: {what}"
            found[key] = found.get(key, 0) + 1
    return found


def main(args: list[str]) -> Any:
    return copies(args[0], int(args[1]), int(args[2]))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    print(main(sys.argv[1:]))
