"""Errors of a format, raised for wrong bytes, and the base of all errors of winkfs."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn


class WinkError(Exception):
    """Base of all errors of winkfs: refusals, which are OSErrors, and wrong bytes, ValueErrors."""


class FormatError(WinkError, ValueError):
    """The bytes are not what the format allows, or need something this version does not know."""


class NewerFormat(FormatError):
    """The file needs an extension that this version does not know."""


class CorruptError(FormatError):
    """Damage at a known place of a file.

    what      the damage; file, offset: its place, offset in bytes
    expected  value that should be there, and found: the value that is; None: not known
    """

    def __init__(
        self, what: str, *, file: str, offset: int, expected: object = None, found: object = None
    ) -> None:
        text = f"{file}: {what} at byte {offset}"
        if expected is not None or found is not None:
            text += f": expected {expected}, found {found}"
        super().__init__(text)
        self.what, self.file, self.offset = what, file, offset
        self.expected, self.found = expected, found

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(
            type(self), self.what, file=self.file, offset=self.offset,
            expected=self.expected, found=self.found,
        ), ()  # fmt: skip


class DerivedDamage(CorruptError):
    """Damage of a derived file, which can be rebuilt."""


def raise_it(error: Exception) -> NoReturn:
    """Raise the error: a `problem` callback for callers that stop at the first one."""
    try:
        raise error
    finally:
        del error  # else its traceback would keep itself, and the open files of its frames


class DamagedRange(CorruptError):
    """Damaged range of a kvseq, from `offset` to `stop`, where the next valid entry begins."""

    def __init__(self, *, file: str, offset: int, stop: int, last: bool) -> None:
        behind = "no good one behind it" if last else f"next good one at byte {stop}"
        super().__init__(
            f"bad entry (delflag, length or checksum; {behind})", file=file, offset=offset
        )
        self.stop, self.last = stop, last

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(
            type(self), file=self.file, offset=self.offset, stop=self.stop, last=self.last
        ), ()  # fmt: skip
