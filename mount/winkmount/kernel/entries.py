"""Entries of directories as the kernel reads them, and which of them come with attributes."""

from __future__ import annotations

import errno
import stat
import time
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkmount.handles import DOTS
from winkmount.kernel import protocol as p
from winkmount.source import UNREADABLE, Attr, Page, refuse

NANO: Final = 1_000_000_000
NO_ENTRY: Final = bytes(p.ENTRY_OUT.size)
S_IFMT: Final = 0o170000

HELD: Final = 1100  # bytes that the kernel keeps for a number: an inode, and a name
SHARE: Final = 8  # of the memory that is free: one part of so many is for them
LEAST: Final = 1 << 16  # numbers
FREELY: Final = 1 << 18  # numbers that are given whether files are looked at or not
LOOK: Final = 1.0  # seconds until the next look at what is free
PROBES: Final = 8  # one of so many replies leaves a file out
IN_VAIN: Final = 1 << 17  # numbers since a file was looked up: find looks after 100,000 names


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
    blocks, who = -(-size // 512), (uid & p.UINT32, gid & p.UINT32)
    return id, size, blocks, at, at, changed, nanos, nanos, rest, mode, links, *who, 0, 4096, 0


class Entries:
    """The entries of a page as the kernel reads them, one behind the other.

    plus    with attributes, for READDIRPLUS
    plain   without, for READDIR
    few     as `plus`, but the kernel gets numbers and attributes of directories only
    behind  bytes of `plus` and of `few` up to the end of each; `bare`: of `plain`
    directories     how many of them come before each
    """

    def __init__(self, page: Page, shown: Shown, seconds: int, nanos: int) -> None:
        """`seconds`, `nanos`: that the kernel may believe what it is told."""
        n = len(page.names)
        lengths = np.fromiter(map(len, page.names), np.int64, n)
        room = int(lengths.max() + 7) // 8 * 8
        form = np.dtype([("head", p.ENTRY), ("name", f"S{room}")])
        whole = np.zeros(n, form)
        rows = whole["head"]
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
        rows["length"] = lengths
        whole["name"] = page.names
        self._raw = whole.view(np.uint8).reshape(n, form.itemsize)
        self._sizes = p.ENTRY.itemsize + (lengths + 7) // 8 * 8
        self._dirs = rows["kind"] == stat.S_IFDIR >> 12
        self.directories: list[int] = [0, *np.cumsum(self._dirs).tolist()]
        self.behind: list[int] = [0, *np.cumsum(self._sizes).tolist()]
        self.bare: list[int] = [0, *np.cumsum(self._sizes - p.ENTRY_OUT.size).tolist()]

    @cached_property
    def plus(self) -> bytes:
        return self._joined(self._raw)

    @cached_property
    def few(self) -> bytes:
        raw = self._raw.copy()
        raw[~self._dirs, : p.ENTRY_OUT.size] = 0
        return self._joined(raw)

    @cached_property
    def plain(self) -> bytes:
        return self._joined(self._raw[:, p.ENTRY_OUT.size :])

    def _joined(self, raw: npt.NDArray[np.uint8]) -> bytes:
        """Rows without the room behind shorter names."""
        cut = self._raw.shape[1] - self._sizes
        if cut.any():
            raw = raw[np.arange(raw.shape[1]) < (raw.shape[1] - cut)[:, None]]
        return raw.tobytes()


class Giving:
    """Decides whether the kernel is given the numbers of files that it only lists.

    It keeps an inode of 1 KB for each until it forgets it, which it says, and making one takes it
    several times as long as a name alone: that pays where the file is looked at, which then costs
    no request. The first FREELY are given in any case. Further ones as long as files are looked at:
    they are where a file is looked up that was listed without a number; so of those with numbers a
    few are left out, too. Beyond a part of the memory that is free none are given.

    held    numbers that the kernel was given and has not forgotten
    """

    def __init__(self) -> None:
        self.held = 0
        self._most, self._due = 0, 0.0  # how many it may have; when that is looked at again
        self._wanted = False
        self._bare = 0  # the directory listed last in which a file had no number
        self._replies = self._in_vain = 0  # since a file without a number was looked up

    def begins(self) -> None:
        """A directory is listed from its start. Cost: sometimes a look at the free memory."""
        now = time.monotonic()
        if now >= self._due:
            self._most, self._due = _most(), now + LOOK

    def gives(self, node: int, count: int) -> tuple[bool, bool]:
        """Whether to give so many more numbers of files of a directory; and whether all of them,
        or not the last."""
        after = self.held + count
        if after <= min(FREELY, self._most):
            return True, True
        if not self._wanted or after > self._most:
            self._bare = node
            return False, False
        self._replies += 1
        self._in_vain += count
        if self._replies % PROBES:
            return True, True
        self._bare, self._wanted = node, self._in_vain < IN_VAIN
        return True, False

    def looked_up(self, parent: int) -> None:
        """The kernel asks for a file in a directory."""
        if parent == self._bare:
            self._wanted, self._in_vain = True, 0

    def forgotten(self, count: int) -> None:
        self.held = max(self.held - count, 0)


def _most() -> int:
    """How many numbers the kernel may have of files that are only listed."""
    with Path("/proc/meminfo").open("rb") as file:
        free = next((line for line in file if line.startswith(b"MemAvailable:")), b" 0")
    return max(int(free.split()[1]) * 1024 // SHARE // HELD, LEAST)


def sized(value: bytes, body: memoryview) -> bytes:
    """Of extended attributes: the value, or how long it is."""
    (room,) = p.WORD.unpack_from(body)
    if room == 0:
        return p.WORDS.pack(len(value), 0)
    if len(value) > room:
        raise refuse(errno.ERANGE)
    return value
