"""What a container that is open, and the files derived from its data file, ask of each other.

BASE.idx, BASE.time and BASE.cat say nothing that BASE.data does not: each is an object
of its module in `ondisk`, and `Store` has a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from winkformats.arrays import Int64
    from winkformats.disk.storage import Directory, Storage
    from winkformats.errors import CorruptError, DerivedDamage
    from winkformats.kv.sequence import KVSeq
    from winkfs.container.ondisk.data import Settings
    from winkfs.container.ondisk.inode import Inode
    from winkfs.container.ondisk.typed import Schema


UNSEEN: Final = -1  # for the position of an inode that nobody has looked up


class DerivedFile(Protocol):
    """A file that is made from BASE.data; `suffix` is what it has behind BASE."""

    suffix: str

    def sweep(self) -> None:
        """Remove the file where it must not stand beside a data file that grows. For a writer."""

    def rewritten(self, pos: int) -> None:
        """Another inode stands in the place of the one at `pos`."""

    def drop(self) -> None:
        """Entries up to here do not say all that happened: believe no older file, forget changes
        that were kept for the next one."""

    def save(self) -> None:
        """Write it for all that is durable. Raises OSError, but not where the disk is full."""


class Trail(Protocol):
    """What is told of the names that come and go: `catalog.CatalogTrail`."""

    def put(self, pos: int) -> None: ...

    def remove(self, name: bytes) -> None: ...


class Known(Protocol):
    """The live files of a container: `index.Index`."""

    trail: Trail | None

    @property
    def count(self) -> int: ...

    def has_since(self, since: int) -> bool: ...

    def positions(self, since: int = 0) -> Int64: ...

    def lookup(self, key: bytes) -> int: ...

    def candidates(self, keys: Sequence[bytes]) -> Int64: ...

    def changes(self, covered: int) -> dict[bytes, int] | None: ...


class Opened(Protocol):
    """A container that is open, as derived files see it: `Store`, which says what each means."""

    base: str
    name: str
    writable: bool
    mapped: bool
    directory: Directory
    kv: KVSeq
    settings: Settings
    synced: int
    nextfid: int

    @property
    def index(self) -> Known: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def catalog_from(self) -> int: ...

    def inode_at(self, pos: int) -> tuple[bytes, Inode, bool]: ...

    def key_at(self, pos: int) -> bytes: ...

    def is_directory(self, key: bytes) -> bool: ...

    def note(self, problem: CorruptError | str) -> None: ...

    def remark(self, error: DerivedDamage) -> None: ...

    def excuse(self, error: OSError) -> None: ...

    def deriving(
        self,
        suffix: str,
        *,
        uncached: bool = False,
        unsure: Callable[[], object] | None = None,
    ) -> AbstractContextManager[Storage]: ...
