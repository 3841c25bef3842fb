"""The conftest.py of a folder with tests and no sources: what is tested must be installed."""

from __future__ import annotations

import importlib
import sysconfig
from pathlib import Path

import pytest

PACKAGES = ("winkfs", "winkmount", "winkformats", "winkformats._native")


def pytest_report_header() -> list[str]:
    return [f"under test: {importlib.import_module(name).__file__}" for name in PACKAGES]


def pytest_configure() -> None:
    place = Path(sysconfig.get_path("purelib"))
    for name in PACKAGES:
        path = importlib.import_module(name).__file__
        if path is None or not Path(path).is_relative_to(place):
            pytest.exit(f"{name} is not the installed one: {path}", returncode=1)
    native = importlib.import_module("winkformats.native")
    if native.code is None:
        pytest.exit("the compiled path is installed, and not used", returncode=1)
