"""The errors of a format: the bytes are wrong; and the base of all errors of winkfs."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn


class WinkError(Exception):
    """Any error of winkfs: a refusal, which is an OSError, or wrong bytes, a ValueError."""


class FormatError(WinkError, ValueError):
    """The bytes are not what the format allows, or need something this version does not know."""


class CorruptError(FormatError):
    """Damage at a known place: what, in which file, at which byte offset, expected, found."""

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
    """A derived file is damaged: it can be made again."""


def raise_it(error: Exception) -> NoReturn:
    """What is called with a problem where nothing is to go on."""
    raise error


class DamagedRange(CorruptError):
    """Bytes of a kvseq that are no good entries: from `offset` to `stop`, where one is again."""

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
