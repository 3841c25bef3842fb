"""Kinds: what a path is, and what does the work on it. A new store adds a line here.

kind, path = kind_of("corpus")          # a container, a data set, ...
kind.function("info")(path)             # imported when it is asked for

Open, verify, reindex: whatever kind of store a path is, see `kinds`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from winkfs.errors import DamageWarning, WinkError, warn_of_damage

if TYPE_CHECKING:
    from winkfs.container.container import Container
    from winkfs.container.verify import Report
    from winkfs.dataset.dataset import Dataset

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
    from winkfs.names import base_of

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
            "verify": "winkfs.container.verify:verify",
            "reindex": "winkfs.container.container:reindex",
        },
    ),
)  # fmt: skip


def kind_of(path: str) -> tuple[Kind, str]:
    """-> the kind, and the path in its one form. Raises ValueError for what can be no path."""
    for kind in KINDS:
        if (found := kind.find(path)) is not None:
            return kind, found
    raise AssertionError("the last kind takes everything")


Path = str | os.PathLike[str]
Progress = Callable[[int], None]


def open(
    base: Path, mode: str = "r", *, as_of: int | float | str | datetime | None = None
) -> Container | Dataset:
    """Open a container or a data set: "r" to read, "a" to read and write.

    as_of    of a data set: a generation (int), or a time: the newest generation up to then
    raises   FileNotFoundError; Locked (mode "a", another writer of a container); StalePlan (a
             generation that was vacuumed); ValueError; FormatError (no container)
    warns    DamageWarning where damage was met and got round: `problems` of what is returned says
             what is missing
    cost     a container's index is mapped, not read, and what was added after it was written is
             replayed; of a data set the manifests are read
    """
    found = open_silently(base, mode, as_of=as_of)
    try:
        warn_of_damage(found.base, found.problems)
    except DamageWarning:  # where warnings are errors
        found.close()
        raise
    return found


def open_silently(
    base: Path, mode: str = "r", *, as_of: int | float | str | datetime | None = None
) -> Container | Dataset:
    """The same without a warning, for those who look at `problems` themselves."""
    kind, path = kind_of(os.fspath(base))
    opener: Callable[..., Container | Dataset] = kind.function("open")
    if as_of is not None and kind.name != "data set":
        raise ValueError(f"{path}: as_of is for data sets: a container has no generations")
    return opener(path, mode) if as_of is None else opener(path, mode, as_of=as_of)


def verify(base: Path, progress: Progress | None = None) -> Report:
    """Check a container, or a data set with all its shards: see
    `winkfs.container.verify.verify`.
    """
    kind, path = kind_of(os.fspath(base))
    report: Report = kind.function("verify")(path, progress)
    return report


def reindex(
    base: Path,
    progress: Progress | None = None,
    *,
    cols: bool = False,
    problem: Callable[[str], None] | None = None,
) -> int:
    """Make what is derived anew, of a data set in all shards: see `container.maintenance.reindex`.

    problem  called with a line for each damaged place, whose files are left out; None: a
             DamageWarning
    """
    kind, path = kind_of(os.fspath(base))
    problems: list[str] = []
    run = kind.function("reindex")
    files: int = run(path, progress, cols=cols, problem=problem or problems.append)
    warn_of_damage(path, problems)
    return files
