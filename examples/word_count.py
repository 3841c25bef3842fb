"""Count the words of a directory by type of document, with PySpark.

    python examples/word_count.py DIR [--glob '*.html'] [--lines '*/*.txt']
    spark-submit examples/word_count.py DIR

DIR is a mounted winkfs container, or any other directory: the answer is the same. Two tables:

documents   read with Spark's `binaryFile`: each file is one row with its bytes, and Python finds
            out what it is (html, text, one of them in gzip, binary). `--glob` selects by name.
lines       only with `--lines`, which selects by path below DIR. Read with Spark's `text`: each
            line is one row, and the JVM counts (it unpacks *.gz by itself).

A word is what stands between white space, as for `wc -w`. As everywhere, Spark passes over empty
files and names that begin with `_` or `.`, and follows symbolic links.
"""

from __future__ import annotations

import argparse
import gzip
import html
import io
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

MIN_JAVA = 17  # what Spark 4 asks for
MAX_DOCUMENT = 64 * 1024 * 1024  # bytes; a larger file is listed, but not read into a row
MAX_UNPACKED = 256 * 1024 * 1024  # bytes that are taken out of one gzip
SNIFFED = 8192  # bytes looked at to tell text from binary

LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}

MARKUP = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
HTML_START = re.compile(
    rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.I | re.S
)
CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")  # none of these is in text (as `file` says)


class Document(NamedTuple):
    """What was found in one file: its type, and its text without markup ('' if there is none)."""

    kind: str
    text: str


def read_document(name: str, content: bytes) -> Document:
    """Find out what a file is by its bytes, and by its name where the bytes leave it open."""
    if content.startswith(b"\x1f\x8b"):
        try:
            inner = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_UNPACKED)
        except (OSError, EOFError, zlib.error):
            return Document("gz, damaged", "")
        found = read_document(name.removesuffix(".gz"), inner)
        return Document(f"{found.kind}.gz", found.text)
    if CONTROL.search(content, 0, SNIFFED):
        return Document("binary", "")
    text = content.decode("utf-8", "replace")
    if HTML_START.match(content, 0, SNIFFED) or name.lower().endswith((".html", ".htm", ".xhtml")):
        return Document("html", html.unescape(MARKUP.sub(" ", text)))
    return Document("text", text)


def count_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """(path, content) rows in, (type, bytes, words) rows out; runs in Spark's Python workers."""
    import pyarrow as pa

    for batch in batches:
        kinds, sizes, words = [], [], []
        for path, content in zip(batch.column(0), batch.column(1), strict=True):
            data = content.as_py()
            document = read_document(path.as_py(), data)
            kinds.append(document.kind)
            sizes.append(len(data))
            words.append(sum(map(len, map(str.split, document.text.splitlines()))))
        yield pa.RecordBatch.from_pydict(
            {"type": kinds, "bytes": sizes, "words": words},
            schema=pa.schema([("type", pa.string()), ("bytes", pa.int64()), ("words", pa.int64())]),
        )


def spark_path(directory: str | os.PathLike[str]) -> str:
    """The directory as Spark takes it: a local path in which no character is a wildcard."""
    path = os.path.abspath(directory)
    return "file://" + re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def count_documents(
    spark: SparkSession, directory: str | os.PathLike[str], name_glob: str = "*"
) -> DataFrame:
    """Rows (type, documents, bytes, words) in order of type, from all files below `directory`.

    name_glob  only files with such a name count (Spark's pathGlobFilter)
    """
    from pyspark.sql import functions as F

    files = (
        spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", name_glob)
        .load(spark_path(directory))
    )
    read = (
        files.where(F.col("length") <= MAX_DOCUMENT)  # pushed down: the others are not even opened
        .select("path", "content")
        .mapInArrow(count_batches, "type string, bytes long, words long")
    )
    too_large = files.where(F.col("length") > MAX_DOCUMENT).select(
        F.lit("too large").alias("type"), F.col("length").alias("bytes"), F.lit(0).alias("words")
    )
    return _totals(read.union(too_large), "type", F.count("*").alias("documents"), "bytes", "words")


def count_lines(
    spark: SparkSession, directory: str | os.PathLike[str], path_glob: str
) -> DataFrame:
    """Rows (extension, documents, lines, words) in order of extension, from files of text.

    path_glob  paths below `directory`, like `*/*.txt`; Spark raises AnalysisException if none fits
    """
    from pyspark.sql import functions as F

    lines = spark.read.text(f"{spark_path(directory)}/{path_glob}")
    path = F.col("_metadata.file_path")
    rows = lines.select(
        F.regexp_extract(path, r"\.([^./]+)$", 1).alias("extension"),
        path.alias("path"),
        F.regexp_count("value", F.lit(r"(?U)\S+")).alias("words"),
    )
    counts = [F.countDistinct("path").alias("documents"), F.count("*").alias("lines")]
    return _totals(rows, "extension", *counts, "words")


def _totals(rows: DataFrame, key: str, *wanted: Column | str) -> DataFrame:
    """Group by `key`; a column's name among `wanted` stands for its sum."""
    from pyspark.sql import functions as F

    columns = [F.sum(w).alias(w) if isinstance(w, str) else w for w in wanted]
    return rows.groupBy(key).agg(*columns).orderBy(key)


def missing() -> str | None:
    """What this machine lacks for PySpark and how to get it, in one line; None if all is there."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            return f"{sys.executable} has no {module}; get it with: pip install 'winkfs[spark]'"
    get = f"install Java {MIN_JAVA} (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return f"Java is missing{f' in JAVA_HOME={home}' if home else ''}; {get}"
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if version is None or int(version[1]) < MIN_JAVA:
        return f"{java} is Java {version[1] if version else 'unknown'}; {get}"
    return None


def session(master: str = "local[*]") -> SparkSession:
    """A Spark session: on this machine alone, or where spark-submit says."""
    from pyspark.sql import SparkSession

    from winkfs.spark.session import mount_conf

    # The JVM would start the first python3 on PATH, which need not be the one that has our modules.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = mount_conf()
    if (
        "PYSPARK_GATEWAY_PORT" not in os.environ
    ):  # spark-submit sets it, and has settings of its own
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL_SETTINGS | {"spark.master": master}
    builder = SparkSession.builder.appName("winkfs word count")
    return builder.config(map=settings).getOrCreate()


def print_table(table: DataFrame) -> None:
    """Print a table of a few rows: the first column is a name, the others are numbers."""
    rows = [[row[0] or "-", *(f"{n:,}" for n in row[1:])] for row in table.collect()]
    lines = [table.columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    for line in lines:
        numbers = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        print("  ".join([line[0].ljust(widths[0]), *numbers]))


def main(argv: list[str] | None = None) -> int:
    """Run the job; 0 if the tables were printed, 1 with one line on stderr if not."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", metavar="DIR", help="a mounted container or another directory")
    parser.add_argument("--glob", default="*", help="only files with such a name, like '*.html'")
    parser.add_argument("--lines", metavar="GLOB", help="count the lines of these paths below DIR")
    arguments = parser.parse_args(argv)
    problem = missing()
    if not Path(arguments.directory).is_dir():
        problem = f"{arguments.directory}: no such directory"
    if problem:
        print(f"word_count: {problem}", file=sys.stderr)
        return 1
    return _run(arguments.directory, arguments.glob, arguments.lines)


def _run(directory: str, name_glob: str, path_glob: str | None) -> int:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark = None
    try:
        spark = session()
        print_table(count_documents(spark, directory, name_glob))
        if path_glob:
            print()
            print_table(count_lines(spark, directory, path_glob))
    except (PySparkException, Py4JError) as error:
        print(f"word_count: {directory}: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("word_count: interrupted", file=sys.stderr)
        return 130
    finally:
        if spark is not None:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
