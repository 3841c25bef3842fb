"""The cache of the tests is their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache."""
    monkeypatch.setenv("WINKFS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
