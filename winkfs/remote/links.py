"""Links: signed URLs that go with the plan of a query, so that its tasks need no credentials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

SPARE: Final = 60.0  # seconds before its end from which a link is not used
Links = Mapping[str, tuple[float, str]]
"""URL of an object -> seconds since the epoch at which its link ends, and the link."""
_accepted: dict[str, tuple[float, str]] = {}


def accept(links: Links) -> None:
    """Use links in this process."""
    _accepted.update(links)


def link_to(url: str) -> str | None:
    """Return the link to an object that this process has accepted; None: it has none."""
    until, link = _accepted.get(url, (0.0, ""))
    return link if time.time() < until - SPARE else None
