"""New files: their short ways, until they are stored, do what the ordinary calls do."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from container_checks import assert_sound
from mount_requests import Asker, info
from stored import make, read

import winkfs
from winkfs.container.container import Container
from winkfs.container.write import Changes
from winkfs.mounting.appendonly import AppendOnlySource
from winkfs.mounting.container import ContainerSource
from winkmount.source import Amendment, Attr, run_steps

pytestmark = pytest.mark.in_memory

NOW = 1_800_000_000_123_456_789
KINDS: dict[str, dict[str, bool]] = {"plain": {}, "classic": {"classic": True}, "ao": {"ao": True}}
Said = tuple[object, ...]


class Both:
    """A file of two mounts: the one with its short ways, the other without them."""

    def __init__(self, base: Path, short: bool, **kind: bool) -> None:
        self.base, self.name = base, "/d/new"
        winkfs.create(base, **kind).close()
        container = Container(str(base), "a", mapped=False)
        self.source = with_short_ways(container) if short else without(container)
        self.asker = Asker(self.source, "winkfs")
        self.asker.mkdir("/d", 0o755)

    @property
    def taken(self) -> int:
        """Short ways that were open."""
        taken: int = self.source.taken  # type: ignore[attr-defined]
        return taken

    def create(self, mode: int) -> None:
        self.info = info(os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.asker.create(self.name, mode, self.info)

    def write(self, offset: int, data: bytes) -> None:
        self.asker.write(None, data, offset, self.info)

    def amend(self, change: Amendment) -> object:
        return self.asker.amend(self.asker.number(None, self.info), change)[1:]  # without the id

    def shown(self) -> tuple[object, bytes]:
        attr = self.asker.getattr(None, self.info)
        return {**attr, "st_ino": 0}, self.asker.read(None, 1 << 20, 0, self.info)

    def close(self) -> None:
        self.asker.close()


def with_short_ways(container: Container) -> ContainerSource:
    kind = AppendOnlySource if container.ao else ContainerSource

    class Short(kind):  # type: ignore[misc, valid-type]
        taken = 0

        def append(self, *args: Any) -> bool:
            done: bool = super().append(*args)
            self.taken += done
            return done

        def amend_fresh(self, *args: Any) -> Attr | None:
            attr: Attr | None = super().amend_fresh(*args)
            self.taken += attr is not None
            return attr

    return Short(container)


def without(container: Container) -> ContainerSource:
    kind = AppendOnlySource if container.ao else ContainerSource
    made: ContainerSource = type("Long", (kind,), {"fresh": lambda self, id: None})(container)
    return made


@pytest.fixture(params=list(KINDS))
def two(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Both]]:
    monkeypatch.setattr("time.time_ns", lambda: NOW)
    kind = KINDS[request.param]
    both = [Both(tmp_path / f"{short}", short, **kind) for short in (True, False)]
    yield both
    for one in both:
        one.close()
    one, other = (contents(one.base) for one in both)
    assert one == other


def contents(base: Path) -> list[Said]:
    """What is stored, when and as whose."""
    with winkfs.open(base) as container:
        found = {name: container.read(name) for name in container.names()}
        assert_sound(base, {name.encode(): data for name, data in found.items()})
        stats = [replace(container.stat(name), fileid=0) for name in found]
        return [*found.items(), *stats]


def steps(dice: random.Random) -> Iterator[tuple[str, Said]]:
    """What may be done to a new file. It has `size` bytes."""
    size = 0
    for _ in range(dice.randrange(1, 25)):
        kind = dice.choice(("append",) * 4 + ("amend",) * 3 + (
            "write", "truncate", "settle", "sync", "rename", "unlink",
        ))  # fmt: skip
        if kind in ("append", "write"):
            at = size if kind == "append" else dice.randrange(size + 5)
            data = dice.randbytes(dice.choice((0, 1, 100, 5000)))
            size = max(size, at + len(data)) if data else size
            yield "write", (at, data)
        elif kind == "amend":
            yield "amend", (dice.choice((
                Amendment(mode=dice.choice((0o600, 0o644, 0o755, 0o4711))),
                Amendment(uid=dice.choice((-1, 0, 5)), gid=dice.choice((-1, 0, 6))),
                Amendment(mtime_ns=dice.choice((0, NOW, NOW - 10**18, 1 << 70))),
                Amendment(mtime_ns=NOW), Amendment(0o640, 3, 4, NOW - 5),
            )),)  # fmt: skip
        elif kind == "truncate":
            size = dice.randrange(size + 5)
            yield "truncate", (size,)
        else:
            yield kind, ()


def do(one: Both, kind: str, args: Said) -> object:
    """-> what is said of it, or the errno."""
    asker = one.asker
    try:
        match kind:
            case "write":
                one.write(*args)  # type: ignore[arg-type]
            case "amend":
                return one.amend(*args)  # type: ignore[arg-type]
            case "truncate":
                asker.truncate(None, args[0], one.info)  # type: ignore[arg-type]
            case "settle":
                if not one.source.names.store.settings.ao:
                    one.source.names.changes.settle()
            case "sync":
                asker.fsync(None, 0, one.info)
            case "rename":
                asker.rename(one.name, one.name + "+")
                one.name += "+"
            case "unlink":
                asker.unlink(one.name)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_short_ways_do_what_the_ordinary_ones_do(two: list[Both], seed: int) -> None:
    for number in range(25):
        dice = random.Random(1000 * seed + number)
        mode, plan = dice.choice((0o600, 0o644, 0o755)), list(steps(dice))
        answer = []
        for one in two:
            one.name = f"/d/new{number}"
            one.create(mode)
            reported: list[object] = []
            for kind, args in plan:
                reported += [kind, do(one, kind, args), one.shown()]
            one.asker.release(None, one.info)
            answer.append(reported)
        assert answer[0] == answer[1]
    short, _ = two
    assert short.taken > 10 or short.source.names.store.settings.classic or not short.source.gather


def test_a_full_disk_refuses_what_a_new_file_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Both(tmp_path / "c", short=True)
    one.create(0o644)
    one.write(0, b"kept")
    with monkeypatch.context() as full:
        full.setattr(type(one.source), "_need_room", refuse_all)
        with pytest.raises(OSError, match="No space left"):
            one.write(4, b"refused")
    assert one.taken == 1
    assert one.shown()[1] == b"kept"
    one.write(4, b", too")
    one.asker.release(None, one.info)
    one.close()
    assert read(one.base, "d/new") == b"kept, too"


def refuse_all(source: ContainerSource, size: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_new_file_is_not_written_on_after_its_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had so far may be lost: the ordinary way finds out, and reports it."""
    one = Both(tmp_path / "c", short=True)
    one.create(0o644)
    one.write(0, b"1")
    fresh = one.source.fresh(one.info.fh)
    one.source.names.container.troubles += 1
    assert fresh is not None
    assert not one.source.append(fresh, 1, b"2", NOW)
    assert one.source.amend_fresh(fresh, Amendment(mode=0o600), NOW) is None
    one.close()


def test_more_than_a_draft_may_hold_goes_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, grown = Both(tmp_path / "c", short=True), list[bool]()
    grow = Changes.grow
    monkeypatch.setattr(Changes, "grow", lambda *args: (grown.append(grow(*args)), grown[-1])[1])
    one.create(0o644)
    data = random.Random(1).randbytes(3 << 20)
    for at in range(0, len(data), 100_000):
        one.write(at, data[at : at + 100_000])
    one.asker.release(None, one.info)
    one.close()
    assert grown == [True] * 10 + [False]
    assert read(one.base, "d/new") == data


def test_what_a_directory_lacks(tmp_path: Path) -> None:
    """A directory of which the catalog has nothing: there names are missing without a look-up."""
    make(tmp_path / "c", ((f"old/{i}", b"x") for i in range(9)))
    source = ContainerSource(Container(str(tmp_path / "c"), "a", mapped=False))
    old = source.lookup(source.root, b"old").id
    new = source.mkdir(source.root, b"new", 0o755, 0, 0).id
    source.create(new, b"file", 0o644, 0, 0)
    source.mkdir(new, b"below", 0o755, 0, 0)
    assert not any(source.lacks(old, name) for name in (b"1", b"9"))  # that is to be looked up
    assert not any(source.lacks(new, name) for name in (b"file", b"below"))
    assert source.lacks(new, b"other")
    source.unlink(new, b"file")
    assert source.lacks(new, b"file")
    source.rename(old, b"1", new, b"moved")
    assert not source.lacks(new, b"moved")
    run_steps(source.syncing(None))
    source.names.new_order()
    assert not source.lacks(new, b"moved")
    assert source.lacks(new, b"other")
    assert not source.lacks(old, b"other")  # the catalog has names there
    source.close()
