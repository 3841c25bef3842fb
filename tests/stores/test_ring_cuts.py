"""Power cuts and faults at any moment of random lives of Ring Page buffers: see ring_lives.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from drawn import examples
from ring_lives import VARIANTS, Life
from simulated.disk import Event, SimulatedDisk
from store_kinds import content, looking, simulated

from winkfs.errors import FormatError
from winkfs.stores.ringpage.pages import Pages, open_buffer
from winkfs.stores.ringpage.ring import Ring, create

pytestmark = pytest.mark.slow


@pytest.mark.few(2)
@pytest.mark.soak
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_image_has_what_was_synced(kind: str, seed: int, soak: bool) -> None:
    """Whole records in their order, none of which a sync has made durable is lost."""
    wanted = 30_000 if soak else examples(900)
    done = Life.lives(kind, seed, wanted)
    assert done["images"] >= wanted
    assert done["full" if kind == "refuse" else "overwritten"]


def test_a_buffer_is_there_whole_or_not_at_all() -> None:
    """Whenever the power goes while it is made."""
    disk, images = SimulatedDisk(7, torn=1), 0

    def look(_: Event) -> None:
        nonlocal images
        for _ in range(20):
            image = disk.crash()
            images += 1
            if "ring" in image.paths():
                with Ring(f"{image.path}/ring", "a") as ring:
                    ring.push(b"body")

    with looking(disk, look):
        create(f"{disk.path}/ring", pages=3)
    look(Event("", ""))
    assert images > 100 and disk.crash().paths() == ["ring"]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failed_close_is_not_recorded_as_clean(call: str) -> None:
    disk, path = simulated("ring", 3, pages=40)
    with Ring(path, "a") as ring:
        ring.push_many([b"%d" % n * 100 for n in range(300)])
    ring = Ring(path, "a")
    assert ring.pop() == b"0" * 100
    ring.push(b"more")
    disk.arm(call, 1, for_good=True)
    with pytest.raises(OSError, match="Input/output"):
        ring.close()
    disk.arm(call, 0)
    image = disk.crash()
    bodies = content(f"{image.path}/s")
    assert bodies[0] in (b"0" * 100, b"1" * 100) and b"299" * 100 in bodies


def test_a_clean_end_names_no_record_that_is_not_there() -> None:
    """Whenever the power goes during a close, the state of a clean end comes behind all pages."""
    disk, path = simulated("ring", 5, pages=9)
    ends = 0

    def look(_: Event) -> None:
        nonlocal ends
        for _ in range(20):
            image = disk.crash()
            with open_buffer(f"{image.path}/s") as storage:
                state = Pages(storage).state
            if state.clean and state.next:
                ends += 1
                with Ring(f"{image.path}/s") as reader:
                    assert not reader.problems
                    assert len(list(reader.records())) == 40

    ring = Ring(path, "a", memory=4096)
    ring.push_many([b"%d" % n * 250 for n in range(10, 50)])
    with looking(disk, look):
        ring.close()
    look(Event("", ""))
    assert ends > 20


def test_a_full_disk_takes_nothing_away() -> None:
    disk, path = simulated("ring", 3, pages=9)
    disk.capacity = 6 * 4096
    ring = Ring(path, "a", memory=4096)
    taken = 0
    with pytest.raises(OSError, match="No space"):
        for taken in range(1000):
            ring.push(b"%d" % taken * 100)
    popped = [ring.pop() for _ in range(taken)]
    assert popped == [b"%d" % n * 100 for n in range(taken)] and ring.pop() is None
    ring.push(b"again")
    ring.abort()


def test_a_sync_covers_what_a_killed_writer_left() -> None:
    """It may be in the page cache alone."""
    disk, path = simulated("ring", 5, pages=9)
    ring = Ring(path, "a", memory=4096)
    ring.push_many([b"x" * 1000] * 20)
    ring.abort()
    with Ring(path, "a") as after:
        after.sync()
        count = len(after)
        assert count > 10
        for _ in range(30):
            image = disk.crash()
            assert len(content(f"{image.path}/s")) == count


def test_flips_and_zeros_are_reported_and_give_no_wrong_record(
    every: Callable[[str], slice],
) -> None:
    """At each byte of the first sector of the block and of each page, and here and there else."""
    disk, path = simulated("ring", 5, pages=5)
    bodies = {b"%d " % n * 60: n for n in range(300)}
    with Ring(path, "a") as ring:
        ring.push_many(bodies)
        for _ in range(20):
            ring.pop()
    good = disk.durable("s")
    with Ring(path) as ring:
        wanted = [record.body for record in ring.records()]
    assert len(wanted) > 50 and ring.pages.looped
    places = [at for start in (0, 1024, 2048, 3072, *range(4096, len(good), 4096))
              for at in range(start, start + 64)] + list(range(0, len(good), 131))  # fmt: skip
    places = places[every("ring bytes")]
    reported = 0
    for at in places:
        for value in (good[at] ^ 1 << at % 8, 0, 0xFF):
            if value == good[at]:
                continue
            image = disk.clone()
            node = image.root.entries["s"]
            data = bytearray(good)
            data[at] = value
            content = node.seen()  # type: ignore[union-attr]
            content.data[:] = data
            node.settle(content)  # type: ignore[union-attr]
            node.show(content)  # type: ignore[union-attr]
            reported += look_at(f"{image.path}/s", bodies, wanted, at)
    assert reported > 1.2 * len(places)


def look_at(path: str, bodies: dict[bytes, int], wanted: list[bytes], at: int) -> bool:
    """-> whether there was anything to report."""
    try:
        ring = Ring(path)
    except FormatError as error:
        raise AssertionError(f"byte {at}: one copy is enough: {error}") from None
    with ring:
        found = [record.body for record in ring.records()]
        numbers = [bodies[body] for body in found]
        assert numbers == sorted(set(numbers)), at
        if found == wanted:
            return False
        assert ring.problems or ring.notes, at
    return True
