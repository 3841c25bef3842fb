"""Schemes of paths: which disk a path is on. Light: `import winkfs` registers those of URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from winkformats.disk.storage import Directory

Factory = Callable[[str], "Directory"]
_factories: Final[dict[str, Factory]] = {}  # by scheme and colon, of URLs also the slashes
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+://")
_others: list[Callable[[str], Factory | None]] = []


def register(scheme: str, factory: Factory, *, url: bool = False) -> None:
    """Let `factory` make the directories of all paths that begin with `scheme` and a colon; url:
    and two slashes, then what is there can only be read, see `Storage.far`."""
    _factories[f"{scheme}://" if url else f"{scheme}:"] = factory


def unregister(scheme: str, *, url: bool = False) -> None:
    """Remove a scheme that was registered."""
    del _factories[f"{scheme}://" if url else f"{scheme}:"]


def register_others(find: Callable[[str], Factory | None]) -> None:
    """Let `find` return what makes the directories of URLs of a scheme that is not registered;
    None: their paths are of this machine. It may raise OSError for a scheme that is none."""
    _others[:] = [find]


def factory_of(path: str) -> Factory | None:
    """Return what makes the directories of a path; None: it is on a disk of this machine.

    raises  OSError for a URL of a scheme that nothing knows
    """
    mark = _mark(path)
    found = _factories.get(mark)
    if found is None and _others and _URL.fullmatch(mark):
        return _others[0](mark[:-3])
    return found


def scheme_of(path: str) -> str:
    """Return the registered scheme that a path begins with, "" for a path of this machine."""
    return path.partition(":")[0] if ":" in path and factory_of(path) else ""


def is_far(path: str) -> bool:
    """Return whether a path is a URL of object storage, of a scheme that is known."""
    try:
        return _mark(path).endswith("/") and factory_of(path) is not None
    except OSError:
        return False


def _mark(path: str) -> str:
    """Return how the scheme of a path would be registered; `scheme:/` is above all URLs."""
    head, colon, rest = path.partition(":")
    return head + colon + ("//" if colon and (rest.startswith("//") or rest == "/") else "")
