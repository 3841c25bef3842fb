"""What a task of the sink does with Arrow batches, without a JVM: rows that become shards."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stored
from compressed_files import document
from container_checks import refused

import winkfs
from winkformats.disk import pagecache
from winkformats.disk.posix import FileStorage
from winkfs import FileType
from winkfs.container.ondisk.catalog import Catalog
from winkfs.container.ondisk.data import NANO
from winkfs.container.table import SIZE
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import Transaction, begin, join
from winkfs.errors import StalePlan

pytestmark = pytest.mark.slow

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from winkfs.spark.writing import shard as spool  # noqa: E402 - needs the two above
from winkfs.spark.writing import sink  # noqa: E402
from winkfs.spark.writing.inputs import Inputs, SinkOptions  # noqa: E402
from winkfs.units import CLAMPED  # noqa: E402

SQL = {pa.string(): "string", pa.binary(): "binary", pa.int64(): "bigint", pa.int32(): "int"}
MOMENT = 1_700_000_000 * NANO


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def put(root: Path, *batches: Any, job: Transaction | None = None, **options: str) -> int:
    """Write batches as one task, and commit -> the generation."""
    asked = SinkOptions.of({"path": str(root), **options})
    schema = batches[0].schema
    inputs = Inputs.of([(field.name, SQL.get(field.type, "timestamp")) for field in schema])
    job = job or begin(root)
    written = sink.write_task(iter(batches), job, inputs, asked)
    return sink.publish(job, [written], asked)


def task(job: Transaction, rows: Iterable[Any], **options: str) -> Any:
    """Write batches with a path and a content as one task of a job."""
    asked = SinkOptions.of({"path": job.root, **options})
    inputs = Inputs.of([("path", "string"), ("content", "binary")])
    return sink.write_task(iter(rows), job, inputs, asked)


def publish(job: Transaction, tasks: list[Any], **options: str) -> int:
    return sink.publish(job, tasks, SinkOptions.of({"path": job.root, **options}))


def shards(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.data"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


# --- rows ---------------------------------------------------------------------------------------


def test_rows_become_files_with_the_values_of_their_columns(root: Path) -> None:
    put(root, batch(
        content=pa.array([b"one", b"", b"x" * 3_000_000, b"four"], pa.binary()),
        mode=pa.array([None, 0o600, 0o644, 0o755], pa.int32()),
        ftype=pa.array([FileType.FILE, None, FileType.GZIP, None], pa.int32()),
        path=["a/1", "a/2", "b\\c", "ü"],
        mtime=pa.array([MOMENT + 1, MOMENT + 2, MOMENT + 3, MOMENT + 4], pa.int64()),
        size=pa.array([0, 0, 0, 0], pa.int64()),
    ))  # fmt: skip
    assert stored.files(root) == {"a/1": b"one", "a/2": b"", "b\\c": b"x" * 3_000_000, "ü": b"four"}
    stats = {name: stored.stat(root, name) for name in ("a/1", "a/2", "b\\c", "ü")}
    assert [s.mtime_ns - MOMENT for s in stats.values()] == [1, 2, 3, 4]
    assert [s.mode for s in stats.values()] == [0o644, 0o600, 0o644, 0o755]
    assert [s.ftype for s in stats.values()] == [
        FileType.FILE, FileType.FILE, FileType.GZIP, FileType.EXEC,
    ]  # fmt: skip
    assert not winkfs.verify(root).problems


@pytest.mark.few(1)
@pytest.mark.parametrize("ao", ["true", "false"])
def test_contents_are_compressed_where_that_is_asked_for(root: Path, ao: str) -> None:
    files = {f"{i:03}": document(i) for i in range(200)} | {"random": os.urandom(3000)}
    columns = batch(path=list(files), content=pa.array(list(files.values()), pa.binary()))
    put(root, columns, compress="zstd", ao=ao)
    assert stored.files(root) == files
    assert sum(path.stat().st_size for path in shards(root)) < sum(map(len, files.values())) // 2
    assert not winkfs.verify(root).problems
    with pytest.raises(ValueError, match=r"it takes zstd, zstd:LEVEL"):
        put(root, columns, compress="gzip")


def test_what_a_data_set_is_compressed_with_goes_for_the_sink(root: Path) -> None:
    """Of a batch and of a stream, whose tasks join their job; unless an option says otherwise."""

    def rows(number: int) -> Any:
        return batch(path=[f"{number}"], content=pa.array([document(number)], pa.binary()))

    put(root, rows(0), compress="zstd:3")
    put(root, rows(1))
    put(root, rows(2), job=join(root, "append", "stream-q-0-r"))
    put(root, rows(3), compress="none")
    put(root, rows(4), compress="zstd:7")
    assert stored.files(root) == {f"{i}": document(i) for i in range(5)}
    levels = [record.level for record in Log(str(root)).latest().shards]
    assert levels == [3, 3, 3, 0, 7]
    put(root, rows(5), job=begin(root, "overwrite"))
    assert [record.level for record in Log(str(root)).latest().shards] == [7]
    assert not winkfs.verify(root).problems


@pytest.mark.few(1)
@pytest.mark.parametrize("large", [False, True])
def test_slices_of_arrow_buffers_are_cut_where_they_begin(root: Path, large: bool) -> None:
    text, data = (pa.large_string(), pa.large_binary()) if large else (pa.string(), pa.binary())
    whole = batch(
        path=pa.array([f"p{i}" for i in range(5000)], text),
        content=pa.array([b"%d" % i * (i % 50) for i in range(5000)], data),
    )
    job = begin(root)
    parts = [whole.slice(7, 2993), whole.slice(3000, 1999), whole.slice(0, 0)]
    publish(job, [task(job, parts)])
    assert stored.files(root) == {f"p{i}": b"%d" % i * (i % 50) for i in range(7, 4999)}


def test_names_that_are_no_text_come_back(root: Path) -> None:
    names = [b"plain", b"\xff\xfe", b"half\xc3", b"back\\slash", b"\\xff", b"\\x5cff", "ß".encode()]
    from winkfs.names import to_path

    content = pa.array(names, pa.binary())
    put(root, batch(path=list(map(to_path, names)), content=content))
    put(root / "raw", batch(name_raw=content, content=content))
    for folder in (root, root / "raw"):
        with winkfs.open(folder) as files:
            assert {name: files.read(name) for name in names} == {name: name for name in names}
            assert len(files) == len(names)


def test_time_is_now_where_there_is_none(root: Path) -> None:
    put(root, batch(
        path=["given", "null"], content=[b"1", b"2"],
        mtime=pa.array([1_700_000_000_000_001, None], pa.timestamp("us", "UTC")),
    ))  # fmt: skip
    assert stored.stat(root, "given").mtime_ns == 1_700_000_000_000_001_000
    assert stored.stat(root, "null").mtime > 1_760_000_000


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({"path": ["a", None], "content": [b"1", b"22"]}, "a row with 2 bytes of content has no"),
        ({"path": ["a", "bad\nname"], "content": [b"1", None]}, r"bad\nname: the content is null"),
        ({"path": ["a", ""], "content": [b"1", b"2"]}, "empty path"),
        ({"path": ["a", "n\0l"], "content": [b"1", b"2"]}, r"n\x00l: a path must not have NUL"),
        ({"path": ["a", "z" * 65_001], "content": [b"1", b"2"]}, "may have 65000 bytes, this has"),
        ({"path": ["d"], "content": [b"1"], "ftype": pa.array([100], pa.int32())}, "directory"),
        ({"path": ["d"], "content": [b"1"], "ftype": pa.array([999], pa.int32())}, "0 to 255"),
    ],
)
def test_a_row_that_is_no_file_is_named_and_nothing_stays(
    columns: dict[str, Any], answer: str, root: Path
) -> None:
    job = begin(root)
    before = stored.paths(root)
    with refused((ValueError, OSError), answer):
        put(root, batch(**columns), job=job)
    assert stored.paths(root) == before


def test_times_beyond_nanoseconds_are_clamped_and_counted(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    far = pa.array([1 << 60, 0, -(1 << 60), 1 << 61, 1 << 62], pa.timestamp("us", "UTC"))
    put(root, batch(path=list("abcde"), content=[b"1"] * 5, mtime=far))
    last = (1 << 63) - 1
    found = [stored.stat(root, name).mtime_ns for name in "abcde"]
    assert found == [last, 0, -last - 1, last, last]
    assert next(Log(str(root)).manifests(1, 1)).metrics["clamped"] == 4
    assert f"winkfs: {root}: a, c, d and 1 more: {CLAMPED}" in capfd.readouterr().err


def test_the_earliest_time_of_a_file_comes_back(root: Path) -> None:
    """A file from before 1677 has it; in microseconds it is rounded down to less."""
    least = -(1 << 63)
    times = [least // 1000, least // 1000 + 1, ((1 << 63) - 1) // 1000]
    far = pa.array(times, pa.timestamp("us", "UTC"))
    put(root, batch(path=["a", "b", "c"], content=[b"", b"", b""], mtime=far))
    found = [stored.stat(root, name).mtime_ns for name in "abc"]
    assert found == [least, times[1] * 1000, times[2] * 1000]


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ([("path", "string")], "no column content (binary or string); the columns are: path"),
        ([("content", "binary")], "no column path (string) or name_raw (binary)"),
        ([], "the columns are: none"),
        (
            [("path", "string"), ("content", "binary"), ("day", "map<string,int>")],
            "column 'day' is map<string,int>,",
        ),
        ([("path", "string"), ("content", "array<int>")], "'content' is array<int>: cast it to"),
        ([("path", "string"), ("PATH", "string"), ("content", "binary")], "two columns"),
    ],
)
def test_columns_that_do_not_fit_are_named(fields: list[tuple[str, str]], answer: str) -> None:
    with refused(ValueError, answer):
        Inputs.of(fields)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"onConflict": "first"}, "option onConflict is 'first': it takes newest or error"),
        ({"maxShardBytes": "9"}, "option maxShardBytes is '9': it takes a number of bytes"),
        ({"htalgo": "4"}, "option htalgo is '4': it takes 1 or 2 or 3"),
        ({"timemp": "0"}, "option timemp is '0'"),
        ({"afterGeneration": "-1"}, "afterGeneration is '-1': it takes a number, 0 at least"),
        ({"maxShardByte": "1g"}, "did you mean maxShardBytes?"),
        ({"path": "abc://bucket/x"}, "not abc:"),
        ({"path": ""}, "give a folder"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(options: dict[str, str], line: str) -> None:
    with refused(ValueError, line):
        SinkOptions.of({"path": "/tmp/x"} | options)


# --- shards -------------------------------------------------------------------------------------


def test_the_catalog_is_written_from_what_the_writer_knows(root: Path) -> None:
    put(root, batch(path=["b", "a", "b"], content=[b"old", b"", b"new"]))
    (data,) = shards(root)
    with Catalog(FileStorage(str(data.with_suffix(".cat")))) as file:
        (run,) = file.runs
        (rows,) = run.rows()
    assert rows.names == [b"a", b"b"] and rows.numbers[:, SIZE].tolist() == [0, 3]


def test_a_task_without_rows_makes_no_shard(root: Path) -> None:
    put(root, batch(path=pa.array([], pa.string()), content=pa.array([], pa.binary())))
    assert shards(root) == [] and stored.files(root) == {}


def test_a_full_shard_is_followed_by_another(root: Path) -> None:
    rows = {f"f{i}": b"x" * 100_000 for i in range(200)}
    put(root, batch(path=list(rows), content=list(rows.values())), maxShardBytes="6m")
    assert len(shards(root)) == 5
    assert max(data.stat().st_size for data in shards(root)) <= 6 << 20
    assert stored.files(root) == rows


@pytest.mark.few(1)
@pytest.mark.parametrize("memory", [1 << 30, 1])  # 1: through the scratch file
def test_append_only_shards_are_in_order_of_mtime(
    memory: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MEMORY", memory)
    order = np.random.default_rng(5).permutation(9000)
    times = pa.array((MOMENT // 1000 + order).tolist(), pa.timestamp("us", "UTC"))
    whole = batch(
        path=[f"p{i}" for i in order], content=[b"%d" % i for i in order.tolist()], mtime=times
    )
    put(root, *(whole.slice(i, 1000) for i in range(0, 9000, 1000)), ao="true", timemp="1")
    with winkfs.open(str(shards(root)[0]).removesuffix(".data")) as container:
        assert container.ao and container.superblock["TIMEMP"] == 1
        found = [(entry.name, entry.read()) for entry in container.scan()]
    assert found == [(f"p{i}", b"%d" % i) for i in range(9000)]
    assert not list(root.rglob(".winkfs-*"))


def test_append_only_without_times_takes_rows_as_they_come(root: Path) -> None:
    put(root, batch(path=["b", "a"], content=[b"1", b"2"]), ao="true")
    assert stored.files(root) == {"b": b"1", "a": b"2"}
    times = pa.array([MOMENT, None, MOMENT - 5], pa.int64())
    put(root, batch(path=["x", "now", "z"], content=[b"1", b"2", b"3"], mtime=times), ao="true")
    assert stored.files(root) == {"b": b"1", "a": b"2", "x": b"1", "now": b"2", "z": b"3"}


# --- names that come twice ----------------------------------------------------------------------


def test_the_last_row_of_a_name_counts(root: Path) -> None:
    put(root, batch(path=["a", "b", "a"], content=[b"1", b"2", b"3"]))
    put(root, batch(path=["b"], content=[b"new"]))
    assert stored.files(root) == {"a": b"3", "b": b"new"}


def test_on_conflict_error_finds_names_in_tasks_and_the_data_set(
    root: Path,
) -> None:
    strict = {"onConflict": "error"}
    put(root, batch(path=["a", "gone"], content=[b"1", b"1"]), **strict)
    stored.change(root, {"gone": None})
    put(root, batch(path=["gone"], content=[b"again"]), **strict)  # a deleted name is free
    before = stored.files(root)
    with pytest.raises(FileExistsError, match="two rows of a task have this path"):
        put(root, batch(path=["x", "y", "x"], content=[b"1", b"2", b"3"]), **strict)
    with pytest.raises(FileExistsError, match="the data set has this file"):
        put(root, batch(path=["new", "a"], content=[b"1", b"2"]), **strict)
    job = begin(root)
    rows = [batch(path=["t", f"t{i}"], content=[b"1", b"2"]) for i in range(2)]
    written = [task(job, [row], **strict) for row in rows]
    with pytest.raises(FileExistsError, match="two tasks have this path"):
        publish(job, written, **strict)
    job.abort()
    assert stored.files(root) == before


def test_on_conflict_error_sees_commits_during_the_job(root: Path) -> None:
    job = begin(root)
    late = task(job, [batch(path=["a"], content=[b"2"])], onConflict="error")
    put(root, batch(path=["a"], content=[b"1"]))
    with pytest.raises(FileExistsError, match="the data set has this file"):
        publish(job, [late], onConflict="error")


# --- attempts -----------------------------------------------------------------------------------


def test_an_attempt_that_lives_on_after_the_commit_cannot_write(root: Path) -> None:
    job, row = begin(root), batch(path=["a"], content=[b"1"])
    won = task(job, [row])

    def rows() -> Iterator[Any]:
        yield row
        publish(job, [won])
        yield batch(path=[f"z{i}" for i in range(3000)], content=[b"z" * 2000] * 3000)

    with pytest.raises(OSError):
        task(job, rows())
    with pytest.raises(StalePlan):
        task(job, [row])
    with pytest.raises(StalePlan):
        join(root, "append", job.job)
    assert stored.files(root) == {"a": b"1"}
    assert len(shards(root)) == 1 and not list((root / "_pending").iterdir())


def test_what_losing_attempts_wrote_is_swept(root: Path) -> None:
    job, row = begin(root), batch(path=["a"], content=[b"1"])
    lost, won = (task(job, [row]) for _ in range(2))
    assert lost.records != won.records
    publish(job, [won, None])
    assert len(shards(root)) == 1 and not list((root / "_pending").iterdir())


def test_a_full_disk_fails_the_task_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.call(call, stderr=subprocess.DEVNULL):
        assert os.environ.get("CI") != "true", "CI must be able to mount a tmpfs"
        pytest.skip("only root can mount a small disk")
    try:
        root = folder / "set"
        put(root, batch(path=["kept"], content=[b"1"]))
        job = begin(root)
        before = stored.paths(root)
        many = [batch(path=[f"p{i}"], content=[b"x" * 1_000_000]) for i in range(20)]
        with refused(OSError, code=errno.ENOSPC):
            put(root, *many, job=job)
        assert stored.paths(root) == before
        job.abort()
        assert stored.files(root) == {"kept": b"1"}
    finally:
        subprocess.check_call(["umount", "-l", folder])


def test_the_page_cache_stays_clean(root: Path) -> None:
    """Needs a file system of a disk: the files of a tmpfs are page cache."""
    content = [os.urandom(4096) for _ in range(8000)]
    put(root, *(
        batch(path=[f"{n}/{i}" for i in range(8000)], content=content) for n in range(4)
    ))  # fmt: skip
    resident = 0
    for data in shards(root):
        with data.open("rb") as file:
            size = data.stat().st_size
            absent = pagecache.absent(file.fileno(), size)
            pagecache.forget(file.fileno(), 0, size)
            after = pagecache.absent(file.fileno(), size)
        if absent is None or after is None or not after.all():
            pytest.skip("this filesystem does not drop pages")
        resident += int((~absent).sum()) * mmap.PAGESIZE
    assert sum(data.stat().st_size for data in shards(root)) > 100 << 20
    assert resident < 8 << 20
