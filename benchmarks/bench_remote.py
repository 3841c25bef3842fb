"""Containers on object storage: requests and bytes, which are the same on every machine, and times
with an injected latency.

    python benchmarks/bench_remote.py [--files 1000000] [--size 2048] [--latency 0.05]

The store is a web server on 127.0.0.1 in a process of its own, which counts what it answers. Rivals
are read through fsspec from the same server: zip and tar, and Parquet with the names sorted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import multiprocessing
import random
import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import winkfs


def serve(folder: str, latency: float, pipe: Any) -> None:
    """Serve ranges of the files of a folder; `/count` answers and resets requests and bytes."""
    seen = [0, 0]
    maps: dict[str, mmap.mmap] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            seen[0] += 1
            time.sleep(latency)
            self.answer(200, b"", {"Content-Length": str(len(self.data() or b"")),
                                   "Accept-Ranges": "bytes"})  # fmt: skip

        def do_GET(self) -> None:
            if self.path == "/count":
                body = json.dumps(seen).encode()
                seen[:] = [0, 0]
                self.answer(200, body)
                return
            seen[0] += 1
            time.sleep(latency)
            data = self.data()
            if data is None:
                self.answer(404, b"")
                return
            match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "bytes=0-"))
            assert match is not None
            first, last = match.groups()
            start = int(first) if first else max(len(data) - int(last), 0)
            stop = min(int(last) + 1 if first and last else len(data), len(data))
            body = data[start:stop]
            seen[1] += len(body)
            self.answer(206, body, {
                "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", "ETag": f'"{len(data)}"',
            })  # fmt: skip

        def data(self) -> mmap.mmap | None:
            name = unquote(self.path).lstrip("/")
            if name not in maps:
                try:
                    with (Path(folder) / name).open("rb") as file:
                        maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except OSError:
                    return None
            return maps[name]

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    pipe.send(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def served(folder: str, latency: float) -> Iterator[str]:
    """Run `serve` in a process -> the URL."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(folder, latency, there), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def counted(url: str) -> tuple[int, int]:
    import urllib3

    found: list[int] = urllib3.request("GET", f"{url}/count").json()
    return found[0], found[1]


def name_of(i: int) -> str:
    return f"site{i // 1000:05}/section/page-{i:08}.html"


def contents(count: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield names, ascending, and contents that do not compress."""
    blob = random.Random(1).randbytes(8 << 20)
    for i in range(count):
        at = i * 8191 % (len(blob) - size)
        yield name_of(i), blob[at : at + size]


def make(folder: Path, count: int, size: int, rivals: bool) -> None:
    with winkfs.create(folder / "c") as c:
        c.put_many(contents(count, size))
    if not rivals:
        return
    with zipfile.ZipFile(folder / "z.zip", "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents(count, size):
            archive.writestr(zipfile.ZipInfo(name), data)
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, bodies = zip(*contents(count, size), strict=True)
    table = pa.table({"path": list(names), "content": pa.array(bodies, pa.binary())})
    pq.write_table(table, folder / "p.parquet", row_group_size=1000, compression="none")


def line(what: str, url: str, act: Callable[[], Any]) -> None:
    counted(url)
    began = time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    requests, size = counted(url)
    print(f"{what:34} {requests:7,} requests {size / 1024:12,.1f} KiB {seconds:8.3f} s", flush=True)


def winkfs_lines(url: str, count: int, size: int, seed: int = 3) -> None:
    base, chosen = f"{url}/c", random.Random(seed).sample(range(count), min(1000, count // 2))
    some = [name_of(i) for i in chosen]

    def cold() -> None:
        with winkfs.open(base) as there:
            assert len(there.read(some[0])) == size

    def directory() -> None:
        with winkfs.open(base) as there:
            prefix = some[1].rpartition("/")[0]
            assert len(list(there.names(glob=f"{prefix}/*"))) == min(1000, count)

    line("winkfs: cold document", url, cold)
    line("winkfs: cold ls of a directory", url, directory)
    with winkfs.open(base) as there:
        there.read(some[0])
        line("winkfs: next document", url, lambda: there.read(some[1]))
        line("winkfs: catalog, all names", url, lambda: sum(1 for _ in there.names()))
        line(f"winkfs: {len(some):,} random documents", url, lambda: list(there.get_many(some)))
        middle = count // 2
        near = [name_of(i) for i in range(middle, min(middle + 1000, count))]
        line(f"winkfs: {len(near):,} documents in order", url, lambda: list(there.get_many(near)))
    with winkfs.open(base) as there:

        def scan() -> None:
            rows = sum(batch.num_rows for batch in there.to_batches())
            assert rows == count

        line("winkfs: scan of all", url, scan)


def rival_lines(url: str, count: int, size: int) -> None:
    import fsspec
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    name = name_of(count // 3)

    def from_zip() -> None:
        with fsspec.open(f"{url}/z.zip", "rb", cache_type="bytes", block_size=1 << 20) as file:
            assert len(zipfile.ZipFile(file).read(name)) == size

    def from_parquet() -> None:
        with fsspec.open(f"{url}/p.parquet", "rb", cache_type="none") as file:
            found = pq.read_table(file, filters=ds.field("path") == name)
            assert found.num_rows == 1

    line("zip by fsspec: cold document", url, from_zip)
    line("Parquet (1,000 a group): cold", url, from_parquet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument(
        "--rivals", action="store_true", help="zip and Parquet, too (needs aiohttp)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winkfs-bench-") as folder:
        make(Path(folder), options.files, options.size, options.rivals)
        cat = (Path(folder) / "c.cat").stat().st_size
        print(f"{options.files:,} files of {options.size:,} bytes, catalog {cat:,} bytes, "
              f"latency {options.latency * 1000:.0f} ms")  # fmt: skip
        with served(folder, options.latency) as url:
            winkfs_lines(url, options.files, options.size)
            if options.rivals:
                rival_lines(url, options.files, options.size)


if __name__ == "__main__":
    main()
