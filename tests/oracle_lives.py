"""What the recipes share: their register, file names, and the lives the containers go through."""

import functools
from collections.abc import Callable
from pathlib import Path

from oracle_write import Expected, Writer

Files = dict[bytes, Expected]
RECIPES: dict[str, Callable[[Path], Files]] = {}
OPTIONS: dict[str, dict[str, bool]] = {}

SECOND = 10**9
T0 = 1_700_000_000 * SECOND
ODD_NAMES = (
    b"a",
    b"with two  spaces ",
    "Äpfel/größe.txt".encode(),
    b"invalid \xff\xfe utf-8",
    b"deep/er/and/deeper",
    b"ends in/I0",
    b"5/D0",
    b"1/A0",
    b"I0",
    b"new\nline",
    b"n" * 180,
)


def recipe(**options: bool) -> Callable[[Callable[[Path], Files]], Callable[[Path], Files]]:
    def register(function: Callable[[Path], Files]) -> Callable[[Path], Files]:
        RECIPES[function.__name__] = function
        OPTIONS[function.__name__] = options
        return function

    return register


@functools.cache
def pattern(size: int, start: int = 0) -> bytes:
    """Bytes that tell their place."""
    period = bytes((start + i * 7 + i // 251) % 256 for i in range(min(size, 251 * 256)))
    return (period * (size // (251 * 256) + 1))[:size]


def without(variables: dict[str, int], *names: str) -> dict[str, int]:
    return {name: value for name, value in variables.items() if name not in names}


def seed_life(writer: Writer) -> None:
    """What every container that can delete goes through: all operations, in the seed's order."""
    writer.create(b"empty", T0)
    writer.create(b"report.txt", T0 + SECOND)
    writer.append(b"report.txt", pattern(900), piece=100)  # nine data entries: the inode doubles
    for number, name in enumerate(ODD_NAMES):
        writer.create(name, T0 + number * SECOND + 5)
        writer.append(name, pattern(30 + number, number))
    writer.create(b"gone", T0)
    writer.append(b"gone", b"never seen again")
    writer.sync()
    writer.delete(b"gone")
    writer.append(b"a", b" and more after a sync")  # the inode may not change in place
    writer.rename(b"5/D0", b"6/D0 renamed")
    writer.put(b"with two  spaces ", b"replaced", T0 + 77 * SECOND)
    writer.truncate(b"report.txt", 450)  # the pairs stay longer than the file
    writer.entry(b"a key of somebody else", b"unknown value")
    writer.entry(b"1/Z9", b"unknown kind", 1)
    writer.create(b"gone", T0 + 99 * SECOND)  # a deleted name comes back


def finish(writer: Writer) -> Files:
    writer.close()
    return writer.model


def append_only_life(writer: Writer) -> None:
    """Several files in one TIMEMP, quiet gaps, a deleted file that has a mark, before the epoch."""
    seconds = (-25, -21, -20, -1, 0, 3, 9, 10, 10, 55, 56, 1000, 1000, 1009)
    for number, second in enumerate(seconds):
        name = b"%d.html" % number
        if number % 3 == 0:
            writer.put(name, pattern(50 + number), second * SECOND)
        else:
            writer.create(name, second * SECOND)
            writer.append(name, pattern(90 + number), piece=40)
    writer.rename(b"13.html", b"31.html")
    writer.sync()
    writer.delete(b"7.html")  # has a mark
    writer.delete(b"1.html")
    writer.put(b"5.html", b"deleted and created again", 1500 * SECOND)
    writer.append(b"5.html", b" and longer")
    writer.create(b"empty", 1501 * SECOND)
