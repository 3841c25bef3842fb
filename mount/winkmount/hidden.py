"""Open files whose names libfuse has hidden.

libfuse answers an unlink of an open file, and a rename onto one, by a rename of it to
`.fuse_hidden...`. Behind the first nothing else comes; behind the second the rename that was asked
for, as the very next call. So the hidden file keeps its name in the Source until the next call
tells which of the two it is: a rename that is refused, or a crash, takes nothing away.
"""

from __future__ import annotations

import re
import time
from collections.abc import Container
from typing import Final

_PATTERN: Final = re.compile(r"/\.fuse_hidden[0-9a-f]{16}\Z")
_KEPT: Final = 1000  # hidden paths of files that were not removed after all
_SOON: Final = 0.1  # seconds within which the next call comes, if it is a part of this one


class Hidden:
    """What is behind the paths that libfuse made up.

    ids     of files without a name
    names   path and id of files that still have theirs; libfuse goes on with the hidden path after
            a rename was refused, also when they are opened later
    waiting the hidden path of the file of which only the next call tells what becomes of it
    """

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.names: dict[str, tuple[str, int]] = {}
        self.waiting: str | None = None
        self._since = 0.0

    @staticmethod
    def is_hidden(path: str) -> bool:
        return _PATTERN.search(path) is not None

    def hide(self, path: str, hidden: str, id: int) -> None:
        if len(self.names) >= _KEPT:
            del self.names[next(iter(self.names))]
        self.names[hidden] = path, id
        self.waiting, self._since = hidden, time.monotonic()

    @property
    def is_new(self) -> bool:
        """Whether the call that tells more may be under way."""
        return self.waiting is not None and time.monotonic() - self._since < _SOON

    def name(self, path: str) -> str:
        """The path that the Source knows."""
        return self.names[path][0] if path in self.names else path

    def removed(self, path: str, opened: Container[int]) -> None:
        """The file that had this name has none any more. opened: ids of files that live on."""
        for hidden, (name, id) in list(self.names.items()):
            if name == path:
                del self.names[hidden]
                if id in opened:
                    self.ids[hidden] = id

    def released(self, id: int) -> None:
        """It is not open any more."""
        self.ids = {path: other for path, other in self.ids.items() if other != id}

    def moved(self, old: str, new: str) -> None:
        """A file or directory has another path: libfuse's paths below it have, too."""

        def move(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(old + "/") else path

        self.ids = {move(path): id for path, id in self.ids.items()}
        self.names = {move(path): (move(name), id) for path, (name, id) in self.names.items()}
