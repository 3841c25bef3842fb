"""The record of a shard, and the names of its rows: by its catalog, and without one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stored
from catalog_checks import far_times, save_catalog, store_of
from flips import flip
from seam import disk_calls

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkfs.container.container import Container
from winkfs.container.ondisk.catalog import Catalog
from winkfs.dataset import hidden
from winkfs.dataset.records import MAX_RECORDED_NAME, ShardRecord
from winkfs.dataset.shard import describe, survey, tombstones
from winkfs.names import to_strs
from winkfs.units import nearest_ns

LONG = "l" * (MAX_RECORDED_NAME + 1)


NUMBERED = [(f"{i * 7 % 50:02}", b"x" * (i % 3), i) for i in range(50)]


def replaced(container: Container) -> None:
    container.put_many(NUMBERED)
    for i in range(0, 50, 3):
        container.put(f"{i:02}", b"new", 100 + i)
        container.delete(f"{i + 1:02}") if i % 2 else None
    container.append("05", b"more")


def special(container: Container) -> None:
    container.put("a", b"1", -5)
    container.put_file("b", io.BytesIO(), mode=0o600, xattrs={b"user.x": b"y"})
    container.mkdir("d")
    container.symlink("d", "l")


def huge(container: Container) -> None:
    container.put_many(NUMBERED)
    container.put("a", b"")
    container.truncate("a", 2**62)


FILLS: dict[str, tuple[Callable[[Container], Any], dict[str, Any]]] = {
    "empty": (lambda container: None, {}),
    "numbered": (lambda c: c.put_many(NUMBERED), {}),
    "append-only": (lambda c: c.put_many((f"{i}", b"x", i) for i in range(9)), {"ao": True}),
    "replaced": (replaced, {}),
    "special": (special, {}),
    "huge": (huge, {}),
    "long first": (lambda c: c.put_many([(LONG, b""), ("m", b"")]), {}),
    "long last": (lambda c: c.put_many([("a", b""), (LONG, b"")]), {}),
    "long between": (lambda c: c.put_many([("a", b""), (LONG, b""), ("m", b"")]), {}),
    "columns": (
        lambda c: c.put_many([("a", b"", 1, {"lang": "de"}), ("b", b"1", 2)]),
        {"columns": {"lang": "string"}},
    ),
    "classic": (lambda c: c.put_many(NUMBERED), {"classic": True}),
}


def wanted(base: Path, tombs_at: int = 0) -> ShardRecord:
    """What the inodes say."""
    with store_of(base) as store:
        places = store.index.positions().tolist()
        inodes = [store.inode_at(pos)[1] for pos in places]
        gone = tombstones(store, tombs_at)[0]
        names = sorted([store.key_at(pos)[:-3] for pos in places] + gone)
        times = [nearest_ns(store.settings.ns_of(inode.mtime)) for inode in inodes]
        short = bool(names) and max(len(names[0]), len(names[-1])) <= MAX_RECORDED_NAME
        first, last = to_strs([names[0], names[-1]]) if short else (None, None)
        end = store.kv.end
        return ShardRecord(
            "job/c", store.settings.contid, end, len(inodes), sum(i.lsize for i in inodes),
            len(gone), tombs_at if gone else end, min(times, default=None),
            max(times, default=None), store.settings.ao, first, last,
            columns=" ".join(f"{name}:{kind}" for name, kind in store.schema.items()),
        )  # fmt: skip


def runs(base: Path) -> int:
    with Catalog(FileStorage(f"{base}.cat")) as file:
        return len(file.runs)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("catalog", ["there", "missing", "behind", "several runs", "damaged"])
def test_the_shard_record_agrees_with_the_inodes(
    fill: str, catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, (put, settings) = tmp_path / "c", FILLS[fill]
    with winkfs.create(base, **settings) as container:
        put(container)
    cat = base.with_suffix(".cat")
    if catalog == "missing":
        cat.unlink(missing_ok=True)
    elif catalog in ("behind", "several runs"):
        before = cat.read_bytes() if cat.exists() else b""
        with winkfs.open(base, "a") as container:
            container.put("k", b"kk", 7_000_000)
            container.save_catalog()
        if catalog == "behind" and before:
            cat.write_bytes(before)
        assert catalog == "behind" or fill in ("classic", "empty") or runs(base) == 2
    elif catalog == "damaged" and cat.exists():
        with Catalog(FileStorage(cat)) as file:
            places = [int(file.runs[0].parts["pos"][-1]) + 3] if file.rows else []
        flip(cat, *places)
    right = wanted(base)
    assert describe(str(base), "job/c", 0) == right
    assert survey(str(base), "job/c") == right
    if fill != "classic":
        assert runs(base) == 1
        assert winkfs.verify(base).problems == []


@pytest.mark.slow
def test_the_record_is_made_without_reading_all_rows(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", ((f"{i:05}", b"x") for i in range(40_000)))
    save_catalog(base)
    with disk_calls() as calls:
        found = survey(str(base), "job/c")
    assert found == wanted(base)
    read = sum(call.length for call in calls if call.verb == "read" and call.path.endswith(".cat"))
    assert 0 < read < base.with_suffix(".cat").stat().st_size / 8


def test_tombstones_are_in_the_record(tmp_path: Path) -> None:
    base = tmp_path / "c"
    with winkfs.create(base) as container:
        container.put_many(NUMBERED)
        tombs_at = container.append_tombstones([b"!", b"~"])
        container.save_catalog()
    found = survey(str(base), "job/c", tombs_at)
    assert found == wanted(base, tombs_at)
    assert (found.tombstones, found.first, found.last) == (2, "!", "~")


def test_a_time_that_int64_does_not_hold_counts_as_the_nearest(tmp_path: Path) -> None:
    base = tmp_path / "c"
    far_times(base)
    winkfs.reindex(base)
    found = survey(str(base), "job/c")
    assert found == wanted(base)
    assert (found.mtime_min, found.mtime_max) == (nearest_ns(-(10**21)), nearest_ns(10**21))


@pytest.mark.parametrize("catalog", [True, False])
def test_a_container_with_a_damaged_inode_is_no_shard(catalog: bool, tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", NUMBERED)
    with store_of(base) as store:
        pos = store.index.lookup(b"07/I0")
    flip(base.with_suffix(".data"), pos + 30)
    base.with_suffix(".cat").unlink()
    if catalog:
        save_catalog(base)
        assert runs(base) == 1
    with pytest.raises((CorruptError, winkfs.errors.Refusal)):
        survey(str(base), "job/c")


# --- names by position ---


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("long", ["", "x" * 300])
def test_names_are_those_of_the_data_file(long: str, damage: bool, tmp_path: Path) -> None:
    """Those of few files are read from it, those of many from the catalog, where it is good."""
    base = tmp_path / "c"
    with winkfs.create(base) as container:
        container.put_many((f"{i * 7 % 100:02}{long}", b"x") for i in range(100))
        container.put("03" + long, b"again")
        container.delete("50" + long)
        container.append_tombstones([b"gone", b"gone too"])
        container.save_catalog()
    if damage:
        path = base.with_suffix(".cat")
        with Catalog(FileStorage(path)) as file:
            at = int(file.runs[0].parts["pos"][len(file.runs[0].parts) // 2])
        flip(path, at + 3)
    order = np.random.default_rng(1)
    with store_of(base) as store:
        live = store.index.positions()
        tombs = [pos for pos in range(int(live[-1]) + 1, store.kv.end)
                 if store.key_at(pos) in (b"gone/I0", b"gone too/I0")]  # fmt: skip
        assert len(tombs) == 2
        for some in (live, live[::9], live[:1], np.append(live, tombs), np.array(tombs), live[:0]):
            positions = order.permutation(some)
            found = hidden._names_at(store, positions)
            assert found.tolist() == [store.key_at(pos)[:-3] for pos in positions.tolist()]
        for some in live[:1], live:
            with disk_calls() as calls:
                hidden._names_at(store, some)
            assert any(call.path.endswith(".cat") for call in calls) == (len(some) > 1)
        assert bool(store.remarks) == damage
