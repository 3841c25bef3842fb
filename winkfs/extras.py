"""Packages that come with an extra of winkfs: which one, and what a message about it says to do."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from winkfs.errors import Refusal

EXTRAS: Final = {
    "pyspark": "pipeline", "pyspark_winkfs": "pipeline", "py4j": "pipeline", "pyarrow": "pipeline",
    "pandas": "pipeline", "fastwarc": "pipeline", "matplotlib": "pipeline",
    "zstandard": "compress",
}  # fmt: skip


def advice(package: str | None) -> str | None:
    """Return what to do about a package that is missing; None: it comes with no extra."""
    extra = EXTRAS.get((package or "").partition(".")[0])
    return extra and f"needs winkfs[{extra}]: pip install 'winkfs[{extra}]'"


def need(package: str, what: str) -> Any:
    """Import a package of an extra for something -> the module.

    raises  Refusal, which names the extra
    """
    try:
        return import_module(package)
    except ImportError:
        raise Refusal(f"{what} {advice(package)}") from None
