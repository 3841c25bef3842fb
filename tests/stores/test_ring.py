"""The queue in a Ring Page buffer: memory first, a full buffer, what comes again; devices."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import subprocess
import time
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drawn import examples
from flips import flip
from folders import unchanged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from refusals import all_raise, each_raises, refuses
from simulated.disk import SimulatedDisk
from store_kinds import content

import winkfs
from winkformats.ringpage.metadata import BufferState, Settings
from winkformats.ringpage.page import BLOCK, HEAD, encode
from winkfs.errors import Closed, FileExists, FormatError, Locked, NoSuchFile, ReadOnly, Refusal
from winkfs.stores.records import Records
from winkfs.stores.ringpage import Full, Ring, create
from winkfs.stores.ringpage.records import verify

pytestmark = pytest.mark.in_memory


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An empty buffer of 8 pages."""
    create(tmp_path / "ring", pages=8)
    return str(tmp_path / "ring")


def bodies(count: int, size: int = 200) -> list[bytes]:
    return [b"%06d" % n * (size // 6) for n in range(count)]


def filled(path: str | Path, count: int, **options: Any) -> None:
    """Push bodies with a handle that is closed then."""
    with Ring(path, "a", **options) as ring:
        ring.push_many(bodies(count))


# --- memory first ---


def test_what_fits_into_memory_is_never_written(path: str) -> None:
    with unchanged(Path(path)), Ring(path, "a") as ring:
        for body in bodies(500):
            ring.push(body)
            ring.push(body)
            assert ring.peek() == body and ring.pop() == body
            assert ring.pop() == body
        assert ring.pop() is None and ring.peek() is None and len(ring) == 0


def test_only_full_pages_go_to_the_disk_and_only_as_necessary(path: str) -> None:
    with Ring(path, "a", memory=10_000, on_close="drop") as ring:
        ring.push_many(bodies(45))  # 45 * 200 bytes
        assert ring.stats()["written_bytes"] == 0
        ring.push_many(bodies(10))
        assert ring.stats()["written_bytes"] == 2 * BLOCK  # a page, and the count of pages
        assert Path(path).stat().st_size == 2 * BLOCK
        assert ring.pop_many(99) == bodies(45) + bodies(10)


def test_a_record_popped_from_memory_is_not_finished_on_disk(path: str) -> None:
    with Ring(path, "a", memory=4096) as ring:
        ring.push_many([b"a" * 3000, b"b" * 3000, b"c" * 3000])  # b is on both
        assert ring.pop_many(2) == [b"a" * 3000, b"b" * 3000]
        ring.push_many([b"d" * 3000])
    assert content(path) == [b"c" * 3000, b"d" * 3000]
    assert verify(path).problems == []


# --- the end, and after it ---


def test_what_was_read_does_not_come_again_after_a_clean_end(path: str) -> None:
    filled(path, 50)
    with Ring(path, "a") as ring:
        assert ring.pop_many(20) == bodies(50)[:20]
    with Ring(path, "a") as ring:
        assert ring.pages.trusted and len(ring) == 30
        assert ring.pop() == bodies(50)[20]
        ring.push(b"new")
    assert content(path) == [*bodies(50)[21:], b"new"]


@pytest.mark.parametrize("way", ["abort", "raise", "save_tail"])
def test_without_a_clean_end_what_was_read_comes_again(path: str, way: str) -> None:
    filled(path, 50)
    ring = Ring(path, "a", save_tail=way != "save_tail")
    ring.pop_many(20)
    ring.push(b"new")
    if way == "raise":
        with pytest.raises(KeyError), ring:
            raise KeyError
    else:
        ring.abort() if way == "abort" else ring.close()
    assert content(path) == [*bodies(50), b"new"][: 50 + (way != "abort")]
    with Ring(path) as found:  # a page has followed what the tail was saved with
        assert found.pages.trusted == (way == "abort")


def test_a_saved_tail_is_not_trusted_once_a_page_has_followed(path: str) -> None:
    """Nothing is written to take it back."""
    filled(path, 90)
    with Ring(path, "a") as ring:
        ring.pop_many(10)
    ring = Ring(path, "a", memory=4096)
    assert len(ring) == 80
    before = ring.stats()["written_bytes"]
    ring.push_many(bodies(60))
    written = ring.stats()["written_bytes"] - before
    ring.abort()
    with Ring(path) as found:
        assert not found.pages.trusted
        again = [record.body for record in found.records()]
        assert again[:90] == bodies(90)
        assert written == 4096 * (len(found.pages.order) - 5)  # no byte beside the pages


def test_nothing_is_written_by_reading(path: str) -> None:
    filled(path, 500)
    with unchanged(Path(path)):
        with Ring(path) as ring:
            assert list(ring.records()) and ring.peek() and len(ring) == ring.stats()["records"]
        ring = Ring(path, "a")
        ring.pop_many(300)
    with unchanged(Path(path)):
        ring.abort()
        verify(path)


def test_numbers_stay_whatever_happens(path: str) -> None:
    filled(path, 300)
    with Ring(path) as ring:
        before = {record.number: record.body for record in ring.records()}
    assert min(before) > 0  # the buffer was too small
    with Ring(path, "a") as ring:
        ring.pop_many(30)
        ring.push_many(bodies(20))
    with Ring(path) as ring:
        for record in ring.records():
            assert before.setdefault(record.number, record.body) == record.body
        assert max(before) == ring.end - 1 == 319


def test_on_close_drop_loses_what_waits_in_memory(path: str) -> None:
    with Ring(path, "a", memory=4096, on_close="drop") as ring:
        ring.push_many(bodies(50))
    kept = content(path)
    assert kept == bodies(50)[: len(kept)] and ring.dropped == 50 - len(kept) > 0


def test_a_flush_pads_a_page(path: str) -> None:
    with Ring(path, "a", sync="always") as ring:
        ring.push(b"one")
        ring.flush()
        ring.push(b"two")
        ring.flush()
        ring.flush()
        assert ring.stats()["written_bytes"] == 4 * BLOCK  # each with the count of pages
        assert content(path) == [b"one", b"two"]
        assert ring.pop_many(3) == [b"one", b"two"]


# --- a full buffer ---


def test_the_oldest_are_written_over_and_counted(path: str) -> None:
    pushed = bodies(1000)
    with Ring(path, "a", memory=4096) as ring:
        ring.push_many(pushed)
        lost = ring.stats()["overwritten"]
        assert lost > 500 and len(ring) == 1000 - lost
        assert ring.pop_many(1000) == pushed[lost:]
        assert ring.stats()["looped"]
    with Ring(path) as ring:
        assert ring.stats()["overwritten"] == lost and not list(ring.records())


def test_reads_see_unsynced_overwrites(path: str) -> None:
    with Ring(path, "a", memory=4096) as ring:
        ring.push_many(bodies(100))
        assert ring.pop() == bodies(100)[0]  # has read a page
        ring.push_many(bodies(200))
        found = ring.pop_many(999)
        lost = ring.stats()["overwritten"]
        assert found[:15] == bodies(100)[1:16] and len(found) == 299 - lost
    with Ring(path, "a", memory=4096) as ring:
        ring.push_many(bodies(100))
        ring.pop()
        ring.push_many(bodies(200))
        left = len(ring)
        lost = ring.stats()["overwritten"]
    with Ring(path) as ring:  # what was not popped by the end is gone, and counted
        gone = ring.stats()["overwritten"] - lost
        assert gone > 0 and len(ring) == left - gone


def test_a_page_with_only_the_end_of_a_lost_record_is_reused(tmp_path: Path) -> None:
    """A pop from memory has passed it, and it was never read."""

    def flush(*pages: list[bytes]) -> None:
        for some in pages:
            ring.push_many(some)
            ring.flush()

    create(tmp_path / "ring", pages=4)
    with Ring(tmp_path / "ring", "a", memory=4096) as ring:
        # The second takes two pages: of c there is only the end in the last one.
        flush([b"a", b"b"], [b"x" * 100, b"c" * 4000], [b"d"])
        assert ring.pop() == b"a"  # b is in memory
        flush([b"e"], [b"f"])  # over the first two pages
        assert ring.pop() == b"b"
        flush([b"g"], [b"h"])
        assert ring.pop_many(9) == [b"e", b"f", b"g", b"h"]
        assert ring.problems == []


def test_a_buffer_can_refuse_more(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    create(path, pages=4, full="refuse")
    pushed = bodies(200)
    with Ring(path, "a", memory=4096) as ring:
        with pytest.raises(Full, match="the buffer is full") as refused:
            ring.push_many(pushed)
        assert refused.value.errno == errno.ENOBUFS
        count = len(ring)
        with pytest.raises(Full):
            ring.flush()
        found = ring.pop_many(25)  # more than a page has
        ring.push_many(pushed[count : count + 5])
        while (body := ring.pop()) is not None:
            found.append(body)
        assert found == pushed[: count + 5] and ring.stats()["overwritten"] == 0


def test_a_close_reports_what_it_failed_to_write(tmp_path: Path) -> None:
    create(tmp_path / "ring", pages=2, full="refuse")
    ring = Ring(tmp_path / "ring", "a")
    ring.push_many(bodies(100))
    with pytest.raises(Full):
        ring.close()
    assert content(str(tmp_path / "ring")) == bodies(100)[: 100 - ring.dropped]
    ring.close()


# --- numbers of writes ---


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(256, 1.05), (64, 1.05), (4000, 1.03), (2050, 1.02)])
def test_write_amplification(tmp_path: Path, size: int, most: float) -> None:
    """Records that fit badly, too: they go on in the next page."""
    create(tmp_path / "ring", pages=64)
    with Ring(tmp_path / "ring", "a") as ring:
        ring.push_many([bytes(size)] * (8_000_000 // size))
        assert 1 < ring.stats()["write_amplification"] <= most


# --- what is refused ---


def test_wrong_calls(path: str, tmp_path: Path) -> None:
    with Ring(path, "a") as ring:
        most = "a record of 4,063 bytes: the buffer takes 4,062"
        each_raises(
            (ValueError, most, lambda: ring.push(bytes(4063))),
            (Locked, "another writer has it open", lambda: Ring(path, "a")),
        )
        ring.push(bytes(4062))
    all_raise(Closed, (ring.pop, ring.flush, lambda: ring.push(b"")))
    ring.close()
    with Ring(path) as reader:
        all_raise(ReadOnly, (reader.pop, reader.flush, lambda: reader.push(b"")))
    wrong: list[dict[str, Any]] = [{"mode": "w"}, {"sync": "page"}, {"on_close": ""}]
    all_raise(ValueError, (partial(Ring, path, **options) for options in wrong), "must be")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("WINK")
    each_raises(
        (NoSuchFile, "winkfs ring create", lambda: Ring(tmp_path / "none")),
        (OSError, "not a regular file", lambda: Ring(tmp_path / "fifo")),
        (FormatError, "no Ring Page buffer", lambda: Ring(tmp_path / "text")),
    )


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [({"pages": 1}, "2 to 65,535 pages, not 1"), ({"pages": 65_536}, "not 65,536"),
     ({"page_size": 0}, "4096 bytes to 16 MiB, not 0"), ({"page_size": 5000}, "multiple of 4096"),
     ({"page_size": 1 << 25}, "16 MiB"), ({"full": "x"}, "'overwrite' or 'refuse'"),
     ({"record_size": 4063}, "a page of 4,096 bytes holds a record of up to 4,062, not 4,063"),
     ({"record_size": 0}, "not 0")],
)  # fmt: skip
def test_a_buffer_that_cannot_be_is_not_made(tmp_path: Path, wrong: object, answer: str) -> None:
    with pytest.raises(ValueError, match=answer):
        create(tmp_path / "ring", **wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_new_buffer_takes_the_place_of_nothing(path: str, tmp_path: Path) -> None:
    with unchanged(tmp_path):
        each_raises(
            (FileExists, "is there already", lambda: create(path, force=True)),
            (Refusal, "that of a container", lambda: create(tmp_path / "x.data")),
        )
    assert len(list(tmp_path.iterdir())) == 1


# --- others beside it ---


def test_a_reader_follows_a_writer(path: str) -> None:
    with Ring(path, "a", memory=4096) as ring, winkfs.open(path) as reader:
        assert isinstance(reader, Records) and len(reader) == 0 and not reader.refresh()
        for start in range(0, 2000, 100):
            ring.push_many(bodies(2000)[start : start + 100])
            ring.flush()
            assert reader.refresh() and not reader.refresh()
            rows = list(reader.rows())
            assert list(reader.bodies(rows)) == bodies(2000)[: start + 100][-len(rows) :]
            assert [row.id for row in rows] == [str(row) for row in reader.names()]
            assert len(reader) == len(rows) and reader.problems == []


def test_a_record_that_was_written_over_is_gone_for_a_reader(path: str) -> None:
    with Ring(path, "a", memory=4096) as ring:
        ring.push_many(bodies(20))
        ring.flush()
        with winkfs.open(path) as reader:
            assert isinstance(reader, Records)
            rows = list(reader.rows())
            ring.push_many(bodies(1000))
            with pytest.raises(NoSuchFile):
                reader.read("0")
            assert len(rows) == 20 and list(reader.contents(rows)) == []


# --- strange bytes with right checksums ---

WILD = [0, 1, 2, 7, 4063, 4064, 4096, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
FAR = [*WILD, 1 << 62, (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@pytest.mark.in_memory
@pytest.mark.slow
def test_hostile_numbers_neither_crash_nor_hang(path: str) -> None:
    with Ring(path, "a") as ring:
        ring.push_many(bodies(300))
        number = ring.settings.ring
    good, rng = Path(path).read_bytes(), random.Random(5)
    refused = 0
    for turn in range(turns := examples(600)):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            way = rng.randrange(4)
            if way == 0:
                fields = [4096, 8, 4062, 0]
                fields[rng.randrange(4)] = rng.choice(WILD)
                made = Settings(*fields[:3], bool(fields[3] & 1), number)
                if not all(0 <= value < 1 << 32 for value in fields):
                    continue
                block = made.encode()
                data[:36], data[2048 : 2048 + 36] = block[:36], block[:36]
            elif way == 1:
                fields = [rng.choice(FAR) for _ in range(6)]
                state = BufferState(3, True, rng.random() < 0.8, *fields)
                place, raw = state.offset, state.encode(number)
                data[place : place + len(raw)] = raw
            else:
                index = rng.randrange(8)
                at = BLOCK + 4096 * index
                head = list(HEAD.unpack_from(data, at))
                for field in rng.sample((1, 4, 5, 6, 7), rng.randint(1, 3)):
                    head[field] = rng.choice(
                        FAR if field == 5 else WILD[:8] if field == 1 else WILD
                    )
                if rng.random() < 0.5:
                    head[0] = 8 - index if head[1] % 2 else index + 1
                data[at : at + 32] = HEAD.pack(*head)
                where = at + 32 + rng.randrange(4000)
                data[where : where + 2] = rng.randbytes(2)
                page = bytes(data[at : at + 4096])
                crc = zlib.crc32(page[8:], zlib.crc32(page[:4]))
                data[at + 4 : at + 8] = struct.pack("<I", crc)
        Path(path).write_bytes(data)
        started = time.monotonic()
        try:
            with Ring(path) as ring:
                count = len(list(ring.records()))
                assert count < 5000 and len(ring) >= 0
                ring.stats()
            with winkfs.open(path) as store:
                assert isinstance(store, Records)
                list(store.contents(store.rows()))
                list(store.listing())
            verify(path)
            with Ring(path, "a", memory=4096) as writer:
                writer.pop_many(3)
                writer.push_many(bodies(60))
                writer.pop_many(10_000)
        except (FormatError, OSError, winkfs.DamageWarning):
            refused += 1
        except ValueError as error:  # a small size of records
            assert "the buffer takes" in str(error), turn
        assert time.monotonic() - started < 10, turn
    assert turns / 20 < refused < turns - 10


@pytest.mark.slow
def test_a_buffer_with_a_huge_claimed_size_opens_at_once(tmp_path: Path) -> None:
    """Also as a file with a terabyte of holes."""
    path = tmp_path / "ring"
    made = create(path, pages=65_535, page_size=1 << 24)
    os.truncate(path, made.size)
    started = time.monotonic()
    with Ring(path, "a") as ring:
        ring.push(bytes(1 << 20))
    assert content(str(path)) == [bytes(1 << 20)]
    assert time.monotonic() - started < 10


def test_pages_of_an_older_buffer_are_none(path: str, tmp_path: Path) -> None:
    """As on a device that was taken again."""
    filled(path, 700)
    old = Path(path).read_bytes()
    made = create(tmp_path / "new", pages=8)
    Path(path).write_bytes(made.encode() + old[BLOCK:])
    with Ring(path, "a") as ring:
        assert (len(ring), ring.problems, ring.notes) == (0, [], [])
        ring.push_many(bodies(50))
        ring.flush()
        assert content(path) == bodies(50)
    assert verify(path).problems == []


def test_a_damaged_page_costs_its_own_records(path: str) -> None:
    filled(path, 130)
    with Ring(path) as ring:
        spans = {record.body: record.page for record in ring.records()}
    flip(path, BLOCK + 3 * 4096 + 2000)
    for _ in range(2):
        with Ring(path, "a") as ring:
            found = ring.pop_many(999)
            assert ring.problems == [f"{path}: page 3 is damaged at byte {BLOCK + 3 * 4096}"]
            ring.abort()
    lost = [body for body in bodies(130) if body not in found]
    assert {spans[body] for body in lost} <= {2, 3} and 19 <= len(lost) <= 22
    assert found == [body for body in bodies(130) if body not in lost]
    assert verify(path).problems == [f"{path}: page 3 is damaged at byte {BLOCK + 3 * 4096}"]


# --- a model ---


class Queue(RuleBasedStateMachine):
    """A buffer that refuses when it is full, beside a deque."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(1)
        self.path = f"{self.disk.path}/ring"
        create(self.path, pages=3, full="refuse")
        self.model: deque[bytes] = deque()
        self.open()

    def open(self) -> None:
        self.ring = Ring(self.path, "a", memory=4096)

    @rule(body=st.binary(max_size=20), times=st.sampled_from((1, 3, 200)), count=st.integers(1, 30))
    def push(self, body: bytes, times: int, count: int) -> None:
        for n in range(count):
            try:
                self.ring.push(body * times + b"%d" % n)
            except Full:
                return
            self.model.append(body * times + b"%d" % n)

    @rule(count=st.integers(1, 40))
    def pop(self, count: int) -> None:
        assert self.ring.pop_many(count) == [
            self.model.popleft() for _ in range(min(count, len(self.model)))
        ]

    @precondition(lambda self: len(self.ring._waiting) < 10)
    @rule()
    def reopen(self) -> None:
        try:
            self.ring.close()
        except Full:
            for _ in range(self.ring.dropped):
                self.model.pop()
        self.open()
        assert self.ring.problems == []

    @invariant()
    def same(self) -> None:
        assert len(self.ring) == len(self.model)
        assert self.ring.peek() == (self.model[0] if self.model else None)

    def teardown(self) -> None:
        self.ring.abort()


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# --- block devices ---


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """A loop device of a megabyte of zeros."""
    image = tmp_path / "disk"
    image.touch()
    os.truncate(image, 1 << 20)
    if os.getuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("a loop device needs root and losetup")
    made = subprocess.run(
        ["losetup", "-f", "--show", image], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    name = made.stdout.strip()
    yield name
    subprocess.run(["losetup", "-d", name], check=True)


def test_a_device_that_is_missing_is_no_file_in_its_place() -> None:
    with pytest.raises(NoSuchFile, match="no such device"):
        create("/dev/winkfs-of-a-test")
    assert not os.path.exists("/dev/winkfs-of-a-test")


def test_a_buffer_on_a_device(device: str) -> None:
    made = create(device)
    assert (made.page_count, made.page_size) == (255, 4096)
    with Ring(device, "a") as ring:
        with pytest.raises(Locked, match="another program has the device"):
            Ring(device, "a")
        ring.push_many(bodies(8000))
        lost = ring.stats()["overwritten"]
        ring.flush()
        assert content(device) == bodies(8000)[ring.stats()["overwritten"] :]
    with Ring(device, "a") as ring:
        assert (
            ring.pop() == bodies(8000)[8000 - len(ring) - 1] and ring.stats()["overwritten"] >= lost
        )
    with winkfs.open(device) as store:
        assert isinstance(store, Records)
        assert store.mtime_ns(next(store.rows()).file) > 10**18
    assert verify(device).problems == []


def test_a_device_that_is_not_empty_is_not_taken(device: str) -> None:
    Path(device).write_bytes(b"\x55" * BLOCK * 4)
    each_raises(
        (Refusal, "is not empty: force=True", lambda: create(device)),
        (Refusal, "room for 255 pages", lambda: create(device, pages=256)),
        (FormatError, "no Ring Page buffer", lambda: Ring(device)),
    )
    assert Path(device).read_bytes()[: BLOCK * 4] == b"\x55" * BLOCK * 4
    made = create(device, pages=20, force=True)
    start = Path(device).read_bytes()[: BLOCK * 4]
    assert start == made.encode() + bytes(2 * 4096) + b"\x55" * BLOCK
    with Ring(device, "a") as ring:
        ring.push(b"body")
    assert content(device) == [b"body"] and verify(device).notes == []


def test_a_device_that_became_smaller_is_refused(device: str, tmp_path: Path) -> None:
    create(device)
    os.truncate(tmp_path / "disk", 1 << 19)
    subprocess.run(["losetup", "-c", device], check=True)
    with pytest.raises(FormatError, match="a device of 524,288 bytes for a buffer of 1,048,576"):
        Ring(device)


def test_a_device_that_is_no_block_device_is_refused() -> None:
    devices = ("/dev/null", "/dev/tty")
    refuses(Ring, devices, OSError, r"not a regular file|No such device")
    refuses(create, devices, OSError, r"is there already")


def test_the_page_of_the_encoder_is_that_of_the_writer(path: str) -> None:
    with Ring(path, "a") as ring:
        ring.push(b"abc")
        number = ring.settings.ring
    form = {"ring": number, "number": 0, "records": 1, "first": 0, "goes_on": False}
    raw = encode(0, 0, 8, 4096, data=b"\3\0abc", **form)[1]  # type: ignore[arg-type]
    assert Path(path).read_bytes()[BLOCK:] == raw


def test_records_of_a_writer_are_those_of_its_opening(path: str) -> None:
    """Those that were written over meanwhile are left out, and what has taken their place, too."""
    filled(path, 140)
    with Ring(path, "a", memory=4096) as ring:
        before = [record.body for record in ring.records()]
        assert before == bodies(140)
        ring.push_many([b"later" * 40] * 60)
        seen = [record.body for record in ring.records()]
        assert seen and seen == before[-len(seen) :] and len(seen) < 120


def test_counters_behind_a_kill(path: str) -> None:
    ring = Ring(path, "a", memory=4096)
    for number in range(2000):
        ring.push(b"%06d" % number + bytes(200))
    ring.sync()
    ring.abort()
    for mode in ("r", "a"):
        with Ring(path, mode) as found:  # type: ignore[arg-type]
            stats = found.stats()
            assert stats["overwritten"] == stats["tail"] > 1800
            assert 1800 < stats["uncounted"] < 2000
