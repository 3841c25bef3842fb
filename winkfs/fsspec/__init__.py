"""fsspec: the files of a store as an fsspec filesystem, protocol `wink`; and for ratarmount.

fs = winkfs.fs("corpus")                            # for people
fsspec.open("wink://a.html::file:///srv/corpus")    # by the entry point, in any tool
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.fsspec.filesystem import WinkFileSystem as WinkFileSystem
    from winkfs.fsspec.opening import fs as fs

_HOMES = {"WinkFileSystem": "filesystem", "fs": "opening"}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
