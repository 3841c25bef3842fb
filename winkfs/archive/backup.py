"""Backup: copies a container or a data set as of its last sync; each run brings the copy up to
date.

    DEST.data ...     a container: it opens at any moment, with what one backup has copied
    DEST.backup       its record, JSON: the states that DEST.data begins with, the newest last
    DEST.<time>.data  the file before a compaction of the source, as long as a state in it is kept

Synced entries below FILESIZE never change, except delflags, which do not decide what is live. So a
run appends new entries to DEST.data, verifies and syncs them, then writes the superblock; delflags
follow as after any sync. A state is only a superblock in the record, so it takes no space.

A data set consists of files that never change, and of manifests: the files of a generation are
copied, then its manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from winkformats.disk.paths import absolute, directory_of, locate, make_directory, open_file
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory, FileType, Storage, replacing
from winkformats.errors import FormatError
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock, read_superblock, write_first, write_second
from winkfs.archive.copying import Copying, Progress, published, remove_derived, take_place
from winkfs.container.datafile import end_of, remove_files
from winkfs.container.ondisk.data import CUTID, Settings
from winkfs.container.ondisk.idx import covered_by
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.container.ondisk.typed import COLUMNS
from winkfs.container.store import Store
from winkfs.dataset.folder import Folder
from winkfs.dataset.manifest import PENDING, Log, is_dataset, root_of
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shard import Shard, survey
from winkfs.errors import FileExists, NoSuchFile, Refusal, StalePlan
from winkfs.names import DATA, DERIVED, MANIFESTS, PARTIAL, base_of
from winkfs.registry import kind_of

RECORD: Final = ".backup"
FORMAT: Final = "winkfs-backup"
RESERVE_BYTES: Final = 4096  # of zeros after copied entries: those at the end of a file would count
COMPARED: Final = 1 << 20  # bytes before the end of a state that are compared with the source
FIRST: Final = "backup-first"  # in _pending: the folder of manifests
BEGUN: Final = "backup-begun"  # in _pending: the mark of a backup that has no manifest yet
TRIES: Final = 5  # a vacuum may remove what is being copied


@dataclass
class Backup:
    """Result of a backup.

    kind      "container" or "data set"
    whole     whether everything was copied, not only new bytes
    copied    bytes of data files that were copied; size: that the backup has
    states    number of states that DEST can restore, including the newest
    removed   number of earlier states that this run removed: those beyond `keep`
    problems  damage of the source, a line each; it was copied as it is
    """

    kind: str
    whole: bool = False
    copied: int = 0
    size: int = 0
    states: int = 1
    removed: int = 0
    problems: list[str] = field(default_factory=list)


def backup(
    base: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    keep: int = 0,
    state: int = 0,
    progress: Progress | None = None,
) -> Backup:
    """Copy a container or a data set as of its last sync, while others write to it; a later run
    copies new entries only.

    keep      number of earlier states that DEST keeps: those of the last backups; of a data set,
              earlier generations
    state     copy the state that many backups before the last one; `base` is then a backup
    progress  called with the number of bytes done since the last call
    raises    NoSuchFile; FileExists (DEST is something else); Locked (DEST, or a classic BASE);
              Refusal (another kind; a truncated source); FormatError; OSError: DEST is unchanged
    cost      copies new entries, and sets delflags; a whole copy after a compaction
    A run that is killed leaves DEST unchanged, or finished; it can be repeated.
    """
    if keep < 0 or state < 0:
        raise ValueError("numbers of states are not negative")
    source, target = os.fspath(base), os.fspath(dest)
    kind, path = kind_of(source)
    if kind.name == "data set":
        if state:
            raise ValueError("a data set keeps generations: winkfs dataset history lists them")
        return _DatasetBackup(root_of(path), root_of(target), keep, progress).run()
    if kind.name != "container":
        raise Refusal(
            f"is of the kind {kind.name}: containers and data sets can be backed up", source
        )
    return _ContainerBackup(path, base_of(target.rstrip("/")), keep, progress).run(state)


# --- a container ---


@dataclass
class _State:
    """A state of a backup.

    file       name of the data file that begins with it
    end        FILESIZE; last: position of its last entry
    time_ns    of the backup
    variables  of the superblock
    """

    file: str
    end: int
    last: int
    time_ns: int
    variables: dict[str, int]


class _ContainerBackup(Copying):
    def __init__(self, base: str, dest: str, keep: int, progress: Progress | None) -> None:
        super().__init__(base, progress)
        self._dest, self._keep, self.done = dest, keep, Backup("container")
        self._directory, self._name = locate(dest)

    def run(self, state: int) -> Backup:
        if f"{absolute(self._dest)}/".startswith(f"{absolute(self.base)}/"):
            raise Refusal("is the container itself, or below its name: give another path",
                          self._dest)  # fmt: skip
        if not locate(self.base)[0].exists(locate(self.base)[1] + DATA):
            raise NoSuchFile("no such container (there is no BASE.data)", self.base)
        self._check_free()
        if self._directory.info() is None:
            make_directory(absolute(self._dest).rpartition("/")[0])
        lock = WriterLock(self._dest)
        try:
            with contextlib.ExitStack() as stack:
                self._copy(stack, lock, state)
            self.done.copied, self.done.problems = self.copied, self.problems
        finally:
            lock.release()
            if not self._directory.exists(self._name + DATA):
                self._directory.unlink(self._name + SUFFIX)
        return self.done

    def _check_free(self) -> None:
        directory, name = self._directory, self._name
        there, mine = directory.exists(name + DATA), directory.exists(name + RECORD)
        if directory.info(name, follow=True) is not None and not there:
            raise FileExists("is a file or folder: the backup of a container is BASE.data beside "
                             "others, give a path that is free", self._dest)  # fmt: skip
        if there and not mine:
            raise FileExists("is a container, and no backup: give a path that is free", self._dest)
        if mine and _states(directory, name) is None:
            raise FileExists("is no backup that this version can read", self._dest)

    def _copy(self, stack: contextlib.ExitStack, lock: WriterLock, state: int) -> None:
        name, block, end = self.base + DATA, None, 0
        if state:
            states = (_states(*locate(self.base)) or [])[::-1]
            if state >= len(states):
                raise Refusal(f"earlier states: {max(len(states) - 1, 0)}", self.base)
            chosen = states[state]
            name = f"{absolute(self.base).rpartition('/')[0]}/{chosen.file}"
            block, end = Superblock(chosen.variables), chosen.end
        storage = stack.enter_context(open_file(name, uncached=True))
        if block is None:
            block, end = self._source(storage, stack)
        if not state and self._is_ours(storage, block, end):
            self._append(storage, block, end, lock)
        else:
            self._replace(storage, block, end)

    def _source(self, storage: Storage, stack: contextlib.ExitStack) -> tuple[Superblock, int]:
        """Return the superblock of the source, and the end of its entries."""
        block = read_superblock(storage)
        block.check_known(storage.name)
        settings = Settings.of(block, storage.name)
        kv = KVSeq(storage, block, writable=False)
        if not kv.layout.checksum:  # a torn copy would not be detected
            stack.callback(WriterLock(self.base).release)
            block = read_superblock(storage)
            kv = KVSeq(storage, block, writable=False)
        if kv.truncated:
            if self._directory.exists(self._name + DATA):
                raise Refusal("is cut short: the backup stays as it is (winkfs repair)", self.base)
            self.problems.append(f"{storage.name}: cut short at byte {kv.end}")
        end = end_of(kv, covered_by(self.base + ".idx", settings))
        return block, end

    # --- what is new ---

    def _is_ours(self, storage: Storage, block: Superblock, end: int) -> bool:
        """Return whether DEST is a prefix of the source, so that only bytes after its end are
        missing."""
        states = _states(self._directory, self._name)
        if not states or "CONTID" not in block or not KVSeq(
            storage, block, writable=False
        ).layout.checksum:  # fmt: skip
            return False
        try:
            with self._directory.open(self._name + DATA) as target:
                mine = read_superblock(target)
                ends = self._name + DATA, mine.get("FILESIZE")
                last = next((s for s in states if (s.file, s.end) == ends), None)
                same = all(mine.get(name) == block.get(name) for name in ("CONTID", CUTID))
                if last is None or not same or mine["FILESIZE"] > end:
                    return False
                start = max(last.last + 1, last.end - COMPARED)  # without the delflag
                size = last.end - start
                return target.read(start, size) == storage.read(start, size)
        except (FormatError, OSError):
            return False

    def _append(self, storage: Storage, block: Superblock, end: int, lock: WriterLock) -> None:
        states = _states(self._directory, self._name) or []
        with self._directory.open(self._name + DATA, "w", uncached=True) as target:
            mine = read_superblock(target)
            start = mine["FILESIZE"]
            states = [s for s in states if s.file != self._name + DATA or s.end <= start]
            if end > start or mine.get(COLUMNS) != block.get(COLUMNS):
                target.preallocate(end + RESERVE_BYTES)
                try:
                    self.copy(storage, target, start, end)
                    last, old = self.check(KVSeq(target, block, writable=False), start, end)
                except BaseException:
                    with contextlib.suppress(OSError):
                        target.truncate(start)
                    raise
                target.sync()
                new = published(block, end)
                new.used = mine.used
                if "SBSEQ" in mine:
                    new["SBSEQ"] = mine["SBSEQ"]
                self._record([*states, self._state(new, end, last or states[-1].last)])
                write_first(target, new)
                target.sync()
                write_second(target, new)
                was = [mine[COLUMNS]] if mine.get(COLUMNS) else []
                target.patch_each([p for p in was + old if p != new.get(COLUMNS)], b"\1")
                target.sync()
                target.truncate(end)
        self.done.size = end
        self._finish(lock)
        self._prune()

    def _finish(self, lock: WriterLock) -> None:
        """Set the delflags that follow from new entries, and bring derived files up to date."""
        with Store(self._dest, writable=True, lock=lock) as store:
            store.kv.sync_storage()
            if store.is_behind and not store.may_leave_tail:
                store.merge()
            store.catalog.save(quickly=True)
            store.close()

    # --- all of it ---

    def _replace(self, storage: Storage, block: Superblock, end: int) -> None:
        """Copy everything to a file beside DEST, make its derived files, then rename it."""
        remove_files(self._dest + PARTIAL)
        try:
            new, last = self.make(storage, block, end, self._dest + PARTIAL)
            self._take_place(new, last)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_files(self._dest + PARTIAL)
            raise
        self.done.whole, self.done.size = True, new["FILESIZE"]
        self._prune()

    def _take_place(self, block: Superblock, last: int) -> None:
        directory, name = self._directory, self._name
        states, kept = _states(directory, name) or [], ""
        if directory.exists(name + DATA) and self._keep:
            kept = f"{name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}{DATA}"
            with contextlib.suppress(FileExistsError):
                directory.link(name + DATA, kept)
            for state in states:
                state.file = kept if state.file == name + DATA else state.file
        else:
            states = [state for state in states if state.file != name + DATA]
        remove_derived(directory, name)
        self._record([*states, self._state(block, block["FILESIZE"], last)])
        take_place(directory, name)

    # --- states ---

    def _state(self, block: Superblock, end: int, last: int) -> _State:
        return _State(self._name + DATA, end, last, time.time_ns(), dict(block))

    def _record(self, states: list[_State]) -> None:
        """Write the record. The newest state may not be in the data file yet."""
        text = {"format": FORMAT, "version": 1, "states": [asdict(state) for state in states]}
        with replacing(self._directory, self._name + RECORD) as storage:
            storage.write(0, [json.dumps(text).encode() + b"\n"])

    def _prune(self) -> None:
        """Remove states beyond `keep`, and data files that have no state."""
        known = _states(self._directory, self._name) or []
        states = known[-1 - self._keep :]
        self._record(states)
        named = {state.file for state in states}
        for name in self._directory.list():
            middle = name.removeprefix(self._name + ".").removesuffix(DATA)
            stamped = len(middle) == 15 and middle[8] == "T" and middle.replace("T", "").isdecimal()
            if name == f"{self._name}.{middle}{DATA}" and stamped and name not in named:
                self._directory.unlink(name)
        self.done.states, self.done.removed = len(states), len(known) - len(states)


def _states(directory: Directory, name: str) -> list[_State] | None:
    """Return the states of a backup, the newest last; None: there is no readable record."""
    try:
        with directory.open(name + RECORD) as storage:
            record: dict[str, Any] = json.loads(storage.read(0, storage.size()))
        if record["format"] != FORMAT or record["version"] != 1:
            return None
        return [_State(**state) for state in record["states"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


# --- a data set ---


class _DatasetBackup(Copying):
    def __init__(self, base: str, dest: str, keep: int, progress: Progress | None) -> None:
        super().__init__(base, progress)
        self._dest, self._keep, self.done = dest, keep, Backup("data set")

    def run(self) -> Backup:
        root, dest = os.path.realpath(self.base), os.path.realpath(self._dest)
        if dest == root or dest.startswith(root + "/") or root.startswith(dest + "/"):
            raise Refusal("is the data set, in it or around it: give another path", self._dest)
        self.done.whole = not is_dataset(self._dest)
        if self.done.whole:
            self._begin()
        self.done.problems = self.problems
        for left in range(TRIES, 0, -1):
            try:
                self._copy()
                break
            except (FileNotFoundError, StalePlan):
                if left == 1:
                    raise
        self.done.copied = self.copied
        return self.done

    def _begin(self) -> None:
        """Create the folder, with a mark by which the next run recognises what this one left."""
        directory, pending = directory_of(self._dest), f"{self._dest}/{PENDING}"
        info = directory.info()
        begun = directory_of(pending).exists(BEGUN)
        names = set(directory.list()) if info and info.kind is FileType.DIRECTORY else {self._dest}
        if info is not None and names - {PENDING} and not begun:
            what = "is there, and no backup of a data set: give a path that is free"
            raise FileExists(what, self._dest)
        make_directory(pending)
        if not begun:
            directory_of(pending).create_new(BEGUN).close()

    def _copy(self) -> None:
        log = Log(self.base)
        newest = log.newest()
        self._check_same(log)
        oldest = max(log.head().oldest, newest - self._keep)
        for number in range(oldest, newest + 1):
            if is_dataset(self._dest) and number in self._numbers():
                continue
            state, manifest = log.state(number), log.read(number)
            for record in state.shards:
                self._shard(record)
            shards = tuple(replace(record, etag="") for record in state.shards)
            whole = replace(state, oldest=oldest, shards=shards, whole=None)
            added = tuple(replace(record, etag="") for record in manifest.added)
            made = replace(manifest, oldest=oldest, added=added, checkpoint=whole, whole=None)
            self._publish(number, made.encode())
        self.problems += log.problems
        self._prune(oldest)

    def _numbers(self) -> Sequence[int]:
        return Folder(f"{self._dest}/{MANIFESTS}").numbers()

    def _check_same(self, log: Log) -> None:
        """Raise FileExists if DEST is a backup of another data set."""
        if not is_dataset(self._dest):
            return
        mine = Log(self._dest).head()
        with contextlib.suppress(StalePlan):  # it was vacuumed
            if mine.generation > log.newest() or log.read(mine.generation).time_ns != mine.time_ns:
                what = "is another data set, or a backup of another: give a path that is free"
                raise FileExists(what, self._dest)

    def _shard(self, record: ShardRecord) -> None:
        """Copy the missing files of a shard, the data file last. Raises LostShard."""
        job, name = record.path.split("/")
        make_directory(f"{self._dest}/{job}")
        with directory_of(self.base).subdirectory(job) as source:
            target = directory_of(f"{self._dest}/{job}")
            if target.exists(name + DATA):
                return
            Shard(f"{self.base}/{record.path}", record).must_open()
            if source.exists("_job") and not target.exists("_job"):
                target.create_new("_job").close()
            for suffix in (*DERIVED, DATA):
                if source.exists(name + suffix):
                    with source.open(name + suffix, uncached=True) as file:
                        self._file(file, target, name + suffix)
                elif suffix == DATA:
                    raise FileNotFoundError(2, "no such file", f"{self.base}/{record.path}.data")
        if is_far(self.base):  # its index is not kept there
            tombs_at = record.tombs_at if record.tombstones else 0
            try:
                survey(f"{self._dest}/{record.path}", record.path, tombs_at)
            except (FormatError, Refusal) as error:
                self.note(str(error))

    def _file(self, file: Storage, target: Directory, name: str) -> None:
        with replacing(target, name, like=file, uncached=True) as copy:
            self.copy(file, copy, 0, file.size(), counted=name.endswith(DATA))
            if name.endswith(DATA):
                try:
                    kv = KVSeq.open(copy)
                    self.check(kv, kv.start, kv.end)
                except FormatError as error:
                    self.note(error)

    def _publish(self, number: int, data: bytes) -> None:
        if is_dataset(self._dest):
            Folder(f"{self._dest}/{MANIFESTS}").put_if_absent(number, data)
            return
        directory, made = directory_of(self._dest), f"{PENDING}/{FIRST}"
        with directory.subdirectory(PENDING) as pending:
            with contextlib.suppress(OSError):
                pending.remove_tree(FIRST)
            directory.mkdir(made)
            Folder(f"{self._dest}/{made}").put_if_absent(number, data)
            directory.rename(made, MANIFESTS)
            directory.sync()
            pending.unlink(BEGUN)

    def _prune(self, oldest: int) -> None:
        """Remove generations before `oldest`, and shards that no generation names any more."""
        log = Log(self._dest)
        kept = {r.path: r for n in self._numbers() if n >= oldest for r in log.state(n).shards}
        for number in self._numbers():
            if number < oldest:
                log.store.remove(number)
        for path in self._paths():
            if path not in kept:
                job, name = path.split("/")
                with directory_of(self._dest).subdirectory(job) as directory:
                    for suffix in (DATA, *DERIVED):
                        directory.unlink(name + suffix)
        self.done.size = sum(record.size for record in kept.values())
        self.done.states = len([n for n in self._numbers() if n >= oldest])

    def _paths(self) -> Iterator[str]:
        """Yield the paths of all shards of DEST."""
        top = directory_of(self._dest)
        for job in top.list():
            if job not in (MANIFESTS, PENDING):
                with top.subdirectory(job) as directory:
                    yield from (f"{job}/{n.removesuffix(DATA)}" for n in directory.list()
                                if n.endswith(DATA))  # fmt: skip
