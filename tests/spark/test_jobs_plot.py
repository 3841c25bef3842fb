"""The picture of job stats: what stands where on its axes."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from marks import only_with

pytest.importorskip("pyarrow")
only_with("matplotlib")
from winkfs.spark.jobs import stats as plot  # noqa: E402

pytestmark = pytest.mark.slow

HOST = "http://a-rather-long-host-name-%d.example.org"


def row(what: Any, files: int, size: int) -> dict[str, Any]:
    return {"what": what, "files": files, "bytes": size}


def summary(**parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole = {"days": [row("2020-01-01", 3, 300)], "sizes": [row(64, 3, 300)],
             "types": [row("html", 3, 300)], "prefixes": [row("", 3, 300)]}  # fmt: skip
    return {"source": "/x/corpus", "files": 3, "bytes": 300} | whole | parts


def axes(**parts: list[dict[str, Any]]) -> list[Any]:
    """files by mtime, bytes by mtime; the same by size, by type, by site."""
    return list(plot.picture(summary(**parts)).axes)


def names(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_days_stand_where_they_are_in_time() -> None:
    from matplotlib import dates

    days = [row("2011-03-01", 1, 10), row("2018-03-01", 2, 20), row("2018-03-03", 4, 40)]
    for axis, name in zip(axes(days=days), ("files", "bytes"), strict=False):
        bars = [bar for bar in axis.patches if bar.get_height()]
        assert [bar.get_height() for bar in bars] == ([1, 6] if name == "files" else [10, 60])
        first, last = (dates.num2date(bar.get_x()).date() for bar in bars)
        assert first == datetime.date(2011, 3, 1)
        assert abs(last - datetime.date(2018, 3, 1)) < datetime.timedelta(days=30)
        assert name in axis.get_title()


def test_each_day_of_a_short_time_has_a_bar() -> None:
    days = [row(f"2020-02-{day:02d}", day, day) for day in (1, 2, 29)]
    width, starts, sums = plot.stripes(days)
    assert (width, len(starts), starts[0]) == (1, 29, datetime.date(2020, 2, 1))
    assert sums["files"] == [1, 2, *[0] * 26, 29]


@pytest.mark.few(1)
@pytest.mark.parametrize("day", ["1677-09-21", "2262-04-11"])
def test_the_farthest_times_have_a_place(day: str) -> None:
    days = sorted([row(day, 1, 1), row("2020-02-01", 1, 1)], key=lambda r: str(r["what"]))
    _, starts, sums = plot.stripes(days)
    assert len(starts) <= plot.STRIPES and sum(sums["files"]) == 2
    assert sum(bar.get_height() for bar in axes(days=days)[0].patches) == 2


def test_size_classes_without_files_keep_their_place() -> None:
    sizes = [row(0, 2, 0), row(1 << 10, 3, 5000), row(1 << 13, 1, 9000)]
    files, size = axes(sizes=sizes)[2:4]
    assert names(files) == [
        "empty", "1 KiB to 2 KiB", "2 KiB to 4 KiB", "4 KiB to 8 KiB", "8 KiB to 16 KiB",
    ]  # fmt: skip
    assert [bar.get_width() for bar in files.patches] == [2, 3, 0, 0, 1]
    assert size.get_xlabel() == "KiB"
    assert [bar.get_width() for bar in size.patches] == [0, 5000 / 1024, 0, 0, 9000 / 1024]


def test_bars_lie_with_their_units_and_all_that_is_left_is_shown() -> None:
    prefixes = [row(HOST % i, 100 - i, (100 - i) << 20) for i in range(20)]
    prefixes.append(row(plot.OTHERS, 7, 1 << 20))
    files, size = axes(prefixes=prefixes)[6:8]
    assert names(files) == [*(HOST % i for i in range(12)), plot.OTHERS]
    assert files.patches[-1].get_width() == sum(range(81, 89)) + 7
    assert (files.get_xlabel(), size.get_xlabel()) == ("files", "MiB")
    assert "files" in files.get_title() and "bytes" in size.get_title()
    low, high = files.get_ylim()
    assert low > high  # the first on top


def test_a_long_name_keeps_both_its_ends() -> None:
    types = [row("begin" + "x" * 100 + "end", 1, 1), row("a$b\nc", 1, 1)]
    long, odd = names(axes(types=types)[4])
    assert long.startswith("begin") and long.endswith("end") and "..." in long
    assert len(long) <= plot.LABEL
    assert odd == r"a\$b\nc"


def test_nothing_and_one_file_are_drawn(tmp_path: Path) -> None:
    nothing = {"files": 0, "bytes": 0, "days": [], "sizes": [], "types": [], "prefixes": []}
    plot.draw(summary() | nothing, str(tmp_path / "a.png"))
    empty = [row("x", 1, 0)]
    one = {"sizes": [row(0, 1, 0)], "types": empty, "prefixes": [row("\u4e2d", 1, 0)]}
    plot.draw(summary(days=[row("2020-01-01", 1, 0)]) | one, str(tmp_path / "b.png"))
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
