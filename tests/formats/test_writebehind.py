"""Write behind: order, errors of the thread, and going on after them."""

import random
import threading
import time

import pytest

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.pagecache import PAGE
from winkformats.disk.writebehind import ALIGNED_FROM, DEPTH, WriteBehind


class Slow(MemoryStorage):
    """Notes each write; waits for `gate`; raises what `errors` has for its offset."""

    def __init__(self) -> None:
        super().__init__(name="f")
        self.gate = threading.Event()
        self.gate.set()
        self.offsets: list[int] = []
        self.errors: dict[int, BaseException] = {}

    def write(self, offset, buffers):
        assert self.gate.wait(10)
        self.offsets.append(offset)
        if offset in self.errors:
            raise self.errors[offset]
        return super().write(offset, buffers)


@pytest.fixture
def storage():
    return Slow()


@pytest.fixture
def behind(storage):
    before = threads()
    writer = WriteBehind(storage)
    yield writer
    storage.gate.set()
    writer.close()
    assert threads() == before


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def put_until_refused(behind: WriteBehind, first: int) -> None:
    """Put chunks of ten bytes until the thread's error comes back."""
    for at in range(first, first + 1000, 10):
        behind.put(at, [b"later....."])
        time.sleep(0.001)
    raise AssertionError("no error came back")


def test_chunks_are_written_in_the_order_given(behind, storage):
    for i in range(50):
        behind.put(10 * i, [b"%010d" % i])
    behind.drain()
    assert storage.offsets == list(range(0, 500, 10))
    assert storage.data == b"".join(b"%010d" % i for i in range(50))


@pytest.mark.parametrize("end", [WriteBehind.drain, WriteBehind.close])
def test_drain_and_close_wait_for_the_last_write(behind, storage, end):
    storage.gate.clear()
    behind.put(0, [b"abc"])
    threading.Timer(0.05, storage.gate.set).start()
    end(behind)
    assert storage.data == b"abc"


def test_drain_of_nothing_returns(behind):
    behind.drain()
    behind.drain()


def test_put_waits_while_too_much_is_in_flight(behind, storage):
    storage.gate.clear()
    done, taken = threading.Event(), []

    def producer():
        for i in range(DEPTH + 2):
            behind.put(i, [b"x"])
            taken.append(i)
        done.set()

    thread = threading.Thread(target=producer)
    thread.start()
    assert not done.wait(0.1)
    assert len(taken) <= DEPTH + 1
    storage.gate.set()
    assert done.wait(10)
    thread.join()
    behind.drain()
    assert len(storage.offsets) == DEPTH + 2


@pytest.mark.parametrize("error", [OSError(28, "no room"), ValueError("closed"), MemoryError()])
def test_an_error_reaches_the_caller_and_again_until_forgotten(behind, storage, error):
    storage.errors[20] = error
    behind.put(10, [b"good......"])
    behind.put(20, [b"bad......."])
    for call in (behind.drain, lambda: behind.put(30, [b"x"]), behind.drain):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error
    assert behind.failed == 20
    behind.forget()
    assert behind.failed is None
    behind.drain()


def test_an_error_reaches_a_later_put_without_any_drain(behind, storage):
    storage.errors[0] = OSError(28, "no room")
    behind.put(0, [b"bad......."])
    with pytest.raises(OSError, match="no room"):
        put_until_refused(behind, 10)


def test_after_an_error_nothing_further_is_written(behind, storage):
    storage.errors[10] = OSError(5, "disk")
    storage.gate.clear()
    behind.put(0, [b"good......"])
    behind.put(10, [b"bad......."])
    threading.Timer(0.05, storage.gate.set).start()
    behind.put(20, [b"later....."])  # queued before the thread has met the error
    with pytest.raises(OSError, match="disk"):
        behind.drain()
    assert storage.offsets == [0, 10]
    assert behind.failed == 10
    assert storage.data == b"good......"


def test_after_forget_writing_goes_on(behind, storage):
    storage.errors[0] = OSError(28, "no room")
    behind.put(0, [b"bad......."])
    with pytest.raises(OSError):
        behind.drain()
    behind.forget()
    del storage.errors[0]
    behind.put(0, [b"good......"])
    behind.drain()
    assert storage.data == b"good......"


def test_forget_waits_for_what_is_under_way(behind, storage):
    storage.errors[0] = OSError(28, "no room")
    storage.gate.clear()
    behind.put(0, [b"bad......."])
    threading.Timer(0.05, storage.gate.set).start()
    behind.forget()
    assert storage.offsets == [0]
    assert behind.failed is None
    behind.drain()


def test_the_thread_does_not_keep_a_dying_process_alive(storage):
    before = threads()
    behind = WriteBehind(storage)
    behind.put(0, [b"abc"])
    (thread,) = threads() - before
    assert thread.daemon
    behind.close()


@pytest.mark.parametrize("end", ["drain", "close", "small", "large"])
def test_what_fills_no_page_is_written_with_what_follows(storage, end):
    behind, first = WriteBehind(storage), random.randbytes(ALIGNED_FROM + 5000)
    behind.put(0, [first[:100], first[100:]])
    more = {"small": b"small", "large": random.randbytes(2 * ALIGNED_FROM)}.get(end, b"")
    if more:
        behind.put(len(first), [more])
    if end == "drain":
        behind.drain()
        assert storage.data == first
    behind.close()
    assert storage.data == first + more
    cut = len(first) // PAGE * PAGE
    assert storage.offsets[:2] == [0, cut]
    assert all(at % PAGE == 0 for at in storage.offsets)
    assert len(storage.offsets) == (3 if end == "large" else 2)


def test_a_chunk_with_an_unwritten_end_has_failed(storage):
    """The bytes of its last entry may be in two writes."""
    behind, first = WriteBehind(storage), bytes(ALIGNED_FROM + 10)
    behind.put(0, [b"small"])
    behind.put(5, [first])
    behind.drain()
    behind.put(5 + len(first), [first])
    cut = (5 + 2 * len(first)) // PAGE * PAGE
    storage.errors[cut] = OSError(28, "no room")
    with pytest.raises(OSError, match="no room"):
        behind.drain()
    assert behind.failed == 5 + len(first)
    behind.forget()
    behind.close()
