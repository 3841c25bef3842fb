"""The bytes of a Ring Page buffer: which page is the newest, records over pages, what cannot be."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from refusals import each_raises

from winkformats.errors import CorruptError, FormatError
from winkformats.ringpage import metadata, page
from winkformats.ringpage.metadata import BufferState, Settings
from winkformats.ringpage.page import BLOCK, HEAD, Head, Records, encode, in_order, is_whole

pytestmark = pytest.mark.in_memory
RING = 4711
SETTINGS = Settings(4096, 4, 100, False, RING)


def head_of(writes: int, page_count: int, records: int = 3) -> Head:
    """Of the n-th page that is written, from 0 on."""
    form: dict[str, Any] = {"ring": RING, "first": 0, "goes_on": False, "data": b"\0\0" * records}
    number = writes * records
    turn, index = divmod(writes, page_count)
    form |= {"number": number, "records": records}
    return encode(index, turn, page_count, 4096, **form)[0]


def states(page_count: int) -> Iterator[tuple[int, list[Head | None]]]:
    """A buffer within 4 passes: how many pages were written, and their heads."""
    heads: list[Head | None] = [None] * page_count
    for writes in range(4 * page_count + 1):
        yield writes, list(heads)
        heads[writes % page_count] = head_of(writes, page_count)


def expected(writes: int, page_count: int, without: int = -1) -> list[int]:
    """Which pages there are, the oldest first."""
    oldest = max(writes - page_count, 0)
    return [n % page_count for n in range(oldest, writes) if n % page_count != without]


def by_parity(heads: list[Head | None]) -> int:
    """How many pages from the first one on have its parity."""
    parities = [-1 if head is None else head.flags & 1 for head in heads]
    return next((at for at, parity in enumerate(parities) if parity != parities[0]), len(heads))


@pytest.mark.parametrize("page_count", range(1, 13))
def test_the_head_is_found_in_every_state(page_count: int) -> None:
    """By the parity of the pass alone, and with the numbers."""
    for writes, heads in states(page_count):
        if writes:
            assert by_parity(heads) % page_count == writes % page_count
        assert in_order(heads, lambda _: True) == expected(writes, page_count)


@pytest.mark.parametrize("page_count", range(1, 13))
def test_a_torn_page_behind_the_newest_is_left_out(page_count: int) -> None:
    """Its header is none, the new one or the old one, with wrong bytes behind it."""
    for writes, heads in states(page_count):
        torn = writes % page_count
        for left in (None, head_of(writes, page_count), heads[torn]):
            seen = list(heads)
            seen[torn] = left
            wanted = expected(writes, page_count, without=torn)
            assert in_order(seen, lambda index, torn=torn: index != torn) == wanted  # type: ignore[misc]


@pytest.mark.parametrize("page_count", range(1, 13))
def test_any_one_damaged_page_hides_no_other(page_count: int) -> None:
    """Also the first one, without which there is no parity to go by."""
    for writes, heads in states(page_count):
        for bad in range(page_count):
            gone = list(heads)
            gone[bad] = None
            assert in_order(gone, lambda _: True) == expected(writes, page_count, without=bad)
            if heads[bad] is None:
                continue
            for number in (0, 1 << 40):  # a header that is wrong, which its checksum tells
                wrong = list(heads)
                wrong[bad] = heads[bad]._replace(number=number)  # type: ignore[union-attr]
                found = in_order(wrong, lambda index, bad=bad: index != bad)  # type: ignore[misc]
                good = expected(writes, page_count, without=bad)
                assert found == good or (number == 0 and found == expected(writes, page_count))


@pytest.mark.parametrize("page_count", range(2, 13))
def test_a_page_that_was_never_written_over_is_not_the_newest(page_count: int) -> None:
    """A write of the pass before was lost: what lies there has the parity of this one."""
    for writes, heads in states(page_count):
        for lost in range(page_count):
            before = writes - 1 - (writes - 1 - lost) % page_count  # its last write
            if before < page_count:
                continue
            stale = list(heads)
            stale[lost] = head_of(before - page_count, page_count)
            found = in_order(stale, lambda _: True)
            good = expected(writes, page_count, without=lost)
            assert found == (good if before < writes - 1 else expected(before, page_count))


def test_pages_of_another_buffer_and_place_do_not_fit() -> None:
    head = head_of(5, 4)
    assert head.fits(1, 4, 4096, RING)
    assert not head.fits(2, 4, 4096, RING)
    assert not head.fits(1, 4, 4096, RING + 1)
    assert not Head.decode(bytes(HEAD.size)).fits(0, 4, 4096, 0)
    wrong = {
        "flags": 0, "sequence": 2, "used": 4096, "first": 7, "records": 7, "number": (1 << 63) - 1,
    }  # fmt: skip
    for field, value in wrong.items():
        assert not head._replace(**{field: value}).fits(1, 4, 4096, RING), field


# --- records ---


def pages_of(bodies: list[bytes], size: int = 4096) -> list[bytes]:
    """Pages full of records, plainly."""
    length = page.length_of(size)
    stream = b"".join(length.pack(len(body)) + body for body in bodies)
    starts = list(itertools.accumulate((length.size + len(b) for b in bodies), initial=0))
    room, made = size - HEAD.size, []
    for index, at in enumerate(range(0, len(stream), room)):
        begins = [n for n, start in enumerate(starts[:-1]) if at <= start < at + room]
        data = stream[at : at + room]
        first = starts[begins[0]] - at if begins else len(data)
        number = begins[0] if begins else len(bodies)
        goes_on = at + room < len(stream) and at + room not in starts
        made.append(
            encode(index, 0, 60_000, size, ring=RING, number=number, records=len(begins),
                   first=first, goes_on=goes_on, data=data)[1]
        )  # fmt: skip
    return made


@pytest.mark.parametrize("size", [4096, 65_536, 69_632])
def test_records_go_on_from_page_to_page(size: int) -> None:
    rng = random.Random(size)
    most = page.largest(size)
    lengths = [rng.choice((0, 1, 2, 100, 255, 256, most - 1, most)) for _ in range(300)]
    bodies = [rng.randbytes(length) for length in lengths]
    raws = pages_of(bodies, size)
    assert all(is_whole(raw, size) and len(raw) == size for raw in raws)
    joined = Records(size, name="ring")
    found = [record for index, raw in enumerate(raws) for record in joined.read(index, raw)]
    assert [record.body for record in found] == bodies
    assert [record.number for record in found] == list(range(300))
    for record in found:  # at its offset is its length
        raw = (
            raws[record.page][record.offset :]
            + raws[min(record.page + 1, len(raws) - 1)][HEAD.size :]
        )
        length = page.length_of(size)
        assert length.unpack_from(raw)[0] == len(record.body)


def test_a_record_without_its_beginning_or_end_is_none() -> None:
    bodies = [b"%d" % n * 40 for n in range(200)]
    raws = pages_of(bodies)
    for missing in range(len(raws)):
        joined, found = Records(4096, name="ring"), []
        for index, raw in enumerate(raws):
            if index == missing:
                joined.break_off()
            else:
                found += joined.read(index, raw)
        assert all(record.body == bodies[record.number] for record in found)
        assert [record.number for record in found] == sorted({record.number for record in found})
    joined = Records(4096, name="ring")
    joined.read(0, raws[0])
    assert joined.before is not None
    assert all(record.number >= Head.decode(raws[2]).number for record in joined.read(2, raws[2]))


@pytest.mark.slow
def test_lengths_that_cannot_be_are_refused() -> None:
    """With a right checksum."""
    rng = random.Random(1)
    (raw, *_) = pages_of([b"x" * 30] * 100)
    refused = 0
    for _ in range(3000):
        wild = bytearray(raw)
        at = rng.randrange(HEAD.size, len(raw) - 4)
        wild[at : at + 2] = rng.randbytes(2)
        for at in (12, 24, 28):
            if rng.random() < 0.2:
                wild[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 5, 4063, 4064, 1 << 31)))
        if not Head.decode(wild).fits(0, 60_000, 4096, RING):
            continue
        try:
            Records(4096, name="ring").read(0, bytes(wild))
        except CorruptError:
            refused += 1
    assert refused > 500


# --- metadata ---


def test_each_half_of_the_metadata_is_enough() -> None:
    block = SETTINGS.encode()
    assert len(block) == BLOCK and Settings.decode(block, name="ring") == (SETTINGS, [])
    for half in (0, 2048):
        damaged = bytearray(block)
        damaged[half : half + 512] = random.Random(half).randbytes(512)
        settings, wrong = Settings.decode(bytes(damaged), name="ring")
        assert settings == SETTINGS and wrong == [f"ring: no settings at byte {half}"]


def test_of_two_states_the_newer_whole_one_counts() -> None:
    block = bytearray(SETTINGS.encode())
    assert BufferState.decode(bytes(block), RING) == BufferState(turn=1)
    older, newer = BufferState(1, turn=4, tail=7), BufferState(2, clean=True, turn=5, tail=9)
    for state in (newer, older):
        data = state.encode(RING)
        block[state.offset : state.offset + len(data)] = data
    assert BufferState.decode(bytes(block), RING) == newer
    assert BufferState.decode(bytes(block), RING + 1) is None
    block[newer.offset + 20] ^= 1
    assert BufferState.decode(bytes(block), RING) == older
    block[older.offset] ^= 1
    assert BufferState.decode(bytes(block), RING) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", 0), ("page_size", 5000), ("page_size", 1 << 25), ("page_count", 1),
     ("page_count", 65_536), ("largest", 0), ("largest", 4063)],
)  # fmt: skip
def test_settings_that_cannot_be(field: str, value: int) -> None:
    wrong = SETTINGS._replace(**{field: value})
    each_raises(
        (ValueError, r"a page|a buffer", wrong.check),
        (CorruptError, None, lambda: Settings.decode(wrong.encode(), name="ring")),
    )


@pytest.mark.slow
def test_random_bytes_are_no_metadata() -> None:
    rng = random.Random(2)
    good = SETTINGS.encode()
    for _ in range(3000):
        block = bytearray(
            rng.choice((good, rng.randbytes(BLOCK), good[: rng.randrange(BLOCK)], b""))
        )
        for _ in range(rng.choice((0, 1, 5, 500))):
            if block:
                block[rng.randrange(len(block))] = rng.randrange(256)
        if rng.random() < 0.5 and len(block) == BLOCK:  # a right checksum of wild settings
            raw = struct.pack("<8s6I", metadata.MAGIC, 1, *(rng.getrandbits(32) for _ in range(5)))
            block[:36] = raw + struct.pack("<I", zlib.crc32(raw))
        try:
            found, _ = Settings.decode(bytes(block), name="ring")
        except FormatError:
            continue
        found.check()
        BufferState.decode(bytes(block), found.ring)


def test_the_largest_record_fills_a_page() -> None:
    for size in (4096, 65_536, 69_632):
        (raw,) = pages_of([bytes(page.largest(size))], size)
        assert Head.decode(raw).used == size - HEAD.size
