"""Threads on one writing handle: each sees at once what its calls have changed, whatever the others
do meanwhile. Also when what was put in bulk goes into the index, and when that is written anew."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from constants import shrink
from container_checks import base as base  # a fixture
from container_checks import opening
from stored import make
from threaded import OWN, ContainerOwner, run_owners
from threaded import threads_change_often as threads_change_often  # a fixture

import winkfs
from winkfs import Container

SECONDS = 1.0


@pytest.fixture
def fold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to so many rows that were put in bulk go to memory, of more a new index is made."""
    shrink(monkeypatch, "the index", fold=request.param)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("fold", [4, 1 << 16], ids=["new indexes", "in memory"], indirect=True)
@pytest.mark.parametrize("which_path", ["compiled", "python"], indirect=True)
def test_each_thread_reads_what_it_was_last_acknowledged(
    which_path: None, fold: None, base: Path, threads_change_often: None
) -> None:
    make(base, ((f"{me}/{i}", b"old") for me in range(4) for i in range(OWN)))
    with opening(base, "a") as handle:
        model = run_owners([ContainerOwner(handle, me) for me in range(4)], SECONDS)
    with winkfs.open(base) as reader:
        assert {entry.name: entry.read() for entry in reader.scan()} == model
    assert winkfs.verify(base).problems == []


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("which_path", ["compiled", "python"], indirect=True)
@pytest.mark.parametrize("fold", [4, 1 << 16], ids=["new index", "in memory"], indirect=True)
def test_reads_during_a_bulk_settle_see_the_new_content(
    which_path: None, fold: None, base: Path
) -> None:
    make(base, ((f"k{i}", b"old") for i in range(2000)))
    with opening(base, "a") as c:
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
    "catalog": (lambda c: c.save_catalog(), b""),
    "index": (lambda c: c.keep_mark({}), b""),
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


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "fold"),
    [(what, 1 << 16) for what in READY] + [(what, 1) for what in READY if "bulk" in what],
    indirect=["fold"],
)
@pytest.mark.parametrize("change", CHANGES)
def test_lock_free_reads_see_nothing_older_than_acknowledged(
    before: str, change: str, fold: None, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, [("k", b"old"), ("other", b"other")] + [(f"m{i}", b"m") for i in range(40)])
    with opening(base, "a") as c:
        assert c.read("k") == c.read("k") == b"old"
        first = c.short
        known = READY[before](c)
        new, seen, there = after(change, known), set[bytes | bool | None](), set[bool | None]()

        def look(frame: FrameType, event: str, _: Any) -> Any:
            if "/winkfs/container/" not in frame.f_code.co_filename:
                return None
            for short in (first, c.short):
                seen.add(short.read("k"))
                there.add(short.has("k"))
            return look

        sys.settrace(look)
        try:
            CHANGES[change][0](c)
        finally:
            sys.settrace(None)
        assert seen <= {None, known, False if new is None else new}
        assert there <= {None, True, new is not None}
        assert (c.read("k") if "k" in c else None) == new
        assert (c.read("k") if "k" in c else None) == new
