"""Manifests and records of results that were forged: nothing they say leads out of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_sets
import numpy as np
import orderings
import pytest
import stored
from data_sets import root as root

import winkfs
from winkformats.errors import FormatError
from winkfs import digests
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.records import Manifest
from winkfs.results import orders
from winkfs.results.orders import OrderedFiles


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A container beside the data set."""
    stored.make(tmp_path / "victim", {"secret": b"of somebody else"})
    return tmp_path / "victim.data"


ELSEWHERE = [
    "../victim", "/etc/passwd", "job/../../victim", "job/..", "./victim", "job//a", "job/a/", "a",
    "job/a\0b", "job/a\n", "_pending/a", "job/_a", "job/a/b", "", 7, None,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", ELSEWHERE)
def test_path_that_leads_out_of_the_data_set_is_refused(root: str, victim: Path, path: Any) -> None:
    data_sets.add(root, {"a": b"1"})

    def added(values: Any) -> None:
        values["added"][0]["path"] = path
        values.pop("checkpoint", None)

    def removed(values: Any) -> None:
        values["removed"] = [path]
        values.pop("checkpoint", None)

    def checkpoint(values: Any) -> None:
        values["checkpoint"] = {"shards": values["added"], "streams": {}}
        values["added"] = []
        values["checkpoint"]["shards"][0]["path"] = path

    whole = Path(f"{root}/_winkfs/{1:020}.json").read_bytes()
    for change in (added, removed, checkpoint):
        Path(f"{root}/_winkfs/{1:020}.json").write_bytes(whole)
        data_sets.forge(root, 1, change)
        with pytest.raises(FormatError, match="manifest"):
            winkfs.open(root, "a")
        with pytest.raises(FormatError, match="manifest"):
            vacuum(root, older_than=0)
    assert victim.exists()


# record of a manifest -> where it is, fields with values of which none can be
RECORDS: dict[str, Callable[[Any], Any]] = {
    "manifest": lambda values: values,
    "shard": lambda values: values["added"][0],
}
NONSENSE: dict[str, list[tuple[str, Any]]] = {
    "manifest": [
        ("generation", "1"), ("time_ns", None), ("oldest", 2), ("oldest", -1), ("job", "../x"),
        ("job", 3), ("operation", 3), ("removed", "abc"), ("removed", 3), ("streams", []),
        ("streams", {"q": "1"}), ("metrics", None), ("added", [{}]), ("added", {"a": 1}),
        ("checkpoint", {"shards": [], "streams": {"q": [1]}}), ("checkpoint", {"shards": []}),
        ("checkpoint", 3),
    ],
    "shard": [
        ("contid", "1"), ("size", 1.5), ("files", None), ("ao", 1), ("mtime_min", "x"),
        ("first", 7), ("last", "\ud900"), ("rank", [1]), ("rank", ["a", 2]), ("rank", 3),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "field", "value"), [(of, *case) for of, cases in NONSENSE.items() for case in cases]
)
def test_field_of_a_record_that_is_nonsense_is_a_format_error(
    root: str, of: str, field: str, value: Any
) -> None:
    data_sets.add(root, {"a": b"1"})
    data_sets.forge(root, 1, lambda values: RECORDS[of](values).update({field: value}))
    with pytest.raises(FormatError, match="manifest"):
        winkfs.open(root, "a")


def test_manifest_nested_without_end_is_a_format_error() -> None:
    text = b'{"a":' + b"[" * 100_000
    with pytest.raises(FormatError, match="manifest"):
        Manifest.decode(data_sets.signed(text), file="x")


# --- results ---


def test_record_of_a_result_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    orderings.make(tmp_path / "o", OrderedFiles(*np.zeros((3, 1), np.int64)))
    path = tmp_path / "o" / "order.json"
    good = json.loads(path.read_text())
    del good["xxh3"]  # or the copy would be read
    assert orders.open(tmp_path / "o").rows == 1
    files = ("../x.perm", "/etc/passwd", "part-00000.perm/..", "x", "", 3, None)
    wrong = [("parts", "file", file) for file in files]
    wrong += [("shards", "path", name) for name in ("../x", "/x", "a//b", "a/../../b", "a\0b", 3)]
    wrong += [("shards", field, "x") for field in ("contid", "size")]
    for table, field, value in wrong:
        path.write_text(json.dumps(good | {table: [good[table][0] | {field: value}]}))
        with pytest.raises(FormatError, match="make it anew"):
            orders.open(tmp_path / "o")


@pytest.mark.parametrize("name", ["digests", "order"])
@pytest.mark.parametrize("text", [b"\xff{}", b"[" * 100_000, b'{"job": 3}', b'"x"', b"\x00"])
def test_record_of_a_result_that_is_damaged_is_a_format_error(
    tmp_path: Path, name: str, text: bytes
) -> None:
    (tmp_path / f"{name}.json").write_bytes(text)
    with pytest.raises(FormatError, match="make it anew"):
        (digests if name == "digests" else orders).open(tmp_path)
