"""Containers that a stranger made: every checksum is right, and some number makes no sense.

    python hostile.py superblocks|inodes SEED COUNT

Each is opened, listed, read, verified, reindexed, written to and unpacked, in little memory and
time. A line for each that meets anything but a FormatError or an OSError.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import winkfs
from winkformats.disk.paths import open_file
from winkformats.errors import FormatError
from winkformats.kv.superblock import HALF, read_superblock
from winkfs import Container
from winkfs.archive.unpack import unpack
from winkfs.cli import main
from winkfs.container.ondisk.inode import ATTRS
from winkfs.container.store import Store
from winkfs.container.verify import info as container_record

MEMORY = 3 << 30  # bytes of addresses, mappings included
SECONDS = 10
MAX = (1 << 63) - 1
VALUES = [
    -MAX - 1, -(1 << 62), -4096, -2, -1, 0, 1, 2, 3, 7, 12, 55, 57, 108, 255, 256, 260, 400, 514,
    515, 4095, 4096, 4097, 5000, 8192, 65536, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    (1 << 60) // 8, (1 << 62) + 5, MAX - 7, MAX,
]  # fmt: skip
VARIANTS: list[dict[str, Any]] = [{}, {"classic": True}, {"ao": True}, {"htalgo": 1}]
SUFFIXES = (".data", ".idx", ".time", ".cat")
STRANGE = 12  # inodes of a container


class SlowError(Exception):
    pass


def refused(action: Callable[[], object]) -> None:
    """Run it; what may leave winkfs for bytes that are wrong is no fault."""
    with contextlib.suppress(FormatError, OSError):
        action()


# --- what is made -------------------------------------------------------------------------------


def ordinary(base: Path, variant: dict[str, Any]) -> None:
    with winkfs.create(base, **variant) as c:
        for i in range(20):
            c.put(f"d/f{i}", b"%d" % i * (i * 7), mtime=1000 + 100 * i)
        c.put_many((f"m{i}", b"x" * i, 5000 + i) for i in range(40))
        c.delete("d/f3")
        if not variant.get("classic"):
            c.put("owned", b"1", mtime=6000, mode=0o600, uid=5)
    winkfs.reindex(base)


def superblocks(folder: Path, dice: random.Random) -> Iterator[tuple[Path, str]]:
    """Containers of which one variable of one file has another value."""
    made = [folder / f"made{i}" for i in range(len(VARIANTS))]
    for place, variant in zip(made, VARIANTS, strict=True):
        place.mkdir()
        ordinary(place / "c", variant)
    while True:
        place = dice.choice(made)
        suffix = dice.choice([s for s in SUFFIXES if (place / f"c{s}").exists()])
        shutil.rmtree(folder / "c", ignore_errors=True)
        shutil.copytree(place, folder / "c")
        path = folder / "c" / f"c{suffix}"
        with open_file(str(path)) as storage:
            block = read_superblock(storage)
        name = dice.choice([name for name in block if name != "PURPOSE"])
        block[name] = dice.choice([*VALUES, dice.randrange(-MAX - 1, MAX)])
        try:
            image = block.encode()
        except (ValueError, MemoryError, OverflowError):  # an SBSIZE that no file can have
            continue
        raw = bytearray(path.read_bytes())
        for at in (0, HALF) if block.double else (0,):
            raw[at : at + len(image)] = image
        path.write_bytes(raw)
        yield folder / "c" / "c", f"{place.name} {suffix} {name}={block[name]}"


def inodes(folder: Path, dice: random.Random) -> Iterator[tuple[Path, str]]:
    """Containers with inodes of which some field has another value."""
    while True:
        shutil.rmtree(folder / "c", ignore_errors=True)
        (folder / "c").mkdir()
        base, variant = folder / "c" / "c", dice.choice(VARIANTS)
        ordinary(base, variant)
        store = Store(str(base), writable=True)
        reported = [strange_inode(store, b"h%d" % n, dice) for n in range(STRANGE)]
        store.sync_data()
        store.abandon()
        for suffix in (".idx", ".time", ".cat"):
            base.with_suffix(suffix).unlink(missing_ok=True)
        yield base, f"{variant} {reported}"


def strange_inode(store: Store, name: bytes, dice: random.Random) -> str:
    """Append one, with its data -> what is strange with it."""
    kv, form, fileid = store.kv, store.settings.form, store.new_fileid()
    width = form.pair // 8
    data = kv.append(b"%x/D0" % fileid, b"content")
    pairs = [[data, 0, 7][:: 1 if width == 3 else 2]]
    head = [0, fileid, 7, 102, 1_000_000_000 if store.settings.nanoseconds else 1, 1]
    kind = dice.choice(["head", "attrs", "pairs"])
    if kind == "attrs":
        owner = [0o600, 1, 1]
        owner[dice.randrange(3)] = dice.choice(VALUES)
        more = [b"", b"\0\3abc\0\0\0\1x", b"\0\0\0\0\0\0", dice.randbytes(9)]
        raw = ATTRS.pack(*owner) + dice.choice(more)
        at = kv.append(b"%x/A0" % fileid, raw)
        pairs.insert(0, [at, 0, -len(raw)][:: 1 if width == 3 else 2])
    elif kind == "pairs":
        pairs[0][dice.randrange(width)] = dice.choice(VALUES)
        pairs *= dice.choice([1, 1, 2, 70])
        head[2] = dice.choice([7, 7, *VALUES])
    head[5] = len(pairs)
    if kind == "head":
        head[dice.randrange(6)] = dice.choice(VALUES)
    flat = [number for pair in pairs for number in pair]
    body = struct.pack(f">6q{len(flat)}q", *head, *flat).ljust(128, b"\0")
    covered = body[: 48 + form.pair * min(max(head[5], 0), 100)]
    value = form.sum(covered).to_bytes(8, "big") + body
    kv.append(name + b"/I0", value.ljust(-(-len(value) // 8) * 8, b"\0"))
    return f"{kind} {head} {pairs[:2]}"


# --- what is done with it -----------------------------------------------------------------------


def read(base: Path) -> None:
    with winkfs.open(base) as c:
        assert isinstance(c, Container)
        names = [f"h{i}" for i in range(STRANGE)] + ["m1", "none", "owned"]
        for entry in c.scan(problem=lambda error: None):
            names.append(entry.name)
            refused(entry.read)
        for name in names:
            for look in (
                lambda n: c.read(n),
                lambda n: c.read(n, 3, 2),
                lambda n: c.stat(n).mtime,
                lambda n: c.getxattrs(n),
                lambda n: list(c.get_many([n])),
                lambda n: c.open_file(n).read(10),
            ):
                refused(lambda look=look, name=name: look(name))  # type: ignore[misc]
        list(c.scan(1000, 1500, "d/", problem=lambda error: None))
        assert len(c) >= 0


def write(base: Path) -> None:
    with winkfs.open(base, "a") as c:
        assert isinstance(c, Container)
        for i in range(STRANGE):
            for verb in (
                lambda n: c.append(n, b"1"),
                lambda n: c.write(n, 3, b"x"),
                lambda n: c.chmod(n, 0o600),
                lambda n: c.rename(n, f"{n}r"),
                lambda n: c.delete(f"{n}r"),
                lambda n: c.put(f"new{n}", b"1"),
                lambda n: c.put_many([(f"many{n}", b"1"), ("m2", b"2")]),
                lambda n: c.sync(),
            ):
                refused(lambda verb=verb, i=i: verb(f"h{i}"))  # type: ignore[misc]


def command(*args: str) -> None:
    """A command of the CLI; a fault of winkfs itself would be raised."""
    out = sys.stdout
    with contextlib.redirect_stderr(io.StringIO()), Path(os.devnull).open("w") as sys.stdout:
        try:
            main(args)
        finally:
            sys.stdout = out


def actions(base: Path) -> dict[str, Callable[[], object]]:
    c, out = str(base), base.parent / "out"
    return {
        "read": lambda: read(base),
        "ls -l": lambda: command("ls", c, "-l"),
        "ls --json": lambda: command("ls", c, "--json"),
        "info": lambda: container_record(c),
        "verify": lambda: winkfs.verify(c),
        "unpack": lambda: unpack(c, out),
        "reindex": lambda: winkfs.reindex(c, problem=lambda line: None),
        "read again": lambda: read(base),
        "write": lambda: write(base),
        "verify again": lambda: winkfs.verify(c),
    }


def faults(base: Path) -> Iterator[str]:
    """What leaves winkfs that should not."""
    for name, action in actions(base).items():
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            refused(action)
        except Exception as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            last = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{name}: {type(error).__name__} at {last.filename}:{last.lineno}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def too_slow(number: int, frame: FrameType | None) -> None:
    raise SlowError


def run(kind: str, seed: int, count: int) -> int:
    """-> how many were wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        make = {"superblocks": superblocks, "inodes": inodes}[kind]
        made = make(Path(folder), random.Random(seed))
        for number, (base, what) in zip(range(count), made, strict=False):
            for fault in faults(base):
                wrong += 1
                print(f"{kind} {seed} {number}: {what}: {fault}", flush=True)
    return wrong


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, too_slow)
    os.environ["WINKFS_TRACEBACK"] = "1"
    warnings.simplefilter("ignore")
    sys.exit(min(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), 1))
