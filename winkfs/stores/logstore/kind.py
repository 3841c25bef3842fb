"""Registers the LogStore. Light: `winkfs.open` imports it."""

from __future__ import annotations

from winkfs.registry import Kind, register


def _detect(path: str) -> str | None:
    from winkfs.stores.logstore.files import is_store

    return path.rstrip("/") or "/" if is_store(path) else None


register(
    Kind(
        "log store",
        _detect,
        {
            "open": "winkfs.stores.logstore.records:LogRecords",
            "info": "winkfs.stores.logstore.records:info",
            "verify": "winkfs.stores.logstore.records:verify",
            "create": "winkfs.stores.logstore.records:create",
            "salvage": "winkfs.stores.logstore.records:salvage",
        },
        editable=True,
    )
)
