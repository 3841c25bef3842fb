"""Histories of several writers of one data set on a store that loses answers, by seed.

One thread runs at a time; at each request the seed decides which one goes on, and what the request
meets: it fails, it is made and its answer is lost, it is made much later, `latest` is an old one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from unittest import mock

from simulated.objectstore import ObjectStore

from winkformats.disk import objects
from winkformats.disk.objects import ObjectInfo
from winkformats.errors import FormatError
from winkfs.dataset import checkpoint, folder
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log, create
from winkfs.dataset.records import Manifest, ShardRecord, State
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, FileExists, Refusal


class Turns:
    """Threads of which one runs at a time. `step` lets another one go on."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._main = _taken()
        self._mine: dict[int, threading.Lock] = {}

    def step(self) -> None:
        mine = self._mine.get(threading.get_ident())
        if mine is not None:
            self._main.release()
            mine.acquire()

    def run(self, jobs: list[Callable[[], None]]) -> None:
        """Run functions to their ends. Raises what the first of them raises."""
        locks, ended, failures = [_taken() for _ in jobs], set[int](), list[BaseException]()

        def work(number: int) -> None:
            self._mine[threading.get_ident()] = locks[number]
            locks[number].acquire()
            try:
                jobs[number]()
            except BaseException as error:
                failures.append(error)
            finally:
                ended.add(number)
                self._main.release()

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        alive = list(range(len(jobs)))
        while alive:
            number = self._chance.choice(alive)
            locks[number].release()
            assert self._main.acquire(timeout=20), "a request did not end"
            if number in ended:
                threads[number].join()
                alive.remove(number)
        if failures:
            raise failures[0]


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Inline:
    """In place of the threads of requests."""

    def submit(self, call: Callable[..., object], *given: object) -> objects.Future[object]:
        future: objects.Future[object] = objects.Future()
        try:
            future.set_result(call(*given))
        except BaseException as error:
            future.set_exception(error)
        return future


class Unreliable(ObjectStore):
    """A store that is atomic, and whose answers are lost, late or old while `rate` is not 0."""

    def __init__(self, chance: random.Random, turns: Turns, rate: float) -> None:
        super().__init__()
        self.chance, self.turns, self.rate = chance, turns, rate
        self.late: list[tuple[str, bytes, bool, str | None]] = []
        self.manifests: dict[str, bytes] = {}
        self.hints: list[bytes] = []
        self.failing, self.lost = self._before, self._after

    def _meets(self) -> bool:
        return self.chance.random() < self.rate

    def _before(self, key: str) -> None:
        self.turns.step()
        if self.late and self._meets():
            self._arrive(self.chance.randrange(len(self.late)))
        if self._meets():
            raise Refusal("HTTP 503")

    def _after(self, key: str) -> None:
        if self._meets():
            raise Refusal("reset")

    def _arrive(self, which: int) -> None:
        key, data, absent, etag = self.late.pop(which)
        there = self.objects.get(key)
        if not (absent and there) and (etag is None or (there and there[1].etag == etag)):
            self.put(key, data)

    def arrive(self) -> None:
        """Let all late requests arrive."""
        while self.late:
            self._arrive(0)

    def put(self, key: str, data: bytes) -> None:
        if key[-25:-5].isdecimal() and key.endswith(".json"):
            old = self.manifests.setdefault(key, data)
            assert data in (b"", old), "a manifest was replaced"
        if key.endswith("/latest"):
            self.hints.append(data)
        super().put(key, data)

    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        if self._meets():
            self.late.append((key, data, absent, etag))
            raise Refusal("no answer")
        if absent and self._meets():
            raise FileExists("409, and nothing is there", key)
        return super().write(key, data, absent=absent, etag=etag)

    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        if key.endswith("/latest") and self.hints and self._meets():
            data = self.chance.choice(self.hints)
            return start, data[start : start + length], ObjectInfo(len(data), str(hash(data)))
        return super().get(key, start, length, etag)


@dataclass
class History:
    """What writers and readers saw."""

    done: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    batches: list[tuple[int, int]] = field(default_factory=list)
    seen: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)


@contextlib.contextmanager
def patched(chance: random.Random) -> Iterator[None]:
    """Nothing sleeps, requests run in their callers, and checkpoints come soon."""

    def drawn(size: int) -> str:
        return chance.randbytes(size).hex()

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("secrets.token_hex", drawn))
        for where, name, value in (
            (objects, "_pool", Inline()), (folder, "PAUSE", 0.0), (folder, "LONGEST", 0.0),
            (folder, "TRIES", chance.choice([1, 2, 10])),
            (checkpoint, "GENERATIONS", chance.choice([2, 3, 64])),
            (checkpoint, "PART_RECORDS", chance.choice([2, 1024])),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(where, name, value))
        yield


def play(seed: int) -> History:
    """Play a history, and check it. Raises AssertionError."""
    chance = random.Random(seed)
    turns = Turns(chance)
    story, numbers = History(), itertools.count()
    with patched(chance), Unreliable(chance, turns, 0.0) as store:
        root = create(store.trusted("set")).root
        store.rate = chance.choice([0.0, 0.03, 0.1, 0.3])
        many = chance.randint(2, 8)
        commits = 2 if many < 5 else 1  # of each
        writers = [lambda: _write(root, store, story, numbers, commits)] * many
        others = [lambda: _read(root, story)]
        if chance.random() < 0.5:
            others.append(lambda: _vacuum(root))
        turns.run(writers + others)
        store.rate = 0.0
        store.arrive()
        _check(root, store, story)
    return story


def _write(
    root: str, store: Unreliable, story: History, numbers: Iterator[int], commits: int
) -> None:
    chance = store.chance
    for _ in range(commits):
        try:
            job = begin(root, chance.choice(["append", "append", "compact"]))
        except OSError:
            continue
        number = next(numbers)
        name = f"{number:06}"
        record = ShardRecord(f"{job.job}/0", number, 100, 1, 1, first=name, last=name)
        try:
            folder.far_files(root).put(f"{job.job}/0.data", b"a container")
        except OSError:
            job.abort()
            continue
        removed, streams = list[str](), {}
        if job.operation == "compact":
            assert job.log is not None
            old = job.log.state(job.base_generation).shards
            if not old:
                job.abort()
                continue
            one = chance.choice(old)
            record = replace(record, first=one.first, last=one.last, rank=one.rank)
            removed = [one.path]
        elif chance.random() < 0.3:
            streams = {"q": chance.randrange(6)}
        for again in (True, True, False):
            try:
                generation = job.commit([record], streams=streams, removed=removed)
            except DatasetConflict:
                story.refused.add(job.job)
            except OSError:
                if again:  # as a caller would
                    continue
                story.unknown.add(job.job)
            else:
                story.done[job.job] = generation
                story.batches += [(batch, generation) for batch in streams.values()]
            break


def _read(root: str, story: History) -> None:
    for _ in range(3):
        with contextlib.suppress(OSError):
            log = Log(root)
            state = log.shown()
            assert not log.problems
            story.seen.append((state.generation, tuple(r.path for r in state.shards)))


def _vacuum(root: str) -> None:
    for _ in range(4):
        with contextlib.suppress(OSError):
            vacuum(root, keep=1, older_than=0)


def _check(root: str, store: Unreliable, story: History) -> None:
    keys = sorted(key for key in store.manifests)
    manifests = [Manifest.decode(store.manifests[key], file=key) for key in keys]
    assert [manifest.generation for manifest in manifests] == list(range(len(manifests)))
    jobs = [manifest.job for manifest in manifests]
    assert len(set(jobs)) == len(jobs), "a job was committed twice"
    states = [State(0, manifests[0].time_ns)]
    for manifest in manifests[1:]:
        states.append(manifest.apply(states[-1]))
    paths = [tuple(record.path for record in state.shards) for state in states]
    for job, generation in story.done.items():
        done = manifests[generation]
        batch = [b for b, g in story.batches if g == generation]
        other = batch and done.streams.get("q", -1) >= batch[0]
        assert done.job == job or other, "a commit that was acknowledged is lost"
    for job in story.refused - story.done.keys():
        assert job not in jobs, "a commit that was refused is there"
    batches = [b for manifest in manifests for b in manifest.streams.values()]
    assert len(set(batches)) == len(batches), "a batch was committed twice"
    for generation, seen in story.seen:
        assert seen == paths[generation], "a reader saw another state"
    log = Log(root)
    newest = log.latest()
    assert newest.generation == len(manifests) - 1
    assert tuple(record.path for record in newest.shards) == paths[-1]
    for number in range(newest.oldest, newest.generation + 1):
        for record in log.state(number).shards:
            assert f"set/{record.path}.data" in store.objects, "vacuum took too much"
        assert tuple(record.path for record in log.state(number).shards) == paths[number]
    with contextlib.suppress(FormatError):
        latest = json.loads(store.objects["set/_winkfs/latest"][0])
        assert latest["generation"] <= newest.generation
