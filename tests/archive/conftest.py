"""Fixtures of the tests of archives."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import base as base
from commands import run as run
from trees import place as place
from trees import small_disk as small_disk
from trees import tree as tree

from winkfs.archive.items import Note


@pytest.fixture
def notes() -> list[Note]:
    """What a pack or an unpack notes, where it is given `notes.append`."""
    return []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory, to be packed."""
    (tmp_path / "t").mkdir()
    return tmp_path / "t"
