"""`in`, `stat` and `read` of one name has three answers: what is there, that nothing is, damage.
Whatever came between the calls, they agree with each other and with what was done before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from container_checks import base as base  # a fixture
from container_checks import opening, patch, path_of
from container_checks import short_way as short_way  # a fixture
from flips import flip
from test_alike_names import ALIKE

import winkfs
from winkfs import Container, CorruptError

pytestmark = pytest.mark.in_memory
Model = dict[Any, bytes | None]
States = Iterator[tuple[Container, Model]]  # what a handle must answer, after each step
TWO = b"1" * 3000 + b"2" * 10  # of two extents
SCENARIOS: dict[str, Callable[[Path, ExitStack], States]] = {}


def scenario(make: Callable[[Path, ExitStack], States]) -> Callable[[Path, ExitStack], States]:
    SCENARIOS[make.__name__.replace("_", " ")] = make
    return make


def filled(base: Path, **options: Any) -> Model:
    """Files of all kinds, and a name that is missing."""
    with winkfs.create(base, **options) as c:
        model: Model = {f"n{i}": b"%d" % i * (i + 1) for i in range(60)}
        model |= {"two": TWO, "mode": b"m" * 70, "empty": b"", b"\xff": b"no UTF-8", "none": None}
        c.put_many((name, data) for name, data in model.items() if data is not None)
        c.put_many((f"other {i}", b"") for i in range(240))  # the index has two pages
        if not options.get("classic"):
            c.put("mode", b"m" * 70, mode=0o600)
        if not options.get("ao"):
            c.put("two", b"1" * 3000)
            c.sync()
            c.append("two", b"2" * 10)
    return model


def opened(base: Path, stack: ExitStack, mode: str = "r") -> Container:
    return stack.enter_context(opening(base, mode))


def check(c: Container, model: Model) -> None:
    """Twice: the first call of a kind may have to look at something before it answers."""
    for _ in range(2):
        for name, data in model.items():
            assert (name in c) == (data is not None), name
            if data is not None:
                assert c.read(name) == data, name
                assert c.read(name, 1, 5) == data[1:6], name
                assert c.stat(name).size == len(data), name
                continue
            for ask in (c.read, c.stat):
                with pytest.raises(FileNotFoundError, match="no such file in the container"):
                    ask(name)


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.usefixtures("short_way")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_answers_are_those_of_the_last_step(name: str, base: Path) -> None:
    with ExitStack() as stack:
        for container, model in SCENARIOS[name](base, stack):
            check(container, model)


# --- a writer ---


@scenario
def changes_in_memory(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    c = opened(base, stack, "a")
    yield c, model
    c.put("none", b"put")
    yield c, model | {"none": b"put"}
    c.delete("none")
    yield c, model
    c.delete("n1")
    c.rename("n2", "none")
    model |= {"n1": None, "none": model["n2"], "n2": None}
    yield c, model
    c.put("n3", b"over it")
    c.put("n1", b"again", mode=0o600)
    model |= {"n3": b"over it", "n1": b"again"}
    yield c, model
    c.sync()
    yield c, model


@scenario
def drafts(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    c = opened(base, stack, "a")
    yield c, model
    c.append("n1", b"+")
    yield c, model | {"n1": b"11+"}
    c.write("two", 0, b"w")
    model |= {"n1": b"11+", "two": b"w" + TWO[1:]}
    yield c, model
    c.rename("n1", "none")
    model |= {"none": model["n1"], "n1": None}
    yield c, model
    c.delete("two")
    yield c, model | {"two": None}
    c.sync()
    yield c, model | {"two": None}


@scenario
def files_put_in_bulk(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    c = opened(base, stack, "a")
    yield c, model
    for turn in range(3):  # what is put in bulk is looked through by the call that comes next
        model |= {"none": b"%d" % turn, f"n{turn}": b"bulk", "empty": b""}
        c.put_many([("none", b"%d" % turn), (f"n{turn}", b"bulk"), ("empty", b"")])
        yield c, model
    c.delete("none")
    c.put_many([("other", b"")])
    yield c, model | {"none": None, "other": b""}


@scenario
def a_new_index(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    c = opened(base, stack, "a")
    yield c, model
    c.put("none", b"put")
    c.delete("n1")
    model |= {"none": b"put", "n1": None}
    yield c, model
    c.keep_mark({})  # writes BASE.idx
    c.put("n1", b"behind it")
    c.delete("none")
    yield c, {"n1": b"behind it", "none": None}
    yield c, model | {"n1": b"behind it", "none": None}


@scenario
def more_than_was_mapped(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    c = opened(base, stack, "a")
    yield c, model
    for i in range(5):
        model[f"large {i}"] = bytes([i]) * 3_000_000
        c.put(f"large {i}", bytes([i]) * 3_000_000)
        yield c, {"none": None, f"large {i}": model[f"large {i}"]}
    yield c, model


@scenario
def the_last_file_of_an_append_only_container_changes_in_place(
    base: Path, stack: ExitStack
) -> States:
    model = filled(base, ao=True)
    c = opened(base, stack, "a")
    c.put("a", b"1")
    yield c, model | {"a": b"1"}
    c.rename("a", "b")
    yield c, model | {"a": None, "b": b"1"}
    c.append("b", b"2")
    yield c, model | {"a": None, "b": b"12"}
    c.put("a", b"3")
    yield c, model | {"a": b"3", "b": b"12"}


# --- a reader ---


@scenario
def another_process_syncs(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    writer, c = opened(base, stack, "a"), opened(base, stack)
    yield c, model
    writer.put("none", b"put")
    writer.delete("n1")
    writer.rename("n2", "moved")
    yield c, model  # not synced
    writer.sync()
    model |= {"none": b"put", "n1": None, "moved": model["n2"], "n2": None}
    yield c, model
    writer.put_many([("none", b"bulk"), ("n1", b"bulk")])
    writer.sync()
    model |= {"none": b"bulk", "n1": b"bulk"}
    yield c, model
    writer.put("none", b"once more")
    writer.keep_mark({})  # syncs, and writes BASE.idx
    yield c, model | {"none": b"once more"}


@scenario
def a_frozen_reader_stays_where_it_is(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    writer, c = opened(base, stack, "a"), opened(base, stack)
    yield c, model
    c.freeze()
    yield c, model
    writer.put("none", b"put")
    writer.delete("n1")
    writer.put("n2", b"replaced")
    writer.sync()
    writer.sync()
    yield c, model
    c.follow()
    model |= {"none": b"put", "n1": None, "n2": b"replaced"}
    yield c, model
    writer.delete("none")
    writer.sync()
    yield c, model


@scenario
def older_inodes_that_are_not_marked(base: Path, stack: ExitStack) -> States:
    model = filled(base, havedups=True)
    writer, c = opened(base, stack, "a"), opened(base, stack)
    for turn in range(3):
        writer.put("n1", b"%d" % turn)
        writer.put_many([("n2", b"%d" % turn)])
        model |= {"n1": b"%d" % turn, "n2": b"%d" % turn}
        yield writer, model
        writer.sync()
        yield c, model
    writer.delete("n1")
    writer.sync()
    yield c, model | {"n1": None}


@scenario
def names_with_one_hash(base: Path, stack: ExitStack) -> States:
    model = filled(base)
    model |= {name: b"%d" % i if i % 3 else None for i, name in enumerate(ALIKE[:200])}
    with winkfs.open(base, "a") as c:
        c.put_many((name, data) for name, data in model.items() if name in ALIKE[:200] and data)
    yield opened(base, stack), model
    c = opened(base, stack, "a")
    c.put(ALIKE[0], b"put")
    c.delete(ALIKE[1])
    yield c, model | {ALIKE[0]: b"put", ALIKE[1]: None}


@scenario
def other_variants(base: Path, stack: ExitStack) -> States:
    for number, options in enumerate(({"classic": True}, {"htalgo": 3}, {"isz": 4096})):
        path = base.with_name(f"other{number}")
        model = filled(path, **options)
        yield opened(path, stack), model
        c = opened(path, stack, "a")
        c.put("none", b"put")
        yield c, model | {"none": b"put"}


@scenario
def compressed_content(base: Path, stack: ExitStack) -> States:
    pytest.importorskip("zstandard")
    model = filled(base, compress="zstd")
    model |= {f"text {i}": b"some text that becomes smaller %d " % i * 400 for i in range(60)}
    with winkfs.open(base, "a") as c:
        for name, data in model.items():
            if name[:4] == "text" and data:
                c.put(name, data)
    yield opened(base, stack), model


# --- damage ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_damaged_inode_is_no_missing_file(mode: str, base: Path) -> None:
    model = filled(base)
    with opening(base) as c:
        damaged = {name: c.store.index.lookup(name + b"/I0") for name in (b"n7", b"two")}
    for pos in damaged.values():
        flip(base.with_name("c.data"), pos + 30)
    with opening(base, mode) as c:
        for _ in range(2):
            for name in damaged:
                for ask in (c.read, c.stat, c.__contains__):
                    with pytest.raises(CorruptError):
                        ask(name)
            check(c, {name: data for name, data in model.items() if name not in ("n7", "two")})
        if mode == "a":
            c.abort()


def test_a_damaged_content_is_no_missing_file(base: Path) -> None:
    filled(base)
    data = base.with_name("c.data")
    flip(data, data.read_bytes().rindex(b"2" * 10))
    with opening(base) as c:
        for _ in range(2):
            with pytest.raises(CorruptError):
                c.read("two")
            assert "two" in c
            assert c.stat("two").size == len(TWO)


def test_a_live_file_that_is_marked_deleted_is_there(base: Path) -> None:
    """As in a copy of a container in use."""
    model = filled(base)
    with opening(base) as c:
        pos = c.store.index.lookup(b"n7/I0")
    flip(base.with_name("c.data"), pos)
    with opening(base) as c:
        check(c, model)


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_index_hides_no_file(page: int, base: Path) -> None:
    model = filled(base)
    path, at = path_of(base, ".idx"), 4096 * (1 + page)
    assert path.stat().st_size > at + 4096
    patch(path, at, bytes(4096))  # all of its cells are free
    with opening(base) as c:
        check(c, model)


def test_wrong_names_are_refused_whichever_way_is_asked(base: Path) -> None:
    filled(base)
    with opening(base) as c:
        for _ in range(2):
            for name in ("", "a\0b", b"", b"n1\0", "x" * 66_000):
                assert name not in c
                for ask in (c.read, c.stat):
                    with pytest.raises((ValueError, OSError)):
                        ask(name)
            assert 5 not in c
            for ask in (c.read, c.stat):
                with pytest.raises(TypeError):
                    ask(5)  # type: ignore[operator]
            assert Path("n1") in c
            assert c.stat(Path("n1")).size == 2
    for ask in (c.read, c.stat, c.__contains__):
        with pytest.raises(ValueError, match="closed"):
            ask("n1")
