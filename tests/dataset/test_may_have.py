"""Shards that a selection cannot have files in are found by their records, and are not opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_sets import commit

from winkfs.container.selection import Selection
from winkfs.container.where import parse
from winkfs.dataset.shard import Shard, may_have
from winkfs.registry import find_kind

SHARDS, EACH = 8, 10
MOMENT = 1_700_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shard s has the files d/<10 s> .. d/<10 s + 9>, a second each."""
    root = tmp_path_factory.mktemp("data") / "set"
    rows = [(f"d/{i:08d}", b"x" * i, MOMENT + i) for i in range(SHARDS * EACH)]
    parts = [rows[at : at + EACH] for at in range(0, len(rows), EACH)]
    commit(root, [lambda container, part=part: container.put_many(part) for part in parts])
    return root


def shards_of(root: Path) -> list[Shard]:
    found = find_kind(str(root))
    assert found is not None
    return list(found[0].function("shards", found[1])(found[1], None).shards)


NS = 10**9
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "prefix": ({"prefix": b"d/0000001"}, [1]),
    "prefix of all": ({"prefix": b"d/"}, list(range(SHARDS))),
    "prefix of none": ({"prefix": b"e"}, []),
    "paths": ({"paths": (b"d/00000079", b"a", b"d/00000012")}, [1, 7]),
    "paths between shards": ({"paths": (b"d/000000095",)}, []),
    "globs": ({"globs": ("d/0000002*", "e*")}, [2]),
    "glob without a start": ({"globs": ("*9",)}, list(range(SHARDS))),
    "since": ({"since": (MOMENT + 69) * NS}, [6, 7]),
    "until, exclusive": ({"until": (MOMENT + 20) * NS}, [0, 1]),
    "where path =": ({"where": "path = 'd/00000012'"}, [1]),
    "where path in": ({"where": "path in ('d/00000012', 'd/00000035')"}, [1, 2, 3]),
    "where path between": ({"where": "path > 'd/00000019' and path < 'd/00000030'"}, [1, 2, 3]),
    "where path like": ({"where": "path like 'd/0000003%'"}, [3]),
    "where not": ({"where": "not path = 'd/00000012'"}, list(range(SHARDS))),
    "where mtime": ({"where": "mtime < timestamp '2023-11-14T22:13:30Z'"}, [0]),
    "where or": ({"where": "path = 'd/00000012' or size = 3"}, list(range(SHARDS))),
}  # fmt: skip


def selection_of(given: dict[str, Any]) -> Selection:
    where = parse(given["where"]).bound({}) if "where" in given else None
    return Selection(**given | {"where": where})


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
def test_shards_are_chosen_by_their_records(what: str, root: Path) -> None:
    given, expected = CASES[what]
    assert np.flatnonzero(may_have(shards_of(root), selection_of(given))).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
def test_no_shard_with_a_selected_file_is_left_out(what: str, root: Path) -> None:
    from winkfs.container.select import select

    shards, chosen = shards_of(root), selection_of(CASES[what][0])
    having = [len(select(shard.base, chosen)) > 0 for shard in shards]
    assert not any(
        has and not may for has, may in zip(having, may_have(shards, chosen), strict=True)
    )


@pytest.mark.parametrize("columns", ["path,size,content", "path,size"])
@pytest.mark.parametrize("options", [
    {"prefix": "d/0000002"}, {"paths": json.dumps(["d/00000022"])}, {"glob": "d/0000002*"},
    {"where": "path = 'd/00000022'"}, {"mtimeTo": "2001-01-01"},
    {"prefix": "d/0000002", "orderBy": "path"},
])  # fmt: skip
def test_sparks_planner_opens_no_other_shard(
    options: dict[str, str], columns: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from winkfs.spark.reading.options import Options
    from winkfs.spark.reading.reader import partitions

    opened: list[str] = []
    plain = Shard.open

    def counting(self: Shard, **options: Any) -> Any:
        opened.append(self.base)
        return plain(self, **options)

    monkeypatch.setattr(Shard, "open", counting)
    asked = Options.of({"path": str(root), "columns": columns} | options)
    tasks = partitions(asked, contents="content" in columns)
    assert set(opened) <= {shards_of(root)[2].base}
    assert len(tasks) == ("mtimeTo" not in options)
