"""A store of objects on 127.0.0.1, by plain HTTP and by S3, in a process of its own, which counts
requests and the bytes of contents.

served  the files of a folder; it can be slow on order
moto    moto, a server of the protocol of S3 that others wrote; it begins empty
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET: Final = "bucket"
PIECE: Final = 128 << 10  # bytes that are sent at a time where the rate is bounded
S3: Final = {  # settings of object_store, which Lance and Delta use
    "aws_access_key_id": "any", "aws_secret_access_key": "any", "aws_region": "us-east-1",
    "allow_http": "true",
}  # fmt: skip


class Store:
    """An address, and what is asked of it.

    url       http://HOST/bucket
    endpoint  of S3; the bucket is `bucket`
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.url = f"{self.endpoint}/{BUCKET}"

    def counted(self) -> tuple[int, int]:
        """Return the requests, and bytes read and written by them, since the last call."""
        import urllib3

        found: list[int] = urllib3.PoolManager().request("GET", f"{self.endpoint}/count").json()
        return found[0], found[1]

    def fill(self, folder: Path) -> None:
        """Upload the files of a folder. Raises OSError."""
        import urllib3

        pool = urllib3.PoolManager()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                url = f"{self.url}/{path.relative_to(folder).as_posix()}"
                answer = pool.request("PUT", url, body=path.read_bytes())
                if answer.status != 200:
                    raise OSError(f"{url}: status {answer.status}")


@contextlib.contextmanager
def served(folder: Path, latency: float = 0.0, rate: float = 0.0) -> Iterator[Store]:
    """Serve a folder.

    latency  seconds before each answer
    rate     bytes a second, of all answers together; 0: as fast as it can
    """
    with _in_a_process(_serve, folder, latency, rate) as store:
        yield store


@contextlib.contextmanager
def moto() -> Iterator[Store]:
    """Start moto with an empty bucket."""
    with _in_a_process(_moto) as store:
        import urllib3

        urllib3.PoolManager().request("PUT", store.url)
        store.counted()
        yield store


@contextlib.contextmanager
def _in_a_process(serve: Callable[..., None], *arguments: Any) -> Iterator[Store]:
    """Have a function serve, which is called with a connection for its port."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(*arguments, there), daemon=True
    )
    process.start()
    try:
        yield Store(here.recv())
    finally:
        process.terminate()
        process.join()


class _Rate:
    """A bound on the bytes that all connections send together."""

    def __init__(self, rate: float) -> None:
        self._rate, self._next, self._lock = rate, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        with self._lock:
            self._next = max(self._next, time.monotonic() - 0.005) + size / self._rate
            left = self._next - time.monotonic()
        if left > 0.002:
            time.sleep(left)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    latency: float
    rate: _Rate | None
    seen: list[int]  # requests, bytes
    lock: threading.Lock
    files: dict[str, int]  # open ones
    parts: dict[tuple[str, int], bytes]  # of uploads
    head = False

    def do_HEAD(self) -> None:
        self.head = True
        self.do_GET()
        self.head = False

    def do_GET(self) -> None:
        place, asked = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        if place.path == "/count":
            with self.lock:
                body = json.dumps(self.seen).encode()
                self.seen[:] = [0, 0]
            self._answer(200, body)
            return
        if self.latency:
            time.sleep(self.latency)
        key = unquote(place.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if not key and "list-type" in asked:
            body = self._listed(*(asked.get(name, [""])[0] for name in
                                  ("prefix", "delimiter", "start-after")))  # fmt: skip
            self._count(len(body))
            self._answer(200, body)
            return
        path = self.folder / key
        if not path.is_file():
            self._count(0)
            self._answer(404, b"")
            return
        self._send_file(key, path)

    def _send_file(self, key: str, path: Path) -> None:
        if key not in self.files:
            self.files[key] = os.open(path, os.O_RDONLY)
        found = os.fstat(self.files[key])
        if self.headers.get("If-Match", _etag(found)) != _etag(found):
            self._count(0)
            self._answer(412, b"")
            return
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, stop, headers = 0, found.st_size, {}
        if match is not None:
            first, last = match.groups()
            start = int(first) if first else max(found.st_size - int(last), 0)
            stop = min(int(last) + 1 if first and last else found.st_size, found.st_size)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.st_size}"
        self._answer(206 if headers else 200, b"", headers | {
            "Content-Length": str(stop - start), "Accept-Ranges": "bytes",
            "ETag": _etag(found),
            "Last-Modified": formatdate(found.st_mtime, usegmt=True),
        })  # fmt: skip
        self._count(0 if self.head else stop - start)
        self.wfile.flush()
        with contextlib.suppress(OSError):
            while start < stop and not self.head:
                step = min(stop - start, PIECE if self.rate else 1 << 30)
                if self.rate:
                    self.rate.wait(step)
                start += os.sendfile(self.connection.fileno(), self.files[key], start, step)

    def _listed(self, prefix: str, delimiter: str, after: str) -> bytes:
        parts, common = list[str](), set[str]()
        for path in sorted(self.folder.rglob("*")):
            key = path.relative_to(self.folder).as_posix()
            if not path.is_file() or not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                common.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            found = path.stat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><ETag>"
                f"{_etag(found)}</ETag><Size>{found.st_size}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        parts += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
                  for one in sorted(common)]  # fmt: skip
        head = (f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>1000000</MaxKeys>"
                f"<KeyCount>{len(parts)}</KeyCount><IsTruncated>false</IsTruncated>")  # fmt: skip
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        return f"<ListBucketResult {space}>{head}{''.join(parts)}</ListBucketResult>".encode()

    # --- writing ---

    def _body(self) -> tuple[str, dict[str, list[str]], bytes]:
        """Read what is sent -> key, query, and bytes, which are counted."""
        place = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._count(len(body))
        if self.latency:
            time.sleep(self.latency)
        key = unquote(place.path).removeprefix(f"/{BUCKET}").lstrip("/")
        return key, parse_qs(place.query, keep_blank_values=True), body

    def do_PUT(self) -> None:
        key, asked, body = self._body()
        if "uploadId" in asked:
            with self.lock:
                self.parts[asked["uploadId"][0], int(asked["partNumber"][0])] = body
            self._answer(200, b"", {"ETag": f'"{len(body)}"'})
        else:
            self._write(key, body)

    def do_POST(self) -> None:
        key, asked, body = self._body()
        if "delete" in asked:
            names = re.findall("<Key>(.*?)</Key>", body.decode())
            for name in names:
                self._unlink(unescape(name))
            gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())
        elif "uploads" in asked:
            made = f"<InitiateMultipartUploadResult><UploadId>{secrets.token_hex(8)}</UploadId>"
            self._answer(200, f"{made}</InitiateMultipartUploadResult>".encode())
        else:
            with self.lock:
                mine = sorted(part for part in self.parts if part[0] == asked["uploadId"][0])
                data = b"".join(self.parts.pop(part) for part in mine)
            self._write(key, data)

    def do_DELETE(self) -> None:
        self._unlink(self._body()[0])
        self._answer(204, b"")

    def _write(self, key: str, data: bytes) -> None:
        """Write an object under the conditions of the request, all or nothing."""
        path, wanted = self.folder / key, self.headers.get("If-Match")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            there = path.stat() if path.exists() else None
            absent = self.headers.get("If-None-Match") == "*"
            if (absent and there) or (wanted and (there is None or _etag(there) != wanted)):
                self._answer(412, b"")
                return
            path.unlink(missing_ok=True)  # who reads the old one has its file open
            path.write_bytes(data)
            self.files.pop(key, None)
            etag = _etag(path.stat())
        body = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag>"
        self._answer(200, f"{body}</CompleteMultipartUploadResult>".encode(), {"ETag": etag})

    def _unlink(self, key: str) -> None:
        with self.lock:
            (self.folder / key).unlink(missing_ok=True)
            self.files.pop(key, None)

    def _count(self, size: int) -> None:
        with self.lock:
            self.seen[0] += 1
            self.seen[1] += size

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if not self.head:
            self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Print nothing."""


def _etag(found: os.stat_result) -> str:
    return f'"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *given: object) -> None:
        """Print nothing where a client has gone."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().server_bind()


def _serve(folder: Path, latency: float, rate: float, pipe: Any) -> None:
    _Handler.folder, _Handler.latency = folder, latency
    _Handler.rate = _Rate(rate) if rate else None
    _Handler.seen, _Handler.lock, _Handler.files = [0, 0], threading.Lock(), {}
    _Handler.parts = {}
    server = _Server(("127.0.0.1", 0), _Handler)
    pipe.send(server.server_port)
    server.serve_forever()


def _moto(port: Any) -> None:
    """Serve until the process ends."""
    import logging

    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    inner, seen, lock = DomainDispatcherApplication(create_backend_app), [0, 0], threading.Lock()

    def counting(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/count":
            with lock:
                body = json.dumps(seen).encode()
                seen[:] = [0, 0]
            start("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        parts = list(inner(environ, start))
        with lock:
            seen[0] += 1
            seen[1] += int(environ.get("CONTENT_LENGTH") or 0) + sum(map(len, parts))
        return parts

    server = make_server("127.0.0.1", 0, counting, True, request_handler=MotoRequestHandler)
    port.send(server.server_port)
    server.serve_forever()
