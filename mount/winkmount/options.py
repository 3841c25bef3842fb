"""Mount options: the `-o a,b=c` of a person, of mount(8), fstab or systemd."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

SYNC_EVERY: Final = 5.0  # seconds
SPIN: Final = 100  # microseconds
MOST_SPIN: Final = 10_000
TIMEOUT: Final = 600  # seconds
LEAST_TIMEOUT: Final = 15  # the kernel takes less for as much
MOST_TIMEOUT: Final = 65_535
READ_TIMEOUT: Final = 60  # seconds
MOST_READ_TIMEOUT: Final = 3600
LONGEST: Final = 86_400.0  # seconds; a thread cannot wait for any time
CACHES: Final = ("kernel", "none")
KNOWN: Final = (
    "ro, rw, allow_other, default_permissions, uid=, gid=, umask=, sync_every=, cache=, follow, "
    "as_of=, timedir, spin=, timeout=, read_timeout=, noexec, sync"
)
_OURS: Final = ("follow", "timedir")  # fields of Options
_LIBFUSE: Final = ("allow_other", "default_permissions", "noexec", "sync")
_WHOLE: Final = {
    "spin": (0, MOST_SPIN, "microseconds"),
    "timeout": (LEAST_TIMEOUT, MOST_TIMEOUT, "seconds"),
    "read_timeout": (1, MOST_READ_TIMEOUT, "seconds"),
}
_NUMBERS: Final = {"uid": (10, 2**32 - 2), "gid": (10, 2**32 - 2), "umask": (8, 0o777)}
# for mount(8) and systemd, or what holds anyway: a mount is always nosuid and nodev, and keeps no
# access times
_IGNORED: Final = (
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
    "exec", "suid", "nosuid", "dev", "nodev", "async", "dirsync", "atime", "noatime", "diratime",
    "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime",
    "nolazytime", "silent", "loud", "nonempty", "sloppy",
)  # fmt: skip
_IGNORED_STARTS: Final = ("x-", "X-", "comment=", "user=")


@dataclass(slots=True)
class Options:
    """The options of -o.

    sync_every  seconds between background syncs while something changes
    cache       "kernel": the kernel keeps what was read; "none": it keeps nothing
    follow      read only, and show what another process syncs
    as_of       data sets: the generation or time of what is shown, as it was written; "": the last
    timedir     append-only containers: a directory by time
    spin        microseconds for which the server asks for the next request before it sleeps
    timeout     seconds after which a request without an answer ends the mount; 0: it never does
    read_timeout  seconds after which a request fails that a store on a network does not answer; 0:
                  when its transport gives up
    fuse        options of FUSE itself: name -> value, True for a flag
    """

    ro: bool = False
    sync_every: float = SYNC_EVERY
    cache: str = "kernel"
    follow: bool = False
    as_of: str = ""
    timedir: bool = False
    spin: int = SPIN
    timeout: int = TIMEOUT
    read_timeout: int = READ_TIMEOUT
    fuse: dict[str, str | bool] = field(default_factory=dict)

    @property
    def patience(self) -> float:
        """Seconds in which a request of a Source on a network is answered or fails, so that the
        kernel never ends the mount for it; 0: any."""
        most = self.timeout / 2 or self.read_timeout
        return min(self.read_timeout, most)


def parse(texts: Iterable[str]) -> Options:
    """Read -o arguments, each a comma-separated list; the last word on an option counts.

    raises      ValueError: unknown (not with `sloppy`), no such value, or options that exclude
                each other
    """
    options = Options()
    items = [item for text in texts for item in text.split(",") if item]
    for item in items:
        if not _take(options, item) and "sloppy" not in items:
            raise ValueError(f"unknown mount option {item!r}: known are {KNOWN}")
    if "allow_other" in options.fuse:
        options.fuse["default_permissions"] = True  # without it FUSE checks no permissions
    if options.follow and not options.ro:
        raise ValueError("follow: only for a read-only mount: add ro")
    if options.follow and options.as_of:
        raise ValueError("follow and as_of exclude each other: what was then does not change")
    return options


def _take(options: Options, item: str) -> bool:
    """Set an option -> whether there is such a one. Raises ValueError."""
    name, equals, value = item.partition("=")
    if equals and name in _NUMBERS:
        options.fuse[name] = _number(item, value, *_NUMBERS[name])
    elif equals and name == "sync_every":
        options.sync_every = _seconds(item, value)
    elif equals and name in _WHOLE:
        setattr(options, name, _whole(item, value, *_WHOLE[name]))
    elif equals and name == "cache":
        if value not in CACHES:
            raise ValueError(f"{item}: must be one of {', '.join(CACHES)}")
        options.cache = value
    elif equals and name == "as_of":
        if not value:
            raise ValueError("as_of: a generation or a time must follow")
        options.as_of = value
    elif item in (*_NUMBERS, *_WHOLE, "sync_every", "cache", "as_of"):
        raise ValueError(f"{item}: a value must follow, as {item}=")
    elif item in ("ro", "rw"):
        options.ro = item == "ro"
    elif item in _OURS:
        setattr(options, item, True)
    elif item in _LIBFUSE:
        options.fuse[item] = True
    elif item == "remount":
        raise ValueError("remount: a mount cannot be changed: unmount it and mount it anew")
    else:
        return item in _IGNORED or item.startswith(_IGNORED_STARTS)
    return True


def _seconds(item: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(f"{item}: {value!r} is not a number of seconds") from None
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"{item}: must be more than 0 and at most {LONGEST:.0f} seconds")
    return seconds


def _whole(item: str, value: str, least: int, most: int, unit: str) -> int:
    """0 or a number of that range."""
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= 5 else -1
    if number and not least <= number <= most:
        numbers = f"{least} to {most} {unit}" + (", or 0 for never" if least else "")
        raise ValueError(f"{item}: must be {numbers}")
    return number


def _number(item: str, value: str, base: int, most: int) -> str:
    """Return a number as FUSE reads it."""
    if not value.isascii() or not value.isdigit():  # int() would take signs and underscores
        raise ValueError(f"{item}: {value!r} is not a number, 0 or more")
    try:
        number = int(value[:20], base)  # int() refuses thousands of digits with other words
    except ValueError:
        raise ValueError(f"{item}: {value!r} is not an octal number") from None
    if number > most:
        raise ValueError(f"{item}: must be at most {most:o}" if base == 8 else f"{item}: too large")
    return f"{number:o}" if base == 8 else str(number)
