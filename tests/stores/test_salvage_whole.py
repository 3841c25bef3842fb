"""What salvage makes has its name when it is whole: after a failure, or a kill, nothing has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from store_kinds import KINDS

import winkfs
from winkfs.container.salvage import salvage as salvage_container
from winkfs.stores.logstore import LogStore
from winkfs.stores.logstore.records import salvage as salvage_log
from winkfs.stores.messagestore.records import salvage as salvage_messages

Salvage = Callable[..., object]


def container(path: str) -> None:
    with winkfs.create(path) as c:
        for i in range(20):
            c.put(f"{i}", os.urandom(100_000))


def store(kind: str, path: str) -> None:
    on = KINDS[kind](path, make=True)
    for _ in range(20):
        on.add(os.urandom(50_000))
    on.store.close()


SALVAGED = {
    "container": (container, salvage_container),
    "log": (partial(store, "log"), salvage_log),
    "messages": (partial(store, "messages"), salvage_messages),
}


@pytest.fixture(params=SALVAGED)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Salvage]:
    """A store and the function that salvages it."""
    make, salvage = SALVAGED[request.param]
    make(str(tmp_path / "old"))
    return str(tmp_path / "old"), salvage


def names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.startswith("new")}


def test_an_error_leaves_nothing(made: tuple[str, Salvage], tmp_path: Path) -> None:
    path, salvage = made
    before = names(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        salvage(path, str(tmp_path / "new"), progress=full)
    assert names(tmp_path) == before == set()


def test_a_kill_leaves_no_store_and_the_next_run_makes_it(
    made: tuple[str, Salvage], tmp_path: Path
) -> None:
    path, salvage = made
    log = salvage is salvage_log  # of which progress is made before there is a target
    child = os.fork()
    if not child:
        try:
            LogStore.close = lambda _: os._exit(9)  # type: ignore[assignment, method-assign]
            salvage(path, str(tmp_path / "new"), progress=None if log else lambda _: os._exit(9))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = names(tmp_path)
    assert left and all(name.startswith("new.partial") for name in left - {"new.lock"})
    salvage(path, str(tmp_path / "new"))
    assert not {name for name in names(tmp_path) if name.startswith("new.partial")}
    with winkfs.open(tmp_path / "new") as reader:
        assert len(list(reader.names())) == 20


def test_what_is_there_is_refused(made: tuple[str, Salvage], tmp_path: Path) -> None:
    path, salvage = made
    salvage(path, str(tmp_path / "new"))
    with pytest.raises(winkfs.WinkError, match=r"exists already|not empty|there already"):
        salvage(path, str(tmp_path / "new"))
