"""Registers the message store."""

from winkfs.stores.kinds import Kind, folder_with, register

register(
    Kind(
        "message store",
        folder_with("winkfs.stores.messagestore.recovery:is_store"),
        {
            "open": "winkfs.stores.messagestore.records:MessageRecords",
            "create": "winkfs.stores.messagestore.store:create",
            "verify": "winkfs.stores.messagestore.records:verify",
            "salvage": "winkfs.stores.messagestore.records:salvage",
            "broker": "winkfs.stores.messagestore.broker:evidence",
            "migrate": "winkfs.stores.messagestore.records:migrate",
        },
        editable=True,
    )
)
