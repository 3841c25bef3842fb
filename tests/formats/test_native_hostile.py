"""Each compiled function with arrays, buffers and containers that are wrong in every way: it
answers, or raises. `make test-c` runs this under sanitizers, which see what goes wrong behind."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import winkfs
from winkformats import native
from winkfs.container.ondisk.block import encode_blocks
from winkfs.container.table import FileTable

code = native.built()
pytestmark = pytest.mark.skipif(code is None, reason="the compiled path was not built here")
INT64 = 1 << 63
EDGES = [
    0,
    1,
    -1,
    7,
    8,
    63,
    64,
    65,
    255,
    4096,
    1 << 16,
    1 << 31,
    1 << 32,
    INT64 - 1,
    INT64 - 64,
    INT64 - 65,
    -INT64,
    -INT64 + 1,
    1 << 62,
]
TURNS = 400
WRONG: list[Any] = [None, 5, "x", b"", b"x", [], [b"x"], [None], (1,), np.zeros(3), object()]


@contextmanager
def refused() -> Iterator[None]:
    """What the functions may raise."""
    with suppress(ValueError, TypeError, IndexError, OverflowError, MemoryError):
        yield


def numbers(rng: random.Random, n: int, near: int = 1 << 16) -> npt.NDArray[np.int64]:
    """Edges, and numbers around the size of a buffer; an array that ends where its memory does."""
    chosen = [
        rng.choice(EDGES) if rng.random() < 0.5 else rng.randrange(-9, near + 9) for _ in range(n)
    ]
    return np.array(chosen, np.int64)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A container's bytes, its index, and where its inodes are."""
    base = tmp_path_factory.mktemp("stored") / "c"
    with winkfs.create(base) as c:
        c.put_many((f"n{i}", b"%d" % i * (i % 50 + 1)) for i in range(60))
        c.put("large", bytes(9000))
        c.put("attributed", b"x", mode=0o600)
        c.sync()
        c.append("n1", b"of two extents")
        c.truncate("n59", 9000)
    with winkfs.open(base) as c:
        assert isinstance(c, winkfs.Container)
        store = c.store
        keys = [f"n{i}/I0".encode() for i in range(60)] + [b"large/I0", b"attributed/I0"]
        assert store.index.base is not None
        return {
            "data": Path(f"{base}.data").read_bytes(),
            "table": Path(f"{base}.idx").read_bytes(),
            "isz": store.inode_size,
            "pairoff": store.settings.pairoff,
            "keys": keys,
            "contid": store.kv.layout.contid,
            "pos": [store.index.lookup(key) for key in keys],
            "first": store.index.base.offset,
            "htsize": store.index.base.shape.htsize,
        }


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A copy with some bytes changed, or cut short."""
    copy = bytearray(data)
    for _ in range(rng.choice([0, 1, 3, 30])):
        at = rng.randrange(len(copy))
        copy[at : at + 8] = rng.choice(
            [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8), rng.randbytes(8)]
        )
    return bytes(copy[: rng.randrange(len(copy) + 1)] if rng.random() < 0.3 else copy)


def test_the_sanitized_build_is_the_one_that_runs() -> None:
    assert (os.environ.get("WINKFS_SANITIZED") == "1") == ("sanitized" in code.__file__)


FUNCTIONS = [n for n in dir(code) if not n.startswith("_") and n != "VERSION"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_wrong_types_and_numbers_are_refused(name: str) -> None:
    rng = random.Random(1)
    call = getattr(code, name)
    for count in range(14):
        for _ in range(30):
            given = [rng.choice([*WRONG, *EDGES, numbers(rng, 3)]) for _ in range(count)]
            with refused():
                call(*given)


def test_hashes_of_hostile_parts() -> None:
    rng = random.Random(2)
    for _ in range(TURNS):
        data = rng.randbytes(rng.randrange(300))
        n = rng.randrange(6)
        into = np.zeros(rng.choice([n, n, n, n + 1]), np.uint64)
        seeds = rng.choice([None, np.zeros(n, np.uint64), np.zeros(n + 1, np.uint64)])
        with refused():
            code.hash_at(data, numbers(rng, n, 300), numbers(rng, n, 300), seeds, into)
        with refused():
            code.hash_each([rng.randbytes(k) for k in range(rng.randrange(40))], seeds)
        with refused():
            code.hash_each(rng.choice(WRONG), seeds)


def test_the_walk_over_damaged_entries(stored: dict[str, Any]) -> None:
    rng = random.Random(3)
    for _ in range(TURNS):
        data = damaged(rng, stored["data"][8192:])
        rows, end = code.walk(data)
        assert 0 <= end <= len(data) and len(rows) % 24 == 0
    for size in range(64):
        code.walk(b"\xff" * size)


def test_cells_that_are_hostile(stored: dict[str, Any]) -> None:
    rng = random.Random(4)
    for _ in range(TURNS):
        cells = rng.randbytes(16 * rng.randrange(40))
        n = rng.randrange(5)
        s = numbers(rng, n).view(np.uint64)
        found = [np.zeros(rng.choice([n, n, n + 1]), np.int64) for _ in range(2)]
        with refused():
            code.find_many(
                cells,
                rng.choice([len(cells) // 16, *EDGES]),
                rng.choice(EDGES),
                rng.choice(EDGES),
                s,
                numbers(rng, n).view(np.uint64),
                *found,
            )


def test_inodes_and_contents_of_damaged_containers(stored: dict[str, Any]) -> None:
    rng = random.Random(5)
    keys, n = stored["keys"], len(stored["keys"])
    for _ in range(TURNS):
        data = damaged(rng, stored["data"])
        limit = rng.choice([len(data), len(data), len(data), *EDGES])
        isz = rng.choice([stored["isz"]] * 4 + EDGES)
        form = data, limit, isz, rng.choice([stored["pairoff"], 0]), stored["contid"]
        pos = np.array(stored["pos"], np.int64)
        some = [i for i in range(n) if rng.random() < 0.2]
        pos[some] = numbers(rng, len(some), len(data))
        pointers, sizes = np.zeros(n, np.int64), np.zeros(n, np.int64)
        with refused():
            code.inodes(*form, keys, pos, pointers, sizes)
        pointers[some] = numbers(rng, len(some), len(data))
        sizes[rng.sample(range(n), 9)] = numbers(rng, 9, len(data))
        with refused():
            code.contents(*form, pointers, sizes, [None] * rng.choice([n, n, 3]))


def test_files_and_rows_at_hostile_positions(stored: dict[str, Any]) -> None:
    rng = random.Random(9)
    n, whole = len(stored["pos"]), 0
    for _ in range(TURNS):
        data = damaged(rng, stored["data"])
        limit = rng.choice([len(data)] * 40 + EDGES)
        isz = rng.choice([stored["isz"]] * 40 + EDGES)
        form = rng.choice([stored["pairoff"]] * 3 + [0]), rng.choice([stored["contid"]] * 3 + [0])
        at, pos = np.array(stored["pos"], np.int64), np.array(stored["pos"], np.int64)
        for some in (at, pos):
            wrong = rng.sample(range(n), rng.choice([0, 0, 5, n]))
            some[wrong] = numbers(rng, len(wrong), len(data))
        names = [None] * rng.choice([n] * 5 + [3])
        contents, words = (rng.choice([[None] * n, [None] * n, [None] * 3, None]) for _ in "12")
        times = np.zeros(n, np.int64)
        with refused():
            code.files(data, limit, isz, *form, at, pos, names, contents, words, times, times)
            whole += len(names) - names.count(None)
        room = np.zeros(n * 8, np.int64), np.zeros(n * 2, np.int64), np.zeros(n + 1, np.int64)
        with refused():
            code.table(data, at, pos, *form, rng.choice([1, 10**9, *EDGES]), *room)
    assert whole > TURNS


def test_blocks_of_a_catalog_that_are_hostile() -> None:
    rng, made = random.Random(10), 0
    names = sorted(b"d%d/f%03d" % (i % 7, i) for i in range(60))
    rows = FileTable.of(names, np.arange(60) << 20, 1, 5, 1 << 40, 77, 1)
    values = [value for value, _ in encode_blocks(rows, 25)]
    at = np.cumsum([0, *map(len, values[:-1])])
    lengths = np.array(list(map(len, values)))
    raw = b"".join(values) + bytes(8)
    for _ in range(3 * TURNS):
        n = rng.choice([60] * 8 + [0, 1, 59, 61])
        data, places = damaged(rng, raw), [at.copy(), lengths.copy()]
        if rng.random() < 0.3:
            rng.choice(places)[rng.randrange(3)] = rng.choice([*EDGES, rng.randrange(len(raw))])
        into = np.zeros(8 * rng.choice([n] * 9 + [n + 1]), np.int64)
        with refused():
            made += code.blocks(data, *places, into, np.zeros(n + 1, np.int64)) is not None
    assert made > TURNS // 4


def test_paths_of_hostile_names() -> None:
    rng = random.Random(11)
    for _ in range(TURNS):
        data = bytes(rng.choice(b"a/") for _ in range(rng.randrange(90)))
        ends = np.sort(np.array([rng.randrange(len(data) + 1) for _ in range(5)]))
        if rng.random() < 0.4:
            ends[rng.randrange(5)] = rng.choice([*EDGES, len(data) + 1])
        found = np.zeros(12 + rng.choice([0, 0, 0, 1]), np.int64)
        with refused():
            code.paths(data, ends, rng.choice([b"", b"a", b"a/aa/a"]), found)


def test_values_of_damaged_entries(stored: dict[str, Any]) -> None:
    rng = random.Random(7)
    for _ in range(TURNS):
        data = damaged(rng, stored["data"])
        n = rng.randrange(1, 9)
        at, pos, sizes = (numbers(rng, n, len(data)) for _ in range(3))
        if rng.random() < 0.7:
            sizes = np.abs(sizes % 300)
        into = bytearray(rng.choice([int(np.abs(sizes % 5000).sum()), 3000, 0]))
        good = np.zeros(rng.choice([n, n, n, n + 1]), bool)
        with refused():
            code.gather(data, at, pos, sizes, rng.choice([stored["contid"], 0]), into, good)


def test_a_reader_of_damaged_files(stored: dict[str, Any], tmp_path: Path) -> None:
    rng = random.Random(6)
    files = tmp_path / "data", tmp_path / "table"
    names = ["n1", "n59", "large", "attributed", "", "x" * 3000, "\udc80", b"n1/I0", b"", 5, None]
    for _ in range(TURNS):
        data, table = damaged(rng, stored["data"]), damaged(rng, stored["table"])
        overlay = {
            key: rng.choice([*EDGES, stored["pos"][0]]) for key in rng.sample(stored["keys"], 3)
        }
        limits = np.array([rng.choice([len(data), *EDGES]), rng.choice([0, 0, 9, 999])], np.int64)
        with files[0].open("wb") as one, files[1].open("wb") as two:
            one.write(data)
            two.write(table)
        fds = [os.open(path, os.O_RDONLY) for path in files]
        sums = rng.choice([None, None, bytes(3), b"\1" * 100])
        with refused():
            asked = code.reader(
                rng.choice([data, data, b""]),
                limits[: rng.choice([2, 2, 2, 2, 1])],
                rng.choice([stored["isz"], 80, 2048]),
                stored["pairoff"],
                stored["contid"],
                rng.choice([table, table, b""]),
                rng.choice([stored["first"]] * 3 + EDGES),
                rng.choice([stored["htsize"]] * 3 + EDGES),
                0,
                1,
                sums,
                rng.choice([{}, overlay]),
                rng.choice([{}, {stored["keys"][1]: None}]),
                ([], {}),
                *rng.choice([(-1, -1), fds]),
                rng.choice([0, 100, *EDGES]),
                rng.choice([-1, -1, 0, len(data) - 8, *EDGES]),
                0,
                (1 << 64) - 1,
                rng.choice([lambda frame, pos: frame, lambda frame, pos: 5, len, None]),
            )
            places = [*stored["pos"][::9], *stored["pos"][-2:], *EDGES]
            for ask, given in itertools.product(asked, [*names, *places]):
                with refused():
                    ask(given)
            for ask, given in [*((asked[0], name) for name in names), (asked[3], places[0])]:
                with refused():
                    ask(given, rng.choice(EDGES))
        for fd in fds:
            os.close(fd)


def test_a_file_that_is_put_with_hostile_numbers() -> None:
    rng = random.Random(8)
    for _ in range(TURNS):
        pos, *numbers = (rng.choice([*EDGES, 12345]) for _ in range(4))
        texts = [rng.randbytes(rng.choice([0, 1, 70, 70_000])) for _ in range(4)]
        frame = rng.choice([None, texts[3]])
        with refused():
            made, place, size = code.entries(
                pos, rng.choice([56, 96, 128, *EDGES]), rng.choice([True, False]), 5, *numbers,
                *texts[:3], frame,
            )  # fmt: skip
            assert len(made) - 11 - len(texts[0]) - size == (place - pos) % (1 << 64)


def test_files_that_are_put_with_hostile_columns() -> None:
    rng = random.Random(7)
    made = 0
    for _ in range(TURNS):
        n = rng.randrange(4)

        def column(sizes: list[int], n: int = n) -> list[bytes]:
            return [rng.randbytes(rng.choice(sizes)) for _ in range(n + rng.choice([0] * 9 + [1]))]

        def room(n: int = n) -> npt.NDArray[np.int64]:
            return np.zeros(n + rng.choice([0] * 9 + [1, -n]), np.int64)

        keys, data, words = column([0, 5, 300]), column([0, 5, 300, 9000]), column([0, 24])
        least = rng.choice([128, 128, 128, *EDGES])
        framed = rng.choice([None, np.ones(n, bool), np.ones(n + 1, bool)])
        base, fileid = rng.choice([8192, *EDGES]), rng.choice([1, *EDGES])
        with refused():
            code.encode(
                base, least, rng.choice([0, 1]), 99, fileid, numbers(rng, n), numbers(rng, n),
                numbers(rng, n), keys, data, rng.choice([None, words]), framed,
                rng.choice([0, 1]), room(), room(),
            )  # fmt: skip
            made += 1
        with refused():
            code.entries(
                base, least, rng.choice([0, 1]), 99, fileid, rng.choice(EDGES), rng.choice(EDGES),
                b"".join(keys), b"".join(data), b"".join(words), rng.choice(EDGES),
                rng.choice([0, 1]),
            )  # fmt: skip
            made += 1
        pairs = [
            rng.choice(
                [("a", b"1"), (b"a", b"2"), ("a\0", b""), ("\udc80", b""), (1, 2), None, ("a",)]
            )
            for _ in range(n)
        ]
        with refused():
            code.pairs(pairs, np.zeros(n, np.int64), np.zeros(rng.choice([n, n + 1]), np.int64))
    assert made > TURNS // 2


def test_files_of_a_tree_with_hostile_arguments(tmp_path: Path) -> None:
    rng = random.Random(8)
    for i in range(5):
        (tmp_path / f"f{i}").write_bytes(bytes(i * 100))
    (tmp_path / "d").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(100):
            names = rng.sample([b"f0", b"f1", b"f4", b"d", b"none", b"", b"x" * 300, b".."], 3)
            folders = np.array([rng.choice([fd, fd, -1, 1 << 20]) for _ in names], np.int64)
            buffer = bytearray(rng.choice([0, 10, 1000]))
            with refused():
                code.read_files(
                    folders,
                    names,
                    b"fdf",
                    rng.choice([0, 1]),
                    0,
                    0,
                    rng.choice([0, 5, 500, *EDGES]),
                    rng.choice(EDGES),
                    buffer,
                )
            assert code.names_in(rng.choice([fd, -1, 1 << 20])) is None or True
    finally:
        os.close(fd)


def test_lines_end_where_their_memory_does() -> None:
    rng = random.Random(11)
    for _ in range(TURNS):
        data = np.array(rng.choices(b"a\n", k=rng.randrange(70)), np.uint8)
        literal = rng.choice([b"a", b"aa", b"a" * 64, b"a" * 300, b"b", b"", b"\n", *WRONG])
        with refused():
            code.lines(data, (literal,) * rng.randrange(4), rng.choice([False, True]))
        with refused():
            code.headed(
                data,
                np.array(
                    rng.choices([0, 1, 5, 64, 70, *EDGES], [9, 9, 9, 9, 9, *[1] * len(EDGES)], k=4)
                ),
                np.array(rng.choices([0, 1, -1, 2], [20, 20, 1, 1], k=2)),
                [b"name", b""] + WRONG[:1] * rng.randrange(2),
                rng.choice([None, np.array([0, 1]), np.array([rng.choice(EDGES), 0])]),
            )
