"""How many requests, and how many bytes, does a document on object storage cost?

Documents that do not compress, named site00000/section/page-00000000.html, in each format sorted by
name, on a web server of 127.0.0.1 that counts what it answers: the same on every machine. `next` is
the second document of a handle; each other figure begins with the open. A rival that is missing is
left out, with a note: pip install pylance deltalake aiohttp mosaicml-streaming; of Debian
squashfs-tools, squashfuse, httpfs2.

Lance has an index on the names; Parquet and Delta have groups of 1,000 rows. squashfuse mounts what
httpfs2 mounts from the server.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from common import options, scratch
from report import Report
from webstore import BUCKET, S3, Store, served

import winkfs
import winkfs.dataset

DIRECTORY: Final = 1000  # files in each
GROUP: Final = 1000  # rows of a group of Parquet
STEPS: Final = ("cold document", "next", "a directory", "100 at random", "1,000 at random")
CAPPED: Final = (0.02, 100e6)  # latency and bytes a second of the server that is scanned
SHARDS: Final = 1000  # of a data set
Documents = Iterator[tuple[str, bytes]]
Figures = dict[str, tuple[int, int, float]]  # step -> requests, bytes, seconds


def name_of(i: int) -> str:
    return f"site{i // DIRECTORY:05}/section/page-{i:08}.html"


def contents(count: int, size: int) -> Documents:
    """Yield names, ascending, and contents that do not compress."""
    blob = random.Random(1).randbytes(8 << 20)
    for i in range(count):
        at = i * 8191 % (len(blob) - size)
        yield name_of(i), blob[at : at + size]


class Opened(Protocol):
    """What is open at a store."""

    def get(self, names: Sequence[str]) -> int:
        """Read documents -> their bytes."""

    def names(self, directory: str) -> int:
        """List the documents of a directory -> how many."""


class Missing(Exception):
    """A library or program is not installed."""


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed ({error})") from None


def programs(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise Missing(f"{name} is not installed")


# --- winkfs ---


class Winkfs:
    title = "winkfs"

    def make(self, folder: Path, count: int, size: int) -> None:
        with winkfs.create(folder / "c") as c:
            c.put_many(contents(count, size))

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        with winkfs.open(f"{store.url}/c") as there:
            self.there = there
            yield self

    def get(self, names: Sequence[str]) -> int:
        return sum(map(len, self.there.get_many(names)))

    def names(self, directory: str) -> int:
        return sum(1 for _ in self.there.names(glob=f"{directory}/*"))


class DataSet(Winkfs):
    """Shards that were committed one by one."""

    title = "winkfs, data set"
    shards = 0
    commits: Figures  # of the last shard

    def make(self, folder: Path, count: int, size: int) -> None:
        from winkfs.remote.check import check

        self.shards = min(SHARDS, count // 20)
        with served(folder) as store:
            use_s3(store)
            assert check(f"s3://{BUCKET}/set").passed
            winkfs.dataset.create(f"s3://{BUCKET}/set").close()
            documents = contents(count, size)
            while part := list(islice(documents, count // self.shards)):
                counter = Counter(store, False)
                with counter.step("open"):
                    made = winkfs.dataset.open(f"s3://{BUCKET}/set", "a")
                with counter.step("commit"):
                    made.put_many(part)
                    made.close()
        self.commits = counter.figures

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        use_s3(store)
        with winkfs.open(f"s3://{BUCKET}/set") as there:
            self.there = there
            yield self


def use_s3(store: Store) -> None:
    """Let s3:// be this store."""
    from winkfs.remote import control, find

    for name, value in {**S3, "aws_endpoint_url": store.endpoint}.items():
        os.environ[name.upper()] = value
    control.store_of.cache_clear()
    find.transport_of.cache_clear()


# --- tables ---


def table(count: int, size: int) -> Any:
    import pyarrow as pa

    names, bodies = zip(*contents(count, size), strict=True)
    return pa.table({"path": pa.array(names), "content": pa.array(bodies, pa.binary())})


def total(found: Any) -> int:
    return sum(len(value) for value in found["content"].to_pylist())


class Lance:
    title = "Lance"

    def make(self, folder: Path, count: int, size: int) -> None:
        lance = library("lance")
        made = lance.write_dataset(table(count, size), str(folder / "t.lance"))
        made.create_scalar_index("path", "BTREE")

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        given = {**S3, "aws_endpoint": store.endpoint}
        self.there = library("lance").dataset(f"s3://{BUCKET}/t.lance", storage_options=given)
        yield self

    def get(self, names: Sequence[str]) -> int:
        chosen = ", ".join(f"'{name}'" for name in names)
        return total(self.there.to_table(columns=["content"], filter=f"path IN ({chosen})"))

    def names(self, directory: str) -> int:
        found = self.there.to_table(
            columns=["path"], filter=f"path >= '{directory}/' AND path < '{directory}0'"
        )
        return int(found.num_rows)


class Parquet:
    title = "Parquet"

    def make(self, folder: Path, count: int, size: int) -> None:
        import pyarrow.parquet as pq

        pq.write_table(table(count, size), folder / "t.parquet", row_group_size=GROUP)

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        import pyarrow.dataset as ds
        from pyarrow.fs import S3FileSystem

        host = store.endpoint.removeprefix("http://")
        files = S3FileSystem(access_key="any", secret_key="any", region="us-east-1",
                             endpoint_override=host, scheme="http")  # fmt: skip
        self.there = ds.dataset(f"{BUCKET}/t.parquet", filesystem=files, format="parquet")
        yield self

    def get(self, names: Sequence[str]) -> int:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        chosen = pc.is_in(ds.field("path"), _values(names)) if names[1:] else (
            ds.field("path") == names[0])  # fmt: skip
        return total(self.there.to_table(columns=["content"], filter=chosen))

    def names(self, directory: str) -> int:
        import pyarrow.dataset as ds

        path = ds.field("path")
        chosen = (path >= f"{directory}/") & (path < f"{directory}0")
        return int(self.there.to_table(columns=["path"], filter=chosen).num_rows)


def _values(names: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.array(names)


class Delta(Parquet):
    title = "Delta"

    def make(self, folder: Path, count: int, size: int) -> None:
        delta = library("deltalake")
        writing = delta.WriterProperties(max_row_group_size=GROUP)
        delta.write_deltalake(folder / "t.delta", table(count, size), writer_properties=writing)

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        given = {**S3, "aws_endpoint": store.endpoint}
        found = library("deltalake").DeltaTable(f"s3://{BUCKET}/t.delta", storage_options=given)
        self.there = found.to_pyarrow_dataset()
        yield self


# --- archives ---


class Zip:
    title = "zip, fsspec"

    def make(self, folder: Path, count: int, size: int) -> None:
        library("aiohttp")
        with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_STORED) as archive:
            for name, data in contents(count, size):
                archive.writestr(zipfile.ZipInfo(name), data)

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        self.there = library("fsspec").filesystem(
            "zip",
            fo=f"{store.url}/a.zip",
            skip_instance_cache=True,
            target_options={"block_size": 64 << 10},  # for reads at random; the default is 5 MiB
        )
        yield self

    def get(self, names: Sequence[str]) -> int:
        return sum(len(self.there.cat_file(name)) for name in names)

    def names(self, directory: str) -> int:
        return len(self.there.ls(directory, detail=False))


class Tar(Zip):
    title = "tar, fsspec"

    def make(self, folder: Path, count: int, size: int) -> None:
        library("aiohttp")
        write_tar(folder / "a.tar", count, size)

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        self.there = library("fsspec").filesystem(
            "tar", fo=f"{store.url}/a.tar", skip_instance_cache=True
        )
        yield self


def write_tar(path: Path, count: int, size: int) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in contents(count, size):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, BytesIO(data))


class SquashFS:
    title = "SquashFS, httpfs2"

    def make(self, folder: Path, count: int, size: int) -> None:
        programs("mksquashfs", "squashfuse", "httpfs2", "fusermount")
        write_tar(folder / "s.tar", count, size)
        with (folder / "s.tar").open("rb") as file:
            subprocess.run(
                ["mksquashfs", "-", folder / "a.sqfs", "-tar", "-quiet", "-no-progress", "-noD",
                 "-noF", "-no-duplicates"], stdin=file, check=True,
            )  # fmt: skip
        (folder / "s.tar").unlink()
        self.folder = folder

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        places = [self.folder / "far", self.folder / "mounted"]
        for place in places:
            place.mkdir(exist_ok=True)
        commands: list[list[str | Path]]
        commands = [["httpfs2", f"{store.url}/a.sqfs"], ["squashfuse", places[0] / "a.sqfs"]]
        mounted = list[Path]()
        try:
            for command, place in zip(commands, places, strict=True):
                line = [os.fspath(part) for part in [*command, place]]
                subprocess.run(line, check=True, capture_output=True, timeout=60)
                mounted.append(place)
            self.there = places[1]
            yield self
        finally:
            for place in reversed(mounted):
                unmount(place)

    def get(self, names: Sequence[str]) -> int:
        return sum(len((self.there / name).read_bytes()) for name in names)

    def names(self, directory: str) -> int:
        return len(os.listdir(self.there / directory))


def unmount(place: Path) -> None:
    """Unmount, once the program that has a file of it open has ended."""
    for _ in range(100):
        if not subprocess.run(["fusermount", "-u", place], capture_output=True).returncode:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{place} stays mounted")


class Mds:
    """It has no names: documents are read by number, and none are listed."""

    title = "MDS"

    def make(self, folder: Path, count: int, size: int) -> None:
        streaming = library("streaming")
        columns = {"path": "str", "content": "bytes"}
        with streaming.MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
            for name, data in contents(count, size):
                writer.write({"path": name, "content": data})
        self.folder = folder

    @contextlib.contextmanager
    def open(self, store: Store) -> Iterator[Opened]:
        local = tempfile.mkdtemp(dir=self.folder, prefix="local-")
        for name, value in S3.items():
            os.environ[name.upper()] = value
        os.environ["S3_ENDPOINT_URL"] = store.endpoint
        self.there = library("streaming").StreamingDataset(
            remote=f"s3://{BUCKET}/mds", local=local, shuffle=False, batch_size=1
        )
        yield self
        shutil.rmtree(local)

    def get(self, names: Sequence[str]) -> int:
        return sum(len(self.there[int(name[-13:-5])]["content"]) for name in names)

    def names(self, directory: str) -> int:
        return -1


SYSTEMS: Final = (Winkfs, DataSet, Lance, Parquet, Delta, Zip, Tar, SquashFS, Mds)
MOST: Final[dict[Any, int]] = {Tar: 100_000}  # documents, where an open takes minutes


# --- the table ---


@dataclass
class Counter:
    """Counts what is asked of a store by steps. timed: shows the seconds, too."""

    store: Store
    timed: bool
    cells: list[str] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.store.counted()
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        requests, size = self.store.counted()
        self.figures[name] = requests, size, seconds
        self.cells.append(f"{requests:,}; {size / 1024:,.0f} KiB")
        if self.timed:
            self.cells[-1] += f"; {seconds:.2f} s"


def measured(system: Any, store: Store, count: int, size: int, timed: bool) -> Counter:
    """Read from a store what was made there."""
    counter, rng = Counter(store, timed), random.Random(3)
    some = [name_of(i) for i in rng.sample(range(count), min(1000, count // 2))]
    with contextlib.ExitStack() as stack:
        with counter.step("cold document"):
            there = stack.enter_context(system.open(store))
            assert there.get(some[:1]) == size
        with counter.step("next"):
            assert there.get(some[1:2]) == size
    with counter.step("a directory"), system.open(store) as there:
        found = there.names(some[2].rpartition("/")[0])
    assert found in (-1, min(DIRECTORY, count))
    counter.cells[-1] = counter.cells[-1] if found > 0 else "has no names"
    for number in (100, 1000):
        with counter.step(f"{number:,} at random"), system.open(store) as there:
            assert there.get(some[:number]) == size * len(some[:number])
    return counter


def committed(system: DataSet, count: int) -> str:
    """Return what the last commit has cost, as a line."""
    parts = system.commits.items()
    cost = "; ".join(f"{name} {n}; {size / 1024:,.0f} KiB" for name, (n, size, _) in parts)
    return (f"{system.title}, {count:,} documents in {system.shards:,} shards, each committed by "
            f"itself: the last, {cost}.")  # fmt: skip


def more_of_winkfs(store: Store, count: int) -> str:
    """Return what else is read of a container, as a line."""
    counter, middle = Counter(store, True), count // 2
    near = [name_of(i) for i in range(middle, min(middle + 1000, count))]
    with winkfs.open(f"{store.url}/c") as there:
        there.read(near[0])
        with counter.step("all names"):
            assert sum(1 for _ in there.names()) == count
        with counter.step(f"{len(near):,} documents in order, catalog read"):
            assert len(list(there.get_many(near))) == len(near)
    parts = (f"{name} {cell}" for name, cell in zip(counter.figures, counter.cells, strict=True))
    return f"winkfs, {count:,} documents: {'; '.join(parts)}."


def scanned(folder: Path, count: int, size: int) -> str:
    """Return how fast all documents come from a server that is capped, as a line."""
    latency, rate = CAPPED
    with served(folder, latency, rate) as store, winkfs.open(f"{store.url}/c") as there:
        began = time.perf_counter()
        assert sum(batch.num_rows for batch in there.to_batches()) == count
        seconds = time.perf_counter() - began
        read = store.counted()[1]
    return (f"winkfs, {count:,} documents, `to_batches` from a server of {rate / 1e6:.0f} MB/s and "
            f"{latency * 1000:.0f} ms: {read / seconds / 1e6:.1f} MB/s.")  # fmt: skip


def versions() -> Iterator[str]:
    for name in ("pylance", "pyarrow", "deltalake", "fsspec", "mosaicml-streaming"):
        with contextlib.suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def main() -> None:
    asked = options(__doc__, runs=1, own=lambda parser: (
        parser.add_argument("--files", type=int, nargs="+", default=[100_000, 1_000_000]),
        parser.add_argument("--size", type=int, default=2048, help="bytes of a document"),
        parser.add_argument("--latency", type=float, default=0.0, help="seconds of each answer"),
        parser.add_argument("--only", nargs="+", metavar="NAME", help="some: winkfs Lance ..."),
    ))  # fmt: skip
    own = asked.own
    os.environ["WINKFS_CACHE_SIZE"] = "0"  # cold is cold
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ.pop(name, None), os.environ.pop(name.upper(), None)
    slow = f"-{own.latency * 1000:.0f}ms" if own.latency else ""
    report = Report(asked, f"remote{slow}", "What does a document on object storage cost?",
                    ("documents", "", *STEPS))  # fmt: skip
    for count in [2000] if asked.quick else own.files:
        for kind in SYSTEMS:
            if own.only and kind.title.partition(",")[0] not in own.only:
                continue
            print(f"{count:,} {kind.title}", flush=True)
            if count > MOST.get(kind, count):
                report.note(f"{kind.title}: not with {count:,} documents, which take minutes.")
                continue
            with scratch(asked) as folder:
                try:
                    system = kind()
                    system.make(folder, count, own.size)
                    with served(folder, own.latency) as store:
                        found = measured(system, store, count, own.size, bool(own.latency))
                        report.row(f"{count:,}", kind.title, *found.cells)
                        report.keep(f"{kind.title}, {count:,}", found.figures)
                        print(*found.cells, sep=", ", flush=True)
                        if kind is Winkfs:
                            report.note(more_of_winkfs(store, count))
                        if isinstance(system, DataSet):
                            report.note(committed(system, count))
                    if kind is Winkfs:
                        report.note(scanned(folder, count, own.size))
                except Missing as error:
                    report.note(f"{kind.title}: {error}.")
                except Exception as error:  # a rival must not cost the figures of the others
                    report.note(f"{kind.title}, {count:,} documents: {error!r}.")
    report.note(f"Requests and KiB of their answers; documents of {own.size:,} bytes.")
    report.note(f"{', '.join(versions())}.")
    report.finish()


if __name__ == "__main__":
    main()
