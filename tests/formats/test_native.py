"""The compiled path: the same as the one in Python, on good bytes and on any others."""

import inspect
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash
from flips import flipped
from refusals import all_raise, refuses

import winkfs
from winkformats import hashing, native
from winkformats.hindex import table
from winkformats.hindex.table import Shape
from winkformats.kv import scan
from winkformats.kv.entry import MASK64, Layout

code = native.built()
pytestmark = pytest.mark.skipif(code is None, reason="the compiled path was not built here")
LAYOUT = Layout.of({"KVDELFL": 1, "KEYREPR": 1, "VALREPR": 2, "KVCKSUM": 1, "CONTID": 99})


def both(monkeypatch, call):
    """What a call says, with its error, on both paths, which is the same."""
    answer = []
    for path in (None, code):
        monkeypatch.setattr(native, "code", path)
        try:
            answer.append(call())
        except Exception as error:
            answer.append((type(error), str(error)))
    assert answer[0] == answer[1]
    return answer[0]


def test_its_types_name_what_it_has():
    """Both the stub and the class through which the product has it."""
    functions = {name for name in dir(code) if callable(getattr(code, name)) and name[0] != "_"}
    stub = Path(native.__file__).with_name("_native.pyi").read_text()
    assert set(re.findall(r"^def (\w+)\(", stub, re.MULTILINE)) == functions
    given = re.findall(r"(\w+) = staticmethod\(_native\.(\w+)\)", inspect.getsource(native))
    assert {own for own, _ in given} == {theirs for _, theirs in given} == functions


# --- hashes ---


def test_hashes_of_all_lengths_are_those_of_xxhash():
    random.seed(1)
    data = random.randbytes(1 << 12)
    buffers = [data[n % 5 : n % 5 + n] for n in range(2049)]
    buffers += [random.randbytes(random.randrange(2049, 70_000)) for _ in range(200)]
    buffers += [random.randbytes(n) for n in (1 << 20, (1 << 20) + 1, 1024 * 7, 1024 * 7 + 64)]
    seeds = [random.getrandbits(64) for _ in buffers]
    seeds[:3] = 0, 1, (1 << 64) - 1
    found = code.hash_each(buffers, np.array(seeds, np.uint64))
    pairs = zip(buffers, seeds, strict=True)
    assert np.frombuffer(found, np.uint64).tolist() == [xxhash.xxh3_64_intdigest(*p) for p in pairs]
    found = code.hash_each(iter(buffers), None)
    assert np.frombuffer(found, np.uint64).tolist() == list(map(xxhash.xxh3_64_intdigest, buffers))


@pytest.mark.parametrize("count", [0, 2, 3, 4])
def test_hashes_are_as_many_as_the_shorter_column(monkeypatch, count: int):
    seeds = np.arange(3, dtype=np.uint64)
    buffers = [b"x" * n for n in range(count)]
    found = both(monkeypatch, lambda: hashing.xxh3_many(iter(buffers), seeds).tolist())
    assert len(found) == min(count, 3)


def test_all_that_has_bytes_is_hashed_and_nothing_else(monkeypatch):
    given = [b"ab", bytearray(b"ab"), memoryview(b"ab"), np.frombuffer(b"ab", np.uint8)]
    found = both(monkeypatch, lambda: hashing.xxh3_many(given).tolist())
    assert len(set(found)) == 1
    refuses(lambda wrong: code.hash_each([b"a", wrong], None), (5, None, [1], "ab"), TypeError)


def test_parts_are_cut_as_slices_are(monkeypatch):
    random.seed(2)
    data = random.randbytes(1000)
    ends = [-(1 << 62), -1001, -1000, -5, -1, 0, 1, 17, 500, 999, 1000, 1001, 1 << 62]
    starts = np.array([a for a in ends for _ in ends], np.int64)
    stops = np.array([b for _ in ends for b in ends], np.int64)
    seeds = np.arange(len(starts), dtype=np.uint64)
    for view in (data, memoryview(data)):
        both(monkeypatch, lambda: hashing.xxh3_at(view, starts, stops, seeds).tolist())  # noqa: B023
        both(monkeypatch, lambda: hashing.xxh3_at(view, starts[::2], stops[::2]).tolist())  # noqa: B023


def test_columns_of_other_lengths_are_refused():
    numbers, few = np.zeros(3, np.int64), np.zeros(2, np.int64)
    uneven = ((few, numbers, None, numbers), (numbers, few, None, numbers),
              (numbers, numbers, few, numbers), (numbers, numbers, None, few))  # fmt: skip
    refuses(lambda columns: code.hash_at(b"abc", *columns), uneven, ValueError, "lengths")


# --- entries ---


def entries(count):
    random.seed(count)
    pos, parts = 0, []
    for i in range(count):
        value = random.randbytes(random.choice([0, 1, 100, 3000]))
        parts.append(LAYOUT.encode(pos, b"k" * (i % 40), value))
        pos += len(parts[-1])
    return b"".join(parts)


def test_entries_are_walked_alike_wherever_the_window_ends(monkeypatch):
    data = entries(60)

    def walk(window):
        found, end = scan._walk_standard(memoryview(window))
        if isinstance(found, list):
            batch = scan.Batch(None, LAYOUT, 0, memoryview(window), np.array(found, np.int64))
            return found, batch.key_len.tolist(), batch.value_len.tolist(), end
        return *found.T.tolist(), end

    for stop in [*range(40), *range(len(data) - 4000, len(data) + 1, 37), len(data)]:
        both(monkeypatch, lambda: walk(data[:stop]))  # noqa: B023
    assert len(both(monkeypatch, lambda: walk(data))[0]) == 60
    both(monkeypatch, lambda: walk(bytes(5000)))
    for seed in range(200):  # any bytes, and good ones with a flipped bit
        random.seed(seed)
        both(monkeypatch, lambda: walk(random.Random(seed).randbytes(300)))  # noqa: B023
        wrong = flipped(data, random.randrange(8 * len(data)))
        both(monkeypatch, lambda: walk(wrong))  # noqa: B023


# --- cells ---


@pytest.mark.parametrize("folded", [False, True])
def test_lines_with_literals_are_those_of_a_loop(folded):
    rng = random.Random(5)
    for size in (*range(40), *range(60, 140, 3), 5_000):
        data = bytes(rng.choices(b"abAB@`[{\xe1\n", [8, 4, 4, 8, 1, 1, 1, 1, 1, 5], k=size))
        text = data.lower() if folded else data
        some = text[-1:].strip(), text.partition(b"\n")[0], text[-70:].rpartition(b"\n")[2]
        for literals in (
            *((each,) for each in (b"a", b"ab", b"abba", b"x", b"`", b"{", b"\xe1", *some)),
            (b"ab", b"ba"), (b"b", b"b", b"a"), (b"aa", b"{"),
        ):  # fmt: skip
            if not all(literals):
                continue
            found, at = [], 0
            for line in text.split(b"\n"):
                if all(literal in line for literal in literals):
                    found.append([at, at + len(line)])
                at += len(line) + 1
            lines = np.frombuffer(native.built().lines(data, literals, folded), np.int64)
            assert lines.reshape(-1, 2).tolist() == found, literals


@pytest.mark.parametrize("literals", [(), (b"",), (b"\n",), (b"a", b"a\nb"), (b"a",) * 9])
def test_literals_of_lines_are_few_and_have_no_line_feed(literals):
    with pytest.raises(ValueError, match="literal"):
        native.built().lines(b"a\nb\n", literals, False)


def test_lines_have_heads_and_numbers():
    data = b"a\n\nbcd\nx\ny"
    lines = np.array([[0, 1], [2, 2], [4, 6], [7, 8], [9, 10]])
    of, heads, starts = np.array([0, 0, 0, 1, 1]), [b"f:", b""], np.array([0, 7])
    headed = native.built().headed
    assert headed(data, lines, of, heads, None) == b"f:a\nf:\nf:cd\nx\ny\n"
    assert headed(data, lines, of, heads, starts) == b"f:1:a\nf:2:\nf:3:cd\n1:x\n2:y\n"
    assert headed(data, lines[::-1].copy(), of[:5] * 0, [b""], None) == b"y\nx\ncd\n\na\n"
    with pytest.raises(ValueError, match="outside"):
        headed(data, lines[::-1].copy(), of, heads[::-1], starts)
    many = b"\n" * 2100
    rows = np.repeat(np.arange(2100), 2).reshape(-1, 2)
    found = headed(many, rows, np.zeros(2100, np.int64), [b""], starts[:1])
    assert found == b"".join(b"%d:\n" % (i + 1) for i in range(2100))


@pytest.mark.parametrize("load", [0.1, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("marks", [(0, 1), (7, 5)])
def test_cells_are_found_alike(load, marks, monkeypatch):
    random.seed(int(load * 100))
    size, alike = 501, 40
    shape = Shape(size, 2, *marks)
    cells = np.zeros((size, 2), ">i8")
    cells[:, 0] = marks[0]
    for _ in range(int(size * load)):
        s = random.getrandbits(64) if random.random() < 0.8 else random.randrange(alike)
        slot = (s & hashing.MASK63) % size
        while cells[slot, 0] != marks[0]:
            slot = (slot + 1) % size
        cells[slot] = random.choice([1000 + slot, marks[1]]), int(np.uint64(s).view(np.int64))
    known = cells[:, 1].astype(np.int64).view(np.uint64).tolist()
    asked = np.array(
        known[::3] + list(range(alike)) + [random.getrandbits(64) for _ in range(50)], np.uint64
    )
    view = table.cells_of(shape, memoryview(cells.tobytes()), 0)

    def find():
        return [c.tolist() for c in table.find_many(shape, view, asked, table.bits_of(asked))]

    assert any(both(monkeypatch, find)[0]) or load == 0.1


def test_a_long_run_of_cells_is_left_to_the_path_in_python(monkeypatch):
    size = 20_001
    cells = np.ones((size, 2), ">i8")
    cells[:, 0] = 5000
    cells[15_000] = 0
    shape = Shape(size)
    view = table.cells_of(shape, memoryview(cells.tobytes()), 0)
    asked = np.array([3, 1, 16_000], np.uint64)  # 1 is there

    def find():
        return [c.tolist() for c in table.find_many(shape, view, asked, asked)]

    assert both(monkeypatch, find) == [[0, 5000, 0], [~15_000, 1, ~15_000]]


@pytest.mark.parametrize("count", [0, -1, 3, 1 << 62])
def test_too_few_cells_are_refused(count: int):
    numbers = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="HTSIZE"):
        code.find_many(bytes(32), count, 0, 1, numbers, numbers, numbers, numbers)


# --- files ---


def test_no_bytes_lead_behind_the_end_of_a_file():
    """Lengths and positions of all kinds: nothing is found, and nothing outside is looked at."""
    random.seed(3)
    far = [-(1 << 63), -1, 0, 1, 2, 190, 199, 200, 201, (1 << 63) - 1]
    pos = np.array(far, np.int64)
    for _ in range(300):
        data = random.randbytes(200) if _ % 3 else bytes(200)
        pointers, sizes = np.empty(len(far), np.int64), np.empty(len(far), np.int64)
        code.inodes(data, 200, 128, True, 5, [b"k/I0"] * len(far), pos, pointers, sizes)
        assert not pointers.any()
        for size in far:
            found = [None] * len(far)
            code.contents(data, 200, 128, True, 5, pos, np.full(len(far), size), found)
            assert found == [None] * len(far)
    for limit, isz in ((201, 128), (-1, 128), (200, 79), (200, 1 << 40)):
        with pytest.raises(ValueError, match="no such"):
            code.inodes(data, limit, isz, True, 5, [], pos[:0], pos[:0].copy(), pos[:0].copy())


def test_values_are_gathered_as_they_are_checked_in_python(tmp_path):
    """Each flip of an entry, and each other size, is found; intact values are copied."""
    with winkfs.create(tmp_path / "c") as c:
        c.put_many((f"f{i}", bytes([i]) * i) for i in range(40))
        layout = c.store.kv.layout
        entries = [e for e in c.store.kv.iterate() if e.key.endswith(b"/D0")]
    data = bytearray((tmp_path / "c.data").read_bytes())
    pos = np.array([e.pos for e in entries])
    sizes = np.array([len(e.value) for e in entries])

    def gathered(sizes):
        into, good = bytearray(int(sizes.sum())), np.ones(len(pos), bool)
        code.gather(data, pos, pos, sizes, layout.contid & MASK64, into, good)
        same, value = scan.values_at(memoryview(data), pos, layout, pos, sizes)
        assert good.tolist() == same.tolist()
        ends = np.cumsum(sizes)
        for at, end, size, ok in zip(value, ends, sizes, good, strict=True):
            assert not ok or into[end - size : end] == data[at : at + size]
        return int(good.sum())

    assert gathered(sizes) == len(pos) == 39
    assert gathered(sizes + 1) == 0
    for at in range(int(pos[20]), int(pos[20]) + entries[20].size):
        data[at] ^= 4
        assert gathered(sizes) == 38
        data[at] ^= 4
    with pytest.raises(ValueError, match="no room"):
        code.gather(data, pos, pos, sizes, 0, bytearray(int(sizes.sum()) - 1), np.ones(39, bool))
    with pytest.raises(ValueError, match="different lengths"):
        code.gather(data, pos, pos, sizes, 0, bytearray(9999), np.ones(38, bool))


def entries_of(data, words, least=128, first=9):
    """Arguments of `encode`, but for `apart`, positions and firsts."""
    n = len(data)
    keys = [b"k" * (1 + i % 300) + b"/I0" for i in range(n)]
    numbers, lengths = np.arange(n), np.array([len(content) for content in data], np.int64)
    framed = numbers % 5 == 0
    return (
        777,
        least,
        True,
        5,
        first + numbers,
        numbers * 3,
        numbers % 256,
        lengths,
        keys,
        data,
        words,
        framed,
    )


def encode(*call, apart=False):
    """-> the parts, positions of the inodes and of the first entries."""
    places = np.empty((2, len(call[8])), np.int64)
    return code.encode(*call, apart, *places), *places.tolist()


@pytest.mark.parametrize("named", [False, True])
def test_split_entries_equal_contiguous_ones(named):
    random.seed(3)
    sizes = [0, 1, 239, 240, 241, 242, 255, 256, 303, 1023, 1024, 1025, 4096, 70_000, 1 << 20]
    sizes += [random.randrange(0, 5000) for _ in range(200)]
    for first in (1, 16, 1 << 20, 1 << 48):
        data = [random.randbytes(size) for size in random.sample(sizes, len(sizes))]
        data[::7] = [memoryview(content) for content in data[::7]]
        words = [random.randbytes(random.randrange(3) * 40) for _ in data] if named else None
        call = entries_of(data, words, first=first)
        ((whole,), positions, firsts), at = encode(*call), 777
        parts = encode(*call, apart=True)
        assert (b"".join(parts[0]), *parts[1:]) == (whole, positions, firsts)
        large = [content for content in data if len(content) > 240]
        assert all(part is content for part, content in zip(parts[0][1::2], large, strict=True))
        columns = (column.tolist() for column in call[5:8])
        for i, (mtime, ftype, length) in enumerate(zip(*columns, strict=True)):
            word, key = words[i] if named else b"", call[8][i]
            given = (first + i, mtime, ftype, key, data[i], word, length, bool(call[-1][i]))
            found, pos, _ = code.entries(at, 128, True, 5, *given)
            assert (firsts[i], positions[i]) == (at, pos)
            assert whole[at - 777 :][: len(found)] == found
            at += len(found)
        assert at == 777 + len(whole)
    assert encode(*entries_of([], [] if named else None), apart=True) == ([b""], [], [])


def test_overlong_entries_and_uneven_columns_are_refused():
    good = list(entries_of([b"x" * 300] * 3, [b"w"] * 3))
    assert len(encode(*good)[0][0]) > 900
    for at, value in ((1, 127), (1, 1 << 21), (8, [b"k" * 65_536] * 3)):
        call = partial(encode, *good[:at], value, *good[at + 1 :])
        all_raise(ValueError, (call, partial(call, apart=True)), "too long")
    for at in (4, 5, 6, 7, 8, 9, 10, 11):
        for value in (good[at][:2], [*good[at], *good[at]]):
            value = value if at in (8, 9, 10) else np.array(value)
            places = np.empty((2, 3), np.int64)
            with pytest.raises(ValueError, match="different lengths"):
                code.encode(*good[:at], value, *good[at + 1 :], False, *places)
    others = [np.empty((2, n), np.int64) for n in (2, 4)]
    refuses(lambda to: code.encode(*good, False, *to), others, ValueError, "different lengths")


# --- which path ---


@pytest.mark.parametrize(
    ("value", "name"), [("0", "pure Python"), ("1", "compiled"), ("", "compiled")]
)
@pytest.mark.slow
def test_an_environment_variable_selects_the_path(value: str, name: str):
    text = "from winkformats import native; print(native.name())"
    run = [sys.executable, "-c", text]
    done = subprocess.run(run, env={native.VARIABLE: value}, capture_output=True, text=True)
    assert done.stdout == f"{name}\n"


def test_what_was_built_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native.built() is None
