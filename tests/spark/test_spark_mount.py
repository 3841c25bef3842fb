"""Spark's own file sources and sinks on a mounted container: what they read, write, and cost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mount_requests import counted
from mounting import mounted
from sparking import DataFrame, SparkSession

import winkfs
from winkfs.spark.session import mount_conf

pytestmark = [pytest.mark.spark, pytest.mark.mount]

FILES = {f"d{i % 7}/f{i}.bin": bytes([i]) * (i * 37 % 5000 + 1) for i in range(60)}
MTIME = 1_600_000_000.125  # Spark shows milliseconds of a file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with winkfs.create(str(tmp_path / "corpus")) as container:
        for name, content in FILES.items():
            container.put(name, content, mtime=MTIME)
    return tmp_path / "corpus"


@pytest.fixture
def with_crc(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the default of Hadoop, which looks for a `.NAME.crc` beside each file."""
    changes = {
        "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.file.impl.disable.cache": "true",
    }
    for name, value in changes.items():
        spark.conf.set(name, value)
    yield spark
    for name in changes:
        spark.conf.unset(name)


def documents(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    return reader.load(f"file://{directory}")


def contents(table: DataFrame, directory: Path) -> dict[str, bytes]:
    start = len(f"file:{directory}/")
    return {
        row.path[start:]: bytes(row.content) for row in table.select("path", "content").collect()
    }


def test_binary_files_have_metadata_and_bytes_of_the_container(
    spark: SparkSession, base: Path
) -> None:
    with mounted(base, "--ro") as there:
        rows = documents(spark, there).selectExpr("*", "_metadata.file_size as size").collect()
        start = len(f"file:{there}/")
        found = {row.path[start:]: bytes(row.content) for row in rows}
    assert found == FILES
    assert {row.modificationTime.timestamp() for row in rows} == {MTIME}
    assert all(row.length == row.size == len(row.content) for row in rows)


def test_probe_for_a_missing_name_reaches_the_server_once(base: Path, tmp_path: Path) -> None:
    names = [os.path.join(os.path.dirname(n), f".{os.path.basename(n)}.crc") for n in FILES]
    with counted(base, tmp_path, "--ro") as mount:
        for _ in range(3):
            assert not any((mount.directory / name).exists() for name in names)
        assert sorted(mount.looked_up(".crc")) == sorted(map(os.path.basename, names))


def test_followed_mount_answers_a_probe_from_memory_for_a_second(
    base: Path, tmp_path: Path
) -> None:
    with counted(base, tmp_path, "--ro", "--follow") as mount:
        for _ in range(50):  # some milliseconds
            assert not (mount.directory / ".f.crc").exists()
        assert len(mount.looked_up(".crc")) <= 2


def test_spark_with_our_settings_asks_for_no_crc(
    spark: SparkSession, base: Path, tmp_path: Path
) -> None:
    with counted(base, tmp_path, "--ro") as mount:
        for _ in range(2):
            assert contents(documents(spark, mount.directory), mount.directory) == FILES
        assert mount.looked_up(".crc") == []
        assert mount.requests()["READ"] <= len(FILES) + 3  # once a file, however often Spark reads


def test_spark_without_them_asks_the_server_once_a_file(
    with_crc: SparkSession, base: Path, tmp_path: Path
) -> None:
    with counted(base, tmp_path, "--ro") as mount:
        for _ in range(2):
            assert contents(documents(with_crc, mount.directory), mount.directory) == FILES
        assert len(mount.looked_up(".crc")) == len(FILES)


@pytest.mark.long
def test_crc_files_are_left_out_with_our_settings_only(
    spark: SparkSession, with_crc: SparkSession, base: Path
) -> None:
    table = spark.range(100).selectExpr("cast(id as string) as value")
    with mounted(base) as there:
        table.write.text(f"file://{there}/with")
        assert list((there / "with").glob(".*.crc"))
        spark.conf.unset("fs.file.impl")
        spark.conf.unset("fs.file.impl.disable.cache")
        table.write.text(f"file://{there}/without")
        assert not list((there / "without").glob(".*.crc"))


def test_settings_can_be_passed_as_they_are(spark: SparkSession) -> None:
    for name, value in mount_conf().items():
        assert spark.conf.get(name) == value, name


def test_lines_texts_and_damaged_json_equal_those_of_a_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    (original / "text").mkdir(parents=True)
    (original / "json").mkdir()
    for i in range(5):
        (original / f"text/{i}.txt").write_text("a|b\nc|" * (i + 1))
        rows = [json.dumps({"id": j, "name": "ü" * j}) for j in range(i * 10)]
        (original / f"json/{i}.json").write_text("\n".join([*rows, '{"id": broken', ""]))
    with winkfs.create(str(tmp_path / "corpus")) as container:
        for path in original.rglob("*.*"):
            container.put(str(path.relative_to(original)), path.read_bytes())
    schema = "id long, name string, _corrupt_record string"

    def all_of(root: Path) -> list[list[object]]:
        tables = [  # a reader keeps its options: one for each
            spark.read.text(f"file://{root}/text"),
            spark.read.text(f"file://{root}/text", wholetext=True),
            spark.read.text(f"file://{root}/text", lineSep="|"),
            spark.read.json(f"file://{root}/json", schema=schema),
        ]
        return [sorted(map(repr, table.collect())) for table in tables]

    with mounted(tmp_path / "corpus", "--ro") as there:
        found = all_of(there)
        assert found == all_of(original)
    assert sum("broken" in row for row in found[3]) == 5


def test_failed_job_leaves_the_table_in_the_mount_as_it_was(
    spark: SparkSession, base: Path
) -> None:
    with mounted(base) as there:
        spark.range(50).write.parquet(f"file://{there}/table")
        # One task, with several files when it fails: another that still ran would make its folder
        # again after Spark has removed it, on any filesystem.
        broken = spark.range(0, 1000, 1, 1).selectExpr(
            "if(id = 700, raise_error('planted'), id) as id"
        )
        with pytest.raises(Exception, match="planted"):
            writer = broken.write.mode("append").option("maxRecordsPerFile", 100)
            writer.parquet(f"file://{there}/table")
        assert spark.read.parquet(f"file://{there}/table").count() == 50
        assert not [path for path in there.rglob("*") if "_temporary" in path.name]


@pytest.mark.long
def test_a_stream_restarts_from_a_checkpoint_in_the_mount(spark: SparkSession, base: Path) -> None:
    """Its log relies on rename(2): a name is there once, and with all its bytes."""
    with mounted(base, patience=240) as there:
        incoming = there / "incoming"
        incoming.mkdir()

        def drain() -> None:
            stream = spark.readStream.text(f"file://{incoming}").writeStream.format("parquet")
            query = (
                stream.option("checkpointLocation", f"file://{there}/checkpoint")
                .option("path", f"file://{there}/table")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)

        for turn in range(2):
            for i in range(10):
                (incoming / f"{turn}-{i}.txt").write_text(f"{turn} {i}\n")
            drain()
        found = sorted(row.value for row in spark.read.parquet(f"file://{there}/table").collect())
        assert found == [f"{turn} {i}" for turn in range(2) for i in range(10)]
    assert winkfs.verify(base).problems == []
