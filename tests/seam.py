"""What is asked of the disk of this machine: noted in order, and refused where a test says so.

    with disk_calls() as calls: ...              reads are among them, and what is mapped
    with disk_calls(refusing("write", ".cat.tmp", errno.ENOSPC)): ...

`SimulatedDisk` has its own log, and faults that a disk of this machine cannot have. What `watch`
does itself, on its thread, is neither noted nor disk_calls.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import pytest

from winkformats.disk.posix import FileStorage, PosixDirectory
from winkformats.disk.storage import Buffer


class Call(NamedTuple):
    """A call to the disk that is about to be made.

    verb      as in VERBS and NAMING
    path      of a rename or link: the new one, and `old` is the one before
    length    bytes that are asked for
    file      the open file, of those that have one
    buffers   what a write or patch writes
    """

    verb: str
    path: str
    offset: int = 0
    length: int = 0
    old: str = ""
    file: FileStorage | None = None
    buffers: Sequence[Buffer] = ()

    @property
    def data(self) -> bytes:
        return b"".join(map(bytes, self.buffers))


Watch = Callable[[Call], object]


def _read(file: FileStorage, offset: int, length: int) -> Call:
    return Call("read", file.name, offset, length, file=file)


def _read_each(file: FileStorage, offsets: Sequence[int], lengths: Sequence[int]) -> Call:
    start = offsets[0] if len(offsets) else 0
    return Call("read", file.name, start, sum(lengths), file=file)


def _read_into(file: FileStorage, into: memoryview, offset: int) -> Call:
    return Call("read", file.name, offset, len(into), file=file)


def _view(file: FileStorage, length: int, **_: object) -> Call:
    return Call("map", file.name, 0, length, file=file)


def _write(file: FileStorage, offset: int, buffers: Sequence[Buffer]) -> Call:
    return Call("write", file.name, offset, sum(map(len, buffers)), file=file, buffers=buffers)


def _patch(file: FileStorage, offset: int, data: Buffer) -> Call:
    return Call("patch", file.name, offset, len(data), file=file, buffers=[data])


def _sized(verb: str) -> Callable[..., Call]:
    return lambda file, length: Call(verb, file.name, length, file=file)


def _path(directory: PosixDirectory, name: str) -> str:
    return os.path.join(directory.path, name)


def _named(verb: str) -> Callable[..., Call]:
    return lambda directory, name, *_, **__: Call(verb, _path(directory, name))


def _renamed(verb: str) -> Callable[..., Call]:
    return lambda folder, old, new: Call(verb, _path(folder, new), old=_path(folder, old))


VERBS: Final[dict[str, Callable[..., Call]]] = {
    "read": _read,
    "read_each": _read_each,
    "read_into": _read_into,
    "view": _view,
    "write": _write,
    "patch": _patch,
    "truncate": _sized("truncate"),
    "preallocate": _sized("preallocate"),
    "sync": lambda file: Call("sync", file.name, file=file),
}
NAMING: Final[dict[str, Callable[..., Call]]] = {
    "open": _named("open"),
    "create_new": _named("create"),
    "rename": _renamed("rename"),
    "link": _renamed("link"),
    "unlink": _named("unlink"),
    "mkdir": _named("mkdir"),
    "lock": _named("lock"),
    "info": lambda directory, name="", **_: Call("info", _path(directory, name)),
    "list": lambda folder: Call("list", folder.path),
    "sync": lambda folder: Call("directory sync", folder.path),
}


READS: Final = ("read", "read_each", "read_into", "view")
CHANGES: Final = ("write", "patch", "truncate", "preallocate", "sync", "create", "rename", "link",
                  "unlink", "mkdir", "directory sync")  # fmt: skip


@contextmanager
def disk_calls(
    watch: Watch | None = None, *, reads: bool = True, alone: bool = False
) -> Iterator[list[Call]]:
    """-> the calls made, also those that were refused.

    watch   is called before each; what it raises is what the disk says
    reads   are noted, too; a test that has no use for them is faster without
    alone   no other thread makes a call between `watch` and the call
    """
    calls: list[Call] = []
    busy, one = threading.local(), threading.RLock() if alone else nullcontext()

    def note(call: Call) -> None:
        if getattr(busy, "on", False):
            return
        calls.append(call)
        if watch is not None:
            busy.on = True
            try:
                watch(call)
            finally:
                busy.on = False

    def noting(real: Callable[..., Any], of: Callable[..., Call]) -> Callable[..., Any]:
        def method(*args: Any, **options: Any) -> Any:
            with one:
                note(of(*args, **options))
                return real(*args, **options)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for owner, verbs in ((FileStorage, VERBS), (PosixDirectory, NAMING)):
            for name in verbs if reads else verbs.keys() - set(READS):
                patch.setattr(owner, name, noting(getattr(owner, name), verbs[name]))
        yield calls


def refusing(verb: str, end: str = "", error: int = errno.EIO) -> Watch:
    """What refuses these calls for paths that end with `end`."""

    def watch(call: Call) -> None:
        if call.verb == verb and call.path.endswith(end):
            raise OSError(error, os.strerror(error), call.path)

    return watch


def once(
    verbs: str | tuple[str, ...], end: str, do: Callable[[], object], *, nth: int = 1
) -> Watch:
    """What does something before the n-th of these calls, as somebody else might."""
    seen: list[Call] = []

    def watch(call: Call) -> None:
        if call.verb in (verbs if isinstance(verbs, tuple) else (verbs,)) and (
            call.path.endswith(end)
        ):
            seen.append(call)
            if len(seen) == nth:
                do()

    return watch


def once_after(verb: str, end: str, do: Callable[[], object], *, nth: int = 1) -> Watch:
    """The same, but behind the call: before the next one, whatever that is."""
    due: list[Call] = []

    def watch(call: Call) -> None:
        if due:
            due.clear()
            do()
        noted(call)

    noted = once(verb, end, lambda: due.append(Call(verb, end)), nth=nth)
    return watch


def bytes_read(calls: Sequence[Call], end: str, start: int = 0) -> int:
    """Asked for, at `start` or behind it, of files whose path ends with `end`.

    A mapping from the start of a file counts as far as it reaches.
    """
    reads = [c for c in calls if c.verb in ("read", "map") and c.path.endswith(end)]
    return sum(max(c.offset + c.length - max(c.offset, start), 0) for c in reads)
