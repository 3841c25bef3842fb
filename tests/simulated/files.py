"""A file of the simulated disk: what programs see, what is on the platter, the changes since.

File     has both, whatever its names
landed   what the platter may have after a power cut: some changes, one of them torn
"""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SECTOR: Final = 512
PAGE: Final = 4096


class Change(NamedTuple):
    """Of a file: bytes written at an offset, or (None) its size set to `offset`."""

    offset: int
    data: bytes | None

    def pieces(self, unit: int) -> Iterator[Change]:
        """The same change, cut where sectors or pages begin."""
        if self.data is None:
            yield self
            return
        at = 0
        while at < len(self.data):
            stop = at + unit - (self.offset + at) % unit
            yield Change(self.offset + at, self.data[at:stop])
            at = stop


@dataclass
class Bytes:
    """Content of a file: `size` bytes, those beyond `data` are zeros."""

    data: bytearray = field(default_factory=bytearray)
    size: int = 0

    def copy(self) -> Bytes:
        return Bytes(bytearray(self.data), self.size)

    def take(self, change: Change) -> None:
        offset, data = change
        if data is None:
            self.resize(offset)
            return
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.size = max(self.size, len(self.data))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size


class File:
    """A file, whatever its names.

    fd        of the memory that programs see
    durable   what is on the disk, except `changes`, which are not synced
    phantom   whether programs see bytes that a failed sync has lost
    locked    how many have it locked, shared; -1: one for itself
    """

    def __init__(self, number: int, content: Bytes, mode: int) -> None:
        self.number, self.mode, self.links = number, mode, 0
        self.durable, self.changes = content, list[Change]()
        self.locked, self.phantom = 0, False
        self.fd = os.memfd_create(f"sim-{number}")
        weakref.finalize(self, os.close, self.fd)
        self.show(content)

    def show(self, content: Bytes) -> None:
        """Have programs see this."""
        if content.data:
            os.pwrite(self.fd, content.data, 0)
        os.ftruncate(self.fd, len(content.data))
        os.ftruncate(self.fd, content.size)
        self.phantom = False

    def seen(self) -> Bytes:
        """What is on the disk once all is written."""
        content = self.durable.copy()
        for change in self.changes:
            content.take(change)
        return content

    def settle(self, content: Bytes) -> None:
        """`content` is on the disk now."""
        self.durable, self.changes = content, []


def landed(file: File, rng: random.Random, unit: int) -> Bytes:
    """What was synced, and some of the changes since; one is torn at a multiple of `unit`."""
    content = file.durable.copy()
    if not file.changes:
        return content
    style = rng.choice(("none", "all", "first", "some", "pages", "sectors"))
    torn, chance = rng.randrange(len(file.changes)), rng.choice((0.1, 0.5, 0.9))
    reserved = 0  # sizes that were set reach the disk in order, and before what is written later
    for i, change in enumerate(file.changes):
        if style == "none" or (style == "first" and i > torn):
            break
        if style == "all" or (style == "first" and i < torn):
            content.take(change)
            continue
        if i == torn:
            pieces = _torn(change, rng, unit)
        elif style == "some":
            pieces = [change] if rng.random() < chance else []
        else:
            cut = change.pieces(PAGE if style == "pages" else SECTOR)
            pieces = [piece for piece in cut if rng.random() < chance]
        if change.data is None:
            reserved = change.offset if pieces else max(reserved, change.offset)
        elif pieces:
            content.size = max(content.size, reserved)
        for piece in pieces:
            content.take(piece)
    seen = os.fstat(file.fd).st_size
    if content.size < seen and rng.random() < 0.3:
        content.resize(seen)  # the size is there, its bytes are not
    elif content.size > file.durable.size and style != "all" and rng.random() < 0.2:
        content.resize(file.durable.size)
    return content


def _torn(change: Change, rng: random.Random, unit: int) -> list[Change]:
    """Some of a write: its beginning, its end, or any of its parts."""
    if change.data is None:
        return [change] if rng.random() < 0.5 else []
    way = rng.randrange(3)
    if way == 2 and unit > 1:
        return [piece for piece in change.pieces(unit) if rng.random() < 0.5]
    at = rng.randint(0, len(change.data))
    at = min(max(at - (change.offset + at) % unit, 0), len(change.data))
    if way == 0:
        return [Change(change.offset, change.data[:at])]
    return [Change(change.offset + at, change.data[at:])]
