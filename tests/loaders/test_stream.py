"""Stream: rows in the order of a sampler, read ahead, with a state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from samples import SMALL, numbered

from winkfs.loaders import Rows, Sampler, Stream


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    yield Rows(numbered(tmp_path_factory.mktemp("store") / "c", 100))


def made(rows: Rows, **options: Any) -> Stream:
    return Stream(rows, Sampler(rows, **SMALL), **options)


@pytest.mark.parametrize("workers", [0, 3])
def test_it_has_the_rows_of_the_sampler(rows: Rows, workers: int) -> None:
    expected = [rows[number] for batch in Sampler(rows, **SMALL) for number in batch]
    assert list(made(rows, workers=workers)) == expected
    batches = list(made(rows, workers=workers, yields="batches"))
    assert [row for batch in batches for row in batch] == expected
    assert list(map(len, batches)) == [7] * 14 + [2]


def test_arrow_batches(rows: Rows) -> None:
    pytest.importorskip("pyarrow")
    batches = list(made(rows, yields="arrow"))
    assert batches[0].schema.names == ["path", "content"]
    assert sum(batch.num_rows for batch in batches) == 100


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 99, 100])
def test_a_state_goes_on_with_the_next_row(rows: Rows, taken: int) -> None:
    """Also in a batch, after the last row, and in the next epoch."""
    for epochs in (0, 1):
        stream = made(rows)
        for _ in range(epochs):
            list(stream)
        left = iter(stream)
        list(islice(left, taken))
        state = json.loads(json.dumps(stream.state_dict()))
        again = made(rows)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert list(again) == list(left)
        assert list(again) == list(stream)  # the next epoch


def test_a_worker_goes_on_by_itself(rows: Rows) -> None:
    first = made(rows).part(1, 3)
    left = iter(first)
    head = list(islice(left, 10))
    state = json.loads(json.dumps(first.state_dict()))
    again = made(rows).part(1, 3)
    again.load_state_dict(state)
    assert list(again) == list(left)
    assert len(head) == 10
    other = made(rows).part(1, 2)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="that of worker 1 of 3, and this is worker 1 of 2"):
        next(iter(other))


def test_a_state_of_the_sampler_is_one_of_the_stream(rows: Rows) -> None:
    sampler = Sampler(rows, **SMALL)
    batches = iter(sampler)
    next(batches)
    stream = made(rows, yields="batches")
    stream.load_state_dict(sampler.state_dict())
    assert list(stream) == [rows.__getitems__(batch) for batch in batches]


def test_damage_in_a_thread_comes_to_the_reader(tmp_path: Path) -> None:
    base = numbered(tmp_path / "c", 100, 5000)
    rows = Rows(base)
    data = bytearray((path := Path(f"{base}.data")).read_bytes())
    at = data.find(b"   50" * 3) + 100
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="checksum"):
        list(made(rows, workers=2))


@pytest.mark.parametrize(("options", "line"), [
    ({"yields": "tensors"}, "yields is 'rows', 'batches' or 'arrow'"),
    ({"workers": -1}, "workers must be 0 to"),
])  # fmt: skip
def test_wrong_arguments(rows: Rows, options: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        made(rows, **options)


def test_a_sampler_of_other_rows(rows: Rows, tmp_path: Path) -> None:
    other = Rows(numbered(tmp_path / "c", 5))
    with pytest.raises(ValueError, match="the sampler of a stream is one of its rows"):
        Stream(rows, Sampler(other))
