"""winkfs: a filesystem in a container. Millions of small files in a few append-only ones."""

from winkfs.bulkput import Row
from winkfs.container import Container, create, open
from winkfs.entry import Entry, Stat
from winkfs.errors import WinkError
from winkfs.inode import FileType
from winkfs.maintenance import reindex
from winkfs.verify import Report, verify

__all__ = [
    "Container",
    "Entry",
    "FileType",
    "Report",
    "Row",
    "Stat",
    "WinkError",
    "create",
    "open",
    "reindex",
    "verify",
]
