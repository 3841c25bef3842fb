"""Unread records of a Ring Page buffer as `Records`, by number; and verify."""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from winkformats.ringpage.page import Record
from winkfs.container.verify import Report
from winkfs.errors import FormatError, NoSuchFile
from winkfs.stores.records import HandleRecords, Part, Progress, Row
from winkfs.stores.ringpage.pages import Pages, open_buffer
from winkfs.stores.ringpage.ring import Ring

ID: Final = re.compile(r"0|[1-9][0-9]{0,18}")


class RingRecords(HandleRecords):
    """The records of a buffer that are unread, as of the opening. Only `Ring` changes them."""

    numbers = True
    store: Ring
    elsewhere = "records of a ring buffer come and go by winkfs ring push and pop"

    def __init__(self, path: str, mode: str = "r") -> None:
        """Raises as `Ring` does."""
        super().__init__(path)
        self.store = Ring(path)
        self._file = os.path.basename(path)
        self._kept: dict[int, Record] = {}  # records of the page that was read last
        self._opened = time.time_ns()
        self._lock = threading.Lock()

    # --- to read ---

    def rows(self, *parts: Part) -> Iterator[Row]:
        if parts and all(part.file != self._file for part in parts):
            return
        yield from map(self._row, self.store.records())

    def _row(self, record: Record) -> Row:
        offset = self.store.settings.offset(record.page) + record.offset
        return Row(str(record.number), len(record.body), self._file, offset)

    def data_files(self) -> list[Part]:
        return [Part(self._file, self.store.live_bytes())]

    def row(self, id: str) -> Row:
        return self._row(self._record(id))

    def bodies(self, rows: Iterable[Row]) -> Iterator[bytes]:
        for row in rows:
            yield self._record(row.id).body

    def _record(self, id: str) -> Record:
        """Return a record. Raises NoSuchFile; ValueError for other text; CorruptError."""
        if not ID.fullmatch(id):
            raise ValueError(f"{id!r} is no number of a record")
        number, record = int(id), None
        if number >= self.store.pages.tail:
            with self._lock:
                if number not in self._kept:
                    self._keep_page_of(number)
                record = self._kept.get(number)
        if record is None:
            raise NoSuchFile("no such record", f"{self.base}: {id}")
        return record

    def _keep_page_of(self, number: int) -> None:
        """Keep the records of the page in which this one begins, and of the next page if it ends
        there."""
        pages = self.store.pages
        at = bisect_right(pages.order, number, key=lambda index: pages.head(index).end)
        joined, self._kept = pages.joining(), {}
        for index in pages.order[at : at + 2]:
            found = joined.read(index, pages.read(index, pages.head(index)))
            self._kept |= {record.number: record for record in found}
            if number in self._kept:
                break

    def refresh(self) -> bool:
        with self._lock:
            self._opened = time.time_ns()
            changed = super().refresh()
            if changed:
                self._kept = {}
            return changed

    def mtime_ns(self, file: str) -> int:
        """Return when a file was written; for a device, when it was opened or refreshed here."""
        return self._opened if self.store.pages.is_device else super().mtime_ns(file)


def verify(path: str, progress: Progress | None = None) -> Report:
    """Read all pages, also those without unread records, and join their records -> a report."""
    report = Report()
    with open_buffer(path) as storage:
        try:
            pages = Pages(storage)
        except FormatError as error:
            report.add(str(error))
            return report
        report.notes += pages.notes
        for problem in pages.problems:
            report.add(problem)
        for found in pages.by_page(lambda error: report.add(str(error))):
            report.entries += 1
            unread = [record for record in found if record.number >= pages.tail]
            report.files += len(unread)
            report.bytes += sum(len(record.body) for record in unread)
            if progress is not None:
                progress(pages.settings.page_size)
    return report
