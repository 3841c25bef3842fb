"""Threads of a test that share a handle."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest

from winkfs import Container

Handle = TypeVar("Handle")
OWN = 12  # names of each thread


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


class FileOwner(Owner[Handle]):
    """Of files with names of its own, in a container or a data set."""

    handle: Any

    def __init__(self, handle: Handle, me: int) -> None:
        super().__init__(handle, me)
        self.names = [f"{me}/{number}" for number in range(OWN)]

    def verbs(self) -> list[Callable[[], object]]:
        return [self.put, self.put, self.put_many, self.delete, self.rename]

    def two(self) -> list[str]:
        return self.random.sample(self.names, 2)

    def put(self) -> None:
        name = self.two()[0]
        self.model[name] = self.content()
        self.handle.put(name, self.model[name])

    def put_many(self) -> None:
        new = {name: self.content() for name in self.random.sample(self.names, 5)}
        self.handle.put_many(new.items())
        self.model |= new

    def rename(self) -> None:
        name, other = self.two()
        if name in self.model:
            self.handle.rename(name, other)
            self.model[other] = self.model.pop(name)

    def delete(self) -> None:
        name = self.two()[0]
        if name in self.model:
            self.handle.delete(name)
            del self.model[name]

    def look(self, after: str) -> None:
        for name in self.random.sample(self.names, 3):
            self.look_at(name, after)

    def look_at(self, name: str, after: str) -> None:
        handle, want = self.handle, self.model.get(name)
        found = handle.read(name) if want is not None else None
        assert found == want, f"read after {after}"
        assert (name in handle) == (want is not None), after
        if want is None:
            with pytest.raises(FileNotFoundError):
                handle.read(name)
        else:
            assert handle.stat(name).size == len(want), after
            assert list(handle.get_many([name, name])) == [want] * 2, after

    def look_at_all(self) -> None:
        mine = f"{self.me}/"
        assert sorted(self.handle.names(mine + "*")) == sorted(self.model)
        found = {entry.name: entry.read() for entry in self.handle.scan(prefix=mine)}
        assert found == self.model


class ContainerOwner(FileOwner[Container]):
    """Of files that a container has at first. It also appends to them, and writes into them."""

    def __init__(self, container: Container, me: int) -> None:
        super().__init__(container, me)
        self.model = dict.fromkeys(self.names, b"old")

    def verbs(self) -> list[Callable[[], object]]:
        return [self.put, self.put_many, self.append, self.write, self.rename, self.delete]

    def append(self) -> None:
        name = self.two()[0]
        if name in self.model:
            more = self.content()
            self.handle.append(name, more)
            self.model[name] += more

    def write(self) -> None:
        name, data = self.two()[0], b"%d" % self.turn
        if name in self.model:
            self.handle.write(name, 1, data)
            old = self.model[name]
            self.model[name] = old[:1] + data + old[1 + len(data) :]

    def look_at(self, name: str, after: str) -> None:
        super().look_at(name, after)
        if name in self.model:
            want = self.model[name]
            assert self.handle.read(name, 1, 5) == want[1:6], after
            with self.handle.open_file(name) as file:
                assert file.read() == want, after

    def look_at_all(self) -> None:
        super().look_at_all()
        mine = f"{self.me}/"
        assert list(self.handle.names(mine + "*")) == sorted(self.model)
        assert set(self.handle.listdir(mine)) == {name[len(mine) :] for name in self.model}


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
