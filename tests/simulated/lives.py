"""Lives of containers on a simulated disk: random operations by seed, beside a model.

    python tests/simulated/harness.py lives plain 17      # one life, step by step

What a sync, a close or a new start has acknowledged is in every image of the disk after a power
cut; of what was not, an image has nothing, or all that one sync was about to acknowledge.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import nullcontext, suppress
from errno import ENOSPC
from functools import partial
from typing import Any, ClassVar, NamedTuple

from folders import in_memory
from interrupts import Interrupter
from oracle_read import check
from simulated import harness
from simulated.disk import Event, SimulatedDisk
from simulated.files import SECTOR
from simulated.harness import Wrong

import winkfs
from winkfs import Container
from winkfs.container.compact import compact as compact_container
from winkfs.dataset import Dataset
from winkfs.dataset.compaction import compact, rebalance
from winkfs.dataset.maintain import vacuum
from winkfs.entry import FileType
from winkfs.errors import NotAllowed
from winkfs.mounting.container import ContainerSource
from winkmount.source import Amendment, Attr, run_steps

SECOND = 10**9
COLUMNS = {"n": "int64", "text": "string"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ao": {"ao": True},
    "classic": {"classic": True},
    "plain md5": {"htalgo": 1},
    "columns": {"columns": COLUMNS},
    "zstd": {"compress": "zstd:1"},
    "interrupts": {},
    "mount": {},
    "full": {},
    "full ao": {"ao": True},
    "full classic": {"classic": True},
    "steps": {},
    "large": {},
    "large ao": {"ao": True},
    "large classic": {"classic": True},
    "data set": {},
    "data set zstd": {"compress": "zstd:1"},
    "data set columns": {"columns": COLUMNS},
}
NAMES = ("a", "b", "c", "dir/d", "dir/ee", "long" * 30)
WRITTEN = {
    "c.data",
    "c.lock",
    "c.cat",
    *(f"c{end}.tmp" for end in (".data", ".idx", ".time", ".cat")),
}
ALONE = ("reopen", "reindex", "compact")  # whose locks an interrupt leaves to the garbage collector


class File(NamedTuple):
    data: bytes
    mtime_ns: int
    mode: int
    n: int | None = None  # a column; `text` says the same

    def __repr__(self) -> str:
        answer = f"{len(self.data)} bytes {self.data[:4].hex()}"
        return f"{answer} at {self.mtime_ns} {self.mode:o} {self.n}"


State = dict[str, File]


def values_of(n: int | None) -> dict[str, Any] | None:
    """The columns of a file."""
    return None if n is None else {"n": n, "text": f"is {n}"}


def state_of(container: Container | Dataset) -> State:
    """All files, listed; found one by one; and no others of NAMES."""
    found = {}
    values: dict[str, Any] = {}
    for entry in container.scan():
        if entry.ftype == FileType.DIR:  # a mount changes its time
            continue
        values = container.getcolumns(entry.name)
        n, mode = values.get("n"), container.stat(entry.name).mode
        if values.get("text") != (None if n is None else f"is {n}"):
            raise Wrong(f"{entry.name!r} has the columns {values}")
        found[entry.name] = File(entry.read(), entry.mtime_ns, mode, n)
    for wanted in (1, 2) if values else ():
        chosen = {entry.name for entry in container.scan(where=f"n = {wanted}")}
        if chosen != {name for name, file in found.items() if file.n == wanted}:
            raise Wrong(f"{sorted(chosen)} are chosen where n = {wanted}")
    for name in {*NAMES, *found}:
        if (name in container) != (name in found):
            raise Wrong(f"{name!r} is listed: {name in found}, found: {name in container}")
    for name, file in found.items():
        if container.read(name) != file.data:
            raise Wrong(f"{name!r} reads otherwise than in a scan")
    if len(container) not in (len(found), len(found) + 1):
        raise Wrong(f"{len(container)} files are counted, {len(found)} are there")
    return found


def differs(found: State, wanted: State) -> str:
    """What differs, in words; "" where nothing does."""
    lines = []
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            lines.append(f"{name[:8]}: is {found.get(name)}, not {wanted.get(name)}")
    return "; ".join(lines)


class Taken(NamedTuple):
    """An image, and what held when it was taken: see `Life`."""

    image: SimulatedDisk
    allowed: list[State]
    when: str
    mixed: bool
    since: list[State]


class Life(harness.Life):
    """A container on a simulated disk.

    acked     what is durable: every image must show it, or
    pending   what a sync that has not returned, or has failed, was about to make durable
    model     what the handle shows
    images    how many were looked at
    """

    FAULTS = ("sync", "sync", "sync", "write", "write", "rename", "directory sync", "create",
              "truncate", "preallocate", "unlink")  # fmt: skip
    STEPS = 40
    SIZES: ClassVar[tuple[int, ...]] = (0, 1, 90, 700, 3_000, 3_000, 9_000, 40_000)

    def __init__(self, kind: str, seed: int, *, faults: bool = True, trace: bool = False) -> None:
        self.ao, self.classic, self.typed = "ao" in kind, "classic" in kind, "columns" in kind
        self.faults = faults
        super().__init__(kind, seed, trace=trace)
        self.clock = 1_000_000_000
        self.acked: State = {}
        self.pending: list[State] = []
        self.model: State = {}
        self.verbs: Any = None  # what takes the changes
        self.touched: set[str] = set()  # by the call that is going on
        self.failed = False  # a call has, since the disk was started
        self.mixed = False  # what was written since `acked` may be there in part
        self.since: list[State] = []  # what the handle has shown since `acked`
        self.make()

    def new_disk(self) -> SimulatedDisk:
        self.faults = self.faults and self.is_faulty()
        # One superblock without a checksum is whole or not only as far as a sector is.
        torn = SECTOR if self.classic else self.rng.choice((1, SECTOR))
        return SimulatedDisk(self.seed, evicts=self.rng.random() < 0.5, torn=torn)

    def is_faulty(self) -> bool:
        return self.rng.random() < 0.6

    def make(self) -> None:
        self.container = winkfs.create(self.base, **VARIANTS[self.kind])
        if self.typed:
            self.container.sync()  # which acknowledges the columns
        self.begin()

    def handle(self) -> Container | Dataset:
        return self.container

    def begin(self) -> None:
        """The container is open."""
        self.verbs = self.handle()

    def end(self) -> None:
        """Close it."""
        self.container.close()

    def start(self) -> None:
        """Open it for writing."""
        self.container = self.writer(self.base)  # type: ignore[assignment]
        self.begin()

    def writer(self, base: str) -> Container | Dataset:
        try:
            return winkfs.open(base, "a")
        except NotAllowed:  # a compaction failed in its last sync
            compact_container(base)
            return winkfs.open(base, "a")

    @property
    def base(self) -> str:
        return f"{self.disk.path}/c"

    @classmethod
    def of(cls, kind: str) -> type[Life]:
        if kind in KINDS:
            return KINDS[kind]
        return DatasetLife if "data set" in kind else Life

    # --- a step ---

    def go(self, steps: int) -> None:
        """Images are checked once the call is over at which they were taken: it may have failed."""
        self.check(self.disk.crash(self.rng), when="after it was made")
        for _ in range(steps):
            self.step()
        self.say("close")
        try:
            self.synced(self.end)
        except OSError as error:  # the handle has lost what it had
            self.say(f"  -> {error}")
            if (
                not self.failed and not self.disk.failed
            ):  # a look-up may go on behind a failed write
                raise
        self.oracle(self.disk.clone())

    def oracle(self, image: SimulatedDisk) -> None:
        """What the next writer leaves is right for the oracle, too."""
        found = self.check(image)
        self.writer(f"{image.path}/c").close()
        written = {event.path for event in self.disk.log if event.call == "write"}
        if written - WRITTEN:
            raise Wrong(f"{written - WRITTEN} are changed in place")
        with in_memory() as folder:
            for path in image.paths():
                (folder / path).write_bytes(image.durable(path))
            files = check(folder / "c", missing_ok=True).files
        read = {
            name.decode(): file.content
            for name, file in files.items()
            if file.ftype != FileType.DIR
        }
        if read != {name: file.data for name, file in found.items()}:
            raise Wrong(f"the oracle reads {sorted(read)}")

    def abort(self, *ignored: type[Exception]) -> None:
        with suppress(*ignored):
            self.end()

    def step(self) -> None:
        rng = self.rng
        verb, action = self.choose()
        ctrl_c = self.kind == "interrupts" and verb not in ALONE and rng.random() < 0.5
        cut = rng.randint(1, 12) if rng.random() < 0.5 else 0
        if self.faults and rng.random() < 0.15:
            call, nth = rng.choice(self.FAULTS), rng.randint(1, 3)
            error = rng.choice((5, 5, 28))
            self.disk.arm(call, nth, error, for_good=rng.random() < 0.2)
            verb += f", {call} {nth} fails with {error}"
        self.say(verb)
        self.touched = set()
        self.since.append(dict(self.model))
        before, taken = dict(self.model), list[Taken]()
        between: list[State] = []
        self.disk.watch = self._watcher(cut, taken) if cut else None
        try:
            with Interrupter(rng.randint(1, 600)) if ctrl_c else nullcontext():
                action()
        except (OSError, KeyboardInterrupt) as error:
            self.say(f"  -> {error!r}")
            self.disk.watch = None
            between = list(self.since)  # a close after a failed write syncs what is whole
            self.after_failure(before)
        finally:
            self.disk.watch = None
            self.disarm()
        for image, allowed, when, mixed, since in taken:
            self.check(image, allowed + between, when, mixed=mixed, since=since)
        if rng.random() < 0.4:
            image = self.disk.crash(rng)
            self.check(image)
            if rng.random() < 0.25:
                self.go_on_from(image)
        if rng.random() < 0.1:
            self.disk.evict()

    def _watcher(self, cut: int, taken: list[Taken]) -> Callable[[Event], None]:
        left = [cut]

        def watch(event: Event) -> None:
            left[0] -= 1
            if left[0] in (0, -3):
                states = [dict(state) for state in (self.acked, *self.pending)]
                when = f"before {event.call} of {event.path} at {event.offset}"
                image = self.disk.crash(self.rng)
                taken.append(
                    Taken(image, states, when, self.mixed, [*self.since, dict(self.model)])
                )

        return watch

    # --- what is done ---

    def choose(self, *, between: bool = False) -> tuple[str, Callable[[], object]]:
        """-> what to do, in words and as a call. `between` syncs: something that is none."""
        rng, name, data = self.rng, self.rng.choice(NAMES), self.content()
        there = rng.choice(sorted(self.model)) if self.model else name
        on = partial(self.changing, there)
        order = "disk" if self.ao or rng.random() < 0.5 else "name"
        durable: dict[str, Callable[[], object]] = {
            "sync": lambda: self.synced(self.sync),
            "reopen": self.reopen,
            "reindex": lambda: self.while_closed(winkfs.reindex),
            "compact": lambda: self.while_closed(lambda base: self.compact(base, order)),
        }
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: self.put(name, data),
            "put_many": lambda: self.put_many(rng.randint(2, 7)),
            "delete": on(lambda: self.delete(there)),
        }
        if not self.ao:
            at = rng.randrange(12_000)
            verbs |= {
                "append": on(lambda: self.append(there, data)),
                "write": on(lambda: self.write(there, at, data)),
                "truncate": on(lambda: self.truncate(there, at)),
                "rename": self.changing(there, lambda: self.rename(there, name), name),
                "utime": on(lambda: self.utime(there)),
                "chmod": on(lambda: self.chmod(there)),
            }
        if self.kind == "zstd":
            verbs["learn"] = self.learn
        if self.typed:
            verbs["setcolumns"] = on(lambda: self.setcolumns(there))
            durable["sync"] = rng.choice((durable["sync"], self.save_catalog))
        if not between and rng.random() < 0.35:
            verb = rng.choice(("sync",) * 6 + ("reopen", "reindex", "compact"))
            return verb, durable[verb]
        verb = rng.choice(["put", "put_many", *verbs])
        what = f"{verb} {there[:8] if verb not in ('put', 'put_many') else name[:8]}"
        if verb in ("write", "truncate"):
            what += f" at {at}"
        if verb in ("put", "append", "write"):
            what += f" {len(data)} bytes"
        return what + (f" to {name[:8]}" if verb == "rename" else ""), verbs[verb]

    def changing(
        self, name: str, action: Callable[[], object], *others: str
    ) -> Callable[[], object]:
        """A change of a file, where it is there, and of its other names."""

        def run() -> None:
            if name in self.model:
                self.touched = {name, *others}
                action()

        return run

    def content(self) -> bytes:
        size = self.rng.choice(self.SIZES)
        if "zstd" in self.kind:  # of which some becomes smaller
            return (self.rng.randbytes(size // 9 + 1) * 9)[:size]
        return self.rng.randbytes(size)

    def compact(self, base: str, order: str) -> None:
        """Also from frames to plain content, and back."""
        words = (None, "none", "zstd:1") if self.kind == "zstd" else (None,)
        compact_container(base, order=order, compress=self.rng.choice(words))

    def learn(self) -> None:
        """Have a dictionary from now on, or find out that none pays."""
        words = [self.rng.randbytes(40) for _ in range(50)]
        text = [b"".join(self.rng.choices(words, k=30)) for _ in range(400)]
        assert isinstance(self.container, Container)
        self.container.learn(text[: self.rng.choice((9, 400))], 1 << 30)

    def now(self) -> int:
        """An mtime, never before the last one; whole seconds where nothing finer is kept."""
        self.clock += self.rng.choice((0, 1, 30, 100))
        return self.clock * SECOND + (0 if self.classic else self.rng.randrange(3))

    def put(self, name: str, data: bytes) -> None:
        now = self.now()
        if self.ao:
            now = max([now, *(file.mtime_ns for file in self.model.values())])
        self.touched = {name}
        n = self.number()
        self.handle().put(name, data, mtime_ns=now, columns=values_of(n))
        self.model[name] = File(data, now, 0o644, n)

    def number(self) -> int | None:
        """For the columns of a file."""
        return self.rng.choice((None, 1, 2, 3)) if self.typed else None

    def setcolumns(self, name: str) -> None:
        n = self.number()
        self.container.setcolumns(name, {"n": n, "text": None} | (values_of(n) or {}))
        self.model[name] = self.model[name]._replace(n=n)

    def save_catalog(self) -> None:
        self.synced(self.sync)
        self.container.save_catalog()

    def put_many(self, count: int) -> None:
        rows = []
        for _ in range(count):
            self.clock += 1
            name, data = self.rng.choice(NAMES), self.content()
            typed = (values_of(self.number()),) if self.typed else ()
            rows.append((name, data, self.clock, *typed))
        self.touched = {row[0] for row in rows}
        model = self.with_rows(rows)
        self.handle().put_many(rows)
        self.model = model

    def with_rows(self, rows: list[tuple[Any, ...]]) -> State:
        """-> the model after `put_many`; where that fails, what it had written by then may stay."""
        model = dict(self.model)
        for name, data, seconds, *typed in rows:
            n = typed[0]["n"] if typed and typed[0] else None
            model[name] = File(data, seconds * SECOND, 0o644, n)
            self.since.append(dict(model))
        return model

    def delete(self, name: str) -> None:
        self.verbs.delete(name)
        del self.model[name]

    def change(self, name: str, data: bytes, n: int | None = None) -> None:
        attr = self.verbs.stat(name)
        self.model[name] = File(data, attr.mtime_ns, stat.S_IMODE(attr.mode), n)

    def append(self, name: str, data: bytes) -> None:
        self.verbs.append(name, data)
        self.change(name, self.model[name].data + data, self.model[name].n)

    def write(self, name: str, at: int, data: bytes) -> None:
        if data:
            self.verbs.write(name, at, data)
            old = self.model[name].data.ljust(at, b"\0")
            self.change(name, old[:at] + data + old[at + len(data) :], self.model[name].n)

    def truncate(self, name: str, size: int) -> None:
        self.verbs.truncate(name, size)
        self.change(name, self.model[name].data[:size].ljust(size, b"\0"), self.model[name].n)

    def rename(self, name: str, new: str) -> None:
        if name != new:
            self.verbs.rename(name, new)
            self.model[new] = self.model.pop(name)

    def utime(self, name: str) -> None:
        now = self.now()
        self.verbs.utime(name, mtime_ns=now)
        self.model[name] = self.model[name]._replace(mtime_ns=now)

    def chmod(self, name: str) -> None:
        mode = self.rng.choice((0o644, 0o755) if self.classic else (0o600, 0o644, 0o755))
        self.verbs.chmod(name, mode)
        self.model[name] = self.model[name]._replace(mode=mode)

    # --- what makes it durable ---

    def synced(self, action: Callable[[], object]) -> None:
        self.pending.append(dict(self.model))
        action()
        self.settled()

    def settled(self) -> None:
        """What the handle shows is durable."""
        self.acked, self.pending, self.since = dict(self.model), [], []
        self.mixed = False

    def sync(self) -> None:
        self.container.sync()

    def reopen(self) -> None:
        self.synced(self.end)
        self.open()

    def open(self) -> None:
        self.start()
        found = state_of(self.handle())
        if what := differs(found, self.acked):
            raise Wrong(f"opened again: {what}")
        self.model = found

    def while_closed(self, action: Callable[[str], object]) -> None:
        self.synced(self.end)
        action(self.base)
        self.open()

    # --- what fails ---

    def after_failure(self, before: State) -> None:
        """The handle goes on, or is given up for a new one; what it then shows is the model."""
        self.failed = True
        self.mixed = True  # a sync that failed has written some files, in any order
        self.pending += self.since  # going on, the handle takes what is whole in the file as done
        self.disarm()
        if self.rng.random() < 0.5:
            try:
                found = state_of(self.handle())
            except (OSError, ValueError) as error:
                self.say(f"  the handle is of no use: {error}")
            else:
                self.model = self.plausible(found, before)
                self.pending.append(dict(self.model))  # to recover may be to sync
                self.say("  the handle goes on")
                return
        with suppress(OSError, ValueError):
            self.say("  close")
            self.end()
        if self.rng.random() < 0.5:
            self.disk.evict()
        self.start()
        self.model = self.plausible(state_of(self.handle()), before)
        self.pending.append(dict(self.model))
        self.say("  opened anew")

    def plausible(self, found: State, before: State) -> State:
        """What is not durable may be lost after a failure; the failed call may be half done."""
        states = (before, self.model, self.acked, *self.pending, *self.since)
        for name in {*found, *before, *self.acked} - self.touched:
            if all(found.get(name) != state.get(name) for state in states):
                raise Wrong(f"after a failure {name[:8]} is {found.get(name)}, was "
                            f"{before.get(name)}, acknowledged {self.acked.get(name)}")  # fmt: skip
        if not self.touched and all(differs(found, state) for state in states):
            self.say("  a mixture of states")
        return found

    # --- images ---

    def check(
        self,
        image: SimulatedDisk,
        allowed: list[State] | None = None,
        when: str = "between calls",
        *,
        mixed: bool = False,
        since: list[State] | None = None,
    ) -> State:
        """Open an image for reading and for writing, verify it -> what it shows. Raises Wrong.

        mixed, since  of when it was taken: a call that has ended since may have reset them
        """
        self.images += 1
        allowed = [self.acked, *self.pending] if allowed is None else allowed
        base = f"{image.path}/c"
        where = f"image {self.images}, {when}"
        with winkfs.open(base) as reader:
            found = state_of(reader)
            extended = any("has lost a sync" in problem for problem in reader.notes)
        mixed = mixed or self.mixed
        if self.failed and extended:
            # With a failed sync the reserve may go, too: the entries then end with the file, and
            # are accepted as those of a close.
            allowed, mixed = [*allowed, *(since or [*self.since, self.model])], True
        if all(differs(found, state) for state in allowed) and not (
            mixed and self.is_mixture(found, allowed)
        ):
            reported = " | or | ".join(differs(found, state) for state in allowed)
            raise Wrong(f"{where}: {reported}")
        self.sound(base, where)
        if self.rng.random() < 0.5:
            self.use(base, found, where)
            self.sound(base, f"{where}, after a writer")
        return found

    def is_mixture(self, found: State, states: list[State]) -> bool:
        """Whether each file is as one of the states has it."""
        names = set(found).union(*states)
        return all(any(found.get(n) == state.get(n) for state in states) for n in names)

    def use(self, base: str, found: State, where: str) -> None:
        """What the next writer does with an image."""
        with self.writer(base) as writer:
            if what := differs(state_of(writer), found):
                raise Wrong(f"{where}: a writer sees {what}")
            if self.rng.random() < 0.5:
                writer.put("new", b"new", mtime_ns=4 * 10**18)
                writer.sync()
                writer.delete("new")

    def sound(self, base: str, where: str) -> None:
        """Raises Wrong where verify does."""
        problems = winkfs.verify(base).problems
        if problems:
            raise Wrong(f"{where}: verify: {problems[:3]}")

    def go_on_from(self, image: SimulatedDisk) -> None:
        """The power was cut, and came back."""
        self.say("power cut")
        with suppress(Exception):
            self.end()
        self.disk, self.failed = image, False
        self.start()
        self.model = state_of(self.handle())
        self.settled()


class Mounted:
    """Verbs of a container, made of the calls of a mount."""

    def __init__(self, source: ContainerSource, now: Callable[[], int]) -> None:
        self.source, self.now = source, now

    def place(self, name: str) -> tuple[int, bytes]:
        head, _, last = name.rpartition("/")
        root = self.source.root
        return self.source.lookup(root, head.encode()).id if head else root, last.encode()

    def id(self, name: str) -> int:
        return self.source.lookup(*self.place(name)).id

    def stat(self, name: str) -> Attr:
        return self.source.stat(self.id(name))

    def opened(self, name: str, *, there: bool) -> int:
        """-> the id of a file that is open for writing, and empty."""
        if not there:
            self.source.create(*self.place(name), 0o644, os.getuid(), os.getgid())
        self.source.open(self.id(name), write=True, truncate=there)
        return self.id(name)

    def delete(self, name: str) -> None:
        self.source.unlink(*self.place(name))

    def append(self, name: str, data: bytes) -> None:
        self.write(name, self.stat(name).size, data)

    def write(self, name: str, at: int, data: bytes) -> None:
        if data:
            self.source.write(self.id(name), [(at, data)], self.now())

    def truncate(self, name: str, size: int) -> None:
        self.source.truncate(self.id(name), size)

    def rename(self, name: str, new: str) -> None:
        self.source.rename(*self.place(name), *self.place(new))

    def utime(self, name: str, *, mtime_ns: int) -> None:
        self.source.amend(self.id(name), Amendment(mtime_ns=mtime_ns), mtime_ns)

    def chmod(self, name: str, mode: int) -> None:
        self.source.amend(self.id(name), Amendment(mode=mode), self.now())


class MountLife(Life):
    """The same through the calls that a mount makes."""

    def begin(self) -> None:
        self.source = ContainerSource(self.container)
        self.verbs = Mounted(self.source, self.now)
        try:
            self.source.lookup(self.source.root, b"dir")
        except FileNotFoundError:
            self.source.mkdir(self.source.root, b"dir", 0o755, os.getuid(), os.getgid())

    def end(self) -> None:
        self.source.close()

    def sync(self) -> None:
        names = sorted(self.model)
        if names and self.rng.random() < 0.5:
            run_steps(self.source.syncing(self.verbs.id(names[0])))
        else:
            run_steps(self.source.syncing(None))

    def put(self, name: str, data: bytes) -> None:
        self.touched = {name}
        id = self.verbs.opened(name, there=name in self.model)
        for at in range(0, len(data), 5_000):
            self.source.write(id, [(at, data[at : at + 5_000])], self.now())
        self.source.release(id)
        self.change(name, data)

    def put_many(self, count: int) -> None:
        for _ in range(count):
            self.put(self.rng.choice(NAMES), self.content())


class DatasetLife(Life):
    """A data set: a sync is a commit; shards are joined, and old generations removed."""

    dataset: Dataset

    def make(self) -> None:
        self.dataset = winkfs.dataset.create(
            self.base, compress=VARIANTS[self.kind].get("compress")
        )
        if self.typed:
            self.dataset.add_columns(COLUMNS)
            self.dataset.sync()

        self.begin()

    def start(self) -> None:
        self.dataset = winkfs.dataset.open(self.base, "a")
        self.begin()

    def oracle(self, image: SimulatedDisk) -> None:
        """It reads no data set."""
        self.check(image)

    def handle(self) -> Dataset:
        return self.dataset

    def end(self) -> None:
        self.dataset.close()

    def sync(self) -> None:
        self.dataset.sync()

    def choose(self) -> tuple[str, Callable[[], object]]:
        rng, name, data = self.rng, self.rng.choice(NAMES), self.content()
        words = (None, "none", "zstd:1") if "zstd" in self.kind else (None,)
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: self.put(name, data),
            "put_many": lambda: self.put_many(rng.randint(2, 7)),
            "delete": self.changing(name, lambda: self.delete(name)),
            "sync": lambda: self.synced(self.sync),
            "reopen": self.reopen,
            "reindex": lambda: self.while_closed(winkfs.reindex),
            "compact": lambda: compact(
                self.base, everything=rng.random() < 0.5, compress=rng.choice(words)
            ),
            "rebalance": lambda: rebalance(self.base, shard_size=20_000),
            "vacuum": lambda: vacuum(self.base, keep=rng.randint(1, 3), older_than=0),
        }
        (verb,) = rng.choices(list(verbs), (8, 6, 4, 10, 2, 1, 2, 1, 2))
        return verb, verbs[verb] if verb in DURING else self.alone(verbs[verb])

    def alone(self, action: Callable[[], object]) -> Callable[[], object]:
        """The same after a sync: a vacuum of any age is for data sets that nobody writes to."""

        def run() -> None:
            self.synced(self.sync)
            action()
            self.dataset.refresh()

        return run

    def use(self, base: str, found: State, where: str) -> None:
        super().use(base, found, where)
        if self.rng.random() < 0.3:
            vacuum(base, older_than=0)
        elif self.rng.random() < 0.3:
            compact(base, everything=True)
        with winkfs.open(base) as reader:
            if what := differs(state_of(reader), found):
                raise Wrong(f"{where}: after vacuum or compact {what}")


DURING = ("put", "put_many", "delete", "sync", "reopen")


class InterruptedLife(Life):
    """Calls are interrupted; what came since is replayed, as in a large container."""

    SMALL = {"the index": {"replayed": 1}}  # noqa: RUF012


class SteppedLife(Life):
    """Syncs in steps, with changes and other syncs between them: what was there at its begin is
    durable after a sync."""

    def is_faulty(self) -> bool:
        return False

    def synced(self, action: Callable[[], object]) -> None:
        if action != self.sync:
            super().synced(action)
            return
        begun, others = dict(self.model), 0
        self.pending.append(begun)
        for wait in self.container.syncing():
            for _ in range(self.rng.choice((0, 1, 3))):
                self.choose(between=True)[1]()
            if self.rng.random() < 0.1:
                super().synced(self.sync)
                others += 1
            self.check(self.disk.crash(self.rng))
            wait()
        if not others:
            self.acked, self.pending = begun, []


class LargeLife(Life):
    """Contents that take several writes, and calls of which many fail."""

    SIZES = (0, 90, 3_000, 150_000, 150_000, 500_000, 2_500_000)

    def is_faulty(self) -> bool:
        return True


class FullLife(Life):
    """A disk that is full now and then: a call is refused whole, and the handle goes on."""

    def is_faulty(self) -> bool:
        return False

    def step(self) -> None:
        verb, action = self.choose()
        room = self.rng.choice((None, 0, 512, 4096, 20_000, 100_000))
        self.say(f"{verb}, {'any' if room is None else room} bytes free")
        self.since, before = [], dict(self.model)
        self.disk.fill(room)
        try:
            action()
        except OSError as error:
            self.say(f"  -> {error}")
            if error.errno != ENOSPC and not self.ao:  # where a time may be before the last one
                raise
            self.disk.fill(None)
            self.refused(before)
        self.disk.fill(None)
        if self.rng.random() < 0.4:
            self.check(self.disk.crash(self.rng))

    def refused(self, before: State) -> None:
        """Nothing of the call is there, but for the first files of many; all of the rest is."""
        if self.container.closed:
            self.start()
            self.pending.append(state_of(self.container))
            before = self.pending[-1]
            if all(differs(before, state) for state in (self.acked, *self.pending[:-1])):
                raise Wrong("a close on a full disk has lost a file")
        self.model = state_of(self.container)
        if all(differs(self.model, state) for state in (before, *self.since)):
            raise Wrong(f"a refused call has changed {differs(self.model, before)}")
        self.pending += [*self.since, dict(self.model)]  # to recover may be to sync
        self.mixed = True

    def end(self) -> None:
        super().end()
        if left := [path for path in self.disk.paths() if ".tmp" in path]:
            raise Wrong(f"a close has left {left}")


KINDS: dict[str, type[Life]] = {
    "mount": MountLife,
    "interrupts": InterruptedLife,
    "full": FullLife,
    "full ao": FullLife,
    "full classic": FullLife,
    "steps": SteppedLife,
    "large": LargeLife,
    "large ao": LargeLife,
    "large classic": LargeLife,
}
