"""Reading in the jobs: columns of a container or data set as of one generation; hashes, titles and
languages."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

import winkfs.spark
from winkfs.arrow import arrays
from winkfs.arrow.arrays import layout, views
from winkfs.dataset.snapshot import Snapshot
from winkfs.results.digestshard import MAX_LANG, MAX_TITLE
from winkfs.spark.jobs.tasks import cores
from winkfs.spark.reading.fetch import NEEDED, fetcher
from winkfs.spark.reading.options import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEARCHED: Final = 256 << 10  # bytes of a document in which title and language are searched
MAX_TITLE_MARKUP: Final = 16 << 10  # bytes of a title in the document, entities and spaces included
# [tT] instead of re.IGNORECASE, which is slower because it has no first byte to search for.
# *+ and no < in a tag, because an unclosed one would be searched again from each of its bytes.
_OPEN: Final = re.compile(rb"<[tT][iI][tT][lL][eE](?:\s[^<>]*+)?>")
_CLOSE: Final = re.compile(rb"</[tT][iI][tT][lL][eE]")
_SPACE: Final = re.compile(r"\s+")
_HTML: Final = re.compile(rb"<[hH][tT][mM][lL]\s[^<>]*+>")
_META: Final = re.compile(rb"<[mM][eE][tT][aA]\s[^<>]*+>")
_ATTRIBUTE: Final = re.compile(
    rb"""(?<![\w:-])([\w:-]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))"""
)
_LANG: Final = re.compile(rb"[a-z]{2,3}(?:-[a-z0-9]{1,8})*")
_META_NAMES: Final = (b"content-language", b"language", b"og:locale")  # by preference
_MMH3: Final[Callable[[Any], bytes]] = getattr(mmh3, "mmh3_x64_128_digest", None) or (
    lambda data: mmh3.hash_bytes(bytes(data), 0, True)
)  # mmh3 4
COLUMNS: Final = ("name_raw", "size", "mtime_ns")
SCHEMA: Final = (
    "name binary, size bigint, mtime_ns bigint, xxh3 bigint, mmh3 binary, title binary, "
    "lang binary, error string"
)
Batches = Iterator["pa.RecordBatch"]
Change = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
TASK_BYTES: Final = 128 << 20  # bytes of content for a task
MIN_TASK_BYTES: Final = 4 << 20  # bytes of content that are worth a task


def hashes(column: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Return XXH3-64 and MurmurHash3 x64 128 of each value, seed 0: uint64[n], uint8[n, 16]."""
    n = len(column)
    xxh3 = np.fromiter(map(xxhash.xxh3_64_intdigest, views(column)), np.uint64, n)
    mmh3_bytes = np.frombuffer(b"".join(map(_MMH3, views(column))), np.uint8)
    return xxh3, mmh3_bytes.reshape(n, 16)


def titles(column: pa.Array) -> list[bytes]:
    """Return the titles of HTML documents, UTF-8, at most MAX_TITLE bytes; b"": it has none."""
    ends, data = layout(column)
    return [title_of(data, a, min(b, a + SEARCHED)) for a, b in itertools.pairwise(ends.tolist())]


def languages(column: pa.Array) -> list[bytes]:
    """Return the languages that HTML documents declare, see `language_of`."""
    ends, data = layout(column)
    pairs = itertools.pairwise(ends.tolist())
    return [language_of(data, a, min(b, a + SEARCHED)) for a, b in pairs]


def language_of(data: Any, start: int, stop: int) -> bytes:
    """Return the language of <html lang> or <html xml:lang>; else of <meta> content-language,
    language or og:locale; as "de" or "pt-BR". b"": none is declared, or it is not valid.

    cost  a document without <html lang> is searched twice
    """
    opened = _HTML.search(data, start, stop)
    if opened is not None:
        found = _attributes(opened[0])
        for name in (b"lang", b"xml:lang"):
            if lang := _tag(found.get(name, b"")):
                return lang
    declared: dict[bytes, bytes] = {}
    for meta in _META.finditer(data, start, stop):
        found = _attributes(meta[0])
        for key in (b"http-equiv", b"name", b"property"):
            what = found.get(key, b"").lower()
            if what in _META_NAMES and (lang := _tag(found.get(b"content", b""))):
                declared.setdefault(what, lang)
    return next((declared[what] for what in _META_NAMES if what in declared), b"")


def _attributes(tag: bytes) -> dict[bytes, bytes]:
    """Return the attributes of an HTML tag; of two with one name the first counts."""
    found: dict[bytes, bytes] = {}
    for name, *values in _ATTRIBUTE.findall(tag):
        found.setdefault(name.lower(), b"".join(values))
    return found


def _tag(text: bytes) -> bytes:
    """Return a language as in BCP 47, the first of several; b"": it is none."""
    word = text.split(b",")[0].strip().replace(b"_", b"-").split(b".")[0].lower()
    if len(word) > MAX_LANG or not _LANG.fullmatch(word):
        return b""
    first, *rest = word.split(b"-")
    cases = {2: bytes.upper, 4: bytes.title}  # a region, a script
    return b"-".join([first, *(cases.get(len(part), bytes)(part) for part in rest)])


def title_of(data: Any, start: int, stop: int) -> bytes:
    """Return the first <title> in a range of the data; b"": there is none."""
    opened = _OPEN.search(data, start, stop)
    if opened is None:
        return b""
    stop = min(opened.end() + MAX_TITLE_MARKUP, stop)
    closed = _CLOSE.search(data, opened.end(), stop)
    raw = bytes(data[opened.end() : closed.start() if closed else stop])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("cp1252", "replace")  # as browsers decode latin-1
    text = _SPACE.sub(" ", html.unescape(text).replace("\0", "")).strip()
    cut = text.encode("utf-8", "replace")[:MAX_TITLE]
    return cut.decode("utf-8", "ignore").encode()  # without part of a character


def hashed(spark: SparkSession, source: Snapshot, *, title: bool, fail_fast: bool) -> DataFrame:
    """Return a row of SCHEMA for each document; `error` is null, or why its content cannot be read.

    title    search titles and languages; else they are empty
    cost     reads all content once
    """
    return of_content(
        spark, source, COLUMNS, lambda batch: hash_batch(batch, title), SCHEMA, fail_fast=fail_fast
    )


def hash_batch(batch: pa.RecordBatch, title: bool) -> pa.RecordBatch:
    """Convert a batch of COLUMNS, content and _error to SCHEMA."""
    name, size, mtime = (batch.column(name) for name in COLUMNS)
    content = batch.column("content")
    xxh3, mmh3 = hashes(content)
    nothing = [b""] * len(batch)
    found, langs = (titles(content), languages(content)) if title else (nothing, nothing)
    columns = [
        name, size, mtime, arrays.column(xxh3.view(np.int64)), arrays.rows(mmh3),
        arrays.binaries(found), arrays.binaries(langs), batch.column("_error"),
    ]  # fmt: skip
    names = ["name", "size", "mtime_ns", "xxh3", "mmh3", "title", "lang", "error"]
    return pa.RecordBatch.from_arrays(columns, names)


class Kept(ExitStack):
    """Keeps DataFrames that are used more than once on disk, until the block ends."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        frame = frame.persist(StorageLevel.DISK_ONLY)
        self.callback(frame.unpersist)
        return frame


def read(
    spark: SparkSession,
    source: Snapshot,
    columns: Sequence[str],
    *,
    fail_fast: bool = True,
    **options: Any,
) -> DataFrame:
    """Return columns of all files (see `winkfs.spark.reading.options`), in disk order.

    fail_fast   damage is an error; else a row with null content and the reason in `_error`
    options     further ones, see `winkfs.spark.reading.options`
    """
    return winkfs.spark.read(
        spark, source.root, columns=columns, mode="FAILFAST" if fail_fast else "PERMISSIVE",
        content="inline" if "content" in columns else "none",
        asOf=str(source.generation) if source.generation else None, **options,
    )  # fmt: skip


def of_content(
    spark: SparkSession,
    source: Snapshot,
    columns: Sequence[str],
    change: Change,
    schema: str,
    *,
    fail_fast: bool,
) -> DataFrame:
    """Return a DataFrame of the results of `change` for batches of `columns`, `content`, `_error`.

    The content is read in the worker that processes it, and does not pass through the JVM.
    """
    size = sum(shard.record.content for shard in source.shards)
    tasks = max(-(-size // TASK_BYTES), min(size // MIN_TASK_BYTES, cores(spark)), 1)
    needed = list(dict.fromkeys([*columns, *NEEDED, "_error"]))
    frame = read(spark, source, needed, fail_fast=fail_fast, minPartitions=tasks)
    fetch = fetcher("FAILFAST" if fail_fast else "PERMISSIVE")

    def run(batches: Batches) -> Batches:
        return map(change, fetch(batch for batch in batches if len(batch)))

    return frame.mapInArrow(run, schema)


def shard_column(source: Snapshot) -> str:
    """Return the column that identifies the shards of a snapshot: `_contid`, which joins faster, or
    `_container` if two shards have one CONTID."""
    contids = {shard.record.contid for shard in source.shards}
    return "_contid" if len(contids) == len(source.shards) else "_container"


def numbered(frame: DataFrame, source: Snapshot) -> DataFrame:
    """Replace `shard_column` by `shard int`, the number of the shard in the snapshot."""
    from pyspark.sql import functions as F

    column = shard_column(source)
    by_path = column == "_container"
    numbers = [(s.base if by_path else s.record.contid, i) for i, s in enumerate(source.shards)]
    schema = f"{column} {FIELDS[column]}, shard int"
    table = frame.sparkSession.createDataFrame(numbers, schema)
    return frame.join(F.broadcast(table), column).drop(column)


def mapped(frame: DataFrame, change: Change, schema: str) -> DataFrame:
    """Return a DataFrame of the results of `change` for each Arrow batch that is not empty."""

    def run(batches: Batches) -> Batches:
        return (change(batch) for batch in batches if len(batch))

    return frame.mapInArrow(run, schema)
