"""The compiled path and the one in Python: the same files to the byte, the same answers and errors
of whole and of damaged containers."""

import collections
import random
import secrets
import time
from pathlib import Path

import numpy as np
import pytest
from stored import make

import winkfs
from winkformats import native
from winkfs.container.bulk import Row
from winkfs.container.survey import Inodes

CODE = native.built()
pytestmark = [
    pytest.mark.skipif(CODE is None, reason="the compiled path was not built here"),
    pytest.mark.in_memory,
]
DAY = 1_790_000_000
KINDS = {
    "plain": {},
    "append only": {"ao": True},
    "classic": {"classic": True},
    "murmur3": {"htalgo": 3},
    "columns": {"columns": {"lang": "string", "score": "float64"}},
    "small inodes": {"isz": 56},
    "compressed": {"compress": "zstd"},
}


class Calls(collections.Counter):
    """The compiled module, which counts what is called."""

    def __getattr__(self, name):
        self[name] += 1
        return getattr(CODE, name)


@pytest.fixture
def calls(monkeypatch):
    counted = Calls()
    monkeypatch.setattr(native, "code", counted)
    return counted


def both(monkeypatch):
    """On one path, then on the other."""
    for path in (None, CODE):
        monkeypatch.setattr(native, "code", path)
        yield "compiled" if path else "python"


def names_and_contents(count, seed=1):
    random.seed(seed)
    sizes = [0, 1, 9, 100, 1000, 5000, 40_000]
    return {f"d{i % 7}/näme {i}": random.randbytes(random.choice(sizes)) for i in range(count)}


def fill(base, kind):
    """What put_many, put_rows and put write, of all sorts."""
    if kind == "compressed":
        pytest.importorskip("zstandard")
    with winkfs.create(base, **KINDS[kind]) as c:
        files = names_and_contents(300)
        c.put_many((name, data, DAY) for name, data in files.items())  # past 0xf and 0xff
        c.put_many((name.encode(), data) for name, data in list(files.items())[50:90])
        c.sync()
        c.put_many([("a", b"1"), ("a", b"22"), (b"\xff\xfe", b"no UTF-8"), ("x" * 400, b"3")])
        rows = [Row(f"r{i}", b"r" * i, ftype=[102, 112][i % 2], mode=[None, 0o600][i % 3 == 0],
                    xattrs={b"user.a": b"1"} if i % 5 == 0 and kind != "classic" else None)
                for i in range(1, 60)]  # fmt: skip
        if kind != "classic":
            c.put_rows(rows)
        c.put("late", b"one by one")
        c.put("empty", b"")
        c.put("exec", b"x" * 300, ftype=112)
        if kind != "classic":
            c.put("mode", b"m" * 300, mode=0o600)
            c.put("mode of nothing", b"", mode=0o4711, uid=5, gid=1 << 31)
            c.put("mode of a type", b"", mode=0o755)
        if kind == "columns":
            c.put_many([(f"t{i}", b"t", DAY * 2, {"lang": "de", "score": i / 2}) for i in range(9)])
        if kind in ("plain", "columns"):
            c.delete("d0/näme 0")
            c.append("d1/näme 1", b"more")
    return files


@pytest.fixture
def still(monkeypatch):
    """No clock and no chance: what is written is the same each time."""
    monkeypatch.setattr(time, "time", lambda: float(DAY))
    monkeypatch.setattr(time, "time_ns", lambda: DAY * 10**9)
    monkeypatch.setattr(secrets, "randbits", lambda bits: (1 << bits) // 3)


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_both_write_the_same_files(kind, tmp_path, still, monkeypatch):
    written = []
    for path in both(monkeypatch):
        folder = tmp_path / path
        folder.mkdir()
        fill(folder / "c", kind)
        written.append(files_of(folder))
        winkfs.reindex(folder / "c")
        written.append(files_of(folder))
        assert winkfs.verify(folder / "c").problems == []
    assert written[:2] == written[2:]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.mark.parametrize("size", [1, 500, 4_000, 70_000, 1 << 20])
def test_both_write_the_same_of_any_size(size, tmp_path, still, monkeypatch):
    written = []
    for path in both(monkeypatch):
        base = tmp_path / f"c{path}"
        make(base, {f"{i}": bytes([i]) * (size + i % 3) for i in range(6)})
        written.append(base.with_name(base.name + ".data").read_bytes())
    assert written[0] == written[1]


def test_both_refuse_the_same(tmp_path, monkeypatch):
    wrong = [("", b"1"), ("a\0b", b"1"), (b"a\0", b"1"), ("x" * 65_001, b""), (5, b"1"), ("a", 5),
             ("a", "text"), ("a",), "ab", ("a", b"1", 2, {}, 3), (b"", b"1"), None]  # fmt: skip
    printed = []
    for path in both(monkeypatch):
        with winkfs.create(tmp_path / f"c{path}") as c:
            for item in wrong:
                with pytest.raises((ValueError, TypeError, OSError)) as caught:
                    c.put_many([("before", b"0"), item, ("after", b"1")])
                text = str(caught.value).replace(str(tmp_path / f"c{path}"), "")
                printed.append((type(caught.value), text, sorted(c.names())))
                c.delete("before")
    assert printed[: len(wrong)] == printed[len(wrong) :]


# --- answers ---


def answers(base: Path, names):
    """What is said of each file, one by one and together, by a new handle and by one that knows
    the container; and of the whole."""
    printed = []

    def ask(call):
        try:
            printed.append(call())
        except (winkfs.WinkError, winkfs.FormatError) as error:
            printed.append((type(error), str(error)))

    ask(lambda: winkfs.verify(base).problems)
    try:
        with winkfs.open(base) as c:
            for _ in range(2):
                for name in names:
                    ask(lambda: c.read(name))  # noqa: B023
                    ask(lambda: c.read(name, 1, 5))  # noqa: B023
                    ask(lambda: name in c)  # noqa: B023
                    ask(lambda: c.stat(name))  # noqa: B023
                    ask(lambda: list(c.get_many([name])))  # noqa: B023
                ask(lambda: list(c.get_many(names)))
            ask(lambda: [(e.name, e.size) for e in c.scan(problem=lambda e: None)])
    except (winkfs.WinkError, winkfs.FormatError) as error:
        printed.append((type(error), str(error)))
    return printed


def assert_same(base, names, monkeypatch):
    printed = [answers(base, names) for _ in both(monkeypatch)]
    assert printed[0] == printed[1]
    return printed[0]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_both_give_the_same_answers(kind, base, monkeypatch):
    files = list(fill(base, kind))
    names = [*files[::2], "a", "late", "none", b"\xff\xfe", "\udcff\udcfe", "r3", "x" * 400]
    printed = assert_same(base, names, monkeypatch)
    assert sum(type(answer) is bytes for answer in printed) > 300


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.usefixtures("short_way")
def test_both_paths_report_the_same_damage(base, monkeypatch, every):
    """A flipped bit anywhere in a small data file or its index, and a file cut short anywhere."""
    make(base, {"a": b"1", "b": b"2" * 30, "c": b"3" * 300, "d": b"4"})
    random.seed(5)
    names = ["a", "b", "c", "d", "e"]
    for suffix in (".data", ".idx"):
        path = base.with_name("c" + suffix)
        whole = path.read_bytes()
        begin = 8192 if suffix == ".data" else 4096
        wrong = []
        for at in range(begin, len(whole))[every("both paths")]:
            flipped = whole[at] ^ 1 << random.randrange(8)
            wrong.append(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        wrong += [whole[:at] for at in range(begin, len(whole), 193)]
        for data in wrong:
            path.write_bytes(data)
            assert_same(base, names, monkeypatch)
        path.write_bytes(whole)


def rows_of_inodes(base):
    """The decoded inodes of all files, and the damage."""
    lost = []
    with winkfs.open(base) as c:
        store = c.store
        data = memoryview(base.with_name("c.data").read_bytes())
        places = store.index.positions()
        found = Inodes(store.kv, store.settings, lost.append).near(places, data, 0)
    words = [] if found.words is None else found.words.tolist()
    words = [word for word in words if word is not None]
    return (
        found.table.numbers.tolist(),
        found.table.names,
        found.attrs.tolist(),
        words,
        [*map(str, lost)],
    )


@pytest.mark.parametrize("kind", ["plain", "append only", "columns", "small inodes", "compressed"])
def test_both_decode_the_same_inodes(kind, base, monkeypatch, calls):
    if kind == "compressed":
        pytest.importorskip("zstandard")
    rows = [Row(f"r{i}", b"r" * i, ftype=[102, 112][i % 2], mode=[None, 0o600][i % 3 == 0])
            for i in range(40)]  # fmt: skip
    with winkfs.create(base, **KINDS[kind]) as c:
        c.put_many([("early", b"1", -DAY)])
        c.put_rows(rows)
        c.put_many([("ü" * 70, b"1"), ("zeros", bytes(9000)), (b"\xff", b"")])
        if kind == "columns":
            c.put_many([("t", b"t", 2 * DAY, {"lang": "de"})])
    with monkeypatch.context() as patched:
        patched.setattr(Inodes, "_decoded", None)  # the path in Python
        assert rows_of_inodes(base) and calls["table"]
    with winkfs.open(base, "a") as c:  # these do
        c.put_many([("x" * 700, b"3"), ("later", b"4")])
        if kind != "append only":
            c.append("later", b"more")
    printed = [rows_of_inodes(base) for _ in both(monkeypatch)]
    assert printed[0] == printed[1] and len(printed[0][1]) > 40
    path = base.with_name("c.data")
    whole = bytearray(path.read_bytes())
    whole[printed[0][0][5][0] + 30] ^= 4
    path.write_bytes(whole)
    printed = [rows_of_inodes(base) for _ in both(monkeypatch)]
    assert printed[0] == printed[1] and len(printed[0][-1]) == 1


@pytest.mark.parametrize("wrong", [-1, 1 << 40, -(1 << 62)])
def test_the_decoder_refuses_offsets_outside_of_its_data(wrong):
    at, pos, room = np.array([wrong]), np.array([8192]), np.empty(8, np.int64)
    code = native.built()
    assert (
        code.table(b"x" * 100, at, pos, True, 1, 1, room, room[:2].copy(), room[:2].copy()) is None
    )
    with pytest.raises(ValueError, match="different lengths"):
        code.table(b"", at, pos, True, 1, 1, room[:7], room[:2].copy(), room[:2].copy())


# --- that the compiled path runs, where it should ---


def test_the_compiled_path_is_the_one_that_runs(tmp_path, calls):
    base, files = tmp_path / "c", names_and_contents(200)
    make(base, files)
    assert calls["pairs"] and calls["encode"]
    with winkfs.open(base) as c:
        assert all(c.read(name) == data for name, data in files.items())
        assert list(c.get_many(files)) == list(files.values())
    assert all(calls[what] for what in ("reader", "inodes", "contents", "find_many", "hash_each"))
    winkfs.reindex(base)
    assert winkfs.verify(base).problems == []
    assert calls["walk"] and calls["hash_at"]


def test_what_is_not_plain_is_left_to_the_path_in_python(base, calls):
    make(base, {"a": b"1", "b": b"2"}, classic=True)
    with winkfs.open(base) as c:
        assert c.read("a") == b"1"
        assert list(c.get_many(["a", "b"])) == [b"1", b"2"]
    assert not any(calls[what] for what in ("reader", "inodes", "contents", "encode", "walk"))
