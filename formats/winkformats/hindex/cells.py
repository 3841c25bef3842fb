"""Base of hindex and perm: a file of equal cells after a superblock, changed by one writer.

Order of durable changes
    cells in place   the variables that declare them valid (DATAEND, SYNCTIME) become 0 and are
                     synced, then the cells change; `sync` syncs the cells, and then the new
                     variables (checksums of the pages, see `pagesums`, are dropped at the first
                     change)
    a whole rewrite  a new file is written beside the old one, synced and renamed over it; then the
                     directory is synced. Until the rename the old file is unchanged
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from winkformats.closing import Closing
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.paths import locate
from winkformats.disk.schemes import scheme_of
from winkformats.disk.storage import Storage, replacing
from winkformats.errors import CorruptError, FormatError
from winkformats.kv import pagesums
from winkformats.kv.superblock import FORMAT_NAMES, Superblock, read_superblock

MAX_INT64: Final = (1 << 63) - 1
VALIDITY: Final = ("DATAEND", "SYNCTIME", pagesums.VARIABLE)  # variables that declare cells valid


class CellFile(Closing):
    """An open file of cells, base of HIndex and Perm.

    storage     the file; replaced by a rewrite
    superblock  current variables, which are on the disk only after `sync`
    sbsize      size of the superblock: offset of the first cell
    """

    def __init__(self, storage: Storage, superblock: Superblock, *, writable: bool) -> None:
        self.storage = storage
        self.superblock, self.sbsize = superblock, superblock["SBSIZE"]
        self.writable = writable
        self._changed = False  # since the last sync
        self._closed = False

    def sync(self, variables: Mapping[str, int] | None = None, *, now: int | None = None) -> None:
        """Make all cells durable, then the superblock that includes them.

        variables   further ones to store in the same write. After a change in place DATAEND is 0
                    until it is given here: only the caller knows what the cells cover now
        now         SYNCTIME, seconds since the epoch
        raises      OSError
        """
        self._need_writable()
        if not self._changed and not variables:
            return
        self._update_superblock()
        if self._changed:
            self._forget_sums()
        self._note_sync(variables or {}, now)
        self.storage.sync()  # a superblock must never name cells that are not there
        self._write_superblock()
        self._changed = False

    def seal(self, variables: Mapping[str, int] | None = None, *, now: int | None = None) -> None:
        """Write the superblock and the checksums of all pages, not synced.

        For a file that has no readers yet, since a crash meanwhile leaves it damaged. A later
        change drops the checksums.
        cost    one pass over the file
        """
        self._need_writable()
        self._update_superblock()
        at = pagesums.place(self.superblock["FILESIZE"])
        self._note_sync({**(variables or {}), pagesums.VARIABLE: at}, now)
        self.storage.write(0, [self.superblock.encode()])
        pagesums.write(self.storage, self.superblock)
        self._changed = False

    def close(self) -> None:
        """Sync changes and close the storage. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.writable and self._changed:
                self.sync()
        finally:
            self.storage.close()

    def _update_superblock(self) -> None:
        """Bring sizes and counters in `superblock` up to date; called by `sync`."""
        raise NotImplementedError

    def _note_sync(self, variables: Mapping[str, int], now: int | None) -> None:
        block = self.superblock
        if "SYNCSIZE" in block:
            block["SYNCSIZE"] = block["FILESIZE"]
        if "SYNCTIME" in block:
            block["SYNCTIME"] = int(time.time()) if now is None else now
        block.update(variables)

    def _write_superblock(self) -> None:
        self.storage.write(0, [self.superblock.encode()])
        self.storage.sync()

    def _need_writable(self) -> None:
        if not self.writable:
            raise PermissionError(errno.EPERM, f"{self.storage.name} is open for reading only")

    def _begin_change(self) -> None:
        """Declare the cells invalid, durably, before they change in place."""
        if any(self.superblock.get(name) for name in VALIDITY):
            self.superblock.update({name: 0 for name in VALIDITY if name in self.superblock})
            self._write_superblock()
        self._changed = True

    def _rewrite(self, fill: Callable[[Storage], None]) -> None:
        """Replace the file by a new one that `fill` writes, and continue with it."""
        self._forget_sums()
        self.storage = replace(self.storage, fill)

    def _forget_sums(self) -> None:
        if pagesums.VARIABLE in self.superblock:
            self.superblock[pagesums.VARIABLE] = 0


def open_superblock(storage: Storage, form: int) -> Superblock:
    """Read and check the superblock of a file of format `form`.

    ->      with FILESIZE, which is at most the size of the file
    raises  FormatError
    """
    name = storage.name
    block = read_superblock(storage)
    if block["FORMAT"] != form:
        found = FORMAT_NAMES.get(block["FORMAT"], f"FORMAT {block['FORMAT']:#x}")
        raise FormatError(f"{name}: not a {FORMAT_NAMES[form]} file but {found}")
    block.check_known(name)
    try:
        block.encode()  # raises now, not after a change, if it cannot be written back
    except ValueError as error:
        raise FormatError(f"{name}: bad superblock: {error}") from None
    size = storage.size()
    if block.setdefault("FILESIZE", size) > size:
        raise CorruptError(
            "file is cut short", file=name, offset=size, expected=block["FILESIZE"], found=size
        )
    return block


def need_variable(block: Superblock, name: str, low: int, high: int, *, file: str) -> int:
    """Return a required variable. Raises FormatError if it is missing or outside [low, high]."""
    if name not in block:
        raise FormatError(f"{file}: the superblock has no {name}")
    if not low <= block[name] <= high:
        raise FormatError(f"{file}: {name} {block[name]} is outside {low} to {high}")
    return block[name]


def check_filesize(block: Superblock, cells: int, *, file: str) -> None:
    """Check that FILESIZE is that of the superblock and `cells` bytes. Raises CorruptError."""
    expected = block["SBSIZE"] + cells
    if block["FILESIZE"] != expected:
        raise CorruptError(
            "FILESIZE does not fit the number of cells", file=file, offset=block["SBSIZE"],
            expected=expected, found=block["FILESIZE"],
        )  # fmt: skip


def int64_row(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Convert a row of integers to int64[n]. Raises ValueError for anything else."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("expected a row of integers that fit into int64")
    if array.dtype.kind == "u" and array.size and int(array.max()) > MAX_INT64:
        raise ValueError(f"{int(array.max())} does not fit into int64")
    return array.astype(np.int64)


def need_empty(storage: Storage) -> None:
    if storage.size():
        raise ValueError(f"{storage.name}: a new file must start empty")


def replace(storage: Storage, fill: Callable[[Storage], None]) -> Storage:
    """Replace the file of `storage` atomically by a new one.

    fill    writes the whole content into an empty storage
    ->      the new storage; the old one is closed
    raises  OSError, and what `fill` raises; then the old file is unchanged
    """
    if isinstance(storage, MemoryStorage):
        memory = MemoryStorage(name=storage.name)
        fill(memory)
        storage.truncate(memory.size())
        storage.write(0, [memory.data])
        return storage
    # The target of a symbolic link is replaced, not the link.
    directory, name = locate(_real(storage.name))
    with replacing(directory, name, like=storage, uncached=storage.uncached, keep=True) as new:
        fill(new)
    new.name = storage.name
    storage.close()
    return new


def scratch(storage: Storage) -> Storage:
    """Create an empty file without a name on the disk of `storage`, removed when it is closed."""
    if isinstance(storage, MemoryStorage):
        return MemoryStorage(name=f"{storage.name}.runs")
    return locate(_real(storage.name))[0].scratch()


def _real(path: str) -> str:
    return path if scheme_of(path) else os.path.realpath(path)
