"""Page sums: a table behind FILESIZE that says which pages of a finished file are as written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import xxhash
from refusals import each_raises, refuses

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.storage import Storage
from winkformats.errors import DerivedDamage
from winkformats.hindex.hindex import HIndex
from winkformats.kv import pagesums
from winkformats.kv.pagesums import PAGE, PageSums
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import HINDEX, Superblock, read_superblock
from winkformats.perm import Perm

CONTID = (1 << 63) - 5


def made(size: int, contid: int = CONTID) -> tuple[MemoryStorage, Superblock]:
    block = Superblock.new(HINDEX, "TEST", {"SBCKSUM": 0, "CONTID": contid, "PAGESUMS": 0})
    block["FILESIZE"], block["PAGESUMS"] = size, pagesums.place(size)
    storage = MemoryStorage(block.encode(), "f")
    storage.write(4096, [bytes(i % 251 for i in range(size - 4096))])
    pagesums.write(storage, block)
    return storage, block


def loaded(storage: Storage, block: Superblock) -> PageSums:
    sums = PageSums.load(storage, block)
    assert sums is not None
    return sums


@pytest.mark.parametrize("size", [4096, 4097, 8191, 8192, 8193, 300 * 4096 + 5])
def test_what_was_written_is_right_and_each_flipped_byte_is_not(size: int) -> None:
    storage, block = made(size)
    sums = loaded(storage, block)
    sums.check_all()
    assert sums.whole and sums.bad_pages() == []
    for at in (4096, size // 2, size - 1):
        if not 4096 <= at < size:
            continue
        storage.data[at] ^= 64
        sums = loaded(storage, block)
        assert sums.bad_pages() == [at // PAGE * PAGE]
        spans = np.array([at]), np.array([at + 1])
        each_raises(
            (
                DerivedDamage,
                rf"f: .*at byte {at // PAGE * PAGE}\b",
                partial(sums.check, at, at + 1),
            ),
            (DerivedDamage, None, sums.check_all),
            (DerivedDamage, None, partial(sums.check_spans, *spans)),
        )
        storage.data[at] ^= 64


@pytest.mark.slow
def test_only_the_pages_asked_for_are_read_until_they_are_many() -> None:
    size = 1000 * PAGE
    storage, block = made(size)
    storage.data[999 * PAGE] ^= 1
    sums = loaded(storage, block)
    for page in range(100):
        sums.check(page * PAGE, page * PAGE + 1)
        sums.check(page * PAGE, page * PAGE + 1)
    sums.check_spans(np.arange(100) * PAGE, np.arange(100) * PAGE + PAGE)
    assert not sums.whole
    with pytest.raises(DerivedDamage, match=str(999 * PAGE)):
        for page in range(200):
            sums.check(page * PAGE, page * PAGE + 1)


def test_a_sum_holds_for_one_place_in_one_container() -> None:
    """Pages that were exchanged, or are of another container, have wrong sums."""
    storage, block = made(4 * PAGE)
    storage.data[PAGE : 2 * PAGE] = storage.data[2 * PAGE : 3 * PAGE] = bytes(PAGE)
    pagesums.write(storage, block)
    loaded(storage, block)
    table = np.frombuffer(bytes(storage.data[4 * PAGE :]), ">u8")
    assert len(table) == 4 + 1
    assert table[1] != table[2]
    with pytest.raises(DerivedDamage):
        PageSums.load(storage, Superblock(block | {"CONTID": 7}))


@pytest.mark.parametrize("at", [5, 3000, 3 * PAGE, 3 * PAGE + 8 * 3, 3 * PAGE + 8 * 4 - 1])
def test_a_wrong_table_or_superblock_is_damage_at_once(at: int) -> None:
    storage, block = made(3 * PAGE)
    storage.data[at] ^= 1
    with pytest.raises(DerivedDamage):
        PageSums.load(storage, block)
    storage.data[at] ^= 1
    storage.truncate(3 * PAGE + 8 * 4 - 1)
    with pytest.raises(DerivedDamage):
        PageSums.load(storage, block)


def test_a_superblock_of_a_replaced_file_is_damage() -> None:
    """With a right checksum of its own and the same shape."""
    storage, block = made(3 * PAGE)
    older = Superblock(block | {"CONTID": block["CONTID"], "FORMAT": HINDEX, "MYVAR": 1})
    storage.write(0, [older.encode()])
    with pytest.raises(DerivedDamage):
        PageSums.load(storage, read_superblock(storage))


def test_a_file_without_the_variable_has_no_sums() -> None:
    storage, block = made(3 * PAGE)
    assert PageSums.load(storage, {n: v for n, v in block.items() if n != "PAGESUMS"}) is None
    assert PageSums.load(storage, block | {"PAGESUMS": 0}) is None
    wrong = [block | {"PAGESUMS": place} for place in (8, -8, 3 * PAGE - 8, 1 << 62)]
    anything = {n: v for n, v in block.items() if n != "SBCKSUM"}  # it may say anything
    refuses(partial(PageSums.load, storage), [*wrong, anything], DerivedDamage)


def test_the_table_is_as_documented() -> None:
    storage, block = made(2 * PAGE + 3)
    at = block["PAGESUMS"]
    assert at == 2 * PAGE + 8
    raw = bytes(storage.data)
    ends = [PAGE, 2 * PAGE, 2 * PAGE + 3]
    for i, end in enumerate(ends):
        seed = (CONTID + PAGE * i) % 2**64
        wanted = xxhash.xxh3_64_digest(raw[PAGE * i : end], seed)
        assert raw[at + 8 * i : at + 8 * i + 8] == wanted
    own = xxhash.xxh3_64_digest(raw[at : at + 24], (CONTID + at) % 2**64)
    assert raw[at + 24 :] == own


@pytest.mark.parametrize(
    "change",
    [lambda index: index.insert(b"3", 103), lambda index: index.delete(b"3"),
     lambda index: index.grow(500)],
)  # fmt: skip
def test_a_change_of_a_hindex_drops_its_page_sums(change: Callable[[HIndex], object]) -> None:
    storage = MemoryStorage(name="f")
    names = {100 + i: b"%d" % i for i in range(5)}
    index = HIndex.create(storage, htsize=64, key_of=names.__getitem__)
    for pointer, name in names.items():
        index.insert(name, pointer)
    index.seal()
    loaded(index.storage, index.superblock)
    change(index)
    index.sync()
    assert read_superblock(storage)["PAGESUMS"] == 0


@pytest.mark.parametrize(
    "change", [lambda perm: perm.append(1, 1), lambda perm: perm.sort(key=lambda pair: pair[0])]
)
def test_a_change_of_a_perm_drops_its_page_sums(change: Callable[[Perm], object]) -> None:
    storage = MemoryStorage(name="f")
    perm = Perm.create(storage)
    perm.append_many([5, 3, 4], [1, 2, 3])
    perm.seal()
    loaded(perm.storage, perm.superblock)
    change(perm)
    perm.sync()
    assert read_superblock(storage)["PAGESUMS"] == 0


def test_an_entry_that_is_appended_drops_the_page_sums() -> None:
    storage = MemoryStorage(name="f")
    kv = KVSeq.create(storage, extra={"PAGESUMS": 5})
    kv.append(b"a", b"")
    kv.sync()
    assert read_superblock(storage)["PAGESUMS"] == 0
