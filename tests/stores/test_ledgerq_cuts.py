"""Power cuts at any moment of many random lives of queues: see ledgerq_lives.py."""

from __future__ import annotations

import pytest
from drawn import examples
from ledgerq_lives import VARIANTS, Life
from store_kinds import simulated

import winkfs
from winkfs.stores.ledgerq import Queue

pytestmark = pytest.mark.slow


@pytest.mark.few(2)
@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_has_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """Nothing that was pushed and synced is lost, nothing that was consumed and synced is handed
    out again, every image opens, to look and to write, and LedgerQ can read it, too."""
    wanted = 34_000 if soak else examples(120)
    # The 4th life of "fifo" shows most faults, and the first is long: see mutants.py.
    assert Life.lives(kind, seed + (kind == "fifo"), wanted)["images"] >= wanted


def test_a_position_ahead_of_unsynced_messages_reports_no_loss() -> None:
    """What was popped is on the disk after a power cut, and the segment, which no sync covers, is
    not: no message is missing, and the next ones have new ids."""
    (disk, path), seen = simulated("queue", 1), 0
    with Queue(path, "a", sync="none") as queue:
        queue.add_consumer("other")
    with Queue(path, "a", sync="none", shared=True) as queue:
        queue.push_many([b"x"] * 7)
        queue.pop_many(7)
        images = [disk.crash() for _ in range(100)]
    for image in images:
        path, lost = f"{image.path}/s", not any(name.endswith(".log") for name in image.paths())
        with Queue(path) as looker:
            assert not any("missing" in line for line in looker.problems)
        with Queue(path, "a", sync="none") as queue:
            seen += lost and queue.push(b"after") == 8
        assert not winkfs.verify(path).problems
    assert seen
