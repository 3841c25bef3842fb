"""Attributes and entries of directories as the kernel reads them."""

from __future__ import annotations

import errno
import stat
from typing import Final, NamedTuple

import numpy as np

from winkmount.handles import DOTS
from winkmount.kernel import protocol as p
from winkmount.source import UNREADABLE, Attr, Page, refuse

NANO: Final = 1_000_000_000
NO_ENTRY: Final = bytes(p.ENTRY_OUT.size)
S_IFMT: Final = 0o170000
UINT32: Final = (1 << 32) - 1


class Shown(NamedTuple):
    """What is shown in the place of owner and permissions; None: they are."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None

    @classmethod
    def take(cls, options: dict[str, str | bool]) -> Shown:
        """Take uid, gid and umask, that are libfuse's, from the options."""
        uid, gid, umask = (options.pop(name, None) for name in ("uid", "gid", "umask"))
        return cls(
            None if uid is None else int(uid),
            None if gid is None else int(gid),
            None if umask is None else 0o777 & ~int(str(umask), 8),
        )

    def of(self, attr: Attr) -> Attr:
        if self == _AS_IT_IS:
            return attr
        uid = attr.uid if self.uid is None else self.uid
        gid = attr.gid if self.gid is None else self.gid
        mode = attr.mode if self.mode is None else stat.S_IFMT(attr.mode) | self.mode
        return attr._replace(uid=uid, gid=gid, mode=mode)


_AS_IT_IS: Final = Shown()


def attr_fields(attr: Attr, links: int = 1) -> tuple[int, ...]:
    """A fuse_attr."""
    id, mode, size, mtime_ns, uid, gid, ctime_ns = attr
    at, nanos = divmod(mtime_ns, NANO)
    changed, rest = divmod(ctime_ns or mtime_ns, NANO)
    blocks, who = -(-size // 512), (uid & UINT32, gid & UINT32)
    return id, size, blocks, at, at, changed, nanos, nanos, rest, mode, links, *who, 0, 4096, 0


class Entries:
    """The entries of a page as the kernel reads them.

    plus    with attributes, for READDIRPLUS
    plain   without, for p.READDIR
    few     as `plus`, but the kernel gets numbers and attributes of directories only
    behind  bytes of `plus` up to the end of each; `bare`: of `plain`
    kinds   of file; `directories`: how many of them come before each
    """

    def __init__(self, page: Page, shown: Shown, seconds: int, nanos: int) -> None:
        """`seconds`, `nanos`: that the kernel may believe what it is told."""
        rows, n = np.zeros(len(page.names), p.ENTRY), len(page.names)
        ids, mode, size, mtime_ns, uid, gid, ctime_ns = page.attrs.T
        known = size != UNREADABLE
        rows["node"] = np.where(known, page.nodes, 0)
        rows["valid"], rows["valid_nanos"] = seconds, nanos
        rows["links"], rows["blksize"] = 1, 4096
        rows["id"] = rows["ino"] = ids
        rows["size"], rows["blocks"], rows["kind"] = size, -(-size // 512), mode >> 12
        rows["mode"] = mode if shown.mode is None else mode & S_IFMT | shown.mode
        rows["uid"] = uid if shown.uid is None else shown.uid
        rows["gid"] = gid if shown.gid is None else shown.gid
        changed = np.where(ctime_ns == 0, mtime_ns, ctime_ns)
        times = np.stack([mtime_ns, mtime_ns, changed], 1)
        rows["seconds"], rows["nanos"] = np.divmod(times, NANO)
        rows["offset"] = np.array(page.offsets, np.int64) + DOTS
        lengths = np.fromiter(map(len, page.names), np.int64, n)
        rows["length"] = lengths
        room = int(lengths.max() + 7) // 8 * 8
        text = np.array(page.names, f"S{room}").view(np.uint8).reshape(n, room)
        head = rows.view(np.uint8).reshape(n, p.ENTRY.itemsize)
        raw, width = np.concatenate([head, text], 1).tobytes(), p.ENTRY.itemsize + room
        sizes = p.ENTRY.itemsize + (lengths + 7) // 8 * 8
        ends = (np.arange(n) * width + sizes).tolist()
        self.plus = [raw[at:end] for at, end in zip(range(0, n * width, width), ends, strict=True)]
        self.plain = [entry[p.ENTRY_OUT.size :] for entry in self.plus]
        self.kinds: list[int] = rows["kind"].tolist()
        self.directories = [0, *np.cumsum(rows["kind"] == stat.S_IFDIR >> 12).tolist()]
        self._few: list[bytes] | None = None
        self.behind = [0, *np.cumsum(sizes).tolist()]
        self.bare = [0, *np.cumsum(sizes - p.ENTRY_OUT.size).tolist()]

    @property
    def few(self) -> list[bytes]:
        if self._few is None:
            self._few = [
                entry if kind == stat.S_IFDIR >> 12 else NO_ENTRY + entry[p.ENTRY_OUT.size :]
                for entry, kind in zip(self.plus, self.kinds, strict=True)
            ]
        return self._few


def sized(value: bytes, body: memoryview) -> bytes:
    """Of extended attributes: the value, or how long it is."""
    (room,) = p.WORD.unpack_from(body)
    if room == 0:
        return p.WORDS.pack(len(value), 0)
    if len(value) > room:
        raise refuse(errno.ERANGE)
    return value
