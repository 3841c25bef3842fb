"""Replace: the one way in which a file takes the place of another, at once or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from winkformats.disk.storage import Directory, Storage

TEMPORARY: Final = ".tmp"  # behind the name of a file while it is being written


@contextlib.contextmanager
def replacing(
    directory: Directory,
    name: str,
    *,
    like: Storage | None = None,
    uncached: bool = False,
    unsure: Callable[[], object] | None = None,
) -> Iterator[Storage]:
    """A new file; where the block ends well it takes the name, durable, over what had it.

    What a killed writer left under the temporary name is removed first; a symbolic link there is
    not followed.

    like    a file whose mode and owner it gets
    unsure  is called where the file has the name, and the sync of the directory fails: then no
            later sync of it says anything about the name
    ->      the file, which stays open behind the block, and is closed where that raises
    raises  OSError; the name then stands for the old file or, after a failed sync of the
            directory, for either of them
    """
    temporary = name + TEMPORARY
    directory.unlink(temporary)
    storage = directory.create_new(temporary, like=like, uncached=uncached)
    final = storage.name.removesuffix(TEMPORARY)
    try:
        yield storage
        storage.sync()
        directory.rename(temporary, name)
        storage.name = final
        try:
            directory.sync()
        except OSError:
            if unsure is not None:
                unsure()
            raise
    except BaseException:
        storage.close()
        with contextlib.suppress(OSError):
            directory.unlink(temporary)
        raise
