"""The manifests of a data set: one a generation, numbered, in a folder, each with a copy.

`folder` keeps the files. `Log` reads them and publishes the next one: all or nothing, and only if
no other writer has published that number. Their content is described in `records`; on object
storage a manifest has the whole difference to a checkpoint, see `checkpoint`.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from winkformats.disk.objects import FRESH
from winkformats.disk.paths import directory_of, is_directory, locate, make_directory
from winkformats.disk.schemes import is_far
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset.folder import COPY, LATEST, Folder, check_commits, far_files, folder_of
from winkfs.dataset.records import Manifest, State, Whole, applied, digest_of, is_whole
from winkfs.errors import FileExists, NoSuchFile, ReadOnly, StalePlan
from winkfs.names import MANIFESTS
from winkfs.units import NANO, parse_iso

PENDING: Final = "_pending"
CHECKPOINT_INTERVAL: Final = 64  # generations from one checkpoint to the next, at most,
INTERVAL_RECORDS: Final = 4096  # for each so many shards, as a checkpoint has all of them
CHECKPOINT_RECORDS: Final = 200  # shards and streams: with at most so many any manifest may be one,
CHECKPOINT_BYTES: Final = 64 << 10  # if it has at most so many bytes
REPAIR_HINT: Final = "`winkfs dataset repair` shows what can be done"
SETTINGS: Final = "store.json"  # what `winkfs remote check` found out, beside the manifests
Fresh = tuple[Mapping[str, Any], Sequence[str]]
"""Hidden rows, and the paths of shards that may have more."""
AsOf = int | float | str | datetime | None


class Log:
    """The generations of one data set.

    problems  a sentence for each damaged manifest that was found and skipped
    """

    def __init__(self, root: str) -> None:
        """Raises NoSuchFile if there is no data set."""
        self.root = root
        if not is_dataset(root):
            raise NoSuchFile(f"no such data set (there is no {MANIFESTS} in it)", root)
        self.store = folder_of(f"{root}/{MANIFESTS}")
        self.problems: list[str] = []
        self._last: State | None = None
        self._seen = -FRESH
        self._head: Manifest | None = None

    # --- reading ---

    def read(self, number: int) -> Manifest:
        """Read a manifest, or its copy if it is damaged or lost.

        raises  StalePlan if it was vacuumed; CorruptError if both are damaged
        """
        return self._read(number)[0]

    def _read(self, number: int) -> tuple[Manifest, bytes]:
        """Read a manifest or its copy -> the manifest and its bytes."""
        damage: CorruptError | None = None
        for file, data in self.store.read(number):
            try:
                found = Manifest.decode(data, file=file)
                if found.generation != number:
                    raise CorruptError("manifest of another generation", file=file, offset=0,
                                       expected=number, found=found.generation)  # fmt: skip
            except CorruptError as error:
                damage = damage or error
                continue
            if damage is not None:
                self.note(f"{damage}: its copy was read: {REPAIR_HINT}")
            elif file.endswith(COPY):
                self.note(f"{file}: the manifest is lost, its copy was read: {REPAIR_HINT}")
            return found, data
        if damage is None:
            raise StalePlan(f"there is no generation {number} any more", self.root)
        what = f"{damage.what} ({REPAIR_HINT})"
        raise CorruptError(what, file=damage.file, offset=damage.offset)

    def note(self, problem: str) -> None:
        """Add a sentence to `problems`, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def newest(self) -> int:
        """Return the number of the newest generation. Cost: a listing of the folder, or see
        `FarFolder.newest`."""
        newest = self.store.newest()
        if newest < 0:
            raise FormatError(f"{self.root}: the data set has lost its manifests")
        self._seen = time.monotonic()
        return newest

    def unchanged(self) -> bool:
        """Return whether the last state that was read is still that of its manifest, which may be
        damaged since, or replaced by a repair. Cost: reads it, without decoding."""
        if self._last is None:
            return False
        _, data = next(self.store.read(self._last.generation), ("", b""))
        return is_whole(data) and digest_of(data) == self._last.digest

    def recent(self) -> State | None:
        """Return the newest state, if that was read in the last seconds."""
        return self._last if time.monotonic() - self._seen < FRESH else None

    def latest(self) -> State:
        """Return the newest state, which a commit can follow. Raises CorruptError if its manifest
        is damaged."""
        return self._state_of(self.newest)

    def _state_of(self, number: Callable[[], int]) -> State:
        """Return the state of a generation, asking again for its number if a vacuum removed it."""
        last = -1
        while True:
            try:
                return self.state(number())
            except StalePlan:
                newest = self.newest()
                if newest == last:  # else a vacuum has added a checkpoint, and removed this one
                    raise
                last = newest

    def head(self) -> Manifest:
        """Return the newest manifest that can be read; `problems` lists newer damaged ones.

        raises  CorruptError if none can be read
        """
        numbers = self.store.numbers()
        damage: CorruptError | None = None
        for number in reversed(numbers):
            try:
                self._head = self.read(number)
            except CorruptError as error:
                damage = damage or error
                continue
            if damage is not None:
                self.note(f"{damage}: what is shown is generation {number}, and not {numbers[-1]}")
            return self._head
        raise damage or FormatError(f"{self.root}: the data set has lost its manifests")

    def shown(self) -> State:
        """Return the state that readers see: that of `head`."""
        return self._state_of(lambda: self.head().generation)

    def state(self, generation: int) -> State:
        """Return the state of a generation. Raises StalePlan; FormatError.

        cost    reads the manifests since the last checkpoint, or since the last call
        """
        number, behind = generation, []
        while True:
            if self._last is not None and self._last.generation == number:
                state = self._last
                break
            head = self._head
            manifest = head if head and head.generation == number else self.read(number)
            if manifest.whole is not None:
                state = self._whole(manifest, manifest.whole)
                break
            if manifest.checkpoint is not None:
                state = manifest.checkpoint
                break
            behind.append(manifest)
            number -= 1
        state = applied(state, behind[::-1])
        if self._last is None or self._last.generation < generation:
            self._last = state
        return state

    def _whole(self, manifest: Manifest, whole: Whole) -> State:
        """Return the state of a manifest of version 2. Cost: reads its parts, at once."""
        from winkfs.dataset.checkpoint import with_records

        last = self._last.whole if self._last is not None else None
        parts = zip(last.parts, last.records or (), strict=True) if last is not None else ()
        whole = with_records(self.root, whole, {part.path: found for part, found in parts})
        return State(
            manifest.generation, manifest.time_ns, whole.shards, whole.streams, manifest.oldest,
            manifest.digest, whole,
        )  # fmt: skip

    def at(self, as_of: AsOf) -> State:
        """Return the state at a generation (int) or time (see `parse_as_of`); None: now.

        raises  StalePlan if it was vacuumed; NoSuchFile if the data set did not exist yet;
                CorruptError if its manifest is damaged
        """
        wanted = parse_as_of(as_of)
        if wanted is None:
            return self.shown()
        head = self.head()
        kind, number = wanted
        if kind == "generation":
            if number > self.newest():
                raise NoSuchFile(f"there is no generation {number}: the newest is "
                                 f"{head.generation}", self.root)  # fmt: skip
            if number < head.oldest:
                raise self._vacuumed(f"generation {number}", head)
            return self.state(number)
        kept = range(head.oldest, head.generation + 1)
        later = bisect.bisect_right(kept, number, key=self._time)
        if not later:
            if head.oldest:
                raise self._vacuumed(f"what was there at {as_of}", head)
            raise NoSuchFile(f"nothing was there yet at {as_of}", self.root)
        return self.state(kept[later - 1])

    def _time(self, number: int) -> int:
        """Return the commit time of a generation; that of the one before, if it is damaged."""
        try:
            return self.read(number).time_ns
        except (CorruptError, StalePlan):
            return self._time(number - 1) if number else 0

    def _vacuumed(self, what: str, head: Manifest) -> StalePlan:
        return StalePlan(
            f"{what} was vacuumed: the oldest generation kept is {head.oldest}", self.root
        )

    def manifests(self, newest: int, oldest: int) -> Iterator[Manifest]:
        """Read the manifests of generations newest .. oldest, downwards."""
        return map(self.read, range(newest, oldest - 1, -1))

    def history(self) -> Iterator[tuple[int, Manifest | FormatError]]:
        """Yield the kept generations, the newest first, each with its manifest or the error of
        reading it."""
        for number in range(self.newest(), self.head().oldest - 1, -1):
            try:
                yield number, self.read(number)
            except (FormatError, StalePlan) as error:
                yield number, FormatError(str(error))

    # --- publishing ---

    def publish(
        self,
        make: Callable[[State], Manifest | int],
        hide: Callable[[State, Manifest], Fresh] | None = None,
        before: State | None = None,
    ) -> int:
        """Publish the manifest that `make` returns for the newest state -> its generation.

        make    called again after a concurrent commit; may instead return the number of an
                existing generation that already has the change, or raise
        hide    of a data set on object storage: returns the rows that a manifest hides
        before  a state that may be the newest; None: it is read
        raises  what `make` raises; OSError: the manifest may be visible but not durable, see
                `confirm`; CorruptError
        """
        while True:
            before = before or self.latest()
            made = make(before)
            if isinstance(made, int):
                self.confirm(made)
                return made
            made, after, data = self._encoded(before, made, hide)
            if self.store.put_if_absent(made.generation, data):
                self._last = replace(after, digest=digest_of(data))
                return made.generation
            before = None

    def _encoded(
        self, before: State, made: Manifest, hide: Callable[[State, Manifest], Fresh] | None
    ) -> tuple[Manifest, State, bytes]:
        """Return the manifest as it is stored, the state after it, and its bytes."""
        if (before.whole is None) == is_far(self.root):
            verb = "push" if is_far(self.root) else "pull"
            what = f"was copied there, and can only be read: `winkfs {verb}` the data set"
            raise ReadOnly(what, self.root)
        if before.whole is None:
            after = made.apply(before)
            return made, after, encoded(made, after)
        from winkfs.dataset.checkpoint import advanced

        rows, unsure = hide(before, made) if hide is not None else ({}, [])
        made = advanced(self.root, before, made, rows, unsure)
        return made, made.apply(before), made.encode()

    def confirm(self, number: int) -> None:
        """Make an existing manifest durable, even if the commit that made it failed."""
        with contextlib.suppress(StalePlan):  # vacuumed: a later one is durable
            self.store.renew(number, self._read(number)[1])


def encoded(made: Manifest, after: State) -> bytes:
    """Encode a manifest, as a checkpoint if one is due or is small."""
    whole = replace(made, checkpoint=after)
    if made.generation % interval(len(after.shards)) == 0 or made.operation == "vacuum":
        return whole.encode()
    if len(after.shards) + len(after.streams) <= CHECKPOINT_RECORDS:
        data = whole.encode()
        if len(data) <= CHECKPOINT_BYTES:
            return data
    return made.encode()


def interval(shards: int) -> int:
    """Return the number of generations from one checkpoint to the next. It grows with the shards,
    so that the share of a checkpoint in the cost of a commit does not."""
    return CHECKPOINT_INTERVAL << max(shards // INTERVAL_RECORDS, 1).bit_length() - 1


def next_manifest(before: State, operation: str) -> Manifest:
    """Return an empty manifest that follows a state."""
    now = max(time.time_ns(), before.time_ns + 1)
    job = "" if before.whole is None else new_job()  # by which a writer knows its commit
    return Manifest(before.generation + 1, now, operation, job, oldest=before.oldest)


def new_job() -> str:
    """Return a name for a job that no other one has."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(6)}"


def is_dataset(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of a data set. Cost of a URL: one to three requests."""
    folder = f"{os.fspath(path)}/{MANIFESTS}"
    if not is_far(folder):
        return is_directory(folder)
    files = far_files(folder)
    return files.exists(LATEST) or bool({*files.list()} - {SETTINGS})


def create(path: str | os.PathLike[str]) -> Log:
    """Create an empty data set, or use the existing one.

    The data set and its first manifest appear with one rename, or one put.
    raises  Refusal: the store has not passed `winkfs remote check`; FileExists if something else
            is at the path; FormatError if the data set has lost its manifests; OSError
    """
    root = root_of(path)
    check_free(root)
    if is_far(root):
        check_commits(root)
        if not is_dataset(root):
            first = Manifest(0, time.time_ns(), "create", new_job(), whole=Whole())
            folder_of(f"{root}/{MANIFESTS}").put_if_absent(0, first.encode())
        return Log(root)
    for folder in (root, f"{root}/{PENDING}"):
        make_directory(folder)
    if not is_dataset(root):
        _make_first(root)
    log = Log(root)
    log.newest()
    return log


def _make_first(root: str) -> None:
    """Create the first manifest, and with it the data set, by one rename."""
    directory = directory_of(root)
    name = f"create-{secrets.token_hex(8)}"
    made = f"{PENDING}/{name}"
    directory.mkdir(made)
    first = State(0, time.time_ns())
    manifest = Manifest(0, first.time_ns, "create", checkpoint=first)
    try:
        Folder(f"{root}/{made}").put_if_absent(0, manifest.encode())
        directory.rename(made, MANIFESTS)
    except OSError:
        with contextlib.suppress(OSError), directory.subdirectory(PENDING) as pending:
            pending.remove_tree(name)
        if is_dataset(root):  # another process has created it meanwhile
            return
        raise
    try:
        directory.sync()
    except OSError:  # as in `make_directory`; kept, for the rename may survive a crash
        if Log(root).store.numbers() == [0]:
            directory.rename(MANIFESTS, made)
        raise


def discard_empty(path: str | os.PathLike[str], *, folder: bool) -> None:
    """Remove a data set without commits and jobs, ignoring errors of the disk.

    Used after a failed first write; a write that begins meanwhile keeps the data set.
    folder  whether its folder is removed, too
    """
    root = root_of(path)
    if is_far(root):
        return  # a number that was used stays used
    name = f"create-{secrets.token_hex(8)}"
    with contextlib.suppress(OSError, FormatError):
        directory = directory_of(root)
        with directory.subdirectory(PENDING) as pending:
            if is_dataset(root):
                if pending.list() or Log(root).store.numbers() != [0]:
                    return
                directory.rename(MANIFESTS, f"{PENDING}/{name}")  # now it is no data set
                if pending.list() != [name]:
                    directory.rename(f"{PENDING}/{name}", MANIFESTS)
                    return
                pending.remove_tree(name)
        directory.rmdir(PENDING)
        if folder:
            above, own = locate(root)
            above.rmdir(own)


def check_free(path: str | os.PathLike[str]) -> None:
    """Raise FileExists if there is no data set, and none can be created."""
    root = root_of(path)
    if is_dataset(root):
        return
    directory, name = locate(root)
    if directory.info(name.removesuffix(".data") + ".data", follow=True) is not None:
        what = "is a single container, and no data set: give a folder that is empty or not there"
        raise FileExists(what, root)
    if is_directory(root):
        if not {PENDING, MANIFESTS, ""}.issuperset(directory_of(root).list()):
            what = "is a folder with other things in it, and no data set: give another"
            raise FileExists(what, root)
    elif directory.info(name, follow=True) is not None:
        raise FileExists("is a file: give the path of a folder", root)


def root_of(path: str | os.PathLike[str]) -> str:
    """Return the folder of a data set without a slash at its end."""
    text = os.fspath(path)
    return text.rstrip("/") or text


def parse_as_of(as_of: AsOf) -> tuple[str, int] | None:
    """Return ("generation", number) for an int or digits, ("time", ns) for a float (seconds), a
    datetime or ISO 8601 (local time without a zone), None for None. Raises ValueError."""
    if as_of is None or as_of == "":
        return None
    if isinstance(as_of, str):
        if as_of.strip().isdecimal():
            return "generation", int(as_of)
        if (ns := parse_iso(as_of)) is None:
            raise ValueError(
                f"{as_of!r} is no generation and no time: a number, or ISO 8601 as "
                "2026-11-21T08:30Z"
            )
        return "time", ns
    if isinstance(as_of, datetime):
        as_of = as_of.timestamp()
    if isinstance(as_of, float):
        return "time", round(as_of * NANO)
    return "generation", int(as_of)
