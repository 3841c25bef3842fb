"""The index of a message store beside a dict."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from winkformats.messagestore.index import GONE, LAST, Index, MessageRows, Place, words_of

SOME = st.integers(0, 40).map(lambda number: (number * 0x9E3779B97F4A7C15 << 20).to_bytes(16))
PLACES = st.builds(Place, *[st.integers(0, (1 << 31) - 1)] * 3, st.integers(0, 5))


def rows_of(model: dict[bytes, Place]) -> MessageRows:
    columns = np.array(list(model.values()), np.int64).reshape(-1, 4).T
    return MessageRows(words_of(b"".join(model)), *columns)


class Beside(RuleBasedStateMachine):
    """Does the same to an index and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.model = Index(), dict[bytes, Place]()
        self.index._make(0)
        self.index._most = 20  # so that it has to grow, and to sweep

    @rule(one=SOME, place=PLACES)
    def put(self, one: bytes, place: Place) -> None:
        self.index.put(one, place)
        self.model[one] = place

    @rule(many=st.dictionaries(SOME, PLACES, max_size=30))
    def add_many(self, many: dict[bytes, Place]) -> None:
        new = {one: place for one, place in many.items() if one not in self.model}
        self.index.add_many(rows_of(new))
        self.model |= new

    @rule(data=st.data(), others=st.dictionaries(SOME, PLACES, max_size=30))
    def swap_many(self, data: st.DataObject, others: dict[bytes, Place]) -> None:
        """Some are where they are expected, others are not, or not at all."""
        keys = sorted(self.model)
        known = data.draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
        before = others | {one: self.model[one] for one in known}
        after = {one: place._replace(offset=place.offset ^ 1) for one, place in before.items()}
        wanted = []
        for one, place in before.items():
            there = self.model.get(one)
            same = there is not None and there[:3] == place[:3]
            wanted.append(there.refs if there is not None and same else 0)
            if there is not None and same:
                self.model[one] = after[one]._replace(refs=there.refs)
        assert self.index.swap_many(rows_of(before), rows_of(after)).tolist() == wanted

    @rule(one=SOME)
    def remove(self, one: bytes) -> None:
        if one in self.model:
            self.index.remove(one)
            del self.model[one]
        else:
            with pytest.raises(KeyError, match=one.hex()):
                self.index.remove(one)

    @rule(one=SOME, change=st.integers(-3, 3))
    def hold(self, one: bytes, change: int) -> None:
        place = self.model.get(one)
        if place is None:
            assert self.index.hold(one, change) is None
        elif place.refs + change < 0:
            with pytest.raises(ValueError, match="references"):
                self.index.hold(one, change)
        else:
            self.model[one] = place._replace(refs=place.refs + change)
            assert self.index.hold(one, change) == self.model[one]
            if not self.model[one].refs:
                del self.model[one]

    @rule(one=SOME, file=st.integers(0, LAST), offset=st.integers(0, LAST))
    def add(self, one: bytes, file: int, offset: int) -> None:
        assert self.index.add(one, file, offset, 21) == (one not in self.model)
        self.model.setdefault(one, Place(file, offset, 21, 1))

    @rule(ids=st.lists(SOME, max_size=50))
    def get_many(self, ids: list[bytes]) -> None:
        rows, there = self.index.get_many(words_of(b"".join(ids)))
        assert there.tolist() == [one in self.model for one in ids]
        wanted = [self.model[one] for one in ids if one in self.model]
        assert [Place(*row) for row in zip(*(c.tolist() for c in rows[1:]), strict=True)] == wanted

    @invariant()
    def agrees(self) -> None:
        assert len(self.index) == len(self.model)
        found = {}
        for rows in self.index.rows():
            for ids, *place in zip(*(c.tolist() for c in rows), strict=True):
                found[ids[0].to_bytes(8) + ids[1].to_bytes(8)] = Place(*place)
        assert found == self.model
        for number in range(42):
            one = (number * 0x9E3779B97F4A7C15 << 20).to_bytes(16)
            assert self.index.get(one) == self.model.get(one)


TestBeside = Beside.TestCase


def test_the_largest_numbers() -> None:
    """A file that is the last of all is not taken for a mark."""
    index = Index()
    place = Place((1 << 32) - 2, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1)
    index.put(bytes(16), place)
    index.put(b"\xff" * 16, place)
    assert (index.get(bytes(16)), index.get(b"\xff" * 16), len(index)) == (place, place, 2)
    assert place.file << 32 | place.offset < GONE


@pytest.mark.slow
def test_ids_that_a_sender_chose_are_found_fast() -> None:
    """All with the same low bits, or the same high ones. The factors are drawn for each index: of a
    hundred draws one is bad for one of these, of 21 those of the middle are good for all."""
    for step in (1, 1 << 64, 1 << 100, 0x10001 << 40):
        ids = [(i * step & (1 << 128) - 1).to_bytes(16) for i in range(20_000)]
        rows = rows_of(dict.fromkeys(ids, Place(1, 2, 3, 1)))
        longest = []
        for seed in range(21):
            with mock.patch("secrets.randbits", random.Random(seed).getrandbits):
                index = Index()
            index.add_many(rows)
            used = np.pad(index._table[:, 2] < GONE, 1).astype(np.int8)
            begins, ends = np.diff(used).nonzero()[0].reshape(-1, 2).T
            longest.append(int((ends - begins).max()))
        assert sorted(longest)[10] < 100, (step, longest)


def test_memory_of_a_message() -> None:
    index, rng = Index(), random.Random(1)
    for count in (50_000, 100_000, 200_000):
        new = words_of(rng.randbytes(16 * (count - len(index))))
        numbers = np.arange(len(new))
        index.add_many(MessageRows(new, numbers, numbers, numbers, numbers))
        assert len(index) == count
        assert index.memory <= 100 * count
