"""Links to single files of containers on object storage.

A store signs links to whole objects, and none has the range of a file in it. So a link to a file is
that of the data file, and a range: a header that has to be sent with it. For a browser the file is
copied to an object of its own.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Final

from winkformats.disk.objects import ObjectStorage, Transport
from winkfs.container.container import Container
from winkfs.container.ondisk.compressed import COMPRESS, HEAD, zstd
from winkfs.container.ondisk.inode import FRAME
from winkfs.dataset.dataset import Dataset
from winkfs.entry import FileType
from winkfs.errors import IsDirectory, NotAllowed, Refusal
from winkfs.names import DATA, Name, inode_key, to_bytes, to_str
from winkfs.registry import open as open_store
from winkfs.remote.control import COPIES
from winkfs.remote.pushcontainer import place_of

LONGEST: Final = 7 * 86_400  # seconds for which stores sign
MOST: Final = 1000  # ranges of a link
USUAL: Final = 3600  # seconds
Range = tuple[int, int]
"""First and last byte."""


@dataclass
class Link:
    """A link to a file.

    url         of the object; it ends after `seconds`, 0: never
    ranges      of the bytes that are the file: first and last, as in a header Range
    etag        of the object, for If-Match: of another one these would be other bytes
    size        bytes of the file
    sha256      of its content, in hex
    compressed  "zstd": the ranges are frames; "": they are the content
    dictionary  range of the dictionary that the frames need; None: none
    copied      whether the object has this file alone
    """

    url: str
    name: str
    seconds: int
    ranges: list[Range]
    etag: str
    size: int
    sha256: str
    compressed: str = ""
    dictionary: Range | None = None
    copied: bool = False

    def command(self, out: str) -> str:
        """Return lines for a shell that write the file to `out`, and check it."""
        match = f" -H {shlex.quote(f'If-Match: {self.etag}')}" if self.etag else ""
        get, name = f"curl -fsS{match} -r $r {shlex.quote(self.url)}", shlex.quote(out)

        def all_of(ranges: list[Range]) -> str:
            words = " ".join(f"{first}-{last}" for first, last in ranges)
            return f"for r in {words}; do {get}; done"

        lines, unpack = list[str](), " | zstd -dcq" if self.compressed else ""
        if self.dictionary is not None:
            words = shlex.quote(f"{out}.dictionary")
            lines.append(f"{all_of([self.dictionary])} > {words}")
            unpack += f" -D {words}"
        lines.append(f"{all_of(self.ranges) if self.ranges else 'true'}{unpack} > {name}")
        lines.append(f"echo {shlex.quote(f'{self.sha256}  {out}')} | sha256sum -c")
        return "\n".join(lines)


def sign(url: str, name: Name, *, seconds: int = USUAL, copy: bool = False) -> Link:
    """Return a link from which a file of a container or data set on object storage can be read for
    some time, without credentials.

    The whole object can be read from its URL; `ranges` has where the file is.

    seconds  1 to 604,800, seven days; credentials that end earlier end the link
    copy     put the file beside it, as an object of its own, and link that: for browsers
    raises   NoSuchFile; NotAllowed (holes, or very many pieces); IsDirectory; Refusal: the
             credentials cannot sign; ValueError; OSError
    cost     reads the file
    """
    if not 1 <= seconds <= LONGEST:
        raise ValueError(f"a link is valid for 1 to {LONGEST} seconds, not {seconds}")
    directory, base = place_of(url)
    transport, shown = directory.transport, to_str(name)
    with open_store(f"{directory.path}/{base}") as there:
        if not isinstance(there, Container | Dataset):
            raise Refusal("links are to files of containers and data sets", url)
        content = there.read(name)
        home = there if isinstance(there, Container) else there.home(name)
        made = Link("", shown, 0, [], "", len(content), hashlib.sha256(content).hexdigest())
        if copy:
            key = directory.key(f"{base}{COPIES}{made.sha256[:32]}/{shown.rpartition('/')[2]}")
            made.etag, made.copied = _put(transport, key, content), True
            made.ranges = [(0, len(content) - 1)] if content else []
        else:
            folder, part = place_of(home.base)
            key, storage = folder.key(part + DATA), home.store.kv.storage
            assert isinstance(storage, ObjectStorage)
            made.etag = storage.known.etag
            _find(home, to_bytes(name), made)
    made.url = transport.sign(key, seconds)
    made.seconds = seconds if "?" in made.url else 0
    return made


def _put(transport: Transport, key: str, content: bytes) -> str:
    """Put a copy, unless it is there -> its ETag. Its key has the hash of its content."""
    known = transport.head(key)
    if known is None or known.size != len(content):
        size = len(content)
        known, _ = transport.put_from(key, size, lambda start, length: content[start:][:length])
    return known.etag


def _find(there: Container, name: bytes, link: Link) -> None:
    """Find the ranges of a file."""
    store, frames = there.store, 0
    _, inode, _ = store.inode_at(store.index.lookup(inode_key(name)))
    if inode.ftype == FileType.DIR:
        raise IsDirectory("is a directory", link.name)
    if len(inode.extents) > MOST:
        what = f"its content is in {len(inode.extents)} pieces: winkfs cat reads it"
        raise NotAllowed(what, link.name)
    for pointer, skip, size in inode.extents:
        if not pointer:
            raise NotAllowed("its content has holes: winkfs cat reads it", link.name)
        first, value = _value(there, pointer)
        if not skip & FRAME:
            link.ranges.append((first + skip, first + skip + size - 1))
            continue
        frames += 1
        head = zstd(store.kv.storage.name).get_frame_parameters(value)
        if skip != FRAME or size != head.content_size:
            raise NotAllowed("a part of a frame is its content: winkfs cat reads it", link.name)
        if head.dict_id and link.dictionary is None:
            start, words = _value(there, store.place(COMPRESS))
            link.dictionary = start + HEAD.size, start + len(words) - 1
        link.ranges.append((first, first + len(value) - 1))
    if frames not in (0, len(link.ranges)):
        raise NotAllowed("a part of its content is compressed: winkfs cat reads it", link.name)
    link.compressed = "zstd" if frames else ""


def _value(there: Container, pos: int) -> tuple[int, bytes]:
    """Return where the value of an entry begins, and the value."""
    kv = there.store.kv
    entry = kv.get(pos)
    return pos + kv.layout.locate(kv.storage.read(pos, entry.size), 0).value, entry.value
