"""What a hindex and a perm have in common: how they are made, refused, and damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
from drawn import examples
from flips import flipped
from hypothesis import given, settings
from hypothesis import strategies as st

from winkformats.disk.memory import MemoryStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.hindex.hindex import HIndex
from winkformats.kv.superblock import Superblock
from winkformats.perm import Perm

Use = Callable[[Any], object]
START = 512  # SBSIZE of the files that are damaged


class Form(NamedTuple):
    """A format. Options make a small file, which `fill` fills; `read` and `change` do everything
    that a reader and a writer can."""

    create: Callable[..., Any]
    open: Callable[..., Any]
    options: dict[str, int]
    fill: Use
    read: Use
    change: Use

    def image(self, **options: int) -> bytes:
        storage = MemoryStorage()
        with self.create(storage, **self.options, sbsize=START, **options) as made:
            self.fill(made)
        return bytes(storage.data)


def no_key(pointer: int) -> bytes:
    return b""


def fill_hindex(index: HIndex) -> None:
    for i in range(10):
        index.insert(b"%d" % i, 4096 + 16 * i)


def read_hindex(index: HIndex) -> None:
    list(index.iterate())
    index.hash(b"3")
    index.get(0)
    len(index)


def change_hindex(index: HIndex) -> None:
    index.insert(b"9", 1 << 40 | 6)  # no flipped bit makes HTFREE or HTDEL of it
    index.delete(b"3")
    index.insert(b"new", 1 << 41 | 6)
    index.close()


def read_perm(perm: Perm) -> None:
    list(perm.iterate())
    perm.get_many(list(range(min(len(perm), 5))))
    perm.hash_keys([b"a"])


def change_perm(perm: Perm) -> None:
    perm.append(1, 2)
    perm.group(lambda a, b: a[0] - b[0], budget=1)
    perm.close()


HINDEX = Form(
    partial(HIndex.create, key_of=no_key), partial(HIndex.open, key_of=no_key), {"htsize": 20},
    fill_hindex, read_hindex, change_hindex,
)  # fmt: skip
PERM = Form(
    Perm.create, Perm.open, {}, lambda perm: perm.append_many(range(20), [3, 1, 4, 1, 5] * 4),
    read_perm, change_perm,
)  # fmt: skip
each_form = pytest.mark.parametrize("form", [HINDEX, PERM], ids=["hindex", "perm"])


def use(form: Form, data: bytes) -> None:
    """Open and do everything; only FormatError may come out."""
    for writable in (False, True):
        try:
            found = form.open(MemoryStorage(data), writable)
        except FormatError:
            return
        form.read(found)
        if writable:
            form.change(found)


# --- made, and for reading only ---


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (HINDEX, {"htsize": 0}), (HINDEX, {"htsize": -1}), (HINDEX, {"cellsz": 0}),
        (HINDEX, {"cellsz": 5000}), (HINDEX, {"htalgo": 4}), (HINDEX, {"htfree": 1}),
        (HINDEX, {"purpose": "TOO LONG TEXT"}), (HINDEX, {"sbsize": 64}),
        (PERM, {"htsize": -1}), (PERM, {"htalgo": 7}), (PERM, {"purpose": "TOO LONG TEXT"}),
        (PERM, {"sbsize": 64}),
    ],
)  # fmt: skip
def test_create_refuses_what_makes_no_file(form: Form, wrong: dict[str, Any]) -> None:
    storage = MemoryStorage()
    with pytest.raises(ValueError):
        form.create(storage, **(form.options | wrong))
    assert storage.size() == 0


@each_form
def test_create_does_not_overwrite_a_file_with_content(form: Form) -> None:
    with pytest.raises(ValueError, match="empty"):
        form.create(MemoryStorage(b"precious"), **form.options)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        (HINDEX, lambda index: index.insert(b"a", 5000)),
        (HINDEX, lambda index: index.delete(b"a")), (HINDEX, lambda index: index.grow()),
        (HINDEX, lambda index: index.sync()),
        (PERM, lambda perm: perm.append(1, 2)), (PERM, lambda perm: perm.append_many([1], [2])),
        (PERM, lambda perm: perm.group()), (PERM, lambda perm: perm.sort(lambda a, b: 0)),
        (PERM, lambda perm: perm.sync()),
    ],
)  # fmt: skip
def test_a_reader_cannot_change_the_file(form: Form, change: Use) -> None:
    storage = MemoryStorage()
    form.create(storage, **form.options).close()
    found = form.open(storage)
    with pytest.raises(PermissionError):
        change(found)
    assert len(found) == 0


# --- damage ---


@pytest.mark.slow
@each_form
def test_every_truncation_is_a_format_error(form: Form) -> None:
    data = form.image()
    for length in range(len(data)):
        with pytest.raises(FormatError):
            form.open(MemoryStorage(data[:length]))


@pytest.mark.parametrize(
    ("form", "writable", "read"),
    [
        (HINDEX, True, lambda index: list(index.iterate())),
        (HINDEX, True, lambda index: index.hash(b"1")), (HINDEX, True, lambda index: index.grow()),
        (PERM, False, lambda perm: list(perm.iterate())), (PERM, False, lambda perm: perm.get(19)),
        (PERM, False, lambda perm: perm.get_many([1, 19])),
    ],
)  # fmt: skip
def test_a_file_that_shrinks_while_it_is_open_is_a_corrupt_error(
    form: Form, writable: bool, read: Use
) -> None:
    storage = MemoryStorage(form.image())
    found = form.open(storage, writable)
    storage.truncate(START + 28)
    with pytest.raises(CorruptError, match="cut short"):
        read(found)


@pytest.mark.few(1)
@pytest.mark.slow
@each_form
@settings(max_examples=examples(100), deadline=None)
@given(bit=st.integers(0, 8 * START - 1), sbcksum=st.booleans())
def test_a_flipped_superblock_bit_is_reported_or_harmless(
    form: Form, bit: int, sbcksum: bool
) -> None:
    data = flipped(form.image(sbcksum=sbcksum), bit)
    if sbcksum and b"SBCKSUM " in data:  # without its name nothing is checked
        with pytest.raises(FormatError):
            form.open(MemoryStorage(data))
    else:
        use(form, data)


@each_form
@settings(max_examples=examples(100), deadline=None)
@given(noise=st.binary(max_size=320))
def test_random_cells_are_harmless(form: Form, noise: bytes) -> None:
    data = bytearray(form.image())
    data[START : START + len(noise)] = noise
    use(form, bytes(data))


@each_form
@settings(max_examples=examples(100), deadline=None)
@given(noise=st.binary(max_size=600), magic=st.booleans())
def test_random_bytes_are_a_format_error(form: Form, noise: bytes, magic: bool) -> None:
    with pytest.raises(FormatError):
        form.open(MemoryStorage(b"#!WINKME" + noise if magic else noise))


def with_variables(
    form: Form, variables: Mapping[str, int | None], **options: int
) -> MemoryStorage:
    """A small file with other variables. None: without this one."""
    data = form.image(**options)
    block = Superblock.decode(data, file="test")
    for name, value in variables.items():
        if value is None:
            del block[name]
        else:
            block[name] = value
    return MemoryStorage(block.encode() + data[START:])


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        (HINDEX, "HTSIZE", 0), (HINDEX, "HTSIZE", -1), (HINDEX, "HTSIZE", 21),
        (HINDEX, "HTSIZE", 1 << 62), (HINDEX, "HTALGO", 9), (HINDEX, "CELLSZ", 0),
        (HINDEX, "CELLSZ", 1), (HINDEX, "CELLSZ", 1 << 40), (HINDEX, "HTDEL", 0),
        (HINDEX, "FORMAT", 0x10), (HINDEX, "FORMAT", 0x99), (HINDEX, "FILESIZE", 512),
        (HINDEX, "FILESIZE", 1 << 40), (HINDEX, "FILESIZE", -1), (HINDEX, "INCOMPAT", 128),
        (PERM, "PERMSIZE", 21), (PERM, "PERMSIZE", -1), (PERM, "PERMSIZE", 1 << 60),
        (PERM, "HTALGO", 9), (PERM, "HTSIZE", -1), (PERM, "FORMAT", 0x20), (PERM, "FILESIZE", 512),
        (PERM, "FILESIZE", 1 << 40), (PERM, "INCOMPAT", 128),
    ],
)  # fmt: skip
def test_a_superblock_that_makes_no_file_is_a_format_error(
    form: Form, name: str, value: int
) -> None:
    with pytest.raises(FormatError):
        form.open(with_variables(form, {name: value}))


@pytest.mark.parametrize(
    ("form", "name"), [(HINDEX, "HTSIZE"), (HINDEX, "HTALGO"), (PERM, "PERMSIZE")]
)
def test_a_missing_variable_is_named(form: Form, name: str) -> None:
    with pytest.raises(FormatError, match=name):
        form.open(with_variables(form, {name: None}))


def test_defaults_of_the_seed_where_variables_are_missing() -> None:
    missing = dict.fromkeys(("CELLSZ", "HTFREE", "HTDEL", "FILESIZE"))
    index = HINDEX.open(with_variables(HINDEX, missing, cellsz=1))
    assert len(list(index.iterate())) == 10
