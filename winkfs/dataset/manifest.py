"""The manifests of a data set: one a generation, numbered, in a folder, each with a copy.

N.json   a manifest, made by link(2), which is atomic on POSIX and on NFS
N.copy   a copy of its bytes, read if the manifest is damaged or lost; not synced

`Folder` keeps the files. `Log` reads them and publishes the next one: all or nothing, and only if
no other writer has published that number. Their content is described in `records`.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from winkformats.disk.paths import directory_of, is_directory, locate, make_directory
from winkformats.disk.storage import Directory, Storage
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset.records import Manifest, State, digest_of, is_whole
from winkfs.errors import FileExists, NoSuchFile, Refusal, StalePlan
from winkfs.names import MANIFESTS
from winkfs.units import NANO, parse_iso

DIGITS: Final = 20
MANIFEST: Final = ".json"
COPY: Final = ".copy"
NO_LINK: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_unsure: set[tuple[str, int]] = set()  # visible manifests that may not be on the disk
PENDING: Final = "_pending"
CHECKPOINT_INTERVAL: Final = 64  # generations from one checkpoint to the next, at most
CHECKPOINT_RECORDS: Final = 200  # shards and streams: with at most so many any manifest may be one,
CHECKPOINT_BYTES: Final = 64 << 10  # if it has at most so many bytes
REPAIR_HINT: Final = "`winkfs dataset repair` shows what can be done"
AsOf = int | float | str | datetime | None


class Folder:
    """A folder of manifests; `files` is its directory."""

    def __init__(self, path: str, files: Directory | None = None) -> None:
        self.path, self.files = path, files or directory_of(path)

    def name(self, number: int, suffix: str = MANIFEST) -> str:
        return f"{number:0{DIGITS}}{suffix}"

    def numbers(self) -> list[int]:
        """Return the numbers of the manifests, ascending. A copy without a manifest counts only if
        it is intact, because an interrupted commit may have left it."""
        there = self.named(MANIFEST)
        alone = self.named(COPY) - there
        return sorted(there.union(n for n in alone if any(is_whole(d) for _, d in self.read(n))))

    def named(self, suffix: str) -> set[int]:
        """Return the numbers of the files with this suffix."""
        stems = [name[: -len(suffix)] for name in self.files.list() if name.endswith(suffix)]
        return {int(stem) for stem in stems if len(stem) == DIGITS and stem.isdecimal()}

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of a manifest, then of its copy, as far as they exist."""
        for suffix in (MANIFEST, COPY):
            name = self.name(number, suffix)
            try:
                with self.files.open(name) as storage:
                    yield f"{self.path}/{name}", storage.read(0, storage.size())
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield f"{self.path}/{name}", b""  # it cannot be read, and counts as damaged

    def model(self) -> Storage:
        """Open the newest manifest, from which new files take mode and owner. Raises OSError."""
        return self.files.open(self.name(max(self.named(MANIFEST), default=0)))

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """Create a manifest, durably -> False if another writer has created it.

        raises  Refusal if the file system has no link(2); OSError: it may be visible nevertheless,
                and `renew` makes it durable
        """
        self._settle()
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            try:
                self.files.link(file, self.name(number))
            except FileExistsError:
                # Over NFS the reply to a successful link may be lost, and the request repeated.
                info = self.files.info(file)
                if info is None or info.links != 2:
                    return False
            except OSError as error:
                if error.errno in NO_LINK:
                    raise Refusal(
                        "this file system has no hard links, and without them a commit is not "
                        "all or nothing: keep data sets on another one", self.path,
                        number=error.errno,
                    ) from None  # fmt: skip
                raise
            _unsure.add((self.path, number))
            self.files.rename(copy, self.name(number, COPY))
        self._sync(number)
        return True

    def renew(self, number: int, data: bytes) -> None:
        """Write a manifest and its copy again, durably."""
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            self.files.rename(file, self.name(number))
            self.files.rename(copy, self.name(number, COPY))
        self._sync(number)

    def _settle(self) -> None:
        """Write again the manifests whose sync failed, since the next commit depends on them.

        After a failed fsync the kernel may drop a name that is still visible, and the next fsync
        reports no error.
        """
        for path, number in sorted(_unsure):
            if path != self.path:
                continue
            for _, data in self.read(number):
                self.renew(number, data)
                break
            _unsure.discard((path, number))

    def _sync(self, number: int) -> None:
        self.files.sync()
        _unsure.discard((self.path, number))

    @contextlib.contextmanager
    def written(self, number: int, data: bytes, *, sync: bool = True) -> Iterator[str]:
        """Write a temporary file and yield its name; it is removed at the end unless renamed.

        number  generation, from whose manifest, or the one before, mode and owner are taken
        """
        temporary = f".{secrets.token_hex(8)}.tmp"
        try:
            with contextlib.ExitStack() as open_files:
                like = None
                for known in (number, max(number - 1, 0)):
                    with contextlib.suppress(OSError):
                        like = like or open_files.enter_context(self.files.open(self.name(known)))
                file = open_files.enter_context(self.files.create_new(temporary, like=like))
                file.write(0, [data])
                if sync:
                    file.sync()
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                self.files.unlink(temporary)

    def remove(self, number: int) -> None:
        """Remove a manifest and its copy, ignoring missing ones."""
        for suffix in (COPY, MANIFEST):  # in this order a reader never finds the copy alone
            self.files.unlink(self.name(number, suffix))


class Log:
    """The generations of one data set.

    problems  a sentence for each damaged manifest that was found and skipped
    """

    def __init__(self, root: str) -> None:
        """Raises NoSuchFile if there is no data set."""
        self.root = root
        if not is_dataset(root):
            raise NoSuchFile(f"no such data set (there is no {MANIFESTS} in it)", root)
        self.store = Folder(f"{root}/{MANIFESTS}")
        self.problems: list[str] = []
        self._last: State | None = None
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
        """Return the number of the newest generation. Cost: a listing of the folder."""
        numbers = self.store.numbers()
        if not numbers:
            raise FormatError(f"{self.root}: the data set has lost its manifests")
        return numbers[-1]

    def latest(self) -> State:
        """Return the newest state, which a commit can follow. Raises CorruptError if its manifest
        is damaged."""
        return self._state_of(self.newest)

    def _state_of(self, number: Callable[[], int]) -> State:
        """Return the state of a generation, asking again for its number if a vacuum removed it."""
        while True:
            newest = number()
            try:
                return self.state(newest)
            except StalePlan:
                if number() == newest:  # else a vacuum has added a checkpoint, and removed this one
                    raise

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
            if manifest.checkpoint is not None:
                state = manifest.checkpoint
                break
            behind.append(manifest)
            number -= 1
        for manifest in reversed(behind):
            state = manifest.apply(state)
        if self._last is None or self._last.generation < generation:
            self._last = state
        return state

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

    def publish(self, make: Callable[[State], Manifest | int]) -> int:
        """Publish the manifest that `make` returns for the newest state -> its generation.

        make    called again after a concurrent commit; may instead return the number of an
                existing generation that already has the change, or raise
        raises  what `make` raises; OSError: the manifest may be visible but not durable, see
                `confirm`; CorruptError
        """
        while True:
            before = self.latest()
            made = make(before)
            if isinstance(made, int):
                self.confirm(made)
                return made
            after = made.apply(before)
            data = encoded(made, after)
            if self.store.put_if_absent(made.generation, data):
                self._last = replace(after, digest=digest_of(data))
                return made.generation

    def confirm(self, number: int) -> None:
        """Make an existing manifest durable, even if the commit that made it failed."""
        with contextlib.suppress(StalePlan):  # vacuumed: a later one is durable
            self.store.renew(number, self._read(number)[1])


def encoded(made: Manifest, after: State) -> bytes:
    """Encode a manifest, as a checkpoint if one is due or is small."""
    whole = replace(made, checkpoint=after)
    if made.generation % CHECKPOINT_INTERVAL == 0 or made.operation == "vacuum":
        return whole.encode()
    if len(after.shards) + len(after.streams) <= CHECKPOINT_RECORDS:
        data = whole.encode()
        if len(data) <= CHECKPOINT_BYTES:
            return data
    return made.encode()


def next_manifest(before: State, operation: str) -> Manifest:
    """Return an empty manifest that follows a state."""
    now = max(time.time_ns(), before.time_ns + 1)
    return Manifest(before.generation + 1, now, operation, oldest=before.oldest)


def is_dataset(path: str | os.PathLike[str]) -> bool:
    return is_directory(f"{os.fspath(path)}/{MANIFESTS}")


def create(path: str | os.PathLike[str]) -> Log:
    """Create an empty data set, or use the existing one.

    The data set and its first manifest appear with one rename.
    raises  FileExists if something else is at the path; FormatError if the data set has lost its
            manifests; OSError
    """
    root = root_of(path)
    check_free(root)
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
        if not {PENDING, MANIFESTS}.issuperset(directory_of(root).list()):
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
