"""The systems of bench_loaders.py: what training data is kept in, and epochs over it.

A system makes its files once, and yields the contents of an epoch as bytes objects. Each shuffles
as its users do, which the table states.
"""

from __future__ import annotations

import glob
import importlib
import os
import random
import sys
import tarfile
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

import winkfs

BATCH: Final = 256
SHARD: Final = 64 << 20  # bytes of a shard of MDS and WebDataset
GROUP: Final = 1000  # rows of a row group
Contents = Iterator[tuple[str, bytes]]


def contents(count: int, size: int) -> Contents:
    """Yield names, ascending, and bytes that do not compress."""
    blob = random.Random(1).randbytes(64 << 20)
    for i in range(count):
        at = i * 8191 % (len(blob) - size)
        yield f"site{i // 1000:05}/page-{i:08}", blob[at : at + size]


def batches(count: int, seed: int = 1) -> Iterator[list[int]]:
    """Yield all numbers at random, as lists."""
    order = np.random.default_rng(seed).permutation(count)
    for at in range(0, count, BATCH):
        yield order[at : at + BATCH].tolist()


class System:
    """title: in the table; package: what pip installs, for its version; how: it shuffles."""

    title: ClassVar[str]
    package: ClassVar[str] = ""
    how: ClassVar[str] = "all rows"

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder / type(self).__name__.lower(), count

    def make(self, files: Contents) -> None:
        raise NotImplementedError

    def load(self) -> None:
        """Import what an epoch needs, which is not measured."""
        self.lib: Any = importlib.import_module(self.package.replace("-", "_"))

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        raise NotImplementedError


class Winkfs(System):
    title, package, how = "winkfs.Rows, full", "", "all rows"
    shuffle: ClassVar[Any] = "full"

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self.folder = folder / "winkfs"

    def make(self, files: Contents) -> None:
        if not self.folder.exists():
            self.folder.mkdir()
            with winkfs.create(self.folder / "c") as c:
                c.put_many(files)

    def load(self) -> None:
        importlib.import_module("winkfs.loaders.sampler")

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        rows = winkfs.Rows(self.folder / "c")
        for batch in winkfs.Sampler(rows, BATCH, shuffle=self.shuffle if shuffled else None):
            for row in rows.__getitems__(batch):
                yield row["content"]


class Blocks(Winkfs):
    title, how = "winkfs.Rows, blocks", "64 blocks of 1,024 rows at a time"
    shuffle = "blocks"


class Lmdb(System):
    title, package = "LMDB", "lmdb"

    def make(self, files: Contents) -> None:
        import lmdb

        with lmdb.open(str(self.folder), map_size=32 << 30) as env, env.begin(write=True) as txn:
            for i, (_, data) in enumerate(files):
                txn.put(i.to_bytes(8, "big"), data, append=True)

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        options = {"readonly": True, "lock": False, "readahead": False}
        with self.lib.open(str(self.folder), **options) as env, env.begin() as txn:
            if not shuffled:
                yield from txn.cursor().iternext(keys=False)
                return
            for batch in batches(self.count):
                for i in batch:
                    yield txn.get(i.to_bytes(8, "big"))


class Mds(System):
    title, package, how = "MDS", "mosaicml-streaming", "its default, py1e"

    def load(self) -> None:
        try:
            importlib.import_module("torchvision.datasets")
        except (ImportError, RuntimeError):  # it wants a class of it, for images
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
            for name in ("torchvision", "torchvision.datasets", "torchvision.transforms",
                         "torchvision.transforms.functional"):  # fmt: skip
                sys.modules[name] = _Empty(name)
                sys.modules[name].__spec__ = ModuleSpec(name, None)
        self.lib = importlib.import_module("streaming")

    def make(self, files: Contents) -> None:
        self.load()
        columns = {"path": "str", "content": "bytes"}
        with self.lib.MDSWriter(out=str(self.folder), columns=columns, size_limit=SHARD) as writer:
            for name, data in files:
                writer.write({"path": name, "content": data})

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        data = self.lib.StreamingDataset(
            local=str(self.folder), shuffle=shuffled, batch_size=BATCH, num_canonical_nodes=1
        )
        for row in data:
            yield row["content"]


class _Empty(types.ModuleType):
    """A module with any class that is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class WebDataset(System):
    title, package, how = "WebDataset", "webdataset", "shards, and a buffer of 1,000"

    def make(self, files: Contents) -> None:
        self.folder.mkdir()
        tar, size = None, SHARD
        for i, (_, data) in enumerate(files):
            if size >= SHARD:
                if tar:
                    tar.close()
                tar, size = tarfile.open(self.folder / f"{i:08}.tar", "w"), 0  # noqa: SIM115
            info = tarfile.TarInfo(f"{i:08}.bin")
            info.size = len(data)
            assert tar is not None
            tar.addfile(info, BytesIO(data))
            size += len(data)
        if tar:
            tar.close()

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        shards = sorted(glob.glob(str(self.folder / "*.tar")))
        data = self.lib.WebDataset(shards, shardshuffle=len(shards) if shuffled else False, seed=1)
        for row in data.shuffle(1000) if shuffled else data:
            yield row["bin"]


class Lance(System):
    title, package, how = "Lance", "pylance", "all rows, take of 256"

    def load(self) -> None:
        self.lib = importlib.import_module("lance")

    def make(self, files: Contents) -> None:
        import pyarrow as pa

        self.load()
        shape = pa.schema([("path", pa.string()), ("content", pa.binary())])
        self.lib.write_dataset(_tables(files, shape), str(self.folder), schema=shape)

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        data = self.lib.dataset(str(self.folder))
        if not shuffled:
            for batch in data.to_batches(columns=["content"]):
                yield from batch["content"].to_pylist()
            return
        for numbers in batches(self.count):
            yield from data.take(numbers, columns=["content"])["content"].to_pylist()


def _tables(files: Contents, shape: Any) -> Iterator[Any]:
    import pyarrow as pa

    some: list[tuple[str, bytes]] = []
    for each in files:
        some.append(each)
        if len(some) == GROUP:
            yield pa.RecordBatch.from_arrays(
                list(map(pa.array, zip(*some, strict=True))), schema=shape
            )
            some = []
    if some:
        yield pa.RecordBatch.from_arrays(list(map(pa.array, zip(*some, strict=True))), schema=shape)


class Parquet(System):
    title, package, how = "Parquet", "pyarrow", "row groups of 1,000, and their rows"

    def make(self, files: Contents) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        shape = pa.schema([("path", pa.string()), ("content", pa.binary())])
        with pq.ParquetWriter(self.folder, shape, compression="none", use_dictionary=False) as made:
            for batch in _tables(files, shape):
                made.write_batch(batch)

    def load(self) -> None:
        self.lib = importlib.import_module("pyarrow.parquet")

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        file, rng = self.lib.ParquetFile(self.folder), random.Random(1)
        groups = list(range(file.num_row_groups))
        if shuffled:
            rng.shuffle(groups)
        for group in groups:
            found = file.read_row_group(group, columns=["content"], use_threads=False)
            values = found["content"].to_pylist()
            if shuffled:
                rng.shuffle(values)
            yield from values


class Bagz(System):
    title, package = "bagz", "bagz"

    def make(self, files: Contents) -> None:
        import bagz

        with bagz.Writer(f"{self.folder}.bag") as writer:
            for _, data in files:
                writer.write(data)

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        reader = self.lib.Reader(f"{self.folder}.bag")
        if not shuffled:
            for at in range(0, self.count, BATCH):
                yield from reader.read_indices(range(at, min(at + BATCH, self.count)))
            return
        for numbers in batches(self.count):
            yield from reader.read_indices(numbers)


class ArrayRecord(System):
    title, package = "ArrayRecord", "array_record"

    def load(self) -> None:
        self.lib = importlib.import_module("array_record.python.array_record_module")

    def make(self, files: Contents) -> None:
        self.load()
        writer = self.lib.ArrayRecordWriter(str(self.folder), "group_size:1,uncompressed")
        for _, data in files:
            writer.write(data)
        writer.close()

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        reader = self.lib.ArrayRecordReader(str(self.folder))
        if not shuffled:
            for at in range(0, self.count, BATCH):
                yield from reader.read(at, min(at + BATCH, self.count))
            return
        for numbers in batches(self.count):
            yield from reader.read(numbers)


class Barecat(System):
    title, package = "barecat", "barecat"

    def make(self, files: Contents) -> None:
        import barecat

        with barecat.Barecat(f"{self.folder}.barecat", readonly=False) as made:
            for name, data in files:
                made[name] = data

    def epoch(self, shuffled: bool) -> Iterator[bytes]:
        names = [f"site{i // 1000:05}/page-{i:08}" for i in range(self.count)]
        with self.lib.Barecat(f"{self.folder}.barecat") as there:
            if not shuffled:
                for name in names:
                    yield there[name]
                return
            for numbers in batches(self.count):
                for i in numbers:
                    yield there[names[i]]


SYSTEMS: Final = (
    Winkfs, Blocks, Lmdb, Mds, WebDataset, Lance, Parquet, Bagz, ArrayRecord, Barecat,
)  # fmt: skip


def named(name: str) -> type[System]:
    """Return a system by the name of its class."""
    return next(system for system in SYSTEMS if system.__name__ == name)


def files_of(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]
