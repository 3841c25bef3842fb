"""What a user's own script sees of an error: our line, not the stack of Spark's Python worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored
from sparkfiles import plain
from sparking import SparkSession, save

import winkfs
import winkfs.spark

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")


def message_of(action: Callable[..., Any], *arguments: Any) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action(*arguments)
    return str(caught.value)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return plain(tmp_path / "c")


@pytest.fixture
def damaged(base: Path) -> Path:
    """A container with a flipped bit in the content of `damaged`."""
    stored.change(base, {"damaged": b"NEEDLE" * 100})
    data = base.with_name("c.data")
    data.write_bytes(data.read_bytes().replace(b"NEEDLE", b"NEADLE"))
    return base


def one_line_of(text: str, *parts: str) -> None:
    assert "Traceback" not in text, text
    line = next(line for line in text.splitlines() if parts[0] in line)
    assert all(part in line for part in parts), line


def test_a_misspelt_option_is_in_the_first_line(spark: SparkSession, base: Path) -> None:
    winkfs.spark.register(spark)
    reader = spark.read.format("winkfs").option("prefx", "a")
    text = message_of(reader.load, str(base))
    one_line_of(text.splitlines()[0], "no option 'prefx': did you mean prefix?")


def test_a_missing_path_is_in_the_first_line(spark: SparkSession, tmp_path: Path) -> None:
    frame = winkfs.spark.read(spark, tmp_path / "nowhere")
    one_line_of(message_of(frame.count).splitlines()[0], f"{tmp_path}/nowhere: no such container")


def test_a_flipped_bit_is_reported_without_a_task_stack(spark: SparkSession, damaged: Path) -> None:
    frame = winkfs.spark.read(spark, damaged)
    reported = ("damaged: ", "c.data", "checksum at byte", "mode=PERMISSIVE gives such rows")
    one_line_of(message_of(frame.collect), *reported)
    refs = winkfs.spark.read(spark, damaged, content="ref")
    one_line_of(
        message_of(lambda: winkfs.spark.fetch_content(refs).collect()), "c.data", "PERMISSIVE"
    )


def test_an_unwritable_row_is_reported_without_a_task_stack(
    spark: SparkSession, tmp_path: Path
) -> None:
    winkfs.spark.register(spark)
    rows = spark.sql("select 'a' path, cast(null as binary) content")
    text = message_of(save, rows, tmp_path / "set")
    one_line_of(text, "a: the content is null")
    bad = spark.sql("select 'a' path, X'00' content, map(1, 2) x")
    one_line_of(
        message_of(save, bad, tmp_path / "set").splitlines()[0], "no column of a file", "'x'"
    )


def test_the_stack_of_an_error_of_the_users_own_stays(spark: SparkSession, base: Path) -> None:
    message_of(winkfs.spark.read(spark, f"{base}-nowhere").count)

    def fail(batches: Any) -> Any:
        raise ValueError("mine")

    frame = winkfs.spark.read(spark, base, content="none").mapInArrow(fail, "path string")
    assert "in fail" in message_of(frame.count)
