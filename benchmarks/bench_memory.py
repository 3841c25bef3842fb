"""How much memory does it take to pack, reindex, verify and scan 5 million files?

Each row is a process of its own, looked at every 20 ms in /proc/PID/status: RssAnon is memory of
its own, RssFile are pages of mapped files (the index, libraries), which the kernel takes back when
it needs them. Files have 100 bytes on average. `winkfs pack` reads a tar file from a pipe: a tree
of 5 million files would be a test of the filesystem below. One run each: memory does not vary.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from common import Options, options, scratch
from report import Goal, Report

COLUMNS: Final = ("work", "files", "s", "RssAnon, MiB", "RssFile, MiB", "goal, RssAnon")
STEP: Final = 0.02  # seconds between two looks
WORK: Final = Path(__file__).with_name("memory_work.py")
LIMIT: Final = Goal(300, at_most=True)  # MiB
FIELD: Final = re.compile(r"^(RssAnon|RssFile):\s+(\d+) kB$", re.MULTILINE)


def main() -> None:
    asked = options(__doc__, runs=1)
    question = "How much memory do 5 million files take?"
    report = Report(asked, "memory", question, COLUMNS)
    count = asked.size(5_000_000, 20_000)
    with scratch(asked) as place:
        base = str(place / "container")
        row(report, "Python, winkfs imported", 0, [work("import", base, 0)])
        row(report, "put_many of a generator", count, [work("put", base, count)], LIMIT)
        for name in ("reindex", "verify", "scan"):
            row(report, f"{name}", count, [work(name, base, count)], LIMIT)
        for path in place.iterdir():
            path.unlink()
        pack(asked, report, base, count)
        for path in place.iterdir():
            path.unlink()
        row(report, "LMDB, puts in one transaction", count, [work("lmdb", base, count)])
    report.note("scan reads the content of each file. pack reads a tar file from a pipe.")
    report.finish()


def work(name: str, base: str, count: int) -> list[str]:
    return [sys.executable, str(WORK), name, base, str(count)]


def pack(asked: Options, report: Report, base: str, count: int) -> None:
    command = [str(Path(sys.executable).with_name("winkfs")), "pack", "-", base]
    row(report, "winkfs pack of a tar file", count, [work("tar", base, count), command], LIMIT)


def row(
    report: Report, title: str, count: int, commands: list[list[str]], goal: Goal | None = None
) -> None:
    """Watch the last of the commands, which are piped into one another."""
    start = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    for number, command in enumerate(commands):
        source = processes[-1].stdout if processes else None
        sink = subprocess.PIPE if number < len(commands) - 1 else None
        processes.append(subprocess.Popen(command, stdin=source, stdout=sink))
        if source:
            source.close()  # the reader alone holds it, and its end is seen
    peaks = watch(processes[-1])
    for process in processes:
        if process.wait() != 0:
            sys.exit(f"{title}: a process ended with status {process.returncode}")
    took = time.perf_counter() - start
    anonymous, mapped = peaks["RssAnon"] / 1024, peaks["RssFile"] / 1024
    report.keep(title, {"seconds": took, "RssAnon MiB": anonymous, "RssFile MiB": mapped})
    report.row(
        title, f"{count:,}", f"{took:.1f}", f"{anonymous:.0f}", f"{mapped:.0f}",
        report.verdict(goal, anonymous),
    )  # fmt: skip
    print(f"{title}: {anonymous:.0f} MiB", file=sys.stderr)


def watch(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The peaks of RssAnon and RssFile in kB until the process ends."""
    status = Path(f"/proc/{process.pid}/status")
    peaks = {"RssAnon": 0, "RssFile": 0}
    while process.poll() is None:
        for name, value in FIELD.findall(status.read_text()):
            peaks[name] = max(peaks[name], int(value))
        time.sleep(STEP)
    return peaks


if __name__ == "__main__":
    main()
