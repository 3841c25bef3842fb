"""An object store in memory, in process and over HTTP: counts requests, and fails on order.

with ObjectStore() as store:
    store.put("dir/corpus.data", data)
    winkfs.open(store.url + "/dir/corpus")     # sim1://..., in process
with web_server(store) as url: ...             # http://127.0.0.1:...
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from winkformats.disk.objects import ObjectDirectory, ObjectInfo, Transport
from winkformats.disk.parts import Part, is_equal, part_bytes, put_parts
from winkformats.disk.schemes import register, unregister
from winkfs.errors import FileExists, NoSuchFile, Refusal, StalePlan
from winkfs.names import SUFFIXES

_numbers = itertools.count(1)


class Request(NamedTuple):
    key: str
    start: int
    size: int
    what: str = "get"


class ObjectStore:
    """Objects by key.

    requests  what was asked for, and answered
    failing   called before each request with its key; raises what the request is to raise
    lost      called after each change with its key; raises what is answered in place of success
    """

    def __init__(self) -> None:
        self._scheme = f"sim{next(_numbers)}"
        self.url = f"{self._scheme}://bucket"
        self.objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self.pending: dict[str, tuple[str, dict[int, bytes]]] = {}  # uploads
        self.requests: list[Request] = []
        self.failing: Callable[[str], object] = lambda key: None
        self.lost: Callable[[str], object] = lambda key: None
        self.lock = threading.Lock()
        self.transport = SimulatedTransport(self)

    def __enter__(self) -> Self:
        start = len(self.url)

        def directory(path: str) -> ObjectDirectory:
            return ObjectDirectory(self.transport, path[start:])

        register(self._scheme, directory, url=True)
        return self

    def __exit__(self, *exc: object) -> None:
        unregister(self._scheme, url=True)

    def put(self, key: str, data: bytes) -> None:
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        self.objects[key] = data, ObjectInfo(len(data), etag, 1_700_000_000.0)

    def trusted(self, prefix: str) -> str:
        """Have `winkfs remote check` passed for a data set -> its URL."""
        place = {"endpoint": self.transport.endpoint, "bucket": self.url, "prefix": prefix}
        self.put(f"{prefix}/_winkfs/store.json", json.dumps(place | {"passed": True}).encode())
        return f"{self.url}/{prefix}"

    def put_container(self, base: Path, key: str = "dir/c") -> str:
        """Put the files of a container, without its lock -> its URL."""
        for suffix in SUFFIXES:
            path = Path(f"{base}{suffix}")
            if path.exists() and suffix in (".data", ".cat", ".idx", ".time"):
                self.put(key + suffix, path.read_bytes())
        return f"{self.url}/{key}"

    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        self.failing(key)
        if key not in self.objects and etag is None:
            self.requests.append(Request(key, start, 0, "miss"))
            raise NoSuchFile("no such object", key)
        data, info = self.objects.get(key, (b"", ObjectInfo(0)))
        if etag is not None and etag != info.etag:
            raise StalePlan("was replaced since it was opened: open it again", key)
        start = max(len(data) - length, 0) if start < 0 else start
        found = data[start : start + length]
        self.requests.append(Request(key, start, len(found)))
        return start, found, info

    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        """Write an object, under the condition that a request has, all or nothing."""
        self.failing(key)
        with self.lock:
            self.requests.append(Request(key, 0, len(data), "put"))
            there = self.objects.get(key)
            if absent and there is not None:
                raise FileExists("is there already", key)
            if etag is not None and (there is None or there[1].etag != etag):
                raise StalePlan("was replaced since it was opened: open it again", key)
            self.put(key, data)
        self.lost(key)
        return self.objects[key][1]

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.failing(key)
            self.requests.append(Request(key, 0, 0, "delete"))
            self.objects.pop(key, None)
            self.lost(key)

    def head(self, key: str) -> ObjectInfo | None:
        self.failing(key)
        self.requests.append(Request(key, 0, 0, "head"))
        return self.objects[key][1] if key in self.objects else None

    # --- parts ---

    def asked(self, key: str, what: str, size: int = 0) -> None:
        self.failing(key)
        self.requests.append(Request(key, 0, size, what))

    def begin(self, key: str) -> str:
        self.asked(key, "begin")
        upload = f"upload{next(_numbers)}"
        with self.lock:
            self.pending[upload] = key, {}
        self.lost(key)
        return upload

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        self.asked(key, "part", len(data))
        if hashlib.md5(data).digest() != md5:
            raise Refusal("BadDigest", key)
        with self.lock:
            self._parts(key, upload)[number] = data
        self.lost(key)
        return md5.hex()

    def _parts(self, key: str, upload: str) -> dict[int, bytes]:
        if upload not in self.pending:
            raise NoSuchFile("no such upload", key)
        return self.pending[upload][1]

    def complete(
        self, key: str, upload: str, etags: Sequence[str], *, absent: bool, like: ObjectInfo | None
    ) -> ObjectInfo:
        self.asked(key, "complete")
        parts = self._parts(key, upload)
        found = [parts[number] for number in range(1, len(etags) + 1)]
        sums = [hashlib.md5(part) for part in found]
        if [part.hexdigest() for part in sums] != list(etags):
            raise Refusal("InvalidPart", key)
        joined = hashlib.md5(b"".join(part.digest() for part in sums)).hexdigest()
        etag = f'"{joined}-{len(sums)}"'
        with self.lock:
            there = self.objects.get(key)
            if absent and there is not None:
                raise FileExists("is there already", key)
            if like is not None and (there is None or there[1].etag != like.etag):
                raise StalePlan("was replaced since it was opened: open it again", key)
            self.put(key, b"".join(found))
            data, info = self.objects[key]
            self.objects[key] = data, info._replace(etag=etag)
            del self.pending[upload]
        self.lost(key)
        return self.objects[key][1]

    def uploads(self, key: str) -> list[str]:
        self.asked(key, "uploads")
        with self.lock:
            return [upload for upload, (there, _) in self.pending.items() if there == key]

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        self.asked(key, "parts")
        with self.lock:
            return {
                number: Part(len(data), hashlib.md5(data).hexdigest())
                for number, data in self._parts(key, upload).items()
            }

    def made(self, key: str, etags: Sequence[str], whole: ObjectInfo) -> ObjectInfo | None:
        there = self.head(key)
        return there if is_equal(there, whole) else None

    def abort(self, key: str, upload: str) -> None:
        self.asked(key, "abort")
        with self.lock:
            self.pending.pop(upload, None)

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[Request]]:
        """Record the requests of a block in the list."""
        found, before = list[Request](), len(self.requests)
        yield found
        found += self.requests[before:]


class SimulatedTransport(Transport):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store.url)
        self.writes = True
        self._store = store

    def get(
        self, key: str, start: int, length: int, like: ObjectInfo | None = None
    ) -> tuple[int, bytes, ObjectInfo]:
        return self._store.get(key, start, length, like.etag if like else None)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        self._store.failing(prefix)
        self._store.requests.append(Request(prefix, 0, 0, "list"))
        seen = dict[str, ObjectInfo | None]()
        for key, (_, info) in sorted(self._store.objects.items()):
            if key.startswith(prefix):
                rest, slash, _ = key[len(prefix) :].partition("/")
                seen.setdefault(prefix + rest + slash, None if slash else info)
        yield from seen.items()

    def head(self, key: str) -> ObjectInfo | None:
        return self._store.head(key)

    def put(
        self, key: str, data: bytes, *, absent: bool = False, like: ObjectInfo | None = None
    ) -> ObjectInfo:
        return self._store.write(key, data, absent=absent, etag=like.etag if like else None)

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
        if size > part_bytes(size):
            return put_parts(self._store, key, size, read, progress, absent=absent, like=like)
        made = self.put(key, read(0, size), absent=absent, like=like)
        progress(size)
        return made, size

    def sign(self, key: str, seconds: int) -> str:
        return f"{self._store.url}/{key}?seconds={seconds}"

    def delete(self, keys: Sequence[str]) -> None:
        self._store.remove(keys)


# --- over HTTP ---


@contextlib.contextmanager
def web_server(
    store: ObjectStore, behave: Callable[[Any, str], bool] | None = None
) -> Iterator[str]:
    """Serve the objects of a store over HTTP -> the URL.

    behave  called with the handler and the key before each answer; returns whether it has answered
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            key = unquote(urlsplit(self.path).path).lstrip("/")
            if behave is not None and behave(self, key):
                return
            match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            assert match is not None, "winkfs never asks for a whole object"
            first, last = match.groups()
            start, length = (int(first), int(last) - int(first) + 1) if first else (-1, int(last))
            try:
                at, data, info = store.get(key, start, length, self.headers.get("If-Match"))
            except OSError as error:
                status = 404 if isinstance(error, FileNotFoundError) else 412
                self.answer(status, b"")
                return
            if not data:
                self.answer(416, b"", {"Content-Range": f"bytes */{info.size}"})
                return
            self.answer(206, data, {
                "Content-Range": f"bytes {at}-{at + len(data) - 1}/{info.size}",
                "ETag": info.etag, "Last-Modified": formatdate(info.mtime, usegmt=True),
            })  # fmt: skip

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *given: object) -> None:
            """Print nothing where a client has gone."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slow(seconds: float) -> Callable[[Any, str], bool]:
    """Return a behaviour: each answer takes so long."""

    def behave(handler: Any, key: str) -> bool:
        time.sleep(seconds)
        return False

    return behave
