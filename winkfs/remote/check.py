"""Check of a store: whether it keeps what the commits of a data set need.

Servers exist that ignore the condition of a request in silence: then two writers can both make
one generation. So a data set is written only where the store has passed.
URL/_winkfs/store.json has the result, which counts for the place in it alone: a copy of the data
set is at another one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from winkformats.disk.objects import AHEAD_BYTES, ObjectDirectory, ObjectInfo, Pool, Transport
from winkformats.disk.parts import PART_BYTES
from winkformats.disk.paths import directory_of
from winkformats.disk.schemes import is_far
from winkformats.version import VERSION
from winkfs.errors import Refusal

RECORD: Final = "_winkfs/store.json"
RECORD_BYTES: Final = 64 << 10  # of the record, at most
WRITERS: Final = 8  # that put the same object at a time
RACES: Final = 50  # objects that they put
NEW: Final = 8  # objects that are read before and after their put
LISTED: Final = 20  # objects that are put and listed
CONTENT: Final = 1024  # bytes of most objects
LARGE: Final = 2 * PART_BYTES + 12_345  # bytes of the object that is put in parts
READS: Final = 9  # whose median is the latency
WAITED: Final = 10.0  # seconds for requests under way, before what was made is removed


class Finding(NamedTuple):
    """One condition.

    needed  by commits or readers
    fault   how it was not kept; "": it was kept
    shown   whether the fault is an answer of the store, and not an error on the way
    """

    name: str
    needed: bool
    fault: str
    shown: bool


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of a check.

    endpoint, bucket, prefix  the place that was checked
    date                      seconds since the epoch
    latency                   seconds until the answer of a small read, the median
    upload, download          bytes a second of a large object
    clock                     seconds that the clock of the store is ahead
                              None: what was measured has failed, or the store has no times
    requests                  number of requests
    """

    url: str
    endpoint: str
    bucket: str
    prefix: str
    date: float
    findings: tuple[Finding, ...]
    latency: float | None
    upload: float | None
    download: float | None
    clock: float | None
    requests: int

    @property
    def problems(self) -> list[str]:
        """Return a line for each needed condition that was not kept."""
        return [f"{one.name}: {one.fault}" for one in self.findings if one.needed and one.fault]

    @property
    def passed(self) -> bool:
        return not self.problems

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        date = datetime.fromtimestamp(self.date, UTC).isoformat(timespec="seconds")
        return {
            "version": VERSION, "date": date.replace("+00:00", "Z"), "url": self.url,
            "endpoint": self.endpoint, "bucket": self.bucket, "prefix": self.prefix,
            "passed": self.passed,
            "conditions": {
                one.name.replace(" ", "_"): {
                    "kept": not one.fault, "needed": one.needed, "fault": one.fault or None,
                }
                for one in self.findings
            },
            "latency": self.latency, "upload": self.upload, "download": self.download,
            "clock": self.clock, "requests": self.requests,
        }  # fmt: skip


def check(url: str, progress: Callable[[int], None] | None = None) -> StoreCheck:
    """Check whether the store of a URL keeps what commits need, and record at the URL that it does.

    url       of a data set, also of one that is to be made
    progress  called with the number of requests since the last call
    ->        what was found. A record that is there is replaced also if the store has failed
    raises    Refusal: not a URL that can be written; PermissionError; FileNotFoundError: no bucket;
              other OSErrors of the store
    cost      some 900 small requests, 16 MiB each way
    """
    directory = directory_of(url)
    if not is_far(url) or not isinstance(directory, ObjectDirectory):
        raise Refusal("is on this machine: only object storage has to be checked", url)
    if url.startswith(("http://", "https://")):
        raise Refusal("a web server can only be read: data sets are written to s3://, gs://, az://",
                      url, number=errno.EROFS)  # fmt: skip
    transport, prefix = directory.place
    checker = Checker(transport, prefix, progress or (lambda done: None))
    found = checker.run()
    key = _key(prefix, RECORD)
    lies = any(one.needed and one.fault and one.shown for one in found.findings)
    if found.passed or (lies and transport.head(key) is not None):
        transport.put(key, json.dumps(found.record(), indent=1).encode())
    return found


def proven(transport: Transport, prefix: str) -> bool:
    """Return whether the store of a data set was checked at this very place, and has passed.

    raises  OSError of the store
    cost    one request
    """
    key = _key(prefix, RECORD)
    try:
        _, data, _ = transport.get(key, 0, RECORD_BYTES)
        record = json.loads(data)
    except (FileNotFoundError, ValueError):
        return False
    place = {"endpoint": transport.endpoint, "bucket": transport.url, "prefix": prefix.strip("/")}
    return isinstance(record, dict) and record.items() >= (place | {"passed": True}).items()


def _key(prefix: str, name: str) -> str:
    return f"{prefix.strip('/')}/{name}".lstrip("/")


@dataclass
class Checker:
    """One check. All that it makes is below `place`, and removed at the end of `run`."""

    transport: Transport
    prefix: str
    progress: Callable[[int], None]
    made: dict[str, None] = field(default_factory=dict)
    requests: int = 0
    clock: float | None = None
    latency: float | None = None
    upload: float | None = None
    download: float | None = None

    def __post_init__(self) -> None:
        self.place = _key(self.prefix, f"_winkfs-check-{secrets.token_hex(8)}")
        self._pool, self._lock = Pool(), threading.Lock()
        self._calls, self._ended = list[Future[Any]](), False

    def run(self) -> StoreCheck:
        begin = time.time()
        try:
            found = list(self._findings())
            self._try("clock", False, self.measure)
        finally:
            fault = self._remove()
        if fault:
            found.append(Finding("removal", False, fault, True))
        return StoreCheck(
            f"{self.transport.url}/{self.prefix}".rstrip("/"), self.transport.endpoint,
            self.transport.url, self.prefix.strip("/"), begin, tuple(found),
            self.latency, self.upload, self.download, self.clock, self.requests,
        )  # fmt: skip

    def _findings(self) -> Iterator[Finding]:
        first = self._try("put if absent", True, self.absent)
        yield first
        if not first.fault:
            yield self._try("put if absent at once", True, self.raced)
        yield self._try("read before and after a put", True, self.read_after_put)
        yield self._try("ranges", True, self.ranges)
        if self.transport.suffixes:
            yield self._try("last bytes", True, self.last_bytes)
        yield self._try("reads of a replaced object", True, self.replaced)
        yield self._try("put in parts", True, self.in_parts)
        yield self._try("put if unchanged", False, self.unchanged)
        yield self._try("delete", False, self.deleted)
        yield self._try("listing after puts", False, self.listed)
        yield self._try("listing in order", False, self.ordered)

    def _try(self, name: str, needed: bool, step: Callable[[], str]) -> Finding:
        """Run a step, which returns how a condition was not kept. Raises OSError if the store is
        not there: no bucket, no permission, no answer to a plain put."""
        try:
            return Finding(name, needed, step(), True)
        except (PermissionError, FileNotFoundError) as error:
            if needed or not isinstance(error, PermissionError):
                raise
            return Finding(name, needed, "no permission", True)
        except OSError as error:
            self._put("plain", b"1")
            return Finding(name, needed, error.strerror or str(error), False)

    # --- requests ---

    def _count(self) -> None:
        if self._ended:
            raise Refusal("the check has ended", self.place)
        with self._lock:
            self.requests += 1
            self.progress(1)

    def _key(self, name: str) -> str:
        """Return the key of an object that is to be made, and removed in the end."""
        key = f"{self.place}/{name}"
        self.made[key] = None
        return key

    def _put(self, name: str, data: bytes, **condition: Any) -> ObjectInfo:
        self._count()
        return self.transport.put(self._key(name), data, **condition)

    def _get(self, name: str, start: int = 0, length: int = CONTENT, like: Any = None) -> bytes:
        """Return a range of an object; b"": there is no such object."""
        self._count()
        try:
            return self.transport.get(f"{self.place}/{name}", start, length, like)[1]
        except FileNotFoundError:
            return b""

    def _head(self, name: str) -> ObjectInfo | None:
        self._count()
        return self.transport.head(f"{self.place}/{name}")

    def _list(self) -> list[str]:
        self._count()
        start = f"{self.place}/listed/"
        return [key.removeprefix(start) for key, _ in self.transport.list(start)]

    def _at_once(self, call: Callable[[int], Any], count: int) -> list[Any]:
        """Call with each number below `count`, in threads -> the results in order."""
        futures = [self._pool.submit(call, number) for number in range(count)]
        self._calls += futures
        return [future.result() for future in futures]

    def _remove(self) -> str:
        """Remove what was made -> a line if that has failed."""
        self._ended = True
        wait(self._calls, WAITED)  # no put may come after the removal
        try:
            self.transport.delete([*self.made])
        except OSError as error:
            with contextlib.suppress(OSError):  # servers exist that remove, and answer wrongly
                if not any(map(self.transport.head, self.made)):
                    return ""
            return f"objects below {self.place} remain: {error.strerror}"
        return ""

    # --- conditions: "", or how one was not kept ---

    def absent(self) -> str:
        one, two = os.urandom(CONTENT), os.urandom(CONTENT)
        try:
            self._put("absent", one, absent=True)
        except FileExistsError:
            return "refused, although there is no such object"
        try:
            self._put("absent", two, absent=True)
        except FileExistsError:
            return "" if self._get("absent") == one else "refused, but the object was replaced"
        if self._get("absent") == one:
            return "ignored in silence: success was answered, and nothing was written"
        return "ignored in silence: an object that was there was replaced"

    def raced(self) -> str:
        """Let several writers put each object at the same time, each other bytes."""
        start, won = threading.Barrier(WRITERS), [set[int]() for _ in range(RACES)]
        bodies = [[os.urandom(CONTENT) for _ in range(WRITERS)] for _ in range(RACES)]

        def write(writer: int) -> None:
            try:
                for number in range(RACES):
                    start.wait()
                    # an error is no answer: another writer may have won, or this one
                    with contextlib.suppress(OSError):
                        self._put(f"raced/{number}", bodies[number][writer], absent=True)
                        won[number].add(writer)
            except threading.BrokenBarrierError:
                return
            except BaseException:
                start.abort()
                raise

        try:
            self._at_once(write, WRITERS)
        finally:
            start.abort()
        if several := sum(len(winners) > 1 for winners in won):
            return f"{several} of {RACES} objects had several winners"
        if (decided := sum(map(len, won))) < RACES // 2:
            raise Refusal(f"only {decided} of {RACES} objects had a winner: check it again")
        kept = self._at_once(lambda number: self._get(f"raced/{number}"), RACES)
        lost = [data for data, mine, winners in zip(kept, bodies, won, strict=True)
                if winners and data not in [mine[winner] for winner in winners]]  # fmt: skip
        return f"{len(lost)} of {RACES} objects are not those of their winners" if lost else ""

    def read_after_put(self) -> str:
        """Read objects before they are put, which a cache on the way could remember, and after."""
        one, two = os.urandom(CONTENT), os.urandom(CONTENT)

        def each(number: int) -> str:
            name = f"new/{number}"
            if self._head(name) is not None or self._get(name):
                return "an object was there before it was put"
            self._put(name, one)
            if self._head(name) is None or not self._get(name):
                return "an object was missing after it was put: does a cache keep answers?"
            self._put(name, two)
            return "" if self._get(name) == two else "an object was old after it was replaced"

        return str(max(self._at_once(each, NEW)))

    def ranges(self) -> str:
        data = os.urandom(CONTENT)
        self._put("ranges", data)
        parts = [(0, 16), (100, 200), (CONTENT - 16, 16), (CONTENT - 16, 100)]
        for start, length in parts:
            if self._get("ranges", start, length) != data[start : start + length]:
                return f"asked for {length} bytes from {start}, the answer has others"
        return ""

    def last_bytes(self) -> str:
        data = os.urandom(CONTENT)
        self._put("last", data)
        found = self._get("last", -1, 100)
        return "" if found == data[-100:] else "asked for the last 100 bytes, the answer has others"

    def replaced(self) -> str:
        """Read with the ETag of an object that was replaced by one of the same size."""
        self._put("replaced", b"1" * CONTENT)
        first = self._head("replaced")
        made = self._put("replaced", b"2" * CONTENT)
        second = self._head("replaced")
        if first is None or second is None or not first.etag or first.etag == second.etag:
            return "objects have no ETag that changes with them"
        if made.etag != second.etag:
            return "the ETag of a put is another one than that of its object"
        try:
            self._get("replaced", 0, CONTENT, first)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            current = self._get("replaced", 0, CONTENT, second)
            return "" if current == b"2" * CONTENT else "an object was refused under its own ETag"
        return "an object that was replaced was read on"

    def unchanged(self) -> str:
        one = self._put("unchanged", b"1" * CONTENT)
        two = self._put("unchanged", b"2" * CONTENT, like=one)
        with contextlib.suppress(OSError):
            self._put("unchanged", b"3" * CONTENT, like=one)
            return "ignored in silence: an object that had changed was replaced"
        kept = self._get("unchanged", 0, CONTENT, two) == b"2" * CONTENT
        return "" if kept else "refused, but the object was replaced"

    def in_parts(self) -> str:
        """Put a large object, and read it as a scan does; also how fast that is."""
        data = os.urandom(LARGE)
        with tempfile.NamedTemporaryFile(prefix="winkfs-check-") as file:
            file.write(data)
            file.flush()
            self._count()
            begin = time.perf_counter()
            made = self._pool.submit(self.transport.put_file, self._key("large"), file.name)
            self._calls.append(made)
            info = made.result()
            self.upload = round(LARGE / (time.perf_counter() - begin))
        begin = time.perf_counter()
        parts = self._at_once(
            lambda number: self._get("large", number * AHEAD_BYTES, AHEAD_BYTES, info),
            -(-LARGE // AHEAD_BYTES),
        )
        self.download = round(LARGE / (time.perf_counter() - begin))
        return "" if b"".join(parts) == data else "a large object is not what was put"

    def deleted(self) -> str:
        self._put("deleted", b"1")
        self._count()
        self.transport.delete([f"{self.place}/deleted", f"{self.place}/never"])
        gone = self._head("deleted") is None and not self._get("deleted")
        return "" if gone else "an object was there after its removal"

    def listed(self) -> str:
        for number in reversed(range(LISTED)):
            self._put(f"listed/{number:02}", b"")
        wrong = {*self._list()} ^ {f"{number:02}" for number in range(LISTED)}
        return f"{len(wrong)} of {LISTED} objects are missing or wrong" if wrong else ""

    def ordered(self) -> str:
        found = self._list()
        return "" if found == sorted(found) else "names do not ascend"

    def measure(self) -> str:
        """Measure the latency, and the clock."""
        before = time.time()
        self._put("clock", b"1" * CONTENT)
        info, after = self._head("clock"), time.time()
        if info is not None and info.mtime:  # often whole seconds
            low, high = info.mtime - after, info.mtime + 1 - before
            self.clock = 0.0 if low <= 0 <= high else round(low if low > 0 else high, 1)
        times = []
        for _ in range(READS):
            begin = time.perf_counter()
            self._get("clock")
            times.append(time.perf_counter() - begin)
        self.latency = round(statistics.median(times), 6)
        return ""
