"""The transport of a URL."""

from __future__ import annotations

import errno
import os
from functools import cache

from winkformats.disk.objects import ObjectDirectory, Transport
from winkfs.errors import Refusal, need
from winkfs.remote.cache import DiskCache


def directory_at(path: str) -> ObjectDirectory:
    """Return the directory with this URL. Raises Refusal: there is no bucket in it, or an extra is
    not installed."""
    root, key = divided(path)
    return ObjectDirectory(transport_of(root, os.getpid()), key)


def divided(url: str) -> tuple[str, str]:
    """Return the root of the store of a URL, and the key in it. Raises Refusal."""
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if not host:
        raise Refusal(f"{scheme}:// needs a {'host' if is_web(scheme) else 'bucket'} after it", url)
    if is_web(scheme) and "@" in host:
        raise Refusal("a URL with a password in it is not read: it would be in every message",
                      f"{scheme}://{host.rpartition('@')[2]}/{key}",
                      number=errno.EINVAL)  # fmt: skip
    return f"{scheme}://{host}", key.strip("/")


def is_web(scheme: str) -> bool:
    return scheme in ("http", "https")


@cache
def transport_of(root: str, process: int) -> Transport:
    """Return the transport of a store. `process`: each process has its own, see `os.fork`."""
    scheme = root.partition("://")[0]
    need("urllib3", f"to read {scheme}://", "cloud")
    from winkfs.remote.ranges import SignedTransport, WebTransport

    if is_web(scheme):
        made: Transport = WebTransport(root)
    else:
        need("obstore", f"to read {scheme}://", "cloud")
        made = SignedTransport(root)
    made.cache = DiskCache.of_user()
    return made
