"""Units that options, times and files are given in."""

from __future__ import annotations

from typing import Final

NANO: Final = 1_000_000_000  # nanoseconds of a second
MICRO: Final = 1_000  # nanoseconds of a microsecond
BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: float) -> str:
    """Bytes for people: three digits and a unit."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError
