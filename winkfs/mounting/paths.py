"""PathSource: what the Sources of containers and data sets have in common."""

from __future__ import annotations

import errno
import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from winkformats.disk import objects
from winkformats.disk.schemes import is_far
from winkfs.mounting.ids import OWN_IDS, Places
from winkfs.mounting.listing import Listing
from winkmount.source import Attr, DirEntry, Source, refuse

if TYPE_CHECKING:
    from winkfs.mounting.listing import View
    from winkfs.mounting.timedir import TimeDirectory


log = logging.getLogger("winkfs.mount")
MAX_LINK: Final = 1 << 20  # bytes of a target; the kernel takes 4,095


class PathSource(Source):
    """A Source that finds files and directories by their paths.

    places    which paths the ids have
    times     what is shown under `.time`, None: nothing
    left_out  names that cannot be shown, which are in the log
    ctimes    id -> when a change came that is not stored
    mtimes    path of a directory -> its mtime, if that is later than what is stored
    folder    that has all of it
    """

    def __init__(self, seed: int, folder: str) -> None:
        """`seed`: of the ids, see `Places`."""
        self.places, self.folder = Places(seed), folder
        self.root = self.places.root
        self.left_out: set[bytes] = set()
        self.ctimes: dict[int, int] = {}
        self.mtimes: dict[bytes, int] = {}
        self.times: TimeDirectory | None = None
        self.listings = set[Listing]()  # that are open

    @abstractmethod
    def attr(self, path: bytes) -> Attr | None:
        """Return the attributes of what is shown under a path, whose id is known from now on."""

    def wait_at_most(self, path: str, seconds: float) -> None:
        """Have each request end in time if the path is a URL; what takes long is logged."""
        if is_far(path):
            self.patience = seconds
            if "winkfs.remote.ranges" in sys.modules:  # else requests go another way
                sys.modules["winkfs.remote.ranges"].report = log.warning  # type: ignore[attr-defined]

    def limit(self, until: float) -> None:
        objects.limit.until = until

    def lookup(self, parent: int, name: bytes) -> Attr:
        attr = self.attr(self.places.child(parent, name))
        if attr is None:
            raise refuse(errno.ENOENT)
        return attr

    def opendir(self, directory: int) -> Listing:
        listing = Listing(cast("View", self), self.places[directory], directory)
        self.places.use(directory)
        self.listings.add(listing)
        return listing

    def readdir(self, listing: Listing, offset: int) -> Iterator[DirEntry]:
        return listing.entries(offset) if self.times is None else self.times.list(listing, offset)

    def releasedir(self, listing: Listing) -> None:
        self.listings.discard(listing)
        self.places.leave(listing.id)

    def timed(self, id: int) -> bytes | None:
        """Return the path of what is below `.time`; None for all else."""
        if self.times is None or id < OWN_IDS:
            return None
        path = self.places[id]
        return path if self.times.has(path) else None

    def later(self, attr: Attr, path: bytes) -> Attr:
        """Return the attributes that an order has, with times of changes that it does not have."""
        return attr

    def readlink(self, id: int) -> bytes:
        path = self.timed(id)
        if path is not None and self.times is not None:
            return self.times.target(path)
        return self.read(id, 0, MAX_LINK)

    def statfs(self) -> Mapping[str, int]:
        disk = os.statvfs(self.folder)
        fields = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail")
        return {f"f_{field}": getattr(disk, f"f_{field}") for field in fields}
