"""Registers the queue."""

from winkfs.registry import Kind, register


def _detect(path: str) -> str | None:
    from winkfs.stores.ledgerq.queue import is_queue

    return path.rstrip("/") or "/" if is_queue(path) else None


register(
    Kind(
        "queue",
        _detect,
        {
            "open": "winkfs.stores.ledgerq.records:QueueRecords",
            "verify": "winkfs.stores.ledgerq.check:verify",
        },
    )
)
