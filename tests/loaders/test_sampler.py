"""Sampler: batches of all ranks, states, and what is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from samples import SMALL, data_set, epoch, numbered

import winkfs
from winkfs.loaders import Rows, Sampler, Stream

RANKS, WORKERS = (1, 2, 3, 8), (0, 1, 2, 5)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """501 rows of two stores, which do not divide by anything."""
    folder = tmp_path_factory.mktemp("stores")
    stores = [numbered(folder / "c", 300), data_set(folder / "set", 202)]
    yield Rows(stores, content=False)


def streamed(rows: Rows, workers: int, **options: Any) -> list[list[int]]:
    """Return the batches of a stream in the order in which a loader with workers has them."""
    sampler = Sampler(rows, **{**SMALL, **options})
    stream = Stream(rows, sampler, yields="batches")
    parts = [list(stream.part(worker, max(workers, 1))) for worker in range(max(workers, 1))]
    turns = zip_longest(*parts)
    return [[row["path"] for row in each] for turn in turns for each in turn if each is not None]


@pytest.mark.parametrize("shuffle", ["blocks", "full", None])
@pytest.mark.parametrize("ranks", RANKS)
def test_each_row_comes_once(rows: Rows, ranks: int, shuffle: Any) -> None:
    """On any number of ranks; and all of them together have the order of one."""
    whole = epoch(rows, shuffle=shuffle)
    parts = [epoch(rows, shuffle=shuffle, rank=rank, world=ranks) for rank in range(ranks)]
    turns = [batch for turn in zip_longest(*parts) for batch in turn if batch is not None]
    assert turns == whole
    assert sorted(number for batch in whole for number in batch) == list(range(501))
    assert list(map(len, whole)) == [7] * 71 + [4]


@pytest.mark.few
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("workers", WORKERS)
def test_a_stream_has_the_batches_of_its_rank(rows: Rows, ranks: int, workers: int) -> None:
    """Whatever the number of workers, a loader gets them in the same order."""
    for rank in {0, ranks - 1}:
        own = epoch(rows, rank=rank, world=ranks)
        found = streamed(rows, workers, rank=rank, world=ranks)
        assert found == [[rows[number]["path"] for number in batch] for batch in own]


@pytest.mark.few
@pytest.mark.parametrize("before", RANKS)
@pytest.mark.parametrize("after", RANKS)
def test_it_goes_on_with_other_ranks(rows: Rows, before: int, after: int) -> None:
    """And other batches: what is left of the epoch is the rest of the order."""
    whole = [number for batch in epoch(rows) for number in batch]
    for turns in (0, 1, 4, 8):
        for rank in {0, before - 1}:
            sampler = Sampler(rows, **SMALL, rank=rank, world=before)
            batches = iter(sampler)
            for _ in range(turns):
                next(batches)
            state = json.loads(json.dumps(sampler.state_dict()))
            assert state["seen"] == min(turns * before * 7, 501)
            left = list[list[list[int]]]()
            for other in range(after):
                again = Sampler(rows, **{**SMALL, "batch": 5}, rank=other, world=after)
                again.load_state_dict(state)
                count = len(again)
                left.append(list(again))
                assert len(left[-1]) == count
            turns_left = [batch for turn in zip_longest(*left) for batch in turn if batch]
            assert [n for batch in turns_left for n in batch] == whole[state["seen"] :]


# --- states: at the start, in the middle, at the end, of the next epoch ---


@pytest.mark.parametrize("taken", [0, 1, 36, 71, 72])
def test_a_state_goes_on_with_the_next_batch(rows: Rows, taken: int) -> None:
    sampler = Sampler(rows, **SMALL)
    batches = iter(sampler)
    head = [next(batches) for _ in range(taken)]
    state = sampler.state_dict()
    again = Sampler(rows, **SMALL)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert head + list(again) == epoch(rows)
    assert again.state_dict()["epoch"] == 1


def test_after_an_epoch_comes_the_next(rows: Rows) -> None:
    sampler = Sampler(rows, **SMALL)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(chain.from_iterable(second)) == list(range(501))
    again = Sampler(rows, **SMALL)
    again.set_epoch(1)
    assert list(again) == second
    state = again.state_dict()
    assert (state["epoch"], state["seen"]) == (2, 0)


def test_an_epoch_that_is_set_again_is_not_begun_again(rows: Rows) -> None:
    """A loop sets the epoch of a state that it has loaded."""
    sampler = Sampler(rows, **SMALL)
    sampler.set_epoch(3)
    batches = iter(sampler)
    next(batches)
    state = sampler.state_dict()
    again = Sampler(rows, **SMALL)
    again.load_state_dict(state)
    again.set_epoch(3)
    assert list(again) == list(batches)
    again.load_state_dict(state)
    again.set_epoch(4)
    assert len(again) == 72


def test_what_was_left_begins_anew(rows: Rows) -> None:
    sampler = Sampler(rows, **SMALL)
    next(iter(sampler))
    assert list(sampler) == epoch(rows)


def test_a_state_counts_what_the_loader_has_handed_out(rows: Rows) -> None:
    """Not what it asked for ahead."""
    sampler = Sampler(rows, **SMALL)
    ahead = list(Sampler(rows, **SMALL))

    def loader() -> Iterator[list[int]]:
        """Ask for all batches at once."""
        yield from list(sampler)

    for turn, batch in enumerate(sampler.over(loader())):
        assert batch == ahead[turn]
        assert sampler.state_dict()["seen"] == min(7 * turn + 7, 501)
    assert sampler.state_dict()["epoch"] == 1


def test_a_state_is_found_at_once(rows: Rows) -> None:
    """The work does not grow with the position: a rank of 10^12 rows goes on at any of them."""

    class Many(Rows):
        def __len__(self) -> int:
            return 10**12

    many = Many.__new__(Many)
    many.__dict__.update(rows.__dict__)
    many.weights = None
    for shuffle in ("blocks", "full"):
        sampler = Sampler(many, shuffle=shuffle, block=1 << 16)
        sampler.load_state_dict(sampler.state_dict() | {"seen": 10**12 - 1000})
        assert len(next(iter(sampler))) == 256


# --- ends ---


@pytest.mark.parametrize("ranks", RANKS)
def test_drop_last_and_pad_give_all_ranks_as_many(rows: Rows, ranks: int) -> None:
    whole = [number for batch in epoch(rows) for number in batch]
    for option, batches in (("drop_last", 71 // ranks), ("pad", -(-72 // ranks))):
        parts = [epoch(rows, rank=rank, world=ranks, **{option: True}) for rank in range(ranks)]
        assert [len(part) for part in parts] == [batches] * ranks
        assert {len(batch) for part in parts for batch in part} == {7}
        found = [number for turn in zip(*parts, strict=True) for batch in turn for number in batch]
        expected = (whole + whole)[: batches * ranks * 7]
        assert found == expected


def test_more_ranks_than_batches(tmp_path: Path) -> None:
    few = Rows(numbered(tmp_path / "c", 20))
    for options in ({}, {"drop_last": True}):
        with pytest.raises(ValueError, match=r"20 rows are \d batches of 7, and there are 4 ranks"):
            Sampler(few, 7, rank=0, world=4, **options)
    assert [len(epoch(few, rank=rank, world=4, pad=True)) for rank in range(4)] == [1] * 4


# --- several stores ---


def test_weights_repeat_rows_or_leave_some_out(tmp_path: Path) -> None:
    stores = [numbered(tmp_path / "a", 10), numbered(tmp_path / "b", 40)]
    rows = Rows(stores, weights=[2, 0.5])
    sampler = Sampler(rows, **SMALL)
    epochs = [sorted(chain.from_iterable(sampler)) for _ in range(2)]
    for numbers in epochs:
        assert [number for number in numbers if number < 10] == sorted([*range(10)] * 2)
        assert len(set(numbers)) == 30
    assert sorted({n for numbers in epochs for n in numbers}) == list(range(50))


# --- what is refused ---


def test_a_state_of_other_rows(rows: Rows, tmp_path: Path) -> None:
    sampler = Sampler(rows, **SMALL)
    state = sampler.state_dict()
    base = numbered(tmp_path / "c", 100)
    with pytest.raises(ValueError, match=r"the state is of other data .*strict=False"):
        Sampler(Rows(base), **SMALL).load_state_dict(state)
    some = Sampler(Rows(base, where="path < '00050'"), **SMALL)
    with pytest.raises(ValueError, match="another where"):
        some.load_state_dict(Sampler(Rows(base), **SMALL).state_dict())
    with pytest.raises(ValueError, match="another seed"):
        sampler.load_state_dict(Sampler(rows, **SMALL, seed=1).state_dict())
    some.load_state_dict(state | {"seen": 14}, strict=False)
    assert len(some) == 6


def test_a_state_of_another_generation(tmp_path: Path) -> None:
    base = data_set(tmp_path / "set", 30)
    state = Sampler(Rows(base), **SMALL).state_dict()
    with winkfs.open(base, "a") as made:
        made.put("one more", b"1")
    with pytest.raises(ValueError, match="other data"):
        Sampler(Rows(base), **SMALL).load_state_dict(state)
    Sampler(Rows(base, as_of=3), **SMALL).load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"version": 2}, [], "x"])
def test_no_state(rows: Rows, state: Any) -> None:
    with pytest.raises(ValueError, match="no state of a sampler"):
        Sampler(rows).load_state_dict(state)


@pytest.mark.parametrize(("options", "line"), [
    ({"batch": 0}, "batch must be 1 to"), ({"shuffle": "rows"}, "shuffle is 'blocks', 'full' or"),
    ({"block": 0}, "block must be"), ({"window": 0}, "window must be"),
    ({"rank": 1}, "rank and world go together"), ({"rank": 2, "world": 2}, "rank must be 0 to 1"),
    ({"drop_last": True, "pad": True}, "exclude each other"),
])  # fmt: skip
def test_wrong_arguments(rows: Rows, options: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Sampler(rows, **options)


def test_no_rows(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        rows = Rows(numbered(tmp_path / "c", 5), where="path = 'x'")
    assert len(rows) == 0
    assert list(rows) == []
    with pytest.raises(ValueError, match="there are no rows: no file is path = 'x'"):
        Sampler(rows)


def test_ranks_of_the_environment(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = Sampler(rows, 7)
    assert (sampler.rank, sampler.world) == (1, 3)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK is 'first' in the environment"):
        Sampler(rows)
