"""Job `dedup`: a table of duplicate documents, or a data set without them.

Exact duplicates have equal XXH3-64, size and MurmurHash3 128; an equal 64-bit hash alone does not
suffice. The oldest of equal documents stays (least mtime, then least name); the others are its
duplicates.

Near duplicates are found by MinHash in bands, and then compared.

    words       runs of letters and digits of the text without markup, in lower case
    shingle     K words in a row; its hash is made of the MurmurHash3 x64 (low 64 bits) of each
    signature   for each of ROWS * bands hash functions the least value over all shingles
    band        ROWS values of a signature; documents with one band in common may be similar
    estimate    the share of equal values of two signatures
    similar     the Jaccard index of the two sets of shingles is at least the threshold

Two documents whose shingles have a Jaccard index s agree in a value with probability s, and in at
least one band with 1 - (1 - s^ROWS)^bands: with 16 bands 0.9998 at s = 0.8, 0.64 at 0.5. Pairs of
such documents whose estimate is below the threshold by more than MARGIN are not compared.

The contents of the other pairs are read again in the task that compares them, and a document that
several are compared with is read once.

A document is compared, by its content, with the oldest of each band that it shares. It is a
duplicate if an older document that stays is similar to it. So a chain of small changes does not
make duplicates of two documents that are not similar.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from winkformats.arrays import Int64, UInt64, among
from winkformats.disk.paths import absolute, directory_of
from winkfs.arrow import arrays
from winkfs.arrow.arrays import layout
from winkfs.dataset.manifest import check_free, is_dataset
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.snapshot import Snapshot, snapshot
from winkfs.dataset.transaction import begun
from winkfs.errors import FileExists, NotAllowed
from winkfs.names import to_path, to_str
from winkfs.spark.jobs.reading import Kept, hashed, mapped, of_content, read
from winkfs.spark.jobs.session import Bad, Report, ignore, program
from winkfs.spark.jobs.tasks import guarded
from winkfs.spark.reading.fetch import fetcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BROADCAST: Final = 2_000_000  # names that are sent to every worker
COLUMNS: Final = ("name_raw", "size", "mtime_ns")
SIGNED: Final = (
    "id bigint, name binary, size bigint, mtime_ns bigint, pointer bigint, bands array<bigint>, "
    "signature binary, error string"
)
TABLE: Final = (
    "path string, same_as string, size bigint, mtime_ns bigint, name_raw binary, same_as_raw binary"
)
K: Final = 5  # words of a shingle
ROWS: Final = 4
BANDS: Final = 16
MAX_COMPARED: Final = 1 << 20  # bytes of a document that are compared
MARGIN: Final = 3.0  # standard errors of an estimate: of pairs at the threshold it leaves out 0.2 %
EMPTY: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # in the signature of a document without words
_MARKUP: Final = re.compile(
    rb"<(?:[a-rt-z/][^>]*>|!--.*?-->|(script|style)\b.*?</\1\s*>|[s!?][^>]*>)", re.DOTALL
)
_LETTERS: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyz") | set(range(128, 256))
# Translating all else to blanks and splitting is faster than a pattern of words.
_BLANKS: Final = bytes(byte if byte in _LETTERS else 32 for byte in range(256))
_GOLD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX: Final = (np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(0xC4CE_B9FE_1A85_EC53))
_SHIFT: Final = np.uint64(33)
POSITION: Final = 44  # bits of an id that are the position; the others are the number of the shard
MAX_TASKS: Final = 16  # tasks over which the comparisons with one document are spread
PLACES: Final = ("id", "pointer", "size", "other_id", "other_pointer", "other_size")
SIMILAR: Final = "id bigint, other bigint"


def run(
    spark: SparkSession,
    source: str,
    *,
    table: str | None = None,
    delete: bool = False,
    into: str | None = None,
    threshold: float | None = None,
    min_size: int = 1,
    fail_fast: bool = False,
    bad: Report = ignore,
) -> dict[str, Any]:
    """Find the duplicates in `source`.

    table       a Parquet folder to create, with a row for each duplicate: path, same_as (the
                document that stays), size, mtime_ns, name_raw, same_as_raw
    delete      delete the duplicates from the data set `source`, with one commit
    into        a data set to create, or to add to: all files of `source` except the duplicates
    threshold   None: exact duplicates; else near ones, by the Jaccard index of word shingles,
                0.5 .. 1
    min_size    smaller documents are ignored; 1: empty ones are no duplicates
    ->          files (compared), groups, doubles, bytes (of these), bad, generation, seconds
    raises      DatasetConflict if `source` changes before the delete; FileExistsError (the table);
                Refusal, OSError; errors of Spark
    """
    start = time.monotonic()
    snap = snapshot(source)
    _check(source, table, delete, into, threshold)
    summary: dict[str, Any] = {"job": "dedup", "source": snap.root, "generation": snap.generation}
    with guarded(spark, f"dedup {source}"), Kept() as kept:
        if threshold is None:
            every = kept(hashed(spark, snap, title=False, fail_fast=fail_fast))
            good = every.where(f"error is null and size >= {min_size}")
            duplicates = kept(_oldest(good, "xxh3", "size", "mmh3"))
        else:
            every = kept(_signed(spark, snap, fail_fast))
            near_ones = every.where(f"error is null and size >= {min_size}")
            duplicates = kept(_near(spark, snap, near_ones, threshold, fail_fast))
        summary |= _counts(every, duplicates, min_size)
        for row in every.where("error is not null").select("name", "error").toLocalIterator():
            bad(Bad(snap.root, to_str(bytes(row[0])), row[1]))
        if table is not None:
            _write_table(duplicates, table)
            summary["table"] = os.path.abspath(table)
        if into is not None:
            _copy_others(spark, snap, duplicates, summary["doubles"], into)
            summary["output"] = absolute(into)
        if delete and summary["doubles"]:
            names = {bytes(row[0]) for row in duplicates.select("name").toLocalIterator()}
            summary["generation"] = _delete(snap, names)
    return summary | {"seconds": round(time.monotonic() - start, 3)}


def _check(
    source: str, table: str | None, delete: bool, into: str | None, threshold: float | None
) -> None:
    if threshold is not None and not 0.5 <= threshold <= 1:
        raise ValueError(f"a threshold is 0.5 to 1, not {threshold}")
    if delete and not is_dataset(source):
        what = "is a single container: doubles are deleted from data sets; copy the others instead"
        raise NotAllowed(what, source)
    if table is not None and os.path.exists(table):
        raise FileExists("the table exists already: choose another name", table)
    if into is not None:
        check_free(into)
        if os.path.realpath(source) == os.path.realpath(into):
            raise FileExists("is what is read: delete the doubles, or give another data set", into)


def _counts(every: DataFrame, duplicates: DataFrame, min_size: int) -> dict[str, int]:
    from pyspark.sql import functions as F

    looked = F.col("error").isNull() & (F.col("size") >= min_size)
    of_all = every.agg(F.count_if(looked), F.count("error")).head()
    found = duplicates.agg(F.countDistinct("same_as"), F.count("*"), F.sum("size")).head()
    assert of_all is not None and found is not None
    return {
        "files": of_all[0], "bad": of_all[1],
        "groups": found[0], "doubles": found[1], "bytes": found[2] or 0,
    }  # fmt: skip


def _oldest(frame: DataFrame, *group: str) -> DataFrame:
    """Return the duplicates in each group: (name, size, mtime_ns, same_as)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*group).orderBy("mtime_ns", "name")
    frame = frame.withColumn("same_as", F.first("name").over(order))
    return frame.where("name != same_as").select("name", "size", "mtime_ns", "same_as")


# --- near ---


def _signed(spark: SparkSession, snap: Snapshot, fail_fast: bool) -> DataFrame:
    """Return rows of SIGNED for all documents."""
    shards = {shard.base: number for number, shard in enumerate(snap.shards)}
    return of_content(
        spark, snap, COLUMNS, lambda batch: sign_batch(batch, shards), SIGNED, fail_fast=fail_fast
    )


def sign_batch(batch: pa.RecordBatch, shards: Mapping[str, int]) -> pa.RecordBatch:
    """Convert a batch of COLUMNS, content, _error and positions to SIGNED. A document without words
    has no bands.

    shards  numbers of the containers. An id consists of the number of the container and the
            position of the inode, so that ids are in disk order
    """
    containers = batch.column("_container").dictionary_encode()
    known = np.array([shards[base] for base in containers.dictionary.to_pylist()], np.int64)
    shard = known[arrays.numbers(containers.indices)]
    ids = arrays.column(shard << POSITION | arrays.numbers(batch.column("_pos")))
    head = [ids, *map(batch.column, (*COLUMNS, "_pointer"))]
    found = signatures(batch.column("content"))
    keys = band_keys(found).view(np.int64)
    some = (found != EMPTY).any(axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.where(some, keys.shape[1], 0))]).astype(np.int32)
    bands = pa.ListArray.from_arrays(arrays.column(offsets), arrays.column(keys[some].ravel()))
    rows = arrays.rows(found.view(np.uint8))
    names = ["id", "name", "size", "mtime_ns", "pointer", "bands", "signature", "error"]
    return pa.RecordBatch.from_arrays([*head, bands, rows, batch.column("_error")], names)


def _near(
    spark: SparkSession, snap: Snapshot, good: DataFrame, threshold: float, fail_fast: bool
) -> DataFrame:
    """Return the near duplicates: (name, size, mtime_ns, same_as). Similar pairs are collected on
    the driver, 16 bytes each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    oldest = Window.partitionBy("band").orderBy("mtime_ns", "name")
    banded = good.select("id", "mtime_ns", "name", F.explode("bands").alias("band"))
    pairs = banded.withColumn("other", F.first("id").over(oldest)).where("id != other")
    places = ("id", "signature", "pointer", "size")
    theirs = good.select(*(F.col(name).alias(f"other_{name}") for name in places))
    worth = (
        pairs.select("id", F.col("other").alias("other_id"))
        .distinct()
        .join(good.select(*places), "id")
        .join(theirs, "other_id")
    )
    found = compared(worth, snap, threshold, fail_fast).toArrow()
    return _oldest_of(spark, good, *(found.column(name).to_numpy() for name in ("id", "other")))


def _oldest_of(spark: SparkSession, good: DataFrame, younger: Any, older: Any) -> DataFrame:
    """Return the duplicates from the pairs of similar documents, each with the oldest similar
    document that stays."""
    from pyspark.sql import functions as F

    ids, numbers = np.unique(np.concatenate([younger, older]), return_inverse=True)
    stays = staying(len(ids), numbers[: len(younger)], numbers[len(younger) :])
    chosen = stays[numbers[len(younger) :]]
    columns = {"id": younger[chosen], "other": older[chosen]}
    made = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    table = spark.createDataFrame(pa.table(made))
    theirs = good.select(F.col("id").alias("other"), F.struct("mtime_ns", "name").alias("first"))
    first = table.join(theirs, "other").groupBy("id").agg(F.min("first").alias("first"))
    return good.join(first, "id").select(
        "name", "size", "mtime_ns", F.col("first.name").alias("same_as")
    )


# --- words, shingles, signatures ---


def words(data: bytes) -> list[bytes]:
    """Return the words of a document, without markup."""
    return _MARKUP.sub(b" ", data[:MAX_COMPARED].lower()).translate(_BLANKS).split()


def shingles(documents: Sequence[list[bytes]]) -> tuple[UInt64, Int64]:
    """Return the hashes of all shingles, uint64[m], and the end of those of each document,
    int64[n + 1].

    A document of fewer than K words has one shingle, of all its words; one without words has none.
    """
    counts = np.fromiter(map(len, documents), np.int64, len(documents))
    hashes = _word_hashes([word for document in documents for word in document])
    # Words after the last one of a short document belong to the next one: their hashes count as 0.
    ends = np.cumsum(counts)
    sizes = np.where(counts >= K, counts - K + 1, np.minimum(counts, 1))
    stops = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    first = np.repeat(ends - counts - stops[:-1], sizes) + np.arange(stops[-1])
    last = np.repeat(ends, sizes)
    found = np.zeros(len(first), np.uint64)
    padded = np.concatenate([hashes, np.zeros(K, np.uint64)])
    for i in range(K):
        word = np.where(first + i < last, padded[first + i], np.uint64(0))
        found = mixed(found * _GOLD + word)
    return found, stops


def _word_hashes(every: list[bytes]) -> UInt64:
    """Return the hashes of words, uint64[n]; each different word is hashed once."""
    different = list(dict.fromkeys(every))
    raw = b"".join([mmh3.hash_bytes(word, 0, True) for word in different])
    known = np.frombuffer(raw, "<u8").reshape(-1, 2)[:, 0].tolist()
    number = dict(zip(different, known, strict=True)).__getitem__
    return np.fromiter(map(number, every), np.uint64, len(every))


def mixed(values: UInt64) -> UInt64:
    """Apply the finalizer of MurmurHash3, so that each bit of the result depends on all bits."""
    values = (values ^ (values >> _SHIFT)) * _MIX[0]
    values = (values ^ (values >> _SHIFT)) * _MIX[1]
    return values ^ (values >> _SHIFT)


def _shingles_of(column: pa.Array) -> tuple[UInt64, Int64]:
    """Return the `shingles` of a binary column."""
    ends, data = layout(column)
    texts = (data[a : min(b, a + MAX_COMPARED)] for a, b in itertools.pairwise(ends.tolist()))
    return shingles([words(bytes(text)) for text in texts])


def signatures(column: pa.Array, bands: int = BANDS) -> UInt64:
    """Return the signatures of documents, uint64[n, ROWS * bands]; EMPTY without words.

    cost    hashes the text; ROWS * bands operations for each shingle, with numpy
    """
    hashes, stops = _shingles_of(column)
    result = np.full((len(column), ROWS * bands), EMPTY)
    full = np.flatnonzero(np.diff(stops))
    if not len(full):
        return result
    starts = stops[:-1][full]
    for i in range(ROWS * bands):
        seed = mixed(np.full(1, i + 1, np.uint64) * _GOLD)[0]
        # XOR and a multiplication by an odd number suffice, since the hashes are mixed already.
        result[full, i] = np.minimum.reduceat((hashes ^ seed) * _MIX[0], starts)
    return result


def shingle_sets(column: pa.Array) -> list[UInt64]:
    """Return the different shingles of each document, ascending."""
    hashes, stops = _shingles_of(column)
    return [np.unique(hashes[a:b]) for a, b in itertools.pairwise(stops.tolist())]


def jaccard(a: UInt64, b: UInt64) -> float:
    """Return the Jaccard index of two sets of `shingle_sets`."""
    if not len(a) or not len(b):
        return 0.0
    both = int(among(b, a).sum())
    return both / (len(a) + len(b) - both)


def band_keys(found: UInt64) -> UInt64:
    """Return a number for each band of each signature, uint64[n, bands]."""
    keys = np.zeros((len(found), found.shape[1] // ROWS), np.uint64)
    for row in range(ROWS):
        keys = mixed(keys * _GOLD + found[:, row::ROWS])
    return mixed(keys + np.arange(keys.shape[1], dtype=np.uint64))


def estimate(a: UInt64, b: UInt64) -> npt.NDArray[np.float64]:
    """Return the share of equal values in each row, float64[n]."""
    return np.asarray((a == b).mean(axis=1))


def worth(threshold: float, values: int) -> float:
    """Return the least estimate, from `values` values, with which two documents are compared."""
    return threshold - MARGIN * math.sqrt(threshold * (1 - threshold) / values)


# --- comparison ---


def staying(count: int, younger: Int64, older: Int64) -> npt.NDArray[np.bool_]:
    """Return which of the documents 0..count-1 stay, bool[count]: those without a similar older one
    that stays.

    younger, older  int64[m]: pairs of similar documents
    cost            a pass over the pairs for each link of the longest chain
    """
    duplicates = np.zeros(count, np.bool_)
    while True:
        open_ = ~duplicates[older] & ~duplicates[younger]
        younger, older = younger[open_], older[open_]
        leads = np.ones(count, np.bool_)  # whether no similar older one may stay
        leads[younger] = False
        found = younger[leads[older]]
        if not len(found):
            return ~duplicates
        duplicates[found] = True


def compared(pairs: DataFrame, snap: Snapshot, threshold: float, fail_fast: bool) -> DataFrame:
    """Return the similar pairs, rows of SIMILAR.

    pairs   id, signature, pointer, size, and for the other document `other_id` and so on
    cost    reads the content of pairs with a sufficient estimate
    """
    from pyspark.sql import functions as F

    containers = [(shard.base, shard.record.contid) for shard in snap.shards]
    compare = Comparing(containers, threshold, fail_fast)
    schema = ", ".join(f"{name} bigint" for name in PLACES)
    chosen = mapped(pairs, compare.worth, schema)
    part = F.pmod(F.xxhash64("id"), F.lit(MAX_TASKS))
    return (
        chosen.repartition("other_id", part)
        .sortWithinPartitions("other_id", "id")
        .mapInArrow(compare, SIMILAR)
    )


@dataclass(frozen=True)
class Comparing:
    """The work of the tasks of `compared`."""

    containers: Sequence[tuple[str, int]]  # path and CONTID, by the number of the shard
    threshold: float
    fail_fast: bool

    def worth(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the pairs of a batch, at least one, that must be compared: PLACES."""
        a, b = (_signatures(batch.column(name)) for name in ("signature", "other_signature"))
        enough = estimate(a, b) >= worth(self.threshold, a.shape[1])
        return batch.select(PLACES).filter(arrays.column(enough))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the similar pairs of batches that are sorted by `other_id`."""
        fetch = fetcher("FAILFAST" if self.fail_fast else "PERMISSIVE")
        head: Any = None
        for part in fetch(self._documents(batches)):
            ids, others = (arrays.numbers(part.column(name)) for name in ("id", "other"))
            similar = np.zeros(len(part), np.bool_)
            for i, found in enumerate(shingle_sets(part.column("content"))):
                if ids[i] == others[i]:
                    head = found
                else:
                    similar[i] = jaccard(head, found) >= self.threshold
            columns = [arrays.column(ids[similar]), arrays.column(others[similar])]
            yield pa.RecordBatch.from_arrays(columns, ["id", "other"])

    def _documents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what to read: each `other` document, followed by those compared with it."""
        last = -1
        for batch in batches:
            if not len(batch):
                continue
            other = arrays.numbers(batch.column("other_id"))
            first = np.flatnonzero(np.diff(other, prepend=last))
            last = int(other[-1])

            def with_heads(name: str, batch: Any = batch, first: Int64 = first) -> Int64:
                mine, heads = (arrays.numbers(batch.column(n)) for n in (name, f"other_{name}"))
                return np.insert(mine, first, heads[first])

            ids, pointer, size = map(with_heads, ("id", "pointer", "size"))
            yield self._references(ids, np.insert(other, first, other[first]), pointer, size)

    def _references(self, ids: Int64, other: Int64, pointer: Int64, size: Int64) -> pa.RecordBatch:
        """Return rows for `fetcher`, with `id` and `other`."""
        places = [self.containers[number] for number in (ids >> POSITION).tolist()]
        columns = {
            "id": arrays.column(ids), "other": arrays.column(other),
            "_container": arrays.texts([base for base, _ in places]),
            "_contid": arrays.column(np.array([contid for _, contid in places], np.int64)),
            "_pos": arrays.column(ids & (1 << POSITION) - 1),
            "_pointer": arrays.column(pointer), "size": arrays.column(size),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _signatures(column: pa.Array) -> UInt64:
    return np.frombuffer(b"".join(column.to_pylist()), np.uint64).reshape(len(column), -1)


# --- results ---


def _write_table(duplicates: DataFrame, table: str) -> None:
    """Write the table as Parquet under a temporary name, and rename it."""
    staging = f"{table}.{secrets.token_hex(8)}"
    try:
        mapped(duplicates.orderBy("same_as", "name"), _shown, TABLE).write.parquet(staging)
        os.rename(staging, table)
        directory_of(os.path.dirname(os.path.abspath(table))).sync()
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    name, size, mtime, same = batch.columns
    paths = [arrays.texts(list(map(to_path, column.to_pylist()))) for column in (name, same)]
    names = ["path", "same_as", "size", "mtime_ns", "name_raw", "same_as_raw"]
    return pa.RecordBatch.from_arrays([*paths, size, mtime, name, same], names)


def _copy_others(
    spark: SparkSession, snap: Snapshot, duplicates: DataFrame, count: int, into: str
) -> None:
    from pyspark.sql import functions as F

    names = duplicates.select(F.col("name").alias("name_raw"))
    names = F.broadcast(names) if count <= MAX_BROADCAST else names
    columns = ("name_raw", "mtime_ns", "ftype", "mode", "content")
    others = read(spark, snap, columns, includeDirs=True).join(names, "name_raw", "left_anti")
    others = others.withColumnRenamed("mtime_ns", "mtime")
    others.write.format("winkfs").mode("append").save(absolute(into))


def _delete(snap: Snapshot, names: set[bytes]) -> int:
    """Delete names from the data set, if it is unchanged -> the generation."""
    with begun(snap.root) as transaction:
        writer = ShardWriter(transaction, "00000-0")
        writer.gone |= names
        record = writer.finish()
        metrics = {"job": "dedup", "deleted": len(names)}
        return transaction.commit([record], metrics=metrics, after=snap.generation)


if __name__ == "__main__":
    program("dedup")
