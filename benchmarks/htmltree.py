"""A tree of HTML files like those of a crawl, made once of the HTML that this machine has."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from samples import SEED

FOLDERS: Final = ("/usr/share", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
HTML: Final = (".html", ".htm", ".xhtml")
TEXT: Final = (".txt", ".rst", ".md", ".py")
ENOUGH: Final = 4 << 20  # bytes of HTML below which text has to help
MOST: Final = 64 << 20  # bytes of sources held in memory
MEAN: Final = 27_500  # bytes of a file
PER_FOLDER: Final = 100  # files


def make(place: Path, count: int) -> tuple[Path, str]:
    """A tree of `count` files below `place`, and what it is made of. It is made only once."""
    tree, told = place / f"html-{count}", place / f"html-{count}.txt"
    if not told.exists():
        shutil.rmtree(tree, ignore_errors=True)
        told.write_text(_fill(tree, count))
    return tree, told.read_text()


def _fill(tree: Path, count: int) -> str:
    pool, kind = _sources()
    sizes = np.random.default_rng(SEED).lognormal(0.0, 0.9, count).clip(0.02, 12.0)
    sizes = (sizes * (MEAN / sizes.mean())).astype(int)
    for i, size in enumerate(sizes.tolist()):
        path = tree / f"site{i // PER_FOLDER:04d}" / f"page{i:06d}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_variation(pool[i % len(pool)], i, size))
    return (
        f"{count:,} files, {int(sizes.sum()) / 1e6:,.0f} MB, {sizes.min():,} B to "
        f"{sizes.max() / 1e3:,.0f} kB (log-normal): parts and repetitions of the {len(pool):,} "
        f"{kind} files that the machine has in its documentation and its Python"
    )


def _variation(source: bytes, number: int, size: int) -> bytes:
    """A part of a source, from another place in it each time, repeated where it is too short."""
    start = number * 7919 % len(source)
    head = b"<!-- page %d -->\n" % number
    text = head + source[start:] + source[:start]
    return (text * (size // len(text) + 1))[:size]


def _sources() -> tuple[list[bytes], str]:
    pool = list(_read(HTML))
    if sum(map(len, pool)) >= ENOUGH:
        return pool, "HTML"
    return pool + list(_read(TEXT)), "HTML and text"


def _read(suffixes: tuple[str, ...]) -> Iterator[bytes]:
    total = 0
    for folder in FOLDERS:
        for parent, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = Path(parent, name)
                if path.suffix in suffixes and path.is_file() and path.stat().st_size > 512:
                    yield path.read_bytes()
                    total += path.stat().st_size
                    if total > MOST:
                        return
