"""Pages of a Ring Page buffer on the disk, for readers and the writer."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from winkformats.disk.paths import locate, open_file
from winkformats.disk.storage import FileType, Storage
from winkformats.ringpage.metadata import MAGIC, PLACES, BufferState, Settings
from winkformats.ringpage.page import (
    BLOCK,
    HEAD,
    Head,
    Record,
    Records,
    in_order,
    is_whole,
)
from winkfs.errors import CorruptError, FormatError, Locked, NoSuchFile


def open_buffer(path: str, mode: str = "r") -> Storage:
    """Open a file or a block device, "r" or "w". Raises NoSuchFile; Locked; OSError."""
    try:
        return open_file(path, mode, device=True)
    except FileNotFoundError:
        raise NoSuchFile("no such Ring Page buffer: see winkfs ring create", path) from None
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise Locked("another program has the device, or it is mounted", path) from None


def is_buffer(path: str) -> bool:
    """Return whether a path is a Ring Page buffer.

    cost  two short reads of any file or block device
    """
    directory, name = locate(path)
    found = directory.info(name, follow=True) if name else None
    if found is None or found.kind not in (FileType.FILE, FileType.DEVICE):
        return False
    try:
        with open_buffer(path) as storage:
            return any(storage.read(place, len(MAGIC)) == MAGIC for place in PLACES)
    except OSError:
        return False


class Pages:
    """The pages of a buffer as of the last `load`.

    is_device whether it is a block device
    heads     header of each page; None: it has none, or a bad one
    order     indices of the good pages, the oldest first
    next      index of the page that is written next
    end       number of the next record that is written
    tail      number of the oldest unread record, if `trusted`; else of the oldest record
    problems  damage, a line each; notes: traces of an interrupted write
    """

    def __init__(self, storage: Storage) -> None:
        """Raises FormatError; CorruptError; OSError. Cost: reads the header of each page."""
        self.storage = storage
        self.settings, self._wrong = Settings.decode(storage.read(0, BLOCK), name=storage.name)
        self.is_device = storage.info().kind is FileType.DEVICE
        if self.is_device and storage.size() < self.settings.size:
            raise FormatError(
                f"{storage.name}: a device of {storage.size():,} bytes for a buffer of "
                f"{self.settings.size:,}"
            )
        self.load()

    def load(self) -> None:
        """Read the state and the headers of all pages. Raises OSError."""
        settings = self.settings
        self.problems, self.notes = list(self._wrong), list[str]()
        block = self.storage.read(0, BLOCK)
        state = BufferState.decode(block, settings.ring)
        if state is None:
            self.notes.append(f"{self.storage.name}: no state is whole: what was read is not known")
        self.state = state or BufferState()
        raws = self._load_heads()
        self.order = in_order(self.heads, self._is_whole)
        self.next = (self.order[-1] + 1) % settings.page_count if self.order else 0
        self.looped = self.state.looped or any(self.head(at).turn > 0 for at in self.order[-1:])
        self.end = self.head(self.order[-1]).end if self.order else self.state.next
        self.trusted = self.state.clean and self.state.tail <= self.state.next == self.end
        self.tail = self.head(self.order[0]).number if self.order else self.end
        if self.trusted:
            self.tail = max(self.tail, self.state.tail)
        self._judge()
        following = raws[self.next] if self.next < len(raws) else b""
        self._signature = block, following, self.heads[self.next] is not None

    def refresh(self) -> bool:
        """Load the pages again if anything was written -> whether it was. Raises OSError."""
        if self._sign() == self._signature:
            return False
        self.load()
        return True

    def _sign(self) -> object:
        """Return what every write changes: the state, the header of the next page, whether that
        page is complete."""
        following = self.storage.read(self.settings.offset(self.next), HEAD.size)
        whole = self.heads[self.next] is not None or self._is_whole(self.next)
        return self.storage.read(0, BLOCK), following, whole

    def head(self, index: int) -> Head:
        """Return the header of a good page."""
        head = self.heads[index]
        assert head is not None
        return head

    def _load_heads(self) -> list[bytes]:
        """Read the headers of all pages within the file -> their bytes."""
        settings = self.settings
        pages = max(self.storage.size() - BLOCK, 0) // settings.page_size
        offsets = list(map(settings.offset, range(min(pages, settings.page_count))))
        raws = self.storage.read_each(offsets, [HEAD.size] * len(offsets))
        form = settings.page_count, settings.page_size, settings.ring
        self.heads: list[Head | None] = [None] * settings.page_count
        for index, raw in enumerate(raws):
            if len(raw) == HEAD.size and (head := Head.decode(raw)).fits(index, *form):
                self.heads[index] = head
        return raws

    def _is_whole(self, index: int) -> bool:
        return is_whole(self._raw(index), self.settings.page_size)

    def _raw(self, index: int) -> bytes:
        return self.storage.read(self.settings.offset(index), self.settings.page_size)

    def _judge(self) -> None:
        """Report bad pages, and an end that is missing."""
        count = self.settings.page_count
        last = self.order[-1] if self.order else min(self.state.num_pages, count) - 1
        should = range(count if self.looped else last)
        torn = self.next if self.order else max(last, 0)
        bad = [index for index in should if self.heads[index] is None and index != torn]
        while bad:
            count = next((n for n, (a, b) in enumerate(pairwise(bad), 1) if b != a + 1), len(bad))
            which = f"page {bad[0]} is" if count == 1 else f"pages {bad[0]} to {bad[count - 1]} are"
            at = self.settings.offset(bad[0])
            self.problems.append(f"{self.storage.name}: {which} damaged, at byte {at}")
            bad = bad[count:]
        size = self.settings.size
        if self.looped and not self.is_device and self.storage.size() < size:
            found = self.storage.size()
            what = f"cut short, {found:,} of its {size:,} bytes are there"
            self.problems.append(f"{self.storage.name}: {what}")
        if self.state.clean and self.state.next > self.end:
            which = f"records {self.end} to {self.state.next - 1}"
            self.problems.append(f"{self.storage.name}: the last pages are gone: {which}")
        if self.heads[torn] is None:
            raw = self.storage.read(self.settings.offset(torn), HEAD.size)
            ours = len(raw) == HEAD.size and Head.decode(raw).ring == self.settings.ring
            if ours or self.looped:
                what = f"page {torn}, which is written next, is torn or damaged"
                self.notes.append(f"{self.storage.name}: {what}")

    # --- records ---

    def read(self, index: int, head: Head) -> bytes:
        """Read the page with this header.

        raises  NoSuchFile: another page has taken its place; CorruptError; OSError
        """
        for _ in range(2):  # a writer may have been replacing it the first time
            raw = self._raw(index)
            if is_whole(raw, self.settings.page_size):
                if Head.decode(raw) != head:
                    raise NoSuchFile(f"page {index} was written over", self.storage.name)
                return raw
        at = self.settings.offset(index)
        raise CorruptError(f"page {index} is damaged", file=self.storage.name, offset=at)

    def joining(self) -> Records:
        return Records(self.settings.page_size, name=self.storage.name)

    def by_page(
        self, problem: Callable[[Exception], Any], tail: int = -1
    ) -> Iterator[list[Record]]:
        """Yield the records that end in each page, the oldest page first. `problem` is called with
        each damaged page.

        tail  pages of which all records are below this number are left out
        """
        joined = self.joining()
        for index, head in [(index, self.head(index)) for index in self.order]:
            if head.end > tail:
                found: list[Record] = []
                try:
                    found = joined.read(index, self.read(index, head))
                except (CorruptError, NoSuchFile) as error:
                    joined.break_off()
                    if isinstance(error, CorruptError):  # else it was written over meanwhile
                        problem(error)
                yield found

    def records(self, problem: Callable[[Exception], Any]) -> Iterator[Record]:
        """Yield the unread records, the oldest first. `problem` is called with each damaged
        page."""
        tail = self.tail  # as of now: a reader may load the pages meanwhile
        for found in self.by_page(problem, tail):
            yield from (record for record in found if record.number >= tail)
