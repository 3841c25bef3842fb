"""Unpack: the files of a store into a directory, a tar or zip file, or a pipe; `get`: some of them
to a path, without the directories above them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from winkformats.disk.paths import locate
from winkformats.disk.storage import FileType as Kind
from winkformats.disk.storage import replacing
from winkformats.errors import CorruptError, FormatError
from winkfs.archive.archivewriter import NewFile, Output, Writes, body_of
from winkfs.archive.choice import Choice, directories_of
from winkfs.archive.items import MAX_RATIO, Allowance, Note, Notes, Ratio, Sink, UnpackReport
from winkfs.archive.renaming import Rename, renaming
from winkfs.archive.unpacker import DIRECTORY_THERE, Directories, Existing, Unpacker, stays
from winkfs.container.scan import Run
from winkfs.container.table import FileTable
from winkfs.entry import Entry, FileType
from winkfs.errors import FileExists, IsDirectory, Refusal, warn_of_damage
from winkfs.names import (
    OWN,
    clean,
    is_glob,
    literal_prefix,
    name_at,
    path_of,
    shown,
    shown_all,
    to_bytes,
    to_str,
)
from winkfs.reader import Reader
from winkfs.registry import AsOf, open_silently
from winkfs.tables import has_below

PROGRESS_FILES: Final = 256  # files between two calls of `progress`
STDOUT: Final = "-"
MISSING: Final = "no such file in the store"
NO_MATCH: Final = "no name matches"
SAME_PATH: Final = "another file has its name after renaming: left out"
Progress = Callable[[int], None]
Listed = Callable[[bytes], None]
Together = Callable[[Run, list[bytes]], bool]


def unpack(
    base: str | os.PathLike[str],
    directory: str | os.PathLike[str] | None = None,
    glob: str | Sequence[str] | None = None,
    *,
    tar: str | Writes | None = None,
    zip: str | Writes | None = None,
    contents: Writes | None = None,
    exclude: Iterable[str] = (),
    names: Iterable[bytes] | None = None,
    strip: int = 0,
    transforms: Iterable[str] = (),
    force: bool = False,
    existing: Existing = Existing.EQUAL,
    dry_run: bool = False,
    same_permissions: bool = False,
    same_owner: bool = True,
    as_of: AsOf | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    listed: Listed | None = None,
    max_ratio: int = MAX_RATIO,
) -> UnpackReport:
    """Unpack a container or a data set into a directory, which is made if it is not there, or into
    an archive.

    A file of the type, size and mtime of its entry is there already: a second run finishes the
    work. Any other is in the way, and stays.

    glob      only names that match one of these; `*` crosses `/`
    tar, zip  an archive instead of the directory: a path, which must not exist unless `force`, "-"
              for standard output, or an object with `write`
    contents  write the contents of the files there, one after another
    exclude   names to leave out, with all below them, as `tar --exclude` takes them
    names     only these; of a directory only its own entry
    strip     remove so many parts from the start of each name; a shorter one is left out
    transforms  expressions s/WHAT/BY/FLAGS that rename files: see `renaming.transform`
    force     replace files that exist, and an archive
    existing  what becomes of files that exist, without `force`
    dry_run   write nothing
    same_permissions  trust the container: keep set-id and sticky bits, and links that lead out of
              the directory. Without it modes are those of the container without these bits,
              independent of the umask; a directory that loses its sticky bit is writable by its
              owner only. An archive has all of it
    same_owner  give files their owners, if we are root
    as_of     of a data set: a generation or time, see `winkfs.open`
    note      called with each file that was not unpacked, or not as it is in the container; with
              no name for damage whose file is not known; None: that is a DamageWarning
    progress  called with the number of files since the last call
    listed    called with the path of each file that is written
    max_ratio  bytes of content written for each of the container, beyond 1 GiB; 0: any number
    raises    FileNotFoundError, FormatError (the container); FileExistsError (an archive);
              ValueError; OSError (the directory, a full disk)
    cost      memory: a batch of names; of an archive, and with renaming, the names of directories
              or files
    """
    targets = [one for one in (directory, tar, zip, contents) if one is not None]
    if len(targets) != 1:
        raise ValueError("unpack takes one of a directory, tar, zip and contents")
    globs = [glob] if isinstance(glob, str) else list(glob or ())
    if names is not None and globs:
        raise ValueError("globs or a list of names, not both")
    rename = renaming(strip, transforms)
    choice = Choice(globs, names, exclude=exclude)
    existing = Existing.REPLACE if force else existing
    with Unpacking(base, as_of, note, progress, listed, max_ratio) as run:
        archive = directory is None
        paths = Paths(rename, run.note)
        if archive and contents is None:
            found = choice.names(run.reader, run.damaged)
            paths.directories = directories_of(map(paths.all, found))
        with contextlib.ExitStack() as stack:
            sink: Sink
            if dry_run:
                root = None if directory is None else os.fspath(directory)
                sink = Preview(root, existing, run)
            elif directory is not None:
                Path(directory).mkdir(parents=True, exist_ok=True)
                directories = stack.enter_context(opened_directories(os.fspath(directory)))
                sink = Unpacker(
                    directories, run.reader, run.allowance, run.report, run.note,
                    existing=existing, same_permissions=same_permissions, same_owner=same_owner,
                    name_of=paths.name_of, some=not choice.everything,
                )  # fmt: skip
            else:
                sink = _archive(stack, run, tar, zip, contents, force=force)
            run.put_all(choice, paths, sink)
            run.finish(sink)
        run.note_missing(choice)
    return run.report


def get(
    base: str | os.PathLike[str],
    names: Sequence[str],
    path: str,
    *,
    force: bool = False,
    contents: Writes | None = None,
    same_permissions: bool = False,
    same_owner: bool = True,
    as_of: AsOf | None = None,
    note: Notes | None = None,
    progress: Progress | None = None,
    listed: Listed | None = None,
    max_ratio: int = MAX_RATIO,
) -> UnpackReport:
    """Unpack files and directories of a store to a path, without the directories above them. What
    is there is replaced.

    names     of files, of directories, which bring all below them, and globs, which bring what
              matches with the directories after their literal start
    path      a directory, if it is one, ends with /, or there are several names; else the name of
              the file, or directory
    force     replace a file at `path` that is also a name in the store
    contents  write the contents there instead; `path` is not looked at
    raises, others  see `unpack`
    """
    with Unpacking(base, as_of, note, progress, listed, max_ratio) as run:
        wanted = _wanted(run, names)
        single = len(names) == 1 and not (is_glob(names[0]) and not wanted.files)
        if contents is not None:
            wanted.refuse_directories(run)
            sink: Sink = ContentWriter(contents, run.allowance, run.report, run.note)
            run.put_all(Choice(names=wanted.files), Paths(None, run.note), sink)
            for glob in wanted.globs:
                choice = Choice([glob])
                run.put_all(choice, Paths(None, run.note), sink)
                run.note_missing(choice)
            run.finish(sink)
            return run.report
        if Path(path).is_file() and not force and to_bytes(path) in run.reader:
            what = "is a file here, and a name in the store: --force replaces it"
            raise FileExists(what, path)
        into = not single or path.endswith("/") or Path(path).is_dir()
        root, short = (path, b"") if into else _split_path(path)
        if into:
            Path(root).mkdir(parents=True, exist_ok=True)
        with opened_directories(root) as directories:
            paths = Paths(None, run.note)
            sink = Unpacker(
                directories, run.reader, run.allowance, run.report, run.note,
                existing=Existing.REPLACE, same_permissions=same_permissions,
                same_owner=same_owner, name_of=paths.name_of,
            )  # fmt: skip
            for choice, above in wanted.choices():
                paths.rename = _moved(above, short)
                run.put_all(choice, paths, sink)
                run.note_missing(choice)
            run.finish(sink)
    return run.report


class _Wanted:
    """The names that `get` is given, by what they are."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.trees: list[bytes] = []
        self.globs: list[str] = []

    def choices(self) -> Iterator[tuple[Choice, bytes | None]]:
        """Yield what to unpack, and the directory above, with its /; None: that of each file."""
        if self.files:
            yield Choice(names=self.files), None
        for tree in self.trees:
            above = tree[: tree.rfind(b"/") + 1]
            yield _Tree(tree), above
        for glob in self.globs:
            start = to_bytes(literal_prefix(glob))
            yield Choice([glob]), start[: start.rfind(b"/") + 1]

    def refuse_directories(self, run: Unpacking) -> None:
        for tree in self.trees:
            run.note(Note(tree, "is a directory", True))


class _Tree(Choice):
    """A directory, with its own entry if there is one."""

    def __init__(self, name: bytes) -> None:
        super().__init__(names=[name], trees=[name])

    def missing(self) -> list[bytes]:
        return []


def _wanted(run: Unpacking, names: Sequence[str]) -> _Wanted:
    """Return what the names are; a missing one is noted."""
    found = _Wanted()
    for argument in names:
        given = os.fsencode(argument)
        for name in (given, clean(given)):
            try:
                entry = run.reader.stat(name) if name and name in run.reader else None
            except FormatError as error:
                run.note(Note(name, str(error), True))
                break
            if entry is not None and entry.ftype != FileType.DIR:
                found.files.append(name)
                break
            tree = name.rstrip(b"/")
            if tree and (entry is not None or has_below(run.reader, tree, run.damaged)):
                found.trees.append(tree)
                break
        else:
            if is_glob(argument):
                found.globs.append(to_str(given))
            else:
                run.note(Note(given, MISSING, True))
    return found


def _moved(above: bytes | None, short: bytes) -> Rename:
    """Return a function that removes the directory above from names, and, if there is one, has
    `short` take the place of their first part."""

    def rename(name: bytes) -> bytes:
        rest = name[name.rfind(b"/") + 1 :] if above is None else name[len(above) :]
        if not short:
            return rest
        return short + rest[len(rest.partition(b"/")[0]) :]

    return rename


def _split_path(path: str) -> tuple[str, bytes]:
    """Return the directory of a path, and its last part. Raises ValueError."""
    head, _, short = path.rpartition("/")
    if short in ("", ".", ".."):
        raise ValueError(f"{path!r} is no name of a file")
    return head or ("/" if path[:1] == "/" else "."), os.fsencode(short)


# --- a run ---


class Paths:
    """Paths in the target of the names of a store.

    rename       None: names stay as they are
    directories  paths that are directories in an archive: a file called so goes into it
    """

    def __init__(self, rename: Rename | None, note: Notes) -> None:
        self.rename, self._note = rename, note
        self.directories: set[bytes] = set()
        self._names: dict[bytes, bytes] = {}  # by path, of what was renamed

    def all(self, names: Sequence[bytes]) -> list[bytes]:
        """Return the paths of many names."""
        if self.rename is not None:
            names = list(filter(None, map(self.rename, names)))
        return shown_all(list(names))

    def of_all(self, table: FileTable) -> list[bytes]:
        """Return the paths of files whose names stay as they are."""
        pairs = zip(shown_all(table.names), table.directories.tolist(), strict=True)
        return [
            path + OWN if not folder and path in self.directories else path
            for path, folder in pairs
        ]

    def of(self, entry: Entry) -> bytes | None:
        """Return the path of a file; None: it is left out."""
        is_directory = entry.ftype == FileType.DIR
        if self.rename is None:
            path = to_bytes(path_of(entry.name))
        else:
            name = to_bytes(entry.name)
            renamed = self.rename(name)
            if not renamed:
                return None
            path = shown(renamed)
            earlier = self._names.get(path)
            self._names.setdefault(path, name)
            if earlier is not None and not is_directory:
                if earlier != name:
                    self._note(Note(name, SAME_PATH, True, often=3))
                return None
        return path + OWN if path in self.directories and not is_directory else path

    def name_of(self, path: bytes) -> bytes:
        """Return the name of the file at a path; b"": there is none."""
        if self.rename is None:
            return name_at(path)
        return self._names.get(path.removesuffix(OWN), b"")


class Unpacking:
    """One unpack: the store that is open, and what is noted and counted."""

    def __init__(
        self,
        base: str | os.PathLike[str],
        as_of: AsOf | None,
        note: Notes | None,
        progress: Progress | None,
        listed: Listed | None,
        max_ratio: int,
        *,
        reader: Reader | None = None,
    ) -> None:
        """reader: the store, open; None: it is opened by its path."""
        self.base, self.report, self._given = os.fspath(base), UnpackReport(), reader
        self._as_of, self._note, self._progress, self._listed = as_of, note, progress, listed
        self._ratio = Ratio(max_ratio)
        self._damages: list[str] = []
        self._stack = contextlib.ExitStack()
        self.reader: Reader
        self.allowance: Allowance

    def __enter__(self) -> Unpacking:
        reader = self._given
        if reader is None:
            reader = open_silently(self.base, as_of=self._as_of)
            self._stack.enter_context(contextlib.closing(reader))
        self.reader = reader
        self.allowance = Allowance(reader.most_content, reader.stored_bytes, self._ratio)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            for problem in self.reader.problems if kind is None else ():
                self.damaged(problem)  # a scan does not have files that no index has
        if self._note is None and kind is None:
            warn_of_damage(self.base, self._damages)

    def note(self, noted: Note) -> None:
        self.report.failed += noted.failed
        if self._note:
            self._note(noted)

    def damaged(self, error: CorruptError | str) -> None:
        """Note damage, once."""
        if str(error) not in self._damages:
            self._damages.append(str(error))
            self.note(Note(b"", str(error), True))

    def put_all(self, choice: Choice, paths: Paths, sink: Sink) -> None:
        """Put the chosen files. After an error the sink is ended: what is whole stays."""
        waiting = 0
        with self.ending(sink):
            together: Together | None = getattr(sink, "put_run", None)
            for entry in self._entries(choice, paths, None if self._listed else together):
                path = paths.of(entry)
                if path is not None and sink.put(entry, path) and self._listed:
                    self._listed(path)
                waiting += 1
                if waiting == PROGRESS_FILES and self._progress:
                    self._progress(waiting)
                    waiting = 0

    def _entries(self, choice: Choice, paths: Paths, together: Together | None) -> Iterator[Entry]:
        """Yield the chosen files that are not put in runs by `together`."""
        if together is None or paths.rename is not None:
            yield from choice.entries(self.reader, self.damaged)
            return
        for found in choice.runs(self.reader, self.damaged):
            if not isinstance(found, Run):
                yield found
            elif together(found, paths.of_all(found.table)):
                if self._progress:
                    self._progress(len(found.table))
            else:
                yield from found.entries()

    def finish(self, sink: Sink) -> None:
        with self.ending(sink):
            sink.finish()

    @contextlib.contextmanager
    def ending(self, sink: Sink) -> Iterator[None]:
        """End the sink if the block raises."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and isinstance(sink, Unpacker):
                sink.settle()
            sink.abort()
            raise

    def note_missing(self, choice: Choice) -> None:
        for name in choice.missing():
            self.note(Note(name, NO_MATCH if is_glob(to_str(name)) else MISSING, True))


@contextlib.contextmanager
def opened_directories(root: str) -> Iterator[Directories]:
    with contextlib.closing(Directories(root)) as found:
        yield found


# --- sinks ---


def _archive(
    stack: contextlib.ExitStack,
    run: Unpacking,
    tar: str | Writes | None,
    zip: str | Writes | None,
    contents: Writes | None,
    *,
    force: bool,
) -> Sink:
    """Return the sink of an archive, which gets its name when the stack ends without an error."""
    if contents is not None:
        return ContentWriter(contents, run.allowance, run.report, run.note)
    target = zip if tar is None else tar
    out = _opened(stack, target, force=force) if isinstance(target, str) else target
    assert out is not None
    if tar is not None:
        from winkfs.archive.tarwriter import TarWriter

        return TarWriter(out, run.allowance, run.report, run.note)
    from winkfs.archive.zipwriter import ZipWriter

    scratch = os.path.dirname(target) if isinstance(target, str) else ""
    owner = os.geteuid(), os.getegid()
    return ZipWriter(out, run.allowance, run.report, run.note, owner=owner, scratch=scratch or None)


def _opened(stack: contextlib.ExitStack, path: str, *, force: bool) -> Writes:
    """Create the file of an archive, beside its name. Raises FileExists; Refusal; OSError."""
    if path == STDOUT:
        return sys.stdout.buffer
    directory, name = locate(path)
    info = directory.info(name, follow=True) or directory.info(name)
    if info is not None and info.kind is Kind.DIRECTORY:
        raise IsDirectory("is a directory: name a file", path)
    if info is not None and info.kind is not Kind.FILE:
        raise Refusal("is no regular file: write to - and redirect it", path)
    if info is not None and not force:
        raise FileExists("is there already: --force replaces it", path)
    return NewFile(stack.enter_context(replacing(directory, name, new=not force)))


class ContentWriter:
    """Contents, one after another, as a Sink. Directories have none; that of a link is its
    target."""

    def __init__(
        self, out: Writes, allowance: Allowance, report: UnpackReport, note: Notes
    ) -> None:
        self._out, self._allowance = Output(out), allowance
        self._report, self._note = report, note

    def put(self, entry: Entry, path: bytes) -> bool:
        """Write a content; see `Sink`."""
        if entry.ftype == FileType.DIR:
            return False
        try:
            body = body_of(entry, self._allowance, holes=True)
        except FormatError as error:
            self._note(Note(path, str(error), True))
            return False
        for data in body.data(holes=True, note=self._note):
            self._out.write(data)
        self._report.files += 1
        self._report.bytes += entry.size
        return True

    def finish(self) -> None:
        self._out.flush()

    def abort(self) -> None:
        """Do nothing: what was written is with its reader."""


class Preview:
    """A Sink that writes nothing, and counts as `unpack` would.

    root  the directory; None: an archive
    """

    def __init__(self, root: str | None, existing: Existing, run: Unpacking) -> None:
        self._root = None if root is None else os.fsencode(root)
        self._existing, self._report, self._note = existing, run.report, run.note

    def put(self, entry: Entry, path: bytes) -> bool:
        """Count a file; see `Sink`."""
        report = self._report
        if entry.ftype == FileType.DIR:
            report.directories += 1
            return True
        if self._root is not None:
            try:
                if self._stays(self._root + b"/" + path, entry):
                    return False
            except FileExistsError as error:
                self._note(Note(path, error.strerror or DIRECTORY_THERE, True, often=1))
                return False
        if entry.ftype == FileType.LINK:
            report.links += 1
        else:
            report.files += 1
            report.bytes += entry.size
        return True

    def _stays(self, path: bytes, entry: Entry) -> bool:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        target = entry.read() if entry.ftype == FileType.LINK else b""
        return stays(
            found, entry, target, self._existing, self._report,
            read=lambda: os.readlink(path), is_time=lambda there, wanted: there == wanted,
        )  # fmt: skip

    def finish(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""
