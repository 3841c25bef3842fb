"""Sections of the suite about containers: pack, read an archive, put, get, reindex."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sqlite3
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import archives
import htmltree
import samples
from common import PIECE, Options, Phases, Watch, container_files, evict, scratch, warm
from rivals import Lmdb, Rival, Rocks, Sqlite
from suite_run import Section, Step, split

import winkfs
from winkformats.disk.posix import RWF_DONTCACHE

Files = list[tuple[str, bytes]]
TOGETHER: Final = 1024  # names of one statement of SQLite, values of one raw write
MEGABYTE: Final = 1e6


def tree_of(asked: Options, full: int = 6_000) -> tuple[Path, list[Path], str]:
    """A tree of HTML files, its files in order, what it is."""
    tree, told = htmltree.make(asked.place, asked.size(full, 1_000))
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    warm(*files)
    return tree, files, told.partition(":")[0]


@contextmanager
def packing(asked: Options) -> Iterator[Section]:
    tree, files, told = tree_of(asked, 12_000)
    makers, absent = split({name: (x.program, x) for name, x in archives.MAKERS.items()})
    size = sum(path.stat().st_size for path in files)
    with scratch(asked) as place:
        cases = {name: partial(_pack, place, tree, maker) for name, maker in makers.items()}
        steps = {"all": Step("packed, durable, warm", "MB/s", size / MEGABYTE)}
        yield Section(f"Packing a tree: {told}", steps, cases, absent)


def _pack(place: Path, tree: Path, maker: archives.Maker) -> Phases:
    os.sync()
    watch = Watch()
    maker.make(tree, place / "archive")
    watch.lap("all")
    for path in place.iterdir():
        path.unlink()
    return watch.phases


# --- an archive read by name, in this process ---

Read = Callable[[str], bytes]


@contextmanager
def reading(asked: Options) -> Iterator[Section]:
    """Files read by name, warm, through an archive that was just opened."""
    tree, files, told = tree_of(asked)
    names = [path.relative_to(tree).as_posix() for path in files]
    total = sum(path.stat().st_size for path in files)
    openers = {
        "winkfs": ("winkfs", _open_winkfs), "zip, stored": ("zip, stored", _open_zip),
        "SQLite archive, stored": ("SQLite archive, stored", _open_sqlar),
        "tar, tarfile": ("tar", _open_tar),
    }  # fmt: skip
    with scratch(asked) as place:
        cases = {}
        for number, (system, (kind, opener)) in enumerate(openers.items()):
            archives.MAKERS[kind].make(tree, place / f"{number}")
            cases[system] = partial(_read_archive, place / f"{number}", opener, names, total)
        cases["ext4 directory"] = partial(_read_archive, tree, _open_tree, names, total)
        steps = {
            "open": Step("opened, one file read", "times/s", 1),
            "order": Step("read in order", "files/s", len(names)),
            "random": Step("read in random order", "files/s", len(names)),
        }
        yield Section(f"Reading an archive by name from Python, warm: {told}", steps, cases)


def _read_archive(path: Path, opener: Any, names: list[str], total: int) -> Phases:
    warm(*(file for file in path.parent.glob(f"{path.name}*") if file.is_file()))
    order = random.Random(samples.SEED).sample(names, len(names))
    watch = Watch()
    with opener(path) as read:
        read(names[0])
        watch.lap("open")
        got = sum(len(read(name)) for name in names)
        watch.lap("order")
        got += sum(len(read(name)) for name in order)
        watch.lap("random")
    assert got == 2 * total, "not all bytes were read"
    return watch.phases


@contextmanager
def _open_winkfs(path: Path) -> Iterator[Read]:
    with winkfs.open(path) as container:
        yield container.read


@contextmanager
def _open_zip(path: Path) -> Iterator[Read]:
    with zipfile.ZipFile(path) as archive:
        yield archive.read


@contextmanager
def _open_sqlar(path: Path) -> Iterator[Read]:
    with closing(sqlite3.connect(path)) as database:
        run = database.execute
        query = "SELECT data FROM sqlar WHERE name = ?"
        yield lambda name: run(query, (name,)).fetchone()[0]


@contextmanager
def _open_tar(path: Path) -> Iterator[Read]:
    with tarfile.open(path) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(members[f"./{name}"])
            assert file
            return file.read()

        members = {member.name: member for member in archive.getmembers()}
        yield read


@contextmanager
def _open_tree(path: Path) -> Iterator[Read]:
    root = f"{path}/"

    def read(name: str) -> bytes:
        file = os.open(root + name, os.O_RDONLY)
        try:
            return os.read(file, os.fstat(file).st_size)
        finally:
            os.close(file)

    yield read


# --- many small files, written and read by key ---


class Container(Rival):
    """winkfs, by names as str."""

    def open(self, *, new: bool = False) -> None:
        self.path.mkdir(exist_ok=True)
        base = self.path / "c"
        found = winkfs.create(base) if new else winkfs.open(base)
        assert isinstance(found, winkfs.Container)
        self.store = found

    def fill(self, files: Iterable[tuple[str, bytes]]) -> None:
        self.store.put_many(files)
        if self.durable:
            self.store.sync()

    def close(self) -> None:
        self.store.close()


def stores() -> dict[str, tuple[str, Any]]:
    """Stores by key: the package that each needs, and the class."""
    return {"winkfs": ("", Container), "LMDB": ("lmdb", Lmdb), "RocksDB": ("rocksdict", Rocks),
            "SQLite": ("", Sqlite)}  # fmt: skip


def split_stores() -> tuple[dict[str, Any], dict[str, str]]:
    here, absent = {}, {}
    for name, (package, kind) in stores().items():
        if package and not find_spec(package):
            absent[name] = f"{package} is not installed: pip install 'winkfs[bench]'"
        else:
            here[name] = kind
    return here, absent


@contextmanager
def putting(asked: Options) -> Iterator[Section]:
    small, large = asked.size(100_000, 20_000), asked.size(20_000, 3_000)
    mixed = samples.values(samples.mixed_sizes(small, 200, 3 * samples.KIB, samples.KIB))
    sixteen = samples.values(samples.equal_sizes(large, 16 * samples.KIB))
    ways: dict[str, Files] = {
        "ascending": list(zip(samples.names(small), mixed, strict=True)),
        "shuffled": list(zip(samples.names(small, shuffled=True), mixed, strict=True)),
        "large": list(zip(samples.names(large), sixteen, strict=True)),
    }
    here, absent = split_stores()
    steps = {
        "ascending": Step("1 KiB, names in order", "files/s", small),
        "shuffled": Step("1 KiB, names in any order", "files/s", small),
        "large": Step("16 KiB, names in order", "files/s", large),
    }
    with scratch(asked) as place:
        cases: dict[str, Callable[[], Phases]] = {
            name: partial(_put_all, place, kind, ways) for name, kind in here.items()
        }
        for name, flags in (("joined writes, cached", 0), ("joined writes", RWF_DONTCACHE)):
            cases[name] = partial(_write_all, place, ways["large"], flags)
        yield Section(
            f"put_many: {small:,} files of 1 KiB on average (200 B to 3 KiB), {large:,} of 16 KiB; "
            "durable; in rivals one transaction or batch, then synced", steps, cases, absent,
        )  # fmt: skip


def _put_all(place: Path, kind: Any, ways: dict[str, Files]) -> Phases:
    found: Phases = {}
    for way, files in ways.items():
        store = kind(place / "store", durable=True)
        store.open(new=True)
        os.sync()
        watch = Watch()
        _fill(store, files)
        watch.lap(way)
        store.close()
        found |= watch.phases
        shutil.rmtree(place / "store")
    return found


def _fill(store: Rival, files: Files) -> None:
    """Put all, in one transaction or batch."""
    if isinstance(store, Container):
        store.fill(files)
    else:
        store.put_many((name.encode(), data) for name, data in files)


def _write_all(place: Path, files: Files, flags: int) -> Phases:
    """The large values alone, joined, in one file: what a disk can do."""
    path, end = place / "raw", 0
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.sync()
    watch = Watch()
    for at in range(0, len(files), TOGETHER):
        data = b"".join([data for _, data in files[at : at + TOGETHER]])
        assert os.pwritev(file, [data], end, flags) == len(data)
        end += len(data)
    os.fsync(file)
    watch.lap("large")
    os.close(file)
    path.unlink()
    return watch.phases


@contextmanager
def getting(asked: Options) -> Iterator[Section]:
    count = asked.size(100_000, 20_000)
    contents = samples.values(samples.mixed_sizes(count, 200, 3 * samples.KIB, samples.KIB))
    files = list(zip(samples.names(count), contents, strict=True))
    names = samples.in_random_order([name for name, _ in files])
    steps = {
        "many": Step("get_many, warm", "files/s", count),
        "single": Step("single get, warm", "files/s", count),
        "cold": Step("opened, get_many, cold", "files/s", count),
    }
    here, absent = split_stores()
    with scratch(asked) as place:
        cases: dict[str, Callable[[], Phases]] = {}
        for name, kind in here.items():
            store = kind(place / name)
            store.open(new=True)
            _fill(store, files)
            store.close()
            cases[name] = partial(_get_all, store, names, dict(files))
        yield Section(
            f"Reading {count:,} files of 1 KiB on average by key in random order; names are str; "
            "winkfs verifies every checksum, RocksDB those of blocks, LMDB and SQLite none",
            steps, cases, absent,
        )  # fmt: skip


def _get_all(store: Rival, names: list[str], contents: dict[str, bytes]) -> Phases:
    found: Phases = {}
    evict(*store.files())
    watch = Watch()
    store.open()
    many, single = _getters(store)
    deque(many(names), maxlen=0)
    watch.lap("cold")
    found |= watch.phases
    del many, single
    store.close()
    warm(*store.files())
    store.open()
    many, single = _getters(store)
    assert all(data == contents[name] for name, data in zip(names, many(names), strict=True))
    watch = Watch()
    deque(many(names), maxlen=0)
    watch.lap("many")
    for name in names:
        single(name)
    watch.lap("single")
    del many, single
    store.close()
    gc.collect()
    return found | watch.phases


def _getters(store: Rival) -> tuple[Callable[[Sequence[str]], Any], Callable[[str], Any]]:
    """The fastest ways of a store to read many and one, by str."""
    if isinstance(store, Container):
        return store.store.get_many, store.store.read
    if isinstance(store, Lmdb):
        get = store.begin().get  # one transaction for all
        return (lambda names: [get(name.encode()) for name in names]), lambda name: get(
            name.encode()
        )
    if isinstance(store, Rocks):
        one = store.get
        return (lambda names: store.get_many([name.encode() for name in names])), (
            lambda name: one(name.encode())
        )
    return partial(_get_parts, store), lambda name: store.get(name.encode())


def _get_parts(store: Rival, names: Sequence[str]) -> Iterator[bytes]:
    """As many as a statement of SQLite may take at once."""
    for at in range(0, len(names), TOGETHER):
        yield from store.get_many([name.encode() for name in names[at : at + TOGETHER]])


# --- reindex ---


@contextmanager
def reindexing(asked: Options) -> Iterator[Section]:
    count = asked.size(200_000, 40_000)
    sizes = samples.mixed_sizes(count, 200, samples.KIB, 560)
    files = list(zip(samples.names(count), samples.values(sizes), strict=True))
    here, absent = split_stores()
    with scratch(asked) as place, ExitStack() as open_stores:
        with winkfs.create(place / "c") as container:
            container.put_many(files)
        data = container_files(place / "c")[0]
        cases: dict[str, Callable[[], Phases]] = {"winkfs": partial(_reindex, place / "c", count)}
        if "LMDB" in here:
            store = Lmdb(place / "lmdb")
            store.open(new=True)
            open_stores.callback(store.close)
            _fill(store, files)
            cases["LMDB: all looked at"] = partial(_walk, store)
        cases["the file read, nothing done"] = partial(_read_file, data)
        steps = {
            "reindex": Step("reindex, warm", "entries/s", 2 * count),
            "verify": Step("verify, warm", "entries/s", 2 * count),
        }
        yield Section(f"Index rebuilt, all verified: {count:,} files, two entries each; of rivals "
                      "the same files, nothing verified", steps, cases, absent,
                      frozenset(list(cases)[1:]))  # fmt: skip


def _reindex(base: Path, count: int) -> Phases:
    warm(*container_files(base))
    watch = Watch()
    assert winkfs.reindex(base) == count
    watch.lap("reindex")
    assert winkfs.verify(base).problems == []
    watch.lap("verify")
    return watch.phases


def _walk(store: Lmdb) -> Phases:
    watch = Watch()
    with store.begin() as transaction:
        deque(transaction.cursor(), maxlen=0)
    watch.lap("reindex")
    return watch.phases | {"verify": watch.phases["reindex"]}


def _read_file(path: Path) -> Phases:
    warm(path)
    buffer = bytearray(PIECE)
    watch = Watch()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    watch.lap("reindex")
    return watch.phases | {"verify": watch.phases["reindex"]}
