"""An object that is written in parts: several at once, after a kill only those that are missing.

An object appears when its upload is completed, under a condition if there is one. Until then the
parts are in the store, which states the MD5 of each: so a later run finds the upload by the key of
the object, and sends what differs from it. No record is kept on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from winkformats.disk.objects import ObjectInfo, submit
from winkformats.errors import WinkError

PART_BYTES: Final = 8 << 20  # of a part, at least; stores take no less than 5 MiB
MOST_PARTS: Final = 9_000  # of an object; stores take 10,000
AT_ONCE: Final = 8  # parts that are sent at a time
AT_ONCE_BYTES: Final = 256 << 20  # in memory meanwhile, if that is more than one part
Read = Callable[[int, int], bytes]
"""Start and length -> bytes of what is to be written."""


class Part(NamedTuple):
    """A part that a store has. etag: the MD5 of its bytes in hex, unless the store encrypts it."""

    size: int
    etag: str


class PartStore(Protocol):
    """Requests for uploads; all methods raise OSError."""

    def uploads(self, key: str) -> list[str]:
        """Return the ids of the uploads of an object that are not complete."""

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        """Return the parts of an upload by number, from 1 on."""

    def begin(self, key: str) -> str:
        """Begin an upload -> its id."""

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        """Send a part, which the store compares with its MD5 -> its ETag."""

    def complete(
        self, key: str, upload: str, etags: Sequence[str], *, absent: bool, like: ObjectInfo | None
    ) -> ObjectInfo:
        """Make the object of its parts, as `Transport.put`."""

    def abort(self, key: str, upload: str) -> None:
        """Remove an upload."""

    def made(self, key: str, etags: Sequence[str], whole: ObjectInfo) -> ObjectInfo | None:
        """Return what is known of an object, if it is made of these parts; else None.

        whole  what it is then, where the ETag of an object is that of MD5s
        """


def is_equal(there: ObjectInfo | None, whole: ObjectInfo) -> bool:
    """Return whether an object has the size and the ETag of another one."""
    return there is not None and (there.size, there.etag) == (whole.size, whole.etag)


def part_bytes(size: int) -> int:
    """Return the bytes of each part of an object but the last."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


def etag_of(size: int, read: Read) -> str:
    """Return the ETag that an object has if it is written here and the store does not encrypt it:
    the MD5 of its bytes, or in parts that of their MD5s. Cost: reads it."""
    step = part_bytes(size)
    sums = [_md5(read(at, min(step, size - at))).digest() for at in range(0, size, step)]
    if len(sums) <= 1:
        return (sums[0] if sums else _md5(b"").digest()).hex()
    return _joined(sums)


def put_parts(
    store: PartStore,
    key: str,
    size: int,
    read: Read,
    progress: Callable[[int], None] = lambda sent: None,
    *,
    absent: bool = False,
    like: ObjectInfo | None = None,
) -> tuple[ObjectInfo, int]:
    """Write an object in parts, several at once -> what is known of it, and the bytes sent.

    An upload of this object that is there is continued. After an interrupt or an error the upload
    stays, for the next call.

    progress      called with the number of bytes done since the last call, sent or found
    absent, like  conditions, as `Transport.put`
    raises        as `Transport.put`
    """
    upload, there = _begun(store, key, size)
    step, sums, sent = part_bytes(size), dict[int, bytes](), 0

    def send(number: int) -> tuple[str, int, int]:
        at = (number - 1) * step
        data = read(at, min(step, size - at))
        sums[number] = _md5(data).digest()
        if there.get(number) == (len(data), sums[number].hex()):
            return there[number].etag, len(data), 0
        return store.put_part(key, upload, number, data, sums[number]), len(data), len(data)

    etags = list[str]()
    at_once = max(1, min(AT_ONCE, AT_ONCE_BYTES // step))
    numbers = range(1, -(-size // step) + 1)
    waiting = [submit(send, number) for number in numbers[:at_once]]
    try:
        for number in numbers:
            etag, done, new = waiting[number - 1].result()
            if number + at_once <= len(numbers):
                waiting.append(submit(send, number + at_once))
            etags.append(etag)
            sent += new
            progress(done)
    finally:
        for future in waiting:
            future.cancel()
    made = ObjectInfo(size, f'"{_joined([sums[number] for number in numbers])}"')
    found = _completed(store, key, upload, etags, made, absent=absent, like=like)
    _abort_others(store, key)
    return found, sent


def _begun(store: PartStore, key: str, size: int) -> tuple[str, Mapping[int, Part]]:
    """Return the upload that has the most parts of the right size, or a new one; and its parts."""
    step = part_bytes(size)
    best: tuple[int, str, Mapping[int, Part]] = (0, "", {})
    try:
        for upload in store.uploads(key):
            parts = store.parts(key, upload)
            right = sum(
                part.size == min(step, size - (number - 1) * step) for number, part in parts.items()
            )
            best = max(best, (right, upload, parts), key=lambda found: found[0])
    except OSError:  # without permission to list, or in a store that does not: begin anew
        best = 0, "", {}
    return (best[1], best[2]) if best[1] else (store.begin(key), {})


def _completed(
    store: PartStore,
    key: str,
    upload: str,
    etags: Sequence[str],
    made: ObjectInfo,
    *,
    absent: bool,
    like: ObjectInfo | None,
) -> ObjectInfo:
    """Complete an upload. If the answer is lost, the object that is there settles it."""
    try:
        return store.complete(key, upload, etags, absent=absent, like=like)
    except OSError:
        found = None
        with contextlib.suppress(OSError):
            found = store.made(key, etags, made)
        if found is None or (like is not None and like.etag == found.etag):
            raise
        return found


def _abort_others(store: PartStore, key: str) -> None:
    """Remove the other uploads of an object that was just written: their conditions fail now."""
    try:
        for upload in store.uploads(key):
            store.abort(key, upload)
    except (OSError, WinkError):  # not permitted: the rules of the bucket remove them
        return


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)


def _joined(sums: Sequence[bytes]) -> str:
    return f"{_md5(b''.join(sums)).hexdigest()}-{len(sums)}"
