"""What the jobs of the pipeline make, as kinds of store: digest sets and orders."""

from __future__ import annotations

import os
from collections.abc import Callable

from winkfs.registry import Kind, register


def detect(record: str) -> Callable[[str], str | None]:
    """-> detects a folder with this record in it."""

    def found(path: str) -> str | None:
        return path if os.path.isfile(os.path.join(path, record)) else None

    return found


register(
    Kind(
        "digest set",
        detect("digests.json"),
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
        detect("order.json"),
        {
            "info": "winkfs.results.check:info_order",
            "verify": "winkfs.results.check:verify_order",
        },
    )
)
