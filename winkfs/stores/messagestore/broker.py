"""A folder that belongs to a broker: how it is known, and what is done before it is changed.

After a clean shutdown a broker keeps its index in files beside the segments, and believes it: when
a segment was changed meanwhile, its queues crash at the first read. Without `clean.dot` it makes
its index anew of the segments.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from winkformats.disk.paths import absolute
from winkformats.disk.storage import Directory
from winkformats.messagestore.journal import INDEX, JOURNAL
from winkfs.errors import Refusal

CLEAN: Final = "clean.dot"
TABLE: Final = "msg_store_index.ets"
FILES: Final = (CLEAN, TABLE, "file_summary.ets")
FOLDERS: Final = ("msg_store_persistent", "msg_store_transient")
OLD: Final = ".old"  # behind the name of what it is not to believe any more


def evidence(directory: Directory) -> str:
    """What shows that a folder with segments is a broker's; "": it is one of ours, or new."""
    names = directory.list()
    for name in FILES:
        if name in names:
            return f"{name} is there"
    ours = any(name == INDEX or name.startswith(JOURNAL) for name in names)
    segments = any(name.endswith((".rdq", ".sqs")) for name in names)
    return "segments without an index of winkfs" if segments and not ours else ""


def evidence_beside(directory: Directory) -> str:
    """The same for a segment that is changed on its own: of no index nothing is known then."""
    for name in FILES:
        if directory.exists(name):
            return f"{name} is there"
    folder = PurePath(absolute(directory.path)).name
    return f"it is named {folder}" if folder in FOLDERS else ""


def check(found: str, path: str, *, more: str = "") -> None:
    """Raises Refusal where there is evidence. more: a further reason, of the change."""
    if not found:
        return
    raise Refusal(
        f"a folder of RabbitMQ ({found}){more}: stop the broker, then use --force (in Python "
        f"force=True), which renames {CLEAN} to {CLEAN}{OLD} before the change, so that the broker "
        "makes its index anew when it starts: changed segments beside its old index crash its "
        "queues",
        path,
    )


def take_over(directory: Directory) -> None:
    """Make the broker distrust its index of the segments. Durable. Raises OSError."""
    if not directory.exists(CLEAN):
        return
    for name in directory.list():  # an index of ours is older: the broker has run since
        if name == INDEX or name.startswith(JOURNAL):
            directory.unlink(name)
    directory.rename(CLEAN, f"{CLEAN}{OLD}")
    directory.sync()
