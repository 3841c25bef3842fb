"""Kinds of store: the list of them, the kind of a path, and the functions of a kind.

    kind, path = kind_of("corpus")          # a container, a data set, ...
    kind.function("info", path)(path)       # imports the module of the function on first use

A kind of store is a folder with a module `kind` that calls `register`: the folders of
`winkfs.stores` are found by listing them, those of other distributions by their entry point in the
group "winkfs.stores". Those whose code is elsewhere in winkfs are registered here. A
kind with `open`, which returns a `Reader`, needs nothing else: `winkfs.stores.general` derives
`info`, `verify` and a read-only mount from it, and `winkfs.spark.reading.stores` Spark rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules, resolve_name
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from winkformats.disk.schemes import is_far
from winkfs.errors import FileExists, Refusal
from winkfs.names import DATA, MANIFESTS, base_of
from winkfs.remote import refuse_far

GROUP: Final = "winkfs.stores"  # of entry points
GENERAL: Final = {  # for kinds that only have `open`
    "info": "winkfs.stores.general:info",
    "verify": "winkfs.stores.general:verify",
    "mount": "winkfs.stores.general:mount",
    "report": "winkfs.report.records:facts",
    "metrics": "winkfs.report.metrics:of_records",
}


class Kind(NamedTuple):
    """One kind of store.

    name       for messages
    detect     path -> the path in its canonical form; None: not of this kind. With `folder`, asked
               only of a path where a folder is
    functions  operation -> a function, or "module:function", whose first argument is the path:

               open     (mode[, as_of]) -> Reader
               info     () -> a record for people and JSON
               verify   (progress) -> Report; "verify of a part": (Choice, progress) -> Report
               reindex  (progress, problem=) -> files
               mount    (options) -> Source
               shards   (as_of) -> Snapshot: Spark reads its containers by bytes, others by name
               pack     (source, ...) -> PackReport
               create   (**options) -> the new store, open, or None: of records, `winkfs store`
               salvage  (target, progress) -> a record for people and JSON: bytes, lost_bytes,
                        problems ...; of a store of records in any state
               migrate  (progress) -> a record: what is in an older format is rewritten
               report   (now, progress) -> facts for `winkfs report`
               metrics  () -> Samples for `winkfs metrics`

    folder     whether the path is a folder that holds the whole store
    editable   whether it can be opened with mode "a"
    writable   whether a mount of it can be written to
    versions   whether it has generations for `as_of`
    """

    name: str
    detect: Callable[[str], str | None]
    functions: Mapping[str, str | Callable[..., Any]] = MappingProxyType({})
    folder: bool = True
    editable: bool = False
    writable: bool = False
    versions: bool = False

    def has(self, what: str) -> bool:
        return what in self.functions or ("open" in self.functions and what in GENERAL)

    def function(self, what: str, path: str) -> Callable[..., Any]:
        """Return a function of this kind. Raises Refusal, naming the path, if it has none."""
        found = self.functions.get(what) or ("open" in self.functions and GENERAL.get(what))
        if not found:
            raise Refusal(f"{what} is not for a {self.name}", path)
        if callable(found):
            return found
        return resolve_name(found)  # type: ignore[no-any-return]


_kinds: Final[dict[str, Kind]] = {}


def register(kind: Kind) -> None:
    """Add a kind of store. It replaces one of the same name."""
    _kinds[kind.name] = kind


def folder_with(test: str) -> Callable[[str], str | None]:
    """Return a `detect` for folders that pass a test, given as "module:function"."""

    def detect(path: str) -> str | None:
        return path.rstrip("/") or "/" if resolve_name(test)(path) else None

    return detect


def find_kind(path: str) -> tuple[Kind, str] | None:
    """Return the kind of the store at a path, and the path in its canonical form; None: no store.

    raises  ValueError for a string that cannot be a path
    """
    from winkformats.disk.paths import is_directory

    if is_far(path):  # a container takes one request, the others a listing
        found = _detect(path, False, _kinds.values())
        return found or _detect(path, True, [kind_named("data set")])
    folder = is_directory(path)
    found = _detect(path, folder, list(_kinds.values()))
    if found is None:
        known = set(_kinds)
        _load_stores()
        found = _detect(path, folder, [_kinds[name] for name in _kinds if name not in known])
    return found


def refuse_other(path: str, kind: str) -> None:
    """Raise FileExists if a store of a different kind is at the path where one is to be made.

    cost  two system calls if nothing is there
    """
    refuse_far(path)
    if not is_free(path):
        found = find_kind(path)
        if found is not None and found[0].name != kind:
            raise FileExists(
                f"a {found[0].name} is there already: choose another name, or remove it", path
            )


def is_free(path: str) -> bool:
    """Return whether neither a file or folder nor a container is at a path of this machine."""
    from winkformats.disk.paths import locate

    directory, name = locate(path.rstrip("/"))
    if not name or directory.info(name, follow=True) is not None:
        return False
    return directory.info(base_of(name) + DATA) is None


def kind_named(name: str) -> Kind:
    """Return a kind that winkfs has of its own."""
    return _kinds[name]


def kinds_with(what: str) -> list[Kind]:
    """Return all kinds that have a function, including those of other distributions."""
    _load_stores()
    return [kind for kind in _kinds.values() if kind.has(what)]


def _detect(path: str, folder: bool, kinds: Iterable[Kind]) -> tuple[Kind, str] | None:
    for kind in kinds:
        if (folder or not kind.folder) and (found := kind.detect(path)) is not None:
            return kind, found
    return None


def kind_of(path: str) -> tuple[Kind, str]:
    """Return as `find_kind`, but a container for a path without a store; opening it raises.

    raises  ValueError for a string that cannot be a path
    """
    found = find_kind(path)
    if found is None:
        return kind_named("container"), base_of(path)
    return found


@cache
def _load_stores() -> None:
    """Load the kinds in the folder `winkfs/stores`, and those of installed entry points."""
    import winkfs.stores

    for found in iter_modules(winkfs.stores.__path__):
        if found.ispkg:
            import_module(f"winkfs.stores.{found.name}.kind")
    from importlib.metadata import entry_points  # slow to import: only where nothing else fits

    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # whatever the code of others raises
            raise Refusal(
                f"the kind of store {entry.name!r} cannot be loaded: {type(error).__name__}: "
                f"{error}: reinstall or remove what it came with",
                entry.value,
            ) from error


# --- the kinds that winkfs has of its own ---


def _data_set(path: str) -> str | None:
    from winkformats.disk.paths import is_directory

    if is_far(path):  # what `winkfs remote check` has written does not make a data set
        from winkfs.dataset.manifest import is_dataset

        return path.rstrip("/") if is_dataset(path.rstrip("/")) else None
    return path.rstrip("/") or "/" if is_directory(os.path.join(path, MANIFESTS)) else None


def _folder_with(record: str) -> Callable[[str], str | None]:
    """-> detects a folder with this record in it."""

    def found(path: str) -> str | None:
        return path if os.path.isfile(os.path.join(path, record)) else None

    return found


def _container(path: str) -> str | None:
    from winkformats.disk.paths import locate

    base = base_of(path)
    directory, name = locate(base + DATA)
    return base if directory.info(name) is not None else None


register(
    Kind(
        "data set",
        _data_set,
        {
            "open": "winkfs.dataset.dataset:open",
            "info": "winkfs.dataset.verify:info",
            "verify": "winkfs.dataset.verify:verify",
            "verify of a part": "winkfs.dataset.partial:verify_dataset",
            "reindex": "winkfs.dataset.verify:reindex",
            "mount": "winkfs.mounting.dataset:mount",
            "shards": "winkfs.dataset.snapshot:snapshot",
            "pack": "winkfs.dataset.packing:pack_shards",
            "report": "winkfs.report.dataset:facts",
            "metrics": "winkfs.report.metrics:of_dataset",
        },
        editable=True,
        versions=True,
    )
)
register(
    Kind(
        "digest set",
        _folder_with("digests.json"),
        {
            "info": "winkfs.results.check:info_digests",
            "verify": "winkfs.results.check:verify_digests",
            "reindex": "winkfs.results.check:reindex_digests",
        },
    )
)
register(
    Kind(
        "order",
        _folder_with("order.json"),
        {
            "info": "winkfs.results.check:info_order",
            "verify": "winkfs.results.check:verify_order",
        },
    )
)
register(
    Kind(
        "container",
        _container,
        {
            "open": "winkfs.container.container:open",
            "info": "winkfs.container.verify:info",
            "verify": "winkfs.container.verify:verify",
            "verify of a part": "winkfs.dataset.partial:verify_container",
            "reindex": "winkfs.container.reindex:reindex",
            "mount": "winkfs.mounting.appendonly:mount",
            "shards": "winkfs.dataset.snapshot:single",
            "pack": "winkfs.archive.pack:pack",
            "report": "winkfs.report.container:facts",
            "metrics": "winkfs.report.metrics:of_container",
        },
        folder=False,
        editable=True,
        writable=True,
    )
)
