"""Sync into a directory: writes what differs from a source, and removes what the source has not.

The source is compared as `unpack` would restore it: names as paths, modes without set-id bits,
times as the filesystem rounds them. What differs is written by `Unpacker`; files of an archive are
first stored in a temporary container.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import FormatError
from winkfs.archive.choice import Choice, directories_of
from winkfs.archive.compare import NO_DOUBT, Change, Listed, Side, TreeSide, Xattrs
from winkfs.archive.items import MAX_RATIO, USER, Note, Notes
from winkfs.archive.packer import Packer, PackReport, Progress
from winkfs.archive.syncplan import (
    IN_THE_WAY,
    ITSELF,
    NONE_REMOVED,
    Decided,
    Options,
    Origin,
    Place,
    SyncReport,
    Work,
    compared,
)
from winkfs.archive.unpack import Paths, Unpacking, opened_directories
from winkfs.archive.unpacker import (
    LEADS_OUT,
    SET_ID,
    Existing,
    Unpacker,
    held_time,
    safe_mode,
    stays_below,
)
from winkfs.container.building import building
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.directories import Nesting, implied, order_of
from winkfs.container.table import KIND, MODE_AT, MTIME, OWNER, FileTable, owner_word
from winkfs.entry import FileType
from winkfs.errors import NoSuchFile, Refusal
from winkfs.names import OWN, name_at, shown_all, to_str

NOT_HELD: Final = "a file of a kind that no container holds"
AN_MTIME: Final = 1_234_567_890_123_456_789  # ns, with a digit in each place


def into_tree(
    source: Place,
    root: str,
    options: Options,
    report: SyncReport,
    note: Notes,
    changed: Callable[[Change], None],
    progress: Progress | None,
) -> None:
    """Make a directory, which is made if it is not there, equal to a source. See `sync`."""
    with contextlib.ExitStack() as stack:
        left = _Left(note)
        origin = Origin(source, root, None, tempfile.gettempdir(), options, left.count, stack)
        if origin.what == "tree":
            raise ValueError("both are directories: rsync copies these")
        _refuse_inside(source.path, root)
        there = os.path.isdir(root)
        if not there and options.dry:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="winkfs-"))
        else:
            Path(root).mkdir(parents=True, exist_ok=True)
            place = root
        target = TreeSide(
            place, left.note, tempfile.gettempdir(), everything=options.xattrs,
            own=origin.own_files(),
        )  # fmt: skip
        gives_owners = options.owners and os.geteuid() == 0
        side = _Restored(origin.side, place, trusted=options.trusted, owners=gives_owners)
        rules = _Rules(origin, target, side, options, left.names, source.path, root)
        work = compared(
            target, origin, NO_DOUBT, options, left.count, changed, side=side,
            everything=options.xattrs, refused=rules.refused,
            ignored="" if gives_owners else "owner",
        )  # fmt: skip
        report.unchanged += work.equal
        if progress:
            progress(work.equal)
        if options.dry or not (work.decisions or work.gone):
            return
        _carry_out(work, left, origin, side, options, report, root, progress, stack)


def _refuse_inside(source: str, root: str) -> None:
    """Raise Refusal if the directory is in a store that is a folder."""
    inner, outer = os.path.realpath(root), os.path.realpath(source)
    if os.path.isdir(source) and (inner + "/").startswith(outer + "/"):
        raise Refusal(ITSELF if inner == outer else "is in the source: choose another place", root)


class _Left:
    """Files in the directory that are left there: of kinds that no container holds.

    links  number of links that were left out because they lead out
    """

    def __init__(self, note: Notes) -> None:
        self._note = note
        self.names = set[bytes]()
        self.links = 0

    def note(self, noted: Note) -> None:
        """Pass on what failed; what is left is no news."""
        if noted.failed:
            self._note(noted)
        else:
            self.names.add(noted.name)

    def count(self, noted: Note) -> None:
        self.links += noted.what == LEADS_OUT
        self._note(noted)


# --- the source as it is restored ---


class _Restored(Listed):
    """A side as `unpack` would restore it in a directory: see the module.

    columns, attrs, unit  those of the side
    """

    def __init__(self, side: Side, root: str, *, trusted: bool, owners: bool) -> None:
        super().__init__()
        self._side, self._root = side, root
        self._trusted, self._owners = trusted, owners
        self.unit, self.attrs, self.columns = side.unit, side.attrs, side.columns

    def tables(self) -> Iterator[FileTable]:
        rows = FileTable.concat(list(self._side.tables()))
        if len(rows):
            numbers = rows.numbers.copy()
            numbers[:, MTIME] = _held_times(self._root, rows.mtime)
            numbers[:, KIND] = self._kinds(rows)
            self.table = _as_paths(rows.with_numbers(numbers))
            yield self.table

    def _kinds(self, rows: FileTable) -> Int64:
        modes, rest = rows.kind >> MODE_AT, rows.kind & (1 << MODE_AT) - 1
        if not self._trusted:
            modes = safe_mode(modes, rows.directories)
        elif not self._owners:  # these bits would grant the rights of another user
            mine = owner_word(os.geteuid(), os.getegid())
            modes = np.where(rows.numbers[:, OWNER] == mine, modes, modes & ~SET_ID)
        return rest | modes << MODE_AT

    def xattrs(self, rows: FileTable) -> dict[bytes, Xattrs]:
        return self._by_path(rows, self._side.xattrs)

    def digests(self, rows: FileTable) -> dict[bytes, bytes]:
        return self._by_path(rows, self._side.digests)

    @staticmethod
    def _by_path(rows: FileTable, ask: Callable[[FileTable], dict[bytes, Any]]) -> dict[bytes, Any]:
        names = list(map(name_at, rows.names))
        if names == rows.names:
            return ask(rows)
        found, paths = ask(rows.with_names(names)), dict(zip(names, rows.names, strict=True))
        return {paths[name]: value for name, value in found.items()}


def _held_times(root: str, times: Int64) -> Int64:
    """Return mtimes as the filesystem of a directory rounds them; as they are if it takes no file.

    cost  some system calls, or two for each time on a filesystem that rounds
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=root, prefix=".winkfs-"))
        except OSError:
            return times
        fd = file.fileno()
        some = AN_MTIME, int(times.min()), int(times.max())
        if all(held_time(fd, time) == time for time in some):
            return times
        held = ((held_time(fd, time), time) for time in times.tolist())
        return np.array([time if found is None else found for found, time in held], np.int64)


def _as_paths(rows: FileTable) -> FileTable:
    """Return rows with paths as names, in byte order: see `names.shown`. A file whose name is also
    a directory is in it."""
    nested = Nesting().add(rows)
    folders = implied(nested.names, len(nested.at), (0, 0))
    both = np.flatnonzero(~rows.directories & np.isin(rows.column, folders.column))
    paths = shown_all(rows.names)
    if paths is rows.names and not len(both):
        return rows
    paths = list(paths)
    for i in both.tolist():
        paths[i] += OWN
    found = rows.with_names(paths)
    return found.take(order_of(found.column))


# --- what there is to do ---


@dataclass(slots=True)
class _Rules:
    """Differences that stay: see `refused`."""

    origin: Origin
    target: TreeSide
    side: _Restored
    options: Options
    left: set[bytes]
    source: str
    root: str
    _kept: set[bytes] | None = None

    def refused(self, change: Change) -> Note | None:
        """Return a note on a change that cannot be made, an empty one if nothing is wrong: a
        directory stays in which something stays. None: it can."""
        name, new = change.name, change.new
        if new is None:
            folder = change.old is not None and change.old.type == "directory"
            return Note(name, "", False) if folder and name in self._kept_folders() else None
        if name in self.left:
            return Note(name, IN_THE_WAY.format(NOT_HELD, new.type).partition(":")[0], True)
        if new.type == "link" and not self.options.trusted and self._leads_out(name):
            return Note(name, LEADS_OUT, True, often=1)
        return None

    def _leads_out(self, path: bytes) -> bool:
        if self.origin.reader is None:  # of an archive it is known when it is written
            return False
        try:
            return not stays_below(path, self.origin.reader.read(name_at(path)))
        except (NoSuchFile, FormatError):
            return False

    def _kept_folders(self) -> set[bytes]:
        """Return the directories above names that are left out, or left."""
        if self._kept is None:
            chosen, names = self.options.chosen, self.target.table.names
            stay = list(self.left)
            if chosen is not None:
                stay += [name for name in names if not chosen(to_str(name))]
            inner, outer = os.path.realpath(self.source), os.path.realpath(self.root) + "/"
            if inner.startswith(outer):
                stay.append(os.fsencode(inner[len(outer) :]))
            self._kept = directories_of([stay])
        return self._kept


# --- carrying it out ---


def _carry_out(
    work: Work,
    left: _Left,
    origin: Origin,
    side: _Restored,
    options: Options,
    report: SyncReport,
    root: str,
    progress: Progress | None,
    stack: contextlib.ExitStack,
) -> None:
    """Make the changes. Raises OSError; FormatError of an archive."""
    above = any(b"/" not in path for path in [*work.decisions, *work.gone])
    if above and not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)  # once for all files
    first, last = _removals(work, side)
    touched = _touched(work, options)
    reader = origin.reader or _stored(origin, {*work.decisions, *touched}, left.count, stack)
    run = Unpacking(root, None, left.count, progress, None, MAX_RATIO, reader=reader)
    with run, opened_directories(root) as directories:
        paths = Paths(None, run.note)
        sink = Unpacker(
            directories, reader, run.allowance, run.report, run.note, existing=Existing.REPLACE,
            same_permissions=options.trusted, same_owner=options.owners, name_of=paths.name_of,
            some=options.chosen is not None, exact="" if options.xattrs else USER,
        )  # fmt: skip

        def remove(paths: Iterable[bytes]) -> set[bytes]:
            """Remove files and directories -> those that are still there."""
            return {path for path in paths if not sink.remove(path, path in work.removed_folders)}

        with run.ending(sink):
            stuck = remove(first)
            report.removed += len(set(first) & set(work.gone) - stuck)
            whole = [
                name_at(path) for path, content in work.decisions.items()
                if path not in stuck and not (
                    content is False and _update(path, path in work.folders, sink, run, report)
                )
            ]  # fmt: skip
            choice = Choice(names=whole)
            if whole:
                run.put_all(choice, paths, sink)
            sink.flush()
            if report.failed == left.links:
                report.removed += len(last) - len(remove(last))
            elif last:
                run.note(NONE_REMOVED)
            for path in touched:
                sink.touched(path)
            run.finish(sink)
        if origin.reader is not None:
            run.note_missing(choice)
    report.add_stored(run.report)


def _removals(work: Work, side: Side) -> tuple[list[bytes], list[bytes]]:
    """Return what is removed before anything is written, since something else gets its place, and
    what is removed at the end; of each what is in a directory before it."""
    first = set[bytes]()
    for path in work.replaced:
        if path in work.removed_folders:
            below = bisect_left(work.gone, path + b"/"), bisect_left(work.gone, path + b"0")
            first.update(work.gone[slice(*below)])
        if path in work.removed_folders or path in work.folders:
            first.add(path)
    first.update(
        path for path in work.gone if path not in work.removed_folders and side.has_below(path)
    )
    last = [path for path in work.gone if path not in first]
    return sorted(first, reverse=True), last[::-1]


def _touched(work: Work, options: Options) -> set[bytes]:
    """Return the directories that get their metadata, maybe again, when all else is done."""
    changed = [*work.decisions, *work.gone]
    found = {path.rpartition(b"/")[0] for path in changed} - {b""}
    chosen = options.chosen
    if chosen is not None:
        found = {path for path in found if chosen(to_str(path))}
    return found | {
        path for path, content in work.decisions.items()
        if content is False and path in work.folders
    }  # fmt: skip


def _update(path: bytes, folder: bool, sink: Unpacker, run: Unpacking, report: SyncReport) -> bool:
    """Update the metadata of what is there, or leave that to the end -> False: write it anew."""
    done, name = folder, name_at(path)
    try:
        if not folder:
            stat = run.reader.stat(name)
            done = stat.ftype != FileType.LINK and sink.change(
                stat, run.reader.getxattrs(name), path
            )
    except (NoSuchFile, FormatError) as error:
        run.note(Note(name, str(error), True))
        return True
    report.updated += done
    return done


def _stored(
    origin: Origin, paths: Iterable[bytes], note: Notes, stack: contextlib.ExitStack
) -> Container:
    """Return a temporary container with some files of an archive."""
    base = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="winkfs-")), "some")
    names = origin.with_targets(map(name_at, paths))
    with building(base) as container:
        packer = Packer(container, PackReport(), note, None)
        packer.put_chosen(origin.items(names), Decided(dict.fromkeys(names)))
    return stack.enter_context(contextlib.closing(open_container(base)))
