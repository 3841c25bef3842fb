"""The data set as a kind of store."""

from __future__ import annotations

import os
from typing import Final

from winkfs.registry import Kind, register

FOLDER: Final = "_winkfs"  # of the manifests; it makes a folder a data set


def detect(path: str) -> str | None:
    from winkformats.disk.paths import is_directory  # numpy comes with it

    return path.rstrip("/") or "/" if is_directory(os.path.join(path, FOLDER)) else None


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
        versions=True,
    )
)
