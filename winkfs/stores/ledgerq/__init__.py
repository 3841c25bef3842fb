"""LedgerQ queue: messages in the order of their arrival or by priority."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkformats.ledgerq.entry import HIGH as HIGH
    from winkformats.ledgerq.entry import LOW as LOW
    from winkformats.ledgerq.entry import MEDIUM as MEDIUM
    from winkformats.ledgerq.entry import Message as Message
    from winkfs.stores.ledgerq.queue import Compaction as Compaction
    from winkfs.stores.ledgerq.queue import Queue as Queue
    from winkfs.stores.ledgerq.queue import create as create
    from winkfs.stores.ledgerq.queue import is_queue as is_queue
    from winkfs.stores.ledgerq.tail import Rotation as Rotation

__getattr__ = exports(
    globals(),
    dict.fromkeys(("HIGH", "LOW", "MEDIUM", "Message"), "cursor")
    | dict.fromkeys(("Compaction", "Queue", "create", "is_queue"), "queue")
    | {"Rotation": "tail"},
)
