"""Read API of a data set. Shards are opened when they are first needed."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar

import numpy as np

from winkformats.arrays import Int64, among
from winkformats.disk.paths import absolute
from winkformats.disk.schemes import is_far
from winkformats.errors import CorruptError, FormatError, raise_it
from winkfs.access import watch_forks
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.handle import check_columns
from winkfs.container.ondisk.inode import Extent
from winkfs.container.ondisk.run import AT_ONCE
from winkfs.container.ondisk.typed import to_values
from winkfs.container.read import BATCH_ROWS, FAR_ROWS
from winkfs.container.scan import scan
from winkfs.container.select import Query, all_rows
from winkfs.container.table import ALWAYS, FileTable, Times, joined
from winkfs.container.where import parse
from winkfs.dataset.manifest import AsOf, Log, root_of
from winkfs.dataset.records import Manifest, union
from winkfs.dataset.shard import AHEAD, Shard, announce, may_be_from, may_begin
from winkfs.dataset.snapshot import snapshot_of
from winkfs.entry import Entry, Stat
from winkfs.errors import Closed, LostShard, NoSuchFile, warn_of_damage
from winkfs.names import (
    Name,
    inode_key,
    literal_prefix,
    matcher,
    to_bytes,
    to_str,
    to_strs,
)
from winkfs.reader import Problem, Reader
from winkfs.units import Time, to_ns

MAX_OPEN: Final = 100  # containers kept open, with four or five descriptors each
MOST_FAR: Final = 1000  # the same on object storage, without descriptors: each took requests
SMALL_BYTES: Final = 8 << 20  # of a batch of a data set that is far, after which the next is larger
SORTED_FROM: Final = 8  # shards with a part of the names, from which on these are sorted
MANY: Final = 8  # names, from which on they may be in many shards
T = TypeVar("T")


class Handles:
    """The open shards of a snapshot, by number, the winner last. For one thread at a time."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self._ranges = [shard.record.names for shard in shards]
        self._open: OrderedDict[int, Container] = OrderedDict()
        self._problems: dict[int, list[str]] = {}  # of each that was opened
        self.lost: dict[int, str] = {}  # of each that cannot be opened: why
        self._columns: dict[str, str] | None = None
        self._closed = list[bool]()  # not empty: `close` was called; a scan may still open shards
        weakref.finalize(self, _close_unclosed, self._open, self._closed, os.getpid())

    def container(self, number: int) -> Container:
        """Return a shard, opened as of the snapshot. Raises as `Shard.pass_over`."""
        found = self._open.get(number)
        if found is not None:
            self._open.move_to_end(number)
            return found
        shard = self.shards[number]
        if number in self.lost:
            raise LostShard(self.lost[number], shard.base)
        try:
            found = self._opened(number)
        except LostShard as error:
            self.lost[number] = str(error.strerror)
            raise
        found.freeze()
        self._problems[number] = found.problems
        self._open[number] = found
        if len(self._open) > (MOST_FAR if found.store.kv.storage.far else MAX_OPEN):
            self._open.popitem(last=False)[1].close()
        return found

    def _opened(self, number: int) -> Container:
        shard = self.shards[number]
        with shard.pass_over():
            found = open_container(shard.base)
            try:
                shard.check(found.store)
                if shard.record.columns:
                    if self._columns is None:
                        self._columns = union(each.record.schema for each in self.shards)
                    found.store.show_types(self._columns)
                if number not in self._problems:
                    warn_of_damage(found.base, found.problems)
            except BaseException:
                found.close()
                raise
        return found

    def coming(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yield shards that the caller opens, one after the other; of some that are far what that
        takes is requested at once."""
        far = len(numbers) > 1 and is_far(self.shards[numbers[0]].base)
        for at, number in enumerate(numbers):
            if far and at % AHEAD == 0:
                announce(
                    self.shards[other].base
                    for other in numbers[at : at + AHEAD]
                    if other not in self._open
                )
            yield number

    def close(self) -> None:
        self._closed.append(True)
        while self._open:
            self._open.popitem()[1].close()

    def problems(self) -> list[str]:
        """Return the damage found in the shards opened so far."""
        return [problem for found in self._problems.values() for problem in found]

    # --- names ---

    def find(self, name: bytes) -> int:
        """Return the number of the shard that has the visible file of this name, -1: none.

        raises  LostShard if no file is found, and a shard that cannot be opened may have it
        cost    a look-up in the index of each shard that may have the name, the winner first
        """
        key = inode_key(name)
        lost: dict[int, FormatError] = {}
        for number in range(len(self.shards) - 1, -1, -1):
            if not self._may_have(number, name, name):
                continue
            try:
                pos = self.container(number).store.index.lookup(key)
            except FormatError as error:
                lost[number] = error
                continue
            if pos:  # the first one found wins, unless a tombstone hides it
                hidden = self.shards[number].hidden
                at = int(hidden.searchsorted(pos))
                if at == len(hidden) or hidden[at] != pos:
                    self._note(lost)
                    return number
                break
        if lost:
            raise next(iter(lost.values()))
        return -1

    def find_many(self, names: Sequence[bytes], problem: Problem | None = None) -> Int64:
        """Return the shards of many names, int64[n], by hashes alone: a file may be missing in the
        shard that is returned.

        problem  called with each lost shard that may have names that are not found; None: it raises
        """
        keys = [inode_key(name) for name in names]
        found = np.full(len(keys), -1, np.int64)
        todo, left = np.arange(len(keys)), np.ones(len(keys), bool)
        lost: dict[int, FormatError] = {}
        asked = self._asked(names)
        numbers = list(asked)
        for number in self.coming(numbers) if len(names) >= MANY else numbers:
            if not len(todo):
                break
            rows = asked[number]
            chosen = todo if rows is None else rows[left[rows]]
            if not len(chosen):
                continue
            try:
                index = self.container(number).store.index
                pos = index.candidates([keys[i] for i in chosen.tolist()])
            except FormatError as error:
                lost[number] = error
                continue
            hit = pos > 0
            seen = hit.copy()
            seen[hit] = ~among(pos[hit], self.shards[number].hidden)
            found[chosen[seen]] = number
            left[chosen[hit]] = False
            todo = todo[left[todo]]
        missing = [names[i] for i in np.flatnonzero(found < 0).tolist()]
        for number, damage in list(lost.items()):
            if any(self._may_have(number, name, name) for name in missing):
                if problem is None or not isinstance(damage, CorruptError):
                    raise damage
                problem(damage)
                del lost[number]
        self._note(lost)
        return found

    def _asked(self, names: Sequence[bytes]) -> dict[int, Int64 | None]:
        """Return the shards that may have some of the names, the winner first, and which of them;
        None: perhaps all."""
        low, high = (min(names), max(names)) if names else (b"", b"")
        every = range(len(self.shards) - 1, -1, -1)
        numbers = [number for number in every if self._may_have(number, low, high)]
        parts = [self._ranges[number] or (low, high) for number in numbers]
        if sum(low < first or last < high for first, last in parts) < SORTED_FROM:
            return dict.fromkeys(numbers)
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        ordered = [names[i] for i in order.tolist()]
        found = dict[int, Int64 | None]()
        for number, (first, last) in zip(numbers, parts, strict=True):
            rows = order[bisect_left(ordered, first) : bisect_right(ordered, last)]
            if len(rows):
                found[number] = rows
        return found

    def _note(self, lost: Mapping[int, FormatError]) -> None:
        """Warn, once, of shards that cannot be opened, of which a caller does not hear."""
        for number, error in lost.items():
            if number not in self._problems:
                self._problems[number] = [str(error)]
                warn_of_damage(self.shards[number].base, self._problems[number])

    def _may_have(self, number: int, low: bytes, high: bytes) -> bool:
        """Return whether a shard may have one of the names low .. high."""
        if not self.shards[number].record.files:
            return False
        known = self._ranges[number]
        return known is None or (known[0] <= high and low <= known[1])

    def may_have_prefix(self, number: int, prefix: bytes) -> bool:
        """Return whether a shard may have names with this prefix."""
        known = self._ranges[number]
        if not prefix or known is None:
            return True
        return may_begin(known, prefix)


def _close_unclosed(containers: OrderedDict[int, Container], closed: list[bool], pid: int) -> None:
    """Close the shards of a data set that was garbage-collected, and warn if it was not closed."""
    if containers and os.getpid() == pid:
        first = next(iter(containers.values())).base
        while containers:
            containers.popitem()[1].close()
        if not closed:
            warnings.warn(
                f"unclosed data set: its shard {first} was open", ResourceWarning, stacklevel=3
            )


class DatasetReading(Reader):
    """The files of one generation. Threads may share it.

    It stays at its generation until `refresh`. A copy, a pickled one or one in a forked child opens
    the shards again, at the same generation.
    """

    changed_by = "put"
    takes_where = True

    def __init__(
        self, path: str | os.PathLike[str], as_of: AsOf = None, *, newest: bool = False
    ) -> None:
        """Open a generation.

        newest  raise if the newest generation is damaged, instead of reading the one before
        raises  NoSuchFile; StalePlan if the generation was vacuumed; FormatError
        """
        self._lock = threading.RLock()
        self._log, self._as_of, self._closed = Log(absolute(root_of(path))), as_of, False
        self._forked = False
        state = self._log.latest() if newest else self._log.at(as_of)
        self._snapshot = snapshot_of(self._log, state)
        self._handles = Handles(self._snapshot.shards)
        watch_forks(self)

    def _switch(self, generation: int) -> None:
        """Replace the snapshot by that of a different generation."""
        taken = snapshot_of(self._log, self._log.state(generation))
        self._handles.close()
        self._snapshot, self._handles = taken, Handles(taken.shards)

    # --- the data set ---

    @property
    def base(self) -> str:
        """Path of the folder."""
        return self._log.root

    @property
    def generation(self) -> int:
        return self._snapshot.generation

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards by rank, the winner last."""
        return self._snapshot.shards

    def shards_now(self) -> tuple[Shard, ...]:
        """Return the shards by rank, as `shards`. Raises Closed."""
        with self._lock:
            self._check()
            return self.shards

    @property
    def writable(self) -> bool:
        return False

    @property
    def ao(self) -> bool:
        """True if all shards are append-only containers."""
        return bool(self.shards) and all(shard.record.ao for shard in self.shards)

    @property
    def problems(self) -> list[str]:
        """Damage that was found and skipped, in manifests and in the shards opened so far: see
        `Container.problems`."""
        with self._lock:
            return [*self._log.problems, *self._handles.problems()]

    notes = problems

    @property
    def stored_bytes(self) -> int:
        return sum(shard.record.size for shard in self.shards)

    @property
    def most_content(self) -> int:
        found = 0
        with self._lock:
            for number in range(len(self.shards)):
                with contextlib.suppress(LostShard):
                    found += self._handles.container(number).most_content
        return found

    def history(self) -> Iterator[Manifest]:
        """Return the manifests of the kept generations, the newest first. Raises CorruptError."""
        head = self._log.head()
        return self._log.manifests(self._log.newest(), head.oldest)

    def refresh(self) -> bool:
        """Go to the newest generation -> whether it changed; with `as_of` it never does."""
        with self._lock:
            self._check()
            if self._as_of not in (None, "") or self._log.newest() == self.generation:
                return False
            newest = self._log.shown().generation
            if newest == self.generation:
                return False
            self._switch(newest)
            return True

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"generation {self.generation}"
        return f"<winkfs data set {self.base} ({state})>"

    def close(self) -> None:
        """Close the containers. Idempotent."""
        with self._lock:
            self._handles.close()
            self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise Closed("the data set is closed", self.base)
        if self._forked:
            if self.writable:
                what = "a writer does not survive fork: open it anew in the child"
                raise Closed(what, self.base)
            inherited, self._handles = self._handles, Handles(self.shards)
            inherited.close()
            self._forked = False

    def after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold the old one."""
        self._lock, self._forked = threading.RLock(), True

    def __reduce__(self) -> tuple[Any, ...]:
        if self.writable:
            raise TypeError(
                f"{self.base}: a writer cannot be pickled or copied: sync, and open it for reading"
            )
        if self._closed:
            raise Closed("the data set is closed", self.base)
        return _unpickled, (type(self), self.base, self.generation, self._as_of)

    def _home(self, name: Name) -> Container:
        """Return the container that has the file. Raises NoSuchFile."""
        self._check()
        number = self._handles.find(checked(name))
        if number < 0:
            raise NoSuchFile("no such file in the data set", to_str(name))
        return self._handles.container(number)

    # --- content ---

    def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        """Read the content, or `size` bytes of it from `offset`; shorter at the end of the file.

        raises  FileNotFoundError; CorruptError if a checksum is wrong
        """
        with self._lock:
            return self._home(name).read(name, offset, size)

    def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        with self._lock:
            return self._home(name).read_into(name, offset, into)

    def get_many(self, names: Iterable[Name]) -> Iterator[bytes]:
        """Yield the contents of many files, in the order of the names.

        raises  FileNotFoundError at a missing name; CorruptError
        cost    a look-up in each shard that may have it, in batches
        """
        source, count, far = iter(names), BATCH_ROWS, is_far(self._log.root)
        while batch := list(islice(source, count)):
            with self._lock:
                self._check()
                found, missing = self._get([checked(name) for name in batch])
            yield from found
            if missing is not None:
                raise NoSuchFile("no such file in the data set", to_str(missing))
            small = far and sum(map(len, found)) <= SMALL_BYTES
            count = min(4 * count, FAR_ROWS) if small else BATCH_ROWS

    def _get(self, names: list[bytes]) -> tuple[list[bytes], bytes | None]:
        """Return the contents up to the first missing name, and that name."""
        got: dict[int, bytes] = {}
        homes = dict(self._by_home(names))
        far = is_far(self._log.root)
        for numbers in batched(homes, min(AHEAD, MAX_OPEN) if far else 1):
            opened = [self._handles.container(number) for number in self._handles.coming(numbers)]
            parts = [homes[number] for number in numbers]
            calls = [
                partial(_some, container, [names[i] for i in rows])
                for container, rows in zip(opened, parts, strict=True)
            ]
            for rows, some in zip(parts, _at_once(calls), strict=True):
                got.update(zip(rows, some, strict=False))
        if len(got) < len(names):  # missing, or two names with one hash
            for i in [i for i in range(len(names)) if i not in got]:
                number = self._handles.find(names[i])
                if number < 0:
                    return [got[j] for j in range(i)], names[i]
                got[i] = self._handles.container(number).read(names[i])
        return [got[i] for i in range(len(names))], None

    def extents(self, name: Name) -> Sequence[Extent]:
        """Return the extents of a file in its shard: see `Container.extents`."""
        with self._lock:
            return self._home(name).extents(name)

    def homes(
        self, names: Sequence[bytes], problem: Problem | None = None
    ) -> Iterator[tuple[Shard, Container, list[bytes]]]:
        """Yield the shards that have these names, by hashes, each with its names; a missing name
        may be in none. Containers are valid until the next call. problem: see `find_many`."""
        with self._lock:
            self._check()
            for number, rows in self._by_home(names, problem):
                some = [names[i] for i in rows]
                yield self.shards[number], self._handles.container(number), some

    def _by_home(
        self, names: Sequence[bytes], problem: Problem | None = None
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield the numbers of the shards that have these names, by hashes, with the rows."""
        homes = self._handles.find_many(names, problem)
        for number in np.unique(homes[homes >= 0]).tolist():
            yield number, np.flatnonzero(homes == number).tolist()

    def home(self, name: Name) -> Container:
        """Return the container that has a file. Raises NoSuchFile."""
        with self._lock:
            return self._home(name)

    # --- metadata ---

    def stat(self, name: Name) -> Stat:
        """Return the metadata of a file; its FILEID is unique in its shard only.

        raises  FileNotFoundError; CorruptError
        """
        with self._lock:
            return self._home(name).stat(name)

    def getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Return the extended attributes of a file."""
        with self._lock:
            return self._home(name).getxattrs(name)

    # --- columns ---

    @property
    def columns(self) -> dict[str, str]:
        """The columns of all shards: name -> type."""
        return self._snapshot.columns

    def getcolumns(self, name: Name) -> dict[str, Any]:
        """Return the values of a file: column -> value; None: null, or its shard lacks the column.

        raises  FileNotFoundError
        """
        with self._lock:
            home = self._home(name)
            xattrs, known = home.getxattrs(name), home.columns
        found = to_values(xattrs, self.columns)
        return {column: value if column in known else None for column, value in found.items()}

    # --- names ---

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str | bytes | os.PathLike):
            return False
        with self._lock:
            self._check()
            raw = to_bytes(name)
            return b"\0" not in raw and raw != b"" and self._handles.find(raw) >= 0

    def __len__(self) -> int:
        self._check()
        return sum(shard.files for shard in self.shards)

    def scan(
        self,
        since: Time | None = None,
        until: Time | None = None,
        prefix: Name = "",
        *,
        where: str | None = None,
        problem: Problem | None = None,
    ) -> Iterator[Entry]:
        """Yield the files, shard by shard in disk order, as of the call: see `Container.scan`."""
        self._check()
        if where is not None:
            parse(where).bound(self.columns)  # raises now, not at the first shard
        return self._scan(
            self._snapshot.shards, self._handles, since, until, prefix, where, problem
        )

    def names(
        self, glob: str | None = None, *, where: str | None = None, problem: Problem | None = None
    ) -> Iterator[str]:
        """Yield the names, in byte order from the catalogs of the shards if these are at most
        MAX_OPEN, else in the order of `scan`.

        glob     only names that match; * also crosses /
        where    see `Container.scan`
        problem  called with each damaged inode, which is skipped; None: raise CorruptError
        """
        prefix = b"" if glob is None else to_bytes(literal_prefix(glob))
        found = self.rows(prefix, problem, where=where)
        names: Iterator[str]
        if found is not None:
            names = chain.from_iterable(to_strs(rows.names) for rows in found)
        else:
            entries = self.scan(prefix=prefix, where=where, problem=problem)
            names = (entry.name for entry in entries)
        return names if glob is None else filter(matcher(glob), names)

    def sizes(self) -> Iterator[tuple[str, int]]:
        found = self.rows(b"", None)
        if found is None:
            return super().sizes()
        parts = (zip(to_strs(rows.names), rows.size.tolist(), strict=True) for rows in found)
        return chain.from_iterable(parts)

    def paths_below(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        found = self.rows(to_bytes(prefix), None)
        if found is None:
            return super().paths_below(prefix)
        return chain.from_iterable(map(FileTable.paths, found))

    def rows(
        self,
        prefix: bytes,
        problem: Problem | None,
        times: Times = ALWAYS,
        where: str | None = None,
        columns: Sequence[str] = (),
        start: bytes = b"",
        at_once: int | None = None,
    ) -> Iterator[FileTable] | None:
        """Return the rows of the visible files with mode and owner, merged in byte order of their
        names: see `Handle.rows`.

        ->    None if more than MAX_OPEN shards would have to be open at once: use `scan`
        cost  that of the catalogs, and a merge of as many streams as there are shards
        """
        self._check()
        condition = None if where is None else parse(where).bound(self.columns)
        check_columns(columns, self.columns)
        query = Query.of_prefix(prefix, times, condition, columns)
        with self._lock:
            chosen = [number for number, shard in enumerate(self._snapshot.shards)
                      if shard.files and self._handles.may_have_prefix(number, prefix)
                      and may_be_from(shard.record, *times)]  # fmt: skip
        if len(chosen) > MAX_OPEN:
            return None
        query = query._replace(
            low=max(prefix, start), at_once=at_once or max(AT_ONCE // max(len(chosen), 1), 1)
        )
        handles, report = self._handles, problem or raise_it
        coming = partial(next, self._reopened(handles, chosen), None)
        return joined([self._rows_of(handles, number, query, report, coming) for number in chosen])

    def _reopened(self, handles: Handles, chosen: list[int]) -> Iterator[None]:
        """Prepare each of some shards, in this order, for its second opening."""
        for numbers in batched(chosen, AHEAD):
            if is_far(handles.shards[numbers[0]].base):
                with self._lock, contextlib.suppress(FormatError):
                    for number in handles.coming(numbers):
                        handles.container(number)
                announce(handles.shards[number].base for number in numbers)
            yield from (None for _ in numbers)

    def positions(
        self, number: int, prefix: bytes, problem: Problem | None, times: Times, where: str | None
    ) -> Int64:
        """Return the positions of the inodes of a shard's files that match, hidden ones too: see
        `Handle.positions`."""
        with self._lock:
            self._check()
            shard = self._handles.container(number)
            return shard.positions(prefix, problem, times, where, self.columns)

    def _rows_of(
        self,
        handles: Handles,
        number: int,
        query: Query,
        problem: Problem,
        coming: Callable[[], object],
    ) -> Iterator[FileTable]:
        """Yield the visible rows of a shard with mode and owner. `coming`: see `_reopened`."""
        coming()
        try:
            with self._lock:
                handles.container(number)  # records problems of the shard
                shard = handles.shards[number]
            with shard.pass_over():
                store = shard.open()  # opened again, because handles may be closed meanwhile
        except CorruptError as error:
            problem(error)
            return
        with store:
            for rows in all_rows(store, contextlib.nullcontext(), problem, query):
                yield rows.take(~among(rows.pos, shard.hidden)).owned(store.owner)

    def _scan(
        self,
        shards: Sequence[Shard],
        handles: Handles,
        since: Time | None,
        until: Time | None,
        prefix: Name,
        where: str | None,
        problem: Problem | None,
    ) -> Iterator[Entry]:
        low, high, start = to_ns(since), to_ns(until), to_bytes(prefix)
        chosen = [number for number, shard in enumerate(shards)
                  if shard.files and handles.may_have_prefix(number, start)
                  and may_be_from(shard.record, low, high)]  # fmt: skip
        for number in handles.coming(chosen):
            shard = shards[number]
            try:
                with self._lock:
                    container, known = handles.container(number), None
                    if where is not None:
                        known = container.positions(
                            start, problem, (low, high), where, self.columns
                        )
                    found = scan(
                        container.store, self._lock, since, until, start, problem,
                        without=shard.hidden, known=known,
                    )  # fmt: skip
            except CorruptError as error:
                if problem is None:
                    raise
                problem(error)
                continue
            yield from found


def _some(container: Container, names: list[Name]) -> list[bytes]:
    """Return the contents of files up to the first missing one."""
    return [content for found, _ in container.portions(names) for content in found]


def _at_once(calls: Sequence[Callable[[], T]]) -> Iterable[T]:
    """Return the results of calls; several run at the same time, since their shards are far."""
    if len(calls) == 1:
        return [calls[0]()]
    from winkformats.disk.objects import at_once  # late: most programs need none

    return at_once(calls)


def batched(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    """Yield lists of at most `size` numbers."""
    source = iter(numbers)
    while part := list(islice(source, size)):
        yield part


def _unpickled(
    kind: type[DatasetReading], root: str, generation: int, as_of: AsOf
) -> DatasetReading:
    """Open a pickled or copied data set at its generation."""
    found = kind(root, as_of=generation)
    found._as_of = as_of
    return found


def checked(name: Any) -> bytes:
    raw = to_bytes(name)
    if not raw or b"\0" in raw:
        raise ValueError(f"a name must not be empty or have NUL in it: {name!r}")
    return raw
