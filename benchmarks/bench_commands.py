"""How much CPU time do commands take, of a million names and of many small files, beside others?

Start-up is included. Names: a container of 1,000,000 files in 1,000 directories, and one with 1,000
changes. Lines: 200,000 files of 4 KiB of the headers of this machine, warm. Debian: ripgrep rsync.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from common import Case, Options, Phases, Watch, interleaved, options, scratch
from report import Goal, Report

import winkfs

HEADERS: Final = Path("/usr/include")
FILE: Final = 4 << 10
SECONDS: Final = {  # command on names -> at most so many seconds
    "winkfs ls names": 1, "winkfs ls -S names": 1, "winkfs find names -name '*99.html'": 1,
    "winkfs find names -size +1": 1, "winkfs du names": 1, "winkfs tree names": 1,
    "winkfs tree -d --du names": 1, "winkfs diff names changed": 2,
    "winkfs report names -o r.html": 5, "winkfs sync -q many synced": 2,
}  # fmt: skip
BESIDE: Final = {  # title -> (ours, rival, at least so many times its rate)
    "pack, 1,000 files of 500 bytes": ("winkfs pack -q small p$$", "tar cf p$$.tar small", 0.4),
    "sync, 100,000 files, unchanged": ("winkfs sync -q many synced", "rsync -a many/ copy/", None),
    "grep -l, a rare word": (
        "winkfs grep -l lines pthread_mutex_lock", "rg -uu -l pthread_mutex_lock tree", 0.8),
    "grep, a common word": (
        "winkfs grep lines define", "rg -uu --no-heading define tree", 0.8),
    "grep -c, a common word": ("winkfs grep -c lines define", "rg -uu -c define tree", 0.8),
    "grep -i, a common word": (
        "winkfs grep -i lines error", "rg -uu -i --no-heading error tree", 0.8),
    "grep -n, an expression": (
        "winkfs grep -n lines 'struct [a-z]+_s'",
        "rg -uu -n --no-heading 'struct [a-z]+_s' tree", 0.8),
    "unpack to a tar file, 200,000 x 4 KiB": (
        "winkfs unpack --tar - lines | cat", "tar cf - tree | cat", 0.8),
}  # fmt: skip


def main() -> None:
    asked = options(__doc__, runs=5)
    if missing := [tool for tool in ("rg", "rsync", "tar") if shutil.which(tool) is None]:
        sys.exit(f"not installed: {', '.join(missing)}; see --help")
    report = Report(
        asked, "commands", "How much CPU time do commands take?",
        ("what", "winkfs, s CPU (wall)", "rival, s CPU (wall)", "goal"),
    )  # fmt: skip
    with scratch(asked) as place:
        _prepare(asked, place)
        for command, most in SECONDS.items():
            found = interleaved({"winkfs": partial(_run, place, command)}, asked.runs)
            report.keep(command, found)
            cpu = statistics.median(found["winkfs"]["cpu"])
            goal = report.verdict(Goal(most, at_most=True), cpu)
            report.row(command, _cell(found["winkfs"]), "", goal)
        for title, (ours, theirs, rate) in BESIDE.items():
            cases: dict[str, Case] = {
                "winkfs": partial(_run, place, ours), "rival": partial(_run, place, theirs)
            }  # fmt: skip
            found = interleaved(cases, asked.runs)
            report.keep(title, found)
            figure = statistics.median(found["rival"]["cpu"]) / statistics.median(
                found["winkfs"]["cpu"]
            )
            goal = "" if rate is None else report.verdict(Goal(rate), figure)
            name = theirs.split()[0]
            cells = f"{name}: {_cell(found['rival'])}", f"{figure:.2f}x {goal}"
            report.row(title, _cell(found["winkfs"]), *cells)
    report.finish()


def _prepare(asked: Options, place: Path) -> None:
    count = asked.size(1_000_000, 10_000)
    chosen = set(random.Random(1).sample(range(count), count // 1000))
    for name, changed in (("names", set[int]()), ("changed", chosen)):
        with winkfs.create(place / name) as c:
            c.put_many(_names(count, changed))
        _bash(place, f"winkfs reindex -q {name}")
    text = b"".join(path.read_bytes() for path in sorted(HEADERS.rglob("*.h"))[:3000])
    for i in range(asked.size(200_000, 500)):
        at = i * 7919 * FILE % (len(text) - FILE)
        content = text[at : at + FILE].rpartition(b"\n")[0] + b"\n"
        _write(place / f"tree/d{i % 250:03}/f{i:05}.h", content)
    for i in range(1000):
        _write(place / f"small/d{i % 20}/f{i}", bytes(500))
    for i in range(asked.size(100_000, 1_000)):
        _write(place / f"many/d{i % 500:03}/f{i:06}", b"%d " % i * 20)
    _bash(place, "winkfs pack -q tree lines; winkfs sync -q many synced; rsync -a many/ copy/")


def _names(count: int, changed: set[int]) -> Iterator[tuple[str, bytes, int]]:
    for i in range(count):
        end = "txt" if i % 3 else "html"
        content = b"changed %d" % i if i in changed else b"x" * (i % 50)
        yield f"d{i % 1000:03}/f{i:07}.{end}", content, i


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _run(place: Path, command: str) -> Phases:
    watch = Watch()
    _bash(place, command)
    watch.total("all")
    return watch.phases


def _bash(place: Path, command: str) -> None:
    done = subprocess.run(["bash", "-c", command], cwd=place, stdout=subprocess.DEVNULL,
                          env={**os.environ, "LC_ALL": "C"})  # fmt: skip
    if done.returncode > 1:  # 1: nothing was found, or something differs
        sys.exit(f"{command}: status {done.returncode}")


def _cell(phases: Mapping[str, list[float]]) -> str:
    cpu, wall = (statistics.median(phases[name]) for name in ("cpu", "all"))
    return f"{cpu:.2f} ({wall:.2f})"


if __name__ == "__main__":
    main()
