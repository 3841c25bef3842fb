"""UPath of universal_pathlib for protocol `wink`, which finds it by its entry point."""

from __future__ import annotations

from fsspec.registry import get_filesystem_class
from upath import UPath

get_filesystem_class("wink")  # UPath takes rules of paths from filesystems that are imported


class WinkUPath(UPath):  # type: ignore[misc]  # universal_pathlib is no dependency
    """A path in a store, with the methods of `pathlib.Path`.

    UPath("wink://dir/a.txt::/srv/corpus")
    UPath("wink://dir", fo="corpus", mode="a") / "a.txt"

    The options are those of `WinkFileSystem`. Paths that are made from a writing one share its
    filesystem, for a container has one writer: `path.fs.close()` ends it.
    """

    __slots__ = ()

    def with_segments(self, *segments: str) -> WinkUPath:
        """Return another path of the store. Raises what `winkfs.open` raises, for writing."""
        if self.storage_options.get("mode") == "a":
            self.fs  # noqa: B018  # opened here, it is the one of the new path, too
        made: WinkUPath = super().with_segments(*segments)
        return made
