"""Spark applications one after the other in one JVM: scripts, each with a SparkContext of its own.

A JVM that starts with a context costs more than most scripts do in it.

    applications = Applications(environment, settings)
    done = applications.run("print(spark.range(3).count())", [], "local[2]", sys.executable)
    applications.end()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # seconds one application may take before it counts as hung


class Applications:
    """A Python process that runs scripts, and the JVM that the first of them has started."""

    def __init__(self, env: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self._path = env["PYTHONPATH"]
        self._place = tempfile.TemporaryDirectory(prefix="winkfs-applications-")
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(dict(settings))],
            env=dict(env), cwd=self._place.name, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def serves(self, path: str) -> bool:
        """Whether it can run one more, with this PYTHONPATH."""
        return self._path == path and self.process.poll() is None

    def run(
        self, code: str, arguments: list[str], master: str, python: str
    ) -> subprocess.CompletedProcess[str]:
        """Status 1 where it raised, or where the process ended under it; what Java and the workers
        say is in the stderr of the first."""
        from mounting import is_readable

        assert self.process.stdin is not None and self.process.stdout is not None
        texts = [Path(self._place.name, name) for name in ("stdout", "stderr")]
        request = [code, arguments, master, python, *map(str, texts)]
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        if not is_readable(self.process.stdout.fileno(), PATIENCE):
            self.process.kill()  # its JVM ends with it
            answer = texts[1].read_text(errors="replace")[-3000:]
            raise AssertionError(f"an application hangs: {answer}")
        status, alive = map(int, (self.process.stdout.readline() or b"1 0").split())
        if not alive:
            self.process.wait(60)  # or the next one would be asked of a process that is ending
        out, err = (text.read_text(errors="replace") for text in texts)
        return subprocess.CompletedProcess(arguments, status, out, err)

    def end(self) -> None:
        try:
            self.process.communicate(timeout=60)  # the end of its input
        finally:
            self.process.kill()
            self._place.cleanup()


# --- in that process ---


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    settings = json.loads(sys.argv[1])
    for line in sys.stdin:
        code, arguments, master, python, out, err = json.loads(line)
        os.environ["PYSPARK_PYTHON"] = python
        sys.argv[1:] = arguments
        with _written_to(out, err):
            status, alive = _run(code, master, settings)
        print(status, int(alive), file=answers, flush=True)
        if not alive:
            break


def _run(code: str, master: str, settings: dict[str, str]) -> tuple[int, bool]:
    """-> its status, and whether the JVM lives."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    script: dict[str, Any] = {"__name__": "__main__", "sys": sys}
    status = 0
    try:
        builder = SparkSession.builder.master(master).config(map=settings)
        script["spark"] = builder.getOrCreate()
        exec(compile(code, "application", "exec"), script)
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        script["spark"].stop()
        SparkContext._gateway.jvm.System.nanoTime()  # a dead one has not been noticed so far
    except Exception:
        return status, False
    return status, True


@contextmanager
def _written_to(*paths: str) -> Iterator[None]:
    """Standard output and standard error, also of programs that are started."""
    before = [os.dup(number) for number in (1, 2)]
    try:
        for number, path in enumerate(paths, 1):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in enumerate(before, 1):
            os.dup2(old, number)
            os.close(old)


if __name__ == "__main__":
    _main()
