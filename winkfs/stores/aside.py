"""Keep aside what a writer cuts off a file of a store: bytes that are no records may be of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from winkformats.disk.storage import Directory, Storage

CUT: Final = ".cut"  # behind the name of the file


def keep_aside(
    directory: Directory, name: str, like: Storage, parts: Sequence[bytes]
) -> tuple[str, int]:
    """Write parts of a file to one of their own, durable -> its name, "" if all are zeros and there
    is none; bytes."""
    if not any(part.strip(b"\0") for part in parts):
        return "", 0
    number = 0
    while directory.exists(made := f"{name}{CUT}{number or ''}"):
        number += 1
    with directory.create_new(made, like=like) as aside:
        aside.write(0, parts)
        aside.sync()
    directory.sync()
    return made, sum(map(len, parts))
