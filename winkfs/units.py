"""Sizes and times as people write them, the nanoseconds that a file can have, and the check of
contents and numbers that are given as arguments; values of columns as JSON. The one place for each.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from operator import index
from typing import Any, Final

NANO: Final = 1_000_000_000  # nanoseconds of a second
MICRO: Final = 1_000  # nanoseconds of a microsecond
LAST: Final = (1 << 63) - 1  # nanoseconds: a time is an int64
FAR_NS: Final = 1 << 80  # nanoseconds: after any time of a file
CLAMPED: Final = "its time is not in the years 1677 to 2262: the nearest one in them is stored"
NAMED: Final = 3  # clamped files that are named in a message
BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
LETTERS: Final = "KMGTPE"  # of powers of 1024, from 1024 on
SIZE: Final = r"(\d+)(?:\.(\d+))?\s*([kmgt]?)(?:i?b)?"
DURATION: Final = r"(\d+)(?:\.(\d+))?\s*([smhdw]?)"
NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
"""Expressions that few programs need: they are compiled at their first use."""
FAR: Final = 10**40  # seconds: a later time becomes this one
FAR_SPAN: Final = 9_000_000_000  # seconds, 285 years: a longer span becomes this one


# --- sizes and durations ---


def parse_size(text: str) -> int | None:
    """ "4096", "64k", "1.5G", "2 MiB" -> bytes (powers of 1024, rounded down), or None."""
    return _quantity(text, SIZE, BYTES)


def parse_duration(text: str) -> int | None:
    """ "90", "90m", "36h", "7d", "2w" -> seconds, rounded down, or None."""
    return _quantity(text, DURATION, SECONDS)


def _quantity(text: str, form: str, units: Mapping[str, int]) -> int | None:
    found = re.fullmatch(form, text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        return None
    whole, fraction, unit = found[1], found[2] or "", units[found[3].lower()]
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // scale


def size_text(size: float) -> str:
    """Return bytes as text: three digits and a unit."""
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError


def short_size(size: int) -> str:
    """Return bytes as `ls -h` and `du -h` print them: 512, 1.5K, 12M, rounded up."""
    if size < 1024:
        return str(size)
    unit = 1
    for letter in LETTERS:
        unit <<= 10
        tenths, whole = -(-size * 10 // unit), -(-size // unit)
        if tenths < 100:
            return f"{tenths // 10}.{tenths % 10}{letter}"
        if whole < 1024 or letter == LETTERS[-1]:
            return f"{whole}{letter}"
    raise AssertionError


# --- times ---


def parse_time(text: str, *, exponent: bool = False) -> int | None:
    """Parse seconds since the epoch (also negative, or with a fraction), or ISO 8601 ->
    nanoseconds, of any number of bits, or None.

    A number alone is always seconds: 20240101 is a day in 1970.
    exponent  whether 1e9 is a number, too
    """
    text = text.strip()
    found = re.fullmatch(NUMBER, text, re.IGNORECASE | re.ASCII)
    if found is None:
        return parse_iso(text)
    if found[1] and not exponent:
        return None
    from decimal import Decimal  # here, so that the command line starts faster

    seconds = Decimal(text)
    return int((min(max(seconds, Decimal(-FAR)), Decimal(FAR)) * NANO).to_integral_value())


def parse_iso(text: str) -> int | None:
    """Parse ISO 8601, in local time if it has no zone -> nanoseconds since the epoch, or None."""
    try:
        return moment_ns(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError, OSError):
        return None


def moment_ns(when: datetime) -> int:
    """Return a datetime as nanoseconds since the epoch; in local time if it has no zone, as
    `datetime.timestamp` takes it.

    raises  ValueError; OverflowError; OSError for a local time that the system cannot convert
    """
    below = when.microsecond * MICRO + getattr(when, "nanosecond", 0)  # pandas.Timestamp has these
    return math.floor(when.replace(microsecond=0).timestamp()) * NANO + below


def time_text(seconds: float | None) -> str | None:
    """Return ISO 8601 in UTC; None for None, and for a time outside the calendar."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


# --- times of files ---


Time = float | datetime
"""A time of a file: seconds since the epoch, or a datetime, in local time if it has no zone."""


def to_ns(mtime: Time | None) -> int | None:
    """Convert seconds, or a datetime, to the nearest nanosecond, of any number of bits.

    raises  TypeError; ValueError for NaN, infinity, and a datetime that is no time
    """
    if mtime is None or isinstance(mtime, int):
        return None if mtime is None else mtime * NANO
    try:
        seconds: float = mtime  # type: ignore[assignment]  # a datetime is no such number
        inside = math.isfinite(seconds)
    except TypeError:
        if isinstance(mtime, datetime):
            return _checked_moment(mtime)
        what = "a time is seconds since the epoch, or a datetime"
        raise TypeError(f"{what}, not {shown(mtime)}") from None
    if not inside:
        raise ValueError(f"{mtime} is no time")
    whole = math.floor(seconds)  # a float holds today's nanoseconds to the next 256 only
    return whole * NANO + round((seconds - whole) * NANO)


def _checked_moment(when: datetime) -> int:
    try:
        return moment_ns(when)
    except (ValueError, OverflowError, OSError, TypeError):
        raise ValueError(f"{shown(when)} is no time that can be converted") from None


def checked_ns(ns: int | None) -> int | None:
    """Return nanoseconds as an int, None for None.

    raises  TypeError; ValueError if they do not fit into 64 bits (the years 1677 to 2262)
    """
    if ns is None or (type(ns) is int and -LAST - 1 <= ns <= LAST):
        return ns
    number = as_int(ns, "a time in nanoseconds")
    if not -LAST - 1 <= number <= LAST:
        what = f"mtime of {shown(ns)} ns does not fit into 64 bits (the years 1677 to 2262)"
        raise ValueError(what)
    return number


class Clamped:
    """Files whose time was clamped: their number, and the names of the first NAMED."""

    __slots__ = ("names", "number")

    def __init__(self) -> None:
        self.number = 0
        self.names: list[str] = []

    def nearest(self, ns: int | None, name: str | bytes | os.PathLike[str]) -> int | None:
        """Return the time nearest to this one that a file can have; count it if it differs.

        raises  TypeError if it is not an int
        """
        if ns is None or (type(ns) is int and -LAST - 1 <= ns <= LAST):
            return ns
        found = as_int(ns, "a time in nanoseconds")
        if (nearest := nearest_ns(found)) != found:
            self.add(1, [os.fsdecode(name)])
        return nearest

    def add(self, number: int, names: Iterable[str]) -> None:
        self.number += number
        self.names = [*self.names, *names][:NAMED]

    def line(self) -> str:
        """Return the line about them; "": there are none."""
        more = self.number - len(self.names)
        names = ", ".join(self.names) + (f" and {more:,} more" if more else "")
        return f"{names}: {CLAMPED}" if self.number else ""


def nearest_ns(ns: int) -> int:
    """Return the time nearest to this one that a file can have, as other file systems do."""
    return min(max(ns, -LAST - 1), LAST)


# --- arguments ---


def as_content(data: Any, what: str = "content") -> bytes:
    """Return the bytes of a buffer: bytearray, memoryview, array.array, mmap, an array of numpy.

    What is not contiguous is copied in C order, as `bytes` does it.
    raises  TypeError for anything else: bytes(5) is five NULs, and a number of numpy is a buffer,
            too
    """
    if type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(f"{what} is bytes, not {type(data).__name__}") from None
    with view:
        if view.ndim == 0 or "O" in view.format:
            one = type(data).__name__
            of = f"an {one} of Python objects" if view.ndim else f"a single {one}"
            raise TypeError(f"{what} is bytes, not {of}")
        return view.tobytes()


def byte_count(data: Any) -> int:
    """Return the bytes that `as_content` makes of data, or its length, if it has just that."""
    if isinstance(data, bytes | bytearray):
        return len(data)
    try:
        with memoryview(data) as view:
            return view.nbytes
    except (TypeError, ValueError, BufferError):
        return len(data)


def as_int(number: Any, what: str, least: int | None = None, most: int | None = None) -> int:
    """Return an int, also from one of numpy.

    raises  TypeError, also for a bool; ValueError below `least`, or outside `least` to `most`
    """
    if type(number) is int:
        found = number
    elif isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{what} must be an int, not {type(number).__name__}")
    else:
        found = index(number)
    low = least is not None and found < least
    if low or (most is not None and found > most):
        range_ = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{what} must be {range_}, not {shown(found)}")
    return found


def shown(value: object) -> str:
    """Return how an error shows a value: at most 60 characters of it, or its type."""
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits; an object that has no text
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def span_ns(seconds: Any, what: str, *, zero: bool = True) -> int:
    """Convert a time span in seconds to nanoseconds, at most LAST.

    zero    whether it may be 0
    raises  TypeError if it is not a number, or a bool; ValueError for NaN, infinity, and below 0
    """
    if type(seconds) not in (int, float):
        from numbers import Real  # here: each start of the command would import it

        if type(seconds) is bool or not isinstance(seconds, Real):
            raise TypeError(f"{what} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds < math.inf or not (zero or seconds):
        least = "0 seconds or more" if zero else "more than 0 seconds"
        raise ValueError(f"{what} must be {least}, not {seconds}")
    return int(min(seconds, FAR_SPAN) * NANO)


def as_timeout(seconds: Any) -> float:
    """Return the seconds to wait, at most; infinity: no limit. Raises TypeError; ValueError."""
    return math.inf if seconds == math.inf else span_ns(seconds, "timeout") / NANO


# --- values of columns ---


def column_json(value: Any) -> Any:
    """Return a value of a column for JSON: a date or time as ISO 8601, a decimal as text with all
    its digits, bytes as base64."""
    from base64 import b64encode  # late: most programs need none
    from decimal import Decimal

    if isinstance(value, date):  # or a datetime
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, list):
        return list(map(column_json, value))
    if isinstance(value, float) and value - value != 0:
        return str(value)  # JSON has no nan, inf
    return b64encode(value).decode() if isinstance(value, bytes) else value
