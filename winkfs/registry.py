"""Registry: which kinds of store there are, what a path is, and what can be done with it.

    kind, path = kind_of("corpus")          # a container, a data set, ...
    kind.function("info")(path)             # its module is imported when it is asked for

A kind of store is a folder with a module `kind` that calls `register`: those of `winkfs.stores` are
found by themselves, and those of other distributions by their entry point in the group
"winkfs.stores". A kind that can be opened, as a `Reader`, needs nothing else: `info`, `verify`, a
read-only mount and Spark rows have general forms, in `winkfs.stores.general`.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from winkfs.errors import DamageWarning, ReadOnly, Refusal, warn_of_damage

if TYPE_CHECKING:
    from winkfs.archive.pack import PackReport
    from winkfs.container.container import Container
    from winkfs.container.verify import Report
    from winkfs.dataset.dataset import Dataset
    from winkfs.reader import Reader

Path = str | os.PathLike[str]
Progress = Callable[[int], None]
AsOf = int | float | str | datetime
BUILT_IN: Final = ("winkfs.dataset.kind", "winkfs.results.kind", "winkfs.container.kind")
GROUP: Final = "winkfs.stores"  # of entry points
GENERAL: Final = {  # for kinds that say no more than how they are opened
    "info": "winkfs.stores.general:info",
    "verify": "winkfs.stores.general:verify",
    "mount": "winkfs.stores.general:mount",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of store.

    name       as a message says it
    detect     -> the path in its one form, None where it is not of this kind
    functions  what can be done with it -> a function, or "module:function", whose first argument is
               the path:

               open     (mode[, as_of]) -> Reader
               info     () -> a record for people and JSON
               verify   (progress) -> Report
               reindex  (progress, cols=, problem=) -> files
               mount    (options) -> Source
               shards   (as_of) -> Snapshot: Spark reads its containers by bytes, others by name
               pack     (source, ...) -> PackReport

    folder     whether the path is that of a folder with all of it
    writable   whether a mount of it can be written to
    versions   whether it keeps generations, which `as_of` chooses from
    """

    name: str
    detect: Callable[[str], str | None]
    functions: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict)
    folder: bool = True
    writable: bool = False
    versions: bool = False

    def has(self, what: str) -> bool:
        return what in self.functions or ("open" in self.functions and what in GENERAL)

    def function(self, what: str) -> Callable[..., Any]:
        """Raises Refusal where this kind does not have it."""
        if not self.has(what):
            raise Refusal(f"{what} is not for a {self.name}")
        found = self.functions.get(what) or GENERAL[what]
        if callable(found):
            return found
        module, _, function = found.partition(":")
        return getattr(import_module(module), function)  # type: ignore[no-any-return]


_kinds: Final[dict[str, Kind]] = {}


def register(kind: Kind) -> None:
    """Make a kind of store known. One of the same name takes its place."""
    _kinds[kind.name] = kind


def find_kind(path: str) -> tuple[Kind, str] | None:
    """-> the kind of what is at a path, and the path in its one form; None: there is no store.

    raises  ValueError for what can be no path
    """
    for load in (_load_built_in, _load_stores):
        load()
        for kind in list(_kinds.values()):
            if (found := kind.detect(path)) is not None:
                return kind, found
    return None


def kind_of(path: str) -> tuple[Kind, str]:
    """The same; what is no store counts as a container, and who opens it says what is wrong.

    raises  ValueError for what can be no path
    """
    found = find_kind(path)
    if found is None:
        from winkfs.names import base_of

        return _kinds["container"], base_of(path)
    return found


@cache
def _load_built_in() -> None:
    for name in BUILT_IN:
        import_module(name)


@cache
def _load_stores() -> None:
    """Those in the folder `winkfs/stores`, and those that are installed beside winkfs."""
    import winkfs.stores

    for found in pkgutil.iter_modules(winkfs.stores.__path__):
        if found.ispkg:
            import_module(f"winkfs.stores.{found.name}.kind")
    from importlib.metadata import entry_points  # 20 ms: only where nothing else fits

    for entry in entry_points(group=GROUP):
        entry.load()


# --- what everybody asks ---


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


def open_silently(base: Path, mode: str = "r", *, as_of: AsOf | None = None) -> Reader:
    """The same without a warning, for those who look at `problems` themselves."""
    kind, path = kind_of(os.fspath(base))
    opener: Callable[..., Reader] = kind.function("open")
    if as_of is not None and not kind.versions:
        raise ValueError(f"{path}: as_of is for data sets: a {kind.name} has no generations")
    found = opener(path, mode) if as_of is None else opener(path, mode, as_of=as_of)
    if mode != "r" and not hasattr(found, "put"):
        found.close()
        raise ReadOnly(f"a {kind.name} can only be read", path)
    return found


def verify(base: Path, progress: Progress | None = None) -> Report:
    """Check a container, or a data set with all its shards: see `container.verify.verify`."""
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
    """Make what is derived anew, of a data set in all shards: see `container.container.reindex`.

    problem  called with a line for each damaged place, whose files are left out; None: a
             DamageWarning
    """
    kind, path = kind_of(os.fspath(base))
    problems: list[str] = []
    run = kind.function("reindex")
    files: int = run(path, progress, cols=cols, problem=problem or problems.append)
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
             progress
    raises   what that raises; ValueError for an option that the kind of store does not have
    """
    kind, path = kind_of(os.fspath(base))
    if shards is not None:
        kind, path = _kinds["data set"], os.fspath(base)
    if kind.versions:
        if classic:
            raise ValueError("classic goes with a single container")
        options["shards"] = shards or 1
    elif classic:
        options["classic"] = True
    report: PackReport = kind.function("pack")(source, path, **options)
    return report
