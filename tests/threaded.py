"""Threads of a test that share a handle."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest

Handle = TypeVar("Handle")


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    """Every 10 us, where the interpreter waits 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*jobs: Callable[[], object], seconds: float = 60) -> None:
    """Run all at once; raise what the first of them raised. They have so long to end."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)


class Owner(Generic[Handle]):
    """A thread that has records of its own on a handle that all share, and what it was last
    acknowledged of each: `model`."""

    def __init__(self, handle: Handle, me: int) -> None:
        self.handle, self.me, self.random = handle, me, random.Random(me)
        self.model: dict[Any, bytes] = {}
        self.turn = 0

    def verbs(self) -> list[Callable[[], object]]:
        """What it does with its records, each of which changes `model`, too."""
        raise NotImplementedError

    def look(self, after: str) -> None:
        """At some records. AssertionError where they are not as in `model`."""
        raise NotImplementedError

    def look_at_all(self) -> None:
        """At all of its own."""

    def sync(self) -> None:
        self.handle.sync()  # type: ignore[attr-defined]

    def run(self, until: float) -> None:
        while time.monotonic() < until:
            self.turn += 1
            verb = self.random.choice(self.verbs())
            verb()
            self.look(verb.__name__)
            if self.turn % 50 == 0:
                self.sync()
                self.look_at_all()

    def content(self) -> bytes:
        return b"%d of %d " % (self.turn, self.me) * self.random.choice([1, 5, 300])


def run_owners(
    owners: list[Any], seconds: float, *others: Callable[[float], object]
) -> dict[Any, bytes]:
    """All of them at once, with `others` until the same moment -> what there has to be then."""
    until = time.monotonic() + seconds
    in_threads(
        *[lambda owner=owner: owner.run(until) for owner in owners],
        *[lambda other=other: other(until) for other in others],
    )
    for owner in owners:
        assert owner.turn > 0
        owner.look_at_all()
    return {name: data for owner in owners for name, data in owner.model.items()}
