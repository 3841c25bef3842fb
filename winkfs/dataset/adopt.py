"""Adopt: containers that somebody made become shards, by a copy of their files."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from winkformats.disk.paths import locate, open_file
from winkformats.kv.superblock import read_superblock
from winkfs.container.basepath import FILES, base_of
from winkfs.container.container import open as open_container
from winkfs.container.ondisk.lock import WriterLock
from winkfs.dataset.manifest import Log, is_dataset, root_of
from winkfs.dataset.records import State
from winkfs.dataset.shard import copy_bytes
from winkfs.dataset.transaction import Transaction, begin
from winkfs.errors import FileExists, NoSuchFile

READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
Progress = Callable[[int], None]


def adopt(
    path: str | os.PathLike[str],
    bases: Iterable[str | os.PathLike[str]],
    progress: Progress | None = None,
) -> int:
    """Copy containers into a data set, in one commit -> the generation.

    progress  called with the number of bytes since the last call
    raises    NoSuchFile; FileExists (a container that is a shard already, or comes twice, in this
              or another state); Locked (somebody writes to one of them); FormatError; OSError
    """
    found = [base_of(base) for base in bases]
    ids = _identities(found)
    if is_dataset(path):
        _refuse_known(Log(root_of(path)).latest(), ids)  # before much is copied
    transaction = begin(path)
    try:
        records = []
        for number, base in enumerate(found):
            copy = _copy(transaction, base, f"{number:05}", progress or (lambda done: None))
            records.append(transaction.seal(copy))
        copied = dict(zip((record.contid for record in records), found, strict=True))
        return transaction.commit(records, check=lambda before: _refuse_known(before, copied))
    except BaseException:
        transaction.abort()
        raise


def _identities(bases: Iterable[str]) -> dict[int, str]:
    """CONTID -> the container. Raises NoSuchFile; FileExists where two have one; FormatError."""
    ids: dict[int, str] = {}
    for base in bases:
        try:
            with open_file(base + ".data") as storage:
                contid = read_superblock(storage).get("CONTID", 0)
        except FileNotFoundError:
            raise NoSuchFile("no such container (there is no BASE.data)", base) from None
        if contid and contid in ids:  # classic ones have none
            raise FileExists(f"is the same container as {ids[contid]}, in this state or another: "
                             "add one of them", base)  # fmt: skip
        ids[contid] = base
    return ids


def _refuse_known(before: State, ids: Mapping[int, str]) -> None:
    """Raise FileExists where a container is a shard already: rows are known by CONTID."""
    for record in before.shards:
        if record.contid and record.contid in ids:
            what = (f"is a shard of the data set already, in this state or another ({record.path}):"
                    " put the files that changed with `winkfs put`")  # fmt: skip
            raise FileExists(what, ids[record.contid])


def _copy(transaction: Transaction, base: str, name: str, progress: Progress) -> str:
    target = transaction.attempt(name)
    (old, stem), (new, new_stem) = locate(base), locate(target)
    with _alone(base):
        for suffix in FILES:
            if old.info(stem + suffix, follow=True) is None:
                continue
            with (
                old.open(stem + suffix) as source,
                new.create_new(new_stem + suffix, like=source, uncached=True) as copy,
            ):
                copy_bytes(source, copy, progress)
                copy.sync()
    new.sync()  # before derived files are made: their failures are got over, and would cover this
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
