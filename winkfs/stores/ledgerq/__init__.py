"""LedgerQ queue: messages in the order of their arrival or by priority."""

from winkformats.ledgerq.entry import HIGH, LOW, MEDIUM, Message
from winkfs.stores.ledgerq.queue import Compaction, Queue, create, is_queue
from winkfs.stores.ledgerq.tail import Rotation

__all__ = [
    "HIGH",
    "LOW",
    "MEDIUM",
    "Compaction",
    "Message",
    "Queue",
    "Rotation",
    "create",
    "is_queue",
]
