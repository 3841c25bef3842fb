"""One file of a store that is gone, damaged or older is reported: see lost_files.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lost_files import KINDS, WRONG, run

pytestmark = pytest.mark.slow
STATES = 1540  # of each kind: 20,020


@pytest.mark.few(7)
@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_missing_or_as_before_without_a_report(
    kind: str, every: Callable[[str], slice]
) -> None:
    states = run(kind, range(STATES)[every("lost files")])
    print(dict(states.count))
    assert not any(states.count[what] for what in WRONG), states.failures
