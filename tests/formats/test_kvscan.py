"""Bulk scans: borders of windows, entries larger than them, and damage. A scan always ends."""

import random
import signal

import numpy as np
import pytest
import xxhash
from constants import shrink
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.pagecache import WINDOW
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv import scan as kvscan
from winkformats.kv.entry import Layout
from winkformats.kv.scan import Batch, scan

START = 512
DEADLINE = 60  # seconds; far more than any of these takes


@pytest.fixture(autouse=True)
def alarm():
    """A scan that does not end fails its test."""

    def too_late(*_):
        raise TimeoutError("the scan does not end")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def small(monkeypatch):
    """Windows of 200 bytes, 900 at most, so that small files have many borders."""
    shrink(monkeypatch, "a scan", window=200, longest=900, piece=64)


def layout(keyrepr=1, valrepr=2, kvdelfl=1, align=0, kvcksum=1, contid=77) -> Layout:
    """By default that of new data files."""
    variables = {"KEYREPR": keyrepr, "VALREPR": valrepr, "KVDELFL": kvdelfl, "ALIGN": align}
    return Layout.of(variables | {"KVCKSUM": kvcksum, "CONTID": contid}, "f")


STANDARD = layout()


def file_of(code: Layout, rows) -> tuple[MemoryStorage, list[tuple]]:
    """A file of (key, value, deleted) from START on -> (storage, the entries expected)."""
    data, expected = bytearray(START), []
    for key, value, deleted in rows:
        data += bytes(code.aligned(len(data)) - len(data))
        entry = code.encode(len(data), key, value, deleted=deleted)
        expected.append((len(data), deleted, key, value, len(entry)))
        data += entry
    return MemoryStorage(bytes(data), "f"), expected


def read_all(storage, code: Layout, start: int = START, stop: int | None = None) -> list[tuple]:
    """Every entry, checked; what the arrays of a batch say is held against its entries."""
    found = []
    for batch in scan(storage, code, start, storage.size() if stop is None else stop):
        assert len(batch) == len(batch.pos) > 0
        batch.check()
        entries = [batch.entry(i) for i in range(len(batch))]
        found += [tuple(entry) for entry in entries]
        assert batch.pos.tolist() == [entry.pos for entry in entries]
        assert batch.keys(np.arange(len(batch))) == [entry.key for entry in entries]
        assert batch.flags.tolist() == [entry.deleted for entry in entries]
        assert batch.value_len.tolist() == [len(entry.value) for entry in entries]
        assert (batch.end - batch.at).tolist() == [entry.size for entry in entries]
        assert batch.whole == (entries[-1].size <= kvscan.MAX_WINDOW)
    return found


# --- windows -----------------------------------------------------------------------------------

CODES = (0, 1, 2, 3, 7, 104, 263, 400)
sizes = st.one_of(st.integers(0, 30), st.integers(150, 260), st.integers(800, 1000), st.just(2000))


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(
        layout,
        keyrepr=st.sampled_from(CODES),
        valrepr=st.sampled_from(CODES),
        kvdelfl=st.sampled_from((0, 1)),
        align=st.sampled_from((0, 1, 8, 13, 150, 512)),
        kvcksum=st.sampled_from((0, 1)),
        contid=st.sampled_from((0, -1, 2**63 - 1)),
    ),
    st.lists(st.tuples(st.integers(0, 300), sizes, st.booleans()), max_size=25),
)
def test_entries_of_any_size_are_found_across_windows(small, code, shapes):
    def text(field, size: int, byte: int) -> bytes:
        length = field.limit if field.prefix == 0 else min(size, field.limit)
        return bytes([byte]) * length

    rows = [
        (text(code.key, a, i + 1), text(code.value, b, 255 - i), c and code.delflag == 1)
        for i, (a, b, c) in enumerate(shapes)
    ]
    storage, expected = file_of(code, rows)
    assert read_all(storage, code) == expected
    for at in range(len(expected)):
        assert read_all(storage, code, start=expected[at][0]) == expected[at:]


@pytest.mark.parametrize("valrepr", [2, 3], ids=["standard", "any"])
@pytest.mark.parametrize("shift", range(40))
def test_every_way_a_window_can_end_inside_an_entry(small, valrepr, shift):
    code = layout(valrepr=valrepr)
    rows = [(b"k" * shift, b"v" * 90, False), (b"key", b"v" * 70, True), (b"", b"", False)] * 4
    storage, expected = file_of(code, rows)
    assert read_all(storage, code) == expected


@pytest.mark.parametrize("length", [899, 900, 901, 950])
def test_a_key_longer_than_a_window_is_found(small, length):
    code = layout(keyrepr=2)
    limit = 900 - 1 - 4 - 4  # delflag and both lengths still lie in the largest window
    storage, expected = file_of(
        code, [(b"a", b"b", False), (b"k" * min(length, limit), b"v", True)]
    )
    assert read_all(storage, code) == expected


def test_a_key_longer_than_the_largest_window_is_not_damage(small):
    storage, _ = file_of(layout(keyrepr=2), [(b"k" * 1000, b"v", False)])
    with pytest.raises(FormatError, match="f: the key at byte 512 is longer than a scan takes"):
        read_all(storage, layout(keyrepr=2))


def test_a_window_reads_each_byte_about_once():
    storage, _ = file_of(STANDARD, [(b"k", b"v" * 5000, False)] * 5000)
    reads = []
    fill = storage.read_into
    storage.read_into = lambda into, at: reads.append(len(into)) or fill(into, at)
    assert sum(len(batch) for batch in scan(storage, STANDARD, START, storage.size())) == 5000
    assert max(reads) <= WINDOW
    assert sum(reads) < 1.01 * storage.size()


def test_real_windows_with_an_entry_larger_than_one():
    rows = [(b"k%d" % i, b"v" * (40_000 + i), i % 3 == 0) for i in range(250)]
    rows[100] = (b"big", b"B" * (9 << 20), False)
    rows[101] = (b"bigger", b"C" * (WINDOW + 3), True)
    storage, expected = file_of(STANDARD, rows)
    assert read_all(storage, STANDARD) == expected


def test_progress_adds_up_to_the_file(small):
    storage, _ = file_of(STANDARD, [(b"k", b"v" * size, False) for size in (10, 300, 50, 2000, 60)])
    done = []
    list(scan(storage, STANDARD, START, storage.size(), progress=done.append))
    assert sum(done) == storage.size() - START
    assert len(done) > 3


# --- an entry that no window holds -------------------------------------------------------------


@pytest.fixture(params=[0, 1], ids=["plain", "checksum"])
def huge(request, tmp_path):
    """A sparse file: small, 65 MiB and a bit, small -> (storage, layout, size of the value)."""
    code, size = layout(kvcksum=request.param), (65 << 20) + 5
    first = code.encode(START, b"a", b"1")
    pos = START + len(first)
    head = code.encode(pos, b"big", b"")
    head = b"\0" + head[1:6] + size.to_bytes(4, "big")
    end = pos + len(head) + size
    with FileStorage(tmp_path / "f", "x") as storage:
        storage.write(START, [first, head])
        if code.checksum:
            seed = code.contid + pos
            cksum = xxhash.xxh3_64(head[1:] + bytes(size), seed=seed).digest()[4:]
            storage.write(end, [cksum])
            end += 4
        storage.write(end, [code.encode(end, b"c", b"3")])
        yield storage, code, size


@pytest.mark.few(1)
@pytest.mark.slow
def test_an_entry_larger_than_64_mib_is_handed_out_by_its_head(huge):
    storage, code, size = huge
    found = []
    for batch in scan(storage, code, START, storage.size()):
        batch.check()
        assert len(batch.data) <= WINDOW
        found += [(key, int(n)) for key, n in zip(batch.keys(np.arange(len(batch))),
                                                  batch.value_len, strict=True)]  # fmt: skip
        if not batch.whole:
            entry = batch.entry(0)
            assert len(entry.value) == size and not any(entry.value)
    assert found == [(b"a", 1), (b"big", size), (b"c", 1)]


def test_the_checksum_finds_damage_deep_in_a_large_entry(huge):
    storage, code, size = huge
    storage.patch(START + size // 2, b"x")
    batches = iter(scan(storage, code, START, storage.size()))
    bad = []
    for batch in batches:
        bad += batch.pos[batch.bad()].tolist()
    assert len(bad) == (1 if code.checksum else 0)


# --- alignment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 9])
def test_gaps_must_be_zero_also_between_windows(small, rows):
    code = layout(align=64)
    storage, expected = file_of(code, [(b"k", b"v" * 90, False)] * rows)
    read_all(storage, code)
    for pos, *_, size in expected[:-1]:
        bad = MemoryStorage(bytes(storage.data), "f")
        bad.patch(pos + size, b"\1")
        with pytest.raises(CorruptError, match=f"padding is not zero at byte {pos + size}"):
            read_all(bad, code)


def test_padding_behind_the_last_entry_is_no_entry():
    code = layout(align=64)
    storage, expected = file_of(code, [(b"k", b"v", False)])
    storage.truncate(START + 64)
    assert read_all(storage, code) == expected


# --- damage ------------------------------------------------------------------------------------

LAYOUTS = [
    STANDARD,
    layout(kvcksum=0),
    layout(keyrepr=0, valrepr=3, kvcksum=0),
    layout(keyrepr=3, valrepr=3, kvcksum=0),
    layout(keyrepr=459, valrepr=2, kvcksum=0),
    layout(keyrepr=300, valrepr=270, kvdelfl=0, kvcksum=0),
    layout(keyrepr=12, valrepr=12, kvdelfl=0, kvcksum=0),
    layout(keyrepr=1, valrepr=1, align=32),
    layout(keyrepr=4, valrepr=4, kvcksum=0),
]


def sample(code: Layout, seed: int = 1) -> tuple[MemoryStorage, list[tuple]]:
    """A few entries of the lengths a layout allows."""
    rng = random.Random(seed)
    rows = []
    for _ in range(6):
        texts = []
        for field in (code.key, code.value):
            length = field.limit if field.prefix == 0 else rng.randint(0, min(field.limit, 90))
            texts.append(rng.randbytes(length))
        rows.append((*texts, code.delflag == 1 and rng.random() < 0.3))
    return file_of(code, rows)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("code", LAYOUTS, ids=range(len(LAYOUTS)))
def test_every_truncation_gives_whole_entries_and_then_an_error(small, code):
    storage, expected = sample(code)
    ends = {pos + size for pos, *_, size in expected} | {START}
    for stop in range(START, storage.size()):
        cut = MemoryStorage(bytes(storage.data[:stop]), "f")
        found = []
        good = any(end <= stop <= code.aligned(end) for end in ends)  # or in the padding behind it
        try:
            for batch in scan(cut, code, START, stop):
                found += [tuple(batch.entry(i)) for i in range(len(batch))]
        except CorruptError:
            assert not good
        else:
            assert good
        assert found == expected[: len(found)]


@pytest.mark.slow
@pytest.mark.parametrize("code", LAYOUTS, ids=range(len(LAYOUTS)))
def test_a_file_shorter_than_its_end_is_damage_and_the_scan_ends(small, code):
    storage, _ = sample(code)
    for size in range(START, storage.size(), 7):
        cut = MemoryStorage(bytes(storage.data[:size]), "f")
        with pytest.raises(CorruptError):
            read_all(cut, code, stop=storage.size())


def test_a_file_that_shrinks_under_a_large_entry_is_damage(small):
    storage, _ = file_of(STANDARD, [(b"k", b"v" * 700, False)])
    stop = storage.size()
    storage.truncate(stop - 100)
    with pytest.raises(CorruptError, match="shorter than FILESIZE"):
        read_all(storage, STANDARD, stop=stop)


@pytest.mark.few(5)
@pytest.mark.slow
@pytest.mark.parametrize("code", LAYOUTS, ids=range(len(LAYOUTS)))
def test_every_flipped_byte_is_an_error_or_gives_other_entries(small, code, every):
    storage, expected = sample(code)
    for at in range(START, storage.size())[every("entry bytes")]:
        for mask in (1, 0x80, 0xFF):
            bad = MemoryStorage(bytes(storage.data), "f")
            bad.data[at] ^= mask
            try:
                found = read_all(bad, code)
            except CorruptError:
                continue
            if code.checksum:  # only delflags may change unseen
                flags = [row[:1] + row[2:] for row in found]
                assert flags == [row[:1] + row[2:] for row in expected], (at, mask)
                assert sum(a != b for a, b in zip(found, expected, strict=True)) == 1


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(LAYOUTS),
    st.binary(max_size=1500),
    st.sampled_from((0, 1, 2)),
    st.integers(0, 300),
)
def test_random_bytes_are_entries_or_a_format_error(small, code, noise, zeros, more):
    data = bytes(START) + noise + bytes(zeros * 300)
    try:
        found = read_all(MemoryStorage(data, "f"), code, stop=len(data) + more % 3)
    except FormatError:
        return
    assert sum(row[-1] for row in found) <= len(data) - START


@pytest.mark.slow
def test_long_runs_of_zeros_are_tiny_entries_and_end():
    code = layout(keyrepr=0, valrepr=0, kvdelfl=0, kvcksum=0)
    storage = MemoryStorage(bytes(START + 200_000))
    assert sum(len(b) for b in scan(storage, code, START, storage.size())) == 100_000


def test_a_batch_checks_only_the_entries_asked_for():
    storage, expected = file_of(STANDARD, [(b"k%d" % i, b"value", False) for i in range(5)])
    for i in (1, 3):
        storage.data[expected[i][0] + 9] ^= 1
    (batch,) = scan(storage, STANDARD, START, storage.size())
    assert batch.bad().tolist() == [1, 3]
    assert batch.bad(np.array([0, 3, 4])).tolist() == [3]
    batch.check(np.array([0, 2, 4]))
    with pytest.raises(CorruptError) as caught:
        batch.check(np.array([4, 3]))
    assert caught.value.offset == expected[3][0]


@pytest.mark.parametrize("change", [b"\2", b"\xff"])
def test_a_wrong_delflag_is_bad_without_any_checksum(change):
    code = layout(kvcksum=0)
    storage, expected = file_of(code, [(b"a", b"1", False), (b"b", b"2", False)])
    storage.patch(expected[1][0], change)
    (batch,) = scan(storage, code, START, storage.size())
    assert batch.bad().tolist() == [1]


def test_lengths_beyond_a_limited_field_are_bad():
    code = layout(keyrepr=269, valrepr=269, kvcksum=0)
    storage, expected = file_of(code, [(b"a", b"1", False)] * 4)
    storage.patch(expected[1][0] + 1, b"\x0b")
    storage.patch(expected[2][0] + 1 + 11, b"\xff")
    (batch,) = scan(storage, code, START, storage.size())
    assert batch.bad().tolist() == [1, 2]


# --- gathering numbers -------------------------------------------------------------------------


def test_words_are_gathered_from_any_offset_up_to_the_last_byte():
    data = memoryview(bytes(range(40)))
    batch = Batch(MemoryStorage(), layout(4, 7, 0, kvcksum=0), 0, data, np.array([0]))
    where = np.array([0, 1, 24])
    found = batch.words(where, 2, ">i8")
    expected = [
        [int.from_bytes(data[a + 8 * i : a + 8 * i + 8], "big") for i in (0, 1)] for a in where
    ]
    assert found.tolist() == expected
    assert batch.words(np.array([], np.int64), 7, ">i8").shape == (0, 7)
