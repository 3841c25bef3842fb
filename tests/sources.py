"""Sources of mounts, asked without a kernel: opened for a test, and all that they list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

import winkfs
from winkfs import Container, FileType
from winkfs.errors import Closed
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.dataset import DatasetSource
from winkmount.source import UNREADABLE, Attr, Changing, DirEntry, Source

AnySource = TypeVar("AnySource", bound=Source)
DIR: Final = FileType.DIR

_kept: list[Source] = []


def kept(source: AnySource) -> AnySource:
    """Have a source closed at the end of the test: see `sources_end`."""
    _kept.append(source)
    return source


@pytest.fixture(autouse=True)
def sources_end() -> Iterator[None]:
    """Close what `kept` was given, after each test of a module that has this fixture."""
    yield
    while _kept:
        with suppress(Closed):
            _kept.pop().close()


def opened(base: str | Path, mode: str = "a") -> ContainerSource:
    return kept(ContainerSource(Container(str(base), mode, mapped=False)))


def dataset(root: Path, **options: Any) -> DatasetSource:
    return kept(DatasetSource(str(root), **options))


def made(base: str, *names: str | tuple[str, FileType]) -> str:
    """Make a container of files that have their names as content."""
    with winkfs.create(base) as container:
        for item in names:
            name, ftype = (item, FileType.FILE) if isinstance(item, str) else item
            container.put(name, b"" if ftype == DIR else name.encode(), ftype=ftype)
    return base


def new_file(source: Changing, name: bytes, data: bytes, mtime_ns: int = 5) -> int:
    """Create a file in the top directory, open it and write -> its id."""
    id = source.create(source.root, name, 0o644, os.getuid(), os.getgid()).id
    source.open(id, write=True, truncate=False)
    source.write(id, [(0, data)], mtime_ns)
    return id


def at(source: Source, path: str) -> int:
    """Return the id of a path; an empty one is the top directory."""
    id = source.root
    for part in path.encode().split(b"/") if path else ():
        id = source.lookup(id, part).id
    return id


def entries(source: Source, directory: int, start: int = 0) -> list[DirEntry]:
    handle = source.opendir(directory)
    try:
        return list(source.readdir(handle, start))
    finally:
        source.releasedir(handle)


def listed(source: Source, directory: int, start: int = 0) -> list[bytes]:
    return [entry.name for entry in entries(source, directory, start)]


def assert_resumable(source: Source, directory: int) -> list[bytes]:
    """Check that a listing goes on from each of its offsets -> its names."""
    handle = source.opendir(directory)
    found = list(source.readdir(handle, 0))
    for i, entry in enumerate(found):
        assert list(source.readdir(handle, entry.offset)) == found[i + 1 :]
    source.releasedir(handle)
    return [entry.name for entry in found]


def tree_of(source: Source) -> dict[bytes, Attr]:
    """Path -> attributes of all that is listed; each comes once, and is found as it is listed."""
    found: dict[bytes, Attr] = {}
    waiting = [(b"", source.root)]
    while waiting:
        above, directory = waiting.pop()
        for name, attr, _ in entries(source, directory):
            assert above + name not in found
            found[above + name] = attr
            if attr.size != UNREADABLE:
                assert source.lookup(directory, name) == source.stat(attr.id) == attr, above + name
            if attr.is_dir:
                waiting.append((above + name + b"/", attr.id))
    return found


def walk(source: Source) -> set[bytes]:
    """Return the paths of all that is listed, with a / behind those of directories."""
    return {path + b"/" if attr.is_dir else path for path, attr in tree_of(source).items()}


def contents(source: Source) -> dict[bytes, bytes]:
    """Path -> content of all files and links."""
    files = (path for path, attr in tree_of(source).items() if not attr.is_dir)
    return {path: source.read(at(source, os.fsdecode(path)), 0, 1 << 30) for path in files}
