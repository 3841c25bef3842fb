"""Orders: pairs through files and back, groups that are not cut, records that are refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from orderings import SHARDS, make
from seam import disk_calls

from winkformats.errors import FormatError
from winkfs.errors import NoSuchFile, Refusal
from winkfs.results import orders
from winkfs.results import store as results
from winkfs.results.orders import Order, OrderedFiles, Range


def rows(*triples: tuple[int, int, int]) -> OrderedFiles:
    return OrderedFiles(*np.array(triples, np.int64).reshape(-1, 3).T)


def triples(order: Order, ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [tuple(row) for where in ranges for row in np.stack(order.read(where)).T.tolist()]


PARTS = ([(1, 4096, 0), (0, 1 << 39, 1), (0, 8192, 1), (1, 8192, 2)], [], [(0, 5, 0)])


def test_rows_come_back_in_order_and_empty_parts_go(tmp_path: Path) -> None:
    order = make(tmp_path / "o", *(rows(*part) for part in PARTS))
    assert (order.rows, order.groups, len(order.parts)) == (5, 4, 2)
    assert (order.root, order.generation, order.kind, order.key) == ("/corpus", 3, "sort", "path")
    assert order.shards == SHARDS
    assert triples(order, order.ranges(1000)) == [*PARTS[0], *PARTS[2]]
    assert order.ranges(1) == [*(Range(0, i, i + 1) for i in range(4)), Range(1, 0, 1)]
    assert triples(order, order.ranges(1)) == [*PARTS[0], *PARTS[2]]


def test_a_range_cuts_no_group_in_two(tmp_path: Path) -> None:
    sizes = [1, 40, 3, 3, 200, 1, 1]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    part = OrderedFiles(np.zeros_like(groups), np.arange(len(groups)), groups)
    order = make(tmp_path / "o", part, kind="group")
    for wanted in (1, 2, 5, 50, 1000):
        found = order.ranges(wanted)
        assert [where.start for where in found[1:]] == [where.stop for where in found[:-1]]
        assert (found[0].start, found[-1].stop) == (0, len(groups))
        seen = [set(order.read(where).group.tolist()) for where in found]
        assert all(a.isdisjoint(b) for a, b in itertools.pairwise(seen))
    assert len(order.ranges(1)) == len(sizes)


def test_a_later_order_replaces_the_first_and_its_leftovers(tmp_path: Path) -> None:
    make(tmp_path / "o", rows((0, 1, 0)))
    results.begin(tmp_path / "o", orders.NAME)  # a job that was killed
    order = make(tmp_path / "o", rows((0, 2, 0), (0, 3, 0)))
    assert order.rows == 2
    assert len(list((tmp_path / "o").iterdir())) == 2


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8388608 shards"):
        orders.pack(rows((1 << 23, 1, 0)))
    with pytest.raises(ValueError, match="groups in a part"):
        orders.pack(rows((0, 1, 1 << 40)))


def test_a_target_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    with pytest.raises(Refusal, match=r"'letter' but no order\.json"):
        results.begin(tmp_path / "home", orders.NAME)
    with pytest.raises(Refusal, match="is a file"):
        results.begin(tmp_path / "home" / "letter", orders.NAME)
    assert [entry.name for entry in (tmp_path / "home").iterdir()] == ["letter"]


def test_what_is_missing_damaged_or_newer_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"no order \(there is no order\.json"):
        orders.open(tmp_path / "o")
    order = make(tmp_path / "o", rows((0, 1, 0)))
    path = tmp_path / "o" / "order.json"
    good = json.loads(path.read_text())
    del good["xxh3"]
    (order.folder / "order.json").unlink()  # the copy
    for wrong, message in (
        ("{", "make it anew"), ("[]", "make it anew"), (json.dumps(good | {"job": "../x"}), "anew"),
        (json.dumps(good | {"version": 2}), "reads version 1"),
        (json.dumps({k: v for k, v in good.items() if k != "parts"}), "lacks 'parts'"),
    ):  # fmt: skip
        path.write_text(wrong)
        with pytest.raises(FormatError, match=message):
            orders.open(tmp_path / "o")
    path.write_text(json.dumps(good | {"parts": [good["parts"][0] | {"rows": 2}]}))
    with pytest.raises(FormatError, match="not the part of this order"):
        orders.open(tmp_path / "o").read(Range(0, 0, 1))
    assert order.read(Range(0, 0, 1)).pos.tolist() == [1]


@pytest.mark.slow
def test_a_flipped_bit_of_a_part_is_never_handed_out(tmp_path: Path) -> None:
    given = rows(*[(i % 2, 4096 + 8 * i, i // 3) for i in range(300)])
    order = make(tmp_path / "o", given)
    (path,) = order.folder.glob("*.perm")
    raw = path.read_bytes()
    for at in [*range(0, 512, 5), *range(512, 4096, 512), *range(4096, len(raw), 61)]:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        try:
            found = order.read(Range(0, 10, 200))
        except FormatError as error:
            assert path.name in str(error)
            continue
        for mine, theirs in zip(found, given, strict=True):
            assert mine.tolist() == theirs[10:200].tolist(), at


def test_a_part_is_durable_before_it_is_handed_on(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.perm"
    with disk_calls() as calls:
        orders.write_part(path, [rows(*PARTS[0])], 7)
    verbs = [call.verb for call in calls if call.path == str(path)]
    assert "write" in verbs and "sync" in verbs
    assert "write" not in verbs[verbs.index("sync") :]
