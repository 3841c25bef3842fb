"""Settings with which the format costs less, and Spark's own file sources bear a mount."""

from __future__ import annotations


def session_conf() -> dict[str, str]:
    """Settings for sessions that read or write format("winkfs").

    ->      name -> value, for `SparkSession.builder.config(map=session_conf())` or `--conf`. The
            first cannot be changed once the session runs.
    """
    return dict(_SESSION)


def mount_conf() -> dict[str, str]:
    """Settings for Spark's file sources (binaryFile, text, json, parquet ...) on a mount.

    ->      name -> value, for `SparkSession.builder.config(map=mount_conf())` or `--conf`. The
            first cannot be changed once the session runs; the others can, by `spark.conf.set`.
            They hold for all that the session reads from local paths, not only for the mount.
    """
    return dict(_MOUNT)


# Gains: docs/spark.md, "Cost".
_SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    # The default, 64 MiB, has the JVM ask the kernel for new memory with each batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
}

# Gains: docs/spark.md, "Spark on a mounted path".
_MOUNT = {
    # Not LocalFileSystem: that one looks for a `.NAME.crc` beside each file that it opens, and
    # writes one beside each that it makes.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # The default, 4 MB a file, makes a task of every 32 small files.
    "spark.sql.files.openCostInBytes": "0",
    # The default is a task for each directory (of more than 32) to list what is in it.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
