"""A process that writes into a mount until the mount is gone, and what may then be there.

    python crash_writer.py DIR LOG KIND SEED

The log lies outside the mount. A line says what a name is about to become (`begin`), or what it has
become for good (`done`): the call that makes it durable has returned; of KIND close, the close.
Writers with the same last digit of SEED are never at work at the same time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

RECORD = 4096  # bytes of a record that is written in place


class Value(NamedTuple):
    """Content of a file: random bytes, with records written over them.

    size        bytes
    whole       False: any beginning of it may be there
    records     [number, seed] of each record
    """

    seed: int
    size: int
    whole: bool = True
    records: tuple[tuple[int, int], ...] = ()

    def content(self) -> bytes:
        words = random.Random(self.seed).randbytes((self.size + 3) & ~3)  # a longer one begins so
        data = bytearray(words[: self.size])
        for number, seed in self.records:
            data[number * RECORD : (number + 1) * RECORD] = random.Random(seed).randbytes(RECORD)
        return bytes(data)


Names = dict[str, Value | None]  # None: no such name
Known = dict[str, bytes]


class Writer:
    """Writes files in one directory; `prefix` stands before all its names."""

    def __init__(self, top: Path, log: BinaryIO, kind: str, seed: int) -> None:
        self.top, self.log, self.kind = top, log, kind
        self.seed, self.prefix = seed, f"{kind}{seed}"
        self.chance = random.Random(seed)
        self.directory = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        self.number = 0

    def say(self, what: str, names: Names) -> None:
        line = {"what": what, "names": names, "at": time.time()}
        self.log.write(json.dumps(line).encode() + b"\n")

    def new_name(self) -> str:
        self.number += 1
        return f"{self.prefix}-{self.number}"

    def value(self) -> Value:
        sizes = [0, 10, 5000, 100_000, self.chance.randrange(200_000), 1_500_000]
        [size] = self.chance.choices(sizes, [1, 4, 4, 2, 2, 1])
        return Value(self.chance.randrange(10**9), size)

    def write(self, name: str, value: Value, *, sync: bool = True) -> None:
        """A file of its own, in a few writes."""
        data, part = value.content(), self.chance.choice([1000, 70_000, 2_000_000])
        self.say("begin", {name: value._replace(whole=False)})
        with (self.top / name).open("wb", buffering=0) as file:
            for at in range(0, len(data), part):
                file.write(data[at : at + part])
            if sync:
                os.fsync(file.fileno())
        self.say("done", {name: value})

    def create(self) -> None:
        self.write(self.new_name(), self.value(), sync=self.kind != "close")

    def replace(self) -> None:
        """As an editor saves: old or new, whole, is there at any time."""
        temporary, value = self.new_name(), self.value()
        target = f"target{self.seed % 10}-{self.chance.randrange(4)}"
        self.write(temporary, value)
        after: Names = {temporary: None, target: value}
        self.say("begin", after)
        (self.top / temporary).rename(self.top / target)
        os.fsync(self.directory)
        self.say("done", after)

    def delete(self) -> None:
        name = f"{self.prefix}-{self.chance.randrange(1, self.number + 2)}"
        if (self.top / name).exists():
            self.say("begin", {name: None})
            (self.top / name).unlink()
            os.fsync(self.directory)
            self.say("done", {name: None})

    def append(self) -> None:
        """Lines of a log, each durable before the next."""
        name, value = self.new_name(), Value(self.chance.randrange(10**9), 0)
        with (self.top / name).open("ab", buffering=0) as file:
            for _ in range(10):
                before, value = value, value._replace(size=value.size + self.chance.randrange(3000))
                self.say("begin", {name: value._replace(whole=False)})
                file.write(value.content()[before.size :])
                os.fdatasync(file.fileno())
                self.say("done", {name: value})

    def overwrite(self) -> None:
        """Records in the middle of a file, each durable before the next."""
        name, value = self.new_name(), Value(self.chance.randrange(10**9), 16 * RECORD)
        self.write(name, value)
        with (self.top / name).open("r+b", buffering=0) as file:
            for _ in range(10):
                number, seed = self.chance.randrange(16), self.chance.randrange(10**9)
                value = value._replace(records=(*value.records, (number, seed)))
                self.say("begin", {name: value})
                data = value.content()[number * RECORD : (number + 1) * RECORD]
                os.pwrite(file.fileno(), data, number * RECORD)
                os.fsync(file.fileno())
                self.say("done", {name: value})

    def run(self) -> None:
        verbs = {
            "plain": [self.create, self.replace, self.delete, self.append, self.overwrite],
            "ao": [self.create, self.create, self.delete],
            "close": [self.create],
        }[self.kind]
        while True:
            self.chance.choice(verbs)()


def allowed(known: Known, logs: list[Path], until: float) -> dict[str, list[bytes | Value | None]]:
    """name -> what it may be now, after what is known from before and what the logs say.

    until   what was done later counts as begun only
    """
    found: dict[str, list[bytes | Value | None]] = {name: [data] for name, data in known.items()}
    for line in [line for log in logs if log.exists() for line in log.read_bytes().splitlines()]:
        answer = json.loads(line)
        for name, fields in answer["names"].items():
            value = None if fields is None else Value(*fields)
            if answer["what"] == "done" and answer["at"] <= until:
                found[name] = [value]
            else:
                found.setdefault(name, [None]).append(value)
    return found


def fits(data: bytes | None, value: bytes | Value | None) -> bool:
    if data is None or value is None or isinstance(value, bytes):
        return data == value
    wanted = value.content()
    return data == (wanted if value.whole else wanted[: len(data)])


def faults(found: Known, known: Known, logs: list[Path], until: float) -> list[str]:
    """What cannot have come about, a line each.

    found, known    name -> content, now and before the logs began
    """
    may_be = allowed(known, logs, until)
    wrong = [f"{name}: nobody wrote it" for name in found.keys() - may_be.keys()]
    for name, values in may_be.items():
        data = found.get(name)
        if not any(fits(data, value) for value in values):
            size = "missing" if data is None else f"{len(data)} other bytes"
            wrong.append(f"{name}: {size}, may be {values}"[:500])
    return wrong


def main() -> None:
    top, log, kind, seed = sys.argv[1:]
    with Path(log).open("ab", buffering=0) as file:
        Writer(Path(top), file, kind, int(seed)).run()


if __name__ == "__main__":
    main()
