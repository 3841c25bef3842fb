"""Links: signed URLs that go with the plan of a query, so that its tasks need no credentials."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Final

from winkformats.disk.schemes import is_far
from winkfs.errors import Refusal
from winkfs.names import DATA

SECONDS: Final = 12 * 3600  # for which a link of a plan is signed; keys of a role may end before
SPARE: Final = 60.0  # seconds before its end from which a link is not used
Links = Mapping[str, tuple[float, str]]
"""URL of an object -> seconds since the epoch at which its link ends, and the link."""
_accepted: dict[str, tuple[float, str]] = {}


def links_to(bases: Iterable[str]) -> dict[str, Links]:
    """Return links to what is read of containers and shards, by their paths; none if they cannot be
    signed."""
    chosen = list(dict.fromkeys(filter(is_far, bases)))
    if not chosen:
        return {}
    from winkfs.remote import control
    from winkfs.remote.find import divided, transport_of
    from winkfs.remote.ranges import SignedTransport

    found: dict[str, Links] = {}
    for base in chosen:
        root, key = divided(base)
        transport = transport_of(root, os.getpid())
        if not isinstance(transport, SignedTransport):
            continue
        keys = {key + DATA, f"{key}.cat", *(k for k in transport.asked if k.startswith(f"{key}."))}
        until = time.time() + SECONDS
        try:
            signed = {k: control.call("sign", root, k, SECONDS) for k in sorted(keys)}
        except Refusal:
            return {}
        found[base] = {f"{root}/{k}": (until, link) for k, link in signed.items()}
    return found


def accept(links: Links) -> None:
    """Use links in this process."""
    _accepted.update(links)


def link_to(url: str) -> str | None:
    """Return the link to an object that this process has accepted; None: it has none."""
    until, link = _accepted.get(url, (0.0, ""))
    return link if time.time() < until - SPARE else None
