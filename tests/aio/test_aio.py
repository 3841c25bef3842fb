"""winkfs.aio: reads that are awaited; what a cancelled one leaves."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import data_sets
import pytest

import winkfs
import winkfs.aio
from winkfs.aio import AsyncReader
from winkfs.aio import reader as aio_reader
from winkfs.entry import Entry, FileType, Stat
from winkfs.reader import Reader
from winkfs.stores.ledgerq import Queue

FILES = {f"{i:03}": b"%d" % i * (i % 7) for i in range(600)}


@pytest.fixture(params=["container", "data set"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "data set":
        data_sets.put(tmp_path / "c", FILES)
    else:
        with winkfs.create(tmp_path / "c") as made:
            made.update(FILES)
    return tmp_path / "c"


class Gated(Reader):
    """A store whose reads wait until they may go on. `closed` while a read runs is a fault."""

    def __init__(self) -> None:
        super().__init__("gated")
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)
        self.reads: list[str] = []
        self.running, self.most, self.closed, self.used_after_close = 0, 0, False, False
        self._lock = threading.Lock()

    def scan(self, *given: Any, **named: Any) -> Iterator[Entry]:
        for i in range(10_000):
            self.reads.append(f"scan {i}")
            yield Entry(f"{i}", i, 1, 0, FileType.FILE, 0o644, 0, 0, 0, lambda: b"x")

    def stat(self, name: Any) -> Stat:
        return Stat(str(name), 0, 1, 0, FileType.FILE, 0o644, 0, 0, 0)

    def read(self, name: Any, offset: int = 0, size: int = -1) -> bytes:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.reads.append(str(name))
        self.begun.release()
        self.gate.wait(20)
        self.used_after_close |= self.closed
        with self._lock:
            self.running -= 1
        if name == "wrong":
            raise winkfs.NoSuchFile("no such file", "wrong")
        return b"content"

    def close(self) -> None:
        self.closed = True


def begun(store: Gated) -> None:
    assert store.begun.acquire(timeout=20)


# --- what is read ---


def test_calls_return_what_the_reader_returns(base: Path) -> None:
    async def main() -> None:
        async with winkfs.aio.open(base) as c:
            assert await c.read("003") == FILES["003"]
            assert await c.read("003", 1, 1) == FILES["003"][1:2]
            into = bytearray(2)
            assert await c.read_into("003", 1, memoryview(into)) == 2
            assert into == FILES["003"][1:3]
            assert (await c.stat("003")).size == 3
            assert await c.exists("003") and not await c.exists("x")
            assert await c.get("x", 5) == 5 and await c.count() == len(FILES)
            assert await c.listdir() == sorted(FILES)
            assert [name async for name in c.names()] == [name async for name in c] == list(FILES)
            assert [name async for name in c.names("00*")] == list(FILES)[:10]
            assert {e.name: await c.run(e.read) async for e in c.scan(prefix="01")} == {
                name: data for name, data in FILES.items() if name.startswith("01")
            }
            assert {name: data async for name, data in c.items()} == FILES
            assert [data async for data in c.get_many(FILES)] == list(FILES.values())

    asyncio.run(main())


def test_names_may_come_from_an_async_iterator(base: Path) -> None:
    async def names() -> AsyncIterator[str]:
        for name in FILES:
            await asyncio.sleep(0)
            yield name

    async def main() -> None:
        c = await winkfs.aio.open(base)
        assert [data async for data in c.get_many(names())] == list(FILES.values())
        await c.close()

    asyncio.run(main())


def test_records_are_read_too(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push_many([b"one", b"two"])

    async def main() -> None:
        async with winkfs.aio.open(tmp_path / "q") as c:
            assert [data async for data in c.get_many(["2", "1"])] == [b"two", b"one"]

    asyncio.run(main())


def test_errors_are_those_of_the_reader(base: Path) -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await winkfs.aio.open(f"{base}-none")
        for wrong in (0, 65):
            with pytest.raises(ValueError, match="threads must be 1 to 64"):
                winkfs.aio.open(base, threads=wrong)
        async with winkfs.aio.open(base) as c:
            for call in (c.read, c.stat, c.getcolumns, c.readlink):
                with pytest.raises(FileNotFoundError, match="missing"):
                    await call("missing")
            with pytest.raises(TypeError):
                await c.read(5)  # type: ignore[arg-type]
            found = []
            with pytest.raises(FileNotFoundError, match="missing"):
                async for data in c.get_many(["001", "002", "missing", "003"]):
                    found.append(data)
            assert found == [FILES["001"], FILES["002"]]
            with pytest.raises(ValueError, match="no column"):
                _ = [name async for name in c.names(where="colour = 1")]
        for call in (c.read, c.stat):
            with pytest.raises(winkfs.Closed):
                await call("001")
        with pytest.raises(winkfs.Closed):
            _ = [name async for name in c.names()]
        await c.close()

    asyncio.run(main())


def test_damage_comes_after_what_is_before_it(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.update({"a": b"1" * 99, "b": b"content" * 99, "c": b"3"})
    path = tmp_path / "c.data"
    path.write_bytes(path.read_bytes().replace(b"contentcontent", b"contentconTent", 1))

    async def main() -> None:
        found = []
        async with winkfs.aio.open(tmp_path / "c") as c:
            with pytest.raises(winkfs.CorruptError):
                async for data in c.get_many(["a", "b", "c"]):
                    found.append(data)
            assert await c.read("c") == b"3"

    asyncio.run(main())


def test_context_variables_reach_the_thread() -> None:
    who = contextvars.ContextVar("who", default="nothing")

    async def main() -> None:
        store = Gated()
        async with AsyncReader(store) as c:
            who.set("the caller")
            assert await c.run(who.get) == "the caller"

    asyncio.run(main())


# --- memory ---


def test_an_iterator_holds_few_contents(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_reader, "AT_ONCE_BYTES", 10)
    held: list[int] = []

    def counted(self: Any, names: list[str]) -> Iterator[bytes]:
        found = [self.read(name) for name in names]
        held.append(sum(map(len, found)))
        return iter(found)

    async def main() -> None:
        async with winkfs.aio.open(base) as c:
            monkeypatch.setattr(type(c.reader), "get_many", counted)
            assert [data async for data in c.get_many(FILES)] == list(FILES.values())

    asyncio.run(main())
    assert max(held) <= 18 and len(held) > 300  # one file has up to 18 bytes


def test_nothing_runs_ahead_of_a_slow_consumer() -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store) as c:
            async for _ in c.scan():
                await asyncio.sleep(0.01)
                break
            assert len(store.reads) <= aio_reader.AT_ONCE + 1
        assert len(store.reads) <= aio_reader.AT_ONCE + 1

    asyncio.run(main())


def test_threads_are_bounded() -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store, threads=2) as c, asyncio.TaskGroup() as group:
            tasks = [group.create_task(c.read(f"{i}")) for i in range(20)]
            await asyncio.to_thread(begun, store)
            await asyncio.to_thread(begun, store)
            store.gate.set()
        assert [task.result() for task in tasks] == [b"content"] * 20
        assert store.most == 2

    asyncio.run(main())


# --- cancellation ---


def test_close_waits_for_a_cancelled_read() -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store) as c:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await c.read("a")
            begun(store)
            closing = asyncio.create_task(c.close())
            await asyncio.sleep(0.02)
            assert not closing.done() and not store.closed
            store.gate.set()
            await closing
            assert store.closed and not store.used_after_close

    asyncio.run(main())


def test_a_cancelled_read_that_has_not_begun_is_not_made() -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store, threads=1) as c:
            first = asyncio.create_task(c.read("first"))
            await asyncio.to_thread(begun, store)
            second = asyncio.create_task(c.read("second"))
            await asyncio.sleep(0.01)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            store.gate.set()
            assert await first == b"content"
        assert store.reads == ["first"]

    asyncio.run(main())


def test_a_cancelled_close_goes_on() -> None:
    async def main() -> None:
        store = Gated()
        c = AsyncReader(store)
        reading = asyncio.create_task(c.read("a"))
        await asyncio.to_thread(begun, store)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await c.close()
        with pytest.raises(winkfs.Closed):
            await c.read("b")
        store.gate.set()
        assert await reading == b"content"
        await c.close()
        assert store.closed and not store.used_after_close

    asyncio.run(main())


def test_an_error_of_close_is_raised_each_time() -> None:
    class Failing(Gated):
        def close(self) -> None:
            raise OSError("the disk is gone")

    async def main() -> None:
        c = AsyncReader(Failing())
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                await c.close()

    asyncio.run(main())


def test_a_failed_task_of_a_group_ends_the_others() -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store) as c:
            with pytest.raises(ExceptionGroup) as raised:
                async with asyncio.TaskGroup() as group:
                    group.create_task(c.read("a"))
                    group.create_task(c.read("wrong"))
                    for _ in range(2):
                        await asyncio.to_thread(begun, store)
                    store.gate.set()
            assert (
                raised.group_contains(FileNotFoundError)
                if hasattr(raised, "group_contains")
                else isinstance(raised.value.exceptions[0], FileNotFoundError)
            )
        assert store.closed and not store.used_after_close

    asyncio.run(main())


def test_a_buffer_is_not_filled_after_the_call_returns() -> None:
    async def main() -> None:
        store, into = Gated(), bytearray(7)
        async with AsyncReader(store) as c:
            filling = asyncio.create_task(c.read_into("a", 0, memoryview(into)))
            await asyncio.to_thread(begun, store)
            filling.cancel()
            await asyncio.sleep(0.02)
            assert not filling.done()
            filling.cancel()
            store.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await filling
            assert store.running == 0

    asyncio.run(main())


def test_a_cancelled_iterator_reads_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = Gated()
        async with AsyncReader(store, threads=1) as c:

            async def consume() -> None:
                async for _ in c.get_many(f"{i}" for i in range(1000)):
                    pass

            task = asyncio.create_task(consume())
            await asyncio.to_thread(begun, store)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.gate.set()
        assert len(store.reads) <= aio_reader.AT_ONCE

        store = Gated()
        async with AsyncReader(store, threads=1) as c:
            names = c.names()
            assert await anext(names) == "0"
            await names.aclose()  # type: ignore[attr-defined]
            assert len(store.reads) == aio_reader.AT_ONCE

    asyncio.run(main())
    assert caplog.records == []


def test_a_cancelled_open_leaves_nothing_open(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, opened = threading.Event(), []

    def slow(*given: Any, **named: Any) -> Reader:
        gate.wait(20)
        opened.append(winkfs.open(*given, **named))
        return opened[-1]

    monkeypatch.setattr(aio_reader, "open_store", slow)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), winkfs.aio.open(base):
                raise AssertionError
        gate.set()
        for _ in range(500):
            if opened and is_closed(opened[0]):
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    def is_closed(reader: Reader) -> bool:
        try:
            reader.read("001")
        except winkfs.Closed:
            return True
        return False

    asyncio.run(main())


# --- loops, processes ---


def test_two_loops_share_a_reader(base: Path) -> None:
    c = asyncio.run(_opened(base))

    async def some() -> list[bytes]:
        return [data async for data in c.get_many(FILES)]

    assert asyncio.run(some()) == list(FILES.values())
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(some()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(FILES.values())] * 3
    asyncio.run(c.close())


async def _opened(base: Path) -> AsyncReader:
    return await winkfs.aio.open(base)


def test_it_is_used_in_a_forked_child_and_pickled(base: Path) -> None:
    c = asyncio.run(_opened(base))
    assert asyncio.run(c.read("003")) == FILES["003"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if asyncio.run(asyncio.wait_for(c.read("004"), 20)) == FILES["004"] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    again = pickle.loads(pickle.dumps(c))
    assert asyncio.run(again.read("005")) == FILES["005"]
    assert "<async <winkfs" in repr(again)
    asyncio.run(again.close())
    asyncio.run(c.close())


@pytest.mark.few(1)
def test_many_random_cancellations_leave_no_thread_in_a_call(base: Path) -> None:
    async def main() -> None:
        async with winkfs.aio.open(base) as c:

            async def one(i: int) -> None:
                async with asyncio.timeout(0.0005 * (i % 7)):
                    async for data in c.get_many(list(FILES)[i : i + 50]):
                        assert data is not None
                    assert await c.read("003") == FILES["003"]
                    assert len([name async for name in c.names()]) == len(FILES)

            done = await asyncio.gather(*(one(i) for i in range(60)), return_exceptions=True)
            assert {type(each) for each in done} <= {type(None), TimeoutError}
            assert await c.read("003") == FILES["003"]

    before = threading.active_count()
    asyncio.run(main())
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("winkfs-aio"):
            thread.join(20)
    assert threading.active_count() <= before
