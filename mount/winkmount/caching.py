"""What the kernel may keep of what it was told."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final, Self

from winkmount.source import Attr, Source

FOREVER: Final = 3600.0  # seconds; only this process changes what it shows, through the kernel
_KERNEL: Final = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


@dataclass(frozen=True, slots=True)
class Caching:
    """The rules of one mount.

    names       seconds that the kernel may believe a name and the attributes of a file
    missing     seconds that it may believe that a name is missing
    pages       whether it keeps contents; else every read and write comes here
    fixed       names and contents never change: `open` need not come here
    around      who only writes may write past the kernel's cache, where the kernel does that right
    """

    names: float = FOREVER
    missing: float = FOREVER
    pages: bool = True
    fixed: bool = False
    around: bool = False

    @classmethod
    def of(cls, source: Source, *, pages: bool, follow: bool, sync: bool = False) -> Self:
        """The rules for a Source.

        pages   as above
        follow  another process changes what is shown
        sync    the kernel asks for an fsync after each write through its cache
        """
        if follow:
            return cls(1.0, 1.0, pages)
        around = not sync and _KERNEL >= (6, 6)  # since then it keeps the pages of others true
        return cls(pages=pages, fixed=pages and not source.writable, around=around)

    def past_cache(self, attr: Attr, flags: int) -> bool:
        """Whether a file opened with these flags is read and written past the kernel's cache.

        Writes that do spare a question before each (for security.capability): small appends are
        twice as fast, files of 4 KiB 10 %. The kernel then takes no setuid away, and does no
        O_SYNC.
        """
        if not self.pages:
            return True
        alone = flags & (os.O_ACCMODE | os.O_DSYNC) == os.O_WRONLY
        return self.around and alone and not attr.mode & (stat.S_ISUID | stat.S_ISGID)
