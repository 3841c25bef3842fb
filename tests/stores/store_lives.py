"""Lives of stores on a simulated disk: what is the same in the lives of all of them.

A life does random operations by seed, beside a model. At some of the calls that reach the disk the
power is cut in an image of it, which is checked; the store itself goes on. In half of the lives
calls of the disk fail, too: then the power goes for the store as well.
"""

from __future__ import annotations

import itertools
import random
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import pytest
from constants import shrink
from simulated.disk import Event, SimulatedDisk


class Wrong(AssertionError):
    """What an image shows is not allowed."""


class Life(ABC):
    """A store on a simulated disk.

    images  how many were checked; done: what happened
    often   chance that an image is checked at a call; each life chooses its own
    """

    FAULTS: ClassVar = (
        "sync", "sync", "write", "directory sync", "create", "truncate", "rename", "unlink",
    )  # fmt: skip
    STEPS: ClassVar = 120
    SMALL: ClassVar[dict[str, dict[str, int]]] = {}  # see `shrink`
    often: float

    def __init__(self, kind: str, seed: int, *, trace: bool = False) -> None:
        self.kind, self.trace = kind, trace
        self.rng = random.Random(f"{kind} {seed}")
        self.disk = SimulatedDisk(self.rng.getrandbits(32), torn=self.rng.choice((1, 512)))
        self.images, self.done = 0, Counter[str]()

    # --- what a store says ---

    @abstractmethod
    def step(self) -> None:
        """Do something."""

    @abstractmethod
    def check(self, image: SimulatedDisk) -> None:
        """What an image shows. Raises Wrong."""

    @abstractmethod
    def abort(self, *ignored: type[Exception]) -> None:
        """End as a process that is killed."""

    @abstractmethod
    def take_up(self) -> None:
        """Open what is there, which is what there was."""

    def chance(self, event: Event) -> float:
        """Of an image at a call."""
        return self.often

    # --- the life ---

    def say(self, what: str) -> None:
        if self.trace:
            print(what)

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

    def go(self, steps: int) -> None:
        self.disk.watch = self.watch
        faulty = self.rng.random() < 0.5
        for _ in range(steps):
            if faulty and self.rng.random() < 0.05:
                call = self.rng.choice(self.FAULTS)
                self.say(f"-- {call} is to fail")
                self.disk.arm(call, self.rng.randint(1, 4))
            try:
                self.step()
            except OSError as error:
                self.say(f"-- {error}")
                self.done["failed"] += 1
                self.disk.watch = None
                for fault in self.FAULTS:
                    self.disk.arm(fault, 0)
                self.begin_again()
                self.disk.watch = self.watch
            self.done["steps"] += 1
        self.disk.watch = None
        self.check(self.disk.crash(self.rng))
        self.abort()

    def begin_again(self) -> None:
        """After a fault the power goes; what there is then is what there was."""
        self.abort(OSError)
        self.check(self.disk.crash(self.rng))
        self.disk = self.disk.crash(self.rng)
        self.take_up()

    @classmethod
    def live(cls, kind: str, seed: int, *, trace: bool = False) -> Self:
        """One life. Raises Wrong, with what to call to see it again."""
        life = cls(kind, seed, trace=trace)
        try:
            life.go(cls.STEPS)
        except Exception as error:
            error.add_note(
                f"python {Path(sys.modules[cls.__module__].__file__).name} {kind} {seed}"
            )
            raise
        return life

    @classmethod
    def lives(cls, kind: str, seed: int, images: int) -> Counter[str]:
        """Lives from a seed on until so many images were checked -> what happened in them."""
        done: Counter[str] = Counter()
        for number in itertools.count(seed):
            life = cls.live(kind, number)
            done += life.done
            done["images"] += life.images
            if done["images"] >= images:
                break
        return done

    @classmethod
    def small(cls, patch: pytest.MonkeyPatch) -> None:
        for what, values in cls.SMALL.items():
            shrink(patch, what, **values)

    @classmethod
    def main(cls) -> None:
        """See one life, step by step: KIND SEED."""
        with pytest.MonkeyPatch.context() as patch:
            cls.small(patch)
            cls.live(sys.argv[1], int(sys.argv[2]), trace=True)
