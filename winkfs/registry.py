"""Kinds: what a path is, and what does the work on it. A new store adds a line here.

kind, path = kind_of("corpus")          # a container, a data set, ...
kind.function("info")(path)             # imported when it is asked for
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from winkfs.errors import WinkError

MANIFESTS: Final = "_winkfs"  # the folder of a data set that makes it one


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of store.

    name        as a message says it
    find        -> the path in its one form, None where it is not of this kind
    functions   what can be done with it -> "module:function", whose first argument is the path
    folder      whether the path is that of a folder with all of it
    writable    whether a mount of it can be written to
    """

    name: str
    find: Callable[[str], str | None]
    functions: Mapping[str, str]
    folder: bool = False
    writable: bool = True

    def function(self, what: str) -> Callable[..., Any]:
        """Raises WinkError where this kind does not have it."""
        if what not in self.functions:
            raise WinkError(f"{what} is not for a {self.name}")
        module, _, function = self.functions[what].partition(":")
        found: Callable[..., Any] = getattr(import_module(module), function)
        return found


def _data_set(path: str) -> str | None:
    from winkformats.disk.paths import is_directory  # numpy comes with it

    return path.rstrip("/") or "/" if is_directory(os.path.join(path, MANIFESTS)) else None


def _result(name: str) -> Callable[[str], str | None]:
    def find(path: str) -> str | None:
        return path if os.path.isfile(os.path.join(path, f"{name}.json")) else None

    return find


def _container(path: str) -> str | None:
    """Whatever is nothing else: what is wrong with it is said by who opens it."""
    from winkfs.container.basepath import base_of

    return base_of(path)


KINDS: Final = (
    Kind(
        "data set", _data_set,
        {
            "mount": "winkfs.mounting.dataset:mount",
            "open": "winkfs.dataset.dataset:open",
            "verify": "winkfs.dataset.verify:verify",
            "reindex": "winkfs.dataset.verify:reindex",
            "info": "winkfs.dataset.verify:info",
        },
        folder=True, writable=False,
    ),
    Kind(
        "digest set", _result("digests"),
        {
            "verify": "winkfs.results.check:verify_digests",
            "reindex": "winkfs.results.check:reindex_digests",
            "info": "winkfs.results.check:info_digests",
        },
        folder=True, writable=False,
    ),
    Kind(
        "order", _result("order"),
        {
            "verify": "winkfs.results.check:verify_order",
            "info": "winkfs.results.check:info_order",
        },
        folder=True, writable=False,
    ),
    Kind(
        "container", _container,
        {
            "mount": "winkfs.cli.mount:container",
            "open": "winkfs.container.container:open",
            "verify": "winkfs.container.verify.container:verify",
            "reindex": "winkfs.container.maintenance:reindex",
        },
    ),
)  # fmt: skip


def kind_of(path: str) -> tuple[Kind, str]:
    """-> the kind, and the path in its one form. Raises ValueError for what can be no path."""
    for kind in KINDS:
        if (found := kind.find(path)) is not None:
            return kind, found
    raise AssertionError("the last kind takes everything")
