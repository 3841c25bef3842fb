"""Pack: puts a directory tree or an archive into a container.

A new container is built under the name BASE.partial and renamed when it is complete and durable. A
pack that was stopped leaves nothing or, of a directory, what the same pack goes on from. An update
works in place and keeps the files that were put.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from winkformats.disk.schemes import is_far
from winkfs.archive.items import (
    MAX_RATIO,
    STDIN,
    ChangingItemSource,
    Chooser,
    Copy,
    Item,
    Large,
    Note,
    Notes,
    Ratio,
    Shapes,
    Suspect,
    Unreadable,
    shape_of,
)
from winkfs.archive.packer import Line, Packer, PackReport, Progress
from winkfs.archive.tree import OwnFiles, OwnFolder, Tree
from winkfs.archive.update import (
    Finder,
    Mark,
    Update,
    differences,
    now_ns,
    same_content,
)
from winkfs.container.building import building
from winkfs.container.bulk import Row
from winkfs.container.container import Container
from winkfs.container.container import open as open_container
from winkfs.container.frames import SAMPLE_BYTES, SAMPLE_FILES
from winkfs.container.ondisk.compressed import FRAME_CONTENT_BYTES, NONE, level_of
from winkfs.container.ondisk.inode import INT64
from winkfs.entry import FileType
from winkfs.errors import FileExists, NoSuchFile, NotAllowed
from winkfs.names import DATA, Choose, Name, base_of, chooser, excluder, to_bytes
from winkfs.remote import refuse_far

MAX_SEEN: Final = 200_000  # files of a directory from which a sample is drawn


def pack(
    source: str | os.PathLike[str],
    base: str | os.PathLike[str],
    *,
    ao: bool = False,
    classic: bool = False,
    update: bool = False,
    checksum: bool = False,
    xattrs: bool = False,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    names: Iterable[bytes] | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    stored: Line | None = None,
    dry_run: bool = False,
    compress: str | None = None,
    ignore_zeros: bool = False,
    max_ratio: int = MAX_RATIO,
) -> PackReport:
    """Pack a directory, or an archive (`-`: a tar file of standard input), into the container
    `base`.

    ao, classic  variant of a new container; ao sorts by mtime, classic keeps no owners and, of
                 modes, only whether a file can be executed
    update       store files that the existing container does not have, or that differ: see
                 `winkfs.archive.update`; files that the source does not have stay
    checksum     compare contents, also of files with unchanged metadata
    xattrs       take all readable extended attributes, not only those called user.*
    exclude      globs of names, of parts of them or of directories, to leave out
    include      globs as those: pack only these names, and what is below them
    names        pack only these of the directory, without what is below them
    note         called with each file that was not packed as it is
    progress     called with the number of files since the last call
    stored       called with each name that is stored or updated
    dry_run      change nothing; the report and `stored` are of what would be stored
    compress     "zstd", "zstd:LEVEL" or "none": see `winkfs.create`; in an update, for new content.
                 None: as the container is set
    ignore_zeros  of a tar file: read on after its end, for archives that were concatenated
    max_ratio    of a tar file: bytes that one byte of it may become, beyond 1 GiB; 0: any number
    raises       FileExistsError; FileNotFoundError; NotADirectoryError; ValueError (names with a
                 tar file); PermissionError (update of an ao container: an older mtime);
                 FormatError (no archive); Locked; OSError

    A pack of a directory that was killed or stopped leaves BASE.partial once it has stored 1 GiB.
    The same call goes on from there; one with other options begins anew.
    """
    target = base_of(base)
    refuse_far(target)
    report = PackReport()

    def count(noted: Note) -> None:
        report.count(noted)
        if note:
            note(noted)

    exists = os.path.lexists(target + DATA)
    if exists and not update:
        raise FileExists("the container exists already: add to it with --update", target)
    ratio, where = Ratio(max_ratio), os.fspath(source)
    no, only = excluder(exclude), excluder(include)
    reader = source_of(
        where, scratch_of(target), count, own=OwnFiles(target), xattrs=xattrs, exclude=no,
        include=only, names=names, ignore_zeros=ignore_zeros, ratio=ratio,
    )  # fmt: skip
    began = now_ns()
    root = root_of(where, exclude, include, xattrs=xattrs)
    whole = bool(root) and names is None
    if dry_run:
        _try(reader, target if exists else None, root, checksum, report, count, progress, stored)
        return report
    if exists:
        # If it fails, the files that were put stay; a repeated update continues from there.
        with contextlib.closing(open_container(target, "a")) as container:
            try:
                _check_variant(container, ao, classic, compress)
                packer = Packer(container, report, count, progress, ratio, stored=stored)
                chosen = packer.update(reader, Mark.of(container, root), checksum=checksum)
                container.save_catalog()
                if whole and not report.failed and worth_keeping(container, report, chosen):
                    Mark(root, began, 0).keep(container)
            except Exception:
                raise
            except BaseException:  # a signal: recovering the interrupted call would take long
                container.abort()
                raise
    else:
        number = _number(root, compress) if whole and not (ao or classic) else None
        settings = {"ao": ao, "classic": classic, "compress": compress}
        with building(target, resumed=_resumed(number), **settings) as container:
            packer = Packer(container, report, count, progress, ratio, stored=stored)
            first = Mark.of(container, number or 0)
            if first.since:
                report.resumed, began = True, first.since
                seen = array("Q")
                packer.update(reader, first._replace(end=INT64), checksum=False, seen=seen.append)
                _delete_others(container, seen)
            else:
                if level_of(compress or NONE) and isinstance(reader, Tree) and names is None:
                    own = OwnFiles(target)
                    container.learn(*_samples(where, target, own, no, only))
                packer.run(reader, None if number is None else Mark(number, began, 0))
            container.save_catalog()
            if whole and not report.failed:
                Mark(root, began, 0).keep(container)
            elif container.store.packed:  # the mark of a pack that is not finished
                container.keep_mark({})
    return report


def _number(root: int, compress: str | None) -> int:
    """Return the number by which BASE.partial is recognised as that of the same pack."""
    return xxhash.xxh3_64_intdigest(f"{root} {compress}".encode()) >> 1 | 1


def _resumed(number: int | None) -> Callable[[Container], bool] | None:
    """Return a function that tests whether a container is that of the same pack, unfinished."""
    if number is None:
        return None
    return lambda container: container.store.packed.get("PACKROOT") == number


def _delete_others(container: Container, seen: array[int]) -> None:
    """Delete the files whose names do not have one of these hashes."""
    from winkfs.tables import tables

    there = [name for rows in tables(container) for name in rows.names]
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, there), np.uint64, len(there))
    for i in np.flatnonzero(~np.isin(hashes, np.array(seen, np.uint64))).tolist():
        container.delete(there[i])


def _try(
    reader: ChangingItemSource,
    target: str | None,
    root: int,
    checksum: bool,
    report: PackReport,
    note: Notes,
    progress: Progress | None,
    stored: Line | None,
) -> None:
    """Find out what a pack would store, in an update of the container `target`."""
    if target is None:
        would_store(reader, None, None, report, note, stored)
        return
    with contextlib.closing(open_container(target)) as container:
        mark = Mark.of(container, root)
        finder, more = Finder(container, mark.end), progress or (lambda done: None)
        chosen = Update(finder, mark.since, checksum, not container.ao, lambda name: False, more)

        def same(suspect: Suspect) -> bool:
            item = suspect.item
            if suspect.content and not same_content(item, container):
                return False
            if not differences(item, container):
                report.unchanged += 1
            else:
                report.updated += 1
                if stored:
                    stored(to_bytes(item.name))
            return True

        with contextlib.closing(finder):
            would_store(reader, chosen, same, report, note, stored)
        report.unchanged += chosen.unchanged


def would_store(
    reader: ChangingItemSource,
    chooser: Chooser | None,
    same: Callable[[Suspect], bool] | None,
    report: PackReport,
    note: Notes,
    stored: Line | None,
) -> None:
    """Count the files that a pack would store.

    chooser  of an update: selects them; None: all
    same     of an update: returns whether a suspect is not stored again
    stored   called with their names
    cost     of a directory no content is read, but that of suspects; an archive is read
    """

    def count(name: Name, ftype: int, size: int) -> None:
        report.add(ftype, size)
        if stored:
            stored(to_bytes(name))

    def is_same(suspect: Suspect) -> bool:
        try:
            return same is not None and same(suspect)
        except (Unreadable, NoSuchFile):
            return False

    if isinstance(reader, Tree):
        for seen in reader.sizes(chooser, is_same):
            if seen.ftype:
                count(seen.name, seen.ftype, seen.size)
            else:
                note(Note(seen.name, "no file, directory or link: left out", False))
        return
    if chooser is None:
        found: Iterable[Item | Suspect] = reader.items(by_mtime=False)
    else:
        found = reader.changed(chooser, by_mtime=False)
    shapes: Shapes = {}
    for one in found:
        item = one.item if isinstance(one, Suspect) else one
        try:
            if isinstance(one, Suspect) and is_same(one):
                continue
        finally:
            if isinstance(item, Large):
                item.file.close()
        shape = shape_of(item, shapes)
        if shape is None and isinstance(item, Copy) and chooser is None:
            note(item.lost)
            continue
        shapes[to_bytes(item.name)] = shape = shape or (FileType.FILE, 0)  # it was packed before
        count(item.name, *shape)


def worth_keeping(container: Container, report: PackReport, chosen: Update) -> bool:
    """Return whether a new mark saves the next update more than it costs: a new index, which is
    written anyway if files were stored."""
    base = container.store.index.base
    return bool(
        report.files + report.directories + report.links + report.updated
        or (base is not None and chosen.suspected > base.size)
    )


def source_of(
    source: str,
    scratch: str,
    note: Notes,
    *,
    own: OwnFiles | OwnFolder | None,
    xattrs: bool,
    exclude: Choose | None,
    include: Choose | None,
    names: Iterable[bytes] | None,
    ignore_zeros: bool,
    ratio: Ratio,
) -> ChangingItemSource:
    """Return a directory or an archive as a source: see `pack`.

    scratch  a directory for temporary files
    own      files in the directory that are not part of it
    raises   ValueError (names with an archive); NoSuchFile; OSError
    """
    check_names(source, names)
    if source != STDIN and Path(source).is_dir():
        return Tree(
            source, note, scratch, own=own, xattrs=xattrs, exclude=exclude, include=include,
            names=names,
        )  # fmt: skip
    from winkfs.archive.sources import archive  # late: most packs are of directories

    return archive(
        source, note, scratch, xattrs=xattrs, exclude=left_out(exclude, include),
        ignore_zeros=ignore_zeros, ratio=ratio,
    )  # fmt: skip


def left_out(exclude: Choose | None, include: Choose | None) -> Choose | None:
    """Return a function that tests whether a name of an archive is left out; None: none is."""
    wanted = chooser(include, exclude)
    return None if wanted is None else lambda name: not wanted(name)


def scratch_of(base: str) -> str:
    """Return the directory for temporary files of a pack. Raises NoSuchFile."""
    if is_far(base):
        import tempfile  # late, because its import is slow

        return tempfile.gettempdir()
    scratch = os.path.dirname(base) or "."  # it has space for the whole container
    if not Path(scratch).is_dir():
        raise NoSuchFile("no such directory: make it first", scratch)
    return scratch


def check_names(source: str, names: object) -> None:
    """Raise ValueError for names with a source that is not a directory; NoSuchFile."""
    if source != STDIN and Path(source).is_dir():
        return
    if names is not None:
        raise ValueError("a list of names goes with a directory, not with an archive")
    if source != STDIN and not Path(source).exists():
        raise NoSuchFile("no such directory or archive", source)


def _samples(
    source: str, base: str, own: OwnFiles, exclude: Choose | None, include: Choose | None
) -> tuple[list[bytes], int]:
    """Return contents of random files of a directory, and the bytes of all its files, about.

    cost    a stat of each of the first MAX_SEEN files, and reads SAMPLE_BYTES at most
    """
    import random

    tree = partial(
        Tree, source, lambda noted: None, scratch_of(base), own=own, exclude=exclude,
        include=include,
    )  # fmt: skip
    total, left = 0, SAMPLE_BYTES
    chosen: list[bytes] = []
    rng = random.Random(0)  # a fixed seed, so that equal trees become equal containers
    seen = (seen for seen in tree().sizes() if seen.size)
    for i, file in enumerate(islice(seen, MAX_SEEN)):
        total += file.size
        place = i if i < SAMPLE_FILES else rng.randrange(i + 1)
        if place < SAMPLE_FILES:
            chosen[place : place + 1] = [file.name]
    rng.shuffle(chosen)
    found: list[bytes] = []
    with contextlib.closing(tree(names=chosen).items(by_mtime=False)) as items:
        for item in items:
            if isinstance(item, Large):
                with contextlib.closing(item.file):
                    data = item.file.read(FRAME_CONTENT_BYTES)
            else:
                data = item.data[:FRAME_CONTENT_BYTES] if isinstance(item, Row) else b""
            found.append(data)
            left -= len(data)
            if left <= 0:
                break
    return found, total


def _check_variant(container: Container, ao: bool, classic: bool, compress: str | None) -> None:
    if (ao and not container.ao) or (classic and not container.classic):
        what = "append only" if ao and not container.ao else "classic"
        raise NotAllowed(f"is not {what}, and an update cannot make it so", container.base)
    if compress is not None:
        container.change(container.changes.set_compression, level_of(compress))


def root_of(
    source: str, exclude: Sequence[str], include: Sequence[str] = (), *, xattrs: bool
) -> int:
    """Return the number by which a mark identifies a directory and the options; 0 for an archive.

    raises  OSError
    """
    if source == STDIN or not Path(source).is_dir():
        return 0
    parts = [os.path.realpath(os.fsencode(source)), b"%d" % os.stat(source).st_ino]
    parts += [b"%d" % xattrs, *map(to_bytes, sorted(exclude))]
    parts += [b"\0" + to_bytes(pattern) for pattern in sorted(include)]
    return xxhash.xxh3_64_intdigest(b"\0".join(parts)) >> 1
