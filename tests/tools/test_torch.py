"""PyTorch: its DataLoader, and torchdata's, over rows, samplers and streams. `make test-tools`
installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import documents_in, run_program

pytest.importorskip("torch", reason="not installed: make test-tools")
pytestmark = pytest.mark.in_memory
BEGIN = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset
import winkfs

def paths(batch):
    return [row["path"] for row in batch]

def sampler_of(rows, **options):
    return winkfs.Sampler(rows, 3, block=2, window=3, **options)
"""
LOAD = """
if __name__ == "__main__":
    for base in BASES:
        rows = winkfs.Rows(base)
        rows[0]  # the store is open when workers are forked
        whole = [paths(rows.__getitems__(batch)) for batch in sampler_of(rows)]
        options = {"num_workers": WORKERS, "multiprocessing_context": CONTEXT, "collate_fn": paths}
        for streams in (False, True):
            sampler = sampler_of(rows)
            stream = winkfs.Stream(rows, sampler)
            assert isinstance(stream, IterableDataset)
            loader = (DataLoader(stream, batch_size=3, **options) if streams else
                      DataLoader(rows, batch_sampler=sampler, **options))
            found = []
            for batch in sampler.over(loader):
                found.append(batch)
                if len(found) == 4:
                    state = json.loads(json.dumps(sampler.state_dict()))
            assert found == whole, (found, whole)
            again = sampler_of(rows)
            again.load_state_dict(state)
            rest = DataLoader(rows, batch_sampler=again, num_workers=1, collate_fn=paths)
            assert list(again.over(rest)) == whole[4:]
        plain = next(iter(DataLoader(rows, batch_size=2, num_workers=0)))
        assert plain["content"] == [row["content"] for row in rows[:2]]
        assert [row["path"] for row in Subset(rows, [5, 3])] == [rows[5]["path"], rows[3]["path"]]
    print("right")
"""
STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

def loader_of(rows, streams):
    sampler = sampler_of(rows)
    options = {"num_workers": WORKERS, "collate_fn": paths}
    if streams:
        return StatefulDataLoader(winkfs.Stream(rows, sampler), batch_size=3, **options), sampler
    return StatefulDataLoader(rows, batch_sampler=sampler, **options), sampler

if __name__ == "__main__":
    rows = winkfs.Rows(BASES[0])
    whole = [paths(rows.__getitems__(batch)) for batch in sampler_of(rows)]
    for streams in (False, True):
        for taken in (0, 1, 4, len(whole)):  # at the start, in the middle, before the end
            loader, _ = loader_of(rows, streams)
            batches = iter(loader)
            head = [next(batches) for _ in range(taken)]
            state = loader.state_dict()
            if not streams:
                state = json.loads(json.dumps(state))
            rest = list(batches)
            assert head + rest == whole
            again, _ = loader_of(rows, streams)
            again.load_state_dict(state)
            assert list(again) == rest, (streams, taken)
        loader, sampler = loader_of(rows, streams)
        first = list(loader)
        state = loader.state_dict()  # of an epoch that has ended
        sampler.set_epoch(1)
        second = list(loader)
        assert first != second and sorted(sum(first, [])) == sorted(sum(second, []))
        if not streams:
            again, _ = loader_of(rows, streams)
            again.load_state_dict(state)
            assert list(again) == second
    print("right")
"""


def settings(tmp_path: Path, workers: int, context: str | None) -> str:
    kinds = ("container", "data set")
    bases = [str(documents_in(tmp_path / f"a {kind}", kind)) for kind in kinds]
    return f"BASES, WORKERS, CONTEXT = {bases}, {workers}, {context!r}\n"


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), (1, "spawn"), (2, "forkserver")]
)
def test_loaders_have_the_order_of_the_sampler(
    tmp_path: Path, workers: int, context: str | None
) -> None:
    code = BEGIN + settings(tmp_path, workers, context) + LOAD
    assert run_program(code, tmp_path).split() == ["right"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    code = BEGIN + settings(tmp_path, workers, None) + STATEFUL
    assert run_program(code, tmp_path).split() == ["right"]


def test_ranks_of_torch_are_those_of_the_environment(tmp_path: Path) -> None:
    base = documents_in(tmp_path / "c", "container")
    code = f"""{BEGIN}
rows = winkfs.Rows({str(base)!r})
found = []
for rank in range(2):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    found += sum(sampler_of(rows), [])
print(json.dumps(sorted(found)))"""
    assert json.loads(run_program(code, tmp_path)) == list(range(20))
