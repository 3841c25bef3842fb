"""Contents: files of a store, whole or in parts, many in few reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from winkfs.errors import WinkError
from winkfs.reader import Reader

if TYPE_CHECKING:
    from winkfs.fsspec.paths import Paths

FILES_AT_ONCE: Final = 1024  # that are read in bulk
SMALL_BYTES: Final = 8 << 20  # of a file, up to which several ranges of it are read as one

Range = tuple[int | None, int | None]
"""[start, end) of a file; negative numbers count from its end, None: there is no bound."""


def offsets(wanted: Range, size: int) -> tuple[int, int]:
    """Return a range of a file of `size` bytes as offsets."""
    low, high, _ = slice(*wanted).indices(size)
    return low, max(low, high)


class Contents:
    """The contents of the files of an open store."""

    def __init__(self, reader: Reader, paths: Paths) -> None:
        self._reader, self._paths = reader, paths

    def one(self, path: str, wanted: Range = (None, None)) -> bytes:
        """Return a file, or a range of it.

        raises  NoSuchFile; IsDirectory; CorruptError
        """
        real, stat = self._paths.followed(path)
        name = self._paths.listing.name(real)
        if wanted == (None, None):
            return self._reader.read(name)
        low, high = offsets(wanted, stat.size)
        return self._reader.read(name, low, high - low) if high > low else b""

    def caught(self, path: str, wanted: Range = (None, None)) -> bytes | Exception:
        """Return as `one`, an exception in place of what cannot be read."""
        try:
            return self.one(path, wanted)
        except (OSError, WinkError) as error:
            return error

    def many(self, paths: Iterable[str]) -> Iterator[bytes | Exception]:
        """Yield whole files, in order, an exception in place of each that cannot be read.

        cost  reads FILES_AT_ONCE files in bulk; if one of them fails, one by one
        """
        left = iter(paths)
        while some := list(itertools.islice(left, FILES_AT_ONCE)):
            found: dict[int, bytes | Exception] = {}
            names: dict[int, bytes] = {}
            for i, path in enumerate(some):
                try:
                    names[i] = self._paths.listing.name(self._paths.followed(path)[0])
                except (OSError, WinkError) as error:
                    found[i] = error
            try:
                values: list[bytes | Exception] = list(self._reader.get_many(names.values()))
            except (OSError, WinkError):
                values = [self.caught(some[i]) for i in names]
            found.update(zip(names, values, strict=True))
            yield from (found[i] for i in range(len(some)))

    def ranges(self, path: str, wanted: list[Range], max_gap: int) -> list[bytes]:
        """Return ranges of a file. Those with at most `max_gap` bytes between them are read as one,
        of a small file all.

        raises  as `one`
        """
        real, stat = self._paths.followed(path)
        name = self._paths.listing.name(real)
        spans = [offsets(each, stat.size) for each in wanted]
        if len(spans) > 1 and stat.size <= SMALL_BYTES:
            max_gap = stat.size
        reads: list[tuple[int, int]] = []
        for low, high in sorted(span for span in spans if span[1] > span[0]):
            if reads and low <= reads[-1][1] + max_gap:
                reads[-1] = reads[-1][0], max(reads[-1][1], high)
            else:
                reads.append((low, high))
        parts = [(low, self._reader.read(name, low, high - low)) for low, high in reads]
        found = []
        for low, high in spans:
            at, data = max((part for part in parts if part[0] <= low), default=(low, b""))
            found.append(data[low - at : high - at])
        return found

    def parts(self, paths: list[str], wanted: list[Range], max_gap: int) -> list[bytes | Exception]:
        """Return a range of each path, in order, an exception in place of what cannot be read.

        cost  whole files in bulk; the ranges of a file as `ranges`
        """
        by_path: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            by_path.setdefault(path, []).append(i)
        whole = [path for path, rows in by_path.items()
                 if any(wanted[i] == (None, None) for i in rows)]  # fmt: skip
        known = dict(zip(whole, self.many(whole), strict=True))
        found: list[bytes | Exception] = [b""] * len(paths)
        for path, rows in by_path.items():
            spans = [wanted[i] for i in rows]
            for i, value in zip(rows, self._spans(path, spans, known, max_gap), strict=True):
                found[i] = value
        return found

    def _spans(
        self, path: str, spans: list[Range], known: dict[str, bytes | Exception], max_gap: int
    ) -> list[bytes | Exception]:
        """Return ranges of a file, from its content if that is known."""
        content = known.get(path)
        if isinstance(content, bytes):
            return [content[slice(*offsets(each, len(content)))] for each in spans]
        if content is not None:
            return [content] * len(spans)
        try:
            return list(self.ranges(path, spans, max_gap))
        except (OSError, WinkError) as error:
            return [error] * len(spans)
