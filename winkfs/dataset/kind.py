"""The data set as a kind of store."""

from __future__ import annotations

import os

from winkfs.names import MANIFESTS
from winkfs.registry import Kind, register


def detect(path: str) -> str | None:
    from winkformats.disk.paths import is_directory  # numpy comes with it

    return path.rstrip("/") or "/" if is_directory(os.path.join(path, MANIFESTS)) else None


register(
    Kind(
        "data set",
        detect,
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
