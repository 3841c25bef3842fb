"""Attributes and entries of directories as the kernel reads them."""

from __future__ import annotations

import stat
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from winkmount.kernel import protocol as p
from winkmount.source import UNREADABLE, Attr, Page

DOTS: Final = 2  # what our offsets are ahead of those of the Source
NANO: Final = 1_000_000_000
NO_ENTRY: Final = bytes(p.ENTRY_OUT.size)
S_IFMT: Final = 0o170000


class Shown(NamedTuple):
    """Owner and permissions that are shown for all files; None: their own are."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None

    @classmethod
    def take(cls, options: dict[str, str | bool]) -> Shown:
        """Take uid, gid and umask from the options."""
        uid, gid, umask = (options.pop(name, None) for name in ("uid", "gid", "umask"))
        return cls(
            None if uid is None else int(uid),
            None if gid is None else int(gid),
            None if umask is None else 0o777 & ~int(str(umask), 8),
        )

    def fields(self, attr: Attr, links: int = 1) -> tuple[int, ...]:
        """Return a fuse_attr."""
        id, mode, size, mtime_ns, uid, gid, ctime_ns = attr
        uid, gid = uid if self[0] is None else self[0], gid if self[1] is None else self[1]
        mode = mode if self[2] is None else mode & S_IFMT | self[2]
        at, nanos = divmod(mtime_ns, NANO)
        changed, rest = divmod(ctime_ns or mtime_ns, NANO)
        owner = uid & p.UINT32, gid & p.UINT32
        return (id, size, -(-size // 512), at, at, changed, nanos, nanos, rest, mode, links, *owner,
                0, 4096, 0)  # fmt: skip


class Entries:
    """The entries of a page as the kernel reads them, one behind the other.

    plus    with attributes, for READDIRPLUS
    plain   without, for READDIR
    few     as `plus`, but the kernel gets numbers and attributes of directories only
    behind  bytes of `plus` and of `few` up to the end of each; `bare`: of `plain`
    directories     how many of them come before each
    """

    def __init__(self, page: Page, shown: Shown, seconds: int, nanos: int) -> None:
        """`seconds`, `nanos`: how long the kernel may believe them."""
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
        """Join the rows, without the room behind shorter names."""
        cut = self._raw.shape[1] - self._sizes
        if cut.any():
            raw = raw[np.arange(raw.shape[1]) < (raw.shape[1] - cut)[:, None]]
        return raw.tobytes()
