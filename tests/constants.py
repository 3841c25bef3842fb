"""Constants of the product that tests change, so that little is enough to pass a limit.

    shrink(monkeypatch, "the catalog", block=6, behind=0)

Where one moves, its line here changes and no test.
"""

from __future__ import annotations

from typing import Final

import pytest

PLACES: Final[dict[str, dict[str, str | tuple[str, ...]]]] = {
    "a scan": {
        "window": "winkformats.kv.scan.WINDOW",  # bytes of a scan window
        "longest": "winkformats.kv.scan.MAX_WINDOW",  # bytes of the longest scan window
        "piece": "winkformats.kv.scan.CHECK_CHUNK",  # bytes read to check a long entry
    },
    "a sequence": {
        "step": "winkformats.kv.sequence.MAX_INCR",  # bytes reserved at a time, at most
    },
    "arrays": {
        "rows": "winkformats.arrays.ROWS_AT_ONCE",  # rows of one key looked at together
        "ranked": "winkformats.arrays.RANKED_FROM",  # texts whose pairs of bytes are counted
    },
    "a table": {
        "bucket": "winkformats.hindex.table.BUCKET",  # cells of a bucket
        "segment": "winkformats.hindex.table.SEGMENT",  # entries of a segment
    },
    "looks": {
        "single": "winkformats.disk.storage.BYTES_PER_FAULT",  # bytes read at the cost of a page
        "read": "winkformats.disk.storage.BYTES_PER_READ",  # bytes for each look by a read
    },
    "the disk": {
        "dropped": "winkformats.disk.posix.MAX_DROPPED_RUNS",  # runs of pages dropped
        "keeping": "winkformats.disk.posix.MAPPING_KEEPS_LOCK",  # types of file systems
    },
    "pack": {
        "batch": "winkfs.archive.packer.WAITING_BYTES",  # bytes of a batch
        "synced": "winkfs.archive.packer.SYNC_BYTES",  # bytes after which an update syncs
        "sorter": "winkfs.dataset.packing.SortedRecords",  # sorter of names to pack
        "parallel": "winkfs.dataset.packing.PARALLEL",  # bytes for a process of its own
    },
    "chains": {
        "extents": "winkfs.container.write.MIN_CHAIN_EXTENTS",  # fewest extents
        "ratio": "winkfs.container.ondisk.chain.RATIO",  # of a link: least part of the whole
    },
    "the index": {
        "each": "winkfs.container.store.FILES_PER_CHANGE",  # files for each change left
        "small": "winkfs.container.store.SMALL_INDEX",  # files of an index that is always written
        "replayed": "winkfs.container.store.REPLAYED_BYTES",  # bytes read per replayed change
        "fold": "winkfs.container.index.FOLD",  # rows put that go to memory
    },
    "the catalog": {
        "chunk": "winkfs.container.catalog.SORTED_BYTES",  # bytes of names sorted in memory
        "piece": "winkfs.container.survey.TABLE_FILES",  # inodes of a piece of columns
        "block": "winkfs.container.ondisk.catalog.BLOCK",  # rows of a block
        "together": "winkfs.container.ondisk.run.AT_ONCE",  # blocks decoded together
        "gap": "winkfs.container.ondisk.run.GAP_BYTES",  # bytes between blocks that are read
        "decoded": "winkfs.container.ondisk.block.TOGETHER",  # bytes of names decoded together
        "cached": "winkfs.container.ondisk.run.CACHED_BYTES",  # bytes that stay in the page cache
        "dropped": "winkfs.container.ondisk.run.DROP_BYTES",  # bytes dropped at a time
        "changes": "winkfs.container.catalog.Policy.changes",  # changed names that are added
        "behind": "winkfs.container.catalog.Policy.behind",  # rows behind the first run that stay
        "read": "winkfs.container.catalog.Policy.read",  # rows that a close reads
        "bulk": "winkfs.container.catalog.Policy.bulk",  # rows put in bulk that a close writes
        "dense": "winkfs.container.catalog.Policy.dense",  # bytes put for each of more rows
        "sure": "winkfs.container.catalog.Policy.sure",  # rows kept for a close in any case
        "kept": "winkfs.container.catalog.Policy.kept",  # rows kept for a close
        "runs": "winkfs.container.catalog.Policy.runs",  # most runs
        "short": "winkfs.container.catalog.Policy.short",  # bytes of a tail that becomes a run
        "tail": "winkfs.container.catalog.Policy.tail",  # bytes of a tail that a close reads
        "joined": "winkfs.container.catalog.Policy.joined",  # rows of runs that a close joins
        "read_back": "winkfs.container.namesorter.BLOCK",  # names read back at a time
        "cut": "winkfs.spark.reading.selected.MAX_SMALL_CATALOG",  # blocks that Spark cuts anywhere
    },
    "a data set": {
        "open": "winkfs.dataset.reading.MAX_OPEN",  # shards open at once
        # manifests to a checkpoint
        "each": (
            "winkfs.dataset.manifest.CHECKPOINT_INTERVAL",
            "winkfs.dataset.maintain.CHECKPOINT_INTERVAL",
        ),
        "short": "winkfs.dataset.manifest.CHECKPOINT_BYTES",  # bytes of a short manifest
        "compared": "winkfs.dataset.hidden.ROWS_PER_PASS",  # rows compared together
    },
    "an order": {
        "merged": "winkfs.mounting.datasetnames.MERGED_NAMES",  # names merged at once
        "sheet": "winkfs.mounting.datasetnames.ROWS_READ",  # rows read together
        "small": "winkfs.mounting.datasetnames.SMALL_ORDER",  # of one that is always made anew
        "added": "winkfs.mounting.datasetnames.ADDED_NAMES",  # names put into an order one by one
    },
    "a LogStore": {
        "patience": "winkfs.stores.logstore.transaction.SNAPSHOT_PATIENCE",  # seconds
    },
    "a message store": {
        "segment": "winkfs.stores.messagestore.core.SEGMENT_BYTES",  # bytes of a segment
        "large": "winkfs.stores.messagestore.core.LARGE_BODY_BYTES",  # bytes of a large message
        "gathered": "winkfs.stores.messagestore.core.BUFFER_BYTES",  # bytes gathered
        "journal": "winkfs.stores.messagestore.core.JOURNAL_BYTES",  # bytes of a journal
        "together": "winkfs.stores.messagestore.compaction.GROUP_BYTES",  # bytes compacted together
        "looked_up": "winkfs.stores.messagestore.compaction.PASS_MESSAGES",  # looked up together
    },
    "a queue": {
        "gathered": "winkfs.stores.ledgerq.tail.BUFFER_BYTES",  # bytes gathered
        "journal": "winkfs.stores.ledgerq.state.JOURNAL_ROOM",  # bytes of a journal
    },
    "a mount": {
        "changes": "winkfs.mounting.view.CHANGES",  # changes to a new catalog
        # names of a directory that are listed, and entries that are made, at once
        "batch": ("winkfs.mounting.listing.MOST_AT_ONCE", "winkfs.mounting.numbers.MOST_AT_ONCE"),
        "given": "winkmount.kernel.giving.LEAST_NUMBERS",  # numbers that the kernel is given
        "memory": "winkmount.kernel.giving.MEMORY_SHARE",  # part of the memory for numbers
        "remembered": "winkfs.mounting.ids.RECENT",  # ids remembered
        "cached": "winkfs.mounting.lookup.MOST_PAGES",  # pages that a mount leaves in the cache
        "answer": "winkmount.mounts.ANSWER",  # seconds to a server's answer
        "wait": "winkmount.mounts.SLOW",  # seconds until umount says why it waits
        "device": "winkmount.service.DEVICE",  # device of FUSE
    },
}


def shrink(patch: pytest.MonkeyPatch, what: str, **values: object) -> None:
    """Give constants other values, till the end of the test."""
    for name, value in values.items():
        places = PLACES[what][name]
        for place in places if isinstance(places, tuple) else (places,):
            patch.setattr(place, value)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogs of few files have several blocks."""
    shrink(monkeypatch, "the catalog", block=4)


def make_chains(patch: pytest.MonkeyPatch) -> None:
    """A file that is changed gets an inode that builds on the one before, however small it is."""
    shrink(patch, "chains", extents=0, ratio=0.2)


def leave_tails(patch: pytest.MonkeyPatch) -> None:
    """A close writes a new index only where there are more changes than files in the old one."""
    shrink(patch, "the index", each=1, small=1)
