"""Chains: inodes that say only what is other than in older ones of their file."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from constants import make_chains
from container_checks import delete, drop, files_of, image_of, path_of
from flips import flip
from folders import unchanged
from oracle_read import check
from stored import read

import winkfs
from winkformats.errors import CorruptError
from winkfs import Container
from winkfs.container.compact import compact
from winkfs.container.ondisk import chain
from winkfs.container.ondisk.chain import above, changed, laid_over
from winkfs.container.ondisk.inode import BELOW, Extent, ExtentArray, Inode, InodeForm, Link
from winkfs.container.repair import repair, rollback
from winkfs.container.salvage import salvage
from winkfs.entry import FileType
from winkfs.mounting.container import ContainerSource
from winkmount.openfiles import OpenFiles
from winkmount.source import run_steps

BLOCK = 4096
OTHERS = {"before": b"1" * 3000, "after": b"2" * 3000}  # beside "file"
FORM = InodeForm(pairoff=True, ckalgo=2, chains=True)


def overwritten(base: Path, *, blocks: int = 400, syncs: int = 12, each: int = 30) -> bytearray:
    """A container with a file that was overwritten at random -> its content. Other files are
    around it; the last syncs made chains."""
    dice = random.Random(7)
    model = bytearray(dice.randbytes(blocks * BLOCK))
    with winkfs.create(base) as c:
        c.put("before", OTHERS["before"], mtime=1)
        c.put("file", bytes(model), mtime=1)
        c.put("after", OTHERS["after"], mtime=1)
        for _ in range(syncs):
            overwrite(c, dice, model, each)
            c.sync()
    return model


@pytest.fixture
def model(base: Path) -> bytearray:
    return overwritten(base)


def overwrite(c: Container, dice: random.Random, model: bytearray, count: int) -> None:
    for _ in range(count):
        at = dice.randrange(len(model) // BLOCK) * BLOCK + dice.choice([0, 0, 0, 17])
        data = dice.randbytes(min(dice.choice([BLOCK, BLOCK, 100]), len(model) - at))
        c.write("file", at, data)
        model[at : at + len(data)] = data


def links_of(base: Path, name: str = "file") -> tuple[Link, ...]:
    with winkfs.open(base) as c:
        store = c.store
        return store.inode_at(store.index.lookup(name.encode() + b"/I0"))[1].links


# --- extents ---


def spread(dice: random.Random, size: int, below: int) -> list[Extent]:
    """Extents of `size` bytes, some of them BELOW in the first `below` bytes."""
    found, at = [], 0
    while at < size:
        length = min(dice.randint(1, 9), size - at)
        pointer = dice.choice([0, 100, 100, 200, BELOW if at + length <= below else 200])
        found.append(Extent(pointer, at if pointer > 0 else 0, length))
        at += length
    return found


def bytes_of(extents: ExtentArray) -> list[tuple[int, int]]:
    """(pointer, skip) of each byte; skip 0 where there is no entry."""
    return [(p, s + i if p > 0 else 0) for p, s, n in extents for i in range(n)]


@pytest.mark.parametrize("seed", range(30))
def test_extent_layers_match_bytes_byte_by_byte(seed: int) -> None:
    dice = random.Random(seed)
    size, low = dice.randint(1, 80), dice.randint(1, 80)
    lower = ExtentArray.of(spread(dice, low, dice.choice([0, low])))
    upper = ExtentArray.of(spread(dice, size, min(size, low)))
    wanted = [b if p == BELOW else (p, s) for (p, s), b in zip(
        bytes_of(upper), bytes_of(lower) + [(0, 0)] * size, strict=False)]  # fmt: skip
    found = laid_over(upper, lower)
    assert bytes_of(found) == wanted
    assert sum(found.rows[:, 2]) == size


@pytest.mark.parametrize("seed", range(30))
def test_what_has_changed_and_what_was_there_is_what_there_is(seed: int) -> None:
    dice = random.Random(seed)
    old = ExtentArray.of(spread(dice, dice.randint(1, 90), 0))
    patch = ExtentArray.of(spread(dice, dice.randint(1, 90), min(len(bytes_of(old)), 60)))
    new = laid_over(patch, old)
    rows = changed(old, new)
    assert bytes_of(laid_over(rows, old)) == bytes_of(new)


@pytest.mark.slow
def test_an_inode_builds_on_one_twice_as_large() -> None:
    def inode(step: int, under: Inode | None) -> Inode:
        rows = np.array([[100 + i, 0, 10] for i in range(3000)], np.int64)
        if under is not None:
            rows = ExtentArray.of(under.extents).rows.copy()
            rows[np.arange(step, 3000, 300), 0] = 10_000 + step
        return Inode(5, 30_000, FileType.FILE, 0, ExtentArray(rows))

    now, pos, written = inode(0, None), 8192, 0
    for step in range(200):
        whole = inode(step, now)
        stored, links = above(whole, now, pos)
        size, pos = len(stored.encode(FORM, 128)), pos + 100_000
        written += size
        mine = (chain.link_of(pos, size, stored), *links) if links else ()
        now = Inode(5, 30_000, FileType.FILE, 0, whole.extents, None, size, 0, mine)
        sizes = [link.size for link in mine]
        assert all(2 * a < b for a, b in itertools.pairwise(sizes))
        assert len(mine) <= 10
    assert written < 200 * 72_000 / 12


# --- what is written ---


def test_growth_is_bounded(base: Path) -> None:
    """4 KiB overwrites of a file of 8 MiB, synced after every 50."""
    dice = random.Random(1)
    with winkfs.create(base) as c:
        c.put("file", bytes(2000 * BLOCK))
        c.sync()
        before, written = path_of(base, ".data").stat().st_size, 0
        for _ in range(60):
            c.change(c.changes.write_many, b"file/I0", [
                (dice.randrange(2000) * BLOCK, bytes(BLOCK)) for _ in range(50)
            ], None)  # fmt: skip
            c.sync()
            written += 50 * BLOCK
        end = c.store.kv.end
    assert end - before <= 1.2 * written
    assert 2 <= len(links_of(base)) <= 8


def test_the_extension_comes_with_the_first_file_that_needs_it(tmp_path: Path, base: Path) -> None:
    dice = random.Random(3)
    with winkfs.create(base) as c:
        c.put("file", bytes(400 * BLOCK))
        for _ in range(30):
            c.write("file", dice.randrange(3) * BLOCK, b"!")
            c.sync()
        assert "INCHAIN" not in c.superblock
        assert c.superblock["INCOMPAT"] & 64 == 0
    model = overwritten(tmp_path / "d", syncs=6)
    with winkfs.open(tmp_path / "d") as c:
        assert (c.superblock["INCHAIN"], c.superblock["INCOMPAT"] & 64) == (1, 64)
        assert len(c.superblock) <= 31
        assert c.read("file") == model
    assert links_of(tmp_path / "d")


def test_columns_and_chains_have_room_in_one_sector(base: Path) -> None:
    dice = random.Random(3)
    with winkfs.create(base, columns={"n": "int64"}) as c:
        model = bytearray(400 * BLOCK)
        c.put("file", bytes(model), columns={"n": 5})
        for _ in range(20):
            overwrite(c, dice, model, 12)
            c.sync()
    with winkfs.open(base) as c:
        assert {"INCHAIN", "COLUMNS"} <= c.superblock.keys()
        assert len(c.superblock) <= 31
        assert c.getcolumns("file") == {"n": 5}
        assert c.read("file") == model
    assert any(found.inode and found.inode.nexti for found in check(base).inodes)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> None:
    make_chains(monkeypatch)


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("variant", [{"ao": True}, {"classic": True}])
def test_other_variants_have_no_chains(base: Path, variant: dict[str, bool]) -> None:
    with winkfs.create(base, **variant) as c:
        c.put("file", b"1234", mtime=5)
        c.append("file", b"5")
        c.sync()
        c.put("file", b"again", mtime=6)
    with winkfs.open(base) as c:
        assert "INCHAIN" not in c.superblock
        assert c.read("file") == b"again"


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_random_life_beside_a_bytearray(
    base: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    if seed % 2:
        request.getfixturevalue("chains")
    dice, name = random.Random(seed), "file"
    model = bytearray(dice.randbytes(300 * BLOCK))
    c = winkfs.create(base)
    c.put(name, bytes(model))
    reader = winkfs.open(base)
    for step in range(24):
        verb = dice.choice(["write"] * 12 + ["truncate", "append", "rename", "chmod", "reopen"])
        if verb == "write":
            for _ in range(12):
                at, size = dice.randrange(len(model)), dice.choice([1, 90, BLOCK, 9000])
                model[at : at + size] = data = dice.randbytes(size)
                c.write(name, at, data)
        elif verb == "truncate":
            size = dice.randrange(len(model) - 50_000, len(model) + 50_000)
            c.truncate(name, size)
            model = model[:size] + bytes(max(size - len(model), 0))
        elif verb == "append":
            model += (data := dice.randbytes(5000))
            c.append(name, data)
        elif verb == "rename":
            c.rename(name, f"name {step}")
            name = f"name {step}"
        elif verb == "chmod":
            c.chmod(name, dice.choice([0o600, 0o644]))
        elif verb == "reopen":
            c.close()
            c = winkfs.open(base, "a")
        c.sync()
        if step % 8 == 0:
            assert c.read(name) == reader.read(name) == model
    c.close()
    assert reader.read(name) == model
    reader.close()
    assert links_of(base, name)
    assert winkfs.verify(base).problems == []
    tree = check(base)
    assert tree.files[name.encode()].content == model
    with winkfs.open(base) as c:
        assert list(c.get_many([name])) == [model]
        assert [entry.read() for entry in c.scan()] == [model]
        assert c.open_file(name).read() == model


def test_a_file_that_is_deleted_takes_all_of_its_entries_along(base: Path) -> None:
    overwritten(base)
    assert links_of(base)
    delete(base, "file")
    tree = check(base)
    dead = [entry for entry in tree.entries if entry.delflag == 0]
    assert len(dead) == 4  # two files of two entries
    assert compact(base).after < 20_000


@pytest.mark.slow
def test_a_writer_that_was_killed_leaves_delflags_to_the_next(base: Path) -> None:
    model, dice = overwritten(base), random.Random(4)
    c = winkfs.open(base, "a")
    for _ in range(5):
        overwrite(c, dice, model, 30)
        c.sync()
    c.write("file", 0, b"not synced")
    image = image_of(base)
    c.close()
    winkfs.open(image, "a").close()
    assert read(image, "file") == model
    assert winkfs.verify(image).problems == []
    check(image, missing_ok=True)


def test_spark_reads_it(base: Path) -> None:
    """The reader of its partitions, without Spark."""
    pytest.importorskip("pyarrow")
    from winkfs.arrow.rows import Contents

    model = overwritten(base)

    def read_rows() -> tuple[list[bytes | None], dict[int, Exception]]:
        with winkfs.open(base) as c, closing(Contents(c.store, 8192, c.store.kv.end)) as contents:
            values, errors = contents.read(pos, np.array([-1]), np.array([len(model)]))
            return values.to_pylist(), errors

    with winkfs.open(base) as c:
        pos = np.array([c.store.index.lookup(b"file/I0")])
    assert read_rows() == ([model], {})
    flip(path_of(base, ".data"), middle(base), bits=0x10)
    values, errors = read_rows()
    assert values == [None]
    assert "bad entry" in str(errors[0]) or "checksum" in str(errors[0])


def test_a_mount_gathers_overwrites_and_syncs_them(base: Path) -> None:
    dice = random.Random(5)
    model = overwritten(base, syncs=3)
    source = ContainerSource(winkfs.open(base, "a"))
    id = source.lookup(source.root, b"file").id
    file = OpenFiles(source).add(id)
    for _ in range(30):
        for _ in range(10):
            at, data = dice.randrange(400) * BLOCK, dice.randbytes(BLOCK)
            file.write(at, data)
            model[at : at + BLOCK] = data
        file.pass_on()
        run_steps(source.syncing(id))
        at = dice.randrange(len(model))
        assert file.read(at, 9000) == model[at : at + 9000]
    source.close()
    assert read(base, "file") == model
    assert links_of(base)
    assert winkfs.verify(base).problems == []


# --- compact, reindex ---


@pytest.mark.slow
@pytest.mark.parametrize("order", ["disk", "name"])
def test_compact_makes_plain_inodes(base: Path, order: str, model: bytearray) -> None:
    answer = compact(base, dry_run=True)
    assert compact(base, order=order) == answer
    with winkfs.open(base) as c:
        assert "INCHAIN" not in c.superblock
        assert c.superblock["INCOMPAT"] & 64 == 0
    assert files_of(base) == OTHERS | {"file": model}
    assert not links_of(base)
    assert winkfs.verify(base).problems == []
    check(base, missing_ok=True)


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("order", ["disk", "name"])
def test_compact_of_chains_rebuilds_the_catalog(base: Path, order: str) -> None:
    with winkfs.create(base) as c:
        c.put("file", b"0123456789")
        for mode in (0o600, 0o640, 0o644):
            c.chmod("file", mode)
            c.sync()
    assert links_of(base)
    compact(base, order=order)
    assert path_of(base, ".cat").exists()
    assert winkfs.verify(base).problems == []
    check(base)
    assert read(base, "file") == b"0123456789"


def test_reindex_keeps_them(base: Path, model: bytearray) -> None:
    drop(base, ".idx", ".cat")
    with unchanged(path_of(base, ".data")):
        assert winkfs.reindex(base) == 3
    assert read(base, "file") == model


# --- damage ---


def hits(base: Path, every: int) -> list[int]:
    """Places in the inodes of the chain of "file", head first."""
    return [
        at for link in links_of(base) for at in range(link.pos + 1, link.pos + link.size, every)
    ]


@pytest.mark.slow
def test_a_flipped_bit_in_a_chain_is_reported(base: Path) -> None:
    model = overwritten(base, syncs=20, each=12)
    links = links_of(base)
    assert len(links) >= 3
    places = hits(base, 211)
    assert len(places) > 30
    for at in places:
        flip(path_of(base, ".data"), at, bits=0x10)
        with winkfs.open(base) as c:
            try:
                assert c.read("file") == model
                raise AssertionError(f"byte {at} makes no difference")
            except (CorruptError, FileNotFoundError):
                assert at < links[0].pos + links[0].size
            found, problems = scanned(c)
            assert found == OTHERS
            assert problems
        flip(path_of(base, ".data"), at, bits=0x10)
    assert read(base, "file") == model


def scanned(c: Container) -> tuple[dict[str, bytes], list[object]]:
    """-> the contents that a scan finds, and what it tells of others."""
    found, problems = dict[str, bytes](), list[object](c.notes)
    for entry in c.scan(problem=problems.append):
        try:
            found[entry.name] = entry.read()
        except CorruptError as error:
            problems.append(error)
    return found, problems


def middle(base: Path) -> int:
    """A byte of an inode in the middle of the chain."""
    link = links_of(base)[1]
    return link.pos + link.size // 2


def test_verify_reports_a_broken_chain_and_repair_removes_it(base: Path, model: bytearray) -> None:
    flip(path_of(base, ".data"), middle(base), bits=0x10)
    assert winkfs.verify(base).problems
    answer = repair(base)
    assert answer.lost == ["file"]
    done = repair(base, apply=True)
    assert done.lost == ["file"]
    assert winkfs.verify(base).problems == []
    assert files_of(base) == OTHERS
    left = read(done.removed, "files/file")
    assert len(left) == len(model)
    same = sum(left[at : at + 100] == model[at : at + 100] for at in range(0, len(model), 100))
    assert same >= 100  # what the newest inode says is there
    check(base, missing_ok=True)


def test_salvage_uses_the_newest_inodes(tmp_path: Path, base: Path, model: bytearray) -> None:
    flip(path_of(base, ".data"), middle(base), bits=0x10)
    done = salvage(base, tmp_path / "out")
    assert (done.files, done.partial) == (2, 1)
    left = read(tmp_path / "out", "lost+found/file")
    assert len(left) == len(model)
    assert any(left[at : at + 100] == model[at : at + 100] for at in range(0, len(model), 100))


@pytest.mark.parametrize("chains", [True, False])
def test_lost_superblocks_are_made_anew(base: Path, chains: bool) -> None:
    model = overwritten(base, syncs=12 if chains else 0)
    with path_of(base, ".data").open("r+b") as file:
        file.write(bytes(8192))
    repair(base, apply=True)
    with winkfs.open(base) as c:
        assert c.read("file") == model
        assert ("INCHAIN" in c.superblock) == bool(c.superblock["INCOMPAT"] & 64) == chains
    assert bool(links_of(base)) == chains
    assert winkfs.verify(base).problems == []


def test_rollback_goes_back_to_an_older_chain(base: Path, model: bytearray) -> None:
    before = path_of(base, ".data").read_bytes()
    dice, later = random.Random(11), bytearray(model)
    with winkfs.open(base, "a") as c:
        overwrite(c, dice, later, 30)
    after = path_of(base, ".data").read_bytes()
    # The superblocks of before, the entries of after: as where the last sync was never acknowledged
    path_of(base, ".data").write_bytes(before[:8192] + after[8192:])
    rollback(base)
    assert read(base, "file") == model
    assert winkfs.verify(base).problems == []
    check(base, missing_ok=True)


# --- inodes that nobody writes ---


def forged(base: Path, nexti: int, extents: list[Extent], lsize: int, **more: int) -> None:
    """A container with the file "f", whose inode is made up; "old" at 1 is the inode before it."""
    with winkfs.create(base) as c:
        c.put("f", b"0123456789")
        c.put("g", b"another")
        c.sync()
        store = c.store
        store.need_chains()
        c.put("h", b"")
        c.sync()
        at = store.index.lookup(b"f/I0")
        old = store.inode_at(at)[1]
        where = {1: at, 2: store.index.lookup(b"g/I0"), 3: old.extents[0].pointer}
        fileid = more.get("fileid", old.fileid)
        made = Inode(fileid, lsize, FileType.FILE, 0, extents, nexti=where.get(nexti, nexti))
        pos = store.kv.append(b"f/I0", made.encode(FORM, 128))
        store.index.assign(b"f/I0", pos)
        store.kv.sync()
        store.pending_deletes.append(at)


TEN = [Extent(BELOW, 0, 10)]


def test_a_made_up_chain_that_is_right_is_read(base: Path) -> None:
    forged(base, 1, [Extent(BELOW, 0, 4), Extent(0, 0, 3), Extent(BELOW, 0, 0)], 7)
    assert read(base, "f") == b"0123\0\0\0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nexti", "extents", "lsize"),
    [
        (2, TEN, 10),  # of another file
        (3, TEN, 10),  # content
        (1 << 40, TEN, 10),
        (-5, TEN, 10),
        (8193, TEN, 10),  # the middle of an entry
        (0, TEN, 10),
        (1, [Extent(BELOW, 0, 11)], 11),  # more than there is
        (1, [Extent(0, 0, 5), Extent(BELOW, 0, 6)], 11),
        (1, [Extent(-2, 0, 10)], 10),
        (1, TEN, 11),
    ],
)
def test_an_invalid_chain_is_reported(
    tmp_path: Path, base: Path, nexti: int, extents: list[Extent], lsize: int
) -> None:
    forged(base, nexti, extents, lsize)
    with winkfs.open(base) as c:
        for look in (
            lambda: c.read("f"),
            lambda: list(c.get_many(["f"])),
            lambda: [entry.read() for entry in c.scan()],
        ):
            with pytest.raises(CorruptError):
                look()
        assert c.read("g") == b"another"
    assert winkfs.verify(base).problems
    salvage(base, tmp_path / "out")
    assert read(tmp_path / "out", "g") == b"another"


def test_a_chain_of_too_many_inodes_is_reported(base: Path) -> None:
    forged(base, 1, TEN, 10)
    with winkfs.open(base, "a") as c:
        store = c.store
        pos = store.index.lookup(b"f/I0")
        fileid = store.inode_at(pos)[1].fileid
        for _ in range(80):
            made = Inode(fileid, 10, FileType.FILE, 0, TEN, nexti=pos)
            store.pending_deletes.append(pos)
            pos = store.kv.append(b"f/I0", made.encode(FORM, 128))
            store.index.assign(b"f/I0", pos)
    with winkfs.open(base) as c, pytest.raises(CorruptError, match="NEXTI"):
        c.read("f")


def test_without_inchain_an_inode_builds_on_no_other(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("f", b"0123456789")
        store = c.store
        at = store.index.lookup(b"f/I0")
        made = Inode(store.inode_at(at)[1].fileid, 10, FileType.FILE, 0, TEN, nexti=at)
        store.index.assign(b"f/I0", store.kv.append(b"f/I0", made.encode(FORM, 128)))
        with pytest.raises(CorruptError, match="do not fit together"):
            c.read("f")
