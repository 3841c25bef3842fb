"""Contents that a query reads only for the rows that need them: `read(.., content="lazy")`.

The scan returns no contents but references: the number of a container in the plan and the position
of a file in it. The column `content` is a function of these, so Spark leaves it out of a query that
does not use it, and calls it after the filters. `frame` makes such a DataFrame on the driver,
`Fetch` runs in the tasks.
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.objects import WASTED
from winkformats.disk.schemes import is_far
from winkfs.arrow.pieces import POS_BITS, POS_MASK, Piece, batch_ranges
from winkfs.container.table import EMPTY
from winkfs.dataset.shard import Shard
from winkfs.names import DATA
from winkfs.remote.find import links_to
from winkfs.remote.links import accept
from winkfs.spark.reading.options import Options
from winkfs.spark.reading.stores import check, ddl_of, found_stores, snapshot_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from winkfs.arrow.rows import Contents

MAX_SHARDS: Final = 1 << 63 - POS_BITS  # numbers that a reference has room for
ROW_BYTES: Final = 128  # approximate bytes of memory of a row beside its content
MAX_MAPPED: Final = 1 << 30  # bytes of a range of a file that is mapped at a time
DROPS: Final = (
    "content=lazy leaves no rows out, since a query without contents does not know which are "
    "damaged: use mode=PERMISSIVE and where(\"_error is null\"), or content=inline"
)  # fmt: skip
SCAN: Final = "BatchScan winkfs"  # in the text of a plan
FIELDS_SHOWN: Final = "spark.sql.debug.maxToStringFields"
NEEDS: Final = "content=lazy needs PySpark 4.1 or later, which has arrow_udf"


# --- on the driver ---


def frame(
    spark: SparkSession, options: Options, texts: dict[str, str], schema: StructType | str | None
) -> DataFrame:
    """Return the DataFrame of a read with content=lazy.

    options, texts  the same, checked and as Spark gets them
    schema          columns, as `spark.read.schema` takes them
    raises          ValueError for what cannot be lazy; NoSuchFile; FormatError; OSError
    cost            reads manifests, opens single containers; on object storage signs a link to
                    each data file
    """
    from pyspark.sql.types import StructType

    if options.mode == "DROPMALFORMED":
        raise ValueError(DROPS)
    if options.changes:
        raise ValueError("readChanges=true and content=lazy: use content=inline or content=ref")
    fields = schema if isinstance(schema, StructType) else StructType.fromDDL(
        ddl_of(options) if schema is None else schema
    )  # fmt: skip
    columns, _ = check(fields, options)
    places, pinned = Places.of(options)
    given = {name: text for name, text in texts.items() if name.lower() not in _REPLACED}
    given |= {"content": "none", **pinned}
    reader = spark.read.format("winkfs").options(**given)
    if "content" not in columns:
        return reader.schema(fields).load()
    names = [field.name for field in fields]
    known = dict(zip(columns, names, strict=True))
    needed = {name: known.get(name, name) for name in NEEDED}
    kept = [field for field, column in zip(fields, columns, strict=True) if column != "content"]
    hidden = [name for name in NEEDED if name not in known]
    rows = reader.schema(_with_longs(kept, hidden)).load()
    return rows.select(_columns(options, places, known, needed))


_REPLACED: Final = frozenset(("content", "columns", "asof"))
NEEDED: Final = ("_ref", "_pointer", "size")


def _with_longs(fields: list[Any], names: list[str]) -> StructType:
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([*fields, *(StructField(name, LongType()) for name in names)])


def _columns(
    options: Options,
    places: Places,
    known: dict[str, str],
    needed: dict[str, str],
) -> list[Any]:
    """Return the columns of a lazy read, as `select` takes them.

    known   column -> the name that it has
    needed  the same for what the function takes
    """
    fetch = Fetch(places, options.mode, options.batch, options.largest, options.verify)
    found = arrow_function(fetch)(*(_quoted(needed[name]) for name in NEEDED))
    content = found.getField("content") if fetch.permissive else found
    made: dict[str, Any] = {name: _quoted(text) for name, text in known.items()}
    made["content"] = content.alias(known["content"])
    if fetch.permissive and "_error" in made:
        from pyspark.sql.functions import coalesce

        both = coalesce(made["_error"], found.getField("error"))
        made["_error"] = both.alias(known["_error"])
    return list(made.values())


def _quoted(name: str) -> str:
    """Return the name of a column as Spark takes it: a Column of each costs it more than a text."""
    return "`" + name.replace("`", "``") + "`"


def arrow_function(fetch: Fetch) -> Any:
    """Return the function of Spark that calls `fetch`. Raises ValueError for PySpark before 4.1."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StringType, StructType

    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError:
        raise ValueError(NEEDS) from None

    def content(batches: Any) -> Any:
        return fetch(batches)

    # PySpark takes the kind of the function from these, and a warning for any other way to give it.
    taken, given = Iterator[tuple[pa.Array, ...]], Iterator[pa.Array]
    content.__annotations__ = {"batches": taken, "return": given}
    kind: Any = BinaryType()
    if fetch.permissive:
        kind = StructType().add("content", kind).add("error", StringType())
    return arrow_udf(content, kind)


# --- the plan ---


@dataclass(frozen=True, slots=True)
class Places:
    """The containers of a plan by their numbers, small when pickled.

    names   their paths, joined by NUL and compressed
    contid  int64[n]: CONTID
    size    int64[n]: FILESIZE
    grows   bool[n]: the container may have grown since
    links   to objects, compressed; b"": none
    """

    names: bytes
    contid: Int64
    size: Int64
    grows: Any
    links: bytes = b""

    @classmethod
    def of(cls, options: Options) -> tuple[Places, dict[str, str]]:
        """Return the containers of a read, and the option that pins their generations.

        raises  as `frame`
        """
        stores = found_stores(options)
        for kind, path in stores:
            if not kind.has("shards"):
                raise ValueError(f"{path}: is a {kind.name}: content=lazy is for containers and "
                                 "data sets")  # fmt: skip
        at = options
        if options.order.startswith("perm:") and any(kind.versions for kind, _ in stores):
            from winkfs.results import orders

            generation = orders.open(options.order.removeprefix("perm:")).generation
            at = replace(options, as_of=str(generation))
        found: list[Shard] = []
        generations = {}
        for kind, path in stores:
            seen = snapshot_of(at, (kind, path))
            found += seen.shards
            if kind.versions:
                generations[path] = seen.generation
        pinned = {"asOf": json.dumps(generations)} if generations else {}
        return cls.of_shards(found), pinned

    @classmethod
    def of_shards(cls, shards: list[Shard]) -> Places:
        """Number containers. Raises ValueError if there are too many."""
        if len(shards) > MAX_SHARDS:
            raise ValueError(f"content=lazy reads at most {MAX_SHARDS:,} shards at once, and here "
                             f"are {len(shards):,}: compact the data set")  # fmt: skip
        bases = [shard.base for shard in shards]
        links = links_to(bases)
        data = {
            url: link
            for found in links.values()
            for url, link in found.items()
            if url.endswith(DATA)  # contents need no more
        }
        return cls(
            zlib.compress("\0".join(bases).encode("utf-8", "surrogateescape"), 1),
            np.array([shard.record.contid for shard in shards], np.uint64).view(np.int64),
            np.array([shard.record.size for shard in shards], np.int64),
            np.array([shard.grows for shard in shards], bool),
            zlib.compress(json.dumps(data).encode(), 1) if data else b"",
        )


def in_disk_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort the rows of a task by their references, so that contents are read from front to back.

    cost  memory for the rows from the first one that is out of order on
    """
    import pyarrow as pa

    from winkfs.arrow import arrays

    last = -1
    for batch in batches:
        ref = arrays.numbers(batch.column("_ref"))
        if len(ref) and int(ref[0]) > last and (ref[1:] > ref[:-1]).all():
            last = int(ref[-1])
            yield batch
            continue
        table = pa.Table.from_batches([batch, *batches])
        for part in table.combine_chunks().to_batches():
            order = np.argsort(arrays.numbers(part.column("_ref")), kind="stable")
            yield part.take(arrays.column(order))


# --- in the tasks ---


@dataclass(slots=True)
class Fetch:
    """The function of the column `content`, of `_ref`, `_pointer` and `size`. An object of it is
    sent with the query; each task calls it once."""

    places: Places
    mode: str
    batch: int
    largest: int
    verify: bool

    @property
    def permissive(self) -> bool:
        return self.mode == "PERMISSIVE"

    def __call__(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        from pyspark_winkfs import one_line
        from winkfs.spark.workers import freeze

        freeze()
        with one_line:
            yield from _Task(self).contents(batches)


class _Task:
    """The open containers of a task.

    passes  containers that are far whose rows in the batch at hand are read in a pass, by number:
            the range that has them, until it is announced
    """

    def __init__(self, fetch: Fetch) -> None:
        from winkfs.arrow.held import Held

        places = fetch.places
        self.fetch, self.places = fetch, places
        if places.links:
            accept(json.loads(zlib.decompress(places.links)))
        self.names = zlib.decompress(places.names).decode("utf-8", "surrogateescape").split("\0")
        self.held = Held(verify=fetch.verify)
        self.passes: dict[int, tuple[int, int] | None] = {}
        self._last: Contents | None = None  # whose pass may have bytes in memory

    def contents(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Yield the contents of rows, in as many arrays as `batch` bytes allow."""
        from winkfs.arrow import arrays

        largest = self.fetch.largest
        try:
            for columns in batches:
                ref, pointer, size = map(arrays.numbers, columns)
                missing = None
                if columns[0].null_count:
                    missing = ~arrays.bools(columns[0].is_valid())
                self._expect(ref, pointer, size, missing)
                weights = np.where(size <= largest, size, 0) + ROW_BYTES
                for at, stop in batch_ranges(weights, self.fetch.batch):
                    part = slice(at, stop)
                    absent = None if missing is None else missing[part]
                    yield self._part(ref[part], pointer[part], size[part], absent)
        finally:
            self.held.close()

    def _part(self, ref: Int64, pointer: Int64, size: Int64, missing: Any) -> pa.Array:
        """Return the contents of some rows; missing: those without a reference."""
        shard, pos = ref >> POS_BITS, ref & POS_MASK
        left = size > self.fetch.largest
        errors: dict[int, str] = {
            i: f"{size[i]} bytes, more than maxContentBytes {self.fetch.largest}"
            for i in np.flatnonzero(left).tolist()
        }
        if missing is not None:
            left = left | missing
        if not left.any() and (shard == shard[0]).all():
            found, wrong = self._read(int(shard[0]), pos, pointer, size)
            errors |= {i: str(error) for i, error in wrong.items()}
        else:
            found = self._gathered(shard, pos, pointer, size, left, errors)
        if errors and not self.fetch.permissive:
            self._raise(errors, shard, pos)
        return self._with_errors(found, errors) if self.fetch.permissive else found

    def _gathered(
        self,
        shard: Int64,
        pos: Int64,
        pointer: Int64,
        size: Int64,
        left: Any,
        errors: dict[int, str],
    ) -> pa.Array:
        """Read the contents of several containers; `left`: rows that are null; note errors."""
        import pyarrow as pa

        from winkfs.arrow import arrays

        rows = np.flatnonzero(left)
        places, parts = [rows], [pa.nulls(len(rows), pa.binary())]
        for number in np.unique(shard[~left]).tolist():
            rows = np.flatnonzero((shard == number) & ~left)
            found, wrong = self._read(number, pos[rows], pointer[rows], size[rows])
            errors |= {int(rows[i]): str(error) for i, error in wrong.items()}
            places.append(rows)
            parts.append(found)
        return arrays.taken(pa.concat_arrays(parts), np.argsort(np.concatenate(places)))

    def _read(
        self, number: int, pos: Int64, pointer: Int64, size: Int64
    ) -> tuple[pa.Array, dict[int, Exception]]:
        """Read contents of a container: see `Contents.read`."""
        from winkfs.arrow.rows import SLACK

        contents = self._opened(number)
        if contents.store.kv.storage.far:
            self._bring(number, contents, pos, pointer, size)
        elif contents.mapped:
            low, high = int(pointer.min()), int((pointer + size).max()) + SLACK
            if low > 0 and high - low <= MAX_MAPPED:
                contents.window(low, high - low)
        found = contents.read(pos, pointer, size)
        contents.drop()
        return found

    def _expect(self, ref: Int64, pointer: Int64, size: Int64, missing: Any) -> None:
        """Find the passes of rows, before they are read."""
        self.passes = {}
        wanted = (size <= self.fetch.largest) & (pointer != EMPTY)
        if missing is not None:
            wanted &= ~missing
        shard = ref[wanted] >> POS_BITS
        for number in np.unique(shard).tolist():
            if not is_far(self.names[number]):
                continue
            rows = np.flatnonzero(wanted)[shard == number]
            if found := _pass_over(ref[rows] & POS_MASK, pointer[rows], size[rows]):
                self.passes[number] = found

    def _bring(
        self, number: int, contents: Contents, pos: Int64, pointer: Int64, size: Int64
    ) -> None:
        """Request what is read of an object: all from the first row to the last in a pass, or the
        rows alone."""
        if contents is not self._last and self._last is not None:
            self._last.end_pass()
        self._last = contents
        some = pointer != EMPTY
        low, high = _places(pos[some], pointer[some], size[some])
        if not len(low):
            return
        if number not in self.passes:
            contents.store.kv.storage.fetch(zip(low.tolist(), high.tolist(), strict=True))
            return
        if (announced := self.passes[number]) is not None:
            contents.expect(*announced)
            self.passes[number] = None
        first, last = max(int(low.min()), 0), int(high.max())
        contents.window(first, last - first)

    def _opened(self, number: int) -> Contents:
        places = self.places
        size = int(places.size[number])
        contid = int(places.contid[number : number + 1].view(np.uint64)[0])
        piece = Piece(self.names[number], contid, size, bool(places.grows[number]), 0, size)
        return self.held.of(number, piece)

    def _raise(self, errors: dict[int, str], shard: Int64, pos: Int64) -> None:
        """Raise a Refusal for the first error."""
        from winkfs.errors import Refusal

        first = min(errors)
        number = int(shard[first])
        name = self._name(number, int(pos[first]))
        raise Refusal(
            f"{name}{errors[first]}; mode=PERMISSIVE gives such rows an _error", self.names[number]
        )

    def _name(self, number: int, pos: int) -> str:
        """Return the path of a file for a message; "" if it cannot be read."""
        from winkfs.container.survey import files_at
        from winkfs.names import to_path

        found = files_at(self._opened(number).store, np.array([pos]), lambda error: None)
        return f"{to_path(found.name(0))}: " if len(found) else ""

    @staticmethod
    def _with_errors(found: pa.Array, errors: dict[int, str]) -> pa.Array:
        import pyarrow as pa

        from winkfs.arrow import arrays

        texts = arrays.texts([errors.get(i) for i in range(len(found))]) if errors else pa.nulls(
            len(found), pa.string()
        )  # fmt: skip
        return pa.StructArray.from_arrays([found, texts], ["content", "error"])


def _places(pos: Int64, pointer: Int64, size: Int64) -> tuple[Int64, Int64]:
    """Return the ranges of files in a data file: of plain contents, and of inodes, with a content
    that is not large before them."""
    from winkfs.arrow.rows import DENSE, SLACK
    from winkfs.container.survey import MAX_BATCH_ENTRY

    plain = pointer > EMPTY
    low = np.where(plain, pointer, np.maximum(pos - np.minimum(size, DENSE), 0))
    return low, np.where(plain, pointer + size + SLACK, pos + MAX_BATCH_ENTRY)


def _pass_over(pos: Int64, pointer: Int64, size: Int64) -> tuple[int, int] | None:
    """Return the range of files that are read in one pass, None: each is requested alone.

    A pass reads little that is not wanted, or of small files at most as much as what is.
    """
    from winkfs.arrow.rows import DENSE

    if (pos[1:] < pos[:-1]).any():
        return None
    low, high = _places(pos, pointer, size)
    starts, ends = np.minimum.accumulate(low[::-1])[::-1], np.maximum.accumulate(high)
    begin, end = max(int(starts[0]), 0), int(ends[-1])
    gaps = int(np.maximum(starts[1:] - ends[:-1], 0).sum())
    rest = end - begin - gaps
    small = end - begin < DENSE * len(pos) and gaps <= rest
    return (begin, end) if small or gaps * WASTED <= rest else None


# --- advice ---


def unused(df: DataFrame) -> list[str]:
    """Return a line for each scan of a query that reads contents of which the query uses none.

    df      any DataFrame; it is planned, not run
    raises  errors of Spark for a query that cannot be planned

        for line in winkfs.spark.unused(df):
            print(line)
    """
    spark, view = df.sparkSession, f"winkfs_{uuid.uuid4().hex}"
    before = spark.conf.get(FIELDS_SHOWN, None)
    spark.conf.set(FIELDS_SHOWN, "100000")
    df.createTempView(view)
    try:
        plan: str = spark.sql(f"explain select * from {view}").first()[0]
    finally:
        spark.catalog.dropTempView(view)
        if before is None:
            spark.conf.unset(FIELDS_SHOWN)
        else:
            spark.conf.set(FIELDS_SHOWN, before)
    return unused_in(plan)


def unused_in(plan: str) -> list[str]:
    """Return the lines of `unused` for the text of a physical plan. A column has one id in all of
    the plan, and Spark's planner puts a step that names the columns in use above each scan."""
    scans = [line for line in plan.splitlines() if SCAN in line]
    rest = "\n".join(line for line in plan.splitlines() if SCAN not in line)
    found = []
    for line in scans:
        columns = re.findall(r"([^\s,\[]+)(#\d+)", line.partition(SCAN)[2])
        for name, number in columns:
            if name.lower() == "content" and not re.search(rf"#{number[1:]}\b", rest):
                named = ", ".join(name for name, _ in columns)
                found.append(f"a scan of winkfs ({named}) reads contents, and the query does not "
                             "use them: read with content='lazy' or content='none'")  # fmt: skip
    return found
