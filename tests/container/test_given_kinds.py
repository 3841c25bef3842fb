"""Times that are datetimes, and contents that are any buffer, wherever a handle takes them."""

from __future__ import annotations

import array
import mmap
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import winkfs
import winkfs.dataset
from winkfs.stores.ledgerq import Queue
from winkfs.units import to_ns

WHEN = datetime(2024, 5, 17, 12, 30, 15, 123457, UTC)
NS = 1_715_949_015_123_457_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(params=["container", "append-only", "data set"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    base = tmp_path / "c"
    made: Any = (
        winkfs.dataset.create(base)
        if request.param == "data set"
        else winkfs.create(base, ao=request.param == "append-only")
    )
    with made:
        yield made


# --- times ---


def test_a_datetime_is_exact_to_the_microsecond() -> None:
    assert to_ns(WHEN) == NS
    assert to_ns(WHEN.astimezone(timezone(timedelta(hours=-7)))) == NS
    assert to_ns(datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)) == -1000
    assert to_ns(datetime(1, 1, 1, tzinfo=UTC)) == -62_135_596_800 * 10**9


def test_a_datetime_without_a_zone_is_local(berlin: None) -> None:
    naive = datetime(2024, 5, 17, 14, 30, 15, 123457)
    assert to_ns(naive) == NS
    night = datetime(2024, 10, 27, 2, 30)  # twice, as the clocks go back
    first, second = to_ns(night), to_ns(night.replace(fold=1))
    assert first is not None and second is not None and second - first == 3600 * 10**9


def test_a_timestamp_of_pandas_keeps_its_nanoseconds() -> None:
    pd = pytest.importorskip("pandas")
    assert to_ns(pd.Timestamp(NS + 7, tz="UTC")) == NS + 7
    assert to_ns(pd.Timestamp(-5_000_000_003, tz="UTC")) == -5_000_000_003
    with pytest.raises(ValueError, match="is no time"):
        to_ns(pd.NaT)


def test_what_is_no_time_is_refused_in_one_line(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        for wrong in ("2024-05-17", date(2024, 5, 17), timedelta(1), [1]):
            with pytest.raises(TypeError, match="seconds since the epoch, or a datetime, not"):
                c.put("a", b"", mtime=wrong)  # type: ignore[arg-type]
        assert list(c) == []


def test_each_time_may_be_a_datetime(store: Any) -> None:
    before, after = WHEN - timedelta(days=1), WHEN + timedelta(days=1)
    store.put("a", b"1", mtime=before)
    store.put_many([("b", b"2", WHEN), ("c", b"3", after)])
    store.sync()
    assert store.stat("b").mtime_ns == NS
    assert [entry.name for entry in store.scan(since=WHEN, until=after)] == ["b"]
    assert [entry.name for entry in store.scan(until=WHEN)] == ["a"]
    if find_spec("pyarrow"):
        assert store.to_arrow(since=WHEN, until=after)["path"].to_pylist() == ["b"]
    if isinstance(store, winkfs.Container) and not store.ao:
        store.utime("a", after)
        assert store.stat("a").mtime_ns == NS + 86400 * 10**9
        assert {entry.name for entry in store.scan(since=after, where="size > 0")} == {"a", "c"}


def test_records_are_chosen_by_datetime(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push(b"1")
        assert queue.seek_time(datetime.now(UTC) - timedelta(hours=1)) == 1
    now = datetime.now(UTC)
    with winkfs.open(tmp_path / "q") as records:
        hour = timedelta(hours=1)
        assert len(list(records.scan(since=now - hour, until=now + hour))) == 1
        assert list(records.scan(until=now - hour)) == []
        assert list(records.scan(since=now + hour)) == []


# --- contents ---


def mapped() -> mmap.mmap:
    found = mmap.mmap(-1, 8)
    found[:] = b"12345678"
    return found


NUMBERS = np.arange(12, dtype=">i4").reshape(3, 4)
BUFFERS: list[tuple[Any, bytes]] = [
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"abcd")[::2], b"ac"),
    (memoryview(np.arange(3)), np.arange(3).tobytes()),
    (array.array("d", [1.5, 2]), array.array("d", [1.5, 2]).tobytes()),
    (mapped(), b"12345678"),
    (np.float64([1.5]), np.float64([1.5]).tobytes()),
    (NUMBERS[:, 1:3], NUMBERS[:, 1:3].tobytes()),
    (NUMBERS.T, NUMBERS.T.tobytes()),
    (np.array(["a", "bc"]), np.array(["a", "bc"]).tobytes()),
    (np.zeros((0, 3)), b""),
]


@pytest.mark.few
@pytest.mark.parametrize("given, expected", BUFFERS, ids=lambda value: type(value).__name__)
def test_any_buffer_is_content(given: Any, expected: bytes, store: Any) -> None:
    store.put("a", given, mtime=1)
    store.put_many([("b", given, 2), ("c", b"x", 2)])
    store.put_rows([winkfs.Row("d", given, 3 * 10**9)])
    assert [store.read(name) for name in "abcd"] == [expected, expected, b"x", expected]
    if isinstance(store, winkfs.Container) and not store.ao:
        store.append("c", given)
        store.write("c", 0, given)
        assert store.read("c") == expected + (b"x" + expected)[len(expected) :]


WRONG = ["text", 5, None, [1], np.int64(5), np.array(5), np.array([None, "a"], object), 1.5]


@pytest.mark.few
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_content_is_refused_in_one_line(wrong: Any, store: Any) -> None:
    for call in (lambda: store.put("a", wrong), lambda: store.put_many([("a", wrong)])):
        with pytest.raises(TypeError, match=r"^content is bytes, not ") as raised:
            call()
        assert "\n" not in str(raised.value)
    assert list(store) == []


def test_a_batch_counts_the_bytes_of_arrays(tmp_path: Path) -> None:
    """An array of one row has a length of 1."""
    held: list[int] = []
    with winkfs.create(tmp_path / "c") as c:

        def files() -> Iterator[tuple[str, Any]]:
            for i in range(600):
                held.append(i - len(c))
                yield f"{i}", np.full((1, 20_000), i % 251, np.uint8)

        c.put_many(files())
        assert c.read("599") == bytes([599 % 251]) * 20_000
    assert max(held) < 300  # 2 MiB, and what is taken at a time


def test_a_payload_may_be_a_buffer(tmp_path: Path) -> None:
    body = array.array("i", [1, 2])
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push(body)  # type: ignore[arg-type]
        message = queue.pop()
        assert message is not None and message.payload == body.tobytes()
