"""The abstract tests of fsspec itself: all 137, on a container and on a data set.

Paths of winkfs have no leading /. At the root, fsspec's functions would take a path of one part for
the directory that it is in, as they do in its own DirFileSystem.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import winkfs
import winkfs.dataset

pytest.importorskip("fsspec")
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

pytestmark = [pytest.mark.in_memory, pytest.mark.slow, pytest.mark.few(4)]
MAKE: dict[str, Callable[[Path], Any]] = {
    "container": winkfs.create,
    "data set": winkfs.dataset.create,
}


class InContainer(abstract.AbstractFixtures):
    """A folder of a container."""

    kind, folder = "container", "folder"

    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[Any]:
        MAKE[self.kind](tmp_path / "store").close()
        with winkfs.fs(tmp_path / "store", "a") as fs:
            yield fs

    @pytest.fixture
    def fs_path(self, fs: Any) -> str:
        fs.makedirs(self.folder, exist_ok=True)
        return self.folder

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:  # older suites have one that pytest warns of
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join


class AtRoot(InContainer):
    folder = ""


class InDataSet(InContainer):
    """A folder of a data set, in which all calls of a test are one commit."""

    kind = "data set"

    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[Any]:
        MAKE[self.kind](tmp_path / "store").close()
        with winkfs.fs(tmp_path / "store", "a") as fs:
            fs.start_transaction()
            yield fs
            before = fs.reader.generation
            fs.end_transaction()
            assert fs.reader.generation == before + 1


class WithCommits(InContainer):
    """A folder of a data set, in which each call is a commit."""

    kind = "data set"


LONG = (AtRoot, WithCommits)  # `make test-tools` has them
for place in (InContainer, AtRoot, InDataSet, WithCommits):
    for suite in ("Copy", "Get", "Put", "Pipe", "Open"):
        name = f"Test{suite}{place.__name__}"
        tests = getattr(abstract, f"Abstract{suite}Tests")
        made = type(name, (tests, place), {"__module__": __name__})
        globals()[name] = pytest.mark.long(made) if place in LONG else made
