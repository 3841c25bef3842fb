"""The Python of a local Spark, with a compiled PySpark.

Spark puts a zip with the sources of PySpark in front of the path of each Python that it starts. To
compile them takes a second of CPU, and planner, tasks and commit have a Python each. A PySpark that
was installed by pip lies beside its zip, compiled: a script takes the zip out of the path.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT: Final = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
export PYTHONPATH="${{PYTHONPATH#*/py4j-*-src.zip:}}"
exec {python} "$@"
"""
WHERE: Final = "from importlib.util import find_spec; print(find_spec('pyspark').origin)"
_scripts: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


@contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """What Spark is given to run in Python in the block runs in such a Python, where the session is
    a local one and its Python is this one; else nothing changes."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    script = None if context is None else _script_of(context)
    if context is None or script is None:
        yield
        return
    before, context.pythonExec = context.pythonExec, script
    try:
        yield
    finally:
        context.pythonExec = before


def _script_of(context: Any) -> str | None:
    if context not in _scripts:
        _scripts[context] = _made(context) if _is_local(context) else None
    return _scripts[context]


def _is_local(context: Any) -> bool:
    found = shutil.which(context.pythonExec)
    same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return same and (context.master == "local" or context.master.startswith("local["))


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
