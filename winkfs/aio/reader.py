"""AsyncReader: reads of a store, to be awaited."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar

from winkfs.aio.threads import Threads, undo
from winkfs.entry import Entry, Stat
from winkfs.names import Name
from winkfs.reader import Reader
from winkfs.registry import open as open_store
from winkfs.units import as_int

if TYPE_CHECKING:
    from winkfs.registry import AsOf

P = ParamSpec("P")
T = TypeVar("T")
THREADS: Final = 4  # of a reader, at most
MOST_THREADS: Final = 64
AT_ONCE: Final = 256  # items that an iterator takes at a time
AT_ONCE_BYTES: Final = 4 << 20  # of their contents, unless one file has more


class AsyncReader:
    """A store to read with asyncio. Its calls run in threads of its own, at most `threads` at once.

    A call that is cancelled returns at once; if it has begun, its thread ends it, and `close` waits
    for that. Iterators read some items at a time, when they are asked for the next one: nothing
    runs ahead of a slow consumer, and one that is left alone has nothing to stop.

    It may be used in several event loops, also of several threads, in a forked child, and pickled.

    reader  the store, which the end of a `with` block closes
    """

    def __init__(self, reader: Reader, *, threads: int = THREADS) -> None:
        self.reader = reader
        self._most = as_int(threads, "threads", 1, MOST_THREADS)
        self._threads = Threads(f"the asynchronous reader of {reader.base}", self._most)

    def __repr__(self) -> str:
        return f"<async {self.reader!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.reader, self._most)

    # --- one file ---

    async def read(self, name: Name, offset: int = 0, size: int = -1) -> bytes:
        """Return the content, or a part of it: see `Reader.read`."""
        return await self._threads.run(self.reader.read, name, offset, size)

    async def read_into(self, name: Name, offset: int, into: memoryview) -> int:
        """Fill a buffer -> bytes: see `Reader.read_into`. If it is cancelled, it first waits for
        the thread that fills the buffer."""
        return await self._threads.finish(self.reader.read_into, name, offset, into)

    async def get(self, name: Name, default: Any = None) -> Any:
        """Return the content; `default` if there is no such file."""
        return await self._threads.run(self.reader.get, name, default)

    async def stat(self, name: Name) -> Stat:
        """Return the metadata of a file. Raises FileNotFoundError."""
        return await self._threads.run(self.reader.stat, name)

    async def exists(self, path: Name) -> bool:
        """Return whether there is a file or a directory: see `Reader.exists`."""
        return await self._threads.run(self.reader.exists, path)

    async def getcolumns(self, name: Name) -> dict[str, Any]:
        """Return the values of a file's columns. Raises FileNotFoundError."""
        return await self._threads.run(self.reader.getcolumns, name)

    async def getxattrs(self, name: Name) -> dict[bytes, bytes]:
        """Return the extended attributes of a file. Raises FileNotFoundError."""
        return await self._threads.run(self.reader.getxattrs, name)

    async def readlink(self, name: Name) -> str:
        """Return the target of a symbolic link: see `Reader.readlink`."""
        return await self._threads.run(self.reader.readlink, name)

    async def listdir(self, path: Name = "") -> list[str]:
        """Return the names directly below a directory: see `Reader.listdir`."""
        return await self._threads.run(self.reader.listdir, path)

    async def count(self) -> int:
        """Return the number of files."""
        return await self._threads.run(self.reader.__len__)

    async def run(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> T:
        """Make any call in a thread of this reader: `await c.run(entry.read)`."""
        return await self._threads.run(call, *given, **named)

    # --- many files ---

    async def get_many(self, names: Iterable[Name] | AsyncIterable[Name]) -> AsyncIterator[bytes]:
        """Yield the contents of many files, in the order of the names, which may come from an
        asynchronous iterator.

        raises  as `Reader.get_many`
        memory  4 MiB of contents, or the largest file
        """
        async for batch in _batches(names):
            while batch:
                found, error = await self._threads.run(_contents, self.reader, batch)
                for content in found:
                    yield content
                if error is not None:
                    raise error
                batch = batch[len(found) :]

    def names(self, glob: str | None = None, **options: Any) -> AsyncIterator[str]:
        """Yield the names: see `names` of the store, also for its options."""
        return self._steps(lambda: self.reader.names(glob, **options))

    def scan(self, *given: Any, **options: Any) -> AsyncIterator[Entry]:
        """Yield the files: see `scan` of the store. `await c.run(entry.read)` reads one."""
        return self._steps(lambda: self.reader.scan(*given, **options))

    def items(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (name, content) of each file: see `Reader.items`."""
        return self._steps(lambda: iter(self.reader.items()), lambda item: len(item[1]))

    def __aiter__(self) -> AsyncIterator[str]:
        return self.names()

    async def _steps(
        self, make: Callable[[], Iterator[T]], size_of: Callable[[T], int] | None = None
    ) -> AsyncIterator[T]:
        """Yield the items of an iterator that is made, and advanced, in threads."""
        steps = _Steps(make, size_of)
        try:
            while some := await self._threads.run(steps.take):
                for item in some:
                    yield item
        finally:
            steps.stop()

    # --- the end ---

    async def close(self) -> None:
        """Wait for the calls that run, and close the store. If this is cancelled, that goes on.
        Idempotent."""
        await self._threads.close(self.reader.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _made(reader: Reader, threads: int) -> AsyncReader:
    return AsyncReader(reader, threads=threads)


class _Steps(Generic[T]):
    """An iterator that threads advance, one at a time, some items a step."""

    def __init__(self, make: Callable[[], Iterator[T]], size_of: Callable[[T], int] | None) -> None:
        self._make, self._size_of = make, size_of
        self._source: Iterator[T] | None = None
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._stopped = False

    def take(self) -> list[T]:
        """Return the next items, none at the end. An error comes after the items before it."""
        with self._lock:
            if self._error is not None:
                raise self._error
            found: list[T] = []
            try:
                self._fill(found)
            except Exception as error:
                if not found:
                    raise
                self._error = error
            if self._stopped:
                self._close()
            return found

    def _fill(self, found: list[T]) -> None:
        if self._source is None:
            self._source = self._make()
        room = AT_ONCE_BYTES
        for item in self._source:
            found.append(item)
            room -= 0 if self._size_of is None else self._size_of(item)
            if len(found) == AT_ONCE or room <= 0 or self._stopped:
                return

    def stop(self) -> None:
        """End it, without waiting for a thread in `take`, which then ends it."""
        self._stopped = True
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


async def _batches(names: Iterable[Name] | AsyncIterable[Name]) -> AsyncIterator[list[Name]]:
    if isinstance(names, AsyncIterable):
        batch: list[Name] = []
        async for name in names:
            batch.append(name)
            if len(batch) == AT_ONCE:
                yield batch
                batch = []
        if batch:
            yield batch
        return
    source = iter(names)
    while batch := list(islice(source, AT_ONCE)):
        yield batch


def _contents(reader: Reader, names: list[Name]) -> tuple[list[bytes], Exception | None]:
    """Return the contents of the first of these files, and the error after them; at least one of
    both."""
    chosen: list[Name] = []
    room = AT_ONCE_BYTES
    for name in names:
        try:
            room -= reader.stat(name).size
        except (OSError, ValueError):  # reading it raises, after those before it
            room = 0
        if chosen and room < 0:
            break
        chosen.append(name)
        if room <= 0:
            break
    found: list[bytes] = []
    try:
        found.extend(reader.get_many(chosen))
    except Exception as error:
        return found, error
    return found, None


class Opening:
    """A store that is being opened: to be awaited, or the start of an `async with` block."""

    def __init__(self, base: str | os.PathLike[str], as_of: AsOf | None, threads: int) -> None:
        self._base, self._as_of = base, as_of
        self._threads = as_int(threads, "threads", 1, MOST_THREADS)
        self._opened: AsyncReader | None = None

    def __await__(self) -> Generator[Any, None, AsyncReader]:
        return self._open().__await__()

    async def _open(self) -> AsyncReader:
        threads = Threads("the thread that opens a store", 1)
        opening = threads.submit(open_store, self._base, as_of=self._as_of)
        try:
            reader = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            undo(opening, lambda reader: reader.close())
            raise
        finally:
            threads.release()
        return AsyncReader(reader, threads=self._threads)

    async def __aenter__(self) -> AsyncReader:
        self._opened = await self
        return self._opened

    async def __aexit__(self, *exc: object) -> None:
        if self._opened is not None:
            await self._opened.close()


def open(
    base: str | os.PathLike[str], *, as_of: AsOf | None = None, threads: int = THREADS
) -> Opening:
    """Open a container, a data set or another store for reading: `async with winkfs.aio.open(base)
    as c`, or `c = await winkfs.aio.open(base)`.

    as_of    of a data set: see `winkfs.open`
    threads  that read at once, at most, 1 to 64
    raises   as `winkfs.open`. If it is cancelled, nothing stays open
    """
    return Opening(base, as_of, threads)
