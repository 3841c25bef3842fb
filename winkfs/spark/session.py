"""API for the driver: `register` the format, `read`, `delete`, `upsert`, settings; and `compiled`.

Spark puts a zip with the sources of PySpark first in the path of each Python that it starts.
Planner, tasks and commit each have a Python, which would compile these sources again. A PySpark
installed by pip is also there in compiled form: a script removes the zip from the path. The daemon
that it starts for tasks imports what they need once, before it forks a worker for each core.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from winkfs.errors import need_installed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

PACKAGES: Final = ("pyspark", "pyarrow")  # requirements of winkfs.spark
MANAGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
FORMATS: Final = "runtimeDataSourceBuilders"  # its field with the formats registered in a session
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()
SCRIPT: Final = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
export PYTHONPATH="${{PYTHONPATH#*/py4j-*-src.zip:}}"
[ "$*" != "-m pyspark.daemon pyspark.worker" ] || set -- {daemon} pyspark.worker
exec {python} "$@"
"""
DAEMON: Final = """import contextlib, gc, runpy, sys
if not sys.flags.safe_path:
    sys.path[0] = ""  # as with -m
with contextlib.suppress(Exception):  # a task reports it
    import winkfs.spark.reading.batches
gc.freeze()  # a worker collects after each task
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
"""
WHERE: Final = "from importlib.util import find_spec; print(find_spec('pyspark').origin)"
_scripts: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


def register(spark: SparkSession) -> None:
    """Register format("winkfs") in a session.

    Needed if Spark does not find it by name: winkfs is installed in editable form, or sent to the
    workers by `spark.sparkContext.addPyFile`, which must be called before.

    raises  Refusal, which names the extra, if PySpark or pyarrow is missing
    """
    need_installed("winkfs.spark", *PACKAGES)
    from pyspark_winkfs import DefaultSource

    run_this_python(spark)
    with compiled(spark):
        if not put_source(spark, DefaultSource):
            with unwarned(spark):
                spark.dataSource.register(DefaultSource)
    _registered.add(spark)


def run_this_python(spark: SparkSession) -> None:
    """Let a local session run this Python, unless one is configured. Spark takes the first python3
    of the PATH, which may be a different one if a script runs as `.venv/bin/python`."""
    context = context_of(spark)
    if not hasattr(context, "pythonExec") or "PYSPARK_PYTHON" in os.environ:
        return
    if _is_local(context.master) and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable


def context_of(spark: SparkSession) -> Any:
    """Return the SparkContext of a session; None: it is one of Spark Connect, which has none."""
    return getattr(spark, "sparkContext", None)


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def put_source(spark: SparkSession, source: type[DataSource]) -> bool:
    """Do what Spark's `register` does, without its search of all formats that can be found by name.

    Spark searches only to warn of an equal name, and starts two Pythons for it, each without a
    compiled PySpark.

    ->      False: an unknown Spark, or Spark Connect; nothing has changed
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.sql.udf import _wrap_function
    except ImportError:
        return False
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        field = manager.getClass().getDeclaredField(FORMATS)
        field.setAccessible(True)
        python = spark._jvm.org.apache.spark.sql.execution.datasources.v2.python
        made = python.UserDefinedPythonDataSource(_wrap_function(spark.sparkContext, source))
        field.get(manager).put(source.name().lower(), made)
    except (AttributeError, TypeError, Py4JError):
        return False
    return True


@contextmanager
def unwarned(spark: SparkSession) -> Iterator[None]:
    """Suppress the warning of Spark that a format is replaced by an equal one.

    With Spark Connect, whose server logs it, and with other loggers the warning stays.
    """
    try:
        log4j = spark._jvm.org.apache.logging.log4j
        before = log4j.LogManager.getLogger(MANAGER).getLevel()
        log4j.core.config.Configurator.setLevel(MANAGER, log4j.Level.ERROR)
    except Exception:
        yield
        return
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(MANAGER, before)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Return the files of containers and data sets as a DataFrame of their current state.

    path     BASE, or DIR of a data set; or several
    schema   columns, as `spark.read.schema` takes them
    options  see `reading.options`; columns, paths and glob may be lists, times datetimes
    raises   ValueError for a wrong option; AnalysisException with the reason
    """
    need_installed("winkfs.spark", *PACKAGES)
    from winkfs.spark.reading.options import Options
    from winkfs.spark.reading.pushdown import prove
    from winkfs.spark.reading.stores import ddl_of

    if spark not in _registered:
        register(spark)
    many = [path] if isinstance(path, str | os.PathLike) else list(path)
    texts = {"path": json.dumps([os.fspath(p) for p in many])}
    texts |= {name: _text(name, value) for name, value in options.items() if value is not None}
    checked = Options.of(texts)  # raises an error of one line; that of Spark has a traceback
    found = ddl_of(checked)
    if checked.pushdown == "native":
        prove(spark)
    if checked.content == "lazy":
        from winkfs.spark.reading.lazy import frame

        with compiled(spark):
            return frame(spark, checked, texts, schema)
    if schema is None and context_of(spark) is not None:
        schema = found  # a process of Spark, which would import numpy for it, need not find it
    reader = spark.read.format("winkfs").options(**texts)
    return (reader if schema is None else reader.schema(schema)).load()


def delete(
    spark: SparkSession, path: str | os.PathLike[str], condition: str | Column
) -> dict[str, int]:
    """Delete the files of a data set, or a container, for which a condition is true.

    condition  of Spark SQL, on the columns of a read: "score < 0.1 or lang is null"
    ->         deleted: number of files; generation: of the data set, 0 for a container
    raises     DatasetConflict if another commit has meanwhile put or deleted one of these files:
               then nothing is deleted; Locked (a container with another writer); ValueError; errors
               of Spark
    cost       one read, of contents only if the condition names `content`; the names are collected
               on the driver. A container is locked meanwhile
    """
    from winkfs.container.container import open as open_container
    from winkfs.dataset.manifest import is_dataset

    need_installed("winkfs.spark", *PACKAGES)
    root = os.fspath(path)
    if is_dataset(root):
        return _delete_committed(spark, root, condition)
    with open_container(root, "a") as container:  # first, to exclude other writers
        names = _names_of(spark, root, condition)
        for name in names:
            container.delete(name)
    return {"deleted": len(names), "generation": 0}


def _delete_committed(spark: SparkSession, root: str, condition: str | Column) -> dict[str, int]:
    """Delete files of a data set: see `delete`."""
    from winkfs.dataset.dataset import open as open_dataset
    from winkfs.dataset.shardwriter import ShardWriter
    from winkfs.dataset.transaction import begun

    with open_dataset(root) as known:
        ao, seen = known.ao, known.generation
    names = _names_of(spark, root, condition, asOf=seen)
    if not names:
        return {"deleted": 0, "generation": seen}
    with begun(root, "delete") as transaction:
        writer = ShardWriter(transaction, "00000", ao=ao)
        writer.gone.update(names)
        record = writer.finish()
        metrics = {"deleted": len(names)}
        generation = transaction.commit([record], metrics=metrics, since=seen)
    return {"deleted": len(names), "generation": generation}


def _names_of(
    spark: SparkSession, root: str, condition: str | Column, **options: Any
) -> list[bytes]:
    """Return the names of the files for which a condition is true."""
    inline = "inline" if "content" in str(condition) else "none"
    with compiled(spark):
        named = read(spark, root, content=inline, **options).columns
        frame = read(spark, root, content=inline, columns=[*named, "name_raw"], **options)
        rows = frame.where(condition).select("name_raw").toLocalIterator()
        return [bytes(row[0]) for row in rows]


def upsert(df: DataFrame, path: str | os.PathLike[str]) -> None:
    """Put the files of a DataFrame into a data set, replacing those with equal paths.

    df      has `path`. An existing file keeps its values of columns that `df` lacks. If `df` has
            content, the file gets mtime, mode and type of a new file, else it keeps them
    raises  ValueError without a column path; DatasetConflict if another commit has meanwhile put
            or deleted one of these files: then nothing is put; errors of Spark, such as for a new
            file without content
    cost    if `df` lacks columns of the data set: a join with all of its files, and a copy of the
            replaced ones
    """
    from winkfs.dataset.manifest import Log, is_dataset
    from winkfs.errors import DatasetConflict
    from winkfs.spark.reading.options import store_path

    need_installed("winkfs.spark", *PACKAGES)
    root, spark = store_path(os.fspath(path)), df.sparkSession
    if "path" not in df.columns:
        raise ValueError(f"upsert needs the column path; the columns are: {', '.join(df.columns)}")
    if spark not in _registered:
        register(spark)
    options: dict[str, Any] = {}
    if is_dataset(root):
        seen = Log(root).shown().generation
        options["afterGeneration"] = seen
        kept = _kept(df.columns, read(spark, root, asOf=seen).columns)
        if kept:
            known = read(spark, root, asOf=seen, columns=["path", *kept])
            df = df.join(known, "path", "left")
    try:
        with compiled(spark):
            df.write.format("winkfs").options(**options).mode("append").save(root)
    except Exception as error:
        if DatasetConflict.__name__ not in str(error):
            raise
        what = str(error).partition(f"{root}: ")[2].splitlines()[0]
        raise DatasetConflict(what, root) from None


def _kept(given: Iterable[str], there: Iterable[str]) -> list[str]:
    """Return the columns that an upsert must copy from the existing files."""
    names = {name.lower() for name in given}
    kept = [name for name in there if name not in ("path", "size", "mtime")]
    if "content" not in names:
        kept += ["mode", "ftype"]
        if not names & {"mtime", "mtime_ns", "modificationtime"}:
            kept.append("mtime_ns")
    return [name for name in kept if name.lower() not in names]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.astimezone().isoformat()
    if isinstance(value, Iterable):
        items = [item if isinstance(item, str) else os.fspath(item) for item in value]
        return ",".join(items) if name.lower() == "columns" else json.dumps(items)
    return str(value)


@contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Let Python code given to Spark in the block run with a compiled PySpark, if the session is
    local and runs this Python; else nothing changes.

    This also affects code that other threads give to Spark meanwhile: the script starts the same
    Python, and exists as long as the context.
    """
    context = context_of(spark)
    before = getattr(context, "pythonExec", None)
    script = None if before is None else _script_of(context)
    if script in (None, before):
        yield
        return
    context.pythonExec = script
    try:
        yield
    finally:
        context.pythonExec = before


def _script_of(context: Any) -> str | None:
    if context not in _scripts:
        found = shutil.which(context.pythonExec)
        same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
        _scripts[context] = _made(context) if same and _is_local(context.master) else None
    return _scripts[context]


def _made(context: Any) -> str | None:
    """Write the script, in a folder that Spark removes -> its path; None if it does not work."""
    import pyspark

    try:
        script = write_script(Path(context._temp_dir))
        found = subprocess.run([script, "-c", WHERE], capture_output=True, check=True, text=True)
    except (OSError, AttributeError, subprocess.SubprocessError):
        return None
    return str(script) if found.stdout.strip() == pyspark.__file__ else None


def write_script(folder: Path) -> Path:
    """Write the script, and the daemon that it starts for tasks, into a folder -> its path. Raises
    OSError."""
    script, daemon = folder / "python", folder / "daemon.py"
    daemon.write_text(DAEMON)
    python, started = shlex.quote(sys.executable), shlex.quote(str(daemon))
    script.write_text(SCRIPT.format(python=python, daemon=started))
    script.chmod(0o700)
    return script


# --- settings ---


def session_conf() -> dict[str, str]:
    """Return settings for sessions that read or write format("winkfs").

    ->      name -> value, for `SparkSession.builder.config(map=session_conf())` or `--conf`. The
            first cannot be changed in a running session.

    If PYSPARK_PYTHON is not set, the folder of this Python is put first in the PATH of this
    process, so that a session runs this Python, as in an active virtual environment.
    """
    here, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    if "PYSPARK_PYTHON" not in os.environ and path.split(os.pathsep)[0] != here:
        os.environ["PATH"] = here + os.pathsep + path
    return dict(_SESSION)


def mount_conf() -> dict[str, str]:
    """Return settings for Spark's file sources (binaryFile, text, json, parquet ...) on a mount.

    ->      name -> value, for `SparkSession.builder.config(map=mount_conf())` or `--conf`. The
            first cannot be changed in a running session; the others can, by `spark.conf.set`. They
            apply to all local paths that the session reads, not only to the mount.
    """
    return dict(_MOUNT)


# Gains: docs/spark.md, "Cost".
_SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    # With the default, 64 MiB, the JVM requests new memory from the kernel for each batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
}

# Gains: docs/spark.md, "Spark on a mounted path".
_MOUNT = {
    # LocalFileSystem would look for a `.NAME.crc` beside each file that it opens, and write one
    # beside each that it creates.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # With the default, 4 MB for each file, 32 small files become a task; now 1,024. With 0 all of
    # them: and for each file of a task that a filter skips, Spark needs more of its stack.
    "spark.sql.files.openCostInBytes": "131072",
    # By default more than 32 directories are listed by a task each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
