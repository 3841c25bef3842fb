"""Registry: operations on a path of any kind of store: open, verify, reindex, pack.

The kinds themselves, and their registration, are in `winkfs.stores.kinds`; its names are here, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

from winkformats.disk.schemes import is_far
from winkfs.errors import DamageWarning, ReadOnly, warn_of_damage
from winkfs.names import base_of
from winkfs.stores.kinds import Kind as Kind
from winkfs.stores.kinds import find_kind as find_kind
from winkfs.stores.kinds import is_free, kind_named
from winkfs.stores.kinds import kind_of as kind_of
from winkfs.stores.kinds import kinds_with as kinds_with
from winkfs.stores.kinds import register as register

if TYPE_CHECKING:
    from winkfs.archive.packer import PackReport
    from winkfs.container.container import Container
    from winkfs.container.verify import Report
    from winkfs.dataset.dataset import Dataset
    from winkfs.reader import Reader

Path = str | os.PathLike[str]
Progress = Callable[[int], None]
AsOf = int | float | str | datetime


@overload
def open(base: Path, mode: Literal["r"] = ..., *, as_of: None = ...) -> Reader: ...
@overload
def open(base: Path, mode: Literal["a"], *, as_of: None = ...) -> Container | Dataset: ...
@overload
def open(base: Path, mode: str = ..., *, as_of: AsOf) -> Dataset: ...
@overload
def open(base: Path, mode: str = ..., *, as_of: AsOf | None = ...) -> Reader: ...
def open(base: Path, mode: str = "r", *, as_of: AsOf | None = None) -> Reader:
    """Open a container, a data set or another store: "r" to read, "a" to read and write.

    as_of    of a data set: a generation (int), or a time: the newest generation up to then
    raises   FileNotFoundError; Locked (mode "a", another writer of a container); StalePlan (a
             generation that was vacuumed); ValueError; FormatError (no container)
    warns    DamageWarning if damage was found and skipped: `problems` of the result lists what is
             missing
    cost     a container: its index is mapped, not read, and entries added after it was written are
             replayed; a data set: its manifests are read
    """
    found = open_silently(base, mode, as_of=as_of)
    try:
        warn_of_damage(found.base, found.problems)
    except DamageWarning:  # where warnings are errors
        found.close()
        raise
    return found


def open_silently(
    base: Path, mode: str = "r", *, as_of: AsOf | None = None, **options: Any
) -> Reader:
    """Open a store without a warning, for callers that read `problems` themselves.

    options  further ones, of the kind
    """
    kind, path = kind_of(os.fspath(base))
    opener: Callable[..., Reader] = kind.function("open", path)
    if as_of is not None and not kind.versions:
        raise ValueError(f"{path}: as_of is for data sets: a {kind.name} has no generations")
    if mode == "a" and not kind.editable:
        raise ReadOnly(f"a {kind.name} can only be read", path)
    return opener(path, mode, **options, **({} if as_of is None else {"as_of": as_of}))


def verify(
    base: Path,
    progress: Progress | None = None,
    *,
    quick: bool = False,
    part: tuple[int, int] = (1, 1),
    share: float = 1.0,
    seed: int = 0,
    seconds: float | None = None,
    jobs: int = 1,
) -> Report:
    """Check a container, or a data set with all its shards: see `container.verify.verify`.

    quick, part, share, seed, seconds   check a part, which `scope` of the report states: see
                                        `dataset.partial.Choice`
    jobs    processes, for the shards of a data set, and for a part
    raises  Refusal: a part of a store of another kind
    """
    kind, path = kind_of(os.fspath(base))
    report: Report
    if quick or part != (1, 1) or share < 1 or seconds is not None:
        run = kind.function("verify of a part", path)
        from winkfs.dataset.partial import Choice

        report = run(path, Choice(quick, part, share, seed, seconds, jobs), progress)
    elif jobs > 1 and kind.versions:
        report = kind.function("verify", path)(path, progress, jobs=jobs)
    else:
        report = kind.function("verify", path)(path, progress)
    return report


def reindex(
    base: Path,
    progress: Progress | None = None,
    *,
    problem: Callable[[str], None] | None = None,
) -> int:
    """Rebuild derived files, in a data set of all shards: see `container.reindex.reindex`.

    problem  called with a line for each damaged place, whose files are left out; None: a
             DamageWarning
    """
    kind, path = kind_of(os.fspath(base))
    problems: list[str] = []
    run = kind.function("reindex", path)
    files: int = run(path, progress, problem=problem or problems.append)
    if problems:
        warn_of_damage(path, problems)
    return files


def pack(
    source: Path,
    base: Path,
    *,
    shards: int | None = None,
    classic: bool = False,
    **options: Any,
) -> PackReport:
    """Pack a directory, or a tar file (`-`: standard input), into a container or a data set.

    base     where there is nothing, a container is made, with `shards` a data set
    shards   how many containers the files go to, at most
    classic  a container of the oldest variant
    options  of `winkfs.archive.pack.pack`: ao, update, checksum, xattrs, exclude, names, note,
             progress, compress
    raises   what that function raises; ValueError for an option that the kind does not have
    """
    path = os.fspath(base)
    if shards is not None:
        kind = kind_named("data set")
    elif not is_far(path) and is_free(path):  # without a search among all kinds of stores
        kind, path = kind_named("container"), base_of(path)
    else:
        kind, path = kind_of(path)
    if kind.versions:
        if classic:
            raise ValueError("classic goes with a single container")
        options["shards"] = shards or 1
    elif classic:
        options["classic"] = True
    report: PackReport = kind.function("pack", path)(source, path, **options)
    return report
