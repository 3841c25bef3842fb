"""Captures of web documents: the newest capture of a URL in a data set gets the plain name.

Tasks store captures under names that are unique within a unit. Before the commit this module
compares captures with equal names in all units and in the data set. The newest of a URL gets the
plain name; older ones get their time appended. New captures are renamed in their containers, which
are not visible yet; those in the data set are copied into one more shard.

The result is a function of the captures, not of their order: see `winkfs.archive.webnames`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import xxhash

from winkfs.archive.warc import Capture
from winkfs.archive.webnames import apart, at_time, microseconds, place_of
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.typed import USER, to_value
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import open as open_dataset
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.transaction import Transaction
from winkfs.names import to_bytes

NAMES_AT_ONCE: Final = 4096  # names looked up in the data set at a time
OLD: Final = -1  # number of a unit for captures in the data set
URL, DATE = USER + b"url", USER + b"date"


@dataclass(slots=True)
class Settled:
    """The renames to make.

    moves    unit -> its names, with the new names; None: the capture is dropped
    copies   names in the data set -> names of their copies
    gone     names in the data set that are deleted
    hidden   number of files of the data set that newer captures replace
    """

    moves: dict[int, dict[bytes, bytes | None]] = field(default_factory=dict)
    copies: dict[bytes, bytes] = field(default_factory=dict)
    gone: set[bytes] = field(default_factory=set)
    hidden: int = 0


def settle(
    root: str, generation: int, units: Sequence[Sequence[Capture]], *, latest: bool
) -> Settled:
    """Decide the names of the captures of some units and of those in a data set.

    latest   keep only the newest capture of each URL
    cost     a look-up of each name, if the data set has files
    """
    groups: dict[bytes, list[tuple[int, Capture]]] = {}
    for unit, captures in enumerate(units):
        for capture in captures:
            groups.setdefault(capture.base, []).append((unit, capture))
    with contextlib.closing(open_dataset(root, as_of=generation)) as there:
        held = dict(_held(there, groups))
        made = _Settling(there, latest=latest)
        for base, group in groups.items():
            holder = held.get(base)
            if holder is not None or len(group) > 1 or group[0][1].stored != base:
                made.group(base, group, holder)
    return made.found


def _held(there: Dataset, bases: Iterable[bytes]) -> Iterator[tuple[bytes, Capture]]:
    """Yield the names that the data set has, with their captures."""
    names = list(bases) if len(there) else []
    for at in range(0, len(names), NAMES_AT_ONCE):
        for _, container, some in there.homes(names[at : at + NAMES_AT_ONCE]):
            for name in some:
                if name in container:
                    yield name, _capture_in(container, name)


def _capture_in(home: Container, name: bytes, base: bytes = b"") -> Capture:
    """Return a file of the data set as a capture, with 0 for the hash of its content."""
    xattrs = home.getxattrs(name)
    url = xattrs.get(URL, b"")  # b"", which sorts first, for a file that is no web document
    date = to_value("timestamp", xattrs.get(DATE))
    when = microseconds(date) if isinstance(date, datetime) else None
    return Capture(base or name, place_of(url).url if url else url, when, 0, name)


class _Settling:
    def __init__(self, there: Dataset, *, latest: bool) -> None:
        self._there, self._latest, self.found = there, latest, Settled()
        self._used: set[bytes] = set()

    def group(self, base: bytes, new: list[tuple[int, Capture]], holder: Capture | None) -> None:
        """Name the captures of all URLs that share a name."""
        of_url: dict[bytes, list[tuple[int, Capture]]] = {}
        for unit, capture in new:
            of_url.setdefault(capture.url, []).append((unit, capture))
        if holder is not None:
            of_url.setdefault(holder.url, [])
        first = min(of_url)
        if holder is not None and holder.url != first:
            self._move_older(base, holder.url)
        self._used = set()
        for url in sorted(of_url):
            root = base if url == first else apart(base, url)
            there = holder if holder is not None and holder.url == url else self._at(root)
            if of_url[url] or (there is not None and there.stored != root):
                self._name(root, of_url[url], there)

    def _at(self, name: bytes) -> Capture | None:
        return _capture_in(self._there.home(name), name) if name in self._there else None

    def _move_older(self, base: bytes, url: bytes) -> None:
        """Rename the older captures of a URL that loses the plain name to a different one."""
        for entry in self._there.scan(prefix=base + b"@"):
            name = to_bytes(entry.name)
            capture = _capture_in(self._there.home(name), name)
            if capture.url == url and name[len(base) + 1 :][:14].isdigit():
                self.found.copies[name] = apart(base, url) + name[len(base) :]
                self.found.gone.add(name)

    def _name(self, root: bytes, new: list[tuple[int, Capture]], there: Capture | None) -> None:
        """Name the captures of one URL; the newest one gets `root`."""
        known = {(capture.when, capture.mark) for _, capture in new}
        every = list(new)
        if there is not None:
            if any(when == there.when for when, _ in known):
                there = there._replace(mark=self._mark(there.stored))
            every = [(OLD, there), *new]
        every.sort(key=lambda one: (one[1].when is not None, one[1].when or 0, one[1].mark, one[0]))
        chosen: list[tuple[int, Capture]] = []
        for unit, capture in every:
            if chosen and chosen[-1][1][2:4] == capture[2:4] and unit != OLD:
                self._move(unit, capture, None)
            else:
                chosen.append((unit, capture))
        for unit, capture in chosen[:-1]:
            gone = self._latest and (unit != OLD or capture.stored == root)
            self.found.hidden += gone and unit == OLD
            self._move(unit, capture, None if gone else self._older(root, unit, capture))
        self._move(*chosen[-1], root)

    def _older(self, root: bytes, unit: int, capture: Capture) -> bytes | None:
        """Return the name of an older capture; None: the data set has it already."""
        name = at_time(root, capture.when)
        if name in self._used or (name in self._there and name not in self.found.gone):
            mark = capture.mark if unit != OLD else self._mark(capture.stored)
            if name in self._there and self._mark(name) == mark:
                return None
            name = at_time(root, capture.when, mark)
            if name in self._there:
                return None
        self._used.add(name)
        return name

    def _mark(self, name: bytes) -> int:
        return xxhash.xxh3_64_intdigest(self._there.read(name))

    def _move(self, unit: int, capture: Capture, name: bytes | None) -> None:
        if unit != OLD:
            self.found.moves.setdefault(unit, {})[capture.stored] = name
        elif name is not None and name != capture.stored:
            self.found.copies[capture.stored] = name


def named_by_url(root: str) -> bool:
    """Return whether a data set has web documents whose names are their URLs, as older versions
    stored them; False also if it has too many shards to look."""
    with contextlib.closing(open_dataset(root)) as there:
        for prefix in (b"http://", b"https://"):
            rows = there.rows(prefix, lambda _: None)
            if rows is not None and any(len(some.names) for some in rows):
                return True
    return False


def carry(transaction: Transaction, found: Settled) -> ShardRecord | None:
    """Copy captures of the data set to their new names, into a new shard."""
    if not found.copies:
        return None
    with ShardWriter(transaction, "captures-0") as writer:
        with open_dataset(transaction.root, as_of=transaction.base_generation) as there:
            for old, new in sorted(found.copies.items()):
                writer.copy(there.home(old), old, new)
        writer.gone |= found.gone
        return writer.finish()


def rename(
    transaction: Transaction, record: ShardRecord, moves: dict[bytes, bytes | None]
) -> tuple[ShardRecord | None, int, int]:
    """Rename the files of a sealed container -> its record, None if nothing is left; number of
    dropped files; their bytes."""
    moves = {old: new for old, new in moves.items() if old != new}
    if not moves:
        return record, 0, 0
    base = transaction.attempt(record.path.rpartition("/")[2])
    dropped = size = 0
    with open_container(base, "a") as made:
        for old, new in moves.items():
            if new is None:
                size += made.stat(old).size
                made.delete(old)
                dropped += 1
        kept = [(old, new) for old, new in moves.items() if new is not None]
        aside = [(b"\x01%d" % i, *pair) for i, pair in enumerate(kept) if pair[1] in moves]
        for other, old, _ in aside:  # temporary names, since a new name may still be in use
            made.rename(old, other)
        for old, new in kept:
            if new not in moves:
                made.rename(old, new)
        for other, _, new in aside:
            made.rename(other, new)
        made.save_catalog()
        left = len(made)
    return (transaction.seal(base) if left else None), dropped, size
