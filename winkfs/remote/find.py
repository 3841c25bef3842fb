"""The transport of a URL."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from functools import cache
from typing import Final

from winkformats.disk.objects import ObjectDirectory, Transport
from winkformats.disk.schemes import is_far
from winkfs.errors import Refusal, need
from winkfs.names import DATA
from winkfs.remote.cache import DiskCache
from winkfs.remote.links import Links
from winkfs.remote.schemes import NO_PASSWORD, OURS, SCHEMES

LINKED: Final = 12 * 3600  # seconds for which a link of a plan is signed, or as long as keys live


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


def links_to(bases: Iterable[str]) -> dict[str, Links]:
    """Return links to what is read of containers and shards, by their paths; none if they cannot be
    signed."""
    chosen = list(dict.fromkeys(filter(is_far, bases)))
    if not chosen:
        return {}
    from winkfs.remote import control
    from winkfs.remote.ranges import SignedTransport

    found: dict[str, Links] = {}
    for base in chosen:
        root, key = divided(base)
        transport = transport_of(root, os.getpid())
        if not isinstance(transport, SignedTransport):
            continue
        keys = {key + DATA, f"{key}.cat", *(k for k in transport.asked if k.startswith(f"{key}."))}
        until = time.time() + LINKED
        try:
            signed = {k: control.call("sign", root, k, LINKED) for k in sorted(keys)}
        except Refusal:
            return {}
        found[base] = {f"{root}/{k}": (until, link) for k, link in signed.items()}
    return found
