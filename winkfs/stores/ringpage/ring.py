"""Ring: a queue of records in a Ring Page buffer, a file or a block device.

    create("buffer", pages=1024)
    with Ring("buffer", "a") as ring:
        ring.push(b"body")
        ring.peek()
        ring.pop()

Records stay in memory. Only if they are too many, the oldest of them go to the disk, a full page at
a time; a `pop` takes records from the disk first. Which records were read is written by `close`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

from winkformats.disk.paths import absolute, locate
from winkformats.disk.storage import FileType, Lock, Storage, replacing
from winkformats.ringpage.metadata import MAX_PAGES, MAX_SIZE, NUM_PAGES, Settings
from winkformats.ringpage.page import (
    BLOCK,
    HEAD,
    LAST,
    Head,
    Record,
    encode,
    largest,
    length_of,
)
from winkfs.errors import CorruptError, FileExists, Locked, NoSuchFile, Refusal
from winkfs.names import DATA
from winkfs.stores.handle import StoreHandle, one_of
from winkfs.stores.kinds import refuse_other
from winkfs.stores.ringpage.pages import Pages, is_buffer, open_buffer
from winkfs.units import as_content, as_int

DEFAULT_PAGES: Final = 1024  # of a buffer in a file, by default
MEMORY_BYTES: Final = 1 << 20  # of records in memory
ZEROED_PAGES: Final = 2  # of a device, which `create` overwrites with zeros
CHECKED_BYTES: Final = 1 << 20  # at either end of a device, which must be zeros
Sync = Literal["none", "always"]
Close = Literal["flush", "drop"]
WhenFull = Literal["overwrite", "refuse"]


class Full(Refusal):
    """The buffer is full of unread records, and was made to refuse more."""

    number = errno.ENOBUFS


# --- a new one ---


def create(
    path: str | os.PathLike[str],
    *,
    pages: int | None = None,
    page_size: int = BLOCK,
    record_size: int | None = None,
    full: WhenFull = "overwrite",
    force: bool = False,
    exist_ok: bool = False,
) -> Settings:
    """Make an empty buffer: a new file, or on an existing block device.

    pages        None: 1024, or as many as a device has room for, at most 65,535
    page_size    bytes, a multiple of 4096
    record_size  bytes of the largest record; None: as a page has room for
    full         what a push does if all pages have unread records: "overwrite" the oldest page, and
                 count what is lost, or "refuse"
    force        take a device that is not empty
    exist_ok     accept an existing buffer, which stays as it is
    ->           its settings. Of a file the metadata block is written, of a device also two pages
                 of zeros
    raises       ValueError for impossible sizes; FileExists; Refusal; OSError
    """
    name = os.fspath(path)
    if name.endswith(DATA):
        raise Refusal(f"a name that ends with {DATA} is that of a container", name)
    one_of("full", full, ("overwrite", "refuse"))
    if pages is not None:
        as_int(pages, "pages")
    if as_int(page_size, "page_size") < BLOCK or page_size > MAX_SIZE:
        raise ValueError(f"a page has {BLOCK} bytes to 16 MiB, not {page_size:,}")
    most = largest(page_size) if record_size is None else as_int(record_size, "record_size")

    def settings(count: int) -> Settings:
        ring = secrets.randbelow((1 << 32) - 1) + 1
        made = Settings(page_size, count, most, full == "refuse", ring)
        made.check()
        return made

    refuse_other(name, "ring buffer")
    if exist_ok and is_buffer(name):
        with open_buffer(name) as storage:
            return Settings.decode(storage.read(0, BLOCK), name=name)[0]
    directory, short = locate(name)
    found = directory.info(short, follow=True)
    if found is not None and found.kind is FileType.DEVICE:
        with open_buffer(name, "w") as storage:
            return _take_device(storage, pages, page_size, settings, force=force)
    place = absolute(name)
    if found is None and place.startswith("/dev/") and not place.startswith("/dev/shm/"):
        raise NoSuchFile("no such device", name)
    made = settings(DEFAULT_PAGES if pages is None else pages)
    if found is not None:
        raise FileExists("is there already: remove it, or choose another name", name)
    with replacing(directory, short, new=True) as storage:
        storage.write(0, [made.encode()])
    return made


def _take_device(
    storage: Storage,
    pages: int | None,
    page_size: int,
    settings: Callable[[int], Settings],
    *,
    force: bool,
) -> Settings:
    size = storage.size()
    room = (size - BLOCK) // page_size
    if pages is not None and pages > room:
        raise Refusal(
            f"has {size:,} bytes: room for {max(room, 0):,} pages of {page_size:,}", storage.name
        )
    made = settings(min(room, MAX_PAGES) if pages is None else pages)
    ends = storage.read(0, CHECKED_BYTES), storage.read(max(size - CHECKED_BYTES, 0), CHECKED_BYTES)
    if not force and any(map(any, ends)):
        raise Refusal("is not empty: force=True, or --force, takes it all the same", storage.name)
    storage.write(0, [made.encode(), bytes(ZEROED_PAGES * page_size)])
    storage.sync()
    return made


# --- the queue ---


class Ring(StoreHandle):
    """A Ring Page buffer, open. Any number of threads may use it.

    mode       "r": to read, also while another process writes; "a": to push and pop, alone
    memory     bytes of records that may stay in memory; at least a page
    sync       when pages are made durable: "none": by `sync`, `flush` and `close`; "always": each
               as it is written
    save_tail  whether `close` saves which records were read; else they are unread again
    on_close   what `close` does with records in memory: "flush" writes them, in a page that is
               padded; "drop" loses them, as the design of the format has it, and counts them
    problems   damage that was found, a line each; notes: traces of an interrupted write
    """

    _what = "the buffer"
    _read_only = "the buffer was opened for reading"

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        memory: int = MEMORY_BYTES,
        sync: Sync = "none",
        save_tail: bool = True,
        on_close: Close = "flush",
    ) -> None:
        """Raises NoSuchFile; Locked; FormatError; ValueError; OSError.

        cost  reads the header of each page, and a few pages
        """
        super().__init__(path, mode, sync, syncs=("none", "always"))
        one_of("on_close", on_close, ("flush", "drop"))
        as_int(memory, "memory")
        self._save_tail, self._on_close = save_tail, on_close
        self._access.ready = self.writable
        self.dropped = 0
        self._storage = open_buffer(self.path, "w" if self.writable else "r")
        self._closing.callback(self._storage.close)
        self._bound = memory
        self._open_by(self._open)

    def _open(self) -> None:
        if self.writable and (lock := self._locked()) is not None:
            self._closing.callback(lock.release)
        self.pages = Pages(self._storage)
        self._begin()

    def _locked(self) -> Lock | None:
        """Lock a file; a device that is open for writing is locked already."""
        info = self._storage.info()
        if info.kind is FileType.DEVICE:
            return None
        directory, name = locate(self.path)
        lock = directory.lock(name)
        if lock is None or lock.identity != info.identity:
            if lock is not None:
                lock.release()
            raise Locked("another writer has it open: wait for it or stop it", self.path)
        return lock

    def _begin(self) -> None:
        pages = self.pages
        self.settings, self.problems, self.notes = pages.settings, pages.problems, pages.notes
        size = self.settings.page_size
        self._length, self._room = length_of(size), size - HEAD.size
        self._bound = max(self._bound, size)
        # In memory: records that are not on the disk, the first one maybe in part.
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # of them and their lengths that are not on the disk
        self._skip = 0  # bytes of the first one that are on the disk
        # On the disk: records of pages that were read, and pages that were not.
        self._ready: deque[tuple[int, bytes]] = deque()  # number, body
        self._joined = pages.joining()
        good = [(index, pages.head(index)) for index in pages.order]
        self._unread = deque((i, head) for i, head in good if head.end > pages.tail)
        self._occupied = deque((i, head.end) for i, head in self._unread)
        self._heads = list(pages.heads)
        self._oldest = good[0][1].number if good else 0  # number of a record on the disk
        self._tail, self._end, self._next = pages.tail, pages.end, pages.next
        self._turn = good[-1][1].turn + (self._next == 0) if good else 0
        known = max(pages.state.num_pages, min(len(good), NUM_PAGES))
        self._state = pages.state._replace(looped=pages.looped, num_pages=known)
        self._written, self._stored = self._state.written, self._state.stored
        # After an unclean end: records that are gone since the state; none is known to be read.
        since = self._state.tail if self._state.clean else self._state.overwritten
        gone = 0 if pages.trusted or not good else max(self._tail - since, 0)
        self._overwritten = self._state.overwritten + gone
        self._uncounted = 0 if pages.trusted else max(pages.end - pages.state.next, 0)
        self._unsynced = self.writable  # earlier writes may be in the page cache alone
        self._changed = False

    @property
    def end(self) -> int:
        """The number behind that of the last record that is completely on the disk."""
        return self._end - bool(self._skip)

    # --- the end ---

    def close(self, *, save_tail: bool | None = None) -> None:
        """Write the records in memory, or drop them (`on_close`), and save which ones were read.

        save_tail  overrides the option of the constructor
        raises     Full: records in memory that found no room are lost; OSError. It is closed then
        """
        with self._lock:
            self._save_tail = self._save_tail if save_tail is None else save_tail
            super().close()

    def _finish(self) -> None:
        try:
            if self._on_close == "flush":
                self._write_all()
        finally:
            self.dropped += len(self._waiting)
            self._overwritten += self._stranded()
            if not self._access.failed:
                if self._save_tail and self._changed:
                    self._sync()  # a clean state must not name records that are not there
                    self._write_state(clean=True)
                self._sync()

    def _stranded(self) -> int:
        """Count records that were read from pages, not popped, and are overwritten on the disk."""
        before = self._joined.before
        begun = before is not None and before.end <= self._oldest
        ends = self._unread and before is not None and before.leads_to(self._unread[0][1])
        return sum(number < self._oldest for number, _ in self._ready) + bool(begun and ends)

    def abort(self) -> None:
        """Close without a write: records in memory are lost, those from the disk unread again."""
        with self._lock:
            super().abort()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Close; if the block raised, records that were popped from the disk are unread again."""
        self.close(save_tail=None if kind is None else False)

    # --- writing ---

    def push(self, body: bytes) -> None:
        """Add a record behind all others.

        raises  ValueError: too large; Full; OSError. It is not added then
        """
        if type(body) is not bytes:  # its bytes may change before they are written
            body = as_content(body, "a record")
        size = len(body)
        with self._lock:
            if not self._access.ready:
                self._access.check()
            if size > self.settings.largest:
                raise ValueError(
                    f"{self.path}: a record of {size:,} bytes: the buffer takes "
                    f"{self.settings.largest:,}"
                )
            size += self._length.size
            while self._bytes + size > self._bound and self._bytes >= self._room:
                self._write_page()
            self._waiting.append(body)
            self._bytes += size

    def push_many(self, bodies: Iterable[bytes]) -> None:
        """Add records in their order. Raises as `push` does: earlier ones are added then."""
        for body in bodies:
            self.push(body)

    def flush(self) -> None:
        """Write all records in memory, the last page padded, and return when they are durable.

        raises  Full: some found no room and stay in memory; OSError
        """
        with self._lock:
            self._access.check()
            try:
                self._write_all()
            finally:
                self._sync()

    def sync(self) -> None:
        """Make all pages durable that were written. Raises OSError, which is final."""
        with self._lock:
            self._access.check()
            self._sync()

    def _write_all(self) -> None:
        while self._waiting:
            self._write_page()

    def _sync(self) -> None:
        if not self._unsynced:
            return
        with self._access.final():
            self._storage.sync()
        self._unsynced = False

    def _write_page(self) -> None:
        """Write the oldest records in memory, as many as a page has room for."""
        parts, room, skip = [], self._room, self._skip
        first = whole = begun = stored = 0
        for body in self._waiting:
            part = (self._length.pack(len(body)) + body)[skip:]
            if skip:
                first = len(part)
            else:
                begun += 1
            if len(part) > room:
                parts.append(part[:room])
                skip += room
                break
            parts.append(part)
            room, skip = room - len(part), 0
            whole, stored = whole + 1, stored + len(body)
            if not room:
                break
        if self._end + begun > LAST:
            raise Refusal("there are no numbers left for records", self.path)
        data = b"".join(parts)
        index, settings = self._next, self.settings
        self._free(index)
        head, raw = encode(
            index, self._turn, settings.page_count, settings.page_size, ring=settings.ring,
            number=self._end, records=begun, first=first, goes_on=bool(skip), data=data,
        )  # fmt: skip
        self._unsynced = self._changed = True
        self._storage.write(settings.offset(index), [raw])
        self._bytes -= len(data)
        self._skip = skip
        for _ in range(whole):
            self._waiting.popleft()
        self._written += len(raw)
        self._stored += stored
        self._is_written(index, head)

    def _is_written(self, index: int, head: Head) -> None:
        before, self._heads[index] = self._heads[index], head
        self._oldest = self._oldest if before is None else before.end
        self._unread.append((index, head))
        self._occupied.append((index, head.end))
        self._end = head.end
        self._next = (index + 1) % self.settings.page_count
        self._turn += self._next == 0
        known, looped = self._state.num_pages, self._state.looped
        loops = not looped and head.turn > 0
        looped |= loops
        if known < NUM_PAGES or loops:
            self._state = self._state._replace(num_pages=min(known + 1, NUM_PAGES), looped=looped)
            self._write_state(clean=False)
        if self._always:
            self._sync()

    def _free(self, index: int) -> None:
        """Release a page that is about to be overwritten. Raises Full."""
        if self._occupied and self._occupied[0][0] == index:
            if self.settings.refuse:
                raise Full("the buffer is full: pop some records", self.path)
            self._occupied.popleft()
        if self._unread and self._unread[0][0] == index:
            head = self._unread.popleft()[1]
            before, self._joined = self._joined.before, self.pages.joining()
            lost = head.records - max(self._tail - head.number, 0)
            lost += before is not None and before.leads_to(head)
            if head.goes_on and not (self._unread and head.leads_to(self._unread[0][1])):
                lost -= 1  # its end was overwritten before, and it was counted then
            self._overwritten += max(lost, 0)
            self._tail = max(self._tail, head.end)

    def _write_state(self, *, clean: bool) -> None:
        self._written += BLOCK  # the smallest write of a disk
        self._state = self._state._replace(
            clean=clean, turn=self._state.turn + 1, tail=self._tail if clean else 0,
            next=self._end, written=self._written, stored=self._stored,
            overwritten=self._overwritten,
        )  # fmt: skip
        self._unsynced = True
        self._storage.write(self._state.offset, [self._state.encode(self.settings.ring)])

    # --- reading ---

    def pop(self) -> bytes | None:
        """Take the oldest record; None: there is none. Raises OSError."""
        with self._lock:
            if self._access.closed or not self.writable:
                self._access.check_writable()
            if self._ready or self._load():
                number, body = self._ready.popleft()
                self._passed(number + 1)
                self._changed = True
                return body
            if not self._waiting:
                return None
            body = self._waiting.popleft()
            self._bytes -= len(body) + self._length.size - self._skip
            if self._skip:  # its end is not written any more
                self._skip = 0
                self._passed(self._end)
                self._changed = True
            return body

    def pop_many(self, count: int) -> list[bytes]:
        """Take up to `count` of the oldest records."""
        as_int(count, "count", 0)
        found: list[bytes] = []
        with self._lock:
            while len(found) < count and (body := self.pop()) is not None:
                found.append(body)
        return found

    def peek(self) -> bytes | None:
        """Return the oldest record, which stays; None: there is none."""
        with self._lock:
            if not self.writable:
                found = next(self.records(), None)
                return None if found is None else found.body
            self._access.check_writable()
            if self._ready or self._load():
                return self._ready[0][1]
            return self._waiting[0] if self._waiting else None

    def records(self) -> Iterator[Record]:
        """Yield the unread records that were on the disk at the opening, the oldest first; they
        stay. Damage is skipped, and added to `problems`.
        """
        return self.pages.records(self._problem)

    def refresh(self) -> bool:
        """Follow the writer, with mode "r" -> whether anything was written."""
        with self._lock:
            if self.writable or not self.pages.refresh():
                return False
            self._begin()
            return True

    def _passed(self, tail: int) -> None:
        """Record that all records before this one were read, or are lost."""
        self._tail = max(self._tail, tail)
        while self._occupied and self._occupied[0][1] <= self._tail:
            self._occupied.popleft()

    def _problem(self, error: Exception) -> None:
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def _load(self) -> bool:
        """Read the next page with unread records -> whether there is one."""
        while self._unread:
            index, head = self._unread[0]
            try:
                found = self._joined.read(index, self.pages.read(index, head))
            except (CorruptError, NoSuchFile) as error:
                self._problem(error)
                self._joined.break_off()
                self._passed(head.end)
                found = []
            self._unread.popleft()
            self._ready.extend((r.number, r.body) for r in found if r.number >= self._tail)
            if self._ready:
                return True
            if not head.goes_on:
                self._passed(head.end)
        return False

    def __len__(self) -> int:
        """The number of unread records. Cost: grows with the pages that have unread ones."""
        with self._lock:
            found, before = 0, self._joined.before
            for _, head in self._unread:
                found += head.records - head.goes_on - max(self._tail - head.number, 0)
                found += before is not None and before.leads_to(head)
                before = head
            return len(self._ready) + len(self._waiting) + max(found, 0)

    def __bool__(self) -> bool:
        """True, also for an empty buffer: see `empty`."""
        return True

    def empty(self) -> bool:
        """Return whether there is no unread record."""
        return len(self) == 0

    def clear(self) -> None:
        """Take all records; it writes nothing. Cost: reads them."""
        with self._lock:
            while self.pop() is not None:
                pass

    def stats(self) -> dict[str, Any]:
        """Return facts for people and JSON.

        The counters cover the whole life of the buffer. After an unclean end, bytes written and
        bytes of records do not include `uncounted` records, and `overwritten` includes records that
        were popped since the last state.
        """
        with self._lock:
            settings, written, stored = self.settings, self._written, self._stored
            return {
                "records": len(self),
                "bytes": self.live_bytes(),
                "page_size": settings.page_size,
                "page_count": settings.page_count,
                "record_size": settings.largest,
                "full": "refuse" if settings.refuse else "overwrite",
                "num_pages": self._state.num_pages,
                "looped": self._state.looped,
                "next_page": self._next,
                "tail": self._tail,
                "tail_trusted": self.pages.trusted,
                "next": self.end,
                "in_memory": len(self._waiting) + len(self._ready),
                "written_bytes": written,
                "record_bytes": stored,
                "write_amplification": round(written / stored, 4) if stored else None,
                "uncounted": self._uncounted,
                "overwritten": self._overwritten,
                "notes": self.notes,
            }

    def live_bytes(self) -> int:
        """Return the bytes of the records; lengths that go on in the next page may count."""
        width = self._length.size
        on_disk = sum(max(head.used - width * head.records, 0) for _, head in self._unread)
        return on_disk + sum(len(body) for _, body in self._ready) + self._bytes
