"""The kinds of store that winkfs has of its own: data set, digest set, order, container.

Light: `winkfs.open` imports it. numpy comes with `winkformats.disk`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from winkfs.names import DATA, MANIFESTS, base_of
from winkfs.stores.kinds import Kind, register


def _data_set(path: str) -> str | None:
    from winkformats.disk.paths import is_directory

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
            "reindex": "winkfs.dataset.verify:reindex",
            "mount": "winkfs.mounting.dataset:mount",
            "shards": "winkfs.dataset.snapshot:snapshot",
            "pack": "winkfs.dataset.packing:pack_shards",
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
            "reindex": "winkfs.container.reindex:reindex",
            "mount": "winkfs.mounting.appendonly:mount",
            "shards": "winkfs.dataset.snapshot:snapshot",
            "pack": "winkfs.archive.pack:pack",
        },
        folder=False,
        editable=True,
        writable=True,
    )
)
