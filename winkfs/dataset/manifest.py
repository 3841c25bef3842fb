"""The manifests of a data set: read, and published one after another, each all or nothing."""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from winkformats.disk.directory import sync_directory
from winkformats.errors import FormatError
from winkfs.dataset.records import Manifest, State
from winkfs.errors import FileExists, NoSuchFile, StalePlan, WinkError
from winkfs.units import NANO

FOLDER: Final = "_winkfs"
PENDING: Final = "_pending"
DIGITS: Final = 20
EACH: Final = 64  # a manifest of them is a checkpoint
NO_LINK: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
AsOf = int | float | str | datetime | None


class Store(Protocol):
    """Where manifests are kept. An object store with conditional put can be one."""

    def numbers(self) -> list[int]:
        """Those there are, ascending."""

    def read(self, number: int) -> bytes:
        """raises  FileNotFoundError"""

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """Durable and whole, or not there -> False where somebody else has put it."""

    def remove(self, number: int) -> None:
        """A missing one is none to remove."""


class Folder:
    """Manifests as files of a folder. A link(2) to the number is atomic, on POSIX and on NFS."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, number: int, suffix: str = ".json") -> str:
        return f"{self.path}/{number:0{DIGITS}}{suffix}"

    def numbers(self) -> list[int]:
        stems = [name[:-5] for name in os.listdir(self.path) if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if len(stem) == DIGITS and stem.isdecimal())

    def read(self, number: int) -> bytes:
        return Path(self.file(number)).read_bytes()

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """raises  WinkError where the file system has no link(2); OSError"""
        temporary = f"{self.path}/.{secrets.token_hex(8)}.tmp"
        try:
            with open(temporary, "xb") as file:  # noqa: PTH123 - not a method of a new Path
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                try:
                    os.link(temporary, self.file(number))
                except FileExistsError:
                    # Over NFS the answer to a link that was made may be lost, and it is asked again
                    if os.fstat(file.fileno()).st_nlink != 2:
                        return False
                except OSError as error:
                    if error.errno in NO_LINK:
                        raise WinkError(
                            "this file system has no hard links, and without them a commit is not "
                            "all or nothing: keep data sets on another one", self.path,
                            number=error.errno,
                        ) from None  # fmt: skip
                    raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_directory(temporary)
        return True

    def remove(self, number: int) -> None:
        Path(self.file(number)).unlink(missing_ok=True)


class Log:
    """The generations of one data set."""

    def __init__(self, root: str, store: Store | None = None) -> None:
        """Raises NoSuchFile where there is no data set."""
        self.root = root
        if store is None and not is_dataset(root):
            raise NoSuchFile(f"no such data set (there is no {FOLDER} in it)", root)
        self.store = Folder(f"{root}/{FOLDER}") if store is None else store
        self._last: State | None = None

    # --- reading ---

    def read(self, number: int) -> Manifest:
        """Raises StalePlan where it was vacuumed; CorruptError."""
        try:
            data = self.store.read(number)
        except FileNotFoundError:
            raise StalePlan(f"there is no generation {number} any more", self.root) from None
        found = Manifest.decode(data, file=f"{self.root}/{FOLDER}/{number:0{DIGITS}}.json")
        if found.generation != number:
            raise FormatError(f"{self.root}: manifest {number} says that it is another")
        return found

    def newest(self) -> int:
        """Number of the newest generation. Cost: a listing of the folder."""
        numbers = self.store.numbers()
        if not numbers:
            raise FormatError(f"{self.root}: the data set has lost its manifests")
        return numbers[-1]

    def latest(self) -> State:
        while True:
            newest = self.newest()
            try:
                return self.state(newest)
            except StalePlan:
                if self.newest() == newest:  # else a vacuum has put a checkpoint, and removed those
                    raise

    def state(self, generation: int) -> State:
        """What holds in a generation. Raises StalePlan; FormatError.

        cost    reads the manifests since the last checkpoint, or since the last call
        """
        number, behind = generation, []
        while True:
            if self._last is not None and self._last.generation == number:
                state = self._last
                break
            manifest = self.read(number)
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
        """What held at a generation (int) or time (see `parse_as_of`); None: now.

        raises  StalePlan where it was vacuumed; NoSuchFile where nothing was there yet
        """
        newest, wanted = self.latest(), parse_as_of(as_of)
        if wanted is None:
            return newest
        kind, number = wanted
        if kind == "generation":
            if number > newest.generation:
                raise NoSuchFile(f"there is no generation {number}: the newest is "
                                 f"{newest.generation}", self.root)  # fmt: skip
            if number < newest.oldest:
                raise self._vacuumed(f"generation {number}", newest)
            return self.state(number)
        kept = range(newest.oldest, newest.generation + 1)
        later = bisect.bisect_right(kept, number, key=lambda n: self.read(n).time_ns)
        if not later:
            if newest.oldest:
                raise self._vacuumed(f"what was there at {as_of}", newest)
            raise NoSuchFile(f"nothing was there yet at {as_of}", self.root)
        return self.state(kept[later - 1])

    def _vacuumed(self, what: str, newest: State) -> StalePlan:
        return StalePlan(
            f"{what} was vacuumed: the oldest generation kept is {newest.oldest}", self.root
        )

    def manifests(self, newest: int, oldest: int) -> Iterator[Manifest]:
        """Those of generations newest .. oldest, downwards."""
        return map(self.read, range(newest, oldest - 1, -1))

    # --- publishing ---

    def publish(self, make: Callable[[State], Manifest | int]) -> int:
        """Publish what `make` makes of the latest state -> its generation.

        make    may return the generation that has it already, or raise; called again where
                somebody else was faster
        raises  what `make` raises; OSError
        """
        while True:
            before = self.latest()
            made = make(before)
            if isinstance(made, int):
                return made
            after = made.apply(before)
            if made.generation % EACH == 0 or made.operation == "vacuum":
                made = replace(made, checkpoint=after)
            if self.store.put_if_absent(made.generation, made.encode()):
                self._last = after
                return made.generation


def next_manifest(before: State, operation: str) -> Manifest:
    """An empty manifest that follows."""
    now = max(time.time_ns(), before.time_ns + 1)
    return Manifest(before.generation + 1, now, operation, oldest=before.oldest)


def is_dataset(path: str | os.PathLike[str]) -> bool:
    return os.path.isdir(os.path.join(path, FOLDER))


def create(path: str | os.PathLike[str]) -> Log:
    """Make an empty data set, or take the one that is there.

    One that is there has its first manifest: both come with one rename.
    raises  FileExists where something else is there; FormatError where it has lost its manifests;
            OSError
    """
    root = root_of(path)
    check_free(root)
    for folder in (root, f"{root}/{PENDING}"):
        with contextlib.suppress(FileExistsError):
            Path(folder).mkdir(parents=folder == root)
            sync_directory(folder)
    if not is_dataset(root):
        made = Folder(f"{root}/{PENDING}/create-{secrets.token_hex(8)}")
        Path(made.path).mkdir()
        first = State(0, time.time_ns())
        manifest = Manifest(0, first.time_ns, "create", checkpoint=first)
        try:
            made.put_if_absent(0, manifest.encode())
            os.rename(made.path, f"{root}/{FOLDER}")
            sync_directory(f"{root}/{FOLDER}")
        except OSError:
            if not is_dataset(root):  # else another one has made it meanwhile
                raise
        finally:
            shutil.rmtree(made.path, ignore_errors=True)
    log = Log(root)
    log.newest()
    return log


def check_free(path: str | os.PathLike[str]) -> None:
    """Raise FileExists where there is no data set, and cannot be one."""
    root = root_of(path)
    if is_dataset(root):
        return
    if Path(root.removesuffix(".data") + ".data").exists():
        what = "is a single container, and no data set: give a folder that is empty or not there"
        raise FileExists(what, root)
    if Path(root).is_file():
        raise FileExists("is a file: give the path of a folder", root)
    if Path(root).is_dir() and not {PENDING, FOLDER}.issuperset(os.listdir(root)):
        raise FileExists("is a folder with other things in it, and no data set: give another", root)


def root_of(path: str | os.PathLike[str]) -> str:
    """A data set's folder without a slash at its end."""
    text = os.fspath(path)
    return text.rstrip("/") or text


def parse_as_of(as_of: AsOf) -> tuple[str, int] | None:
    """-> ("generation", number) for an int or digits, ("time", ns) for a float (seconds), a
    datetime or ISO 8601 (local time without a zone), None for None. Raises ValueError."""
    if as_of is None or as_of == "":
        return None
    if isinstance(as_of, str):
        if as_of.strip().isdecimal():
            return "generation", int(as_of)
        try:
            as_of = datetime.fromisoformat(as_of.strip())
        except ValueError:
            raise ValueError(
                f"{as_of!r} is no generation and no time: a number, or ISO 8601 as "
                "2026-11-21T08:30Z"
            ) from None
    if isinstance(as_of, datetime):
        as_of = as_of.timestamp()
    if isinstance(as_of, float):
        return "time", round(as_of * NANO)
    return "generation", int(as_of)
