"""Registers the LogStore. Light: `winkfs.open` imports it."""

from __future__ import annotations

from winkfs.registry import Kind, register

SETTINGS = "logstore"  # as in winkformats.logstore.layout


def _detect(path: str) -> str | None:
    from winkformats.disk.paths import directory_of

    directory = directory_of(path)
    there = directory.info(SETTINGS) is not None and directory.info("generations") is not None
    return path.rstrip("/") or "/" if there else None


register(
    Kind(
        "log store",
        _detect,
        {
            "open": "winkfs.stores.logstore.records:open",
            "info": "winkfs.stores.logstore.records:info",
            "verify": "winkfs.stores.logstore.records:verify",
            "create": "winkfs.stores.logstore.records:create",
            "salvage": "winkfs.stores.logstore.records:salvage",
        },
        editable=True,
    )
)
