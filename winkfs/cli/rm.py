"""`winkfs rm`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from winkformats.errors import FormatError
from winkfs.cli._common import (
    BASE,
    Failures,
    as_path,
    glob_matcher,
    glob_text,
    is_directory,
    missing,
    name_bytes,
    opened,
    shown,
)
from winkfs.names import is_glob, literal_prefix, to_bytes, to_str

if TYPE_CHECKING:
    from winkfs.cli._common import Files


@click.command()
@BASE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-r", "recursive", is_flag=True, help="Remove directories and everything below.")
@click.option("-n", "--dry-run", is_flag=True, help="Only list the files that would be removed.")
@click.option("-v", "--verbose", is_flag=True, help="List removed files.")
def rm(base: str, names: tuple[str, ...], recursive: bool, dry_run: bool, verbose: bool) -> int:
    """Remove files. A NAME may be a glob: * matches / too.

    Without -r a directory must be empty. A missing name is an error (exit status 1); all others are
    removed. An interrupted run removes nothing.
    """
    failures = Failures(base)
    mode: str = "r" if dry_run else "a"
    with opened(base, mode) as container:
        removal = _Removal(container, failures, dry_run=dry_run, verbose=verbose)
        for argument in names:
            removal.take(argument)
        removal.directories(recursive=recursive)
    return failures.status


class _Removal:
    """Removes files at once, and directories when all files are gone."""

    def __init__(
        self, container: Files, failures: Failures, *, dry_run: bool, verbose: bool
    ) -> None:
        self._container, self._failures = container, failures
        self._dry_run, self._verbose = dry_run, verbose
        self._gone: set[bytes] = set()  # of a dry run
        self._directories: dict[bytes, str] = {}  # name -> as it was given; perhaps none of it

    def take(self, argument: str) -> None:
        """Remove a file, or all that match; note directories."""
        name, container = name_bytes(argument), self._container
        try:
            if name in container or not is_glob(argument):
                name = name if name in container else as_path(argument) or name
                if name in container and not is_directory(container, name):
                    self._remove(name)
                else:
                    self._directories[name] = argument
            elif not self._take_all(argument):
                self._failures.add(argument, "no name matches")
        except FormatError as error:
            self._failures.add(argument, str(error))

    def _take_all(self, glob: str) -> bool:
        """-> whether any name matches."""
        found = False
        for name, is_dir in self._matches(glob):
            found = True
            if is_dir:
                self._directories[name] = to_str(name)
            else:
                self._remove(name)
        return found

    def _matches(self, glob: str) -> Iterator[tuple[bytes, bool]]:
        from winkfs.container.ondisk.inode import FileType

        match, prefix = glob_matcher(glob), literal_prefix(glob_text(glob))
        for entry in self._container.scan(prefix=prefix, problem=self._failures.damage):
            if match(entry.name):
                yield to_bytes(entry.name), entry.ftype == FileType.DIR

    def directories(self, *, recursive: bool) -> None:
        """Remove the directories; those that are not empty only with `recursive`."""
        if not self._directories:
            return
        full: set[bytes] = set()
        for name in map(to_bytes, self._container.names(problem=self._failures.damage)):
            if name in self._gone or name in self._directories:
                continue
            above = self._above(name)
            full.update(above)
            if above and recursive:
                self._remove(name)
        for name, argument in sorted(self._directories.items(), reverse=True):
            if name in full and not recursive:
                self._failures.add(argument, "is a directory that is not empty: see -r")
            elif name in self._container:
                self._remove(name)
            elif name not in full:
                self._failures.add(argument, missing(self._container))

    def _above(self, name: bytes) -> list[bytes]:
        """Those of the directories that a name is below."""
        ends = [at for at in range(len(name)) if name[at] == ord("/")]
        return [name[:at] for at in ends if name[:at] in self._directories]

    def _remove(self, name: bytes) -> None:
        try:
            if self._dry_run:
                self._gone.add(name)
            else:
                self._container.delete(name)
        except FormatError as error:
            self._failures.add(to_str(name), str(error))
            return
        if self._dry_run or self._verbose:
            sys.stdout.buffer.write(shown(to_str(name)) + b"\n")
