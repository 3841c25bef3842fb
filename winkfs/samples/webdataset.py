"""WebDataset: shards are tar files, in which consecutive files of one stem are a sample.

The stem, or key, of `de/a.tar.gz` is `de/a`, and `tar.gz` is its extension: the last part of a name
is cut at its first dot. Readers skip files without an extension. Columns of a sample are
in a file KEY.json.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, Final

from winkfs.units import column_json

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
NO_EXTENSION: Final = b"bin"
COLUMNS: Final = b"json"  # extension of the file with columns
COLUMNS_TOO: Final = b"columns.json"  # where the sample has a json
PATH: Final = "__path__"  # in it: the name of the one file of a sample with a number as its key
KEY: Final = re.compile(rb"((?:.*/|)[^./]+)\.([^/]*)", re.DOTALL)
META: Final = re.compile(rb"__[^/]*__(?:$|/)")  # names that readers skip
SHORT: Final = re.compile(rb"[A-Za-z0-9]{1,16}")


def split(name: bytes) -> tuple[bytes, bytes] | None:
    """Return the key and the extension of a file; None: readers skip it."""
    found = KEY.fullmatch(name)
    if found is None or not found[2]:
        return None
    return found[1], found[2]


def sample_of(name: bytes) -> tuple[bytes, bytes] | None:
    """Return the key and the extension with which a file of a store is written; None: no reader
    would find it, because its last part begins with a dot or ends with its only one, or for a
    name such as __meta__."""
    last = name.rpartition(b"/")[2]
    if not last or META.match(name):
        return None
    return split(name) if b"." in last else (name, NO_EXTENSION)


def extension_of(name: bytes) -> bytes:
    """Return a plain extension for a file of any name, without its dot."""
    last = name.rpartition(b"/")[2].rpartition(b".")
    return last[2].lower() if last[1] and SHORT.fullmatch(last[2]) else NO_EXTENSION


def member(name: bytes, size: int, mtime: int) -> bytes:
    """Return the header of a member, of GNU tar.

    size   bytes
    mtime  seconds since the epoch
    """
    info = tarfile.TarInfo(os.fsdecode(name))
    info.size, info.mtime = size, mtime
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """Return the bytes between the data of a member and the next header."""
    return bytes(-size % BLOCK)


def columns_text(values: Mapping[str, Any]) -> bytes:
    """Return the values of columns as JSON: times as ISO 8601, decimals as text, bytes as
    base64."""
    found = {name: column_json(value) for name, value in values.items()}
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")


def brace_list(text: str) -> list[str]:
    """Return the paths of a brace list: shard-{000..002}.tar, {a,b}-{0..3}.tar.

    raises  ValueError for a range whose end is before its start
    """
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if span is None and "," not in found[1]:
        return [text]
    words: Iterable[str] = found[1].split(",")
    if span is not None:
        first, last = int(span[1]), int(span[2])
        if last < first:
            raise ValueError(f"{text}: the range {found[0]} ends before it starts")
        width = len(span[1]) if span[1].startswith("0") else 0
        words = (f"{number:0{width}}" for number in range(first, last + 1))
    head, tail = text[: found.start()], text[found.end() :]
    return [head + word + rest for word in words for rest in brace_list(tail)]
