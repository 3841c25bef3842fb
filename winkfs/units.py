"""Units that options, times and files are given in."""

from __future__ import annotations

from typing import Final

NANO: Final = 1_000_000_000  # nanoseconds of a second
MICRO: Final = 1_000  # nanoseconds of a microsecond
BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
