"""Object storage: files of a store that answers requests for ranges of objects.

    Transport        what a store can do; the implementations are in `winkfs.remote`
    ObjectStorage    an object as a file. What is announced by `fetch` is asked for at once, in as
                     few requests as pay, and stays in memory for the reads that follow
    ObjectDirectory  the objects with a prefix

Each request costs a round trip, as much time as megabytes: so nothing asks twice. The ETag of the
first answer goes into each further request, so all bytes of a handle are those of one object.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import tempfile
import threading
import time
import weakref
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from winkformats.disk.pagecache import BulkReader
from winkformats.disk.posix import PosixDirectory
from winkformats.disk.storage import Buffer, Directory, FileType, Info, Lock, Storage

HEAD_BYTES: Final = 16 << 10  # of the first request for an object
STRAY_BYTES: Final = 8 << 10  # of a request for a few bytes that were not announced, at least
GAP_BYTES: Final = 4 << 10  # between two ranges that are always requested as one
WASTED: Final = 8  # a larger gap is requested with them up to this part of what is wanted
REQUEST_BYTES: Final = 8 << 20  # of a request, at most
AHEAD_BYTES: Final = 4 << 20  # of a request of a pass
AHEAD: Final = 6  # requests of a pass before the one that is waited for
HELD_BYTES: Final = 64 << 20  # of an object in memory
IN_FLIGHT: Final = 64  # requests of a process at a time
SPARE: Final = 0.5  # seconds that a transport has to notice by itself that it is late
RECENT: Final = 256  # objects whose first answer is kept for that
FRESH: Final = 5.0  # seconds for which the first answer of an object serves the next `open`
T = TypeVar("T")
Range = tuple[int, int]
"""Start and stop, bytes."""


class ObjectInfo(NamedTuple):
    """Metadata of an object, as an answer has it.

    size   bytes
    etag   "": there is none
    mtime  seconds since the epoch, 0: unknown
    """

    size: int
    etag: str = ""
    mtime: float = 0.0


class Cache(Protocol):
    """A cache of blocks by their XXH3-64, and of pieces of objects; it returns none that are wrong.

    identity  of an object: equal only for the same bytes, see `Held.identity`
    """

    def get(self, hashed: int, size: int) -> bytes | None: ...

    def put(self, hashed: int, data: bytes) -> None: ...

    def pieces(self, identity: bytes, start: int, stop: int) -> Iterable[tuple[int, bytes]]:
        """Yield offset and bytes of the pieces of an object that have bytes of [start, stop)."""

    def keep(self, identity: bytes, start: int, data: bytes) -> None:
        """Keep a piece of an object."""


_inherited: weakref.WeakSet[Any] = weakref.WeakSet()  # whose `after_fork` a child calls


class Transport:
    """Requests to one store. Several threads may call it; all methods raise OSError.

    url       of its root, without a slash at the end; keys are relative to it
    suffixes  whether `get` can ask for the last bytes of an object of unknown size
    writes    whether objects can be written
    recent    objects whose first answer can be used by the next `open`, see `FRESH`
    cache     of what was read of its objects; None: there is none
    """

    suffixes: bool = True
    writes: bool = False
    cache: Cache | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        self.recent: OrderedDict[str, tuple[float, ObjectStorage]] = OrderedDict()
        _inherited.add(self)

    def after_fork(self) -> None:
        """Leave connections and locks to the parent process."""

    @property
    def endpoint(self) -> str:
        """Return the address of the store, which is not in each URL."""
        return self.url

    @abstractmethod
    def get(
        self, key: str, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        """Return where the bytes begin, the bytes from `start` on, fewer only at the end of the
        object, and what is known of it.

        start   negative: the last `length` bytes
        like    the object must still be this one
        raises  FileNotFoundError; PermissionError; OSError ESTALE: it was replaced
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        """Yield the keys that begin with a prefix, up to the next slash, and what is known of the
        objects; None for several objects below a slash, which is the end of the key then."""

    # --- writing, where the store can be written to ---

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object; None: there is none."""
        raise _read_only(f"{self.url}/{key}")

    def put(
        self, key: str, data: bytes, *, absent: bool = False, like: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Write an object, with one request if there is a condition: it is not made again.

        absent  only if there is none
        like    only if it is still this one
        raises  FileExistsError; OSError ESTALE; PermissionError. After any other OSError, and also
                after FileExistsError, the object may be that of this call: its answer can be lost
        """
        raise _read_only(f"{self.url}/{key}")

    def put_from(
        self,
        key: str,
        size: int,
        read: Callable[[int, int], bytes],
        progress: Callable[[int], None] = lambda done: None,
        *,
        absent: bool = False,
        like: ObjectInfo | None = None,
    ) -> tuple[ObjectInfo, int]:
        """Write an object of any size, in parts if it is large: see `parts.put_parts`.

        read      start and length -> bytes; several threads call it
        progress  called with the number of bytes done since the last call
        ->        what is known of the object, and the number of bytes that were sent
        raises    as `put`
        """
        raise _read_only(f"{self.url}/{key}")

    def put_file(
        self, key: str, path: str, progress: Callable[[int], None] | None = None
    ) -> ObjectInfo:
        """Write a file of this machine as an object, large ones in parts.

        progress  called with the number of bytes since the last call
        """
        with PosixDirectory(os.path.dirname(path) or ".").open(os.path.basename(path)) as file:
            done = progress or (lambda done: None)
            return self.put_from(key, file.size(), file.read, done)[0]

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""
        raise _read_only(f"{self.url}/{keys[0]}")

    def sign(self, key: str, seconds: int) -> str:
        """Return a URL from which anybody can read an object for some seconds. Raises OSError."""
        raise OSError(errno.EOPNOTSUPP, "no URLs are signed here", f"{self.url}/{key}")


class Limit(threading.local):
    """When what this thread waits for has to end, whatever the store does: for a server, whose
    callers would wait, too. Then failures of a store are EIO.

    until   time.monotonic(); 0.0: when the transport gives up
    pooled  the thread is one of the pool, in which another thread waits for it
    """

    until = 0.0
    pooled = False


limit: Final = Limit()


class Pool:
    """Threads that run calls; at most `IN_FLIGHT`. They end with the process, also during a call:
    a server that does not answer must not keep a program from its end. A call has the `limit` of
    the thread that submits it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], float, Callable[..., Any], Any]]
        self._calls = queue.SimpleQueue()
        self._lock, self._threads, self._open = threading.Lock(), 0, 0

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._open += 1  # not ended: each of them has a thread
            if self._threads < min(self._open, IN_FLIGHT):
                self._threads += 1
                threading.Thread(target=self._run, daemon=True, name="winkfs-request").start()
        self._calls.put((future, limit.until, call, given))
        return future

    def _run(self) -> None:
        limit.pooled = True
        while True:
            future, limit.until, call, given = self._calls.get()
            result, failed = None, None
            runs = future.set_running_or_notify_cancel()
            if runs:
                try:
                    result = call(*given)
                except BaseException as error:
                    failed = error
            with self._lock:
                self._open -= 1
            if failed is not None:
                future.set_exception(failed)
            elif runs:
                future.set_result(result)
            del future, call, given, result, failed  # while it waits, nothing is kept


_pool = Pool()
_callers = Pool()  # of calls that make requests and wait for them


def at_once(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of calls that make requests, which run in threads, in their order."""
    waiting = [_callers.submit(call) for call in calls]
    try:
        for future in waiting:
            yield future.result()
    finally:
        for future in waiting:
            future.cancel()


def submit(call: Callable[..., T], *given: Any) -> Future[T]:
    """Run a call in one of the threads for requests."""
    return _pool.submit(call, *given)


def waited(future: Future[T], name: str) -> T:
    """Return the result of a call, within the `limit` of this thread. Raises OSError."""
    if not limit.until or limit.pooled:
        return future.result()
    try:
        return future.result(max(limit.until - time.monotonic(), 0.0) + SPARE)
    except TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise OSError(errno.EIO, "the store does not answer", name) from None


def _after_fork() -> None:
    global _pool, _callers
    _pool, _callers = Pool(), Pool()  # the threads are the parent's
    for each in list(_inherited):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the requests for ranges: near ones are joined, long ones divided.

    They have at most 1 / WASTED more bytes than the ranges, and gaps of up to GAP_BYTES.
    """
    found = list[Range]()
    start = stop = wanted = 0
    for low, high in sorted(ranges):
        gap = max(low - stop, 0)
        spare = stop - start + gap - wanted if stop else 0
        near = stop and (gap <= GAP_BYTES or spare * WASTED <= wanted)
        if near and max(high, stop) - start <= REQUEST_BYTES:
            wanted += max(high - max(low, stop), 0)
            stop = max(stop, high)
            continue
        if stop:
            found.append((start, stop))
        while high - low > REQUEST_BYTES:
            found.append((low, low + REQUEST_BYTES))
            low += REQUEST_BYTES
        start, stop, wanted = low, high, high - low
    return [*found, (start, stop)] if stop else found


class Held:
    """Pieces of an object in memory, the last HELD_BYTES of them; none is within another one.

    known     what the first answer has reported of the object, which one thread asks for under
              `first`
    identity  of the object in a cache: of its URL, size and ETag, and of the bytes of the first
              answer, which differ if two stores have objects of that URL; b"": it has no ETag
    """

    identity = b""

    def __init__(self) -> None:
        self.known: ObjectInfo | None = None
        self._pieces: OrderedDict[int, bytes] = OrderedDict()
        self._starts: list[int] = []
        self._bytes = 0
        self.after_fork()
        _inherited.add(self)

    def after_fork(self) -> None:
        """Make new locks: a thread of the parent may hold the old ones."""
        self.first, self._lock = threading.Lock(), threading.Lock()

    def add(self, start: int, data: bytes) -> None:
        stop = start + len(data)
        with self._lock:
            at = bisect_right(self._starts, start)
            before = self._starts[at - 1] if at else -1
            if before >= 0 and before + len(self._pieces[before]) >= stop:
                return
            at -= before == start
            while at < len(self._starts):
                within = self._starts[at]
                if within + len(self._pieces[within]) > stop:
                    break
                self._drop(at)
            self._starts.insert(at, start)
            self._pieces[start] = data
            self._bytes += len(data)
            while self._bytes > HELD_BYTES and len(self._pieces) > 1:
                self._drop(bisect_right(self._starts, next(iter(self._pieces))) - 1)

    def _drop(self, at: int) -> None:
        self._bytes -= len(self._pieces.pop(self._starts.pop(at)))

    def find(self, offset: int) -> tuple[memoryview, int]:
        """Return the bytes that are there from an offset on; none: how many are not."""
        with self._lock:
            at = bisect_right(self._starts, offset)
            start = self._starts[at - 1] if at else 0
            piece = self._pieces.get(start, b"") if at else b""
            if offset < start + len(piece):
                self._pieces.move_to_end(start)
                return memoryview(piece)[offset - start :], 0
            after = self._starts[at] if at < len(self._starts) else 1 << 62
        return memoryview(b""), after - offset

    def missing(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the ranges within [start, stop) that are not there."""
        while start < stop:
            found, more = self.find(start)
            if not found:
                yield start, min(start + more, stop)
            start += len(found) or more


class ObjectStorage(Storage):
    """An object, to be read. It is asked for at the first access, which raises FileNotFoundError if
    there is none."""

    mapped = False
    far = True

    def __init__(
        self, transport: Transport, key: str, held: Held | None = None, first: int = HEAD_BYTES
    ) -> None:
        """first: bytes of the first request."""
        self._transport, self._key, self._first = transport, key, first
        self.name = f"{transport.url}/{key}"
        self._held = held or Held()

    @property
    def known(self) -> ObjectInfo:
        """Metadata of the object, from the first answer."""
        return self._held.known or self._begin()

    def begin(self, last: int = 0) -> Info:
        self._begin(last)
        return self.info()

    def _begin(self, last: int = 0) -> ObjectInfo:
        """Ask for the first bytes, or the last ones, unless that was done."""
        held = self._held
        with held.first:
            if held.known is None:
                start, length = (0, self._first)
                if last and self._transport.suffixes:
                    start, length = (-1, last)
                at, data, known = self._ask(start, length)
                if data:
                    held.add(at, data)
                if known.etag and not known.etag.startswith("W/"):
                    which = f"{self.name}\n{known.size}\n{known.etag}\n{at}\n".encode()
                    held.identity = hashlib.blake2b(which + data, digest_size=16).digest()
                held.known = known
            return held.known

    def _ask(
        self, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        """Return as `Transport.get`, within the `limit` of this thread."""
        get, given = self._transport.get, (self._key, start, length, like)
        if not limit.until:
            return get(*given)
        try:
            if time.monotonic() >= limit.until:
                raise OSError(errno.EIO, "not asked for: no time is left", self.name)
            return get(*given) if limit.pooled else waited(_pool.submit(get, *given), self.name)
        except OSError as error:
            if like is None and isinstance(error, FileNotFoundError):
                raise
            raise OSError(errno.EIO, error.strerror or str(error), self.name) from None

    def _get(self, start: int, stop: int) -> bytes:
        _, data, _ = self._ask(start, stop - start, self.known)
        if len(data) != stop - start:
            raise OSError(errno.EIO, "a shorter answer than was asked for", self.name)
        return data

    def _cache(self) -> Cache | None:
        """Return the cache, if pieces of this object can be in it."""
        return self._transport.cache if self.cached and self._held.identity else None

    def _bring(self, start: int, stop: int) -> bytes:
        """Ask for a range, and keep it in the cache."""
        data, cache = self._get(start, stop), self._cache()
        if cache is not None:
            cache.keep(self._held.identity, start, data)
        return data

    def _each(
        self, requests: Sequence[Range], get: Callable[[int, int], bytes]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the answers to requests, which are made at once."""
        if len(requests) == 1:
            yield requests[0][0], get(*requests[0])
            return
        waiting = [submit(get, start, stop) for start, stop in requests]
        try:
            for (start, _), future in zip(requests, waiting, strict=True):
                yield start, waited(future, self.name)
        finally:
            for future in waiting:
                future.cancel()

    def _missing(self, ranges: Iterable[Range]) -> list[Range]:
        """Return what is not in memory of some ranges."""
        size, held = self.known.size, self._held
        return [part for low, high in ranges for part in held.missing(max(low, 0), min(high, size))]

    def _wanted(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the requests for what is neither in memory nor in the cache of some ranges."""
        missing, cache = self._missing(ranges), self._cache()
        if missing and cache is not None:
            for low, high in missing:
                for part in self._missing([(low, high)]):  # a piece may have had several ranges
                    for start, data in cache.pieces(self._held.identity, *part):
                        self._held.add(start, data)
            missing = self._missing(missing)
        return joined(missing)

    def fetch(self, ranges: Iterable[Range], hashes: Iterable[int] = ()) -> None:
        cache = self._transport.cache
        if hashes and cache is not None:
            places = [
                (*part, hashed)
                for part, hashed in zip(ranges, hashes, strict=True)
                if self._missing([part])
            ]
            new = [place for place in places if not self._take(cache, *place)]
            requests = joined(self._missing((start, stop) for start, stop, _ in new))
            for start, data in self._each(requests, self._get):
                self._held.add(start, data)
            for start, stop, hashed in new:
                cache.put(hashed, self.read(start, stop - start))
            return
        for start, data in self._each(self._wanted(ranges), self._bring):
            self._held.add(start, data)

    def _take(self, cache: Cache, start: int, stop: int, hashed: int) -> bool:
        """Hold a range that the cache has -> whether it has it."""
        data = cache.get(hashed, stop - start)
        if data is not None:
            self._held.add(start, data)
        return data is not None

    def read_ahead(self, offset: int, length: int) -> None:
        """Ask for bytes that may be read soon; nothing waits for them, nor for their errors."""
        held = self._held

        def bring(start: int, stop: int) -> None:
            with contextlib.suppress(OSError):
                held.add(start, self._bring(start, stop))

        for part in self._wanted([(offset, offset + length)]):
            submit(bring, *part)

    def read_into(self, into: memoryview, offset: int) -> int:
        into = into[: max(self.known.size - offset, 0)]
        done, stop = 0, offset + len(into)
        while done < len(into):
            found, _ = self._held.find(offset + done)
            if not found:
                at = offset + done
                until = min(max(stop, at + STRAY_BYTES), self.known.size, at + HELD_BYTES // 2)
                self.fetch([(at, until)])
                found, _ = self._held.find(at)
                if not found:  # other threads have read more than is held
                    found = memoryview(self._get(at, min(until, at + REQUEST_BYTES)))
            part = found[: len(into) - done]
            into[done : done + len(part)] = part
            done += len(part)
        return done

    def read(self, offset: int, length: int) -> bytes:
        """Read as `Storage.read`; memory is taken as bytes come, whatever size is claimed."""
        step, stop = HELD_BYTES // 2, min(offset + length, self.known.size)
        if stop - offset <= step:
            return super().read(offset, max(stop - offset, 0))
        return b"".join(
            super(ObjectStorage, self).read(at, min(step, stop - at))
            for at in range(offset, stop, step)
        )

    def read_each(self, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        self.fetch([(at, at + n) for at, n in zip(offsets, lengths, strict=True)])
        return list(map(self.read, offsets, lengths))

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        return AheadReader(self._passed, start, min(stop, self.known.size), self.name)

    def _passed(self, start: int, stop: int) -> bytes:
        """Read a range for a pass, which takes what the cache has, and leaves it as it is."""
        cache, found = self._cache(), Held()
        if cache is not None:
            for at, data in cache.pieces(self._held.identity, start, stop):
                found.add(at, data)
        missing = joined(found.missing(start, stop))
        if len(missing) > 1 or missing == [(start, stop)]:
            return self._get(start, stop)
        for low, high in missing:
            found.add(low, self._get(low, high))
        parts = list[memoryview]()
        while start < stop:
            part, _ = found.find(start)
            parts.append(part[: stop - start])
            start += len(part)
        return b"".join(parts)

    def present(self, offset: int, length: int) -> bool:
        return not any(self._held.missing(offset, min(offset + length, self.known.size)))

    def info(self) -> Info:
        known = self.known
        identity = hash(self.name), hash((known.etag, known.size))
        owner = os.geteuid(), os.getegid()
        return Info(FileType.FILE, identity, known.size, known.mtime, 0o644, *owner)

    def duplicate(self) -> Self:
        made = type(self)(self._transport, self._key, self._held)
        made.cached = self.cached
        return made

    def close(self) -> None:
        """Forget what is in memory, unless a duplicate has it. Idempotent."""
        self._held = Held()

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        raise _read_only(self.name)

    def truncate(self, length: int) -> None:
        raise _read_only(self.name)

    def sync(self) -> None:
        """Return: nothing was written."""


class AheadReader(BulkReader):
    """A pass over an object, which asks for the next ranges before it needs them: the further it
    has come without a gap, the more of them."""

    def __init__(self, get: Callable[[int, int], bytes], start: int, stop: int, name: str) -> None:
        super().__init__(lambda into, offset: 0, None)
        self._name = name
        self._get, self._next, self._stop, self._limit = get, start, stop, stop
        self._ahead = self._least = 0  # requests before the one that is waited for
        self._waiting: OrderedDict[Range, Future[bytes]] = OrderedDict()

    def read(self, offset: int, length: int) -> memoryview:
        stop = min(offset + length, self._stop)
        if offset >= stop:
            return memoryview(b"")
        for part, future in list(self._waiting.items()):
            if part[1] <= offset:
                future.cancel()
                del self._waiting[part]
        if self._next < offset:  # nothing between was wanted
            self._next, self._ahead = offset, self._least
        until = min(stop + self._ahead * AHEAD_BYTES, self._stop)
        last = self._stop if self._ahead else until
        while self._next < until:
            part = self._next, self._end(last)
            self._waiting[part] = submit(self._get, *part)
            self._next = part[1]
        self._ahead = min(2 * self._ahead + 1, AHEAD)
        parts = [
            memoryview(waited(future, self._name))[max(offset - low, 0) : stop - low]
            for (low, _), future in self._waiting.items()
            if low < stop
        ]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _end(self, last: int) -> int:
        """Return where the next request ends; one for a small rest would cost more than it."""
        end = self._next + AHEAD_BYTES
        return last if last - end < AHEAD_BYTES // WASTED else end

    def expect(self, start: int, stop: int) -> bool:
        new = self._next == start and not self._waiting
        held = any(low <= start < high for low, high in self._waiting)
        if not (new or held or 0 <= start - self._next <= AHEAD_BYTES // WASTED):
            return False
        if not new:  # what has gone on so far goes on, in whole requests
            stop = self._next + -(-(stop - self._next) // AHEAD_BYTES) * AHEAD_BYTES
        self._stop = min(max(stop, self._next), self._limit)
        self._least = self._ahead = AHEAD
        return True

    def close(self) -> None:
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()


class ObjectDirectory(Directory):
    """The objects whose keys begin with a prefix and a slash.

    first  bytes of the first request for an object
    """

    first: int = HEAD_BYTES

    def __init__(self, transport: Transport, prefix: str) -> None:
        self.transport, self._prefix = transport, prefix.strip("/")
        self.path = f"{transport.url}/{self._prefix}" if self._prefix else transport.url

    @property
    def place(self) -> tuple[Transport, str]:
        """Return the transport, and the prefix without a slash at its end."""
        return self.transport, self._prefix

    def key(self, name: str) -> str:
        """Return the key of an object."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> ObjectStorage:
        if mode != "r":
            raise _read_only(f"{self.path}/{name}")
        key = self.key(name)
        made, found = self.transport.recent.pop(key, (0.0, None))
        if found is not None and time.monotonic() - made < FRESH:
            return found
        return ObjectStorage(self.transport, key, first=self.first)

    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        """Return as `Directory.info`; a name is that of an object, not of a directory.

        cost    one request; that of a name brings the first bytes, for the next `open`
        """
        if not name:
            for _ in self.transport.list(f"{self._prefix}/" if self._prefix else ""):
                owner = os.geteuid(), os.getegid()
                return Info(FileType.DIRECTORY, (hash(self.path), 0), 0, 0.0, 0o755, *owner)
            return None
        storage = self.open(name)
        try:
            found = storage.info()
        except FileNotFoundError:
            return None
        self._remember(name, storage)
        return found

    def _remember(self, name: str, storage: ObjectStorage) -> None:
        """Have the next `open` return this one."""
        recent = self.transport.recent
        recent[self.key(name)] = time.monotonic(), storage
        with contextlib.suppress(KeyError):  # another thread was faster
            while len(recent) > RECENT:
                recent.popitem(last=False)

    def expect(self, names: Iterable[tuple[str, int]]) -> None:
        for name, last in names:
            storage = ObjectStorage(self.transport, self.key(name))
            self._remember(name, storage)
            _pool.submit(storage.begin, last)  # an error is that of the next question to it

    def list(self) -> list[str]:
        prefix = f"{self._prefix}/" if self._prefix else ""
        return [key[len(prefix) :].rstrip("/") for key, _ in self.transport.list(prefix)]

    def subdirectory(self, name: str) -> Self:
        return type(self)(self.transport, self.key(name))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each object, by name."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        found = self.transport.list(prefix)
        return {key[len(prefix) :]: info.size for key, info in found if info is not None}

    def there(self, names: Sequence[str]) -> Sequence[bool]:
        """Return for each name whether there is an object, asked for at once: see `info`."""
        waiting = [_pool.submit(self.info, name) for name in names[1:]]
        return [self.info(name) is not None for name in names[:1]] + [
            future.result() is not None for future in waiting
        ]

    def read_whole(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """Return the bytes of objects, read at once; None: there is none."""

        def read(name: str) -> bytes | None:
            try:
                with self.open(name) as storage:
                    return storage.read(0, storage.size())
            except FileNotFoundError:
                return None

        waiting = [_pool.submit(read, name) for name in names[1:]]
        return [*map(read, names[:1]), *(future.result() for future in waiting)]

    # --- writing: see `Transport` ---

    def put(
        self, name: str, data: bytes, *, absent: bool = False, like: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Write an object."""
        return self.transport.put(self.key(name), data, absent=absent, like=like)

    def put_file(self, name: str, path: str) -> ObjectInfo:
        """Write a file of this machine as an object."""
        return self.transport.put_file(self.key(name), path)

    def known(self, name: str) -> ObjectInfo | None:
        """Return what the store knows of an object; None: there is none."""
        return self.transport.head(self.key(name))

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        if names:
            self.transport.delete([self.key(name) for name in names])

    def scratch(self) -> Storage:
        return PosixDirectory(tempfile.gettempdir()).scratch()

    def sync(self) -> None:
        """Return: nothing was written."""

    # --- what only a disk of this machine can do ---

    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> Storage:
        raise _read_only(f"{self.path}/{name}")

    def rename(self, old: str, new: str) -> None:
        raise _read_only(f"{self.path}/{old}")

    def link(self, old: str, new: str) -> None:
        raise _read_only(f"{self.path}/{old}")

    def unlink(self, name: str) -> None:
        raise _read_only(f"{self.path}/{name}")

    def mkdir(self, name: str) -> None:
        raise _read_only(f"{self.path}/{name}")

    def rmdir(self, name: str) -> None:
        raise _read_only(f"{self.path}/{name}")

    def lock(self, name: str, *, shared: bool = False) -> Lock | None:
        raise _read_only(f"{self.path}/{name}")


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "files on object storage can only be read", path)
