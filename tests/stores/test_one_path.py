"""One path is one store: each kind is refused where another one is, and nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_kinds import KINDS

import winkfs
import winkfs.dataset
from winkfs.errors import Refusal
from winkfs.stores import kinds

pytestmark = pytest.mark.in_memory


def marked(name: str) -> Callable[[str], object]:
    """A folder that is a store because of a record; only jobs make such."""

    def make(path: str) -> None:
        os.mkdir(path)
        Path(path, name).write_text("{}")

    return make


MAKE: dict[str, Callable[[str], object]] = {
    "container": lambda path: winkfs.create(path).close(),
    "data set": lambda path: winkfs.dataset.create(path).close(),
    "queue": KINDS["queue"].create,
    "message store": KINDS["messages"].create,
    "log store": KINDS["log"].create,
    "ring buffer": KINDS["ring"].create,
    "digest set": marked("digests.json"),
    "order": marked("order.json"),
}
MADE_BY_JOBS = {"digest set", "order"}


def picture(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_the_table_has_all_kinds() -> None:
    kinds.kinds_with("open")
    assert set(MAKE) == set(kinds._kinds)


@pytest.mark.few
@pytest.mark.parametrize("new", [kind for kind in MAKE if kind not in MADE_BY_JOBS])
@pytest.mark.parametrize("there", MAKE)
def test_a_second_store_at_a_path_is_refused(there: str, new: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    MAKE[there](path)
    before = picture(tmp_path)
    if there == new:
        if there == "data set":  # create opens it
            MAKE[new](path)
        else:
            with pytest.raises(Refusal):
                MAKE[new](path)
    else:
        with pytest.raises(Refusal) as refused:
            MAKE[new](path)
        assert path in str(refused.value) and "\n" not in str(refused.value)
    assert picture(tmp_path) == before
    assert kinds.kind_of(path)[0].name == there
