"""Sizes and durations as options."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from winkfs.units import BYTES

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.IGNORECASE)


class _Unit(click.ParamType[Any]):
    def __init__(self, name: str, form: re.Pattern[str], units: dict[str, int], example: str):
        self.name, self._form, self._units, self._example = name, form, units, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        match = self._form.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no {self.name}: {self._example}", param, ctx)
        return int(float(match[1]) * self._units[match[2].lower()])


SIZE: Final = _Unit("size", _SIZE, BYTES, "bytes, or 500M, 2G (powers of 1024)")
DURATION: Final = _Unit("duration", _DURATION, _SECONDS, "seconds, or 90m, 36h, 7d, 2w")
