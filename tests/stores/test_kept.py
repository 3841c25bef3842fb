"""What a store took is kept, however the handle ends: an exception in `with`, or the end of the
process, also where nobody refers to the handle any more; and after a fork or a failed sync."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from refusals import all_raise
from simulated.disk import SimulatedDisk
from store_kinds import KINDS, OnStore, content, in_child

from winkfs.errors import Closed, Locked, Refusal
from winkfs.stores.ledgerq import Queue
from winkfs.stores.logstore import LogStore

OPEN = "still open for writing at the end of the process: synced and closed"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
# a kind, and how its handle is opened
VARIANTS: dict[str, dict[str, Any]] = {
    "queue": {"sync": "none"}, "queue, interval": {"sync": "interval"},
    "queue, shared": {"shared": True}, "ring": {}, "messages": {"sync": "none"}, "log": {},
}  # fmt: skip
ADDED = [b"0", b"1", b"2"]


def filled(variant: str, folder: Path) -> OnStore:
    on = KINDS[variant.partition(",")[0]](str(folder / variant), make=True, **VARIANTS[variant])
    for body in ADDED:
        on.add(body)
    return on


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_exception_in_a_with_block_loses_nothing(
    variant: str, tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), filled(variant, tmp_path).store:
        raise error
    assert content(str(tmp_path / variant)) == ADDED


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise ValueError"])
def test_a_process_that_ends_without_close_loses_nothing(end: str, tmp_path: Path) -> None:
    script = f"""
import gc, sys
from pathlib import Path
from test_kept import VARIANTS, filled
for variant in VARIANTS:
    filled(variant, Path(sys.argv[1]))
gc.collect()
{end}
"""
    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60,
        check=False, env=ENVIRONMENT,
    )  # fmt: skip
    for variant in VARIANTS:
        assert content(str(tmp_path / variant)) == ADDED, variant
        assert f"winkfs: {tmp_path / variant}: {OPEN}" in found.stderr.splitlines()
    assert (found.returncode != 0) == ("ValueError" in end)


def test_acknowledgements_are_kept_where_a_with_block_raises(tmp_path: Path) -> None:
    filled("queue", tmp_path).store.close()
    path = str(tmp_path / "queue")
    with pytest.raises(ZeroDivisionError), Queue(path, "a") as queue:
        message = queue.pop(visible=1000)
        assert message is not None
        queue.ack(message.id)
        assert queue.pop() is not None
        raise ZeroDivisionError
    assert content(path) == [b"2"]


def test_a_transaction_that_is_open_at_the_end_is_rolled_back(tmp_path: Path) -> None:
    filled("log", tmp_path).store.close()
    path = str(tmp_path / "log")
    with pytest.raises(ZeroDivisionError), LogStore(path, "a") as store:
        store.put(b"kept")
        store.begin().put(b"dropped")
        with store.begin() as transaction:
            transaction.put(b"dropped, too")
            raise ZeroDivisionError
    assert content(path) == [*ADDED, b"kept"]
    with LogStore(path, "a") as store:
        store.put(b"taken back")
        store.rollback()
    assert content(path) == [*ADDED, b"kept"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_cannot_write(kind: str, tmp_path: Path) -> None:
    """Nor does its end release the lock of its parent."""
    on = filled(kind, tmp_path)
    on.sync()

    def write() -> None:
        with pytest.raises(Closed, match="open it anew after a fork"):
            on.add(b"of the child")

    in_child(write)
    with pytest.raises(Locked):
        KINDS[kind](on.path)
    on.add(b"of the parent")
    on.store.close()
    assert content(on.path) == [*ADDED, b"of the parent"]
    all_raise(Closed, (on.sync, lambda: on.add(b"late")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_sync_is_final(kind: str) -> None:
    disk = SimulatedDisk(1)
    on = KINDS[kind](f"{disk.path}/s", make=True)
    on.add(b"1")
    on.sync()
    disk.arm("sync")
    last = on.add(b"2")
    with pytest.raises(OSError, match="Input/output error"):
        on.sync()
    all_raise(
        Refusal,
        (on.sync, lambda: on.add(b"3"), on.compact, on.sync),
        r"nothing (can be|is) written any more.*open it a",
    )
    assert on.bodies()[last] == b"2"
    on.store.close()
    for image in [disk.crash() for _ in range(20)]:
        assert content(f"{image.path}/s") in ([b"1"], [b"1", b"2"])
