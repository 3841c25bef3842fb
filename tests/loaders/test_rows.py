"""Rows: the files of stores by number."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import data_set, numbered

import winkfs
from winkformats import native
from winkfs.container.compact import compact
from winkfs.loaders import Rows
from winkfs.loaders.reading import ShardRows
from winkfs.stores import ledgerq

pytestmark = pytest.mark.in_memory


def made(base: Path, count: int = 50) -> str:
    """Return the path of a container with files of 0 to count - 1 bytes."""
    with winkfs.create(base, columns={"lang": "string", "n": "int64"}) as c:
        for i in range(count):
            columns = {"lang": "de" if i % 2 else "fr", "n": i} if i % 5 else {}
            c.put(f"docs/{i:03}.txt", bytes([i % 256]) * i, mtime_ns=i * 10**9, columns=columns)
        c.put("a directory/b.txt", b"inside")
        c.delete("a directory/b.txt")
        c.mkdir("empty")
    return str(base)


def test_rows_are_the_files_in_disk_order(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"))
    assert len(rows) == 50
    assert rows[3] == {"path": "docs/003.txt", "content": b"\x03\x03\x03"}
    assert rows[-1]["path"] == "docs/049.txt"
    assert [row["path"] for row in rows[1:4]] == ["docs/001.txt", "docs/002.txt", "docs/003.txt"]
    assert [row["content"][:1] for row in rows.__getitems__([7, 3, 7])] == [
        b"\x07",
        b"\x03",
        b"\x07",
    ]
    assert [len(row["content"]) for row in rows] == list(range(50))
    assert rows.__getitems__(np.array([0, 49]))[0]["content"] == b""


def test_columns_and_where(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"), where="lang = 'de'", columns=["n", "size"], content=False)
    assert [row["n"] for row in rows] == [i for i in range(50) if i % 2 and i % 5]
    assert rows[0] == {"path": "docs/001.txt", "n": 1, "size": 1}


def test_pickled_rows_are_the_rows(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"))
    again = pickle.loads(pickle.dumps(rows))
    assert again[:] == rows[:]
    assert again.data == rows.data


@pytest.mark.parametrize("number", [50, -51])
def test_a_number_beyond_the_rows(tmp_path: Path, number: int) -> None:
    rows = Rows(made(tmp_path / "c"))
    with pytest.raises(IndexError, match=f"there is no row {number}: there are 50"):
        rows[number]


def damaged(base: str, content: bytes) -> None:
    """Flip a bit of a content."""
    path = Path(f"{base}.data")
    data = bytearray(path.read_bytes())
    data[data.index(content)] ^= 1
    path.write_bytes(data)


@pytest.fixture(params=[True, False], ids=["compiled", "in Python"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test on both paths."""
    if not request.param:
        monkeypatch.setattr(native, "code", None)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_files_of_all_forms(tmp_path: Path, compress: str) -> None:
    """Several parts, holes, attributes, odd names, none of the usual layout: as a reader has
    them."""
    with winkfs.create(tmp_path / "c", columns={"lang": "string"}, compress=compress) as c:
        c.put("parts", b"one")
        c.sync()
        c.append("parts", b" two" * 20_000)
        c.write("parts", 400_000, b"after a hole")
        c.put("empty", b"")
        c.put("mode", b"x", mode=0o600, columns={"lang": "de"})
        c.put("attributes", b"y")
        c.setxattrs("attributes", {b"user.a": b"1" * 3000})
        c.put(b"\xff\xfe", b"no text")
        c.put("ümläut", b"a")
        c.put(r"a\x41b", b"escaped")
        c.put("n" * 240, b"long name")
        c.put("to be renamed", b"same content")
        c.sync()
        c.rename("to be renamed", "renamed")
        c.put("large", bytes(range(256)) * 8000)
    rows = Rows(tmp_path / "c", columns=["lang", "size"])
    with winkfs.open(tmp_path / "c") as c:
        pytest.importorskip("pyarrow")
        wanted = ["path", "content", "lang", "size"]
        expected = c.to_arrow(wanted, order="disk").to_pylist()
    assert rows[:] == expected
    assert [rows[i] for i in range(len(rows))] == expected
    assert len(rows) == 10


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("classic", [False, True])
def test_other_layouts(tmp_path: Path, classic: bool) -> None:
    options = {"classic": True} if classic else {"ao": True}
    with winkfs.create(tmp_path / "c", **options) as c:
        c.put_many((f"{i}", b"%d" % i * 100, i) for i in range(20))
    assert [row["content"][:2] for row in Rows(tmp_path / "c")][10:12] == [b"10", b"11"]


@pytest.mark.usefixtures("both")
def test_damaged_rows(tmp_path: Path) -> None:
    base = made(tmp_path / "c")
    damaged(base, b"\x07" * 7)
    rows = Rows(base)
    assert rows[6]["content"] == b"\x06" * 6
    for read in (lambda: rows[7], lambda: rows[5:9]):
        with pytest.raises(winkfs.CorruptError, match="checksum"):
            read()
    some = Rows(base, on_error="skip")
    with pytest.warns(winkfs.DamageWarning, match="a row is left out"):
        assert [row["path"] for row in some[6:9]] == ["docs/006.txt", "docs/008.txt"]
    assert some.skipped == 1
    with pytest.raises(winkfs.CorruptError):
        some[7]
    seen = list[int]()
    instead = Rows(base, on_error=lambda number, error: seen.append(number) or {"path": "none"})
    assert [row["path"] for row in instead[7:9]] == ["none", "docs/008.txt"]
    assert seen == [7]


def test_decode(tmp_path: Path) -> None:
    def half(row: dict[str, Any]) -> int:
        if len(row["content"]) % 2:
            raise ArithmeticError(f"{row['path']} is odd")
        return len(row["content"]) // 2

    base = made(tmp_path / "c")
    assert Rows(base, decode=half)[8] == 4
    with pytest.raises(ArithmeticError, match=r"docs/001\.txt is odd"):
        Rows(base, decode=half)[:]
    with pytest.warns(winkfs.DamageWarning, match="is odd"):
        assert Rows(base, decode=half, on_error="skip")[:6] == [0, 1, 2]


def test_rows_of_a_data_set_are_those_of_its_generation(tmp_path: Path) -> None:
    base = data_set(tmp_path / "set", 40)
    old, now = Rows(base, as_of=2), Rows(base, columns=["n"])
    assert (len(old), len(now)) == (40, 39)
    assert old[0]["content"] == b"00000"
    assert {"path": "00000", "content": b"new", "n": None} in now[:]
    assert sum(row["n"] == 1 for row in now) == 20
    with winkfs.open(base) as reader:
        assert Rows(reader)[:] == Rows(base)[:]
    assert old.data != now.data


def test_several_stores(tmp_path: Path) -> None:
    rows = Rows([numbered(tmp_path / "a", 3), data_set(tmp_path / "set", 4)], content=False)
    assert rows.source_rows == [3, 3]
    assert [row["path"] for row in rows] == ["00000", "00001", "00002", "00002", "00003", "00000"]
    assert [row["path"] for row in rows.__getitems__([5, 0, 3])] == ["00000", "00000", "00002"]


def test_a_container_that_changes(tmp_path: Path) -> None:
    """What was deleted since is read; what a compaction replaced is not."""
    base = made(tmp_path / "c")
    rows, late = Rows(base), Rows(base)
    with winkfs.open(base, "a") as c:
        c.delete("docs/007.txt")
        c.put("docs/008.txt", b"other")
    assert [len(row["content"]) for row in rows[6:10]] == [6, 7, 8, 9]
    compact(base)
    with pytest.raises(winkfs.StalePlan, match="plan anew"):
        late[0]
    assert rows[7]["content"] == b"\x07" * 7  # it has the old file open


def test_copies_are_the_data(tmp_path: Path) -> None:
    base = made(tmp_path / "c")
    for path in tmp_path.glob("c.*"):
        shutil.copy(path, tmp_path / f"d{path.suffix}")
    assert Rows(base).data == Rows(tmp_path / "d").data


def test_threads_share_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more shards are read than stay open."""
    monkeypatch.setattr("winkfs.loaders.rows.MOST_OPEN", 2)
    rows = Rows([numbered(tmp_path / f"{i}", 20) for i in range(5)])
    expected = rows[:]

    def read(seed: int) -> bool:
        numbers = np.random.default_rng(seed).permutation(100)
        return rows.__getitems__(numbers) == [expected[number] for number in numbers]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(40)))


@pytest.mark.parametrize(("given", "options", "error", "line"), [
    ("missing", {}, FileNotFoundError, "missing"), (5, {}, TypeError, "rows are those of a path"),
    ([], {}, ValueError, "no store in the list"), ("c", {"where": "x = 1"}, ValueError, "x"),
    ("c", {"where": 5}, TypeError, "where is a text"),
    ("c", {"columns": ["x"]}, ValueError, "there is no column 'x'"),
    ("c", {"columns": "lang"}, TypeError, "columns is a list"),
    ("c", {"columns": None}, TypeError, "columns is a list"),
    ("c", {"content": "ref"}, TypeError, "content is True or False"),
    ("c", {"as_of": 1}, ValueError, "has no generations"),
    ("c", {"on_error": "ignore"}, ValueError, "on_error is 'raise', 'skip' or a function"),
    ("c", {"decode": "utf-8"}, TypeError, "decode is a function"),
    ("c", {"weights": [1, 2]}, ValueError, "2 weights for 1 stores"),
    (["c", "c"], {"weights": [1, 0]}, ValueError, "weights are numbers above 0"),
    ("c", {"weights": 2}, TypeError, "weights is a list"),
    ("c", {"weights": ["x"]}, TypeError, "weights is a list"),
])  # fmt: skip
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, options: Any, error: Any, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "c", 3)
    with pytest.raises(error, match=line) as found:
        Rows(given, **options)
    assert "\n" not in str(found.value)


def test_a_writer_and_another_store(tmp_path: Path) -> None:
    with (
        winkfs.create(tmp_path / "c") as c,
        pytest.raises(ValueError, match="a writer has no rows: sync, and open it for reading"),
    ):
        Rows(c)
    ledgerq.create(tmp_path / "q")
    with pytest.raises(ValueError, match="rows are for containers and data sets"):
        Rows(tmp_path / "q")


@pytest.mark.parametrize("numbers", [[1.5], ["a"], [[1]], 5, None, iter([1]), [True], {1: 2}])
def test_no_numbers(tmp_path: Path, numbers: Any) -> None:
    with pytest.raises(TypeError, match="numbers of rows are whole numbers"):
        Rows(made(tmp_path / "c")).__getitems__(numbers)


def test_batches_where_numbers_are_needed(tmp_path: Path) -> None:
    """As of a DataLoader that has a Sampler as `sampler`."""
    with pytest.raises(TypeError, match="PyTorch takes it as batch_sampler="):
        Rows(made(tmp_path / "c")).__getitems__([[1, 2], [3]])  # type: ignore[list-item]


@pytest.mark.parametrize("number", [10**30, -(10**30), np.uint64(2**64 - 1)])
def test_a_number_of_more_than_63_bits(tmp_path: Path, number: Any) -> None:
    with pytest.raises(IndexError, match=f"there is no row {number}: there are 50"):
        Rows(made(tmp_path / "c"))[number]


def test_numbers_of_any_type(tmp_path: Path) -> None:
    rows = Rows(made(tmp_path / "c"))
    for kind in (np.int8, np.uint8, np.uint64, np.int64):
        given = np.array([3, 49, 3], kind)
        assert rows.__getitems__(given) == rows.__getitems__([3, 49, 3])
    assert rows.__getitems__(np.array([-1, 2], np.int8)) == [rows[49], rows[2]]


def test_a_close_lets_other_threads_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, read = Rows(made(tmp_path / "c")), ShardRows.read
    expected = rows[:]

    def read_while_closed(shard: ShardRows, *given: Any) -> Any:
        rows.close()
        return read(shard, *given)

    monkeypatch.setattr(ShardRows, "read", read_while_closed)
    assert rows[:] == expected
    assert rows[49] == expected[49]
