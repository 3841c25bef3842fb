"""Views: the items and values of a store, as those of a dict. They read in bulk."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, ValuesView
from typing import Any, Final, Protocol

from winkformats.disk.schemes import is_far
from winkfs.errors import NoSuchFile
from winkfs.names import Name

FIRST_FILES: Final = 1024  # that are read together at first; then twice as many each time
AT_ONCE_FILES: Final = 16 << 10  # that are read together, at most
AT_ONCE_BYTES: Final = 8 << 20  # of their contents, unless one file has more
FAR_BYTES: Final = 32 << 20  # the same of a store that is far, where each read waits for a request


class Bulk(Protocol):
    """A store that reads many files at once."""

    @property
    def base(self) -> str: ...

    def get_many(self, names: Iterable[Name]) -> Iterator[bytes]: ...

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file, in the order of iteration, as of the call."""


def contents(store: Bulk) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each file as of the call, and its content as of when it is read; a file
    that was deleted before that is left out.

    raises  CorruptError
    memory  AT_ONCE_BYTES of contents, FAR_BYTES of a store that is far, or the largest file
    """
    names: list[str] = []
    size_at_once = FAR_BYTES if is_far(store.base) else AT_ONCE_BYTES
    room, most = size_at_once, min(FIRST_FILES, AT_ONCE_FILES)
    for name, size in store.sizes():
        if names and (size > room or len(names) == most):
            yield from _read(store, names)
            names, room, most = [], size_at_once, min(2 * most, AT_ONCE_FILES)
        names.append(name)
        room -= size
    yield from _read(store, names)


def _read(store: Bulk, names: list[str]) -> Iterator[tuple[str, bytes]]:
    found = store.get_many(names)
    for at, name in enumerate(names):
        try:
            content = next(found)
        except NoSuchFile:
            found = store.get_many(names[at + 1 :])
            continue
        yield name, content


class Items(ItemsView[str, bytes]):
    """(name, content) of each file, in the order of the names. Reads in bulk."""

    _mapping: Any

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return contents(self._mapping)


class Values(ValuesView[bytes]):
    """The content of each file, in the order of the names. Reads in bulk."""

    _mapping: Any

    def __iter__(self) -> Iterator[bytes]:
        return (content for _, content in contents(self._mapping))

    def __contains__(self, value: object) -> bool:
        return any(content == value for content in self)
