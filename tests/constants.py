"""Constants of the product that tests change, so that little is enough to pass a limit.

    shrink(monkeypatch, "rows of a block of the catalog", 6)

Where one moves, its line here changes and no test.
"""

from __future__ import annotations

from typing import Final

import pytest

PLACES: Final = {
    # formats
    "bytes of a scan window": "winkformats.kv.scan.WINDOW",
    "bytes of the longest scan window": "winkformats.kv.scan.MAX_WINDOW",
    "bytes read to check a long entry": "winkformats.kv.scan.PIECE",
    "rows of one key looked at together": "winkformats.arrays.ROWS",
    "texts whose pairs of bytes are counted": "winkformats.arrays.RANKED",
    "texts that tell whether all are in order": "winkformats.arrays.SOME",
    "cells of a bucket": "winkformats.hindex.table.BUCKET",
    "entries of a segment": "winkformats.hindex.table.SEGMENT",
    "pairs of a sorted block": "winkformats.extsort.BLOCK",
    "bytes of pairs written at once": "winkformats.perm.FLUSH",
    "bytes read at the cost of a page": "winkformats.disk.storage.SINGLE",
    "bytes for each look by a read": "winkformats.disk.storage.MAPPED",
    "runs of pages dropped": "winkformats.disk.posix.RUNS",
    "filesystems where a mapping keeps a lock": "winkformats.disk.posix.KEEPING",
    # a container
    "bytes of a batch of pack": "winkfs.archive.pack.BATCH",
    "bytes after which an update syncs": "winkfs.archive.pack.SYNCED",
    "extents of a file whose inode is a chain": "winkfs.container.write.LEAST",
    "times the bytes of the inode above it": "winkfs.container.ondisk.chain.RATIO",
    "changes that a close leaves": "winkfs.container.store.LEFT",
    "files of the index for each of them": "winkfs.container.store.SHARE",
    "files of an index that is always written": "winkfs.container.store.LARGE",
    "bytes read while a change is replayed": "winkfs.container.store.REPLAYED",
    "rows put that go to memory": "winkfs.container.index.FOLD",
    "bytes of names sorted in memory": "winkfs.container.catalog.CHUNK",
    "inodes of a piece of columns": "winkfs.container.survey.FILES",
    "rows of a block of the catalog": "winkfs.container.ondisk.catalog.BLOCK",
    "blocks of a catalog decoded together": "winkfs.container.ondisk.catalog.AT_ONCE",
    "bytes between blocks that are read": "winkfs.container.ondisk.catalog.GAP",
    "bytes of names decoded together": "winkfs.container.ondisk.block.TOGETHER",
    "bytes of names filled in one by one": "winkfs.container.ondisk.block.FEW",
    "bytes of a catalog that stay in the page cache": "winkfs.container.ondisk.catalog.BUDGET",
    "bytes of a catalog that are dropped at a time": "winkfs.container.ondisk.catalog.STEP",
    "changed names that are added": "winkfs.container.catalog.CHANGES",
    "rows behind the first run of a catalog": "winkfs.container.catalog.FEW",
    "rows that a close reads for the catalog": "winkfs.container.catalog.QUICK",
    "rows put in bulk that a close writes": "winkfs.container.catalog.CHEAP",
    "bytes put for each of more rows": "winkfs.container.catalog.DENSE",
    "rows kept for a close in any case": "winkfs.container.catalog.SURE",
    "rows kept for a close": "winkfs.container.catalog.MOST",
    "runs of a catalog": "winkfs.container.catalog.RUNS",
    "files for each row that is looked up": "winkfs.container.catalog.LOOKED_UP",
    "bytes of a tail that a close reads": "winkfs.container.catalog.QUICK_TAIL",
    "rows of runs that a close joins": "winkfs.container.catalog.QUICK_RUN",
    "names read back at a time": "winkfs.container.namesorter.BLOCK",
    "blocks of a catalog cut between any files": "winkfs.spark.reading.selected.FEW",
    # a data set
    "sorter of names to pack": "winkfs.dataset.packing.SortedRecords",
    "bytes of a process of pack": "winkfs.dataset.packing.PARALLEL",
    "shards open at once": "winkfs.dataset.reading.OPEN",
    "manifests to a checkpoint": "winkfs.dataset.manifest.EACH",
    "bytes of a short manifest": "winkfs.dataset.manifest.SMALL",
    "manifests to a checkpoint, to vacuum": "winkfs.dataset.maintain.EACH",
    "parts of an index that are looked up": "winkfs.dataset.hidden.FEW",
    "files of which one name is read from the data file": "winkfs.dataset.hidden.SPARSE",
    "rows compared together": "winkfs.dataset.hidden.ROWS",
    "names merged at once": "winkfs.mounting.datasetnames.SOME",
    "rows of a data set read together": "winkfs.mounting.datasetnames.SHEET",
    "names of an order that is always made anew": "winkfs.mounting.datasetnames.SMALL",
    "names put into an order one by one": "winkfs.mounting.datasetnames.FEW",
    # a message store
    "bytes of a segment": "winkfs.stores.messagestore.store.ROLL",
    "bytes of a large message": "winkfs.stores.messagestore.store.LARGE",
    "bytes that a message store gathers": "winkfs.stores.messagestore.store.BUFFER",
    "bytes of a journal of messages": "winkfs.stores.messagestore.store.JOURNAL_ROOM",
    "bytes of segments compacted together": "winkfs.stores.messagestore.compaction.TOGETHER",
    "messages of segments looked up together": "winkfs.stores.messagestore.compaction.MANY",
    # a queue
    "bytes that a queue gathers": "winkfs.stores.ledgerq.tail.BUFFER",
    "bytes of a journal of cursors": "winkfs.stores.ledgerq.state.JOURNAL_ROOM",
    # a mount
    "changes to a new catalog": "winkfs.mounting.view.CHANGES",
    "inodes read ahead": "winkfs.mounting.view.AHEAD",
    "names of a directory looked at together": "winkfs.mounting.listing.BATCH",
    "entries of a directory made at once": "winkfs.mounting.numbers.BATCH",
    "numbers that the kernel is given": "winkmount.kernel.entries.LEAST",
    "numbers that are given freely": "winkmount.kernel.entries.FREELY",
    "part of the memory for numbers": "winkmount.kernel.entries.SHARE",
    "ids remembered": "winkfs.mounting.ids.RECENT",
    "pages that a mount leaves in the cache": "winkfs.mounting.lookup.PAGES",
    "seconds to the other half of an unlink": "winkmount.handles._SOON",
    "seconds to a server's answer": "winkmount.mounts.ANSWER",
    "seconds until umount says why it waits": "winkmount.mounts.SLOW",
    "device of FUSE": "winkmount.service.DEVICE",
}


def shrink(patch: pytest.MonkeyPatch, what: str, value: object) -> None:
    """Give a constant another value, till the end of the test."""
    patch.setattr(PLACES[what], value)


def make_chains(patch: pytest.MonkeyPatch) -> None:
    """A file that is changed gets an inode that builds on the one before, however small it is."""
    shrink(patch, "extents of a file whose inode is a chain", 0)
    shrink(patch, "times the bytes of the inode above it", 0.2)


def leave_tails(patch: pytest.MonkeyPatch) -> None:
    """A close writes a new index only where there are more changes than files in the old one."""
    shrink(patch, "files of the index for each of them", 1)
    shrink(patch, "files of an index that is always written", 1)
