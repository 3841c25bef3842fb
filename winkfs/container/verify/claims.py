"""Claims: what inodes say of their data entries, in bulk, and what is wrong with the inodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from winkformats.arrays import Int64, row_bytes
from winkformats.errors import CorruptError
from winkformats.kv.scan import Batch
from winkfs.container.content import attributes
from winkfs.container.inodescan import FIELDS, InodeRows
from winkfs.container.ondisk.inode import CK_XXH3, HEAD, Inode
from winkfs.container.store import Store


def rows_of_inodes(batch: Batch) -> InodeRows:
    """The rows of a batch that holds nothing but checked inodes."""
    fields = batch.words(batch.value, FIELDS, ">i8").astype(np.int64)
    which = np.arange(len(batch))
    return InodeRows(batch, which, batch.pos, batch.flags == 1, fields, batch.value_len)


class Claims:
    """Reads the pairs of inodes and checks the inodes by the way.

    problem  is told what is wrong with an inode, in a line
    """

    def __init__(self, store: Store, problem: Callable[[str], None]) -> None:
        self._store, self._problem = store, problem
        self._name, self._form = store.kv.storage.name, store.settings.form
        self._odd: list[tuple[int, int, int, int]] = []

    def of(self, rows: InodeRows) -> Int64:
        """int64[n, 4]: inode, kv_pointer (0: a hole), bytes of the value it needs, FILEID.

        cost    0.7 us an inode with one pair, 10 us another
        """
        form = self._form
        pair = form.pair // 8
        plain = (rows.fields[:, 6] == 1) & (rows.size >= HEAD.size + form.pair)
        simple = np.flatnonzero(plain)
        claims = np.empty((0, 4), np.int64)
        if len(simple):
            where = rows.batch.value[rows.which[simple]]
            stored = rows.batch.words(where, FIELDS + pair, ">i8")
            words = stored.astype(np.int64)
            self._check_sums(rows, simple, stored)
            size = words[:, -1]
            need = np.where(size < 0, -size, size + (words[:, 8] if form.pairoff else 0))
            odd = (size < words[:, 3]) | (words[:, 1] != 0) | (size < 0) | (need < size)
            for row in simple[odd].tolist():
                self._decode(rows, row)
            claims = np.stack([rows.pos[simple], words[:, 7], need, words[:, 2]], 1)
        for row in np.flatnonzero((rows.size > 0) & ~plain).tolist():
            self._decode(rows, row)
        if self._odd:
            claims = np.concatenate([claims, np.array(self._odd, np.int64)])
            self._odd = []
        return claims

    def _check_sums(self, rows: InodeRows, simple: Int64, stored: npt.NDArray[Any]) -> None:
        """CKSUM of inodes with one pair, in one column. `stored`: their words as in the file."""
        covered = np.ascontiguousarray(stored[:, 1:])
        texts = row_bytes(covered)
        digest = xxhash.xxh3_64_intdigest if self._form.ckalgo == CK_XXH3 else self._form.sum
        sums = np.fromiter(map(digest, texts), np.uint64, len(texts))
        for row in simple[sums.view(np.int64) != rows.fields[simple, 0]].tolist():
            self._decode(rows, row)

    def _decode(self, rows: InodeRows, row: int) -> None:
        """Take an inode apart the slow way: note its claims, or what is wrong with it."""
        pos = int(rows.pos[row])
        try:
            inode = Inode.decode(rows.value(row), self._form, file=self._name, offset=pos)
        except CorruptError as error:
            self._problem(str(error))
            return
        owner = inode.fileid
        self._odd += [(pos, e.pointer, e.skip + e.size, owner) for e in inode.extents if e.pointer]
        if inode.attrs:
            self._odd.append((pos, *inode.attrs, owner))
            if not rows.deleted[row]:
                self._check_attrs(inode, pos)

    def _check_attrs(self, inode: Inode, pos: int) -> None:
        store = self._store
        try:
            attributes(inode, store.owner, store.entry_at, self._name)
        except CorruptError as error:
            self._problem(f"{self._name}: inode at byte {pos}: {error}")
