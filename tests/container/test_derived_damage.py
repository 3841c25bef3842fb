"""Damage in derived files: every answer stays right, or is one clear error; no file is missing."""

from __future__ import annotations

import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import golden_containers
import pytest
from catalog_checks import store_of
from container_checks import drop, patch, path_of, put_many, superblock_of
from flips import flip
from folders import MEMORY
from stored import make, read

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.errors import DerivedDamage
from winkfs.container.compact import compact
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.select import select
from winkfs.container.selection import Selection
from winkfs.container.table import FileTable
from winkfs.mounting.appendonly import AppendOnlySource
from winkfs.mounting.container import ContainerSource
from winkmount.source import run_steps

pytestmark = pytest.mark.slow

NS = 10**9


def fill(base: Path, *, ao: bool = False) -> dict[str, bytes]:
    """A container with all derived files, of files that were replaced, renamed and deleted, too."""
    files = {f"d{i % 3}/file {i}": b"%d" % i * (i + 1) for i in range(30)}
    with winkfs.create(base, ao=ao, timemp=7) as c:
        for i, (name, data) in enumerate(files.items()):
            c.put(name, data, mtime_ns=(1_000 + 5 * i) * NS)
        c.sync()
        for name in ("d0/file 3", "d1/file 4"):
            files[name] = b"again"
            c.put(name, b"again")
        c.delete("d2/file 5")
        del files["d2/file 5"]
        if not ao:
            c.rename("d0/file 6", "d9/renamed")
            files["d9/renamed"] = files.pop("d0/file 6")
    winkfs.reindex(base)
    return files


@pytest.fixture(scope="module", params=["plain", "ao"])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Path, dict[str, bytes]]]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        base = Path(folder) / "made"
        yield base, fill(base, ao=request.param == "ao")


@pytest.fixture
def base(made: tuple[Path, dict[str, bytes]]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shutil.copytree(made[0].parent, folder, dirs_exist_ok=True)
        yield Path(folder) / "made"


def walk(source: ContainerSource, directory: int | None = None, above: str = "") -> dict[str, int]:
    """Size of each file that a mount would list; each must be found by its name, too."""
    found: dict[str, int] = {}
    top = source.root if directory is None else directory
    handle = source.opendir(top)
    for entry in source.readdir(handle, 0):
        name = above + entry.name.decode()
        assert name not in found
        assert source.lookup(top, entry.name) == entry.attr
        if stat.S_ISDIR(entry.attr.mode):
            found |= walk(source, entry.attr.id, name + "/")
        else:
            found[name] = entry.attr.size
    source.releasedir(handle)
    return found


def walk_healed(source: ContainerSource) -> dict[str, int]:
    """The same as a mount does it: what is damaged is made anew, and asked again."""
    try:
        return walk(source)
    except DerivedDamage as error:
        assert source.heal(error)
        return walk(source)


def ask_container(base: Path, files: dict[str, bytes]) -> None:
    """Every way to ask for a name, or for all of them, in a handle of its own each."""
    names = sorted(files)
    missing = ["d2/file 5", "no/such", "d0/file 6" if "d9/renamed" in files else "nor this"]
    asks: list[Callable[[winkfs.Container], bool]] = [
        lambda c: all(c.read(name) == files[name] for name in names),
        lambda c: not any(name in c for name in missing) and all(name in c for name in names),
        lambda c: len(c) == len(files) and sorted(c.names()) == names,
        lambda c: sorted((e.name, e.read()) for e in c.scan()) == sorted(files.items()),
        lambda c: list(c.get_many(names)) == [files[name] for name in names],
        lambda c: sorted(c.names()) == names and c.read(names[7]) == files[names[7]],
    ]
    for number, ask in enumerate(asks):
        with winkfs.open(base) as c:
            assert ask(c), f"question {number}"


def ask_select(base: Path, files: dict[str, bytes]) -> None:
    def sizes_of(rows: FileTable) -> dict[str, int]:
        names = [name.decode() for name in rows.names]
        return dict(zip(names, rows.size.tolist(), strict=True))

    paths = tuple(name.encode() for name in [*files, "no/such"])
    sizes = {name: len(data) for name, data in files.items()}
    assert sizes_of(select(str(base), Selection(paths=paths))) == sizes
    assert sizes_of(select(str(base), Selection(prefix=b"d1/"))) == {
        name: size for name, size in sizes.items() if name.startswith("d1/")
    }
    assert sizes_of(select(str(base), Selection())) == sizes
    with store_of(base) as store:
        assert len(store.index.merged()[0].pos) == len(files)


def ask_source(base: Path, files: dict[str, bytes]) -> None:
    with source_of(base) as source:
        assert walk_healed(source) == {name: len(data) for name, data in files.items()}
        with pytest.raises(FileNotFoundError):
            source.lookup(source.root, b"no such")


@contextmanager
def source_of(base: Path, mode: str = "r") -> Iterator[ContainerSource]:
    container = winkfs.open(base, mode)
    source = (AppendOnlySource if container.ao else ContainerSource)(container)
    try:
        yield source
    finally:
        source.close()


def ask_times(base: Path, files: dict[str, bytes]) -> None:
    """Files of a time range; and a writer goes on from the last mtime, and leaves nothing wrong."""
    late = {f"d{i % 3}/file {i}" for i in range(16, 30)} & set(files)
    with winkfs.open(base) as c:
        early = {e.name for e in c.scan(until=1_000 + 5 * 16)}
        assert late == {e.name for e in c.scan(since=1_000 + 5 * 16, until=2_000)}
        assert not early & late


def places(raw: bytes) -> list[int]:
    """Bytes to be changed: all but most of the zeros in a superblock."""
    return [*range(512), *range(512, 4096, 256), *range(4096, len(raw))]


def changed_sectors(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Each sector of 512 bytes zeroed, in the place of the next one, and exchanged with it."""
    for at in range(0, len(raw), 512):
        a, b = raw[at : at + 512], raw[at + 512 : at + 1024]
        yield f"{at} zeroed", raw[:at] + bytes(len(a)) + raw[at + len(a) :]
        if len(b) == 512:
            yield f"{at} doubled", raw[: at + 512] + a + raw[at + 1024 :]
            yield f"{at} exchanged", raw[:at] + b + a + raw[at + 1024 :]


def states(raw: bytes, part: slice) -> Iterator[tuple[str, bytes]]:
    """A part of the flipped bytes, and all changed sectors."""
    for at in places(raw)[part]:
        flipped, bit = bytearray(raw), random.randrange(8)
        flipped[at] ^= 1 << bit
        yield f"byte {at}, bit {bit}", bytes(flipped)
    yield from changed_sectors(raw)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("suffix", "ask", "part"),
    [
        (".idx", ask_container, "index bytes"),
        (".idx", ask_select, "index bytes"),
        (".idx", ask_source, "listed bytes"),
        (".time", ask_times, "time bytes"),
        (".cat", ask_select, "index bytes"),
        (".cat", ask_source, "listed bytes"),
    ],
)
def test_answers_stay_right_under_any_derived_damage(
    suffix: str,
    part: str,
    every: Callable[[str], slice],
    ask: Callable[[Path, dict[str, bytes]], None],
    made: tuple[Path, dict[str, bytes]],
    base: Path,
) -> None:
    _, files = made
    path = path_of(base, suffix)
    if not path.exists():
        pytest.skip("has none")
    if suffix == ".idx" and ask is not ask_source:  # an index alone has to answer
        drop(base, ".cat")
    raw = path.read_bytes()
    for what, data in states(raw, every(part)):
        path.write_bytes(data)
        try:
            ask(base, files)
        except Exception as error:
            raise AssertionError(what) from error


# --- one by one ---------------------------------------------------------------------------------


def cells_of(base: Path, *names: str) -> list[int]:
    """Offset in BASE.idx of the cell of each name."""
    raw = path_of(base, ".idx").read_bytes()
    with store_of(base) as store:
        places = [store.index.lookup(f"{name}/I0".encode()) for name in names]
    return [raw.index(pos.to_bytes(8, "big")) for pos in places]


def lose_cells(base: Path, *names: str) -> None:
    for at in cells_of(base, *names):
        patch(path_of(base, ".idx"), at, bytes(16))


def test_a_zeroed_cell_hides_no_file_and_is_explained(base: Path) -> None:
    lose_cells(base, "d1/file 7")
    with winkfs.open(base) as c:
        assert c.notes == []
        assert c.read("d1/file 7") == b"7" * 8
        assert "d1/file 7" in c
        assert len(c.notes) == 1
        assert "made.idx" in c.notes[0] and "checksum" in c.notes[0]


def test_a_doubled_cell_gives_each_file_once(base: Path) -> None:
    one, other = cells_of(base, "d1/file 7", "d2/file 8")
    path = path_of(base, ".idx")
    patch(path, one, path.read_bytes()[other : other + 16])
    with winkfs.open(base) as c:
        names = list(c.names())
        assert len(names) == len(set(names)) == len(c)
        assert {"d1/file 7", "d2/file 8"} <= set(names)


def test_a_cell_of_an_older_inode_is_not_believed(base: Path) -> None:
    """Of a name that was put again: marked deleted, with the right key."""
    (at,) = cells_of(base, "d1/file 4")
    raw = path_of(base, ".data").read_bytes()
    key = b"d1/file 4/I0"
    older = raw.index(key) - 3
    assert raw[older] == 1
    patch(path_of(base, ".idx"), at, older.to_bytes(8, "big"))
    for ask in (
        lambda c: c.read("d1/file 4"),
        lambda c: next(iter(c.get_many(["d1/file 4"]))),
        lambda c: {e.name: e for e in c.scan()}["d1/file 4"].read(),
    ):
        with winkfs.open(base) as c:
            assert ask(c) == b"again"
    rows = select(str(base), Selection(paths=(b"d1/file 4",)))
    assert rows.size.tolist() == [5]
    with winkfs.open(base) as c:
        c.freeze()
        assert c.read("d1/file 4") == b"again"


def test_a_writer_heals_an_index_that_it_finds_wrong(base: Path) -> None:
    (at,) = cells_of(base, "d1/file 7")
    path = path_of(base, ".idx")
    sound = path.read_bytes()
    for look in (lambda c: "d1/file 7" in c, lambda c: len(list(c.scan()))):
        patch(path, at, bytes(16))
        assert any("made.idx" in p for p in winkfs.verify(base).problems)
        with winkfs.open(base, "a") as c:
            assert look(c)
        assert winkfs.verify(base).problems == []
        assert path.read_bytes()[4096:] == sound[4096:]


def test_a_put_over_a_lost_cell_leaves_one_file(base: Path) -> None:
    lose_cells(base, "d1/file 7", "d2/file 8", "d0/file 9")
    with winkfs.open(base, "a") as c:
        count = len(c)
        c.put_many([("d2/file 8", b"bulk"), ("newer", b"n")])
        c.put("d1/file 7", b"put", mtime_ns=None)
        c.delete("d0/file 9")
        assert len(c) == count
    assert winkfs.verify(base).problems == []
    with winkfs.open(base) as c:
        assert [c.read(n) for n in ("d1/file 7", "d2/file 8", "newer")] == [b"put", b"bulk", b"n"]
        assert "d0/file 9" not in c


def test_a_wrong_page_below_a_tail_marks_no_live_file_deleted(base: Path) -> None:
    """A writer that was killed: what the tail supersedes is looked for in the index."""
    (at,) = cells_of(base, "d1/file 7")
    index = path_of(base, ".idx").read_bytes()
    with winkfs.open(base, "a") as c:
        c.put("d1/file 7", b"later")
        c.put("d2/file 8", b"later")
    path_of(base, ".idx").write_bytes(index)  # of before
    patch(path_of(base, ".idx"), at, bytes(16))
    with winkfs.open(base) as c:
        assert c.read("d1/file 7") == c.read("d2/file 8") == b"later"
        names = list(c.names())
        assert len(names) == len(set(names)) == len(c)
    assert read(base, "d1/file 7", mode="a") == b"later"
    assert winkfs.verify(base).problems == []


def test_a_frozen_reader_keeps_its_moment_after_a_reindex(base: Path) -> None:
    lose_cells(base, "d1/file 7")
    reader = winkfs.open(base)
    reader.freeze()
    with winkfs.open(base, "a") as c:
        c.put("d1/file 10", b"later")
        c.delete("d2/file 11")
    assert reader.notes == []
    assert "d1/file 7" in reader
    assert len(reader.notes) == 1
    assert "d2/file 11" in reader
    assert reader.read("d1/file 10") == b"10" * 11
    reader.close()


def test_files_have_sums_and_classic_ones_none(base: Path, tmp_path: Path) -> None:
    path = path_of(base, ".idx")
    block = superblock_of(path)
    assert block["PAGESUMS"] == block["FILESIZE"] < path.stat().st_size
    make(tmp_path / "c", {"a": b""}, classic=True)
    block = superblock_of(tmp_path / "c.idx")
    assert "PAGESUMS" not in block and block["FILESIZE"] == (tmp_path / "c.idx").stat().st_size


def block_of(base: Path) -> int:
    """Offset in BASE.cat of some byte of its first block."""
    with Catalog(FileStorage(f"{base}.cat")) as file:
        pos, length, *_ = file.runs[0].parts[0].tolist()
    return int(pos + length // 2)


def test_a_flipped_bit_of_the_catalog_costs_a_mount_nothing(
    base: Path, made: tuple[Path, dict[str, bytes]]
) -> None:
    at, path = block_of(base), path_of(base, ".cat")
    flip(path, at)
    ask_source(base, made[1])
    with source_of(base, "a") as source:
        assert set(walk_healed(source)) == set(made[1])
        source.mkdir(source.root, b"new", 0o755, 0, 0)
        run_steps(source.syncing(None))
        assert set(walk(source)) == set(made[1])
    assert not any(".cat" in problem for problem in winkfs.verify(base).problems)


def test_merging_a_damaged_catalog_reads_the_inodes(base: Path) -> None:
    patch(path_of(base, ".cat"), block_of(base), b"\xff" * 16)
    with winkfs.open(base, "a") as c:
        c.put_many((f"new {i}", b"") for i in range(20_000))
        c.save_catalog()
        assert any(".cat" in note for note in c.notes)
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("suffix", [".idx", ".time", ".cat"])
def test_verify_names_the_file_and_the_place_and_reindex_heals(suffix: str, base: Path) -> None:
    path = path_of(base, suffix)
    if not path.exists():
        pytest.skip("has none")
    raw = path.read_bytes()
    for at in range(8192 if suffix == ".cat" else 4096, len(raw), 97):
        flip(path, at, bits=0x10)
        found = winkfs.verify(base).problems
        assert found and all(f"made{suffix}" in line and "byte" in line for line in found), at
        path.write_bytes(raw)
    flip(path, 70)
    flip(path, len(raw) - 1)
    report = winkfs.verify(base)
    assert any(f"made{suffix}" in line for line in report.problems + report.notes)
    winkfs.reindex(base)
    report = winkfs.verify(base)
    assert report.problems == report.notes == []


def test_older_inodes_among_duplicates_are_not_read(tmp_path: Path) -> None:
    """There it is not even marked deleted."""
    base = tmp_path / "c"
    golden_containers.RECIPES["duplicates"](base)
    with winkfs.open(base, "a") as c:
        c.put("twice", b"old")
        c.put("twice", b"new!")
    (at,) = cells_of(base, "twice")
    older = path_of(base, ".data").read_bytes().index(b"twice/I0") - 3
    patch(path_of(base, ".idx"), at, older.to_bytes(8, "big"))
    assert read(base, "twice") == b"new!"


def test_sectors_of_an_older_catalog_are_not_believed(tmp_path: Path) -> None:
    """Whole entries of it, with right checksums of their own, at the same places."""
    base = tmp_path / "c"
    make(base, [(f"{i:04}", b"%02d" % i, 1_000 + i) for i in range(20)])
    winkfs.reindex(base)
    path = path_of(base, ".cat")
    older = path.read_bytes()
    put_many(base, [(f"{i:04}", b"%03d" % i, 5_000 + i) for i in range(20)])
    winkfs.reindex(base)
    raw = path.read_bytes()
    with winkfs.open(base) as c:
        wanted = {e.name: (e.size, e.mtime_ns) for e in c.scan()}
    for size in (512, 4096):
        for at in range(0, len(raw), 64):
            path.write_bytes(raw[:at] + older[at : at + size] + raw[at + size :])
            rows = select(str(base), Selection())
            found = zip(rows.names, rows.size.tolist(), rows.mtime.tolist(), strict=True)
            assert {n.decode(): (size, ns) for n, size, ns in found} == wanted, at


def test_compact_goes_on_beside_damaged_derived_files(
    base: Path, made: tuple[Path, dict[str, bytes]]
) -> None:
    for suffix in (".idx", ".cat"):
        path = path_of(base, suffix)
        patch(path, len(path.read_bytes()) // 2, b"\xff\xff\xff")
    compact(base)
    ask_container(base, made[1])
    assert winkfs.verify(base).problems == []
