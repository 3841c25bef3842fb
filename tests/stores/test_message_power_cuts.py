"""Power cuts at any moment of many random lives of message stores: see message_lives.py."""

from __future__ import annotations

import pytest
from drawn import examples
from message_lives import VARIANTS, Life
from simulated.disk import Event
from store_kinds import looking, simulated

from winkfs.stores.messagestore.store import MessageStore

pytestmark = pytest.mark.slow
# The 6th life of "plain" shows most faults, that of "v1" half of a group of the journal: see
# mutants.py.
IMAGES = {"plain": 240, "checked": 80, "v1": 240}


@pytest.mark.few(2)
@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_has_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """Nothing that was synced is lost, nothing that was removed and synced is back, every image
    opens, to read and to write, and again."""
    wanted = 34_000 if soak else examples(IMAGES[kind])
    first = seed if kind == "checked" else seed + 5
    assert Life.lives(kind, first, wanted)["images"] >= wanted


def test_removed_segments_do_not_return_behind_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What says that they are gone is gone then, too."""
    Life.small(monkeypatch)
    (disk, path), images = simulated("messages", 1), 0
    store = MessageStore(path, "a")
    ids = [bytes([i]) * 16 for i in range(1, 100)]
    store.write_many((msg_id, bytes(300)) for msg_id in ids)
    store.sync()
    gone, kept = ids[:-1], ids[-1]
    store.remove_many(gone)
    store.core.roll()
    store.write(ids[0], b"")
    store.sync()

    def look(event: Event) -> None:
        nonlocal images
        # Of one image in 17 the new name is on the disk, and the removal is not.
        for _ in range(200 if event.call == "directory sync" else 10):
            image = disk.crash()
            with MessageStore(f"{image.path}/s") as reader:
                assert kept in reader and not any(msg_id in reader for msg_id in gone)
            images += 1

    store.remove(ids[0])
    store.core.roll()  # removes the last segment without a message, whose name no sync covers
    with looking(disk, look):
        store._renew()
    assert images > 100
    store.close()
