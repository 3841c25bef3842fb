"""Times that no file can have: the nearest one is stored, and closing the container warns once."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import winkfs
from winkfs.archive.items import Note
from winkfs.archive.pack import pack
from winkfs.units import CLAMPED, LAST

FAR = [LAST + 1, -LAST - 2, 10**30, -(10**30)]
NEAREST = [LAST, -LAST - 1, LAST, -LAST - 1]
YEAR_2300 = 10_413_792_000


@pytest.fixture
def c(tmp_path: Path) -> Iterator[winkfs.Container]:
    container = winkfs.create(tmp_path / "c")
    yield container
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        container.close()


@pytest.mark.parametrize(("ns", "nearest"), list(zip(FAR, NEAREST, strict=True)))
def test_every_way_to_store_a_time_takes_the_nearest(
    c: winkfs.Container, ns: int, nearest: int
) -> None:
    c.put("put", b"x", mtime_ns=ns)
    c.put("utime", b"x")
    c.utime("utime", mtime_ns=ns)
    c.put_rows([winkfs.Row("row", b"x", ns), winkfs.Row("good", b"x", 5)])
    c.put_file("file", io.BytesIO(b"x"), mtime_ns=ns)
    c.put_many([("many", b"x", ns // 10**9 + 1 if ns > 0 else ns // 10**9)])
    c.put("float", b"x", mtime=ns / 1e9 * 1.01)
    with pytest.warns(UserWarning, match=f"put, utime, row and 3 more: {CLAMPED}"):
        c.close()
    with winkfs.open(c.base) as found:
        times = {name: found.stat(name).mtime_ns for name in found.names()}
    assert times.pop("good") == 5
    assert set(times.values()) == {nearest}
    assert winkfs.verify(c.base).problems == []


def test_the_last_times_that_fit_are_kept_without_a_warning(c: winkfs.Container) -> None:
    c.put("a", b"x", mtime_ns=LAST)
    c.put_rows([winkfs.Row("b", b"x", -LAST - 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.close()
    with winkfs.open(c.base) as found:
        assert [found.stat(name).mtime_ns for name in "ab"] == [LAST, -LAST - 1]


@pytest.mark.parametrize("mtime", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_time_is_refused(c: winkfs.Container, mtime: float) -> None:
    with pytest.raises(ValueError, match="is no time"):
        c.put("a", b"x", mtime=mtime)
    with pytest.raises(TypeError, match="a time is seconds"):
        c.put("a", b"x", mtime="1")  # type: ignore[arg-type]


def test_times_of_a_directory_are_clamped_and_counted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b"):
        (root / name).write_bytes(b"x")
    os.symlink("a", root / "l")
    for name in ("a", "d", "l"):
        times = (YEAR_2300, YEAR_2300)
        os.utime(root / name, times, follow_symlinks=False)
    if (root / "a").stat().st_mtime != YEAR_2300:
        pytest.skip("the filesystem has no such times")
    for ao in (False, True):
        notes: list[Note] = []
        report = pack(root, tmp_path / f"c{ao}", ao=ao, note=notes.append)
        assert (report.clamped, report.left_out, report.failed) == (3, 0, 0)
        assert sorted(note.name for note in notes) == [b"a", b"d", b"l"]
        assert {note.what for note in notes} == {CLAMPED}
        with winkfs.open(tmp_path / f"c{ao}") as found:
            assert found.stat("a").mtime_ns == LAST
