"""What every test of a container can ask for: where one is going to be, and one that is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run as run  # a fixture
from container_checks import assert_sound
from container_checks import short_way as short_way  # a fixture

import winkfs
from winkfs import Container


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where a container is going to be; in memory if the test has that mark."""
    return tmp_path / "c"


@pytest.fixture
def c(base: Path) -> Iterator[Container]:
    with winkfs.create(base) as container:
        yield container


@pytest.fixture
def kept(base: Path) -> Iterator[Container]:
    """A writer of a container with the file "a", which has nothing else at the end of the test."""
    with winkfs.create(base) as container:
        container.put("a", b"kept")
        yield container
    assert_sound(base, {b"a": b"kept"})
