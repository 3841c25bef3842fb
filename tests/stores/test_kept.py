"""What a store took is kept, however the handle ends: an exception in `with`, or the end of the
process, also where nobody refers to the handle any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from winkfs.stores.ledgerq import Queue
from winkfs.stores.ledgerq import create as create_queue
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.messagestore import create as create_messages
from winkfs.stores.ringpage import Ring
from winkfs.stores.ringpage import create as create_ring

OPEN = "still open for writing at the end of the process: synced and closed"
# kind -> how to open it to write, and how to add a body
STORES = {
    "queue": ("Queue(path, 'a', sync='none')", "store.push(body)"),
    "queue, interval": ("Queue(path, 'a', sync='interval')", "store.push(body)"),
    "queue, shared": ("Queue(path, 'a', shared=True)", "store.push(body)"),
    "ring": ("Ring(path, 'a')", "store.push(body)"),
    "messages": ("MessageStore(path, 'a', sync='none')", "store.write(body.rjust(16), body)"),
    "log": ("LogStore(path, 'a')", "store.put(body)"),
}
CREATE = {
    "queue": create_queue, "ring": create_ring, "messages": create_messages,
    "log": lambda path: LogStore.create(path).close(),
}  # fmt: skip
IMPORTS = """
import sys
from winkfs.stores.ledgerq import Queue
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.ringpage import Ring
"""


def bodies(kind: str, path: str) -> list[bytes]:
    match kind.partition(",")[0]:
        case "queue":
            with Queue(path) as queue:
                return [message.payload for message in queue.messages()]
        case "ring":
            with Ring(path) as ring:
                return [record.body for record in ring.records()]
        case "messages":
            with MessageStore(path) as messages:
                ids = messages.rows().ids
                return sorted(messages.read(id.astype(">u8").tobytes()) for id in ids)
    with LogStore(path) as log:
        return [log.get(recid) or b"" for recid in log.recids()]


@pytest.fixture
def path(kind: str, tmp_path: Path) -> str:
    made = str(tmp_path / "s")
    CREATE[kind.partition(",")[0]](made)
    return made


def filled(kind: str, path: str) -> Queue | Ring | MessageStore | LogStore:
    names = {"Queue": Queue, "Ring": Ring, "MessageStore": MessageStore, "LogStore": LogStore}
    store = eval(STORES[kind][0], names | {"path": path})
    for number in range(3):
        eval(STORES[kind][1], {"store": store, "body": b"%d" % number})
    return store  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", STORES)
def test_an_exception_in_a_with_block_loses_nothing(
    kind: str, path: str, error: type[BaseException]
) -> None:
    with pytest.raises(error), filled(kind, path):
        raise error
    assert bodies(kind, path) == [b"0", b"1", b"2"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise ValueError"])
def test_a_process_that_ends_without_close_loses_nothing(end: str, tmp_path: Path) -> None:
    script = f"{IMPORTS}\ndef main():\n"
    for number, (kind, (opened, add)) in enumerate(STORES.items()):
        CREATE[kind.partition(",")[0]](str(tmp_path / kind))
        script += f"    path = {str(tmp_path / kind)!r}\n    store{number} = {opened}\n"
        add = add.replace("store", f"store{number}")
        script += f"    for body in (b'0', b'1', b'2'):\n        {add}\n"
    script += f"main()\nimport gc; gc.collect()\n{end}\n"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    for kind in STORES:
        assert bodies(kind, str(tmp_path / kind)) == [b"0", b"1", b"2"], kind
        assert f"winkfs: {tmp_path / kind}: {OPEN}" in found.stderr.splitlines()
    assert (found.returncode != 0) == ("ValueError" in end)


@pytest.mark.parametrize("kind", ["queue"])
def test_acknowledgements_are_kept_where_a_with_block_raises(kind: str, path: str) -> None:
    with Queue(path, "a") as queue:
        queue.push_many([b"0", b"1", b"2"])
    with pytest.raises(ZeroDivisionError), Queue(path, "a") as queue:
        message = queue.pop(visible=1000)
        assert message is not None
        queue.ack(message.id)
        assert queue.pop() is not None
        raise ZeroDivisionError
    assert bodies(kind, path) == [b"2"]


@pytest.mark.parametrize("kind", ["log"])
def test_a_transaction_that_is_open_at_the_end_is_rolled_back(kind: str, path: str) -> None:
    with pytest.raises(ZeroDivisionError), LogStore(path, "a") as store:
        store.put(b"kept")
        store.begin().put(b"dropped")
        with store.begin() as transaction:
            transaction.put(b"dropped, too")
            raise ZeroDivisionError
    assert bodies(kind, path) == [b"kept"]
    with LogStore(path, "a") as store:
        store.put(b"taken back")
        store.rollback()
    assert bodies(kind, path) == [b"kept"]
