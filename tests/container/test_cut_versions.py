"""A data file that is cut short beside a whole index: no older version passes for the last one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_sets
import pytest
from commands import Run, one_line
from container_checks import path_of
from mounting import mounted
from stored import make, read

import winkfs
from winkformats.errors import CorruptError
from winkfs.container.repair import repair
from winkfs.container.verify import verify
from winkfs.dataset.manifest import create

pytestmark = [
    pytest.mark.in_memory,
    pytest.mark.filterwarnings("ignore::winkfs.DamageWarning"),
]
FIRST = {f"d/f{i:02}": b"%d " % i * 40 for i in range(40)}
GONE = ("d/f01", "d/new", "d/moved")  # in the part that is cut off
ASKED: dict[str, Callable[[Any, str], object]] = {
    "read": lambda c, name: c.read(name),
    "read of a part": lambda c, name: c.read(name, 1, 2),
    "get_many": lambda c, name: list(c.get_many([name])),
    "stat": lambda c, name: c.stat(name),
    "open_file": lambda c, name: c.open_file(name),
    "xattrs": lambda c, name: c.getxattrs(name),
    "in": lambda c, name: name in c,
}


def change(c: Any) -> None:
    """Behind what is kept."""
    c.put("d/f01", b"replaced", mtime=200)
    c.put("d/new", b"new", mtime=200)
    c.delete("d/f02")
    if not c.ao:
        c.rename("d/f03", "d/moved")


def make_cut(base: Path, more: int = 0, **options: Any) -> None:
    """A container that is cut, where it ended before its last changes or so many bytes behind."""
    make(base, ((name, data, 100) for name, data in FIRST.items()), **options)
    size = path_of(base, ".data").stat().st_size
    with winkfs.open(base, "a") as c:
        change(c)
    winkfs.reindex(base)
    os.truncate(path_of(base, ".data"), size + more)


@pytest.fixture(params=[0, 30, -3000], ids=["at an entry", "within one", "most"])
def cut(request: pytest.FixtureRequest, base: Path) -> Path:
    make_cut(base, request.param)
    return base


@pytest.mark.slow
def test_files_of_the_cut_part_are_damaged_not_older(cut: Path) -> None:
    with winkfs.open(cut) as c:
        for name in GONE:
            for what, ask in ASKED.items():
                with pytest.raises(CorruptError):
                    print(name, what, ask(c, name))
            assert name not in set(c.names())
        for name in ("d/f02", "d/f03", "d/none"):  # removed and renamed there
            assert name not in c
            with pytest.raises(winkfs.NoSuchFile):
                c.read(name)
        left = {entry.name: entry.read() for entry in c.scan()}
        assert set(left) == set(c.names())
        assert len(left) == len(c) > 10
        assert all(FIRST[name] == data == c.read(name) for name, data in left.items())
        gone = len(FIRST) - 4 - len(left) + len(GONE) + 1
        assert f"files of its index in the part that is gone: {gone}" in str(c.problems)


@pytest.mark.slow
def test_verify_and_repair_name_them(cut: Path, run: Run) -> None:
    problems = verify(cut).problems
    assert any("files of its index in the part that is gone" in line for line in problems)
    assert any(line.startswith("d/f01: its last version is gone") for line in problems)
    assert sorted(repair(cut).older) == ["d/f01", "d/f02", "d/f03"]
    done = run("repair", "--apply", cut)
    assert done.status == 1
    assert b"go back to the version of d/f01 that is there" in done.out
    assert verify(cut).problems == []
    with winkfs.open(cut) as c:
        assert c.problems == []
        for name in ("d/f01", "d/f02", "d/f03"):
            assert c.read(name) == FIRST[name]


def test_a_writer_is_refused(cut: Path, run: Run) -> None:
    done = run("put", cut, "d/more", stdin=b"x")
    assert "winkfs repair" in one_line(done)


@pytest.mark.mount
def test_a_mount_gives_no_older_version(cut: Path) -> None:
    with mounted(cut, "--ro") as there:
        for name in GONE:
            with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
                (there / name).read_bytes()
        assert not os.path.lexists(there / "d/f02")
        assert (there / "d/f04").read_bytes() == FIRST["d/f04"]


def test_without_an_index_a_cut_file_shows_its_earlier_state(cut: Path) -> None:
    cut.with_suffix(".idx").unlink()
    with winkfs.open(cut) as c:
        assert c.read("d/f01") == FIRST["d/f01"]
        assert c.problems
    assert repair(cut).older == []


@pytest.mark.parametrize("options", [{"ao": True}, {"compress": "zstd"}], ids=str)
def test_in_other_variants(base: Path, options: dict[str, Any]) -> None:
    make_cut(base, **options)
    with winkfs.open(base) as c:
        for name in ("d/f01", "d/new"):
            with pytest.raises(CorruptError):
                c.read(name)
        assert "d/f02" not in c
        assert c.read("d/f04") == FIRST["d/f04"]


@pytest.mark.slow
def test_an_older_shard_of_a_data_set_does_not_stand_in(tmp_path: Path) -> None:
    root = create(tmp_path / "ds").root
    data_sets.add(root, FIRST)
    data_sets.add(root, {"d/f01": b"replaced" * 100, "d/new": b"new" * 100})
    shards = sorted(Path(root).rglob("*.data"), key=lambda p: p.stat().st_mtime_ns)
    last = next(p for p in shards if b"replaced" in p.read_bytes())
    assert read(root, "d/f01") == b"replaced" * 100  # makes the marks of what is replaced
    for size in (last.stat().st_size - 100, 8192, 0):
        os.truncate(last, size)
        for name in ("d/f01", "d/new"):
            for what, ask in ASKED.items():
                with (
                    pytest.raises((winkfs.WinkError, CorruptError)),
                    winkfs.open(root) as d,
                ):
                    print(size, name, what, ask(d, name))
