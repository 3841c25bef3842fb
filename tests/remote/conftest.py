"""The cache of the tests is their own, and no proxy is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_proxy() -> Iterator[None]:
    """The servers of the tests are on this machine, whatever proxy its environment has."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        yield


@pytest.fixture(autouse=True)
def options_end_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What options set in the environment of a command is not there for the next test."""
    for name in ("WINKFS_SINGLE_WRITER", "WINKFS_CACHE_SIZE", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        if not os.environ[name]:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache."""
    monkeypatch.setenv("WINKFS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WINKFS_SINGLE_WRITER", "")  # what a command sets is undone after the test
    monkeypatch.delenv("WINKFS_SINGLE_WRITER")
    return tmp_path / "cache"
