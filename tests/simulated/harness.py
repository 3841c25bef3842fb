"""Lives of stores on a simulated disk: what is the same in the lives of all of them.

    python tests/simulated/harness.py lives plain 17      # see one life, step by step

The modules of LIVES have one for each kind of store. A life does random operations by seed, beside
a model. At some of the calls that reach the disk the power is cut in an image of it, which is
checked; the store itself goes on. In half of the lives calls of the disk fail, too: then the power
goes for the store as well.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import logging
import os
import random
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self
from unittest import mock

sys.path += [str(Path(__file__).parents[1] / name) for name in ("", "stores")]

import pytest
from constants import shrink
from simulated.disk import Event, SimulatedDisk

from winkfs.errors import DamageWarning

LIVES = ("lives", "ledgerq_lives", "logstore_lives", "message_lives", "ring_lives")
TOLD = 30  # steps


class Wrong(AssertionError):
    """What an image shows is not allowed."""


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """The ids of stores follow from the seed, too, and a lock file is as long in each process."""
    rng, free = random.Random(seed), os.statvfs("/")
    with (
        mock.patch("secrets.randbits", rng.getrandbits),
        mock.patch("secrets.token_hex", lambda n: rng.randbytes(n).hex()),
        mock.patch("os.getpid", lambda: 12345),
        mock.patch("os.statvfs", lambda _: free),  # of a path that the kernel does not know
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DamageWarning)  # faults are told
        logging.disable()
        yield
        logging.disable(logging.NOTSET)


class Life(ABC):
    """A store on a simulated disk.

    images  how many were checked; done: what happened
    often   chance that an image is checked at a call; each life chooses its own
    """

    FAULTS: ClassVar[tuple[str, ...]] = (
        "sync", "sync", "write", "directory sync", "create", "truncate", "rename", "unlink",
    )  # fmt: skip
    STEPS: ClassVar = 120
    SMALL: ClassVar[dict[str, dict[str, int]]] = {}  # see `shrink`
    often: float

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        self.kind, self.seed, self.trace = kind, seed, trace
        self.rng = random.Random(f"{kind} {seed}")
        self.disk = self.new_disk()
        self.images, self.done = 0, Counter[str]()
        self.steps: list[str] = []

    def new_disk(self) -> SimulatedDisk:
        return SimulatedDisk(self.rng.getrandbits(32), torn=self.rng.choice((1, 512)))

    # --- what a store says ---

    @abstractmethod
    def step(self) -> None:
        """Do something."""

    @abstractmethod
    def check(self, image: SimulatedDisk) -> object:
        """What an image shows. Raises Wrong."""

    @abstractmethod
    def abort(self, *ignored: type[Exception]) -> None:
        """End as a process that is killed."""

    def take_up(self) -> None:
        """Open what is there, which is what there was."""
        raise NotImplementedError

    def chance(self, event: Event) -> float:
        """Of an image at a call."""
        return self.often

    def is_faulty(self) -> bool:
        return self.rng.random() < 0.5

    def error(self, call: str) -> int:
        """With which a call fails."""
        return errno.EIO

    # --- the life ---

    def say(self, what: str) -> None:
        self.steps.append(what)
        if self.trace:
            print(what, flush=True)

    def draw(self, steps: dict[Callable[[], None], int]) -> Callable[[], None]:
        """One of them, by weight."""
        step = self.rng.choices(list(steps), list(steps.values()))[0]
        self.say(step.__name__)
        return step

    def watch(self, event: Event) -> None:
        if self.rng.random() < self.chance(event):
            watch, self.disk.watch = self.disk.watch, None
            try:
                self.check(self.disk.crash(self.rng))
            finally:
                self.disk.watch = watch

    def disarm(self) -> None:
        for call in self.FAULTS:
            self.disk.arm(call, 0)

    def go(self, steps: int) -> None:
        self.disk.watch = self.watch
        faulty = self.is_faulty()
        for _ in range(steps):
            if faulty and self.rng.random() < 0.05:
                call = self.rng.choice(self.FAULTS)
                self.say(f"-- {call} is to fail")
                self.disk.arm(call, self.rng.randint(1, 4), self.error(call))
            try:
                self.step()
            except OSError as error:
                self.say(f"-- {error}")
                self.done["failed"] += 1
                self.disk.watch = None
                self.disarm()
                self.begin_again()
                self.disk.watch = self.watch
            self.done["steps"] += 1
        self.disk.watch = None
        self.check(self.disk.crash(self.rng))

    def begin_again(self) -> None:
        """After a fault the power goes; what there is then is what there was."""
        self.abort(OSError)
        self.check(self.disk.crash(self.rng))
        self.disk = self.disk.crash(self.rng)
        self.take_up()

    @classmethod
    def of(cls, kind: str) -> type[Life]:
        """The class of a kind."""
        return cls

    @classmethod
    def live(cls, kind: str, seed: int, *, trace: bool = False) -> Self:
        """One life. Raises Wrong, with what to call to see it again."""
        with repeatable(seed):
            life = cls(kind, seed, trace=trace)
            try:
                life.go(cls.STEPS)
            except Exception as error:
                module = Path(sys.modules[cls.__module__].__file__ or "").stem
                error.add_note(f"python tests/simulated/harness.py {module} '{kind}' {seed}")
                error.add_note("\n".join(life.steps[-TOLD:]))
                raise
            finally:
                with suppress(Exception):
                    life.abort()
        return life

    @classmethod
    def lives(cls, kind: str, seed: int, images: int) -> Counter[str]:
        """Lives from a seed on until so many images were checked -> what happened in them."""
        done: Counter[str] = Counter()
        with pytest.MonkeyPatch.context() as patch:
            cls.of(kind).small(patch)
            for number in itertools.count(seed):
                life = cls.of(kind).live(kind, number)
                done += life.done
                done["images"] += life.images
                if done["images"] >= images:
                    break
        return done

    @classmethod
    def small(cls, patch: pytest.MonkeyPatch) -> None:
        for what, values in cls.SMALL.items():
            shrink(patch, what, **values)


def main(module: str, kind: str, *seeds: str) -> None:
    if module not in LIVES:
        sys.exit(f"harness.py {'|'.join(LIVES)} KIND SEED ...")
    # The module imports this one by its name, and not as __main__.
    life: type[Life] = importlib.import_module(module).Life
    with pytest.MonkeyPatch.context() as patch:
        life.of(kind).small(patch)
        for seed in seeds:
            print(life.of(kind).live(kind, int(seed), trace=True).images, "images")


if __name__ == "__main__":
    main(*sys.argv[1:])
