"""The file system that everybody writes first, to compare with: all in memory, in Python.

    python naivefs.py {fusepy,mfusepy} DIR

It is what the examples of such bindings look like: a dict of attributes and one of contents, a
method a call, the binding's default options.
"""

from __future__ import annotations

import errno
import importlib
import os
import stat
import sys
import time
from collections import defaultdict
from typing import Any, Final

LIBRARIES: Final = {"fusepy": ("fuse", "libfuse.so.2"), "mfusepy": ("mfusepy", "libfuse3.so.3")}
Attributes = dict[str, Any]


class NaiveFS:
    """Files by path. Implements the operations that creating, reading and listing need."""

    use_ns = False

    def __init__(self, error: type[OSError]) -> None:
        self.error = error
        self.attributes: dict[str, Attributes] = {"/": self._new(stat.S_IFDIR | 0o755, 2)}
        self.contents: defaultdict[str, bytes] = defaultdict(bytes)
        self.handles = 0

    def _new(self, mode: int, links: int) -> Attributes:
        now = time.time()
        return {
            "st_mode": mode, "st_nlink": links, "st_size": 0, "st_uid": os.getuid(),
            "st_gid": os.getgid(), "st_atime": now, "st_mtime": now, "st_ctime": now,
        }  # fmt: skip

    def _open(self) -> int:
        self.handles += 1
        return self.handles

    def init(self, path: str) -> None: ...

    def destroy(self, path: str) -> None: ...

    def getattr(self, path: str, fh: int | None = None) -> Attributes:
        if path not in self.attributes:
            raise self.error(errno.ENOENT)
        return self.attributes[path]

    def readdir(self, path: str, fh: int) -> list[str]:
        start = path.rstrip("/") + "/"
        below = (name[len(start) :] for name in self.attributes if name.startswith(start))
        return [".", "..", *(name for name in below if name and "/" not in name)]

    def mkdir(self, path: str, mode: int) -> int:
        self.attributes[path] = self._new(stat.S_IFDIR | mode, 2)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self.attributes[path] = self._new(stat.S_IFREG | mode, 1)
        return self._open()

    def open(self, path: str, flags: int) -> int:
        return self._open()

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self.contents[path][offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        old = self.contents[path]
        self.contents[path] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
        self.attributes[path]["st_size"] = len(self.contents[path])
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self.contents[path] = self.contents[path][:length].ljust(length, b"\0")
        self.attributes[path]["st_size"] = length
        return 0

    def unlink(self, path: str) -> int:
        del self.attributes[path]
        self.contents.pop(path, None)
        return 0


def operations(module: Any) -> Any:
    """The same operations, with what this binding does for those that are missing."""
    kind = type("NaiveOperations", (NaiveFS, module.Operations), {})
    return kind(module.FuseOSError)


def main() -> None:
    binding, point = sys.argv[1:]
    name, library = LIBRARIES[binding]
    os.environ["FUSE_LIBRARY_PATH"] = library
    module = importlib.import_module(name)
    module.FUSE(operations(module), point, foreground=True)


if __name__ == "__main__":
    main()
