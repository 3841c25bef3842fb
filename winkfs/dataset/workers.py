"""Processes beside this one for what Python does on one processor: packing, compaction.

Each is in a process group of its own, so that Ctrl-C ends this process alone, which then ends them.
They get their work on stdin, a unit at a time, and answer on stdout, both pickled.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import winkformats

U = TypeVar("U")
R = TypeVar("R")
Send = Callable[[str, object], None]
"""Called with a kind of message, and its value."""
Work = Callable[[Any, Any, Send], Any]
"""Called with what all units have in common, a unit, and a function that sends messages."""


def in_processes(
    work: Callable[[Any, U, Send], R],
    common: Any,
    units: Sequence[U],
    jobs: int,
    heard: Send,
    *,
    own: bool = False,
) -> list[R]:
    """Run `work` on all units -> results, in their order.

    work    a function of a module; what it takes and returns can be pickled
    jobs    number of processes, at most
    heard   called with each message of the units, in threads
    own     this process is one of them
    raises  the error of a unit that fails, when this process has ended its own; ChildProcessError
            if a process was killed. Then no process is left
    cost    each process imports the module of `work`
    """
    running: list[subprocess.Popen[bytes]] = []
    results: dict[int, R] = {}
    left, lock = iter(enumerate(units)), threading.Lock()

    def taken() -> Iterator[tuple[int, U]]:
        while True:
            with lock:
                found = next(left, None)
            if found is None:
                return
            yield found

    def serve(process: subprocess.Popen[bytes]) -> None:
        for number, result in _answers(process, work, common, taken(), heard):
            results[number] = result

    jobs = min(jobs, len(units)) - own
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        try:
            running += (started() for _ in range(jobs))
            served = [pool.submit(serve, each) for each in running]
            for number, unit in taken() if own else ():
                results[number] = work(common, unit, heard)
                for future in served:
                    if future.done():
                        future.result()
            for future in as_completed(served):
                future.result()
        except BaseException:
            for process in running:
                process.terminate()
            raise
    return [results[number] for number in range(len(units))]


def started() -> subprocess.Popen[bytes]:
    """Start a process, which waits for work."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "winkfs.dataset.workers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
        env=os.environ | {"PYTHONPATH": _packages()},
    )  # fmt: skip


def _answers(
    process: subprocess.Popen[bytes],
    work: Work,
    common: Any,
    units: Iterator[tuple[int, Any]],
    heard: Send,
) -> Iterator[tuple[int, Any]]:
    """Yield the results of units, with their numbers, from one process."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            pickle.dump((work, common), process.stdin)
            for number, unit in units:
                pickle.dump(unit, process.stdin)
                process.stdin.flush()
                while (message := pickle.load(process.stdout))[0] not in ("done", "error"):
                    heard(*message)
                if message[0] == "error":
                    raise message[1]
                yield number, message[1]
            process.stdin.close()
            return
        except (EOFError, pickle.UnpicklingError, BrokenPipeError):
            with contextlib.suppress(OSError):
                process.stdin.close()
    how = f"signal {-process.returncode}" if process.returncode < 0 else "it ended"
    what = f"a process beside this one was killed ({how}), as when memory is short: try again"
    raise ChildProcessError(errno.ECHILD, what)


def _packages() -> str:
    """Return the PYTHONPATH of a child: ours, with the roots of our packages, but without the
    current directory, where a file of the user may have the name of a module."""
    here = os.getcwd()
    kept = [path for path in sys.path if os.path.isabs(path) and os.path.realpath(path) != here]
    ours = [str(Path(__file__).resolve().parents[2])]  # importing `winkfs` itself would be a cycle
    ours.append(str(Path(winkformats.__file__ or "").resolve().parents[1]))
    return os.pathsep.join(dict.fromkeys([*kept, *ours]))


def _worker() -> None:
    """Run in the process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that `work` removes its files
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes to stderr, not among the messages

    def send(kind: str, value: object) -> None:
        pickle.dump((kind, value), out)
        out.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # all is done, or the parent has ended
        work, common = pickle.load(sys.stdin.buffer)
        while True:
            unit = pickle.load(sys.stdin.buffer)
            try:
                result = work(common, unit, send)
            except Exception as error:
                send("error", error)
            else:
                send("done", result)


if __name__ == "__main__":
    _worker()
