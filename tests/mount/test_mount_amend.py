"""Mode, owner and time of a file changed in one step, as by programs that unpack archives."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from catalog_checks import check_catalog
from container_checks import assert_sound
from sources import kept
from sources import sources_end as sources_end  # a fixture

import winkfs
from winkfs.container.container import Container
from winkfs.container.write import Changes
from winkfs.mounting.appendonly import AppendOnlySource
from winkfs.mounting.container import ContainerSource
from winkmount.source import Amendment, Attr, run_steps

pytestmark = pytest.mark.in_memory

NOW = 1_800_000_000_123_456_789
OLD = 1_600_000_000_000_000_001
KINDS: dict[str, dict[str, bool]] = {"plain": {}, "classic": {"classic": True}, "ao": {"ao": True}}


def source_of(base: Path, **kind: Any) -> ContainerSource:
    winkfs.create(base, **kind).close()
    container = Container(str(base), "a", mapped=False)
    return AppendOnlySource(container) if container.ao else ContainerSource(container)


@pytest.fixture(params=list(KINDS))
def two(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> list[ContainerSource]:
    """Two containers of a kind, at one moment."""
    monkeypatch.setattr("time.time_ns", lambda: NOW)
    return [kept(source_of(tmp_path / name, **KINDS[request.param])) for name in ("one", "other")]


def new(source: ContainerSource) -> int:
    id = source.create(source.root, b"file", 0o600, os.getuid(), os.getgid()).id
    source.open(id, write=True, truncate=False)
    source.write(id, [(0, b"content")], NOW - 5)
    return id


def settled(source: ContainerSource) -> int:
    id = new(source)
    source.release(id)
    run_steps(source.syncing(None))
    return source.lookup(source.root, b"file").id


def orphan(source: ContainerSource) -> int:
    id = new(source)
    source.unlink(source.root, b"file")
    return id


@pytest.mark.parametrize("kind", KINDS)
def test_times_out_of_range_are_clamped_counted_and_named(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = source_of(tmp_path / "c", **KINDS[kind])
    id, unit = new(source), 10**9 if kind == "classic" else 1
    source.amend(id, Amendment(mtime_ns=NOW), NOW)
    assert not caplog.records and source.status()["clamped_times"] == 0
    for _ in range(3):
        source.amend(id, Amendment(mtime_ns=1 << 70), NOW)
        assert source.stat(id).mtime_ns // unit == ((1 << 63) - 1) // unit
    source.amend(id, Amendment(mtime_ns=1 << 70), NOW)
    source.unlink(source.root, b"file")
    source.amend(id, Amendment(mtime_ns=1 << 71 if kind == "ao" else -1 << 70), NOW)
    assert source.status()["clamped_times"] == 5
    source.release(id)
    source.close()
    named = [record.message.partition(": ")[0] for record in caplog.records]
    assert named == ["file", "file", "file", "file, file, file and 2 more"]


def directory(source: ContainerSource) -> int:
    return source.mkdir(source.root, b"d", 0o755, os.getuid(), os.getgid()).id


CHANGES = {
    "mode": Amendment(mode=0o640),
    "usual mode": Amendment(mode=0o755),
    "the mode it has": Amendment(mode=0o600),
    "owner": Amendment(uid=5, gid=6),
    "the owner it has": Amendment(uid=os.getuid(), gid=-1),
    "time": Amendment(mtime_ns=OLD),
    "a time beyond all": Amendment(mtime_ns=1 << 70),
    "now": Amendment(mtime_ns=NOW),
    "all": Amendment(0o4711, 7, 8, OLD),
    "all and now": Amendment(0o644, 7, 8, NOW),
}


def singly(source: ContainerSource, id: int, change: Amendment, now: int) -> Attr:
    """Mode, owner and time one after the other."""
    steps = [
        Amendment(mode=change.mode), Amendment(uid=change.uid, gid=change.gid),
        Amendment(mtime_ns=change.mtime_ns),
    ]  # fmt: skip
    for step in [step for step in steps if step != Amendment()]:
        source.amend(id, step, now)
    return source.stat(id)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("make", [new, settled, orphan, directory])
def test_one_step_is_what_single_ones_are(
    two: list[ContainerSource], make: Callable[[ContainerSource], int], change: Amendment
) -> None:
    def attributes(source: ContainerSource, amend: Callable[..., Attr]) -> list[object]:
        id, found = make(source), list[object]()
        for step in (Amendment(mode=0o604), change, Amendment(mtime_ns=NOW + 9), change):
            try:
                found.append(amend(id, step, NOW)._replace(id=0))
            except OSError as error:
                found.append(error.errno)
                continue
            assert source.stat(id)._replace(id=0) == found[-1]  # the kernel believes it for long
        return found

    one, other = two
    assert attributes(one, one.amend) == attributes(other, partial(singly, other))


@pytest.mark.parametrize("columns", [{}, {"score": "int64"}], ids=["plain", "with columns"])
def test_new_files_with_attributes_are_stored_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: dict[str, str]
) -> None:
    base, wanted = tmp_path / "c", dict[bytes, Attr]()
    # None goes the long way, where an inode is made by itself.
    monkeypatch.setattr(Changes, "_append_inode", lambda *args: pytest.fail(f"{args[1].key}"))
    source = source_of(base)
    if columns:
        source.names.container.add_columns(columns)
    for number in range(60):
        name, mode = b"f%02d" % number, (0o600, 0o644, 0o755, 0o444)[number % 4]
        id = source.create(source.root, name, 0o640, os.getuid(), os.getgid()).id
        if number % 5:
            source.write(id, [(0, name * number)], NOW)
        change = Amendment(mode=mode, uid=number % 3 or -1)
        if number % 7:
            change = change._replace(mtime_ns=OLD + number)
        if number == 11:
            source.set_xattrs(id, {b"user.note": b"x", b"user.score": b"5"})
        wanted[name] = source.amend(id, change, NOW + number)
    source.close()
    with winkfs.open(base) as container:
        for name, attr in wanted.items():
            found = container.stat(name)
            shown = (found.mode, found.uid, found.mtime_ns, found.size)
            assert shown == (stat.S_IMODE(attr.mode), attr.uid, attr.mtime_ns, attr.size)
            assert found.ctime_ns == (attr.ctime_ns or attr.mtime_ns)
    check_catalog(base, set(wanted))
    assert_sound(base, {name: name * n * bool(n % 5) for n, name in enumerate(wanted)})
