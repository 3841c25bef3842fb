"""Open, verify, reindex: whatever kind of store a path is, see `kinds`."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from winkfs.container.container import Container
from winkfs.errors import DamageWarning, warn_of_damage
from winkfs.registry import kind_of

if TYPE_CHECKING:
    from winkfs.container.verify.container import Report
    from winkfs.dataset.dataset import Dataset

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
    `winkfs.container.verify.container.verify`.
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
