"""Wrong arguments of every public method of the stores' handles: one clear error, nothing lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from arguments import Call, attempt, one_wrong
from store_kinds import KINDS

import winkfs

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

BODIES = [b"body %d" % i * (i % 7 + 1) for i in range(60)]
OTHERS = 20  # of the first records, whose ids are among the wrong arguments: these may go
HANDLE = ("close", "abort", "after_fork", "keep", "leave")  # the last of the library


class Arguments(NamedTuple):
    """Good values of arguments, methods that are left out, how many are refused at least, and
    options of the handle."""

    good: dict[str, Any]
    skip: tuple[str, ...]
    refused: int
    options: Mapping[str, Any] = MappingProxyType({})


OF = {
    "queue": Arguments(
        {"id": 3, "payload": b"x", "messages": lambda: [b"1"], "count": 1, "key": "k",
         "name": "audit", "seconds": 1.0, "visible": 1.0},
        # what waits, what removes, what returns a handle
        ("stream", "compact", "dead_letters", "requeue"),
        300,
        {"window": 60},
    ),
    "ring": Arguments(
        {"body": b"x", "bodies": lambda: [b"1", b"2"]},
        ("pop", "pop_many", "clear"),
        100,
    ),
    "messages": Arguments(
        {"msg_id": b"fedcba9876543210", "body": b"x", "ids": lambda: [b"fedcba9876543210"],
         "messages": lambda: [(b"fedcba9876543210", b"x")]},
        ("beside", "candidates", "form", "place", "places", "rows"),  # of the library
        200,
    ),
    "log": Arguments(
        {"recid": 2, "recids": lambda: [2], "body": b"x", "bodies": lambda: [b"x"],
         "expected": b"y"},
        ("begin", "snapshot", "start_compaction", "create"),
        200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_one_clear_error_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    about = OF[kind]
    on = KINDS[kind](str(tmp_path / "s"), make=True, **about.options)
    added = {on.add(body): body for body in BODIES}
    kept = dict(list(added.items())[OTHERS:])
    on.sync()
    refused, method = 0, ""
    for call in one_wrong(on.store, about.good, HANDLE + about.skip):
        if call.method != method:
            assert kept.items() <= on.bodies().items()
            method = call.method
        if not _waits(call):
            refused += attempt(on.store, call) is not None
    assert refused > about.refused
    on.sync()
    on.store.close()
    assert winkfs.verify(on.path).problems == []
    again = KINDS[kind](on.path)
    assert kept.items() <= again.bodies().items()
    again.store.close()


def _waits(call: Call) -> bool:
    """Whether a call does what it is asked to: to wait."""
    return "timeout" in call.given
