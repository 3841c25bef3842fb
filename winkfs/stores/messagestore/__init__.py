"""MessageStore: messages by id in segments of RabbitMQ's formats, each held by so many."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.stores.messagestore.compaction import Compaction
    from winkfs.stores.messagestore.store import MessageStore, create

__all__ = ["Compaction", "MessageStore", "create"]
__getattr__ = exports(
    globals(), {"Compaction": "compaction", "MessageStore": "store", "create": "store"}
)
