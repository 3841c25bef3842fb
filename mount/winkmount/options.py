"""Mount options: the `-o a,b=c` of a person or of fstab."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

SYNC_EVERY: Final = 5.0  # seconds
_FLAGS: Final = ("ro", "rw", "allow_other", "default_permissions")
_NUMBERS: Final = {"uid": 10, "gid": 10, "umask": 8}  # option -> base
KNOWN: Final = ("ro", "allow_other", "default_permissions", "uid=", "gid=", "umask=", "sync_every=")


@dataclass(slots=True)
class Options:
    """What -o said.

    sync_every  seconds between background syncs while something changes
    fuse        options that libfuse takes as they are: name -> value, True for a flag
    """

    ro: bool = False
    cache: str = "kernel"
    follow: bool = False
    sync_every: float = SYNC_EVERY
    fuse: dict[str, str | bool] = field(default_factory=dict)


def parse(texts: Iterable[str]) -> Options:
    """Read -o arguments, each a comma-separated list. Raises ValueError: unknown or no number."""
    options = Options()
    for item in ",".join(texts).split(","):
        if item:
            _take(options, item)
    if "allow_other" in options.fuse:
        options.fuse["default_permissions"] = True  # without it FUSE checks nothing for anybody
    return options


def _take(options: Options, item: str) -> None:
    name, equals, value = item.partition("=")
    if not equals and name in _FLAGS:
        if name in ("ro", "rw"):
            options.ro = name == "ro"
        else:
            options.fuse[name] = True
    elif name in _NUMBERS and equals:
        number = _number(item, value, _NUMBERS[name])
        options.fuse[name] = f"{number:o}" if name == "umask" else str(number)
    elif name == "sync_every" and equals:
        try:
            options.sync_every = float(value)
        except ValueError:
            raise ValueError(f"{item}: {value!r} is not a number of seconds") from None
        if not options.sync_every > 0:
            raise ValueError(f"{item}: must be more than 0 seconds")
    else:
        raise ValueError(f"unknown mount option {item!r}: known are {', '.join(KNOWN)}")


def _number(item: str, value: str, base: int) -> int:
    if not value.isascii() or not value.isdigit():  # int() would take signs and underscores
        raise ValueError(f"{item}: {value!r} is not a number")
    try:
        return int(value, base)
    except ValueError:
        raise ValueError(f"{item}: {value!r} is not an octal number") from None
