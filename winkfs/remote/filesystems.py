"""Any filesystem of fsspec as a transport, to read: memory://, sftp://, github://, hf:// ...

An object is identified by what its filesystem reports of it: an ETag or hash, or else its size and
time of change. That is looked at again CHECKED seconds after the last time; what is read of another
object meanwhile has other checksums, and is an error.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import re
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from winkformats.disk.objects import ObjectInfo, Transport
from winkfs.errors import NoSuchFile, NotAllowed, Refusal, StalePlan, need

CHECKED: Final = 5.0  # seconds after which an object is looked at again
HASHES: Final = ("ETag", "etag", "e_tag", "blob_id", "sha", "md5Hash", "content_hash", "md5",
                 "checksum", "generation", "version_id")  # fmt: skip
TIMES: Final = ("mtime", "LastModified", "last_modified", "updated", "modified", "modify",
                "modificationTime", "last_write_time", "created")  # fmt: skip
GONE: Final = "was replaced since it was opened: open it again"


class FilesystemTransport(Transport):
    """Requests to a filesystem of fsspec. Each process has its own."""

    suffixes = False

    def __init__(self, url: str) -> None:
        """Connect. Raises Refusal: a library is not installed, or no connection."""
        super().__init__(url)
        self._fs: Any = None
        self._forked = False
        scheme = url.partition(":")[0]
        core = need("fsspec.core", f"to read {scheme}://", "fsspec")
        with self._errors(""):
            self._fs, _ = core.url_to_fs(f"{url}/")
        atexit.register(self.close)  # some fail to close their connection when all modules are gone
        # Only those that are asynchronous inside may be asked by several threads.
        shared = getattr(self._fs, "async_impl", False)
        self._turn: Any = contextlib.nullcontext() if shared else threading.Lock()
        self._seen: dict[str, float] = {}  # when an object was looked at last

    def after_fork(self) -> None:
        self._fs, self._turn, self._forked = None, threading.Lock(), True

    def close(self) -> None:
        """Close the connection, which nothing else may use."""
        if self._fs is not None:
            type(self._fs).clear_instance_cache()
        self._fs = None

    def _path(self, key: str) -> str:
        found: str = self._fs._strip_protocol(f"{self.url}/{key}")
        return found

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Raise errors of any library as OSError, in one line."""
        name = f"{self.url}/{key}".rstrip("/")
        if self._forked:
            raise Refusal("its connection does not survive fork: open it anew in the child", name)
        try:
            yield
        except Refusal:
            raise
        except (FileNotFoundError, IsADirectoryError):
            raise NoSuchFile("no such object", name) from None
        except PermissionError as error:
            raise NotAllowed(_line(error), name, number=errno.EACCES) from None
        except Exception as error:
            raise Refusal(_line(error), name) from None

    def get(
        self, key: str, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        known = like or self._info(key)
        start = max(known.size - length, 0) if start < 0 else start
        stop = min(start + length, known.size)
        data = b""
        if start < stop:
            with self._errors(key), self._turn:
                data = bytes(self._fs.cat_file(self._path(key), start=start, end=stop))
            if len(data) > stop - start:
                raise Refusal("the filesystem ignores ranges, and sends all of it",
                              f"{self.url}/{key}", number=errno.EOPNOTSUPP)  # fmt: skip
        late = time.monotonic() - self._seen.get(key, 0.0) > CHECKED
        if like is not None and (late or len(data) < stop - start) and self._info(key) != like:
            raise StalePlan(GONE, f"{self.url}/{key}")
        return start, data, known

    def _info(self, key: str) -> ObjectInfo:
        with self._errors(key), self._turn:
            found = self._fs.info(self._path(key))
        if found.get("type") == "directory":
            raise NoSuchFile("no such object", f"{self.url}/{key}")
        if not isinstance(found.get("size"), int):
            raise Refusal("the filesystem does not know its size", f"{self.url}/{key}")
        if len(self._seen) > 1024:
            self._seen.clear()
        self._seen[key] = time.monotonic()
        return described(found)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        try:
            with self._errors(prefix), self._turn:
                found = self._fs.ls(self._path(prefix.rstrip("/")), detail=True)
        except FileNotFoundError:
            return
        for info in found:
            key = prefix + str(info["name"]).rstrip("/").rpartition("/")[2]
            if info.get("type") == "directory":
                yield f"{key}/", None
            else:
                yield key, described(info)


def described(info: Mapping[str, Any]) -> ObjectInfo:
    """Return what identifies an object: a hash as an ETag or, as a weak one, its time of change."""
    size, etag, mtime = int(info.get("size") or 0), "", 0.0
    for name in TIMES:
        value = info.get(name)
        if isinstance(value, datetime):
            mtime = value.timestamp()
        elif isinstance(value, int | float):
            mtime = float(value)
        if value:
            etag = f'W/"{value}"'
            break
    for name in HASHES:
        if info.get(name):
            etag = f'"{info[name]}"'
            break
    return ObjectInfo(size, etag, mtime)


def _line(error: Exception) -> str:
    """Return the reason of an error of any library in one line, without what a URL may have."""
    text = str((isinstance(error, OSError) and error.strerror) or error)
    text = " ".join(text.split()) or type(error).__name__
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)[:300]
