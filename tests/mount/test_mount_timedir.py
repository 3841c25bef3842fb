"""`.time/` of an append-only mount: files by the hour, as links."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from mounting import all_refused, command, mounted, refused
from mounting import there as there  # a fixture
from original_marks import original_marks
from sources import assert_resumable, at, kept, walk
from sources import sources_end as sources_end  # a fixture

import winkfs
from winkfs.mounting.appendonly import AppendOnlySource
from winkmount.source import Amendment

pytestmark = pytest.mark.in_memory

NOON = 1_795_176_000  # 2026-11-20 12:00 UTC
HOUR = ".time/2026-11-20/12"


@pytest.fixture
def base(tmp_path: Path) -> str:
    name = str(tmp_path / "log")
    with winkfs.create(name, ao=True) as container:
        container.put("before", b"0", mtime=NOON - 1)
        container.put("logs/a%b.txt", b"1", mtime=NOON)
        container.put("gone", b"", mtime=NOON + 1)
        container.put("d" * 200 + "/" + "e" * 200, b"long", mtime=NOON + 1800)
        container.put("late", b"2", mtime=NOON + 3599)
        container.put("next", b"3", mtime=NOON + 3600)
        container.put("tomorrow", b"4", mtime=NOON + 86_400)
        container.delete("gone")
    return name


def opened(base: str, mode: str = "a", *, timedir: bool = True) -> AppendOnlySource:
    return kept(AppendOnlySource(winkfs.open(base, mode), timedir=timedir))


def by_time(view: AppendOnlySource) -> set[bytes]:
    return {path for path in walk(view) if path.startswith(b".time")}


@pytest.mark.parametrize("mode", ["r", "a"])
def test_each_file_is_in_its_hour_once(base: str, mode: str) -> None:
    view = opened(base, mode)
    found = by_time(view)
    assert {path for path in found if path.endswith(b"/")} == {
        b".time/", b".time/2026-11-20/", b".time/2026-11-20/11/", b".time/2026-11-20/12/",
        b".time/2026-11-20/13/", b".time/2026-11-21/", b".time/2026-11-21/12/",
    }  # fmt: skip
    links = {path for path in found if not path.endswith(b"/")}
    assert len(links) == 6
    assert b".time/2026-11-20/12/logs%2Fa%25b.txt" in links
    assert max(len(path.split(b"/")[-1]) for path in links) == 255  # the long one is cut


@pytest.mark.mount
def test_a_link_leads_to_the_file(base: str) -> None:
    with mounted(base, "-o", "timedir") as there:
        links = list((there / ".time").rglob("*/*/*"))
        assert sorted(link.read_bytes() for link in links) == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
            b"long",
        ]
        assert all(link.is_symlink() for link in links)
        (there / "new").write_bytes(b"5")
        (link,) = list((there / ".time").rglob("new"))
        assert link.read_bytes() == b"5"
        with refused(errno.EPERM):
            (there / ".time/x").write_bytes(b"")
    with mounted(base, "--ro") as there:
        assert ".time" not in os.listdir(there)


def test_nothing_can_be_changed_in_it(base: str) -> None:
    view = opened(base)
    top = view.lookup(view.root, b".time").id
    link = view.lookup(at(view, HOUR), b"late")
    assert stat.S_ISLNK(link.mode) and link.size == len(view.readlink(link.id))
    all_refused(
        errno.EPERM,
        lambda: view.create(top, b"x", 0o644, 0, 0),
        lambda: view.mkdir(view.root, b".time", 0o755, 0, 0),
        lambda: view.unlink(at(view, HOUR), b"late"),
        lambda: view.rmdir(view.root, b".time"),
        lambda: view.rename(view.root, b"late", top, b"x"),
        lambda: view.rename(view.root, b".time", view.root, b"x"),
        lambda: view.amend(link.id, Amendment(mtime_ns=5), 6),
        lambda: view.amend(top, Amendment(mode=0o777), time.time_ns()),
    )
    view.close()
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize(
    "path",
    [".time/2026-11-19", ".time/2026-13-40", ".time/x", ".time/2026-11-20/9",
     ".time/2026-11-20/14", ".time/2026-11-20/13/late", ".time/2026-11-20/12/gone", ".timex"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(base: str, path: str) -> None:
    view = opened(base)
    with refused(errno.ENOENT):
        at(view, path)


def test_listing_an_hour_goes_on_from_every_offset(base: str) -> None:
    view = opened(base)
    for path in ("", ".time", HOUR):
        assert assert_resumable(view, at(view, path))


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("only", [None, [], [NOON + 7200], [NOON + 90_060]])
def test_hours_without_a_mark_of_the_original_format_are_listed(
    tmp_path: Path, mode: str, only: list[int] | None
) -> None:
    """Which marks only mtimes that are a multiple of TIMEMP: here two, one or none."""
    mtimes = [NOON + 7, NOON + 3601, NOON + 7200, NOON + 7201, NOON + 10_801, NOON + 18_001,
              NOON + 86_401, NOON + 90_060, NOON + 90_061, NOON + 200_001]  # fmt: skip
    base = tmp_path / "log"
    with winkfs.create(base, ao=True, classic=True, timemp=60) as c:
        for mtime in mtimes:
            c.put(f"f{mtime}", b"x", mtime)
    with winkfs.open(base) as c:
        first = [c.extents(f"f{mtime}")[0].pointer for mtime in mtimes]
    original_marks(base, list(zip(mtimes, first, strict=True)), 60, only)
    container, names = winkfs.open(base, mode), [f"f{mtime}" for mtime in mtimes]
    view = kept(AppendOnlySource(container, timedir=True))
    form = ".time/%Y-%m-%d/%H/"

    def wanted() -> set[bytes]:
        pairs = zip(mtimes, names, strict=True)
        return {f"{time.strftime(form, time.gmtime(at))}{name}".encode() for at, name in pairs}

    assert {path for path in by_time(view) if path[-1:] != b"/"} == wanted()
    if mode == "a":
        for later in (NOON + 200_030, NOON + 400_001):
            container.put(f"f{later}", b"x", later)
            mtimes.append(later)
            names.append(f"f{later}")
        assert {path for path in by_time(view) if path[-1:] != b"/"} == wanted()


@pytest.mark.mount
def test_plain_containers_have_no_times_to_walk_by(tmp_path: Path, there: Path) -> None:
    winkfs.create(tmp_path / "plain").close()
    status, answer = command("mount", tmp_path / "plain", there, "-o", "timedir")
    assert status == 1 and "append-only" in answer
