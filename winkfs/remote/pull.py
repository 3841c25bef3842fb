"""Pull: copies a container from object storage to this machine.

It is written at BASE.partial, and gets its name when it is whole and verified. After a kill the
next pull verifies what is there, and asks for the rest: entries are where they were, also in a
later state of the same container.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from winkformats.disk.paths import absolute, locate, make_directory, open_file
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock, read_superblock
from winkfs.archive.backup import backup
from winkfs.archive.copying import (
    COMPARED,
    Copying,
    Progress,
    is_same,
    published,
    remove_derived,
    take_place,
)
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.dataset.manifest import Log, is_dataset
from winkfs.dataset.records import State
from winkfs.errors import FileExists, NoSuchFile, Refusal
from winkfs.names import DATA, PARTIAL, base_of
from winkfs.registry import kind_of
from winkfs.remote import refuse_far


@dataclass
class Pulled:
    """Result of a pull.

    base      of the container
    size      bytes of its data file
    fetched   bytes that were brought; after a dry run those that would be
    replaces  whether another state, or another container, was there
    same      whether it was there already
    problems  damage of the container, a line each; it was copied as it is
    """

    base: str
    size: int = 0
    fetched: int = 0
    replaces: bool = False
    same: bool = False
    problems: list[str] = field(default_factory=list)


def pull(
    url: str,
    base: str | os.PathLike[str],
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Pulled:
    """Copy a container from object storage to this machine, and make its derived files.

    BASE appears when it is whole, or stays what it was; the same call after a kill brings what is
    missing. If BASE has an earlier state of the same container, only what is new is brought.

    force     also replace another container, or one that has changed since
    dry_run   bring nothing
    progress  called with the number of bytes done since the last call
    raises    NoSuchFile; FileExists; Locked (BASE is being written); Refusal (another kind);
              StalePlan (it was replaced meanwhile: pull again); FormatError; OSError
    cost      reads the container, some MiB a request, several at once; an index as `reindex`
    """
    source, target = os.fspath(url), os.fspath(base)
    if not is_far(source):
        raise Refusal("is no URL of object storage: winkfs backup copies what has a path", source)
    refuse_far(target)
    kind, path = kind_of(source.rstrip("/"))
    if kind.name == "data set":
        return _pull_set(path, target.rstrip("/"), dry_run=dry_run, progress=progress)
    if kind.name != "container":
        raise Refusal(f"is of the kind {kind.name}: containers and data sets can be pulled", source)
    return _Pull(base_of(path), base_of(target.rstrip("/")), progress).run(
        force=force, dry_run=dry_run
    )


def _pull_set(url: str, root: str, *, dry_run: bool, progress: Progress | None) -> Pulled:
    """Copy the newest generation of a data set, of which only new shards are brought."""
    state = Log(url).latest()
    done = Pulled(root, sum(record.size for record in state.shards), replaces=is_dataset(root))
    mine = Log(root).latest() if done.replaces else State(-1, 0)
    done.same = (mine.generation, mine.time_ns) == (state.generation, state.time_ns)
    if dry_run:
        here = {record.path for record in mine.shards}
        done.fetched = sum(record.size for record in state.shards if record.path not in here)
    elif not done.same:
        made = backup(url, root, progress=progress)
        done.fetched, done.problems = made.copied, made.problems
    return done


class _Pull(Copying):
    def __init__(self, url: str, base: str, progress: Progress | None) -> None:
        super().__init__(url, progress)
        self._target, self.done = base, Pulled(base, problems=self.problems)
        self._directory, self._name = locate(base)

    def run(self, *, force: bool, dry_run: bool) -> Pulled:
        with contextlib.ExitStack() as stack:
            storage = stack.enter_context(open_file(self.base + DATA, uncached=True))
            try:
                block = read_superblock(storage)
            except FileNotFoundError:
                raise NoSuchFile("no such container", self.base) from None
            block.check_known(storage.name)
            Settings.of(block, storage.name)
            kv = KVSeq(storage, block, writable=False)
            if kv.truncated:
                raise Refusal("is cut short there: push it again", self.base)
            self.done.size = kv.end
            begun = self._judge(storage, block, kv.end, force=force)
            if self.done.same:
                return self.done
            if dry_run:
                self.done.fetched = kv.end - begun
                return self.done
            self._bring(storage, block, kv.end, begun)
        return self.done

    def _judge(self, storage: Storage, block: Superblock, end: int, *, force: bool) -> int:
        """Decide what to do with what is at BASE -> the bytes of an earlier state, 0: none.

        raises  FileExists
        """
        directory, name = self._directory, self._name
        if not directory.exists(name + DATA):
            if directory.info(name, follow=True) is not None:
                what = "is a file or folder: a container is BASE.data, give a path that is free"
                raise FileExists(what, self._target)
            return 0
        if directory.exists(name + ".backup"):
            raise FileExists("is a backup: give a path that is free", self._target)
        self.done.replaces = True
        try:
            with directory.open(name + DATA) as mine:
                old = read_superblock(mine)
                there = old.get("FILESIZE", 0)
                if is_same(old, block) and there <= min(end, mine.size()):
                    kv = KVSeq(mine, old, writable=False)
                    last, _ = Copying(self._target, None).check(kv, kv.start, there)
                    start = max(last + 1, there - COMPARED)  # without the delflag
                    if storage.read(start, there - start) == mine.read(start, there - start):
                        self.done.same = there == end
                        return there
        except FormatError:
            pass
        if not force:
            what = "another container is there, or it was changed since: --force replaces it"
            raise FileExists(what, self._target)
        return 0

    def _bring(self, storage: Storage, block: Superblock, end: int, begun: int) -> None:
        directory, name, part = self._directory, self._name, self._target + PARTIAL
        if directory.info() is None:
            make_directory(absolute(self._target).rpartition("/")[0])
        lock = WriterLock(self._target)
        try:
            if begun:
                self._take_over(storage, block, begun)
            self.make(storage, block, end, part)
            self.done.fetched = self.copied
            remove_derived(directory, name)
            take_place(directory, name)
        finally:
            lock.release()
            if not directory.exists(name + DATA):
                directory.unlink(name + SUFFIX)

    def _take_over(self, storage: Storage, block: Superblock, begun: int) -> None:
        """Copy the entries that BASE has to the copy that is made."""
        new = published(block, block["FILESIZE"])
        part = self._name + PARTIAL
        with (
            self.begun(self._directory, part, new, storage) as target,
            self._directory.open(self._name + DATA) as mine,
        ):
            there = KVSeq(target, new, writable=False).whole_until(new["SBSIZE"], target.size())
            if there < begun:
                self.copy(mine, target, there, begun, counted=False)
