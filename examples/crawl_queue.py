"""Crawlers -> Ring Page buffers -> a queue -> consumers -> a data set -> Spark.

    make demo-queue                         or, with winkfs[spark] installed:
    python examples/crawl_queue.py [--work DIR] [--pages N] [DIR with HTML ...]

Processes crawl a web server on 127.0.0.1, a proxy for sites made of HTML that this machine has.
They reach the queue now and then: meanwhile pages wait in a ring, in memory and then on the disk.
The queue takes each page once, and hands out front pages first. Consumers lease pages, write them
as files, and acknowledge what is durable; one of them is killed before it does so, and its pages
come again. Every answer is held against a plain loop.
Exit status 0: all answers were right; 1: one was not, or Spark cannot run; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import winkfs
from winkfs.dataset.dataset import create as create_dataset
from winkfs.errors import Refusal
from winkfs.spark.jobs.session import session
from winkfs.stores import ledgerq, ringpage
from winkfs.stores.ledgerq import HIGH, LOW

FOLDERS = ("/usr/share", "/usr/local/share")
LARGEST = 256 << 10  # bytes of a page that is crawled
CRAWLERS, CONSUMERS = 3, 2  # and a consumer that is killed
TWICE = 5  # every fifth page is linked from two places, so two crawlers fetch it
PAGE_SIZE, PAGES = 512 << 10, 64  # of a ring: bytes, and how many
BURST = 50  # pages that a crawler fetches while the way to the queue is closed
BATCH = 25  # messages that a consumer leases at once
LEASE = 3.0  # seconds


class Wrong(Exception):
    """An answer that is not that of a plain loop."""


def expect(right: bool, what: str) -> None:
    if not right:
        raise Wrong(what)


def gather(folders: Iterable[str], most: int) -> dict[str, bytes]:
    """Host and path -> page, of the HTML files below folders."""
    pages: dict[str, bytes] = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.html")):
            if len(pages) < most and path.is_file() and 0 < path.stat().st_size <= LARGEST:
                below = path.relative_to(folder)
                pages[quote(f"{below.parts[0]}.example/{below}")] = path.read_bytes()
    return pages


@contextlib.contextmanager
def web(pages: dict[str, bytes]) -> Iterator[int]:
    """A proxy that knows the pages -> its port on 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = pages.get(self.path.removeprefix("http://"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def crawl(work: Path, number: int, links: list[str], port: int, told: Any) -> None:
    """A process. A ring has one, which fills and empties it; the queue is everybody's."""
    proxy, counts = HTTPConnection("127.0.0.1", port), Counter[str]()
    path = work / f"ring-{number}"
    ringpage.create(path, pages=PAGES, page_size=PAGE_SIZE, full="refuse")
    with (
        ringpage.Ring(path, "a", memory=PAGE_SIZE) as ring,
        ledgerq.Queue(work / "queue", "a", shared=True) as queue,
    ):
        for done, name in enumerate(links, 1):
            proxy.request("GET", f"http://{name}")
            answer = proxy.getresponse()
            body = answer.read()
            counts[f"status {answer.status}"] += 1
            if answer.status == 200:
                record = name.encode() + b"\n" + body
                try:
                    ring.push(record)
                except ringpage.Full:  # nothing is lost: empty it first
                    forward(ring, queue, counts)
                    ring.push(record)
            if done % BURST == 0 or done == len(links):
                forward(ring, queue, counts)
        counts["bytes written to rings"] = ring.stats()["written_bytes"]
    told.put(counts)


def forward(ring: ringpage.Ring, queue: ledgerq.Queue, counts: Counter[str]) -> None:
    """A record leaves the ring when the queue has it, which knows those that come again."""
    while (record := ring.peek()) is not None:
        name, _, body = record.partition(b"\n")
        key = name.decode()
        _, new = queue.push_once(
            body, key, window=86_400, priority=HIGH if key.endswith("/index.html") else LOW,
            headers={"name": key}, compress=1,
        )  # fmt: skip
        counts["pushed" if new else "known to the queue"] += 1
        ring.pop()
    queue.sync()


def consume(work: Path, crawled: Any, told: Any, victim: bool) -> None:
    """A process. A batch is one commit of the data set; acknowledged is what is durable."""
    counts = Counter[str]()
    with (
        ledgerq.Queue(work / "queue", "a", shared=True) as queue,
        winkfs.open(work / "pages", "a") as pages,
    ):
        while True:
            messages = queue.pop_many(BATCH, visible=LEASE)
            if not messages:
                if crawled.is_set() and not queue.pending():  # nor is any leased to others
                    break
                time.sleep(0.05)
                continue
            counts["came again"] += sum(message.deliveries > 1 for message in messages)
            pages.put_many((m.headers["name"], m.payload) for m in messages)
            pages.sync()
            if victim:  # who comes again finds the same names: to write them twice does no harm
                told.put(len(messages))
                time.sleep(600)
            counts["consumed"] += queue.ack(*(message.id for message in messages))
    told.put(counts)


def pipeline(pages: dict[str, bytes], work: Path) -> Counter[str]:
    """Crawl all pages into `work`/pages -> what the processes counted."""
    links = [*pages, *list(pages)[::TWICE], "nowhere.example/gone.html"]
    random.Random(1).shuffle(links)
    ledgerq.create(str(work / "queue"), by_priority=True)
    create_dataset(work / "pages").close()
    context = multiprocessing.get_context("spawn")
    told, crawled, found = context.SimpleQueue(), context.Event(), Counter[str]()

    def start(what: Any, *arguments: Any) -> Any:
        process = context.Process(target=what, args=(work, *arguments), daemon=True)
        process.start()
        return process

    with web(pages) as port:
        crawlers = [start(crawl, i, links[i::CRAWLERS], port, told) for i in range(CRAWLERS)]
        victim = start(consume, crawled, lost := context.SimpleQueue(), True)
        while lost.empty():
            expect(not any(p.exitcode for p in (*crawlers, victim)), "a process has failed")
            time.sleep(0.01)
        victim.kill()
        consumers = [start(consume, crawled, told, False) for _ in range(CONSUMERS)]
        for processes in (crawlers, consumers):
            for process in processes:
                process.join()
                expect(process.exitcode == 0, "a process has failed")
                found.update(told.get())
            crawled.set()
    expect(found["status 404"] == 1, "a page that is not there was found")
    expect(found["status 200"] == len(links) - 1, "not every link was followed")
    expect(found["pushed"] == len(pages), "not every page was queued once")
    expect(found["consumed"] == len(pages), "not every message was acknowledged once")
    expect(found["came again"] >= lost.get(), "what the killed one had leased did not come again")
    return found


def by_host(spark: Any, work: Path) -> dict[str, tuple[int, int, int]]:
    """Host -> pages, bytes, words (what stands between white space)."""
    words = r"size(filter(split(decode(content, 'ISO-8859-1'), '[ \t-\r]+'), w -> w != ''))"
    table = spark.read.format("winkfs").load(str(work / "pages"))
    rows = table.selectExpr("split(path, '/')[0] AS host", "size", f"{words} AS words")
    found = rows.groupBy("host").agg({"host": "count", "size": "sum", "words": "sum"}).collect()
    return {r["host"]: (r["count(host)"], r["sum(size)"], r["sum(words)"]) for r in found}


def plainly(pages: dict[str, bytes]) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for name, data in pages.items():
        count, size, words = found.get(host := name.split("/")[0], (0, 0, 0))
        found[host] = count + 1, size + len(data), words + len(data.split())
    return found


def run(pages: dict[str, bytes], work: Path) -> None:
    start = time.monotonic()
    found = pipeline(pages, work)
    with winkfs.open(work / "pages") as left:
        expect({entry.name: entry.read() for entry in left.scan()} == pages, "other pages")
    print(f"{len(pages):,} pages in {time.monotonic() - start:.1f} s; they stay in {work}.")
    for what, count in sorted(found.items()):
        print(f"{count:>12,} {what}")
    with session("crawl queue") as spark:
        table = by_host(spark, work)
    expect(table == plainly(pages), "Spark counts otherwise than a plain loop")
    for host, (count, size, words) in sorted(table.items()):
        print(f"{host}: {count:,} pages, {size:,} bytes, {words:,} words")
    print("Every answer was right.")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="*", help="directories with HTML files")
    parser.add_argument("--pages", type=int, default=1000, help="so many at most (1000)")
    parser.add_argument("--work", default="build/queue", help="is emptied first")
    arguments = parser.parse_args()
    pages = gather(arguments.folder or FOLDERS, arguments.pages)
    if not pages:
        parser.error("no HTML file: name a directory that has some")
    work = Path(arguments.work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        run(pages, work)
    except (Wrong, Refusal) as error:
        print(f"crawl_queue: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("crawl_queue: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
