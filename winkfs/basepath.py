"""BASE: how a container is named."""

from __future__ import annotations

import os


def base_of(path: str | os.PathLike[str]) -> str:
    """BASE of a container, given BASE or BASE.data."""
    text = os.fspath(path).removesuffix(".data")
    if text.endswith("/") or not text:
        raise ValueError(f"BASE is a path with a name at its end, not {text!r}")
    return text
