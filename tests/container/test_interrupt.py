"""Ctrl-C at any line of our code: what was done stays whole, and the handle can be closed."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import container_checks
import pytest
from constants import shrink
from container_checks import assert_sound, contents, contents_of, opening
from interrupts import Interrupter
from oracle_read import check
from stored import make

import winkfs
from winkfs import Container
from winkfs.container.ondisk.lock import WriterLock
from winkfs.errors import Closed

base = container_checks.base  # fixture

# A file that was being opened at the moment is closed when it is collected, which says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.slow,
    pytest.mark.in_memory,
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


Model = dict[bytes, bytes]
MOST = 1 << 62
TRIES = int(
    os.environ.get("WINKFS_INTERRUPTS", "10")
)  # lines at which each verb is interrupted, out of all it runs through


def some_lines(call: Callable[[], object], seed: str) -> list[int]:
    """Numbers of lines that a call runs through."""
    with Interrupter(0) as counter:
        call()
    total = counter.lines
    return sorted(random.Random(seed).sample(range(1, total + 1), min(TRIES, total)))


def begin(base: Path, variant: dict[str, bool]) -> tuple[Container, Model]:
    """In an empty folder."""
    for path in base.parent.iterdir():
        path.unlink()
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


@pytest.fixture
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the call after an interrupted one replays what came since, or reads everything."""
    shrink(monkeypatch, "the index", replayed=1 if request.param == "replayed" else MOST)
    return str(request.param)


@pytest.mark.few(3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", ["replayed", "rebuilt", "classic"], indirect=True)
def test_an_interrupted_verb_leaves_all_in_order(how: str, verb: str, base: Path) -> None:
    variant = {"classic": how == "classic"}
    container, _ = begin(base, variant)
    lines = some_lines(lambda: VERBS[verb][0](container), f"{how} {verb}")
    container.close()
    for at in lines:
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


@pytest.mark.few(2)
@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("how", ["replayed"], indirect=True)
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
    for at in some_lines(container.close, str(variant)):
        container, model = begin(base, variant)
        before = dict(model)
        change(container, model)
        with Interrupter(at) as interrupter, pytest.raises(KeyboardInterrupt):
            container.close()
        where = interrupter.fired
        with suppress(Closed):  # or it has all, but for what an interrupted call has lost
            assert contents(container) in (before, model), where
        with suppress(OSError, ValueError):
            container.close()  # as `with` or a patient user does
        found = contents_of(base)
        assert found in (before, model), where
        check(base, clean=False)
        winkfs.open(base, "a").close()  # the lock is free
        assert_sound(base, found)


def test_a_lock_can_be_released_after_an_interrupted_release(base: Path) -> None:
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


# --- what it costs ---


def broken_off(container: Container, call: Callable[[], object], *, before_tombstone: bool) -> None:
    """A call that Ctrl-C ends when its first entry is there, or when only its tombstone lacks."""
    kv, append = container.store.kv, container.store.kv.append_parts

    def interrupt(parts: list[bytes], entries: int, live: int) -> None:
        if not before_tombstone or not live:
            if live:
                append(parts, entries, live)
            raise KeyboardInterrupt
        append(parts, entries, live)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kv, "append_parts", interrupt)
        call()


@pytest.mark.few(2)
@pytest.mark.parametrize("variant", [{}, {"ao": True}, {"compress": "zstd:1"}])
def test_recovery_reads_only_what_follows_the_index(
    variant: dict[str, bool], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the catalog lost, for which others would have to sort all names again."""
    files = {b"%05d" % i: b"%d" % i * 20 for i in range(1000)}
    make(base, files, **variant)
    catalog = base.with_name(base.name + ".cat")
    assert catalog.exists()

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("everything is read")

    with opening(base, "a") as container:
        container.put("synced", b"1")
        container.sync()
        files[b"synced"] = b"1"
        monkeypatch.setattr("winkfs.container.store.rebuild", refuse)
        for turn in range(3):
            container.put(f"whole{turn}", b"2")
            container.delete(f"{turn:05}")
            broken_off(container, lambda: container.put("half", b"3" * 500), before_tombstone=False)
            files[b"whole%d" % turn] = b"2"
            del files[b"%05d" % turn]
            if "half" in container:  # its inode came with the content
                container.delete("half")
            assert contents(container) == files
            if turn:
                container.sync()
        monkeypatch.undo()
    assert catalog.exists()
    assert_sound(base, files)


@pytest.mark.few
@pytest.mark.parametrize("synced", [True, False], ids=["synced", "not synced"])
@pytest.mark.parametrize("old", ["00007", "new"])
def test_a_name_that_half_a_rename_left_is_in_no_catalog(
    old: str, synced: bool, base: Path
) -> None:
    """The new inode is there, the tombstone is not: no older catalog says that the name is gone."""
    files = {b"%05d" % i: b"%d" % i * 20 for i in range(3000)}
    make(base, files)
    with opening(base, "a") as container:
        container.put("new", b"1")
        files[b"new"] = b"1"
        if synced:
            container.save_catalog()
        broken_off(container, lambda: container.rename(old, "renamed"), before_tombstone=True)
        files[b"renamed"] = files.pop(old.encode())
        assert contents(container) == files
        container.sync()
        with winkfs.open(base) as reader:
            assert set(reader.names()) == {name.decode() for name in files}
    with winkfs.open(base) as reader:
        assert set(reader.names()) == {name.decode() for name in files}
    assert_sound(base, files)
