"""Registers the LogStore. Light: `winkfs.open` imports it."""

from __future__ import annotations

from winkfs.stores.kinds import Kind, folder_with, register

register(
    Kind(
        "log store",
        folder_with("winkfs.stores.logstore.files:is_store"),
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
