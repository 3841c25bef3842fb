"""Paths: one file or directory of a store by its path, also through symbolic links."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Callable
from typing import Final

from winkfs.entry import FileType, Stat
from winkfs.errors import IsDirectory, NoSuchFile, Refusal
from winkfs.fsspec.listing import Info, Listing, Tree, directory_info, facts_of, info_of
from winkfs.names import to_str
from winkfs.reader import Problem, Reader

MAX_LINKS: Final = 40  # symbolic links that a path may lead through


class Paths:
    """The files and directories of an open store. A link's target is a path of the same store."""

    def __init__(self, reader: Reader, listing: Listing, has_below: Callable[[str], bool]) -> None:
        """`has_below`: returns whether there is a file or directory below a path."""
        self._reader, self.listing, self._has_below = reader, listing, has_below

    def has_entry(self, path: str) -> bool:
        """Return whether there is a file, or an entry of a directory."""
        try:
            return self.listing.name(path) in self._reader
        except NoSuchFile:
            return False

    def is_directory(self, path: str) -> bool:
        """Return whether a path is a directory, links not followed."""
        with contextlib.suppress(NoSuchFile):
            if self.listing.stat(path).ftype == FileType.DIR:
                return True
        return self._has_below(path)

    def followed(self, path: str) -> tuple[str, Stat]:
        """Return the path of a file without symbolic links in it, and its metadata.

        raises  NoSuchFile; IsDirectory; Refusal (ELOOP)
        """
        found = path
        try:
            stat = self.listing.stat(path)
            if stat.ftype not in (FileType.LINK, FileType.DIR):
                return path, stat
        except NoSuchFile:
            pass
        found = self.real(path)
        try:
            stat = self.listing.stat(found)
        except NoSuchFile as error:
            if self.is_directory(found):
                raise IsDirectory("is a directory", path or "/") from None
            raise NoSuchFile(error.strerror or "no such file", path) from None
        if stat.ftype == FileType.DIR:
            raise IsDirectory("is a directory", path or "/")
        return found, stat

    def real(self, path: str) -> str:
        """Return a path without symbolic links in it; there may be nothing. Raises Refusal."""
        found = path
        for _ in range(MAX_LINKS):
            try:
                if self.listing.stat(found).ftype != FileType.LINK:
                    return found
                found = self._target(found)
            except NoSuchFile:
                above = None if self.is_directory(found) else self._without_link_above(found)
                if above is None:
                    return found
                found = above
        raise Refusal("too many symbolic links", path, number=errno.ELOOP)

    def _target(self, path: str) -> str:
        target = to_str(self._reader.read(self.listing.name(path)))
        above = "" if target.startswith("/") else path.rpartition("/")[0]
        return posixpath.normpath(f"/{above}/{target}").strip("/")

    def _without_link_above(self, path: str) -> str | None:
        """Return the path with the first symbolic link above it replaced; None: there is none."""
        parts = path.split("/")
        for at in range(1, len(parts)):
            above = "/".join(parts[:at])
            with contextlib.suppress(NoSuchFile):
                if self.listing.stat(above).ftype == FileType.LINK:
                    return "/".join(filter(None, [self._target(above), *parts[at:]]))
        return None

    # --- metadata ---

    def kind(self, path: str) -> str:
        """Return the type of a path as `info` does, "": there is nothing."""
        try:
            return str(self.info(path, columns=False)["type"])
        except NoSuchFile:
            return ""

    def info(self, path: str, *, columns: bool = True) -> Info:
        """Return the metadata of a file or directory: see `WinkFileSystem.info`.

        columns  whether they have the values of the columns
        """
        if not path:
            return directory_info("")
        try:
            facts = facts_of(self.listing.stat(path))
            found = info_of(path, facts, self.listing.columns(path) if columns else None)
        except NoSuchFile:
            if self._has_below(path):
                return directory_info(path)
            above = self._without_link_above(path)
            if above is None:
                raise
            return {**self.info(above, columns=columns), "name": path}
        return self.with_target(found) if found["islink"] else found

    def with_target(self, found: Info) -> Info:
        """Add to the metadata of a link what it leads to; if that is missing, it stays a link."""
        path = found["name"]
        found["destination"] = to_str(self._reader.read(self.listing.name(path)))
        with contextlib.suppress(Refusal):
            found["size"] = self.followed(path)[1].size
            found["type"] = "file"
        if found["type"] == "link":
            with contextlib.suppress(Refusal):
                real = self.real(path)
                if not real or self.is_directory(real):
                    found.update(type="directory", size=0)
        return found

    def tree(
        self,
        path: str,
        depth: int | None = None,
        *,
        detail: bool = False,
        columns: bool = True,
        problem: Problem | None = None,
    ) -> Tree:
        """Return as `Listing.tree`, with what each link leads to."""
        found = self.listing.tree(path, depth, detail=detail, columns=columns, problem=problem)
        return self.finished(found, detail=detail)

    def finished(self, tree: Tree, *, detail: bool) -> Tree:
        """Add to the links of a tree what they lead to."""
        if detail:
            for info in tree.files.values():
                if info is not None and info["islink"]:
                    self.with_target(info)
        return tree
