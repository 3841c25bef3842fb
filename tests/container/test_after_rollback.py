"""A derived file of before a rollback, beside the data file of after it, is not believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import winkfs
from winkformats.disk.paths import open_file
from winkformats.kv.superblock import read_superblock
from winkfs.archive.backup import backup
from winkfs.container.ondisk.data import CUTID, Settings
from winkfs.container.ondisk.idx import covered_by
from winkfs.container.repair import repair, rollback
from winkfs.container.verify import verify

pytestmark = [
    pytest.mark.in_memory,
    pytest.mark.filterwarnings("ignore::winkfs.DamageWarning"),
]
MADE = ".data", ".idx", ".cat", ".time"


def begin(base: Path, *, ao: bool = False) -> bytes:
    """-> its second superblock."""
    with winkfs.create(base, ao=ao) as c:
        c.put_many((f"a{i:02}", b"a" * 50, 50) for i in range(20))
    return base.with_suffix(".data").read_bytes()[4096:8192]


def put_half_back(base: Path, half: bytes) -> None:
    """As if a sync was killed before its last step."""
    with base.with_suffix(".data").open("r+b") as file:
        file.seek(4096)
        file.write(half)


def put(base: Path, names: str, count: int) -> None:
    """Files of one size each, and a tombstone as the last entry: it is the same each time."""
    with winkfs.open(base, "a") as c:
        c.put_many((f"{names}{i:02}", names.encode() * 50, 100) for i in range(count))
        if not c.ao:
            c.put("last", b"", mtime=100)
            c.delete("last")


def roll_back(base: Path) -> None:
    rollback(base, previous=True)


def cut_and_repair(base: Path) -> None:
    """The same by a cut, where an index says nothing."""
    for suffix in (".idx", ".cat", ".time"):
        base.with_suffix(suffix).unlink(missing_ok=True)
    with open_file(f"{base}.data.earlier") as storage:
        end = read_superblock(storage)["FILESIZE"]
    with base.with_suffix(".data").open("r+b") as file:
        file.truncate(end)
    repair(base, apply=True)


@pytest.fixture(params=[roll_back, cut_and_repair])
def go_back(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    return request.param  # type: ignore[no-any-return]


def make(folder: Path, go_back: Callable[[Path], None], *, ao: bool = False) -> Path:
    """Old derived files in `old`, and a container that went on behind them."""
    base = folder / "c"
    half = begin(base, ao=ao)
    shutil.copy(folder / "c.data", folder / "c.data.earlier")
    put(base, "x", 10)
    winkfs.reindex(base)
    (folder / "old").mkdir()
    for suffix in MADE:
        if base.with_suffix(suffix).exists():
            shutil.copy(base.with_suffix(suffix), folder / "old")
    put_half_back(base, half)
    go_back(base)
    put(base, "y", 10)
    put(base, "z", 10)
    return base


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("suffixes", [[".idx", ".time"], [".cat"], [".idx", ".cat", ".time"]])
def test_what_was_derived_before_is_not_believed(
    tmp_path: Path, go_back: Callable[[Path], None], suffixes: list[str], ao: bool
) -> None:
    base = make(tmp_path, go_back, ao=ao)
    right = {f"{n}{i:02}" for n, count in (("a", 20), ("y", 10), ("z", 10)) for i in range(count)}
    for suffix in suffixes:
        if (tmp_path / f"old/c{suffix}").exists():
            shutil.copy(tmp_path / f"old/c{suffix}", base.with_suffix(suffix))
    with winkfs.open(base) as c:
        assert {name for name in right if name in c} == right
        assert set(c.names()) == right
        assert {entry.name for entry in c.scan()} == right
        assert {entry.name for entry in c.scan(since=60)} == {n for n in right if n[0] != "a"}
        assert all(c.read(name) == name[:1].encode() * 50 for name in right)
    assert verify(base).problems == []
    with winkfs.open(base, "a") as c:
        c.put("more", b"more", mtime=200)
        assert set(c.names()) == right | {"more"}
    assert verify(base).problems == []


def test_an_older_index_does_not_replace_a_lost_sync(
    tmp_path: Path, go_back: Callable[[Path], None]
) -> None:
    base = make(tmp_path, go_back)
    with open_file(f"{base}.data") as data:
        block = read_superblock(data)
    settings = Settings.of(block, str(base))
    assert covered_by(f"{base}.idx", settings) == block["FILESIZE"]
    assert covered_by(str(tmp_path / "old/c.idx"), settings) == 0
    del block[CUTID]
    assert covered_by(f"{base}.idx", Settings.of(block, str(base))) == 0


def test_a_backup_of_before_is_copied_anew(tmp_path: Path) -> None:
    """What it has ends with the same bytes."""
    (tmp_path / "there").mkdir()
    base, copied = make(tmp_path / "there", roll_back), tmp_path / "copy"
    shutil.copy(tmp_path / "there/old/c.data", tmp_path / "before.data")
    backup(tmp_path / "before", copied)
    backup(base, copied)
    with winkfs.open(copied) as c, winkfs.open(base) as original:
        assert {n: c.read(n) for n in c.names()} == {n: original.read(n) for n in original.names()}


def test_an_open_reader_notices_a_rollback_covered_by_growth(tmp_path: Path, base: Path) -> None:
    half = begin(base)
    put(base, "x", 10)
    put_half_back(base, half)
    with winkfs.open(base) as reader:
        assert reader.read("x01")
        rollback(base, previous=True)
        put(base, "y", 10)
        put(base, "z", 10)
        assert {name[0] for name in reader.names()} == {"a", "y", "z"}
        assert reader.read("y01") == b"y" * 50
        assert "x01" not in reader
