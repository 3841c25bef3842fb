"""Registers the message store."""

from winkfs.registry import Kind, register


def _detect(path: str) -> str | None:
    from winkfs.stores.messagestore.recovery import is_store

    return path.rstrip("/") or "/" if is_store(path) else None


register(
    Kind(
        "message store",
        _detect,
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
