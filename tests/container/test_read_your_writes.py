"""Threads on one writing handle: each sees at once what its calls have changed, whatever the others
do meanwhile. Also when what was put in bulk goes into the index, and when that is written anew."""

from __future__ import annotations

import io
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from constants import shrink
from container_checks import base as base  # a fixture

import winkfs
from winkfs import Container

SECONDS = 1.0
OWN = 12  # names of each thread


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*jobs: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


class Owner:
    """A thread with names of its own, and what it was last acknowledged of each."""

    def __init__(self, container: Container, me: int) -> None:
        self.container, self.random = container, random.Random(me)
        self.names = [f"{me}/{i}" for i in range(OWN)]
        self.model: dict[str, bytes] = {}
        self.turn = 0

    def run(self, until: float) -> None:
        verbs = [self.put, self.put_many, self.append, self.write, self.rename, self.remove]
        while time.monotonic() < until:
            self.turn += 1
            verb = self.random.choice(verbs)
            verb(*self.random.sample(self.names, 2))
            for name in self.random.sample(self.names, 3):
                self.look(name, verb.__name__)
            if self.turn % 50 == 0:
                self.container.sync()
                self.look_at_all()

    def look(self, name: str, after: str) -> None:
        c, want = self.container, self.model.get(name)
        found = c.read(name) if want is not None else None
        assert found == want, f"read after {after}"
        assert (name in c) == (want is not None), after
        if want is not None:
            assert c.stat(name).size == len(want), after
            assert list(c.get_many([name, name])) == [want] * 2, after
            assert c.read(name, 1, 5) == want[1:6], after
            with c.open_file(name) as file:
                assert file.read() == want, after
        else:
            with pytest.raises(FileNotFoundError):
                c.read(name)

    def look_at_all(self) -> None:
        mine = self.names[0].split("/")[0] + "/"
        assert list(self.container.names(mine + "*")) == sorted(self.model)
        found = {entry.name: entry.read() for entry in self.container.scan(prefix=mine)}
        assert found == self.model
        assert set(self.container.listdir(mine)) == {name[len(mine) :] for name in self.model}

    def content(self) -> bytes:
        return b"%d " % self.turn * self.random.choice([1, 5, 300])

    def put(self, name: str, _: str) -> None:
        self.model[name] = self.content()
        self.container.put(name, self.model[name])

    def put_many(self, *_: str) -> None:
        new = {name: self.content() for name in self.random.sample(self.names, 5)}
        self.container.put_many(new.items())
        self.model |= new

    def append(self, name: str, _: str) -> None:
        if name in self.model:
            more = self.content()
            self.container.append(name, more)
            self.model[name] += more

    def write(self, name: str, _: str) -> None:
        if name in self.model:
            self.container.write(name, 1, b"%d" % self.turn)
            old = self.model[name]
            self.model[name] = old[:1] + b"%d" % self.turn + old[1 + len(b"%d" % self.turn) :]

    def rename(self, name: str, other: str) -> None:
        if name in self.model:
            self.container.rename(name, other)
            self.model[other] = self.model.pop(name)

    def remove(self, name: str, _: str) -> None:
        if name in self.model:
            self.container.delete(name)
            del self.model[name]


@pytest.mark.parametrize("fold", [4, 1 << 16], ids=["new indexes", "in memory"])
@pytest.mark.parametrize("which_path", ["compiled", "python"], indirect=True)
def test_each_thread_reads_what_it_was_last_acknowledged(
    which_path: None,
    fold: int,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads_change_often: None,
) -> None:
    shrink(monkeypatch, "rows put that go to memory", fold)
    with winkfs.create(base) as c:
        c.put_many((f"{me}/{i}", b"old") for me in range(4) for i in range(OWN))
    with winkfs.open(base, "a") as handle:
        assert isinstance(handle, Container)
        owners = [Owner(handle, me) for me in range(4)]
        for owner in owners:
            owner.model = dict.fromkeys(owner.names, b"old")
        until = time.monotonic() + SECONDS
        in_threads(*[lambda owner=owner: owner.run(until) for owner in owners])
        for owner in owners:
            owner.look_at_all()
        model = {name: data for owner in owners for name, data in owner.model.items()}
    with winkfs.open(base) as reader:
        assert {entry.name: entry.read() for entry in reader.scan()} == model
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("which_path", ["compiled", "python"], indirect=True)
@pytest.mark.parametrize("fold", [4, 1 << 16], ids=["new index", "in memory"])
def test_nothing_old_is_read_while_the_index_takes_what_was_put_in_bulk(
    which_path: None, fold: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "rows put that go to memory", fold)
    with winkfs.create(base) as c:
        c.put_many((f"k{i}", b"old") for i in range(2000))
    with winkfs.open(base, "a") as c:
        assert isinstance(c, Container)
        assert c.read("k1") == c.read("k1") == b"old"  # from now on by the fast reader
        c.put_many((f"k{i}", b"new") for i in range(2000))
        settling = threading.Thread(target=c.stat, args=("k5",))
        settling.start()
        time.sleep(0.005)  # or a read is first, and settles the index itself
        while settling.is_alive():
            assert c.read("k1") == b"new"
        settling.join()
        assert c.read("k1") == b"new"


# --- a reader without the lock, at each line of each change ---

READY: dict[str, Callable[[Container], bytes]] = {}  # k as it is when a change begins -> content
CHANGES: dict[str, tuple[Callable[[Container], object], bytes | None]] = {
    "put": (lambda c: c.put("k", b"new"), b"new"),
    "put with a mode": (lambda c: c.put("k", b"new", mode=0o600), b"new"),
    "put_many": (lambda c: c.put_many([("k", b"new"), ("o", b"")]), b"new"),
    "put_file": (lambda c: c.put_file("k", io.BytesIO(b"new")), b"new"),
    "append": (lambda c: c.append("k", b"+"), b"+"),
    "write": (lambda c: c.write("k", 0, b"n"), b"n"),
    "truncate": (lambda c: c.truncate("k", 1), b"1"),
    "delete": (lambda c: c.delete("k"), None),
    "rename": (lambda c: c.rename("k", "away"), None),
    "rename over it": (lambda c: c.rename("other", "k"), b"other"),
    "rename of a draft": (lambda c: (c.append("other", b"!"), c.rename("other", "k")), b"other!"),
    "chmod": (lambda c: c.chmod("k", 0o600), b""),
    "settle": (lambda c: c.stat("other"), b""),
    "drafts": (lambda c: ([c.append(f"m{i}", b"+") for i in range(40)], c.sync()), b""),
    "sync": (lambda c: c.sync(), b""),
    "catalog": (lambda c: c.engine.save_catalog(), b""),
    "index": (lambda c: c.engine.keep_mark({}), b""),
}


def ready(what: str) -> Callable[[Callable[[Container], object]], None]:
    def note(make: Callable[[Container], object]) -> None:
        def made(c: Container) -> bytes:
            make(c)
            return b"old+" if "draft" in what else b"old" if what == "synced" else b"1234"

        READY[what] = made

    return note


ready("synced")(lambda c: None)
ready("draft")(lambda c: c.append("k", b"+"))
ready("put")(lambda c: c.put("k", b"1234"))
ready("put in bulk")(lambda c: c.put_many([("k", b"1234"), ("p", b"")]))
ready("put, then put in bulk")(
    lambda c: (c.put("k", b"56789"), c.put_many([("k", b"1234"), ("p", b"")]))
)
ready("put in bulk, then a draft")(lambda c: (c.put_many([("p", b"1")]), c.append("k", b"+")))


def after(change: str, before: bytes) -> bytes | None:
    new = CHANGES[change][1]
    if change == "append":
        return before + b"+"
    if change == "write":
        return b"n" + before[1:]
    if change == "truncate":
        return before[:1]
    return before if new == b"" else new


@pytest.mark.parametrize(
    ("before", "fold"),
    [(what, 1 << 16) for what in READY] + [(what, 1) for what in READY if "bulk" in what],
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_without_the_lock_sees_nothing_older_than_what_was_acknowledged(
    before: str, change: str, fold: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "rows put that go to memory", fold)
    with winkfs.create(base) as c:
        c.put_many([("k", b"old"), ("other", b"other")] + [(f"m{i}", b"m") for i in range(40)])
    with winkfs.open(base, "a") as c:
        assert isinstance(c, Container)
        assert c.read("k") == c.read("k") == b"old"
        first = c.engine.fast
        known = READY[before](c)
        new, seen = after(change, known), set[bytes | None]()

        def look(frame: FrameType, event: str, _: Any) -> Any:
            if "/winkfs/container/" not in frame.f_code.co_filename:
                return None
            for fast in (first, c.engine.fast):
                if fast is not None:
                    seen.add(fast("k"))
            return look

        sys.settrace(look)
        try:
            CHANGES[change][0](c)
        finally:
            sys.settrace(None)
        assert seen <= {None, known, new}
        assert (c.read("k") if "k" in c else None) == new
        assert (c.read("k") if "k" in c else None) == new
