"""A damaged sector anywhere costs no more than the files it hits, and is told: see damage.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from damage import WRONG, ContainerStore, Salvages, run

import winkfs

pytestmark = pytest.mark.slow

# Numbers of each kind, with and without derived files.
STATES = {"plain": 60, "chains": 30, "ao": 30, "data set": 25, "digest set": 30, "order": 30}
SOAK = 3750  # 20,000 states of all kinds


@pytest.mark.few(3)
@pytest.mark.soak
@pytest.mark.parametrize("derived", [True, False], ids=["whole", "without derived files"])
@pytest.mark.parametrize("kind", STATES)
def test_damage_is_reported_and_costs_only_what_it_hits(
    kind: str, derived: bool, seed: int, soak: bool
) -> None:
    """No wrong byte, size, time or name; nothing missing without a word; no other error."""
    states = run(kind, range(seed, seed + (SOAK if soak else STATES[kind])), derived=derived)
    unreadable = states.count.pop("unreadable", 0)
    assert not any(states.count[what] for what in WRONG), states.failures
    assert unreadable <= states.count["states"] / 1000, states.failures


@pytest.mark.few(1)
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["plain", "chains", "ao"])
def test_a_salvage_has_all_that_the_damage_did_not_hit(kind: str, seed: int, soak: bool) -> None:
    numbers = range(seed, seed + (SOAK if soak else 30))
    states = run(kind, numbers, derived=True, trials=Salvages)
    assert not states.failures
    assert states.count["states"] > 20


def test_a_flipped_bit_of_the_superblocks_costs_nothing(
    tmp_path: Path, every: Callable[[str], slice]
) -> None:
    store = ContainerStore(tmp_path)
    path = next(path for path in store.paths() if path.suffix == ".data")
    data = path.read_bytes()
    for bit in range(8 * 4096)[every("superblock bits")]:
        content = bytearray(data)
        content[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(content)
        with winkfs.open(store.base(tmp_path)) as container:
            found = {entry.name: entry.read() for entry in container.scan()}
            assert container.notes
        assert found == {name: value[0] for name, value in store.truth.items()}, bit
    winkfs.reindex(store.base(tmp_path))  # which writes it again
    with winkfs.open(store.base(tmp_path)) as container:
        assert container.notes == []
