"""A JVM for tests that is up with a third of the work: the quick compiler alone, and an archive of
Spark's classes as they are in memory.

    python tests/jvm.py ARCHIVE     make it: it costs what five JVMs save

A JVM leaves an archive alone that was made by another Java, or from other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.word_count import missing

ARCHIVE = Path(__file__).resolve().parent.parent / "build" / "spark.jsa"
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # else on stdout, where a test looks for JSON

# What the sessions of the tests do: a class that is loaded here is in the archive.
USED = """
import sys
from pyspark.sql import SparkSession, functions as F

place = sys.argv[1]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
rows = spark.range(1000).selectExpr("id", "id % 3 kind", "cast(cast(id as string) as binary) c")
same = rows.mapInArrow(lambda batches: batches, rows.schema)
same.groupBy("kind").agg(F.count("*")).orderBy("kind").collect()
found = spark.read.format("winkfs").load(place + "/log").where("path > '1'")
found.write.format("winkfs").mode("append").save(place + "/set")
spark.stop()
"""


def options() -> str:
    """For the command line of a JVM."""
    if not ARCHIVE.exists():
        return LIGHT
    return f"{LIGHT} -XX:SharedArchiveFile={ARCHIVE} {QUIET}"


def make(archive: Path) -> None:
    """Nothing is made where there is no Spark."""
    if problem := missing():
        print(f"no archive of classes: {problem}", file=sys.stderr)
        return
    from pyspark.find_spark_home import _find_spark_home
    from sparking import SETTINGS, environment

    import winkfs

    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as place:
        with winkfs.create(f"{place}/log", ao=True) as log:
            log.put_many((f"{i}", b"x") for i in range(10))
        script, made = Path(place, "used.py"), Path(place, "archive")
        script.write_text(USED)
        how = f"{LIGHT} -XX:ArchiveClassesAtExit={made} {QUIET}"
        words = [f"{_find_spark_home()}/bin/spark-submit", "--master", "local[2]"]
        words += [word for item in SETTINGS.items() for word in ("--conf", "=".join(item))]
        done = subprocess.run(
            [*words, str(script), place],
            env=environment(SPARK_SUBMIT_OPTS=how), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not made.exists():
            sys.exit(f"no archive of classes: {done.stdout[-3000:]}{done.stderr[-1000:]}")
        os.replace(made, archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
