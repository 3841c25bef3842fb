"""What is installed is what the sources have: version, packages, Pythons."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import winkfs
from scripts import versions
from winkformats.version import VERSION

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_what_is_installed_has_the_version_of_the_sources() -> None:
    assert metadata.version("winkfs") == VERSION == winkfs.__version__, (
        "installed earlier: run `make lint`"
    )


def test_every_folder_with_modules_is_an_installed_package(settings: dict[str, Any]) -> None:
    places = settings["tool"]["setuptools"]["package-dir"] | {"pyspark_winkfs": "pyspark_winkfs"}
    found = {
        ".".join((name, *module.parent.relative_to(ROOT / place).parts))
        for name, place in places.items()
        for module in ROOT.joinpath(place).rglob("*.py")
    }
    listed = settings["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(found)


def test_no_module_of_the_tests_hides_a_distribution() -> None:
    """Programs that tests start may have this folder in their path: as workers of Spark do."""
    modules = {module.stem for module in (ROOT / "tests").glob("*.py")}
    assert not modules & set(metadata.packages_distributions())


def test_the_pythons_that_are_tested_are_those_that_are_named(settings: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [one for one in settings["project"]["classifiers"] if one.startswith(prefix)]
    assert named == [prefix + one.removeprefix("3.") for one in versions.PYTHONS]
    assert settings["project"]["requires-python"] == f">={versions.PYTHONS[0]}"
    matrix = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r"\{ version: \"?([\w.]+)", matrix) == list(versions.NAMES)


def test_the_tools_of_development_have_one_version(settings: dict[str, Any]) -> None:
    pinned = re.findall(
        r"^([\w-]+)==[\w.]+$", (ROOT / "packaging/constraints-dev.txt").read_text(), re.MULTILINE
    )
    tools = {
        re.split(r"[\[>]", one)[0] for one in settings["project"]["optional-dependencies"]["dev"]
    }
    assert tools - {"winkfs"} <= set(pinned)
