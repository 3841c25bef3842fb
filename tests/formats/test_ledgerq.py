"""Files of LedgerQ: those of the reference implementation, damage, hostile integers."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flips import flipped
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from winkformats.disk.memory import MemoryStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.ledgerq import cursors, entry, index, priorities, segment, state
from winkformats.ledgerq.entry import HEAD, Message, decode, encode
from winkformats.ledgerq.segment import START, Header, Walk

pytestmark = pytest.mark.in_memory
GOLDEN = Path(__file__).parents[1] / "golden" / "ledgerq"
MANIFEST: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "manifest.json").read_text())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = st.integers(1, (1 << 63) - 1)


def message(data: bytes) -> Message:
    return decode(data, 0, file="x.log", offset=0)


def walk(data: bytes, last: int = 0, window: int = segment.WINDOW) -> tuple[list[int], Walk]:
    """The ids of the entries behind a header."""
    storage = MemoryStorage(bytes(START) + data, "x.log")
    found, ids = Walk(storage, START, last), []
    while found.step(storage.size(), window):
        ids += [row[3] for row in found.rows()]
    return ids, found


def reseal(data: bytes) -> bytes:
    """An entry that was changed, with a checksum that is right."""
    return data[:-8] + crc32c(data[:-8]).to_bytes(4, "little") + bytes(4)


# --- the reference ---


@pytest.mark.parametrize("case", MANIFEST["cases"], ids=lambda case: case["name"])
def test_segments_of_the_reference_are_read_and_written_alike(case: dict[str, Any]) -> None:
    wanted = {row["id"]: row for row in case["enqueued"]}
    for path in sorted((GOLDEN / case["dir"]).glob("*.log")):
        data = path.read_bytes()
        header = Header.decode(data, file=path.name)
        assert header.encode() == data[:START] and header.base == int(path.stem)
        storage, sparse = MemoryStorage(data, path.name), index.Sparse()
        found = Walk(storage)
        while found.step(len(data)):
            for length, _, flags, id, timestamp, at in found.rows():
                place = found.base + at
                one = decode(found.data, at, file=path.name, offset=place)
                row = wanted.pop(id)
                assert one.payload == base64.b64decode(row["payload_b64"])
                assert (one.priority, place) == (row["priority"], row["offset"])
                assert one.headers == (row["headers"] or {})
                left = -1 if one.expires is None else one.expires - timestamp
                assert left == (row["ttl_ns"] or -1)
                if place >= sparse.next:
                    sparse.add(id, place, timestamp)
                if not flags & entry.COMPRESSED:
                    again = encode(
                        id, timestamp, one.payload, priority=one.priority, expires=one.expires,
                        headers=one.headers,
                    )  # fmt: skip
                    assert again == data[place : place + length + 4]
        assert found.offset == len(data) and found.tail < 0 and not found.bad
        raw = path.with_suffix(".idx").read_bytes()
        assert sparse.encode(header.base) == raw
        read = index.Sparse.decode(raw, header.base, file="x.idx", size=len(data))
        assert read.encode(header.base) == raw
    assert not wanted
    raw = (GOLDEN / case["dir"] / "metadata.dat").read_bytes()
    metadata = state.Metadata.decode(raw, file="metadata.dat")
    assert metadata == (case["next_message_id"], case["read_message_id"])
    assert metadata.encode() == raw


@pytest.mark.parametrize("case", MANIFEST["damaged"], ids=lambda case: case["name"])
def test_what_is_readable_of_a_damaged_segment_is_found(case: dict[str, Any]) -> None:
    data = next((GOLDEN / case["dir"]).glob("*.log")).read_bytes()
    assert walk(data[START:])[0] == case["readable_ids"]


def test_gzip_is_kept_where_it_saves_five_percent() -> None:
    case = next(case for case in MANIFEST["cases"] if case["name"] == "compressed")
    for row in case["enqueued"]:
        packed = entry.packed(base64.b64decode(row["payload_b64"]), 9)
        assert (packed is not None) == (row["id"] in case["expect"]["gzip_ids"])


# --- entries ---


@given(
    NUMBER, NUMBER, st.binary(max_size=300), st.integers(0, 2), st.none() | NUMBER,
    st.dictionaries(TEXT, TEXT, max_size=5), st.booleans(),
)  # fmt: skip
def test_what_is_encoded_is_decoded(
    id: int, timestamp: int, payload: bytes, priority: int, expires: int | None,
    headers: dict[str, str], compressed: bool,
) -> None:  # fmt: skip
    data = encode(
        id, timestamp, gzip.compress(payload) if compressed else payload, priority=priority,
        expires=expires, headers=headers, compression=int(compressed),
    )  # fmt: skip
    assert message(data) == Message(id, payload, timestamp, priority, expires, headers)
    assert walk(data)[0] == [id] and walk(data[:-4])[0] == [id]


def test_every_flipped_bit_of_an_entry_costs_that_entry_alone() -> None:
    entries = [
        encode(n, n, b"payload %d" % n, priority=n % 3, expires=10**18, headers={"k": "v"})
        for n in range(1, 5)
    ]
    data, start = b"".join(entries), sum(map(len, entries[:1]))
    for bit in range(8 * start, 8 * (start + len(entries[1]) - 4)):
        ids, found = walk(flipped(data, bit))
        assert ids == [1, 3, 4]
        assert found.bad == [(START + start, START + start + len(entries[1]))]


@pytest.mark.parametrize("window", [40, 100, segment.WINDOW])
def test_a_window_shorter_than_entries_finds_them_all(window: int) -> None:
    rng = random.Random(window)
    data = b"".join(encode(n, n, rng.randbytes(rng.choice((0, 30, 500)))) for n in range(1, 50))
    assert walk(data, window=window)[0] == list(range(1, 50))
    torn = data + encode(50, 50, bytes(300))[:-9]
    ids, found = walk(torn, window=window)
    assert ids == list(range(1, 50)) and found.tail == START + len(data)


def test_other_kinds_and_decreasing_ids_are_no_messages() -> None:
    good = [encode(n, n, b"x") for n in (1, 2, 3)]
    zero = reseal(good[2][:4] + b"\0" + good[2][5:])
    for bad in (encode(1, 9, b"again"), encode(2, 9, b"again"), zero):
        ids, found = walk(good[0] + good[1] + bad + good[2])
        assert ids == [1, 2, 3] and len(found.bad) == 1


@pytest.mark.parametrize("length", [0, 1, 25, 26, 27, 30, 1 << 16, 1 << 31, (1 << 32) - 1])
def test_a_length_that_is_wrong_does_not_hide_what_follows(length: int) -> None:
    first, *others = (encode(n, n, bytes(n)) for n in (5, 6, 7))
    bad = length.to_bytes(4, "little") + first[4:]
    assert walk(bad + b"".join(others), 4)[0] == [6, 7]
    assert walk(reseal(bad) + b"".join(others), 4)[0] == [6, 7]


def test_a_message_inside_of_a_payload_is_none() -> None:
    inner = encode(7, 7, b"inner")
    data = encode(1, 1, inner) + encode(2, 2, b"")
    assert walk(data)[0] == [1, 2]
    assert walk(flipped(data, 8 * (len(data) - 6)))[0] == [1]  # the checksum of the second
    torn = encode(3, 3, inner)[:-6]
    assert walk(data + torn)[0] == [1, 2]  # 7 would be a gap with no room for it


def test_a_file_made_to_be_slow_to_search_takes_no_longer() -> None:
    """Heads everywhere that promise entries as long as the file."""
    size = 1 << 20
    fake = HEAD.pack(size // 2, 1, 0, 2, 1)
    data = encode(1, 1, b"") + (fake * (size // len(fake)))
    assert walk(data)[0] == [1]


FIELDS = {
    entry.PRIORITY: b"\3", entry.TTL: b"", entry.HEADERS: b"\xff\xff", entry.COMPRESSED: b"\2abc",
    entry.COMPRESSED | 32: b"\1abc", entry.ENCRYPTED: b"x", entry.HEADERS | 32: b"\1\0\5\0ab",
}  # fmt: skip


@pytest.mark.parametrize("flags", FIELDS)
def test_fields_that_make_no_sense_are_refused(flags: int) -> None:
    body = FIELDS[flags]
    data = reseal(HEAD.pack(26 + len(body), 1, flags & 31, 1, 1) + body + bytes(8))
    assert walk(data)[0] == [1]
    with pytest.raises(FormatError):
        message(data)


@given(st.binary(max_size=80), st.integers(0, 255))
def test_random_bytes_of_an_entry_raise_format_errors_only(body: bytes, flags: int) -> None:
    data = reseal(HEAD.pack(26 + len(body), 1, flags, 1, 1) + body + bytes(8))
    with suppress(FormatError):
        message(data)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "UNPACKED", 1 << 20)
    for size in ((1 << 20) - 1, 1 << 20):
        data = encode(1, 1, gzip.compress(bytes(size)), compression=1)
        assert len(message(data).payload) == size
    bombs = gzip.compress(bytes((1 << 20) + 1)), 2 * gzip.compress(bytes(1 << 19 | 1))
    packed = [encode(1, 1, bomb, compression=1) for bomb in bombs]
    refuses(message, packed, CorruptError, "more than")


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_compressed_payload_that_is_cut_is_refused(cut: int) -> None:
    data = gzip.compress(b"abc" * 100)[:cut]
    with pytest.raises(CorruptError) if data else pytest.raises(AssertionError):
        assert message(encode(1, 1, data, compression=1)).payload


@pytest.mark.parametrize(
    "headers",
    [{"k" * 65536: ""}, {"": "v" * 65536}, {str(n): "" for n in range(65536)}],
    ids=["name", "value", "number"],
)
def test_what_has_no_room_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(1, 1, b"", headers=headers)


# --- headers, indexes, state ---


Decoder = Callable[[bytes], object]
DECODERS: dict[str, Decoder] = {
    "header": lambda data: Header.decode(data, file="x"),
    "index": lambda data: index.Sparse.decode(data, 1, file="x", size=10**6),
    "table": lambda data: priorities.decode(data, file="x", size=99),
    "metadata": lambda data: state.Metadata.decode(data, file="x"),
    "retry": lambda data: state.decode_retry(data, file="x"),
    "dedup": lambda data: state.decode_dedup(data, file="x"),
}


def index_of(*rows: tuple[int, int, int]) -> bytes:
    sparse = index.Sparse()
    for row in rows:
        sparse.add(*row)
    return sparse.encode(1)


def test_every_flip_of_a_header_an_index_or_a_table_is_noticed() -> None:
    tables = priorities.empty()
    tables[1][0].append(5)
    tables[1][1].append(64)
    for what, data, bits in (
        ("header", Header(1, 2, 3, 4).encode(), 8 * 64),
        ("index", index_of(*((n, 64 + 5000 * n, n) for n in range(1, 5))), 8 * 32),
        ("table", priorities.encode(tables, 99), 8 * 64),
    ):
        DECODERS[what](data)
        refuses(DECODERS[what], (flipped(data, bit) for bit in range(bits)), CorruptError)


def metadata(*numbers: int) -> bytes:
    return struct.pack("<IQQI", *numbers, 0)


REFUSED: list[tuple[str, bytes]] = [
    *(("header", Header(1, 2).encode()[:size]) for size in (0, 1, 63)),
    ("index", index_of((1, 64, 0))[:-1]), ("index", index_of((1, 63, 0))),
    ("index", index_of((1, 10**7, 0))), ("index", index_of((0, 64, 0))),
    ("index", index_of((2, 64, 0), (1, 128, 0))), ("index", index_of((1, 64, 0), (2, 64, 0))),
    ("metadata", b""), ("metadata", metadata(1, 1, 1)[:23]), ("metadata", metadata(2, 1, 1)),
    ("metadata", metadata(1, 0, 1)), ("metadata", metadata(1, 1, 0)),
    ("metadata", metadata(1, 1 << 63, 1)),
    ("retry", b"[" * 100_000), ("retry", b'{"version": 1, "entries": 5}'),
    ("retry", b'{"version": 2}'), ("retry", b"\xff"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "data"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(CorruptError):
        DECODERS[what](data)


KEPT = [state.Dedup("ab" * 32, 5, 6, 7, 8)]
FAILED = [state.Retry(5, 2, 1_234_567_890_123_456_789, "why"), state.Retry(6, 1, 10**18)]


def test_json_states_are_read_back() -> None:
    assert state.decode_dedup(state.encode_dedup(KEPT), file="x") == KEPT
    assert state.decode_retry(state.encode_retry(FAILED, 3), file="x") == FAILED
    text = state.encode_retry(FAILED, 3).decode()
    assert '"last_failure": "2009-02-13T23:31:30.123456789Z"' in text
    moved = text.replace("23:31:30.123456789Z", "22:31:30.123456789-01:00")
    assert state.decode_retry(moved.encode(), file="x") == FAILED


@given(st.sampled_from(["retry", "dedup"]), st.integers(0, 10**6), st.binary(max_size=6))
def test_json_that_is_damaged_raises_corrupt_error(what: str, at: int, data: bytes) -> None:
    whole = {"retry": state.encode_retry(FAILED, 3), "dedup": state.encode_dedup(KEPT)}[what]
    at %= len(whole)
    with suppress(CorruptError):
        DECODERS[what](whole[:at] + data + whole[at + len(data) :])


def test_a_journal_ends_at_the_first_row_that_is_damaged() -> None:
    storage = MemoryStorage(name="cursors.dat")
    journal = cursors.Journal(storage)
    for n in range(5):
        journal.add(cursors.AT, n, n, n, n)
    journal.flush()
    seed = cursors.seed_of(storage)
    assert seed is not None
    assert [row.cursor for row, _ in cursors.rows(storage, seed)] == [0, 1, 2, 3, 4]
    assert list(cursors.rows(storage, seed ^ 1)) == []
    whole = bytes(storage.data)
    for byte in range(cursors.HEADER.size, len(whole)):
        storage.data[byte] ^= 4
        kept = (byte - cursors.HEADER.size) // cursors.STRIDE
        assert len(list(cursors.rows(storage, seed))) == kept
        storage.data[byte] ^= 4
    for byte in range(cursors.HEADER.size):
        storage.data[byte] ^= 4
        assert cursors.seed_of(storage) is None
        storage.data[byte] ^= 4


# --- tables of the docstrings ---


@pytest.mark.parametrize(
    ("module", "layout"),
    [
        (entry, HEAD), (segment, segment.HEADER), (index, index.HEADER), (state, state.LAYOUT),
        (cursors, cursors.HEADER), (priorities, priorities.HEADER),
    ],
)  # fmt: skip
def test_the_table_of_a_docstring_is_the_struct(module: Any, layout: struct.Struct) -> None:
    rows = re.findall(r"^    (\d+) +(\d+)(?: +(\S+))?  ", module.__doc__, re.MULTILINE)
    at, form = 0, "<"
    for offset, size, kind in rows:
        if at == layout.size:
            break
        assert int(offset) == at
        at += int(size)
        known = re.fullmatch(r"[0-9]*[a-zA-Z]", kind)
        form += kind if known else f"{size}s"
    assert at == layout.size
    assert struct.calcsize(form) == layout.size
    assert [c for c in form if c.isalpha()] == [c for c in layout.format if c.isalpha()]


def test_gzip_is_that_of_the_standard() -> None:
    packed = entry.packed(b"a" * 5000)
    assert packed is not None and gzip.decompress(packed) == b"a" * 5000
    assert zlib.decompress(packed, 31) == b"a" * 5000
