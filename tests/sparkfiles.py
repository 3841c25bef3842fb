"""Containers of every kind, what a plain Python loop says of them, and a read as a task does it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import stored
from data_sets import commit, delete
from flips import flip

import winkfs
from winkfs.dataset import manifest
from winkfs.names import to_bytes

FEW = 400  # ordinary files of a container
START = 1_600_000_000  # mtime of the first, seconds
PLAIN = (winkfs.FileType.DIR, winkfs.FileType.LINK)  # what is left out unless it is asked for


class File(NamedTuple):
    size: int
    mtime_ns: int
    ftype: int
    mode: int
    content: bytes


def contents() -> dict[str | bytes, bytes]:
    """Of all sizes and names that need care."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 9000, FEW).tolist()
    files: dict[str | bytes, bytes] = {
        f"dir{i % 7}/page {i:04d}.html": rng.bytes(n) for i, n in enumerate(sizes)
    }
    return files | {
        "empty": b"",
        "large": rng.bytes(3 << 20),  # several entries
        "one entry": rng.bytes(1 << 20),
        "umlaut \u00fc/\u4e2d\U0001f600": b"utf-8",
        b"latin-1 \xfc": b"no utf-8",
        b"cut \xc3": b"ends inside a character",
        b"\xa9 begins inside one": b"together they are a character",
        rb"escape \x41 \xFF \\x": b"looks like an escape",
        "back\\slash": b"no escape",
        "n" * 300: b"a long name",
    }


def plain(base: Path, **settings: Any) -> Path:
    rows = enumerate(contents().items())
    return stored.make(base, ((name, data, START + i) for i, (name, data) in rows), **settings)


def with_columns(base: Path) -> Path:
    winkfs.reindex(plain(base))
    return base


def changed(base: Path) -> Path:
    """Extents, holes, attributes, links, directories, and files that were replaced or are gone."""
    with winkfs.open(plain(base), "a") as c:
        for i in range(0, FEW, 10):
            c.put(f"dir{i % 7}/page {i:04d}.html", b"replaced %d" % i)
        for i in range(1, FEW, 10):
            c.delete(f"dir{i % 7}/page {i:04d}.html")
        c.sync()
        for i in range(2, FEW, 20):
            c.append(f"dir{i % 7}/page {i:04d}.html", b"more")
            c.write(f"dir{(i + 1) % 7}/page {i + 1:04d}.html", 0, b"over")
            c.truncate(f"dir{(i + 2) % 7}/page {i + 2:04d}.html", 100)
            c.chmod(f"dir{(i + 3) % 7}/page {i + 3:04d}.html", 0o600)
            c.rename(f"dir{(i + 4) % 7}/page {i + 4:04d}.html", f"renamed/{i}")
        c.truncate("empty", 5000)  # a hole
        c.mkdir("a directory")
        c.symlink("dir0", "a link")
    return base


def dataset(root: Path) -> Path:
    files = list(contents().items())
    manifest.create(root)
    rows = [(name, data, START + i) for i, (name, data) in enumerate(files)]
    again = [(name, b"newer " + data[:50], START + 1000) for name, data in files[10:30]]
    third = len(rows) // 3
    for parts in ([rows[:third], rows[third : 2 * third]], [rows[2 * third :] + again]):
        commit(root, [lambda container, part=part: container.put_many(part) for part in parts])
    delete(root, *(name for name, _ in files[40:60] if isinstance(name, str)))
    return root


def compressed(base: Path) -> Path:
    """The same names with text, which becomes frames; some files are changed later."""
    files = enumerate(contents().items())
    rows = ((name, data.hex().encode()[: len(data)], START + i) for i, (name, data) in files)
    stored.make(base, rows, compress="zstd")
    with winkfs.open(base, "a") as c:
        c.append("dir2/page 0002.html", b"more")
        c.write("large", 300_000, b"over")
        c.chmod("dir3/page 0003.html", 0o600)
    return base


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "plain": plain,
    "columns": with_columns,
    "changed": changed,
    "ao": lambda base: plain(base, ao=True),
    "classic": lambda base: plain(base, classic=True),
    "zstd": compressed,
    "dataset": dataset,
}


Kinds = dict[str, Path]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    """A path of each of KINDS."""
    root = tmp_path_factory.mktemp("kinds")
    return {name: make(root / name) for name, make in KINDS.items()}


def expected(path: Path, **options: Any) -> dict[bytes, File]:
    """By a plain Python loop."""
    with winkfs.open(path, **options) as container:
        return {
            to_bytes(e.name): File(e.size, e.mtime_ns, e.ftype, e.mode, e.read())
            for e in container.scan()
        }


def documents(path: Path, **options: Any) -> dict[bytes, File]:
    """Without directories and links."""
    found = expected(path, **options)
    return {name: file for name, file in found.items() if file.ftype not in PLAIN}


def struct(schema: str) -> Any:
    """A StructType from "name type, ...", without a JVM."""
    from pyspark.sql import types

    kinds = {
        "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(),
        "long": types.LongType(), "timestamp": types.TimestampType(), "bool": types.BooleanType(),
        "double": types.DoubleType(), "date": types.DateType(), "decimal": types.DecimalType(9, 2),
        "strings": types.ArrayType(types.StringType()), "longs": types.ArrayType(types.LongType()),
    }  # fmt: skip
    fields = [field.split() for field in schema.split(",")]
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in fields])


def batches(schema: str, options: Mapping[str, str]) -> Iterator[Any]:
    """The Arrow batches of all tasks, each task by a reader of its own, as Spark makes it."""
    from pyspark_winkfs import DefaultSource
    from winkfs.spark.reading.options import arrow_schema

    fields = struct(schema)
    source = DefaultSource(options=dict(options))
    reader = source.reader(fields)
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    for task in tasks:
        for batch in pickle.loads(pickle.dumps(reader)).read(task):
            assert batch.schema.equals(arrow_schema(fields))
            assert batch.num_rows
            batch.validate(full=True)
            yield batch


ALL = "path string, size long, mtime timestamp, name_raw binary, mtime_ns long, ftype int, mode int"


def read(path: Path | str, schema: str = f"{ALL}, content binary", **options: Any) -> list[Any]:
    """All rows, as dicts."""
    texts = {"path": str(path)} | {name: str(value) for name, value in options.items()}
    return [row for batch in batches(schema, texts) for row in batch.to_pylist()]


def tasks(path: Path | str, schema: str = "path string, content binary", **options: Any) -> int:
    """Into how many tasks a scan is cut."""
    from pyspark_winkfs import DefaultSource

    texts = {"path": str(path)} | {name: str(value) for name, value in options.items()}
    return len(DefaultSource(options=texts).reader(struct(schema)).partitions())


def as_files(rows: list[Any]) -> dict[bytes, File]:
    """Rows of ALL and content as `expected` has them; a name that comes twice is an error."""
    found = {
        row["name_raw"]: File(
            row["size"], row["mtime_ns"], row["ftype"], row["mode"], row["content"]
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def damage(base: Path, *names: str) -> None:
    """One bit of the contents of files."""
    found, data = expected(base), Path(f"{base}.data")
    for content in [found[name.encode()].content for name in names]:
        at = data.read_bytes().index(content[:1000])
        flip(data, at + len(content) // 2)
