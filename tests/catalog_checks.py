"""What the tests of catalogs share: those of a container, and a slow model of one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import winkfs
from winkformats.disk.posix import FileStorage
from winkfs.container.catalog import open_catalog
from winkfs.container.ondisk.catalog import Catalog, CatalogWriter
from winkfs.container.ondisk.inode import Attrs
from winkfs.container.select import Query, rows_now
from winkfs.container.store import Store
from winkfs.container.table import ASK, MODE_AT, SPECIAL, FileTable
from winkfs.entry import FileType
from winkfs.units import nearest_ns


@contextmanager
def store_of(base: Path, writable: bool = False) -> Iterator[Store]:
    store = Store(str(base), writable=writable)
    try:
        yield store
    finally:
        store.abandon()


def above(names: Iterable[bytes]) -> set[bytes]:
    return {name[:i] for name in names for i, byte in enumerate(name) if byte == 0x2F}


def clashes_of(names: Iterable[bytes]) -> int:
    """Names that another name begins with, followed by /."""
    found = set(names)
    return len(above(found) & found)


def row_of(store: Store, name: bytes) -> list[int]:
    """What a catalog has to say of a file, from its inode alone."""
    pos = store.index.lookup(name + b"/I0")
    inode = store.inode_at(pos)[1]
    ns = store.settings.ns_of(inode.mtime)
    mtime = nearest_ns(ns)
    pointer = -1 if inode.lsize else 0
    if len(inode.extents) == 1 and inode.lsize and not inode.links:
        only = inode.extents[0]
        value = store.entry_at(only.pointer).value if only.pointer else b""
        if (only.skip, only.size, len(value)) == (0, inode.lsize, inode.lsize):
            pointer = only.pointer
    kind, owner, ctime = inode.ftype or FileType.FILE, 0, mtime
    kind |= ASK if mtime != ns else 0
    if inode.attrs is not None:
        at, size = inode.attrs
        attrs = Attrs.decode(store.entry_at(at).value[:size], file="", offset=at)
        kind |= SPECIAL | attrs.mode << MODE_AT
        owner = int.from_bytes(
            attrs.uid.to_bytes(4, "little") + attrs.gid.to_bytes(4, "little"), "little", signed=True
        )
        ctime = mtime if attrs.ctime_ns is None else attrs.ctime_ns
    return [pos, inode.fileid, inode.lsize, mtime, pointer, ctime, kind, owner]


def assert_catalog(store: Store, catalog: Catalog, names: Iterable[bytes]) -> None:
    """A catalog, with what came after it, has these names, and of each what its inode says."""
    wanted = sorted(names)
    found = list(rows_now(store, catalog, Query()))
    assert [name for rows in found for name in rows.names] == wanted
    numbers = [row for rows in found for row in rows.numbers.tolist()]
    assert numbers == [row_of(store, name) for name in wanted]
    if catalog.covered == store.kv.end and len(catalog.runs) == 1:
        assert catalog.names(0, catalog.count) == wanted
        assert catalog.part(0, catalog.count).numbers.tolist() == numbers
        places = {name: store.index.lookup(name + b"/I0") for name in wanted}
        directories = {
            name for name, pos in places.items() if store.inode_at(pos)[1].ftype == FileType.DIR
        }
        assert catalog.clashes == clashes_of(wanted) - len(directories & above(wanted))


def save_catalog(base: Path) -> None:
    """Have a writer bring BASE.cat up to date."""
    with winkfs.open(base, "a") as container:
        container.save_catalog()


def rows_of_catalog(base: Path) -> tuple[FileTable, int, int]:
    """Return the rows of BASE.cat, what it covers of the data file, and its clashes."""
    with store_of(base) as store, open_catalog(store) as catalog:
        (rows,) = catalog.rows(list(store.schema))
        return rows, catalog.covered, catalog.clashes


def write_catalog(base: Path, rows: FileTable, end: int, clashes: int) -> None:
    """Write BASE.cat with one run of these rows, right or wrong."""
    with store_of(base) as store, FileStorage(f"{base}.cat", "w") as storage:
        storage.truncate(0)
        writer = CatalogWriter.create(
            storage, {"CONTID": store.settings.contid}, dict(store.schema)
        )
        writer.write_run([rows])
        writer.finish(end, 0, clashes)


def check_catalog(base: Path, names: set[bytes]) -> None:
    """BASE.cat covers all of the data file, and is right."""
    with store_of(base) as store:
        catalog = open_catalog(store, behind=0)
        assert catalog is not None
        with catalog:
            assert_catalog(store, catalog, names)


def far_times(base: Path) -> None:
    """A container with the empty files far, past and near; int64 does not hold the mtimes of two of
    them in nanoseconds."""
    with winkfs.create(base, classic=True, htalgo=2) as container:
        container.put("near", b"", 5)
    with store_of(base, writable=True) as store:  # as others may write it
        inode = store.inode_at(store.index.lookup(b"near/I0"))[1]
        for name, mtime in ((b"far", 10**12), (b"past", -(10**12))):
            other = replace(inode, fileid=inode.fileid + abs(mtime) + (mtime < 0), mtime=mtime)
            store.kv.append(name + b"/I0", other.encode(store.settings.form, inode.size))
        store.sync_data()
