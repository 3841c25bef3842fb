"""BASE.idx of an open container: how it is loaded, and brought up to date."""

from __future__ import annotations

import time

from winkformats import hashing
from winkformats.arrays import Int64
from winkformats.disk.memory import MemoryStorage
from winkformats.hindex import table
from winkformats.hindex.table import Rows
from winkformats.kv.superblock import SBSIZE
from winkfs.container.datafile import DataFile
from winkfs.container.ondisk.idx import DAMAGED, Base, open_base, write_base


class DerivedIndex:
    """BASE.idx of an open container: `Index.base`, on disk or, for a reader, made in memory.

    packed   what `pack --update` goes by: the variables of PACKED
    damaged  damaged places of the data file whose files the index does not have
    healing  whether the file is damaged, and a writer has to replace it
    """

    suffix = ".idx"

    def __init__(self, store: DataFile) -> None:
        self._store = store
        self.packed: dict[str, int] = {}
        self.damaged = 0
        self.healing = False

    def load(self) -> Base | None:
        """Take the file for the index; None: it is missing, or no good, and the index empty."""
        store = self._store
        block, end = store.kv.superblock, store.kv.end
        base = open_base(
            store.directory, store.name, store.settings, block, end, store.remark,
            mapped=store.mapped,
        )  # fmt: skip
        self._store.index.replace(base)
        self.packed = base.packed if base is not None else {}
        self.damaged = base.damaged if base is not None else 0
        if self.damaged:
            store.note(
                f"{store.kv.storage.name}: files in {self.damaged} damaged places are not in its "
                "index: winkfs verify shows them, winkfs repair mends it"
            )
        return base

    def is_kept(self, base: Base) -> bool:
        """Whether the file on the disk is the base, and says all but what a replay finds."""
        same = (self.packed, self.damaged) == (base.packed, base.damaged)
        on_disk = not isinstance(base.storage, MemoryStorage)
        return on_disk and same and not (self.healing or self._store.settings.classic)

    def save(self) -> None:
        self.healing = False
        try:
            rows, extra = self._merged()
            self._store.index.replace(self.write(rows, extra))
        except OSError as error:
            self._store.excuse(error)
            self._store.index.fold()  # the tail will be replayed

    def _merged(self) -> tuple[Rows, Int64 | None]:
        """All rows. Where a slot does not follow from a cell the keys of all files are read; what
        that brings into the page cache does not stay there."""
        settings, storage = self._store.settings, self._store.kv.storage
        if settings.htalgo in hashing.SLOT_FROM_S and settings.cellsz > 1:
            return self._store.index.merged()
        drop = storage.dropper(0, storage.size())
        try:
            return self._store.index.merged()
        finally:
            if drop is not None:
                drop(0, storage.size())

    def write(self, rows: Rows, extra: Int64 | None = None) -> Base:
        """Write a new file. Raises OSError."""
        store = self._store
        with store.deriving(self.suffix) as storage:
            storage.mapped = store.mapped
            return write_base(storage, store.settings, rows, extra, self.variables())

    def in_memory(self, rows: Rows, variables: dict[str, int]) -> Base:
        """The same table in memory."""
        settings = self._store.settings
        memory = MemoryStorage(name=self._store.base + ".idx (in memory)")
        room = 8 * settings.cellsz * (table.size_for(len(rows.pos)) + 1)
        memory.preallocate(SBSIZE + room)  # at once: a bytearray that grows is copied
        return write_base(memory, settings, rows, None, variables, sums=False)

    def variables(self) -> dict[str, int]:
        """Variables of a file written now."""
        store = self._store
        now = store.kv.superblock.get("SYNCTIME", int(time.time()))
        known = {"DATAEND": store.kv.end, "NEXTFID": store.nextfid, "SYNCTIME": now} | self.packed
        return known | ({DAMAGED: self.damaged} if self.damaged else {})
