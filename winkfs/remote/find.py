"""The transport of a URL."""

from __future__ import annotations

import errno
import os
from functools import cache

from winkformats.disk.objects import ObjectDirectory, Transport
from winkfs.errors import Refusal, need
from winkfs.remote.cache import DiskCache
from winkfs.remote.schemes import NO_PASSWORD, OURS, SCHEMES


def directory_at(path: str) -> ObjectDirectory:
    """Return the directory with this URL. Raises Refusal: there is no bucket in it, or an extra is
    not installed."""
    root, key = divided(path)
    return ObjectDirectory(transport_of(root, os.getpid()), key)


def divided(url: str) -> tuple[str, str]:
    """Return the root of the store of a URL, and the key in it. Raises Refusal."""
    scheme, _, rest = url.partition(":")
    scheme = OURS.get(scheme, scheme)
    host, _, key = rest.removeprefix("//").removeprefix("/").partition("/")
    ours = scheme in SCHEMES
    if not host and ours:
        raise Refusal(f"{scheme}:// needs a {'host' if is_web(scheme) else 'bucket'} after it", url)
    before, at, place = host.rpartition("@")
    if at and (is_web(scheme) or (":" in before and scheme not in NO_PASSWORD)):
        raise Refusal("a URL with a password in it is not read: it would be in every message",
                      f"{scheme}://{place}/{key}", number=errno.EINVAL)  # fmt: skip
    return f"{scheme}://{host}" if host else f"{scheme}:/", key.strip("/")


def is_web(scheme: str) -> bool:
    return scheme in ("http", "https")


@cache
def transport_of(root: str, process: int) -> Transport:
    """Return the transport of a store. `process`: each process has its own, see `os.fork`."""
    scheme = root.partition(":")[0]
    if scheme not in SCHEMES:
        from winkfs.remote.filesystems import FilesystemTransport

        other = FilesystemTransport(root)
        other.cache = DiskCache.of_user()
        return other
    need("urllib3", f"to read {scheme}://", "cloud")
    from winkfs.remote.ranges import SignedTransport, WebTransport

    if is_web(scheme):
        made: Transport = WebTransport(root)
    else:
        need("obstore", f"to read {scheme}://", "cloud")
        made = SignedTransport(root)
    made.cache = DiskCache.of_user()
    return made
