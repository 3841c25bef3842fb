"""Segments of a message store: files of the reference implementation, damage, and random ones."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from commands import invoke
from flips import flipped
from folders import unchanged, write_files
from hypothesis import given
from hypothesis import strategies as st

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.disk.storage import Storage
from winkformats.errors import CorruptError
from winkformats.messagestore import rdq, segment, sqs
from winkformats.messagestore.index import words_of

GOLDEN = Path(__file__).parents[1] / "golden" / "messagestore"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "manifest.json").read_text())["cases"]
COMPACTED = [case for case in CASES if "compaction" in case and "not-truncated" in case["file"]]
ID = bytes(range(16))
OTHER = bytes(range(1, 17))


def segment_of(*parts: bytes, header: bytes = sqs.HEADER) -> MemoryStorage:
    storage = MemoryStorage(name="7.sqs")
    storage.write(0, [header + b"".join(parts)])
    return storage


def summary(version: ModuleType, storage: Storage) -> tuple[list[tuple[int, int]], str, int]:
    """-> (size, offset) of each message, and how the scan ended."""
    found = version.scan(storage)
    return [(size, offset) for _, size, offset in found.messages], found.error, found.end


# --- the reference ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_scan_finds_what_the_reference_finds(case: dict[str, Any]) -> None:
    done = invoke("fct", "scan", str(GOLDEN / case["file"]), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if "ok" in case["scan"]:
        assert (done.exit_code, rows) == (0, case["scan"]["ok"])
    else:
        wanted = {key: case["scan"][key] for key in ("error", "offset")}
        assert (done.exit_code, rows[-1]) == (1, wanted)


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("case", COMPACTED, ids=lambda case: case["file"])
def test_a_compaction_gives_the_bytes_of_the_reference(
    case: dict[str, Any], truncated: bool, tmp_path: Path
) -> None:
    whole = GOLDEN / case["file"]
    path, plan, keep = tmp_path / f"0{whole.suffix}", case["compaction"], tmp_path / "keep"
    shutil.copy(next(whole.parent.glob("before.*")), path)
    version = rdq if whole.suffix == rdq.SUFFIX else sqs
    storage = MemoryStorage(name=str(path))
    storage.write(0, [path.read_bytes()])
    ids = [found.msg_id.hex() for found in version.scan(storage).messages]
    keep.write_text("\n".join(one for one in ids if int(one[:8], 16) in plan["keep"]))
    more = [] if truncated else ["--no-truncate"]
    done = invoke("fct", "compact", str(path), "--keep", str(keep), *more)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "truncate_size": plan["truncate_size"], "moved": len(plan["moves"]),
    }  # fmt: skip
    wanted = (whole.with_name(f"0{whole.suffix}") if truncated else whole).read_bytes()
    if (
        version is rdq
    ):  # the reference has zeros in gaps, behind which brokers up to 3.13.0 see none
        before, after = (segment_of(data, header=b"") for data in (wanted, path.read_bytes()))
        rows = [row for row in rdq.scan(before).rows if int(row[0].hex()[:8], 16) in plan["keep"]]
        assert [r for r in rdq.scan(after).rows if r[2] < plan["truncate_size"]] == rows
        assert after.size() == before.size()
        for _, size, at in rows:
            assert after.read(at, size) == before.read(at, size)
    else:
        assert path.read_bytes() == wanted


def old_scan(data: bytes) -> list[tuple[bytes, int, int]]:
    """What brokers 3.8 to 3.13.0 find of a segment after an unclean end."""
    at, found = 0, []
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        if size == 0 or at + size + 9 > len(data):
            break
        if data[at + size + 8] == 255:
            found.append((data[at + 8 : at + 24], size + 9, at))
        at += size + 9
    return found


def new_scan(data: bytes) -> list[tuple[bytes, int, int]]:
    """What later ones find: byte by byte, and only bodies that begin as a term."""
    at, found = 0, []
    while at + 25 <= len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        stop = at + size + 9
        if size >= 16 and stop <= len(data) and data[stop - 1] == 255 and data[at + 24] == 131:
            found.append((data[at + 8 : at + 24], size + 9, at))
            at = stop
        else:
            at += 1
    return found


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=25), st.integers(0, 400))
def test_old_and_new_brokers_step_over_the_gaps_of_a_compaction(
    rows: list[tuple[int, bool]], more: int
) -> None:
    """No size of zero stands anywhere, not even where a message moved and some bytes are left."""
    parts = [rdq.record(i.to_bytes(16), b"\x83" + b"x" * (n + more * (i % 7 == 3)))
             for i, (n, _) in enumerate(rows)]  # fmt: skip
    storage = segment_of(*parts, header=b"")
    kept = [m for m, (_, keep) in zip(rdq.scan(storage).messages, rows, strict=True) if keep]
    offsets, sizes = (np.array([m[i] for m in kept], np.int64) for i in (2, 1))
    plan = rdq.compact(storage, offsets, sizes)
    storage.truncate(plan.size)
    data = storage.read(0, plan.size)
    found = rdq.survey(storage)
    assert old_scan(data) == new_scan(data) == found.rows and found.lost == []
    assert {row[0] for row in found.rows} == {m.msg_id for m in kept}


# --- damage of version 1 ---

TERM = b"\x83m\0\0\1\0"


def bodies_of_a_broker(count: int) -> list[bytes]:
    """Records, the first of which has a number in it that leads to the end of the last."""
    parts = [rdq.record(i.to_bytes(16), TERM + bytes([i]) * 256) for i in range(1, count)]
    size = 24 + 6 + 300 + 1
    number = (size - 24 - 100 + sum(map(len, parts)) - 9).to_bytes(8, "big")
    first = TERM + b"b" * 94 + number + b"b" * 198
    return [rdq.record(ID, first), *parts]


def test_a_number_after_a_damaged_size_hides_no_messages() -> None:
    parts = bodies_of_a_broker(20)
    data = bytearray(b"".join(parts))
    data[0] = 9
    found = rdq.survey(segment_of(bytes(data), header=b""))
    assert len(found.rows) == 19 and found.lost == [(0, len(parts[0]))]
    others = b"".join(rdq.record(i.to_bytes(16), b"no term %d" % i) for i in range(9))
    assert rdq.survey(segment_of(b"junk" * 9, others, header=b"")).lost == [(0, 36)]
    assert len(rdq.survey(segment_of(b"junk" * 9, others, header=b"")).rows) == 9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_size_in_a_broker_segment_costs_one_message(seed: int) -> None:
    raw = (GOLDEN / "rdq-3.10-small" / "0.rdq").read_bytes()
    rows, rng = rdq.scan(segment_of(raw, header=b"")).rows, random.Random(seed)
    for _, size, at in rows:
        data = bytearray(raw)
        if seed:
            data[at : at + 8] = rng.randrange(16, len(raw)).to_bytes(8, "big")
        else:
            data[at + 6] ^= 4
        found = rdq.survey(segment_of(bytes(data), header=b""))
        assert found.rows == [row for row in rows if row[2] != at]
        assert found.lost == [(at, at + size)]


def test_the_messages_that_a_broker_of_3_10_wrote() -> None:
    folder = GOLDEN / "rdq-3.10-small"
    found = rdq.survey(segment_of((folder / "0.rdq").read_bytes(), header=b""))
    wanted = json.loads((folder / "manifest.json").read_text())["messages"]
    assert [{"id": row[0].hex(), "size": row[1]} for row in found.rows] == wanted
    assert found.lost == []


@pytest.mark.parametrize(
    "parts, lost",
    [
        ([bytes(50)], []),
        ([rdq.gap(50).ljust(50, b"\0")], []),
        ([rdq.gap(10).ljust(10, b"\0"), bytes(7)], []),
        ([rdq.record(OTHER, b"x")], []),  # it came before
        ([rdq.record(OTHER, b"x")[:-1] + b"\0"], [(26, 52)]),
        ([bytes(30), b"junk"], [(49, 60)]),  # the zeros before it may be of its size
    ],
)
def test_what_is_between_messages_is_a_gap_or_lost(
    parts: list[bytes], lost: list[tuple[int, int]]
) -> None:
    storage = segment_of(rdq.record(OTHER, b"x"), *parts, rdq.record(ID, b"y"), header=b"")
    found = rdq.survey(storage)
    assert [row[0] for row in found.rows] == [OTHER, ID] and found.lost == lost


def test_a_torn_last_record_of_version_1_is_lost_bytes() -> None:
    torn = rdq.record(ID, b"y" * 100)[:-40]
    found = rdq.survey(segment_of(rdq.record(OTHER, b"x"), torn, header=b""))
    assert len(found.rows) == 1 and found.lost == [(26, 26 + len(torn))]


@pytest.mark.parametrize("window", [64, 100, 4096])
def test_a_v1_record_across_the_end_of_a_window_is_found(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(segment, "WINDOW", window)
    for before in range(window - 40, window + 10):
        storage = segment_of(bytes(before), rdq.record(ID, b"x"), header=b"")
        assert summary(rdq, storage)[0] == [(26, before)]


# --- what is wrong in a segment of version 2 ---

MESSAGE = sqs.record(ID, b"body")
WRONG = {
    "five small holes": ([bytes([1]) * 5], "small_hole_run_too_long", 0),
    "a hole behind a small one": ([bytes([1]), sqs.hole(10).ljust(10)], "hole_after_hole", 1),
    "a hole behind a hole": ([sqs.hole(10).ljust(10), sqs.hole(10)], "hole_after_hole", 10),
    "a small hole behind a hole": ([sqs.hole(10).ljust(10), bytes([1])], "hole_after_hole", 10),
    "a hole of 4 bytes": ([bytes([2, 0, 0, 0, 4])], "invalid_hole_size", 0),
    "a message of 20 bytes": ([bytes([3, 0, 0, 0, 20])], "invalid_message_size", 0),
    "a checked one of 24 bytes": ([bytes([4, 0, 0, 0, 24])], "invalid_message_size", 0),
    "type 0": ([bytes(40)], "unrecognised_record_type", 0),
    "type 5": ([bytes([5])], "unrecognised_record_type", 0),
    "type 255": ([bytes([255])], "unrecognised_record_type", 0),
}


@pytest.mark.parametrize("window", [21, 64, 1 << 18])
@pytest.mark.parametrize("which", WRONG)
def test_what_is_wrong_in_a_segment(
    which: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "WINDOW", window)
    parts, error, at = WRONG[which]
    start = sqs.START + len(MESSAGE)
    messages = [(len(MESSAGE), sqs.START)]
    assert summary(sqs, segment_of(MESSAGE, *parts)) == (messages, error, start + at)


TORN = {
    "nothing": b"",
    "a part of a header": bytes([3, 0, 0]),
    "a message that goes on": sqs.record(OTHER, b"long")[:-1],
    "an id that goes on": sqs.record(OTHER, b"")[:10],
    "a hole that goes on": sqs.hole(100),
    "four small holes": bytes([1]) * 4,
    "the message again": MESSAGE,
}


@pytest.mark.parametrize("which", TORN)
def test_what_ends_a_segment_without_an_error(which: str) -> None:
    rows, error, _ = summary(sqs, segment_of(MESSAGE, TORN[which]))
    assert (rows, error) == ([(len(MESSAGE), sqs.START)], "")


def test_a_segment_shorter_than_its_header_is_empty() -> None:
    assert summary(sqs, segment_of(header=sqs.HEADER[:30]))[:2] == ([], "")


def test_a_large_hole_is_not_read(tmp_path: Path) -> None:
    class Counted(FileStorage):  # sparse: in memory it is several GiB
        got = 0

        def read(self, offset: int, length: int) -> bytes:
            data = super().read(offset, length)
            self.got += len(data)
            return data

    with Counted(tmp_path / "7.sqs", "x") as storage:
        storage.write(0, [sqs.HEADER, sqs.hole((1 << 30) - 64)])
        storage.truncate(1 << 30)
        storage.write(1 << 30, [MESSAGE])
        assert summary(sqs, storage) == ([(len(MESSAGE), 1 << 30)], "", (1 << 30) + len(MESSAGE))
        assert 0 < storage.got <= 2 * segment.WINDOW


def test_a_checked_message_that_changed_is_reported() -> None:
    data = sqs.record(ID, b"body", checked=True)
    assert sqs.decode(data, file="7.sqs", offset=64) == (ID, b"body")
    for bit in range(8 * len(data)):
        with pytest.raises(CorruptError, match=r"7\.sqs"):
            sqs.decode(flipped(data, bit), file="7.sqs", offset=64)


def test_a_body_that_is_refused() -> None:
    good = sqs.record(OTHER, b"good")
    found = sqs.scan(segment_of(good, MESSAGE), b"good".__eq__)
    assert (len(found.messages), found.error) == (1, "invalid_message_body")
    assert found.end == sqs.START + len(good)
    both = rdq.record(OTHER, b"good"), rdq.record(ID, b"bad"), rdq.record(ID, b"good")
    found = rdq.scan(segment_of(*both, header=b""), b"good".__eq__)
    assert [m.offset for m in found.messages] == [0, len(both[0]) + len(both[1])]


# --- random segments ---


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=25), st.booleans())
def test_a_compaction_keeps_what_is_kept(rows: list[tuple[int, bool]], old: bool) -> None:
    """Each message is found at its new place with its body, before truncation and after."""
    version: Any = rdq if old else sqs
    bodies = {number.to_bytes(16): bytes([1 + number]) * size
              for number, (size, _) in enumerate(rows)}  # fmt: skip
    parts = [version.record(one, body) for one, body in bodies.items()]
    storage = segment_of(*parts, header=b"" if old else sqs.HEADER)
    kept = [m for m, (_, keep) in zip(version.scan(storage).messages, rows, strict=True) if keep]
    offsets, sizes = (np.array([m[i] for m in kept], np.int64) for i in (2, 1))
    assert not version.wrong(
        storage, words_of(b"".join(m.msg_id for m in kept)), offsets, sizes
    ).any()
    plan = version.compact(storage, offsets, sizes)
    after = plan.offsets(offsets)
    places = {m.msg_id: at for m, at in zip(kept, after.tolist(), strict=True)}
    assert plan.size <= max((m.offset + m.size for m in kept), default=version.START)
    for size in (storage.size(), plan.size):
        storage.truncate(size)
        found = {m.msg_id: m for m in version.scan(storage).messages}
        assert version.scan(storage).error == ""
        for one, at in places.items():
            assert found[one].offset == at
            data = storage.read(at, found[one].size)
            assert data == version.record(one, bodies[one])


@pytest.mark.few(16)
@pytest.mark.slow
@pytest.mark.parametrize("hole", [None, sqs.hole])
@pytest.mark.parametrize("seed", range(40))
def test_messages_that_move_together_come_where_each_alone_would(
    seed: int, hole: segment.Hole | None
) -> None:
    rng, kept = random.Random(seed), list[tuple[int, int]]()
    data = bytearray(sqs.START)
    for _ in range(rng.choice([1, 5, 50, 300])):
        data += rng.randbytes(rng.choice([0, 10, 500, segment.MAX_GAP + 1, 100_000]))
        size = rng.choice([30, 1000, 3000, segment.COPY + 9 if rng.random() < 0.1 else 40])
        kept.append((len(data), size))
        data += rng.randbytes(size)
    storage = MemoryStorage(name="7.sqs")
    storage.write(0, [data])
    before, sizes = np.array(kept, np.int64).T
    made = segment.plan(before, sizes, sqs.START)
    segment.move(storage, before, sizes, made, hole)
    after, original = made.offsets(before), bytes(data)
    assert len(made.targets) == np.count_nonzero(before != after)
    for old, new, size in zip(before.tolist(), after.tolist(), sizes.tolist(), strict=True):
        data[new : new + size] = original[old : old + size]
    for start, stop in made.gaps if hole else []:
        data[start:stop] = sqs.hole(stop - start).ljust(stop - start, b"\0")
    assert storage.read(0, len(data) + 1) == data


def test_the_plan_is_that_of_the_document() -> None:
    """Several messages fit into one gap; it goes on where the last one does not fit."""
    offsets, sizes = np.array([(100, 10), (110, 30), (200, 40), (300, 20), (400, 30)], np.int64).T
    plan = segment.plan(offsets, sizes, 64)
    assert plan.targets.tolist() == [64, 140, 160]
    assert plan.offsets(offsets).tolist() == [100, 110, 160, 140, 64]
    assert plan.gaps == [(94, 100)]
    assert plan.size == 200


@pytest.mark.slow
@pytest.mark.parametrize("version", [rdq, sqs])
def test_no_bytes_make_a_scan_fail(version: Any) -> None:
    rng = random.Random(3)
    whole = b"".join(version.record(rng.randbytes(16), rng.randbytes(40)) for _ in range(20))
    header = b"" if version is rdq else sqs.HEADER
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 3, 255, rng.randrange(256)])
        storage = segment_of(bytes(data[: rng.randrange(len(data))]), header=header)
        found = version.scan(storage)
        for message in found.messages:
            assert 0 < message.size <= storage.size() - message.offset


# --- the command line ---


@pytest.mark.parametrize(
    "args, line",
    [
        (["scan", "there.sqs"], "no such file"),
        (["scan", "ids"], "not a segment of a message store"),
        (["compact", "7.sqs", "--keep", "bad"], "bad, line 2: not an id of 32 hexadecimal digits"),
        (["compact", "7.sqs", "--keep", "ids"], "none of the messages listed, such as 0102030405"),
        (["compact", "wrong.sqs", "--keep", "none"], "unrecognised record type 0 at byte 64"),
    ],
)
def test_what_is_wrong_is_one_line(
    args: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "7.sqs": sqs.HEADER + MESSAGE, "wrong.sqs": sqs.HEADER + bytes(9), "none": b"",
        "bad": f"{ID.hex()}\nxyz\n".encode(), "ids": f"{OTHER.hex()}\n".encode(),
    }  # fmt: skip
    write_files(tmp_path, files)
    with unchanged(tmp_path):
        done = invoke("fct", *args)
    assert done.exit_code == 1
    assert line in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1
