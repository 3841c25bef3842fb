"""Random system calls for model_operations.py."""

from __future__ import annotations

import fcntl
import inspect
import os
import random

from model_operations import UTIME_NOW, UTIME_OMIT, Operation, Twin

PLAIN = ["x", "y", "z", "p", "q", "p/x", "p/y", "p/s", "p/s/x", "p/s/y", "q/x", "q/s", "q/s/t"]
ODD = ["\xff\xfe", "p/\xfc \n", "n" * 255, "p/" + "\xe4" * 255, "n" * 256, "q/x/", "p/", "q/s/"]
ODD += ["p/.", "p/..", "./x", "p/s/../x", "", "x/y", "q//x", "p/" * 2040 + "x", ".fuse_hidden"]
TARGETS = ["x", "s", "p", "p/s", "q/s/t", "nowhere", "t" * 200, ""]
KEYS = ["user.a", "user.b", "user." + "k" * 200, "trusted.t"]
SLOTS = 6

WEIGHTS = {
    "open": 12, "close": 3, "pwrite": 10, "write": 6, "pread": 6, "read": 3, "lseek": 2,
    "ftruncate": 4, "fstat": 4, "fsync": 1, "fallocate": 4, "holes": 2, "mapped_read": 3,
    "mapped_write": 3, "fchmod": 1, "fchown": 1, "futimens": 2, "flock": 2, "lockf": 2, "copy": 2,
    "list_open": 2, "open_at": 2, "same_file": 3, "put": 6, "get": 4, "stat": 4, "truncate": 3,
    "unlink": 6, "mkdir": 4, "rmdir": 3, "rename": 9, "rename_flags": 1, "symlink": 2,
    "readlink": 2, "chmod": 2, "chown": 2, "utimens": 3, "setxattr": 3, "getxattr": 1,
    "removexattr": 1, "listxattr": 1, "list": 4, "link": 1, "mknod": 1, "access": 1, "umask": 1,
}  # fmt: skip


class Chooser:
    """Draws operations; `opened` are the slots with an open file."""

    def __init__(self, seed: int, names: list[str] | None = None) -> None:
        self.chance = random.Random(seed)
        self.names = names or PLAIN
        self._verbs, self._weights = list(WEIGHTS), list(WEIGHTS.values())
        self._slots: list[int] = []

    def next(self, opened: list[int]) -> Operation:
        self._slots = opened or [0]
        [verb] = self.chance.choices(self._verbs, self._weights)
        parameters = list(inspect.signature(getattr(Twin, verb)).parameters)[1:]
        return [verb, *[getattr(self, f"_{parameter}")() for parameter in parameters]]

    def _slot(self) -> int:
        return self.chance.randrange(SLOTS)

    def _opened(self) -> int:
        return self.chance.choice(self._slots)

    _second = _opened

    def _name(self) -> str:
        return self.chance.choice(ODD if self.chance.random() < 0.08 else self.names)

    _other = _name

    def _base(self) -> str:
        return self._name().rpartition("/")[2] or "."

    def _flags(self) -> int:
        flags = self.chance.choice([os.O_RDWR, os.O_RDWR, os.O_RDONLY, os.O_WRONLY])
        for flag, part in (
            (os.O_CREAT, 0.5), (os.O_EXCL, 0.1), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.15),
            (os.O_DIRECTORY, 0.1), (os.O_NOFOLLOW, 0.1), (os.O_DSYNC, 0.02),
        ):  # fmt: skip
            if self.chance.random() < part:
                flags |= flag
        if not flags & os.O_CREAT:
            flags &= ~os.O_EXCL  # alone it means nothing, or anything
        return flags

    def _mode(self) -> int:
        return self.chance.choice([0o644, 0o600, 0o755, 0o777, 0, 0o4755, 0o1777, 0o640])

    def _offset(self) -> int:
        at = self.chance.choice([0, 0, 1, 4095, 4096, 8192, 70_000, 131_072])
        return at + self.chance.choice([0, 0, 700, self.chance.randrange(5000)])

    _to = _offset

    def _size(self) -> int:
        return self.chance.choice([0, 1, 100, 4096, 5000, 140_000, self.chance.randrange(20_000)])

    def _data(self) -> list[int]:
        return [self.chance.randrange(10**6), self._size()]

    def _how(self) -> int:
        return self.chance.choice([0, 1, 2, 3, 0])  # of fallocate, and of setxattr

    def _whence(self) -> int:
        return self.chance.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])

    def _uid(self) -> int:
        return self.chance.choice([-1, 0, 1, 1000, 65534, 2**31])

    _gid = _uid

    def _time(self) -> list[int]:
        """tv_sec, tv_nsec"""
        choices = [[0, UTIME_NOW], [0, UTIME_OMIT], [-2, 999_999_999], [4_000_000_000, 1]]
        choices += [[10**9 + self.chance.randrange(10**6), 123_456_789], [5, 10**9]]
        return self.chance.choice(choices)

    def _lock(self) -> int:
        return self.chance.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN])

    def _follow(self) -> bool:
        return self.chance.random() < 0.5

    def _target(self) -> str:
        return self.chance.choice(TARGETS)

    def _key(self) -> str:
        return self.chance.choice(KEYS)
