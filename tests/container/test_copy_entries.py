"""Files that are copied from container to container: all of each, as it is, on both paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import stored
from flips import flip

import winkfs
from winkformats import native
from winkfs.archive.compare import Comparison, StoreSide
from winkfs.archive.items import Note
from winkfs.errors import Refusal

CODE = native.built()
PATHS = [None] if CODE is None else [None, CODE]
COLUMNS = {"lang": "string", "score": "float64"}
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "append only": {"ao": True},
    "classic": {"classic": True},
    "columns": {"columns": COLUMNS},
    "small inodes": {"isz": 56},
    "compressed": {"compress": "zstd"},
}
FILES = 3000  # more than a window takes


@pytest.fixture(params=PATHS, ids=lambda path: "python" if path is None else "compiled")
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "code", request.param)


def content(i: int) -> bytes:
    return b"%d: some words, and the same words again " % i * (i % 17)


def make(base: str, files: int = FILES, first: int = 0, **settings: object) -> str:
    """Make a container that has files of all sorts, and some that were replaced and deleted."""
    with winkfs.create(base, **settings) as c:  # type: ignore[arg-type]
        numbers = range(first, first + files)
        c.put_many((f"d{i % 7}/f{i:05}", content(i), 1000 + i) for i in numbers)
        last = 1000 + first + files
        if settings.get("columns"):
            c.put_many(
                (f"col/{i}", b"c", last + i, {"lang": "de", "score": i / 2}) for i in range(50)
            )
            last += 50
        if settings.get("ao"):
            return base
        c.put("empty", b"", mtime=last)
        c.put("link", b"d1/f00001", mtime=last, ftype=winkfs.FileType.LINK)
        c.put("large", os.urandom(1000) * 3000, mtime=last)
        c.put("patched", b"x" * 5000, mtime=last)
        c.write("patched", 100, b"yy")
        if not settings.get("classic"):
            c.put("d1", b"", ftype=winkfs.FileType.DIR, mode=0o700, mtime=last)
            c.put("private", b"p", mode=0o600, uid=5, gid=6, mtime=last)
            c.put("named", b"n", mtime=last)
            c.setxattrs("named", {b"user.more": b"1" * 300})
            c.put("holes", b"h", mtime=last)
            c.truncate("holes", 1 << 20)
        gone, again = (f"d{i % 7}/f{i:05}" for i in (first, first + 4))
        c.delete(gone)
        c.put(again, b"again", mtime=last)
    return base


def differences(one: str, other: str) -> list[str]:
    problems: list[str] = []
    with winkfs.open(one) as a, winkfs.open(other) as b:
        sides = StoreSide(a, problems.append), StoreSide(b, problems.append)
        found = Comparison(*sides, checksum=True, everything=True)
        return [*problems, *map(str, found.changes())]


def order(base: str) -> list[str]:
    with winkfs.open(base) as c:
        return [entry.name for entry in c.scan()]


def ids(base: str) -> dict[str, int]:
    with winkfs.open(base) as c:
        return {entry.name: entry.fileid for entry in c.scan()}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


@pytest.mark.few(3)
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_equal_in_order_and_in_fileids(kind: str) -> None:
    make("a", 300 if kind == "classic" else FILES, **KINDS[kind])
    report = winkfs.copy("a", "b")
    assert (report.failed, report.unchanged) == (0, 0)
    assert differences("a", "b") == []
    assert order("b") == order("a")
    assert ids("b") == ids("a")
    assert winkfs.verify("b").problems == []
    with winkfs.open("a") as a, winkfs.open("b") as b:
        assert (a.store.settings.ao, a.store.settings.classic, a.store.settings.isz) == (
            b.store.settings.ao, b.store.settings.classic, b.store.settings.isz,
        )  # fmt: skip
        assert a.store.settings.contid != b.store.settings.contid or kind == "classic"
        assert a.store.frames.compression == b.store.frames.compression


def test_frames_are_copied_as_they_are() -> None:
    pytest.importorskip("zstandard")
    make("a", compress="zstd")
    winkfs.copy("a", "b")
    winkfs.create("c").close()
    winkfs.copy("a", "c")
    assert differences("a", "c") == []
    sizes = [os.path.getsize(f"{base}.data") for base in "abc"]
    assert sizes[1] <= sizes[0] < sizes[2]  # c is not compressed
    with winkfs.open("c", "a") as c:
        c.delete("large")
    winkfs.create("d", compress="zstd:3").close()
    winkfs.copy("a", "d")
    assert differences("a", "d") == []
    assert winkfs.verify("d").problems == []


@pytest.mark.few(1)
@pytest.mark.parametrize(("one", "other"), [("plain", "columns"), ("compressed", "plain")])
def test_the_last_source_wins_and_columns_are_joined(one: str, other: str) -> None:
    make("a", **KINDS[one])
    make("b", 100, 50, **KINDS[other])
    with winkfs.open("b", "a") as b:
        b.add_columns({"more": "int64"})
        b.put_many([("col/x", b"x", 5, {"more": 7}), ("only", b"b", 6)])
    report = winkfs.copy(["a", "b"], "c")
    assert report.failed == 0
    assert winkfs.verify("c").problems == []
    expected = stored.files("a") | stored.files("b")
    assert stored.files("c") == expected
    with winkfs.open("c") as c, winkfs.open("b") as b:
        assert c.columns == {**b.columns}
        for name in ["col/x", "only", "d2/f00051", "private"]:
            assert c.getcolumns(name).items() >= b.getcolumns(name).items()
        assert c.getcolumns("col/x")["more"] == 7
        numbers = [entry.fileid for entry in c.scan()]
        assert len(set(numbers)) == len(numbers)
    assert winkfs.copy(["a", "b"], "c").unchanged == len(expected)
    assert winkfs.copy(["b", "a"], "d", no_clobber=True).failed == 0
    assert stored.files("d") == expected


def test_fileids_stay_unless_two_files_have_one() -> None:
    make("a", 100)
    make("b", 100, 1000)
    with winkfs.open("b", "a") as b:
        b.put_many((f"later/{i}", b"l", 5) for i in range(300))
    winkfs.copy(["a", "b"], "c")
    one, other, both = ids("a"), ids("b"), ids("c")
    common = one.keys() & other.keys()
    taken = {fileid for name, fileid in one.items() if name not in common}
    assert all(both[name] == one[name] for name in one.keys() - common)
    kept = {name for name, fileid in other.items() if fileid not in taken}
    assert len(kept) > 250
    assert all(both[name] == other[name] for name in kept)
    assert len(set(both.values())) == len(both)
    assert winkfs.verify("c").problems == []


def test_a_choice_and_a_prefix() -> None:
    make("a", columns=COLUMNS)
    winkfs.copy("a", "b", include=["d1"], exclude=["*7"], prefix="x/")
    had = stored.files("a")
    want = {f"x/{n}": data for n, data in had.items() if n.startswith("d1") and n[-1] != "7"}
    assert stored.files("b") == want
    winkfs.copy("a", "c", where="score > 20 and lang = 'de'")
    assert stored.names("c") == sorted(f"col/{i}" for i in range(41, 50))
    notes: list[Note] = []
    report = winkfs.copy("a", "d", names=["link", "private", "none"], note=notes.append)
    assert stored.names("d") == ["link", "private"]
    assert report.failed == 1 and [note.name for note in notes] == [b"none"]
    assert winkfs.verify("b").problems == winkfs.verify("d").problems == []


def test_two_types_of_a_column_are_refused_before_all_else() -> None:
    stored.make("a", {"x": b"1"}, columns={"lang": "string"})
    stored.make("b", {"x": b"1"}, columns={"lang": "int64"})
    stored.make("c", {"x": b"1"}, columns={"Lang": "string"})
    before = sorted(os.listdir())
    for sources in (["a", "b"], ["a", "c"]):
        with pytest.raises(Refusal, match=r"[Ll]ang"):
            winkfs.copy(sources, "out")
        with pytest.raises(Refusal, match=r"[Ll]ang"):
            winkfs.copy(sources[1], "a")
    assert sorted(os.listdir()) == before
    assert stored.columns("a") == {"lang": "string"}


def test_a_container_is_not_copied_onto_itself() -> None:
    stored.make("a", {"x": b"1"})
    with pytest.raises(Refusal, match="is a source, too"):
        winkfs.copy(["a"], "a")


def test_what_a_classic_container_cannot_hold_is_refused_by_name() -> None:
    stored.make("a", {"x": b"1"}, classic=True)
    make("b", 10)
    with pytest.raises(Refusal, match=r"d1|private"):
        winkfs.copy(["a", "b"], "c")
    assert not Path("c.data").exists()
    assert not Path("c.partial.data").exists()
    assert winkfs.copy(["a", "b"], "c", exclude=["d1", "private", "named"]).failed == 0
    assert winkfs.verify("c").problems == []


def test_an_append_only_container_takes_files_by_time() -> None:
    stored.make("a", [("a1", b"1", 10), ("a2", b"2", 30)], ao=True)
    stored.make("b", [("b2", b"1", 40), ("b1", b"2", 20)])
    winkfs.copy(["a", "b"], "c")
    assert order("c") == ["a1", "b1", "a2", "b2"]
    stored.make("old", [("o", b"1", 5)])
    with pytest.raises(winkfs.NotAllowed, match="o: is older"):
        winkfs.copy("old", "c")
    assert winkfs.verify("c").problems == []


@pytest.mark.usefixtures("path")
def test_damaged_files_are_reported_and_the_others_copied() -> None:
    make("a", 2000)
    with winkfs.open("a") as a:
        plain = a.extents("d0/f00007")[0].pointer
        large = a.extents("large")[1].pointer
        inode = a.store.index.lookup(b"d1/f00008/I0")
    for at in (plain + 20, large + 20, inode + 60):
        flip("a.data", at)
    notes: list[Note] = []
    report = winkfs.copy("a", "b", note=notes.append)
    assert report.failed == 3
    assert {note.name for note in notes} == {b"d0/f00007", b"large", b""}
    assert winkfs.verify("b").problems == []
    gone = {"d0/f00007", "large", "d1/f00008"}
    with winkfs.open("a") as a, winkfs.open("b") as b:
        assert set(a.names()) - set(b.names()) == gone
        names = list(b.names())
        assert [a.read(n) for n in names] == [b.read(n) for n in names]


def test_a_data_set_is_copied_as_it_is_visible() -> None:
    from winkfs.dataset.dataset import create

    with create("s") as s:
        s.put_many((f"f{i}", content(i), i) for i in range(500))
        s.sync()
        s.put_many((f"f{i}", b"new", i) for i in range(100, 200))
        s.delete("f7")
        s.sync()
        s.put("g", b"g", mode=0o600)
    winkfs.copy("s", "a")
    assert differences("s", "a") == []
    make("more", 10)
    generation = winkfs.open("s").generation  # type: ignore[union-attr]
    report = winkfs.copy(["a", "more"], "s")
    assert report.unchanged == 500 and report.failed == 0
    with winkfs.open("s") as s:
        assert s.generation == generation + 1
    assert stored.files("s") == stored.files("a") | stored.files("more")
    assert winkfs.copy(["a", "more"], "s").unchanged == len(stored.files("s"))
    assert winkfs.verify("s").problems == []


def test_a_sparse_choice_reads_files_one_by_one() -> None:
    stored.make("a", [(f"f{i:04}", bytes([i % 256]) * 40_000, i) for i in range(500)])
    winkfs.copy("a", "b", names=[f"f{i:04}" for i in range(0, 500, 97)])
    have = stored.files("a")
    assert stored.files("b") == {n: have[n] for n in sorted(have)[::97]}


# --- split ---


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "rule", [{"files": 700}, {"size": 200_000}, {"depth": 1}, {"by": "lang"}, {"shards": 3}]
)
def test_what_is_split_and_copied_together_is_equal(rule: dict[str, object]) -> None:
    make("a", 2500, columns=COLUMNS)
    stored.change("a", {f"t{i % 2}/x y_{i}": b"t" for i in range(20)})
    made: list[str] = []
    report = winkfs.split("a", "out", made=made.append, **rule)  # type: ignore[arg-type]
    assert report.failed == 0
    assert made and all(winkfs.verify(one).problems == [] for one in made)
    winkfs.copy(made, "back")
    assert differences("a", "back") == []
    again = winkfs.split("a", "out", **rule)  # type: ignore[arg-type]
    assert (again.files, again.unchanged) == (0, len(stored.files("a")))
    other = {"files": 5} if "shards" not in rule else {"shards": 2}
    if "files" in rule or "size" in rule or "shards" in rule:
        with pytest.raises(winkfs.FileExists, match="not made by this split"):
            winkfs.split("a", "out", **other)


def test_split_by_size_gives_a_large_file_a_container_of_its_own() -> None:
    sizes = [10_000, 10_000, 10_000, 200_000, 10_000, 45_000, 5_000]
    stored.make("a", [(f"f{i}", os.urandom(size), i) for i, size in enumerate(sizes)])
    made: list[str] = []
    winkfs.split("a", "o", size=50_000, made=made.append)
    assert [stored.names(one) for one in made] == [
        ["f0", "f1", "f2"], ["f3"], ["f4"], ["f5"], ["f6"]
    ]  # fmt: skip


def test_split_names_values_so_that_any_is_a_file() -> None:
    columns = {"v": "string"}
    values = ["a/b", "_null", "é", "", "A.b-1"]
    files = [(f"f{i}", b"x", i, {"v": value}) for i, value in enumerate(values)]
    stored.make("a", [*files, ("none", b"x", 9)], columns=columns)
    made: list[str] = []
    winkfs.split("a", "o", by="v", made=made.append)
    assert made == ["o-a%2Fb", "o-%5Fnull", "o-%C3%A9", "o-", "o-A.b-1", "o-_null"]
    with pytest.raises(ValueError, match="no column"):
        winkfs.split("a", "p", by="w")


def test_split_goes_on_with_the_first_container_that_is_missing() -> None:
    make("a", 100)
    made: list[str] = []
    winkfs.split("a", "o", files=20, made=made.append)
    for suffix in (".data", ".idx", ".cat"):
        os.unlink(made[2] + suffix)
    again: list[str] = []
    winkfs.split("a", "o", files=20, made=again.append)
    assert again == [made[2]]
    stored.change("a", {"new": b"1"})  # another source now
    with pytest.raises(winkfs.FileExists):
        winkfs.split("a", "o", files=20)


def test_a_split_into_shards_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", 100)
    left = Path("o.partial")
    left.mkdir()
    (left / "of a run that was killed").touch()

    def fails(*args: object) -> None:
        assert not left.exists()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("winkfs.archive.split._write_shards", fails)
        with pytest.raises(OSError, match="No space"):
            winkfs.split("a", "o", shards=2)
    assert not left.exists() and not Path("o").exists()
    winkfs.split("a", "o", shards=2)
    assert not left.exists() and stored.names("o") == sorted(stored.names("a"))


def test_a_copy_into_an_existing_container_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make("a", 100)
    stored.make("b", {"x": b"1"})
    synced, sync = list[int](), winkfs.Container.sync

    def counted(container: winkfs.Container) -> None:
        synced.append(len(container))
        sync(container)

    monkeypatch.setattr("winkfs.archive.copyfiles.FILES_AT_ONCE", 10)
    monkeypatch.setattr("winkfs.archive.copyfiles.SYNC_BYTES", 4000)
    monkeypatch.setattr(winkfs.Container, "sync", counted)
    winkfs.copy("a", "b")
    assert len(synced) >= 3 and synced == sorted(synced)


def test_a_container_that_lacks_a_damaged_file_reports_it_again() -> None:
    make("a", 100)
    with winkfs.open("a") as a:
        flip("a.data", a.extents("d0/f00007")[0].pointer + 20)
    for shards, rule in (("o", {"files": 50}), ("s", {"shards": 2})):
        assert winkfs.split("a", shards, **rule).failed == 1
        assert winkfs.split("a", shards, **rule).failed == 1


def test_shards_are_even() -> None:
    stored.make("a", [(f"f{i:03}", bytes(1000), i) for i in range(300)])
    winkfs.split("a", "s", shards=3)
    with winkfs.open("s") as s:
        counts = np.array([shard.record.files for shard in s.shards])  # type: ignore[attr-defined]
    assert len(counts) == 3 and abs(counts - 100).max() <= 1
