"""Adopt: containers that somebody made become shards, by a copy of their files."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from winkfs.basepath import FILES, base_of
from winkfs.container import open as open_container
from winkfs.dataset.transaction import Transaction, begin
from winkfs.errors import NoSuchFile
from winkfs.lock import WriterLock

READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
PIECE: Final = 8 << 20  # bytes copied at a time
Progress = Callable[[int], None]


def adopt(
    path: str | os.PathLike[str],
    bases: Iterable[str | os.PathLike[str]],
    progress: Progress | None = None,
) -> int:
    """Copy containers into a data set, in one commit -> the generation.

    progress  called with the number of bytes since the last call
    raises    NoSuchFile; Locked (somebody writes to one of them); FormatError; OSError
    """
    found = [base_of(base) for base in bases]
    for base in found:
        if not Path(base + ".data").exists():
            raise NoSuchFile("no such container (there is no BASE.data)", base)
    transaction = begin(path)
    try:
        records = []
        for number, base in enumerate(found):
            copy = _copy(transaction, base, f"{number:05}", progress or (lambda done: None))
            records.append(transaction.seal(copy))
        return transaction.commit(records)
    except BaseException:
        transaction.abort()
        raise


def _copy(transaction: Transaction, base: str, name: str, progress: Progress) -> str:
    target = transaction.attempt(name)
    with _alone(base):
        for suffix in FILES:
            if Path(base + suffix).exists():
                _copy_file(base + suffix, target + suffix, progress)
    open_container(target, "a").close()  # what a writer left unfinished is finished in the copy
    return target


@contextlib.contextmanager
def _alone(base: str) -> Iterator[None]:
    """Nobody writes to it meanwhile. What cannot be written to needs no lock."""
    try:
        lock = WriterLock(base)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _copy_file(source: str, target: str, progress: Progress) -> None:
    with Path(source).open("rb") as old, Path(target).open("xb") as new:
        while data := old.read(PIECE):
            new.write(data)
            progress(len(data))
        new.flush()
        os.fsync(new.fileno())
    status = os.stat(source)
    with contextlib.suppress(OSError):  # the default owner of its files
        os.chown(target, status.st_uid, status.st_gid)
