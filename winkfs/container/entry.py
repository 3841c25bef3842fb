"""Entries of a container that have attributes or holes, and files with holes as file objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from winkfs.container.ondisk.inode import Attrs
from winkfs.container.ondisk.typed import to_values
from winkfs.entry import Entry, FileReader, OpenEntry, Readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import WriteableBuffer

    from winkfs.container.ondisk.inode import Extent
    from winkfs.container.ondisk.typed import Declared


@dataclass(frozen=True, slots=True, eq=False)
class SpecialEntry(Entry):
    """One that has attributes, which are decoded when they are asked for, holes, or more than one
    extent.

    word     the bytes of its attribute entry, which are good; empty: it has none
    _pieces  None: its content is plain
    """

    word: bytes = field(repr=False, compare=False)
    _shown: Declared = field(repr=False, compare=False)
    _pieces: Callable[[], Iterator[tuple[int, bytes]]] | None = field(repr=False, compare=False)

    @property
    def xattrs(self) -> Mapping[bytes, bytes]:
        if not self.word:
            return {}
        return self._shown.shown(Attrs.decode(self.word, file=self.name, offset=0).xattrs)

    @property
    def columns(self) -> dict[str, Any]:
        return to_values(self.xattrs)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        return self._pieces() if self._pieces else Entry.pieces(self)


class _OpenAttributed(Entry):
    """The same of a SpecialEntry whose content is plain."""

    __slots__ = ("_pieces", "_shown", "word")
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(self: Any, *fields: Any) -> None:
        OpenEntry.__init__(self, *fields[:-2])
        self.word, self._shown, self._pieces = *fields[-2:], None


def attributed(*fields: Any) -> SpecialEntry:
    """A SpecialEntry of its fields, in order, whose content is plain."""
    made: Any = _OpenAttributed(*fields)
    made.__class__ = SpecialEntry
    return made  # type: ignore[no-any-return]


class WithExtents(Readable, Protocol):
    """One that tells where the holes of a file are."""

    def extents(self, name: str) -> Sequence[Extent]: ...


class SparseReader(FileReader):
    """The same, read once from start to end: by `Container.put_file`, which keeps its holes."""

    def __init__(self, container: WithExtents, name: str, size: int) -> None:
        super().__init__(container, name, size)
        runs = groupby(container.extents(name), key=lambda extent: extent.pointer == 0)
        self._runs = [(hole, sum(e.size for e in extents)) for hole, extents in runs][::-1]
        self._stop = 0  # where the bytes end before the next hole; 0: `skip_hole` was not called

    def skip_hole(self) -> int:
        """-> bytes of the hole at this place, which is skipped; 0: there is none."""
        if self._at < self._stop or not self._runs:
            return 0
        gap = self._runs.pop()[1] if self._runs[-1][0] else 0
        self._at += gap
        self._stop = self._at + (self._runs.pop()[1] if self._runs else 0)
        return gap

    def readinto(self, buffer: WriteableBuffer) -> int:
        with memoryview(buffer).cast("B") as view:
            return super().readinto(view[: self._stop - self._at] if self._stop else view)
