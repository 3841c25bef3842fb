"""What others put into the folder of a store: links and fifos in place of its files. Nothing
outside of the folder is read, changed or made, and nothing waits."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from folders import untouched

import winkfs
from winkfs.errors import FormatError
from winkfs.stores import ledgerq, messagestore, ringpage
from winkfs.stores.ledgerq import Queue, Rotation
from winkfs.stores.ledgerq.records import repair
from winkfs.stores.logstore import LogStore
from winkfs.stores.logstore.records import salvage as salvage_log
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.messagestore.records import salvage as salvage_messages
from winkfs.stores.ringpage import Ring

pytestmark = pytest.mark.in_memory
IDS = [bytes([number]) * 16 for number in range(8)]
SECRET = b"root:secret\n"


def make_log(path: str) -> None:
    with LogStore.create(path, file_size=4096, cutoff=500, save_every=2) as store:
        for number in range(12):
            store.put(b"%d" % number * 300)
            store.commit()


def make_queue(path: str) -> None:
    ledgerq.create(path)
    with Queue(path, "a", rotation=Rotation(messages=4), retries=9) as queue:
        queue.push_many([b"x" * 50] * 10)
        assert queue.pop(visible=1000) and queue.push_once(b"y", "key", window=1000)
        queue.nack(1)


def make_messages(path: str) -> None:
    messagestore.create(path)
    with MessageStore(path, "a") as store:
        store.write_many([(id, id * 20) for id in IDS])


def make_ring(path: str) -> None:
    os.mkdir(path)
    ringpage.create(f"{path}/ring", pages=4)
    with Ring(f"{path}/ring", "a") as ring:
        ring.push(b"x" * 1000)


def change_log(path: str) -> None:
    with LogStore(path, "a") as store:
        recid = store.put(b"z" * 400)
        store.put(b"z" * 4000)
        store.commit()
        store.delete(recid)
        store.commit()
        store.compact(least=0.01)


def change_queue(path: str) -> None:
    with Queue(path, "a", rotation=Rotation(messages=2)) as queue:
        queue.push_many([b"new"] * 5)
        queue.pop_many(7)
        queue.compact()
        queue.add_consumer("other")


def change_messages(path: str) -> None:
    with MessageStore(path, "a") as store:
        store.write(b"new message here", b"body")
        for id in IDS[:5]:
            with suppress(FileNotFoundError):
                store.remove(id)
        store.compact()


def change_ring(path: str) -> None:
    with Ring(f"{path}/ring", "a") as ring:
        ring.push_many([b"y" * 3000] * 5)
        ring.pop()


def look(path: str) -> None:
    with winkfs.open(path) as store:
        for name in store.names():
            store.read(name)


def shared(path: str) -> None:
    with Queue(path, "a", shared=True) as queue:
        queue.push(b"x")
        queue.pop()


Verb = Callable[[str], object]
VERBS: dict[str, dict[str, Verb]] = {
    "log": {
        "open": look, "verify": winkfs.verify, "change": change_log,
        "salvage": lambda path: salvage_log(path, f"{path}.saved"),
    },
    "queue": {
        "open": look, "verify": winkfs.verify, "change": change_queue, "repair": repair,
        "shared": shared,
    },
    "messages": {
        "open": look, "verify": winkfs.verify, "change": change_messages,
        "salvage": lambda path: salvage_messages(path, f"{path}.saved"),
    },
    "ring": {
        "open": lambda path: look(f"{path}/ring"),
        "verify": lambda path: winkfs.verify(f"{path}/ring"), "change": change_ring,
        "create": lambda path: ringpage.create(f"{path}/other", pages=2),
    },
}  # fmt: skip
MAKE: dict[str, Verb] = {
    "log": make_log, "queue": make_queue, "messages": make_messages, "ring": make_ring,
}  # fmt: skip
# names that a verb may make
NEW = {
    "log": [
        "index.tmp", "logstore.tmp", "datafiles.tmp", "data/{last}.tmp", "data/00000000000000ff",
        "data/{next}", "blob/00000000000000ff", "generations/0000.tmp", "generations/0001",
    ],
    "queue": [
        "cursors.dat.tmp", "metadata.dat.tmp", ".dedup_state.json.tmp", ".retry_state.json.tmp",
        "00000000000000000013.log", "00000000000000000011.log", "00000000000000000001.idx.tmp",
        "00000000000000000001.pri", "00000000000000000001.log.cut", "00000000000000000099.log",
    ],
    "messages": ["index.tmp", "refs.2", "refs.3", "1.sqs", "0.sqs.cut", "0.rdq", "refs.9", "9.sqs"],
    "ring": ["ring.tmp", "other", "other.tmp"],
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    for kind, make in MAKE.items():
        make(str(folder / kind))
    return folder


def names(kind: str, store: Path) -> list[str]:
    """Of all files and folders, and of those that may be made."""
    there = [str(path.relative_to(store)) for path in sorted(store.rglob("*"))]
    if kind == "ring":
        there.remove("ring")  # which the user has named, not the store
    data = sorted(name.removeprefix("data/") for name in there if name.startswith("data/"))
    last = data[-1] if data else "0"
    return there + [name.format(last=last, next=f"{int(last, 16) + 1:016x}") for name in NEW[kind]]


@contextmanager
def not_for_ever() -> Iterator[None]:
    """A fifo that is opened waits for its other end."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def plant(store: Path, name: str, what: str, elsewhere: Path) -> None:
    """Put a link or a fifo in the place of a file, or of a folder of the store."""
    place = store / name
    victim = elsewhere / "victim"
    if place.is_dir():
        shutil.move(place, victim) if what == "link" else shutil.rmtree(place)
    else:
        victim.write_bytes(place.read_bytes() if place.exists() else SECRET)
        place.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(victim)
    else:
        place.symlink_to(elsewhere / "nothing there")


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("what", ["link", "dangling", "fifo"])
@pytest.mark.parametrize(("kind", "verb"), [(k, v) for k, verbs in VERBS.items() for v in verbs])
def test_nothing_outside_of_a_store_is_touched(
    kind: str, verb: str, what: str, made: Path, tmp_path: Path
) -> None:
    """A victim has the bytes of the file in whose place the link is: it would be taken for it."""
    for number, name in enumerate(names(kind, made / kind)):
        store, elsewhere = tmp_path / f"{number}" / "store", tmp_path / f"{number}" / "elsewhere"
        shutil.copytree(made / kind, store)
        elsewhere.mkdir()
        plant(store, name, what, elsewhere)
        with untouched(elsewhere), not_for_ever(), suppress(OSError, FormatError):
            VERBS[kind][verb](str(store))
