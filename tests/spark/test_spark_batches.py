"""Batches of a stream, written and committed as Spark does it, without a JVM: which are published,
what Spark need not tell a task, and small shards that are joined."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import stored
from flips import flip

from winkfs.dataset.manifest import Log

pytestmark = pytest.mark.slow

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from winkfs.dataset import compaction  # noqa: E402 - needs the two above
from winkfs.spark.writing import sink  # noqa: E402

QUERY = "6b9d5f2e-0000-4000-8000-00000000000a"


class Context:
    """What a task knows of itself."""

    def __init__(self, **properties: str | None) -> None:
        self.properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def partitionId(self) -> int:
        return 0

    attemptNumber = partitionId


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


def task_of(monkeypatch: pytest.MonkeyPatch, batch: int | None, query: str | None = QUERY) -> None:
    """Give this process the properties of a task of a batch."""
    names = {sink.QUERY: query, sink.BATCH: None if batch is None else str(batch)}
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: Context(**names))


def begin(root: Path, **options: str) -> Any:
    from pyspark.sql.types import StructType

    schema = StructType().add("path", "string").add("content", "binary")
    given = {"path": str(root), **options}
    return pickle.loads(pickle.dumps(sink.stream_writer(given, schema, False)))


def pour(
    monkeypatch: pytest.MonkeyPatch, root: Path, batch: int, files: dict[str, bytes], **options: str
) -> Any:
    """Write a batch with one task, and commit it -> the message of the task."""
    task_of(monkeypatch, batch)
    message = begin(root, **options).write(iter([rows(files)]))
    begin(root, **options).commit([pickle.loads(pickle.dumps(message))], batch)
    return message


def rows(files: dict[str, bytes]) -> Any:
    content = pa.array(list(files.values()), pa.binary())
    return pa.RecordBatch.from_pydict({"path": list(files), "content": content})


def test_a_task_reads_no_log_and_writes_no_batch_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pour(monkeypatch, root, 0, {"a": b"0"})
    again, fresh = begin(root), begin(root)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "latest", None)
        patch.setattr(Log, "read", None)
        assert again.write(iter([rows({"a": b"1"})])).records == []
        task_of(monkeypatch, 1)
        message = fresh.write(iter([rows({"b": b"1"})]))
    again.commit([sink.BatchWritten(query=QUERY)], 0)
    fresh.commit([message], 1)
    assert stored.files(root) == {"a": b"0", "b": b"1"}
    assert os.listdir(root / "_pending") == []


def test_without_the_names_of_spark_a_batch_is_published_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_of(monkeypatch, None, None)
    with pytest.raises(ValueError, match="give the query the option checkpointLocation"):
        begin(root).write(iter([rows({"a": b"0"})]))
    (tmp_path / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    for content in (b"0", b"1"):  # the second try of one batch
        writer = begin(root, checkpointLocation=str(tmp_path))
        writer.commit([writer.write(iter([rows({"a": content})]))], 0)
    assert stored.files(root) == {"a": b"0"}
    assert Log(str(root)).latest().streams == {QUERY: (0, 1)}
    assert os.listdir(root / "_pending") == []


def test_small_shards_are_joined_and_no_batch_comes_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, bytes] = {}
    for number in range(24):
        files = {f"{number}": b"x" * 100, "same": b"%d" % number}
        wanted |= files
        for _ in range(1 + (number % 5 == 0)):  # as after a driver that died
            pour(monkeypatch, root, number, files, compactEvery="6")
        assert len(Log(str(root)).latest().shards) <= 6 + 6 // 2 + 1
    assert stored.files(root) == wanted
    history = [made for _, made in Log(str(root)).history()]
    assert sum(made.operation == "compact" for made in history) >= 3
    assert [made.streams for made in history if made.streams] == [
        {QUERY: number} for number in reversed(range(24))
    ]
    assert os.listdir(root / "_pending") == []


def test_a_failed_compaction_is_reported_once_and_ends_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        pour(monkeypatch, root, number, {f"{number}": b"x" * 2000}, compactEvery="3")
    record = Log(str(root)).latest().shards[1]
    flip(root / f"{record.path}.data", record.size - 1000)
    for number in range(3, 6):
        pour(monkeypatch, root, number, {f"{number}": b"x"}, compactEvery="3")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert "small shards were not compacted: " in lines[0]
    assert len(Log(str(root)).latest().shards) == 6
    assert os.listdir(root / "_pending") == []


def test_a_driver_that_dies_in_a_compaction_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The end of the process: nothing is cleaned up."""

    def die(*_: object) -> None:
        raise Killed

    for number in range(3):
        pour(monkeypatch, root, number, {f"{number}": b"x"}, compactEvery="3")
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "rewrite", die)
        patch.setattr(compaction.Transaction, "abort", lambda self: None)
        with pytest.raises(Killed):
            pour(monkeypatch, root, 3, {"3": b"x"}, compactEvery="3")
    assert len(os.listdir(root / "_pending")) == 1
    assert stored.files(root) == {f"{number}": b"x" for number in range(4)}
    pour(monkeypatch, root, 3, {"3": b"again"}, compactEvery="3")
    for number in range(4, 8):
        pour(monkeypatch, root, number, {f"{number}": b"x"}, compactEvery="3")
    assert stored.files(root) == {f"{number}": b"x" for number in range(8)}
    assert len(Log(str(root)).latest().shards) < 5
    assert os.listdir(root / "_pending") == []


def test_a_batch_write_has_no_such_option(root: Path) -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(ValueError, match="compactEvery is an option of a stream"):
        sink.batch_writer({"path": str(root), "compactEvery": "3"}, StructType(), False)
