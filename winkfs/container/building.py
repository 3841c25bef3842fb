"""Building: containers that get their name when they are whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory
from winkfs.container.container import Container, create
from winkfs.container.datafile import remove_files
from winkfs.container.ondisk.lock import WriterLock
from winkfs.errors import FileExists
from winkfs.names import DATA, DERIVED, LOCK, PARTIAL


@contextlib.contextmanager
def building(base: str, **options: Any) -> Iterator[Container]:
    """Make a new container as BASE.partial, which becomes `base` when the block ends well.

    options  see `create`
    raises   FileExists: there is a container of that name; Locked; OSError; what `create` raises
    The lock of `base` is held meanwhile, so that no other writer makes a container of that name.
    What a killed run has left as BASE.partial is replaced.
    """
    partial = base + PARTIAL
    directory, name = locate(base)
    with contextlib.ExitStack() as held, contextlib.ExitStack() as failed:
        held.callback(WriterLock(base).release)
        held.callback(directory.unlink, name + LOCK)  # before the next one can take it
        if directory.exists(name + DATA):
            raise FileExists("the container exists already", base)
        _remove(partial)
        failed.callback(_remove, partial)
        container = create(partial, **options)
        try:
            yield container
        except BaseException:
            with contextlib.suppress(OSError):  # the disk may be full; the files go anyway
                container.abort()
            raise
        container.close()
        try:
            _rename(directory, name + PARTIAL, name)
        except FileExistsError:
            raise FileExists("another process has made it meanwhile", base) from None
        failed.pop_all()


def _remove(base: str) -> None:
    """Delete the files of a container, if there are any. Raises Locked while it is written."""
    with contextlib.ExitStack() as held:
        held.callback(WriterLock(base).release)
        remove_files(base)


def _rename(directory: Directory, partial: str, name: str) -> None:
    """Give the files their names: the data file last, for with it the container is there.

    raises  FileExistsError: it was made meanwhile, by a program that knows no locks
    """
    for suffix in DERIVED:
        if directory.exists(partial + suffix):
            directory.rename(partial + suffix, name + suffix)
        else:
            directory.unlink(name + suffix)  # of an earlier container of that name
    directory.give(partial + DATA, name + DATA)
    directory.unlink(partial + LOCK)
    directory.sync()
