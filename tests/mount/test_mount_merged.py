"""The merged view of a data set over the catalogs of its shards, beside a model."""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data_sets
import escapes
import pytest
from constants import shrink
from flips import flip
from mounting import refused
from sources import at, contents, dataset, listed, tree_of
from sources import sources_end as sources_end  # a fixture
from test_mount_numbers import by_numbers, numbers_of, read_by_path

from winkformats.arrays import Int64
from winkformats.disk.paths import open_file
from winkfs import FileType
from winkfs.container.container import Container
from winkfs.container.ondisk.catalog import Catalog
from winkfs.dataset.snapshot import snapshot
from winkfs.errors import CorruptError
from winkfs.mounting.dataset import DatasetSource
from winkfs.mounting.datasetnames import KEPT_BLOCKS, MergedOrder, Turns
from winkfs.mounting.shards import Seen
from winkmount.source import UNREADABLE, Attr

pytestmark = pytest.mark.in_memory

PARTS = [
    b"a", b"b", b"b-", b"b.", b"b0", b"c", b"..", b"", b"\xff\xfe", b"x" * 256, b"y" * 200, b"@",
    b"@file", b".",
]  # fmt: skip
CHANCES = [9, 9, 3, 3, 3, 9, 1, 1, 2, 1, 1, 1, 1, 1]
KINDS = [FileType.FILE, FileType.FILE, FileType.EXEC, FileType.LINK, FileType.DIR]
MODES = {FileType.FILE: 0o644, FileType.EXEC: 0o755, FileType.LINK: 0o777, FileType.DIR: 0o755}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A worker of xdist cannot send lines of the log with names that are not UTF-8."""
    caplog.set_level(logging.CRITICAL, "winkfs.mount")


@dataclass(frozen=True)
class File:
    """What was put under a name; `owner` None: mode and owner are the defaults."""

    data: bytes
    ftype: FileType
    mtime_ns: int
    mode: int
    owner: tuple[int, int] | None

    def put(self, container: Container, name: bytes) -> None:
        owner: dict[str, Any] = {}
        if self.owner is not None:
            owner = {"mode": self.mode, "uid": self.owner[0], "gid": self.owner[1]}
        container.put(name, self.data, ftype=self.ftype, mtime_ns=self.mtime_ns, **owner)


def file_of(rng: random.Random, name: bytes) -> File:
    ftype = FileType.FILE if name.endswith(b"/") else rng.choice(KINDS)
    data = b"" if ftype == FileType.DIR else rng.randbytes(rng.randrange(1, 30))
    special = rng.random() < 0.3
    mode, owner = (0o751, (rng.randrange(9), 1 << 31)) if special else (MODES[ftype], None)
    return File(data, ftype, rng.choice([-1, 1]) * rng.randrange(1 << 62), mode, owner)


def names_of(rng: random.Random, count: int) -> list[bytes]:
    parts = (rng.choices(PARTS, CHANCES, k=rng.choice([1, 1, 2, 2, 3, 4, 8])) for _ in range(count))
    return sorted({b"/".join(some) for some in parts} - {b""})


def model(files: dict[bytes, File]) -> dict[bytes, File | None]:
    """Path -> what is shown there; None: a directory without an entry."""
    return escapes.shown(files, [n for n, file in files.items() if file.ftype == FileType.DIR])


def check(root: Path, files: dict[bytes, File]) -> None:
    """All of it, by ids and by numbers."""
    source, numbered = dataset(root), dataset(root)
    shown, expected = tree_of(source), model(files)
    assert set(shown) == set(expected)
    assert max((attr.id for attr in shown.values() if not attr.is_dir), default=0) < 1 << 62
    for path, file in expected.items():
        check_file(source, path, file, shown[path])
        for wrong in {path + b"!", path + b"0", path + b"/!", path[:-1].rstrip(b"/")} - {
            b"",
            *shown,
        }:
            assert source.attr(wrong) is None
    numbers = numbers_of(numbered)
    assert by_numbers(numbers) == shown
    for path, file in expected.items():
        if file is not None and file.ftype != FileType.DIR:
            assert read_by_path(numbers, path) == file.data
    assert source.status()["bytes"] == sum(len(file.data) for file in files.values())
    assert source.status()["files"] == len(files)
    assert source.order.clashes == clashes(files)


def check_file(source: DatasetSource, path: bytes, file: File | None, attr: Attr) -> None:
    assert source.stat(attr.id) == attr
    assert source.attr(path) == attr
    if file is None:
        assert stat.S_ISDIR(attr.mode)
        return
    kind = {FileType.DIR: stat.S_IFDIR, FileType.LINK: stat.S_IFLNK}.get(file.ftype, stat.S_IFREG)
    assert (stat.S_IFMT(attr.mode), stat.S_IMODE(attr.mode)) == (kind, file.mode)
    assert (attr.size, attr.mtime_ns) == (len(file.data), file.mtime_ns)
    assert (attr.uid, attr.gid) == (file.owner or (os.getuid(), os.getgid()))
    if file.ftype != FileType.DIR:
        assert source.read(attr.id, 0, 99) == file.data


def clashes(files: dict[bytes, File]) -> int:
    """Files, not directories, that have names below them."""
    above = {
        b"/".join(parts[:i]) for parts in (n.split(b"/") for n in files) for i in range(len(parts))
    }
    return sum(name in above for name, file in files.items() if file.ftype != FileType.DIR)


def filled(
    files: dict[bytes, File], runs: int, catalogs: dict[int, bytes]
) -> Callable[[Container], None]:
    """What puts these files in so many runs of the catalog; some are replaced, or go again.

    catalogs  gets the catalog by CONTID: a commit makes one run of it
    """

    def fill(container: Container) -> None:
        for turn in range(runs):
            for i, (name, file) in enumerate(files.items()):
                if i % runs == turn:
                    file.put(container, name)
                elif i % 5 == 0:
                    container.put(name, b"replaced", mtime_ns=3)
            if turn < runs - 1:
                container.put(f"gone {turn}", b"")
                container.save_catalog()
        for turn in range(runs - 1):
            container.delete(f"gone {turn}")
        for name, file in files.items():
            file.put(container, name)
        container.save_catalog()
        store = container.store
        catalogs[store.settings.contid] = Path(store.base + ".cat").read_bytes()

    return fill


def shard_runs(root: Path) -> list[int]:
    found = []
    for shard in snapshot(root).shards:
        with Catalog(open_file(shard.base + ".cat")) as file:
            found.append(len(file.runs))
    return found


def made(root: Path, rng: random.Random, shards: int, runs: int) -> dict[bytes, File]:
    """Files that are in several shards, and some that are deleted -> what is left."""
    files: dict[bytes, File] = {}
    catalogs: dict[int, bytes] = {}
    for turn in range(2):
        fills = []
        for _ in range(shards):
            names = names_of(rng, rng.choice([1, 9, 60]))
            names += rng.sample(sorted(files), min(len(files), 3))
            come = {name: file_of(rng, name) for name in dict.fromkeys(names)}
            fills.append(filled(come, runs, catalogs))
            files |= come
        data_sets.commit(root, fills)
        if turn == 0:
            gone = [name for name in rng.sample(sorted(files), min(len(files), 5)) if is_text(name)]
            data_sets.delete(root, *(name.decode() for name in gone))
            for name in gone:
                del files[name]
    for shard in snapshot(root).shards if runs > 1 else ():
        if shard.record.contid in catalogs:
            Path(shard.base + ".cat").write_bytes(catalogs[shard.record.contid])
    return files


@pytest.fixture(autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a block and of a sheet; names of an order that is made anew, and merged at once."""
    block, sheet, small, merged = getattr(request, "param", (5, 8, 0, 1 << 14))
    shrink(monkeypatch, "the catalog", block=block)
    shrink(monkeypatch, "an order", sheet=sheet, small=small, merged=merged)


def is_text(name: bytes) -> bool:
    return name.isascii()


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize(
    ("number", "sizes"),
    [*enumerate([(2, 3, 0, 2), (5, 16, 0, 2), (1024, 1024, 1 << 16, 2), (2, 16, 1 << 16, 1 << 14),
               (5, 3, 0, 1 << 14), (1024, 3, 1 << 16, 2)])],
    indirect=["sizes"],
)  # fmt: skip
def test_view_is_that_of_the_model(root: Path, number: int, runs: int) -> None:
    rng = random.Random(number)
    files = made(root, rng, rng.choice([1, 2, 5]), runs)
    if runs > 1:
        assert max(shard_runs(root)) > 1
    check(root, files)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "damaged", "older"])
def test_view_without_good_catalogs_is_the_same(root: Path, how: str) -> None:
    rng = random.Random(how)
    files = made(root, rng, 3, 1)
    for number, shard in enumerate(snapshot(root).shards):
        path = Path(shard.base + ".cat")
        if how == "missing":
            path.unlink(missing_ok=True)
        elif how == "damaged":
            damage_part(path, number)
        else:
            path.write_bytes(Path(snapshot(root).shards[0].base + ".cat").read_bytes())
    check(root, files)


def damage_part(path: Path, number: int) -> None:
    """A bit of a block of a catalog, or of its index."""
    with Catalog(open_file(os.fspath(path))) as file:
        if not file.runs[0].count:
            return
        place = int(file.runs[0].parts["pos"][0]) if number % 2 else file.listed[0][0]
    flip(path, place + 17, bits=4)


@pytest.mark.slow
def test_long_names_stand_where_they_belong(root: Path) -> None:
    long = [b"/".join([b"%03d" % i + b"z" * 200] * 9) for i in range(0, 90, 3)]
    names = [*long, *(b"%03d" % i for i in range(90)), *(b"%03dz" % i for i in range(90))]
    files = {name: File(name[:9], FileType.FILE, 7, 0o644, None) for name in names}
    shards = [dict(list(files.items())[k::3]) for k in range(3)]
    data_sets.commit(root, [filled(shard, 1, {}) for shard in shards])
    check(root, files)


@pytest.mark.long
@pytest.mark.slow
def test_one_long_name_does_not_make_all_others_as_long(root: Path) -> None:
    shards = [
        {f"{i:05}": b"" for i in range(k, 9000, 3)} | {f"{k}" * 60_000: b""} for k in range(3)
    ]
    data_sets.add(root, *shards)
    tracemalloc.start()
    source = dataset(root)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 30 << 20
    assert len(listed(source, source.root)) == 9000


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_belong_to_the_owner_of_their_shard(root: Path) -> None:
    """Unless they have an owner of their own."""
    rng = random.Random(1)
    shards = [{b"%04d" % i: file_of(rng, b"") for i in range(k, 300, 3)} for k in range(3)]
    data_sets.commit(root, [filled(shard, 1, {}) for shard in shards])
    os.chown(snapshot(root).shards[1].base + ".data", 12, 34)
    source = dataset(root)
    for name, attr in tree_of(source).items():
        file = shards[int(name) % 3][name]
        default = (12, 34) if int(name) % 3 == 1 else (0, 0)
        assert (attr.uid, attr.gid) == (file.owner or default)
        assert stat.S_IMODE(attr.mode) == file.mode
        assert source.stat(attr.id) == attr
        assert source.attr(name) == attr


def test_hidden_files_that_are_to_be_seen_again_are(root: Path) -> None:
    data_sets.add(root, dict.fromkeys("aceg", b""), dict.fromkeys("bd", b""))
    source = dataset(root)
    one, two = source.order.shards
    at = one.catalog.part(0, 4).pos

    def hiding(positions: Int64) -> list[Seen]:
        return [Seen(1, (0, 0), one.catalog, positions), two]

    def names(order: MergedOrder) -> bytes:
        return b"".join(order.names(0, order.count))

    half = MergedOrder.of(hiding(at[1:3]), (0, 0))
    assert names(half) == b"abdg"
    whole = half.updated(hiding(at[2:3]))
    assert names(whole) == b"abcdg"
    less = whole.updated(hiding(at[:3]))
    assert names(less) == b"bdg"
    assert [less.find(bytes([name])) for name in b"abcdeg"] == [-1, 0, -1, 1, -1, 2]


# --- shards one behind the other ---


def plain(names: list[str]) -> dict[bytes, File]:
    return {
        name.encode(): File(name.encode(), FileType.FILE, i, 0o644, None)
        for i, name in enumerate(names)
    }


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "chained"),
    [
        ([["a/1", "a/2"], ["b/1"], ["c"]], True),
        ([["b/1"], ["c"], ["a/1", "a/2"]], True),
        ([["a", "a-", "a-b"], ["a-c", "a.", "a0"]], True),
        ([["a", "a-", "a-b"], ["a-c", "a.", "a/x"]], False),  # a file has a name below it
        ([["a", "a-"], ["a."], ["a.d", "a/x/y"]], False),
        ([["a/1", "c"], ["b/1"]], False),
        ([["a", "a/x"], ["b"]], False),
    ],
)
def test_shards_one_behind_the_other_need_no_turns(
    root: Path, shards: list[list[str]], chained: bool
) -> None:
    files = [plain(names) for names in shards]
    data_sets.commit(root, [filled(some, 1, {}) for some in files])
    source = dataset(root)
    assert isinstance(source.order._order, Turns) != chained
    source.close()
    whole = {name: file for some in files for name, file in some.items()}
    check(root, whole)
    deleted = sorted(whole)[1]
    data_sets.delete(root, deleted.decode())
    del whole[deleted]
    check(root, whole)


@pytest.mark.long
@pytest.mark.slow
def test_blocks_that_are_kept_do_not_grow_with_the_shards(root: Path) -> None:
    names = [f"{i:04}" for i in range(4000)]
    data_sets.add(root, *(dict.fromkeys(names[k::100], b"") for k in range(100)))
    source = dataset(root)
    for name in random.Random(0).sample(names, 500):
        assert source.attr(name.encode())
    assert len(listed(source, source.root)) == 4000
    order = source.order
    assert len(order._blocks) <= KEPT_BLOCKS
    assert not any(shard.run._blocks for shard in order.shards)


# --- damage and loss under a mount ---


def three(root: Path, count: int = 300) -> dict[bytes, File]:
    files = plain([f"d{i % 7}/{i:04}" for i in range(count)])
    data_sets.commit(root, [filled(dict(list(files.items())[k::3]), 1, {}) for k in range(3)])
    return files


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["block", "cut"])
def test_catalog_damaged_under_a_mount_is_made_anew(
    root: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = three(root)
    source, numbered = dataset(root), dataset(root)
    numbers = numbers_of(numbered)
    ids = {path: attr.id for path, attr in tree_of(source).items()}
    shrink(monkeypatch, "the catalog", block=7)  # of the one that is made
    for some in source, numbered:
        forget(some.order)
        assert [some.order.name(i) for i in range(20)] == sorted(files)[:20]
        some.order._single_names.clear()
    handle = source.opendir(at(source, "d3"))
    half = source.readdir(handle, 0)
    begun = [next(half) for _ in range(3)]
    path = Path(snapshot(root).shards[1].base + ".cat")
    if how == "cut":
        os.truncate(path, 5000)
    else:
        for block in range(9, 20):
            damage_block(path, block)
    assert healing(source, lambda: {p: a.id for p, a in tree_of(source).items()}) == ids
    entries = [*begun, *source.readdir(handle, begun[-1].offset)]
    assert [e.name for e in entries] == sorted(p[3:] for p in files if p.startswith(b"d3/"))
    assert healing(numbered, lambda: set(by_numbers(numbers))) == set(ids)
    for path_, file in files.items():
        assert source.read(ids[path_], 0, 99) == file.data


def forget(order: MergedOrder) -> None:
    """All that was read."""
    order._sheet = 0, []
    order._sheets.clear()
    order._blocks.clear()
    order._single_names.clear()


def test_a_damaged_inode_without_a_catalog_costs_no_other(root: Path) -> None:
    files = three(root)
    base = snapshot(root).shards[1].base
    with Catalog(open_file(base + ".cat")) as file:
        pos = int(file.runs[0].block(0).table.numbers[3, 0])
        name = file.runs[0].block(0).table.names[3]
    flip(base + ".data", pos + 40, bits=4)
    Path(base + ".cat").unlink()
    source = dataset(root)
    shown = tree_of(source)
    assert set(files) <= set(shown)
    assert [path for path, attr in shown.items() if attr.size == UNREADABLE] == [name]
    with pytest.raises(CorruptError):
        source.attr(name)


def damage_block(path: Path, number: int) -> None:
    with Catalog(open_file(os.fspath(path))) as file:
        place = int(file.runs[0].parts["pos"][number])
    flip(path, place + 40, bits=4)


def healing(source: DatasetSource, call: Callable[[], Any]) -> Any:
    """As the engine calls: once more after damage that was healed."""
    for _ in range(9):
        try:
            return call()
        except Exception as error:
            if not source.heal(error):
                raise
    raise AssertionError("it heals and heals")


@pytest.mark.slow
def test_files_of_a_shard_without_data_keep_their_attributes(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = three(root)
    whole = dataset(root)
    before = {path: attr._replace(id=0) for path, attr in tree_of(whole).items()}
    lost = snapshot(root).shards[2]
    os.unlink(lost.base + ".data")
    with caplog.at_level(logging.WARNING, "winkfs.mount"):
        source, numbered = dataset(root), dataset(root)
    assert lost.base in caplog.text and "its files cannot be read" in caplog.text
    assert source.status()["broken_shards"] == 1
    assert contents(whole) == {path: file.data for path, file in files.items()}
    shown = tree_of(source)
    assert {path: attr._replace(id=0) for path, attr in shown.items()} == before
    assert set(by_numbers(numbers_of(numbered))) == set(shown)
    count = 0
    for path, file in files.items():
        assert source.stat(shown[path].id) == shown[path]
        try:
            assert source.read(shown[path].id, 0, 99) == file.data
            count += 1
        except OSError as error:
            assert error.errno == errno.EIO
    assert count == 200


def test_shards_without_data_or_a_whole_catalog_are_hidden(root: Path) -> None:
    files = three(root)
    lost = snapshot(root).shards[0]
    os.unlink(lost.base + ".data")
    damage_block(Path(lost.base + ".cat"), 0)
    source = dataset(root)
    assert len([path for path in tree_of(source) if path in files]) == 200
    with refused(errno.ENOENT):
        at(source, "d0/0000")
