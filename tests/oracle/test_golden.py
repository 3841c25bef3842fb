"""The golden files: product and oracle still read them, and they come out the same again."""

import functools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import golden_containers
import golden_formats
import oracle_read
import pytest
from golden_formats import Pairs, Rows, Table

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.hindex.hindex import HIndex
from winkformats.kv.sequence import KVSeq
from winkformats.perm import Perm
from winkfs.entry import default_mode

GOLDEN = Path(__file__).parents[1] / "golden"
MADE_WITH = (1, 5, 7)  # version of zstd
SUFFIXES = (".data", ".idx", ".time", ".cat")
SINGLE, CONTAINERS = golden_formats.RECIPES, golden_containers.RECIPES


@dataclass
class Made:
    """What a recipe makes today."""

    path: Path
    expected: Any


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """-> a function: name of a recipe -> Made. Each is made once."""
    folder = tmp_path_factory.mktemp("made")

    @functools.cache
    def made(name: str) -> Made:
        with golden_formats.pinned(name):
            expected = (SINGLE | CONTAINERS)[name](folder / name)
        (folder / f"{name}.lock").unlink(missing_ok=True)
        return Made(folder / name, expected)

    return made


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    """Name -> bytes of the files of a recipe."""
    names = [name] if name in SINGLE else [name + suffix for suffix in SUFFIXES]
    return {n: (folder / n).read_bytes() for n in names if (folder / n).exists()}


@pytest.fixture
def copied(tmp_path):
    """-> a function: name of a container -> BASE of a copy of the golden one."""

    def copy(name: str) -> Path:
        for suffix in SUFFIXES:
            if (GOLDEN / (name + suffix)).exists():
                shutil.copyfile(GOLDEN / (name + suffix), tmp_path / (name + suffix))
        return tmp_path / name

    return copy


# --- the bytes ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE | CONTAINERS)
def test_the_same_operations_give_the_same_bytes(make, name):
    made = make(name)
    today, golden = files_of(made.path.parent, name), files_of(GOLDEN, name)
    zstandard = pytest.importorskip("zstandard") if "zstd" in name else None
    if zstandard and zstandard.ZSTD_VERSION != MADE_WITH:
        pytest.skip("another version of zstd makes other frames of the same content")
    assert list(today) == list(golden)
    for file, data in golden.items():
        assert len(today[file]) == len(data), file
        different = [i for i in range(len(data)) if today[file][i] != data[i]]
        assert not different, f"{file} differs from byte {different[0]} on"


def test_no_golden_file_is_without_a_recipe():
    known = {n + suffix for n in CONTAINERS for suffix in SUFFIXES} | set(SINGLE)
    found = {path.name for path in GOLDEN.iterdir() if path.is_file()}
    assert found - known <= {"README.md", "make.py"}


def test_the_page_describes_the_making_of_each_file():
    page = (GOLDEN / "README.md").read_text()
    for name in SINGLE | CONTAINERS:
        assert f"`{name}`" in page, name


# --- kvseq, hindex, perm -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SINGLE if name.startswith("kvseq")])
def test_kvseq_is_read_by_product_and_oracle(make, name):
    expected: Rows = make(name).expected
    with KVSeq.open(FileStorage(GOLDEN / name)) as kv:
        entries = list(kv)
        assert [(e.key, e.value, e.deleted) for e in entries] == expected
        assert [kv.get(e.pos) for e in entries] == entries
        assert (kv.entries, kv.aentries) == (len(expected), sum(not e.deleted for e in entries))
    block, found = oracle_read.check_kvseq(GOLDEN / name)
    assert [(e.key, e.value, e.delflag == 1) for e in found] == expected
    assert [e.pos for e in found] == [e.pos for e in entries]
    assert block.filesize == (GOLDEN / name).stat().st_size


@pytest.mark.parametrize("name", [name for name in SINGLE if name.startswith("hindex")])
def test_hindex_is_read_by_product_and_oracle(make, name):
    expected: Table = make(name).expected
    keys = {pointer: key for key, (pointer, _) in expected.found.items()}
    with HIndex.open(FileStorage(GOLDEN / name), key_of=keys.__getitem__) as index:
        for key, (pointer, words) in expected.found.items():
            cell = index.get(index.hash(key))
            assert (cell[0], cell[2:]) == (pointer, words)
        assert [index.hash(key) for key in expected.missing] == [None] * len(expected.missing)
        assert len(index) == len(expected.found) == len(list(index.iterate()))
    oracle_read.check_hindex(GOLDEN / name, keys)


@pytest.mark.parametrize("name", [name for name in SINGLE if name.startswith("perm")])
def test_perm_is_read_by_product_and_oracle(make, name):
    expected: Pairs = make(name).expected
    with Perm.open(FileStorage(GOLDEN / name)) as perm:
        pairs = list(perm.iterate())
        assert [left for left, _ in pairs] == expected.pointers
        keys = [expected.keys[left] for left in expected.pointers]
        assert [right for _, right in pairs] == perm.hash_keys(keys).tolist()
    assert oracle_read.check_perm(GOLDEN / name, expected.keys).pairs == pairs


# --- containers --------------------------------------------------------------------------------


def check_files(base: Path, expected: golden_containers.Files) -> None:
    """All of them, with all that is known of them, by each way of reading."""
    owner = base.with_name(base.name + ".data").stat()
    with winkfs.open(base) as c:
        names = {name.encode("utf-8", "surrogateescape"): name for name in c.names()}
        assert set(names) == set(expected)
        assert list(c.get_many(expected)) == [file.content for file in expected.values()]
        scanned = {entry.name: entry.read() for entry in c.scan()}
        for name, file in expected.items():
            assert c.read(name) == scanned[names[name]] == file.content
            stat = c.stat(name)
            assert (stat.size, stat.mtime_ns) == (len(file.content), file.mtime_ns), name
            assert stat.ftype == file.ftype
            assert stat.mode == (default_mode(file.ftype) if file.mode is None else file.mode)
            assert (stat.uid, stat.gid) == (file.owner or (owner.st_uid, owner.st_gid))
            assert c.getxattrs(name) == file.xattrs
        assert c.notes == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_container_is_read_by_the_product(make, name):
    check_files(GOLDEN / name, make(name).expected)
    report = winkfs.verify(GOLDEN / name)
    assert report.problems == []
    assert report.files == len(make(name).expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_container_passes_the_oracle(make, name):
    expected = make(name).expected
    tree = oracle_read.check(GOLDEN / name)
    assert set(tree.files) == set(expected)
    for key, file in expected.items():
        found = tree.files[key]
        assert (found.content, found.ftype, found.mtime_ns) == (
            file.content, file.ftype, file.mtime_ns,
        )  # fmt: skip
        assert (found.mode, found.xattrs) == (file.mode, file.xattrs)
        assert found.mode is None or (found.uid, found.gid) == file.owner


@pytest.mark.parametrize("name", CONTAINERS)
def test_opening_a_container_for_writing_changes_no_byte(copied, name):
    base = copied(name)
    winkfs.open(base, "a").close()
    now, before = files_of(base.parent, name), files_of(GOLDEN, name)
    if name == "minimal":  # it has no SYNCTIME: nothing vouches for its index, which is rebuilt
        del now["minimal.idx"], before["minimal.idx"]
    assert now == before


@pytest.mark.few(16)
@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_derived_files_are_not_needed_and_come_back(make, copied, name):
    base = copied(name)
    for suffix in SUFFIXES[1:]:
        Path(f"{base}{suffix}").unlink(missing_ok=True)
    check_files(base, make(name).expected)
    winkfs.reindex(base)
    check_files(base, make(name).expected)
    if not name.startswith("duplicates"):  # n0 is gone: its older versions get their delflags
        assert Path(f"{base}.data").read_bytes() == (GOLDEN / f"{name}.data").read_bytes()
    assert set(oracle_read.check(base).files) == set(make(name).expected)
