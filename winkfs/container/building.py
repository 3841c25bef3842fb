"""Building: creates containers that get their name when they are complete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory
from winkformats.errors import FormatError
from winkfs.container.container import Container, create
from winkfs.container.container import open as open_container
from winkfs.container.datafile import remove_files
from winkfs.container.ondisk.lock import WriterLock
from winkfs.errors import FileExists, NoSuchFile
from winkfs.names import DATA, DERIVED, LOCK, PARTIAL


@contextlib.contextmanager
def building(
    base: str, *, resumed: Callable[[Container], bool] | None = None, **options: Any
) -> Iterator[Container]:
    """Create a container as BASE.partial, and rename it to `base` if the block does not raise.

    resumed  returns whether a container is that of this work, unfinished: if so, one that a killed
             run has left as BASE.partial is continued, and stays if a signal ends the block
    options  see `create`
    raises   FileExists: there is a container of that name; Locked; OSError; as `create`
    The lock of `base` is held meanwhile, so that no other writer creates a container of that name.
    Any other BASE.partial that a killed run has left is replaced.
    """
    partial = base + PARTIAL
    directory, name = locate(base)
    with contextlib.ExitStack() as held, contextlib.ExitStack() as failed:
        held.callback(WriterLock(base).release)
        held.callback(directory.unlink, name + LOCK)  # before another writer can take the lock
        if directory.exists(name + DATA):
            raise FileExists("the container exists already", base)
        container = None if resumed is None else _left(partial, resumed)
        if container is None:
            _remove(partial)
        failed.callback(_remove, partial)
        if container is None:
            container = create(partial, **options)
        try:
            yield container
        except BaseException as error:
            if resumed is not None and not isinstance(error, Exception) and resumed(container):
                failed.pop_all()  # a signal
            with contextlib.suppress(OSError):  # the disk may be full; the files are removed anyway
                container.abort()
            raise
        container.close()
        try:
            _rename(directory, name + PARTIAL, name)
        except FileExistsError:
            raise FileExists("another process has made it meanwhile", base) from None
        failed.pop_all()


def _left(partial: str, resumed: Callable[[Container], bool]) -> Container | None:
    """Open what a killed run has left, if it can be continued. Raises Locked, OSError."""
    try:
        container = open_container(partial, "a")
    except (FormatError, NoSuchFile):
        return None
    if not container.problems and resumed(container):
        return container
    container.abort()
    return None


def _remove(base: str) -> None:
    """Delete the files of a container, if there are any. Raises Locked while it is written."""
    with contextlib.ExitStack() as held:
        held.callback(WriterLock(base).release)
        remove_files(base)


def _rename(directory: Directory, partial: str, name: str) -> None:
    """Rename the files, the data file last: with it the container exists.

    raises  FileExistsError: a program without locks has created it meanwhile
    """
    for suffix in DERIVED:
        if directory.exists(partial + suffix):
            directory.rename(partial + suffix, name + suffix)
        else:
            directory.unlink(name + suffix)  # of an earlier container of that name
    directory.give(partial + DATA, name + DATA)
    directory.unlink(partial + LOCK)
    directory.sync()
