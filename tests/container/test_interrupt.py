"""Ctrl-C at any line of our code: what was done stays whole, and the handle can be closed."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import container_checks
import pytest
from container_checks import assert_sound, contents
from interrupts import Interrupter
from oracle_read import check

import winkfs
from winkfs import Container
from winkfs.container.ondisk.lock import WriterLock

base = container_checks.base  # fixture

# A file that was being opened at the moment is closed when it is collected, which says so.
pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


Model = dict[bytes, bytes]
TRIES = int(
    os.environ.get("WINKFS_INTERRUPTS", "10")
)  # lines at which each verb is interrupted, out of all it runs through


def begin(base: Path, variant: dict[str, bool]) -> tuple[Container, Model]:
    model = {b"old%d" % i: b"%d" % i * 50 for i in range(10)}
    container = winkfs.create(base, **variant)
    container.put_many(model.items())
    container.sync()
    return container, model


MANY = {b"old%d" % i: b"new" * i for i in range(8)} | {
    b"many%d" % i: b"x" * i for i in range(60, 80)
}
VERBS: dict[str, tuple[Callable[[Container], object], Model | None]] = {
    "put": (lambda c: c.put("new", b"1"), {b"new": b"1"}),
    "replace": (lambda c: c.put("old1", b"1"), {b"old1": b"1"}),
    "put_many": (lambda c: c.put_many(MANY.items()), MANY),
    "append": (lambda c: c.append("old2", b"+"), {b"old2": b"2" * 50 + b"+"}),
    "write": (lambda c: c.write("old3", 5, b"W"), {b"old3": b"3" * 5 + b"W" + b"3" * 44}),
    "truncate": (lambda c: c.truncate("old4", 7), {b"old4": b"4" * 7}),
    "chmod": (lambda c: c.chmod("old5", 0o755), {}),
    "delete": (lambda c: c.delete("old6"), None),
    "rename": (lambda c: c.rename("old6", "renamed"), None),
    "rename over": (lambda c: c.rename("old6", "old7"), None),
}


def allowed(verb: str, before: Model, found: Model) -> None:
    """The state before or after; of put_many any files of it."""
    after = dict(before)
    made = VERBS[verb][1]
    if made is None:
        moved = after.pop(b"old6")
        if verb != "delete":
            after[b"renamed" if verb == "rename" else b"old7"] = moved
    else:
        after |= made
    if verb == "put_many":
        assert all(data in (before.get(name), after.get(name)) for name, data in found.items())
        assert found.keys() >= before.keys()
    else:
        assert found in (before, after)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("variant", [{}, {"classic": True}], ids=["new", "classic"])
def test_an_interrupted_verb_leaves_all_in_order(
    variant: dict[str, bool], verb: str, base: Path
) -> None:
    container, _ = begin(base, variant)
    with Interrupter(0) as counter:
        VERBS[verb][0](container)
    container.close()
    dice = random.Random()
    total = counter.lines
    for at in sorted(dice.sample(range(1, total + 1), min(TRIES, total))):
        for path in base.parent.iterdir():
            path.unlink()
        container, model = begin(base, variant)
        with Interrupter(at) as interrupter, pytest.raises(KeyboardInterrupt):
            VERBS[verb][0](container)
        where = interrupter.fired
        container.put("after", b"2")
        model[b"after"] = b"2"
        found = contents(container)
        allowed(verb, model, found)
        container.close()
        try:
            assert_sound(base, found)
        except Exception as error:
            raise AssertionError(f"interrupted at {where}") from error


@pytest.mark.parametrize("variant", [{}, {"classic": True}, {"ao": True}])
def test_an_interrupted_sync_or_close_is_like_a_kill(variant: dict[str, bool], base: Path) -> None:
    def change(container: Container, model: Model) -> None:
        container.put_many((f"new{i}", b"%d" % i) for i in range(20))
        container.put("old1", b"replaced")
        container.delete("old2")
        model |= {b"new%d" % i: b"%d" % i for i in range(20)} | {b"old1": b"replaced"}
        del model[b"old2"]

    container, model = begin(base, variant)
    change(container, model)
    with Interrupter(0) as counter:
        container.close()
    dice = random.Random()
    total = counter.lines
    for at in sorted(dice.sample(range(1, total + 1), min(TRIES, total))):
        for path in base.parent.iterdir():
            path.unlink()
        container, model = begin(base, variant)
        before = dict(model)
        change(container, model)
        with Interrupter(at) as interrupter, pytest.raises(KeyboardInterrupt):
            container.close()
        where = interrupter.fired
        with suppress(OSError, ValueError):
            container.close()  # as `with` or a patient user does
        with winkfs.open(base) as reader:
            found = contents(reader)
        assert found in (before, model), where
        check(base, clean=False)
        winkfs.open(base, "a").close()  # the lock is free
        assert_sound(base, found)


def test_a_lock_whose_release_was_interrupted_can_be_released(base: Path) -> None:
    winkfs.create(base).close()
    lock = WriterLock(str(base))
    with Interrupter(0) as counter:
        lock.release()
    assert counter.lines > 10
    for at in range(1, counter.lines + 1):
        lock = WriterLock(str(base))
        with Interrupter(at) as interrupter, pytest.raises(KeyboardInterrupt):
            lock.release()
        lock.release()
        winkfs.open(base, "a").close()
        assert interrupter.fired
