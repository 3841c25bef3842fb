"""Requests for ranges of objects, by HTTP. An answer counts only if it is what was asked for: these
bytes, of this object, and no more.

    WebTransport     of a web server, without credentials
    SignedTransport  of an object store: on URLs that are signed for an hour, so that requests work
                     in forked children, and need no credentials

An answer that may be better the next time (429, 5xx, a reset, a cut) is asked for again, with
growing pauses, until TIMEOUT.
"""

from __future__ import annotations

import base64
import errno
import io
import math
import random
import re
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    HTTPError,
    LocationParseError,
    NameResolutionError,
    SSLError,
)

from winkformats.disk.objects import IN_FLIGHT, ObjectInfo, Transport, limit
from winkformats.disk.parts import part_bytes, put_parts
from winkformats.version import VERSION
from winkfs.errors import NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.remote import control
from winkfs.remote.links import link_to
from winkfs.remote.uploads import PARTS, need_unchanged

TIMEOUT: Final = 60.0  # seconds after which a request has failed, repetitions included
CONNECT: Final = 10.0  # seconds to connect
SILENCE: Final = 20.0  # seconds without a byte after which a request is made anew
TRIES: Final = 10
PAUSE: Final = 0.1  # seconds before the second try; the pauses grow up to LONGEST
LONGEST: Final = 5.0
REPORTED: Final = 5.0  # seconds of trying after which it is reported
SLOWEST: Final = 100_000  # bytes a second of a body that is sent
PIECE: Final = 1 << 18  # bytes of a body that are read at a time
REDIRECTS: Final = 5
HEADERS: Final = {"User-Agent": f"winkfs/{VERSION}", "Accept-Encoding": "identity"}
LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
SIGNED: Final = 3600  # seconds for which a URL is signed
RENEWED: Final = 600  # seconds before its end from which it is signed anew
T = TypeVar("T")
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Again(Exception):
    """An answer that may be another one if it is asked for again. `after`: seconds to wait."""

    def __init__(self, what: str, after: float = 0.0) -> None:
        super().__init__(what)
        self.after = after


def report(line: str) -> None:
    """Report what takes long. Others may replace this function."""
    print(f"winkfs: {line}", file=sys.stderr, flush=True)


class RangeTransport(Transport):
    """A transport over HTTP. `timeout`: seconds, see TIMEOUT."""

    follows = False  # redirects

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url)
        self.timeout = timeout
        self._pools: dict[str, urllib3.PoolManager] = {}  # by scheme and host

    def after_fork(self) -> None:
        self._pools = {}

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Return the connections to the host of a URL, or to the proxy that the environment has."""
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}"
        if place not in self._pools:
            proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
            kind = partial(urllib3.ProxyManager, proxy) if proxy else urllib3.PoolManager
            self._pools[place] = kind(num_pools=2, maxsize=IN_FLIGHT, retries=False)
        return self._pools[place]

    @abstractmethod
    def address(self, key: str) -> str:
        """Return the URL from which an object is read."""

    def get(
        self, key: str, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        return self.repeated(key, lambda until: self._once(key, start, length, like, until))

    def repeated(self, key: str, once: Callable[[float], T], longer: float = 0.0) -> T:
        """Call a function until it raises no Again, with the time at which it must have ended.

        longer  seconds that it may take beyond `timeout`
        """
        begin, tries, reported = time.monotonic(), 0, False
        until = min(begin + self.timeout + longer, limit.until or math.inf)
        while True:
            try:
                return once(until)
            except Again as again:
                tries += 1
                now = time.monotonic()
                pause = min(PAUSE * 2**tries, LONGEST) * random.uniform(0.5, 1)
                pause = max(pause, again.after)
                if tries >= TRIES or now + pause >= until:
                    what = f"{again}, {tries} times in {now - begin:.0f} s"
                    raise Refusal(what, self.name(key)) from None
                if not reported and now - begin > REPORTED:
                    reported = True
                    report(f"{self.name(key)}: {again}: still trying")
                time.sleep(pause)

    def name(self, key: str) -> str:
        """Return the path of an object, for messages."""
        return f"{self.url}/{key}"

    def final(
        self, method: str, url: str, key: str, body: bytes, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse:
        """Make a request until its answer is final -> the answer, with its body. Raises Refusal."""

        def once(until: float) -> urllib3.BaseHTTPResponse:
            sent = headers | {"Content-Length": str(len(body))} if body else headers
            try:  # from a file, each piece of the body has its own timeout
                answer = self._pool(url).request(
                    method, url, body=io.BytesIO(body) if body else None, headers=HEADERS | sent,
                    redirect=False, timeout=urllib3.Timeout(connect=CONNECT, read=self.timeout),
                )  # fmt: skip
            except (SSLError, LocationParseError, NameResolutionError) as error:
                raise Refusal(_line(error), self.name(key)) from None
            except HTTPError as error:
                raise Again(_line(error)) from None
            if answer.status in LATER:
                raise Again(f"HTTP {answer.status}", _seconds(answer.headers.get("Retry-After")))
            return answer

        return self.repeated(key, once, len(body) / SLOWEST)

    def _once(
        self, key: str, start: int, length: int, like: ObjectInfo | None, until: float
    ) -> tuple[int, bytes, ObjectInfo]:
        what = f"bytes=-{length}" if start < 0 else f"bytes={start}-{start + length - 1}"
        headers = {"Range": what, "Cache-Control": "no-cache"}
        if like is not None and like.etag and not like.etag.startswith("W/"):
            headers["If-Match"] = like.etag
        answer = self._ask(key, headers, until)
        try:
            at, size, found = self._checked(answer, key, start, length, like)
            return at, self._body(answer, size, until), found
        except HTTPError as error:
            raise Again(_line(error)) from None
        finally:
            answer.close() if answer.length_remaining else answer.release_conn()

    def _ask(self, key: str, headers: dict[str, str], until: float) -> Any:
        url = self.address(key)
        for _ in range(REDIRECTS):
            left = max(until - time.monotonic(), 0.1)
            times = urllib3.Timeout(connect=min(CONNECT, left), read=min(SILENCE, left))
            try:
                answer = self._pool(url).request(
                    "GET", url, headers=HEADERS | headers, redirect=False,
                    preload_content=False, decode_content=False, timeout=times,
                )  # fmt: skip
            except (SSLError, LocationParseError, NameResolutionError) as error:
                raise Refusal(_line(error), self.name(key)) from None
            except HTTPError as error:
                raise Again(_line(error)) from None
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            answer.close()
            there = urljoin(url, answer.headers.get("Location", ""))
            if not self.follows or urlsplit(there).scheme not in (urlsplit(url).scheme, "https"):
                host = urlsplit(there).netloc
                raise Refusal(f"the server redirects to {host}: name that place", self.name(key))
            url = there
        raise Refusal("too many redirects", self.name(key))

    def _checked(
        self, answer: Any, key: str, start: int, length: int, like: ObjectInfo | None
    ) -> tuple[int, int, ObjectInfo]:
        """Return where the body begins, its bytes, and what is known of the object."""
        status, name = answer.status, self.name(key)
        if status in LATER:
            raise Again(f"HTTP {status}", _seconds(answer.headers.get("Retry-After")))
        if status == 416 and like is None and start <= 0:  # of no byte there is no range
            return 0, 0, _info(answer, 0)
        if status in (404, 410) and like is None:
            raise NoSuchFile("no such object", name)
        if status in (401, 403):
            raise NotAllowed(f"HTTP {status}: no permission, or no such object", name,
                             number=errno.EACCES)  # fmt: skip
        if status in (404, 410, 412, 416):
            raise StalePlan("was replaced since it was opened: open it again", name)
        if status not in (200, 206):
            raise Refusal(f"HTTP {status}", name)
        coding = answer.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            raise Refusal(f"its content is encoded: {coding}", name)
        if status == 200:
            whole = answer.length_remaining
            if start > 0 or whole is None or whole > length:
                raise Refusal("the server ignores Range, and would send all of it", name,
                              number=errno.EOPNOTSUPP)  # fmt: skip
            first, last, size = 0, whole - 1, whole  # all was asked for
        elif (match := _RANGE.fullmatch(answer.headers.get("Content-Range", ""))) is None:
            raise Refusal("an answer without a Content-Range", name)
        else:
            first, last, size = map(int, match.groups())
        wanted = max(size - length, 0) if start < 0 else start
        if first != wanted or last != min(wanted + length, size) - 1:
            raise Refusal(f"asked for {length} bytes from {wanted}, the answer has those from "
                          f"{first} to {last} of {size}", name)  # fmt: skip
        found = _info(answer, size)
        if like is not None and (like.size, like.etag) != (found.size, found.etag):
            raise StalePlan("was replaced since it was opened: open it again", name)
        return first, last + 1 - first, found

    def _body(self, answer: Any, size: int, until: float) -> bytes:
        parts, got = list[bytes](), 0
        while got < size:
            if time.monotonic() > until:
                raise Again("a slow answer")
            data = answer.read1(min(PIECE, size - got))
            if not data:
                raise Again(f"the answer ends after {got} of {size} bytes")
            parts.append(data)
            got += len(data)
        return b"".join(parts)


class WebTransport(RangeTransport):
    """A web server; it has no listing that could be read."""

    follows = True

    def address(self, key: str) -> str:
        if "?" in key or "#" in key:
            raise Refusal("a URL of a container has no ? and no #", self.name(key))
        return f"{self.url}/{quote(key, safe='/%')}"  # what is encoded already stays so

    def name(self, key: str) -> str:
        return super().name(key.partition("?")[0])

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        yield from ()

    def sign(self, key: str, seconds: int) -> str:
        return self.address(key)  # all can read it already


class SignedTransport(RangeTransport):
    """An object store: see `control`."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        super().__init__(url, timeout)
        self.writes, self.suffixes = True, not url.startswith("az:")
        self._signed: dict[str, tuple[float, str]] = {}
        self._lock, self._signs = threading.Lock(), True

    def after_fork(self) -> None:
        super().after_fork()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return control.endpoint(self.url)

    def get(
        self, key: str, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        if self._signs:
            try:
                return super().get(key, start, length, like)
            except control.NotSigned:  # public objects, and credentials that are tokens
                self._signs = False
        etag = like.etag if like is not None else ""
        at, data, *known = control.call("ranged", self.url, key, start, length, etag)
        return at, base64.b64decode(data), ObjectInfo(*known)

    def address(self, key: str) -> str:
        if (link := link_to(f"{self.url}/{key}")) is not None:
            return link
        now = time.monotonic()
        with self._lock:
            until, url = self._signed.get(key, (0.0, ""))
            if until < now:
                url = control.call("sign", self.url, key, SIGNED)
                if len(self._signed) > 1024:
                    self._signed.clear()
                self._signed[key] = now + SIGNED - RENEWED, url
        return url

    @property
    def asked(self) -> list[str]:
        """The keys of the objects that were read last."""
        with self._lock:
            return list(self._signed)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        for key, *known in control.call("names", self.url, prefix):
            yield key, ObjectInfo(*known) if known else None

    def head(self, key: str) -> ObjectInfo | None:
        known = control.call("head", self.url, key)
        return ObjectInfo(*known) if known else None

    def put(
        self, key: str, data: bytes, *, absent: bool = False, like: ObjectInfo | None = None
    ) -> ObjectInfo:
        etag = like.etag if like is not None else ""
        given = base64.b64encode(data).decode()
        return ObjectInfo(*control.call("put", self.url, key, given, absent, etag))

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
        step = part_bytes(size)
        if size <= step:
            made = self.put(key, read(0, size), absent=absent, like=like)
            progress(size)
            return made, size
        kind = PARTS.get(self.url.partition(":")[0])
        if kind is not None and self._signs:
            try:
                store = kind(self, key, SIGNED)
                return put_parts(store, key, size, read, progress, absent=absent, like=like)
            except control.NotSigned:
                self._signs = False
        if absent or like is not None:  # obstore has no condition for parts
            need_unchanged(self.head(key), self.name(key), like)
        pieces = (read(at, min(step, size - at)) for at in range(0, size, step))
        return ObjectInfo(*control.put_pieces(self.url, key, size, pieces, progress)), size

    def sign(self, key: str, seconds: int) -> str:
        found: str = control.call("sign", self.url, key, seconds)
        return found

    def delete(self, keys: Sequence[str]) -> None:
        control.call("delete", self.url, [*keys])


def _info(answer: Any, size: int) -> ObjectInfo:
    try:
        mtime = parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp()
    except (KeyError, ValueError, TypeError):
        mtime = 0.0
    return ObjectInfo(size, answer.headers.get("ETag", ""), mtime)


def _seconds(text: str | None) -> float:
    """Return the seconds of Retry-After, if it has seconds."""
    return min(float(text), TIMEOUT) if text is not None and text.isdecimal() else 0.0


def _line(error: HTTPError) -> str:
    """Return the reason of an error, without a URL: it may be signed."""
    text = str(error).splitlines()[0]
    text = re.sub(r"https?://\S+|/\S*\?\S+", "...", text)
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\)): ", "", text) or type(error).__name__
