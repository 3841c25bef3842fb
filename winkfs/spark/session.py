"""What a driver calls: `register` the format, `read` with it; settings; and `compiled`.

Spark puts a zip with the sources of PySpark in front of the path of each Python that it starts, and
planner, tasks and commit have a Python each, which compiles them anew. A PySpark that was installed
by pip lies beside its zip, compiled: a script takes the zip out of the path.
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

PACKAGES: Final = ("pyspark", "pyarrow")  # what all of winkfs.spark needs
MANAGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
FORMATS: Final = "runtimeDataSourceBuilders"  # in it: what a session was given, by name
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()
SCRIPT: Final = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
export PYTHONPATH="${{PYTHONPATH#*/py4j-*-src.zip:}}"
exec {python} "$@"
"""
WHERE: Final = "from importlib.util import find_spec; print(find_spec('pyspark').origin)"
_scripts: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


def register(spark: SparkSession) -> None:
    """Make format("winkfs") known to a session.

    Needed where Spark does not find it by name: winkfs is installed in editable form, or reaches
    the Python of the workers by `spark.sparkContext.addPyFile`, which has to come before.

    raises  Refusal, which names the extra, where PySpark or pyarrow is missing
    """
    need_installed("winkfs.spark", *PACKAGES)
    from pyspark_winkfs import DefaultSource

    _run_this_python(spark)
    with compiled(spark):
        if not _put(spark, DefaultSource):
            with _unwarned(spark):
                spark.dataSource.register(DefaultSource)
    _registered.add(spark)


def _run_this_python(spark: SparkSession) -> None:
    """Have a local session run this Python, where nothing else was asked for: Spark takes the first
    python3 of the PATH, which is another one where a script was started as `.venv/bin/python`."""
    context = getattr(spark, "sparkContext", None)
    if context is None or "PYSPARK_PYTHON" in os.environ or not _is_local(context.master):
        return
    if context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _put(spark: SparkSession, source: type[DataSource]) -> bool:
    """Do what Spark's `register` does, except a look at all formats that can be found by name.

    It looks only to warn of one with the same name, and starts two Pythons for it, each without a
    compiled PySpark. Spark does so where a query asks for a format that it does not know.

    ->      False where this is another Spark, or Spark Connect: nothing has changed
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
def _unwarned(spark: SparkSession) -> Iterator[None]:
    """Without the warning that a format is replaced: the one that Spark found by its name is this.

    Spark Connect, whose server logs it, has no JVM to talk to, and a vendor's Spark may have
    another logger: then the warning stays.
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
    """The files of containers and data sets as a DataFrame, as of now: each call plans anew.

    path     BASE, or DIR of a data set; or several
    schema   columns, as `spark.read.schema` takes them
    options  see `reading.options`; columns, paths and glob may be lists, times datetimes
    raises   ValueError for a wrong option; AnalysisException, whose text says what is wrong
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
    checked = Options.of(texts)  # here an error is one line, from Spark it has a traceback
    ddl_of(checked)
    if checked.pushdown == "native":
        prove(spark)
    reader = spark.read.format("winkfs").options(**texts)
    return (reader if schema is None else reader.schema(schema)).load()


def delete(
    spark: SparkSession, path: str | os.PathLike[str], condition: str | Column
) -> dict[str, int]:
    """Delete the files of a data set, or a container, of which a condition is true.

    condition  of Spark SQL, on the columns that a read gives: "score < 0.1 or lang is null"
    ->         deleted: number of files; generation: of the data set, 0 of a container
    raises     DatasetConflict where another commit has meanwhile put or deleted one of these files:
               nothing is deleted then; Locked (a container, another writer); ValueError; what
               Spark raises
    cost       one read, of contents only where the condition names `content`; the names come to
               the driver. A container has no other writer meanwhile
    """
    from winkfs.container.container import open as open_container
    from winkfs.dataset.manifest import is_dataset

    need_installed("winkfs.spark", *PACKAGES)
    root = os.fspath(path)
    if is_dataset(root):
        return _delete_committed(spark, root, condition)
    with open_container(root, "a") as container:  # before it is read: so nobody changes it
        names = _names_of(spark, root, condition)
        for name in names:
            container.delete(name)
    return {"deleted": len(names), "generation": 0}


def _delete_committed(spark: SparkSession, root: str, condition: str | Column) -> dict[str, int]:
    """The same in a data set."""
    from winkfs.dataset.dataset import open as open_dataset
    from winkfs.dataset.transaction import ShardWriter, begun

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
    """The names of the files of which a condition is true."""
    inline = "inline" if "content" in str(condition) else "none"
    with compiled(spark):
        named = read(spark, root, content=inline, **options).columns
        frame = read(spark, root, content=inline, columns=[*named, "name_raw"], **options)
        rows = frame.where(condition).select("name_raw").toLocalIterator()
        return [bytes(row[0]) for row in rows]


def upsert(df: DataFrame, path: str | os.PathLike[str]) -> None:
    """Put the files of a DataFrame into a data set, over those of the same paths.

    df      has `path`; a file that is there keeps what `df` has no column for. One whose content
            is in `df` is put anew, with the mtime, mode and type of a new file; else it keeps these
    raises  ValueError where there is no path; DatasetConflict where another commit has meanwhile
            put or deleted one of these files: nothing is put then; what Spark raises: a new file
            without a content
    cost    where `df` lacks columns of the data set: a join with all of its files, and a copy of
            those that are met
    """
    from winkfs.dataset.manifest import Log, is_dataset
    from winkfs.errors import DatasetConflict
    from winkfs.spark.reading.options import local_path

    need_installed("winkfs.spark", *PACKAGES)
    root, spark = local_path(os.fspath(path)), df.sparkSession
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
    """What an upsert of columns takes from the files that are there, with other columns."""
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
    """What Spark is given to run in Python in the block runs in such a Python, where the session is
    a local one and its Python is this one; else nothing changes.

    What other threads give it meanwhile does so, too: the script starts this Python, for as long as
    the context lives.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    script = None if context is None else _script_of(context)
    if context is None or script in (None, context.pythonExec):
        yield
        return
    before, context.pythonExec = context.pythonExec, script
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
    """Write the script, in a folder that Spark removes; None where it is of no use."""
    import pyspark

    try:
        script = Path(context._temp_dir, "python")
        script.write_text(SCRIPT.format(python=shlex.quote(sys.executable)))
        script.chmod(0o700)
        found = subprocess.run([script, "-c", WHERE], capture_output=True, check=True, text=True)
    except (OSError, AttributeError, subprocess.SubprocessError):
        return None
    return str(script) if found.stdout.strip() == pyspark.__file__ else None


# --- settings ---


def session_conf() -> dict[str, str]:
    """Settings for sessions that read or write format("winkfs").

    ->      name -> value, for `SparkSession.builder.config(map=session_conf())` or `--conf`. The
            first cannot be changed once the session runs.

    Where PYSPARK_PYTHON is not set, the folder of this Python becomes the first of the PATH of this
    process: a session that it starts then runs this Python, as in an active virtual environment.
    """
    here, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    if "PYSPARK_PYTHON" not in os.environ and path.split(os.pathsep)[0] != here:
        os.environ["PATH"] = here + os.pathsep + path
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
