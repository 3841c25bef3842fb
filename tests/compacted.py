"""Containers for tests of `compact`: files of every kind, what is to be seen of them, and kills."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from compressed_files import document, documents, frames_of
from container_checks import child, path_of
from oracle_read import check

import winkfs
from winkfs import Container, FileType
from winkfs.container.compact import Compacted, compact

FILES = documents()
COLUMNS = {"lang": "string", "score": "float64"}
State = dict[str, tuple[Any, ...]]


def random_life(base: Path, dice: random.Random, options: dict[str, Any]) -> None:
    """A container of files of every kind, many of them replaced, changed and deleted."""
    ao, classic = options.get("ao", False), options.get("classic", False)
    with winkfs.create(base, **options) as c:
        count = dice.choice([0, 10, 300])
        c.put_many((f"m{i}", dice.randbytes(dice.choice([0, 5, 400])), 9 + i) for i in range(count))
        for i in range(60):
            name, what = f"k{dice.randrange(30)}", dice.random()
            if what < 0.5 or name not in c:
                mode = None if classic else dice.choice([None, 0o600, 0o755])
                size = dice.choice([0, 9, 1000, 70_000])
                c.put(name, dice.randbytes(size), None if ao else i, mode=mode)
            elif what < 0.6:
                c.delete(name)
            elif ao:
                continue
            elif what < 0.8:
                c.append(name, b"more" * dice.randrange(500))
            elif what < 0.9:
                c.write(name, dice.randrange(3000), b"X" * dice.randrange(1, 900))
            elif not classic:
                c.setxattrs(name, {b"user.a": dice.randbytes(5)})
            if dice.random() < 0.1:
                c.sync()
        c.put("large", dice.randbytes(2_500_000))


def life(base: Path, *, ao: bool = False, compress: str | None = None) -> None:
    """A container of files that can be compressed, some of them replaced, changed and deleted."""
    with winkfs.create(base, ao=ao, compress=compress, columns=COLUMNS) as c:
        c.put_many((name, data, i) for i, (name, data) in enumerate(FILES.items()))
        c.put("typed", document(3), columns={"lang": "de", "score": 0.5}, mtime=100)
        c.put("run", document(4), mode=0o755, mtime=101)
        c.put("odd", document(5), mode=0o4640, mtime=102)
        c.put("link", b"some/where" * 50, ftype=FileType.LINK, mtime=103)
        c.put("dir", b"", ftype=FileType.DIR, mtime=104)
        c.put("label", document(6), ftype=FileType.ZSTD, mtime=105)
        c.put("d/001.html", document(99), mtime=106)
        c.delete("d/002.html")
        c.sync()
        if not ao:
            _change(c)
    winkfs.reindex(base)


def _change(c: Container) -> None:
    """What only a plain container can do: holes, pieces, attributes, times of changes."""
    c.truncate("d/003.html", 5_000_000)
    c.write("d/003.html", 4_000_000, document(7, 9000))
    c.punch("d/040.html", 1000, 1000)
    for i in range(120):  # more than a list of extents: its inode builds on the one before
        c.write("large", i * 5000, b"%05d" % i)
        if i % 40 == 39:
            c.sync()
    c.append("random", document(8))
    c.setxattrs("d/005.html", {b"user.a": b"1", b"security.b": b"\0"})
    c.chown("d/006.html", 7, 8)
    c.setxattrs("d/006.html", {b"user.a": b"2"}, ctime_ns=(int(time.time()) + 999) * 10**9)


def state(base: Path) -> State:
    """Return what is to be seen of each file, its content last, but not how that is stored."""
    with winkfs.open(base) as c:
        holes = {name: [e.size for e in c.extents(name) if not e.pointer] for name in c.names()}
        return {
            e.name: (c.stat(e.name), c.getxattrs(e.name), c.getcolumns(e.name), holes[e.name],
                     c.read(e.name), c.read(e.name, 100, 50), e.read())
            for e in c.scan()
        }  # fmt: skip


def assert_compacted(base: Path, compress: str | None = None) -> State:
    """Compact a container, which has the same files then and nothing more to give back -> them."""
    before, size = state(base), size_of(base)
    would = compact(base, dry_run=True, compress=compress)
    assert (size_of(base), state(base)) == (size, before)
    seen: list[int] = []
    done = compact(base, progress=seen.append, compress=compress)
    assert done == would == Compacted(size, size_of(base), len(before))
    assert min(seen) >= 0 and size - 8192 <= sum(seen) <= size
    assert state(base) == before
    assert winkfs.verify(base).problems == []
    check(base)  # by the oracle
    again = compact(base)
    assert (again.before, again.after) == (done.after, done.after)
    return before


def framed(base: Path) -> set[str]:
    """Return the files that have frames."""
    with winkfs.open(base) as c:
        return {name for name in c.names() if frames_of(c, name)}


def size_of(base: Path) -> int:
    return path_of(base, ".data").stat().st_size


COMPACTOR = """
import json, os, sys
from winkfs.container.compact import compact

for line in sys.stdin:
    base, wanted = json.loads(line)
    if not (pid := os.fork()):
        compact(base, compress=wanted)
        os._exit(0)
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


@contextmanager
def killing() -> Iterator[Callable[[Path, str | None, float], None]]:
    """-> a function that compacts in another process, and kills that when it has run for so many
    seconds. All of them are forks of one, which has imported what they need."""
    with child(COMPACTOR) as parent:
        asks, answers = parent.stdin, parent.stdout
        assert asks is not None and answers is not None

        def killed(base: Path, wanted: str | None, seconds: float) -> None:
            asks.write(json.dumps([str(base), wanted]).encode() + b"\n")
            asks.flush()
            pid = int(answers.readline())
            time.sleep(seconds)
            with suppress(ProcessLookupError):  # it has come to its end
                os.kill(pid, signal.SIGKILL)
            assert answers.readline() == b"ended\n"

        yield killed
        asks.close()
    assert parent.returncode == 0
