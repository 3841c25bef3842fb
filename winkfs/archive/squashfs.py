"""SquashFS images (version 4) as entries, by the package dissect.squashfs.

It reads all compressions, but no extended attributes: these are counted.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from winkformats.errors import FormatError
from winkfs.archive.items import PERMISSIONS, SPARSE_BYTES, Content, Meta, Unreadable
from winkfs.archive.members import Entry, missing
from winkfs.entry import FileType
from winkfs.errors import need
from winkfs.names import to_bytes
from winkfs.units import NANO

CACHED_BLOCKS: Final = 64  # of at most 1 MiB
NO_ATTRIBUTE: Final = 0xFFFFFFFF
NO_FRAGMENT: Final = 0xFFFFFFFF
UNHELD: Final = "a device, fifo or socket: left out"
LACKS: Final = "its extended attributes are not read: sqfs2tar FILE | winkfs pack --xattrs - BASE"
TOOL: Final = "unsquashfs -d DIR FILE reads others"


@contextlib.contextmanager
def opened(path: str) -> Iterator[Iterable[Entry]]:
    """Open a SquashFS image: see `members.Opener`."""
    library = need("dissect.squashfs", f"{path}: a SquashFS image", "archives")
    with Path(path).open("rb") as file:
        try:
            image = library.SquashFS(file)
        except Exception as error:  # damage can raise anything
            raise FormatError(f"not a SquashFS image that can be read ({error}): {TOOL}") from None
        # The library keeps 1,024 blocks, which may be a gigabyte.
        image._read_block = lru_cache(CACHED_BLOCKS)(image._read_block.__wrapped__)
        yield _entries(image)


def _entries(image: Any) -> Iterator[Entry]:
    """Yield all files, directories first; of a directory that is in itself, the first time."""
    waiting: list[tuple[bytes, Any]] = [(b"", image.root)]
    seen = {(image.root.block, image.root.offset)}
    while waiting:
        above, folder = waiting.pop()
        nodes = folder.iterdir()
        while True:
            try:
                node = next(nodes, None)
                if node is None:
                    break
                part = to_bytes(node.name)
                name = above + part
                entry = _entry(name, node)
            except Exception as error:  # damage can raise anything
                yield missing(above or b"/", f"damaged, what is left in it is not read: {error}")
                break
            if not part or b"/" in part or b"\0" in part:
                yield missing(name, "damaged: no file can have this name")
                continue
            yield entry
            if entry.ftype == FileType.DIR and entry.fault is None:
                place = node.block, node.offset
                if place in seen:
                    yield missing(name, "damaged: a directory that was read already")
                    continue
                seen.add(place)
                waiting.append((name + b"/", node))


def _entry(name: bytes, node: Any) -> Entry:
    """Return a node as an entry, one with a fault if its metadata cannot be read."""
    try:
        header = node.header
        mode = node.mode
        kind = stat.S_IFMT(mode)
        meta = Meta(header.mtime * NANO, mode & PERMISSIONS, node.uid, node.gid)
        link = to_bytes(node.link) if kind == stat.S_IFLNK else b""
        size = header.file_size if kind == stat.S_IFREG else len(link)
        lacks = LACKS if getattr(header, "xattr", NO_ATTRIBUTE) != NO_ATTRIBUTE else None
    except Exception as error:  # damage can raise anything
        return missing(name, f"damaged: {error}")
    ftype, unheld = FileType.FILE, None
    if kind == stat.S_IFDIR:
        ftype = FileType.DIR
    elif kind == stat.S_IFLNK:
        ftype = FileType.LINK
    elif kind != stat.S_IFREG:
        unheld = UNHELD
    content = partial(_link, link) if link else partial(_content, node, size)
    return Entry(name, ftype, size, meta, content, None, unheld, lacks)


def _link(target: bytes) -> tuple[Content, bool]:
    return Content(lambda count: target[:count], len(target), None), False


def _content(node: Any, size: int) -> tuple[Content, bool]:
    try:
        holes = _data(node, size) if size >= SPARSE_BYTES else None
        return _Stream(node.open(), size, holes), holes is not None
    except Exception as error:  # damage can raise anything
        raise Unreadable(f"damaged: {error}") from None


def _data(node: Any, size: int) -> list[tuple[int, int]] | None:
    """Return (offset, bytes) of each range of data of a file; None: it has no holes."""
    blocks, step = node.block_list, node.fs.block_size
    if all(code != 0 for code, _ in blocks):
        return None
    found: list[tuple[int, int]] = []
    for i, (code, _) in enumerate(blocks):
        start = i * step
        if code == 0:
            continue
        length = min(step, size - start)
        if found and sum(found[-1]) == start:
            found[-1] = found[-1][0], found[-1][1] + length
        else:
            found.append((start, length))
    return found


class _Stream(Content):
    """The content of a file of an image, with its holes."""

    def __init__(self, file: Any, size: int, holes: list[tuple[int, int]] | None) -> None:
        super().__init__(self._next, size, holes)
        self._file = file

    def _next(self, count: int) -> bytes:
        try:
            self._file.seek(self._at)
            data: bytes = self._file.read(count)
        except Exception as error:  # damage can raise anything
            raise Unreadable(f"damaged: {error}") from None
        if len(data) < count:
            raise Unreadable("damaged: its data end early")
        return data
