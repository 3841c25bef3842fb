"""Stores with all that a report shows, and pages read as a browser does, for the tests of them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import winkfs

NOW = 1_900_000_000  # seconds: after all mtimes
MARKUP = "<img src=x onerror=alert(1)>\"'&</style><script>alert(2)</script>"
NAMES = [
    f"odd/{MARKUP}/a.html", "odd/\U0001f980\U0001f469\u200d\U0001f680/b.html",
    "odd/new\nline\x1b[31m/c",
    b"odd/not \xff utf-8/d.bin", "odd/\u202eright to left/e", "odd/" + "long" * 60 + "/f.txt",
    "//double//slash", "/", "http://example.org/page.html", "*[?", "javascript:alert(1)/g",
]  # fmt: skip


def make(base: Path) -> Path:
    """Make a container with columns, dead entries, odd names and compressed contents."""
    columns = {"lang": "string", "score": "float64", "day": "date"}
    with winkfs.create(base, compress="zstd", columns=columns) as made:
        kinds = ("html", "JPG", "txt", "7", "tar.gz")
        names = [
            f"{'abcdef'[n % 6]}/{n % 13}/{n % 4}/{n}.{kinds[n % len(kinds)]}" for n in range(600)
        ]
        for number, name in enumerate(names):
            lang = ("de", "en", None)[number % 3]
            made.put(
                name,
                b"some words, and others. " * (number % 97),
                mtime=NOW - number**3,
                columns={"lang": lang, "score": number / 7},
            )
        for number, name in enumerate(NAMES):
            made.put(name, bytes(5000 + 900 * number), mtime=NOW + 5)
        made.sync()
        for number in range(0, 600, 3):
            made.put(names[number], b"anew " * (number % 50), mtime=NOW - number)
    winkfs.reindex(base)
    return base


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data
