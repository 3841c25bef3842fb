"""What winkfs was made for: crawl -> data set -> digests -> dedup -> look-ups in microseconds.

    make demo-pipeline                         or, with winkfs[spark,pipeline] installed:
    python examples/crawl_pipeline.py [--work DIR] [DIR with HTML ...]

The pages are HTML that this machine has in its documentation (or makes of its Python library). They
become WARC files, as a crawler writes them: some pages were fetched from two sites, some changed a
little between two visits. Every answer is held against a plain loop over the pages.
Exit status 0: all answers were right; 1: one was not, or Spark cannot run; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import os
import pydoc
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

import winkfs
import winkfs.digests
from winkfs.archive.webnames import place_of
from winkfs.errors import Refusal

FOLDERS = ("/usr/share", "/usr/local/share")
ENOUGH, MOST = 300, 3000  # pages
LARGEST = 1 << 20  # bytes of a page
FILES = 4  # WARC files
TWINS, CHANGED = 5, 11  # every 5th page was fetched from a mirror, every 11th was fetched twice
MODULES = ("argparse", "ast", "asyncio", "calendar", "codecs", "collections", "csv", "datetime",
           "decimal", "difflib", "email", "enum", "fractions", "gzip", "html", "http", "inspect",
           "io", "json", "logging", "math", "mimetypes", "os", "pathlib", "pickle", "random",
           "re", "shutil", "socket", "sqlite3", "ssl", "statistics", "string", "subprocess",
           "tarfile", "tempfile", "textwrap", "threading", "time", "types", "typing", "unittest",
           "urllib", "uuid", "weakref", "xml", "zipfile", "zlib")  # fmt: skip


class Wrong(Exception):
    """An answer that is not that of a plain loop."""


def expect(right: bool, what: str) -> None:
    if not right:
        raise Wrong(what)


# --- the crawl ---


def pages_below(folder: str) -> Iterator[tuple[str, bytes]]:
    """(path below the folder, content) of the HTML files, in order."""
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            if name.endswith((".html", ".htm")) and path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                if 0 < len(data) <= LARGEST:
                    yield os.path.relpath(path, folder), data


def pages_of_python() -> Iterator[tuple[str, bytes]]:
    """The pages that pydoc makes of modules of the standard library."""
    for name in MODULES:
        with contextlib.suppress(ImportError):  # some are left out where Python is packaged
            document = pydoc.html.document(importlib.import_module(name), name)
            page = pydoc.html.page(f"module {name}", document)
            yield f"pydoc/{name}.html", page.encode("utf-8", "replace")


def gather(folders: tuple[str, ...]) -> dict[str, bytes]:
    """URL -> page, of the first folder that has enough; else of all that there is."""
    pages: dict[str, bytes] = {}
    for number, folder in enumerate(folders):
        for path, data in pages_below(folder):
            pages.setdefault(f"http://site{number}.example/{path}", data)
            if len(pages) >= MOST:
                return pages
        if len(pages) >= ENOUGH:
            return pages
    return pages | {f"http://site.example/{path}": data for path, data in pages_of_python()}


def crawl(pages: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """What a crawler brings home: the pages, copies on a mirror, and second visits."""
    fetched = []
    for number, (url, data) in enumerate(pages.items()):
        fetched.append((url, data))
        if number % TWINS == 0:
            fetched.append((url.replace("http://", "http://mirror."), data))
        if number % CHANGED == 0:
            changed = data.replace(b"</body>", b"<p>Seen %d times.</p></body>" % (number + 2))
            fetched.append((f"{url}?visit=2", changed + b"\n<!-- 2 -->"))
    random.Random(1).shuffle(fetched)
    return fetched


def response(url: str, body: bytes, second: int) -> bytes:
    """A record of WARC 1.0, compressed on its own."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + second))
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: {when}\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{second:012}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\n"
        f"Content-Length: {len(http) + len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + http + body + b"\r\n\r\n", 1)


def write_archives(fetched: list[tuple[str, bytes]], folder: Path) -> list[str]:
    paths = []
    for number in range(FILES):
        path = folder / f"crawl-{number}.warc.gz"
        mine = list(enumerate(fetched))[number::FILES]
        path.write_bytes(b"".join(response(url, body, n) for n, (url, body) in mine))
        paths.append(str(path))
    return paths


# --- the pipeline ---


def said(what: str, summary: dict[str, Any], *names: str) -> None:
    counts = ", ".join(f"{summary[name]:,} {name}" for name in names)
    print(f"{summary['seconds']:>8.2f} s  {what:<46} {counts}", flush=True)


def pipeline(spark: Any, archives: list[str], expected: dict[str, bytes], work: Path) -> None:
    """All jobs, and what has to come out of them."""
    from winkfs.spark.jobs import dedup, digest, group, ingest

    source, clean = str(work / "crawl"), str(work / "clean")
    done = ingest.run(spark, archives, source)
    said(f"winkfs pipeline ingest *.gz {Path(source).name}", done, "files", "bytes", "bad")
    expect((done["files"], done["bad"]) == (len(expected), 0), "not every page was ingested")

    done = digest.run(spark, source, str(work / "digests"))
    said("winkfs pipeline digest crawl digests", done, "files", "bytes", "shards")
    check_digests(work / "digests", expected)

    done = group.run(spark, source, str(work / "by-site"), "split(path, '/')[0]")
    said("winkfs pipeline group crawl by-site --key ...", done, "files", "groups")

    done = dedup.run(spark, source, into=clean)
    said("winkfs pipeline dedup crawl --into clean", done, "groups", "doubles", "bytes")
    with winkfs.open(clean) as left:
        contents = [entry.read() for entry in left.scan()]
    expect(len(contents) == len(set(contents)), "two pages of the clean data set are the same")
    expect(set(contents) == set(expected.values()), "a page got lost with its doubles")

    done = dedup.run(spark, clean, threshold=0.9)
    said("winkfs pipeline dedup clean --near", done, "groups", "doubles")
    expect(done["doubles"] > 0, "no second visit was found")


def check_digests(path: Path, expected: dict[str, bytes]) -> None:
    """Every page is found with its hash and size; how long that takes."""
    with winkfs.digests.open(path) as digests:
        expect(len(digests) == len(expected), "the digest set has another number of pages")
        names = random.Random(2).choices(list(expected), k=20_000)
        digests.get_many(names)  # warm
        start = time.perf_counter()
        found = [digests.get(name) for name in names]
        each = (time.perf_counter() - start) / len(names)
        start = time.perf_counter()
        many = digests.get_many(names)
        bulk = (time.perf_counter() - start) / len(names)
        expect(found == many, "one by one and in bulk the answers differ")
        sums = {url: (xxhash.xxh3_64_intdigest(data), len(data)) for url, data in expected.items()}
        right = all(d and (d.xxh3, d.size) == sums[n] for n, d in zip(names, found, strict=True))
        expect(right, "a digest is not that of the page")
        nowhere = digests.get("nowhere.example/index.html")
        expect(nowhere is None, "a page was found that is not there")
    print(f"{'':12}{len(names):,} look-ups: {1e6 * each:.1f} us each, {1e6 * bulk:.1f} us in bulk")
    name = next(n for n, d in zip(names, found, strict=True) if d and d.title)
    print(f"{'':12}{name}\n{'':12}{digests_text(found[names.index(name)])}")


def digests_text(digest: winkfs.digests.Digest | None) -> str:
    assert digest is not None
    return f"xxh3 {digest.xxh3:016x}, {digest.size:,} bytes, title {digest.title!r}"


def run(folders: tuple[str, ...], work: Path) -> None:
    from winkfs.spark.jobs.session import session

    pages = gather(folders)
    fetched = crawl(pages)
    archives = write_archives(fetched, work)
    size = sum(len(body) for _, body in fetched)
    print(
        f"{len(pages):,} pages of this machine, fetched as {len(fetched):,} ({size:,} bytes) "
        f"into {FILES} WARC files. The result stays in {work}.\n"
    )
    expected = {place_of(url.encode()).name.decode(): body for url, body in fetched}
    start = time.monotonic()
    with session("crawl pipeline") as spark:
        print(f"{time.monotonic() - start:>8.2f} s  start of Spark", flush=True)
        pipeline(spark, archives, expected, work)
    print("\nEvery answer was right.")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="*", help="directories with HTML files")
    parser.add_argument("--work", default="build/pipeline", help="is emptied first")
    arguments = parser.parse_args()
    for folder in arguments.folder:
        if not Path(folder).is_dir():
            parser.error(f"{folder}: no such directory")
    work = Path(arguments.work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        run(tuple(arguments.folder) or FOLDERS, work)
    except (Wrong, Refusal) as error:
        print(f"crawl_pipeline: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("crawl_pipeline: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
