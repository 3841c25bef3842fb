"""LedgerQ queue: messages in the order of their arrival or by priority."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkformats.ledgerq.entry import HIGH, LOW, MEDIUM, Message
    from winkfs.stores.ledgerq.queue import Compaction, Queue, create, is_queue
    from winkfs.stores.ledgerq.tail import Rotation

__all__ = [
    "HIGH", "LOW", "MEDIUM", "Compaction", "Message", "Queue", "Rotation", "create", "is_queue",
]  # fmt: skip
__getattr__ = exports(
    globals(),
    dict.fromkeys(("HIGH", "LOW", "MEDIUM", "Message"), "cursor")
    | dict.fromkeys(("Compaction", "Queue", "create", "is_queue"), "queue")
    | {"Rotation": "tail"},
)
