"""Salvage: copies the intact files of a damaged data file to a new container.

Only the bytes of the data file are used, no index and no counters; if its superblock is lost, a
reconstructed one. All damage is reported.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from typing import Any, Final

import numpy as np

from winkformats.arrays import among
from winkformats.disk.paths import locate, open_file, registered
from winkformats.disk.posix import FileStorage, PatchedStorage, PosixDirectory
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory, FileType, Info, Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import Layout
from winkformats.kv.scan import resynchronise, scan_intact
from winkformats.kv.superblock import HALF, PAIR, SBSIZE, SECTOR, Superblock, read_superblock
from winkfs.container.building import building
from winkfs.container.bulk import Row
from winkfs.container.container import Container
from winkfs.container.copier import FileCopier
from winkfs.container.ondisk.compressed import LEVEL, word_of
from winkfs.container.ondisk.data import CHAINS, INCHAIN, SANE, Settings, new_superblock
from winkfs.container.ondisk.inode import FRAME, Attrs, Inode, cut
from winkfs.container.read import Content
from winkfs.container.store import Store
from winkfs.errors import FileExists, NoSuchFile
from winkfs.names import DERIVED, INODE, base_of, name_of, to_str
from winkfs.remote import refuse_far

LOST: Final = "lost+found"
COPY_BYTES: Final = 4 << 20  # of a file that is far, at a time
SEARCH_WINDOW: Final = 8 << 20  # bytes searched at a time
OVERLAP: Final = 128 << 10  # bytes read beyond, for an inode that begins in a window
LONGEST_KEY: Final = 4096  # bytes of a key that is searched for
LOWEST_BYTES: Final = np.arange(1, LONGEST_KEY + 1).astype(np.uint8)  # of its length
MAGIC: Final = b"\x28\xb5\x2f\xfd"  # of a zstd frame
SAMPLE_ENTRIES: Final = 1000  # decoded to rate a guess
SEARCH_BYTES: Final = 64 << 20  # in which an intact entry is searched, to test a guess
SANE_NUMBERS: Final[dict[str, Sequence[int]]] = {
    "ISZ": range(80, 1 << 20, 8), "HTALGO": (1, 2, 3), "CELLSZ": (1, 2), "HAVEDUPS": (0, 1),
    "TIMEMP": range(1, 1 << 31),
}  # fmt: skip
First = Callable[[Layout], int]  # returns the position of the first intact entry


@dataclass
class Salvaged:
    """Result of a salvage.

    files     number of whole files; partial: of files with a part below lost+found
    orphans   entries of content whose inode is lost, below lost+found
    problems  a line for each damaged range and each file that is not whole
    guessed   source of the reconstructed superblock, "": it was intact
    """

    files: int = 0
    partial: int = 0
    orphans: int = 0
    problems: list[str] = field(default_factory=list)
    guessed: str = ""


def salvage(
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    contid: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Salvaged:
    """Copy every intact file of a damaged data file to a new container.

    file      a data file, by any name, or BASE
    contid    the CONTID, if no file has it any more
    progress  called with the number of bytes done since the last call
    raises    NoSuchFile; FileExists (out); FormatError if its superblock cannot be reconstructed;
              OSError
    OUT gets its name when it is complete: see `building`.
    cost      two passes over the file; memory: as `reindex`, and 100 bytes an entry. A file on
              object storage is first copied, to a file without a name beside OUT
    """
    with _on_this_machine(_data_file(os.fspath(file)), base_of(out), progress) as path:
        return _salvage(path, out, contid, progress)


def _salvage(
    path: str,
    out: str | os.PathLike[str],
    contid: int | None,
    progress: Callable[[int], None] | None,
) -> Salvaged:
    head, guessed = superblock_for(path, contid)
    found = Salvaged(guessed=guessed)
    with served(path, head) as store:
        store.load()
        # Two of the inodes that only a search finds may have the same FILEID.
        searched = not store.kv.layout.checksum and _find_inodes(store)
        ao, columns = store.settings.ao, dict(store.schema)
        settings: dict[str, Any] = {"timemp": head.get("TIMEMP", 60), "columns": columns}
        compression = None
        if store.settings.compressed:
            with contextlib.suppress(CorruptError):  # its record is lost
                compression = store.frames.compression
        if compression is not None:
            settings["compress"] = word_of(compression.level or LEVEL)
        with building(base_of(out), ao=ao, **settings) as made:
            if compression is not None:
                made.change(made.changes.compress, compression)
            found.problems += store.notes + store.remarks
            keep_ids = not searched and store.nextfid < SANE // 2  # lost+found needs FILEIDs, too
            run = _Salvage(store, made, found, keep_ids=keep_ids)
            run.files(progress)
            if not ao:
                run.orphans()
    return found


def _data_file(path: str) -> str:
    for name in (path, path + ".data"):
        directory, last = locate(name)
        info = directory.info(last, follow=True) if last else None
        if info is not None and info.kind is FileType.FILE:
            return name
    raise NoSuchFile("no such file", path)


# --- a file on object storage ---


@contextlib.contextmanager
def _on_this_machine(path: str, out: str, progress: Callable[[int], None] | None) -> Iterator[str]:
    """Yield the path of a data file; of one that is far, that of a copy, which is gone afterwards.

    raises  FileExists: `out` is there, before anything is copied; OSError
    """
    if not is_far(path):
        yield path
        return
    refuse_far(out)
    (there, last), (here, name) = locate(path), locate(out)
    if here.info() is None:
        raise NoSuchFile("no such directory", here.path)
    if here.exists(name + ".data"):
        raise FileExists("the container exists already", out)
    scheme = f"salvage-{secrets.token_hex(8)}"
    with here.scratch() as copy, there.open(last) as source:
        source.cached = False  # what is there is salvaged
        _copy(source, copy, progress)
        with registered(scheme, partial(_Copied, copy, there, last)):
            yield f"{scheme}:/{last}"


def _copy(source: Storage, copy: Storage, progress: Callable[[int], None] | None) -> None:
    size, at = source.size(), 0
    copy.preallocate(size)
    reader = source.bulk(0, size)
    try:
        while at < size:
            done = copy.write(at, [reader.read(at, COPY_BYTES)])
            at += done
            if progress:
                progress(done)
    finally:
        reader.close()
    copy.name = source.name  # for messages


class _Copied(PosixDirectory):
    """The directory of a data file that is far: a copy of that, and the files beside it."""

    def __init__(self, copy: Storage, there: Directory, name: str, path: str) -> None:
        self._copy, self._there, self._name = copy, there, name
        super().__init__(path)

    def open(  # type: ignore[override]  # those beside it are far
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> Storage:
        return self._copy.duplicate() if name == self._name else self._there.open(name)

    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        return self._copy.info() if name == self._name else self._there.info(name)


# --- the superblock ---


def superblock_for(path: str, contid: int | None = None) -> tuple[Superblock, str]:
    """Return a superblock by which a data file can be read, and its source, "": the file itself.

    raises  FormatError if it cannot be reconstructed
    """
    with open_file(path) as storage:
        with contextlib.suppress(FormatError):
            block = read_superblock(storage)
            Settings.of(block, path)
            Layout.of(block, path)
            return block, ""
        size = storage.size()

        @cache
        def first(layout: Layout) -> int:
            return resynchronise(storage, layout, min(SECTOR, size), size, min(SEARCH_BYTES, size))

        guesses = list(_guesses(storage, path, contid, first))
        read = [_reads(storage, block, first) for block, _ in guesses]
    if any(read):
        return guesses[read.index(max(read))]
    raise FormatError(
        f"{storage.name}: its superblock is lost, and nothing has the CONTID any more: put an "
        "index of the container beside it under the same name, or give the CONTID"
    )


def _guesses(
    storage: Storage, path: str, contid: int | None, first: First
) -> Iterator[tuple[Superblock, str]]:
    """Yield superblocks that may be right, and their sources, the most likely first: those that
    winkfs writes, with settings that are still readable; then the readable variables alone."""
    known: dict[str, Mapping[str, int]] = {}
    if contid is not None:
        known["the CONTID that was given"] = {"CONTID": contid}
    for suffix in DERIVED:
        name = path.removesuffix(".data") + suffix
        with contextlib.suppress(FormatError, OSError), open_file(name) as derived:
            known[derived.name] = read_superblock(derived)
    halves = {
        f"what is readable of the superblock at byte {half}": _readable(storage.read(half, HALF))
        for half in (0, HALF)
    }
    one, other = halves.values()
    left = other | one
    timed = left.get("HAVEAO") == 1 or any(
        name.endswith(".time") and "CONTID" in block for name, block in known.items()
    )
    known |= halves
    numbers = {
        name: left[name] for name in SANE_NUMBERS if left.get(name, -1) in SANE_NUMBERS[name]
    }
    ids = {block["CONTID"]: where for where, block in reversed(known.items()) if "CONTID" in block}
    for contid, where in ids.items():
        for block in _usual(timed):
            block.update({name: numbers[name] for name in block.keys() & numbers})
            block["CONTID"] = contid
            if first(Layout.of(block)) < block["SBSIZE"]:  # old versions wrote one superblock
                block["SBSIZE"] = block["SYNCSIZE"] = SBSIZE
                block.pop("SBSEQ", None)
            yield block, where
    block = new_superblock(ao=False, timemp=60, classic=True, htalgo=None)
    block.update({name: numbers[name] for name in block.keys() & numbers})
    yield block, "the classic layout"
    for where, half in halves.items():
        with contextlib.suppress(FormatError, ValueError, KeyError):
            block = Superblock(half)
            block.check_known(path)
            Settings.of(block, path)
            Layout.of(block, path)
            Superblock.decode(b"".join(block.images()), file=path)
            yield block, where


def _usual(timed: bool) -> Iterator[Superblock]:
    """Yield superblocks of new containers, the usual first, for the first of equally good ones is
    taken. `timed`: it is most likely append-only."""
    append_only = [
        new_superblock(ao=True, timemp=60, classic=False, htalgo=None, compressed=compressed)
        for compressed in (False, True)
    ]
    plain = new_superblock(ao=False, timemp=60, classic=False, htalgo=None)
    plain |= {INCHAIN: 1, "INCOMPAT": plain["INCOMPAT"] | CHAINS}  # reads plain inodes, too
    yield from [*append_only, plain] if timed else [plain, *append_only]


def _readable(data: bytes) -> dict[str, int]:
    """Return the variables of a superblock that are readable."""
    found: dict[str, int] = {}
    for raw, value in PAIR.iter_unpack(data.ljust(512, b"\0")[8:504]):
        name = raw.rstrip(b" \0").decode("ascii", "replace")
        if name and name.isascii() and name.isprintable():
            found.setdefault(name, value)
    return found


def _reads(storage: Storage, block: Superblock, first: First) -> int:
    """Return how many inodes of the first entries can be decoded with a superblock."""
    layout, settings = Layout.of(block), Settings.of(block, storage.name)
    stop, good = storage.size(), 0
    if not layout.checksum:
        stop = min(SEARCH_WINDOW, stop)
        return sum(1 for _ in _inodes_in(storage, layout, settings, block["SBSIZE"], stop))
    with contextlib.suppress(FormatError):
        batches = scan_intact(storage, layout, first(layout), stop, problem=lambda _: None)
        for batch in islice(batches, 1):
            for entry in map(batch.entry, range(min(len(batch), SAMPLE_ENTRIES))):
                if entry.key.endswith(INODE) and entry.value:
                    Inode.decode(entry.value, settings.form, file=storage.name, offset=entry.pos)
                    good += 1
    return good


# --- the file as a container ---


@contextlib.contextmanager
def served(
    path: str, block: Superblock, end: int | None = None, *, mapped: bool = False
) -> Iterator[Store]:
    """Open a data file with another superblock, as a container for reading, without an index.

    end     end of its entries; None: that of the file
    mapped  see `DataFile`
    """
    with open_file(path) as storage:
        size = storage.size() if end is None else end
    head = Superblock(block)
    for name in ("SYNCSIZE", "ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ", "NEXTFID"):
        head.pop(name, None)  # counters may be wrong
    head["FILESIZE"] = max(size, head["SBSIZE"])
    scheme, start = f"salvage-{secrets.token_hex(8)}", b"".join(head.images())
    with (
        registered(scheme, partial(_OneFile, path, start)),
        Store(f"{scheme}:/file", writable=False, load=False, mapped=mapped) as store,
    ):
        yield store


class _OneFile(PosixDirectory):
    """A directory with a data file only, whose start is replaced by `head`."""

    def __init__(self, file: str, head: bytes, path: str) -> None:
        self._file, self._head = file, head
        super().__init__(path)

    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> FileStorage:
        if name != "file.data" or mode != "r":
            raise FileNotFoundError(2, "no such file", name)
        with open_file(self._file) as file:
            assert isinstance(file, FileStorage)
            return PatchedStorage.behind(file, self._head)

    def info(self, name: str = "", *, follow: bool = False) -> Info:
        """Return the Info of the data file, the only file there is."""
        with open_file(self._file) as storage:
            return storage.info()


# --- copying ---


class _Salvage:
    """A run of a salvage: copies the intact files of `store` to `made`."""

    def __init__(self, store: Store, made: Container, found: Salvaged, *, keep_ids: bool) -> None:
        self._store, self._made, self._found = store, made, found
        self._content = Content(store)
        self._copier, self._keep_ids = FileCopier(store, made), keep_ids
        if keep_ids:
            made.store.nextfid = max(made.store.nextfid, store.nextfid)
        self._owned: set[int] = set()  # positions of the entries of files

    def files(self, progress: Callable[[int], None] | None) -> None:
        """Copy all files whose inode is intact, or the rest of their content."""
        for pos in self._store.index.positions().tolist():
            damage: list[CorruptError] = []
            key = self._store.key_at(pos)
            name = to_str(name_of(key))
            try:
                inode = self._store.inode_at(pos, damage.append)[1]
            except CorruptError as error:
                self._found.problems.append(str(error))
                continue
            self._owned.update(inode.pointers)
            attrs = self._attrs(inode, name)
            try:
                if damage:
                    raise damage[0]
                fileid = inode.fileid if self._keep_ids else None
                self._copier.copy(pos, inode, attrs, key, fileid)
                self._found.files += 1
            except CorruptError as error:
                self._found.problems.append(f"{name}: {error}")
                self._put_part(inode, attrs, name)
            if progress:
                progress(inode.lsize)

    def _attrs(self, inode: Inode, name: str) -> Attrs | None:
        """Return the attributes of a file; None, for the defaults, if they are damaged."""
        store = self._store
        try:
            attrs = self._content.attrs(inode)
        except CorruptError as error:
            self._found.problems.append(f"{name}: {error}")
            return None
        shown = replace(attrs, xattrs=store.shown.shown(attrs.xattrs)) if attrs.xattrs else attrs
        return None if store.settings.classic else shown

    def _put_part(self, inode: Inode, attrs: Attrs | None, name: str) -> None:
        """Put the rest of a damaged file below lost+found."""
        content, left = left_of(self._store, inode)
        if left and not self._store.settings.ao:
            ns = self._store.settings.ns_of(inode.mtime)
            kept = (attrs.mode, attrs.uid, attrs.gid, attrs.xattrs) if attrs is not None else ()
            self._made.put_rows([Row(f"{LOST}/{name}", content, ns, inode.ftype, *kept)])
            self._found.partial += 1

    def orphans(self) -> None:
        """Copy content that no inode names and that is not marked deleted."""
        kv, compressed = self._store.kv, self._store.settings.compressed
        owned = np.array(sorted(self._owned), np.int64)
        with contextlib.suppress(FormatError):  # without checksums, it ends where the chain breaks
            for batch in scan_intact(
                kv.storage, kv.layout, kv.start, kv.end, problem=lambda _: None
            ):
                others = np.flatnonzero((batch.flags == 0) & ~among(batch.pos, owned))
                for entry in map(batch.entry, others.tolist()):
                    owner, _, part = entry.key.rpartition(b"/")
                    if part[:1] != b"D" or not entry.value:
                        continue
                    value = entry.value
                    if compressed and value.startswith(MAGIC):
                        with contextlib.suppress(CorruptError):  # or a document that begins so
                            value = self._store.frames.content(value, entry.pos)
                    self._made.put(f"{LOST}/content-{to_str(owner)}-{entry.pos}", value)
                    self._found.orphans += 1


def left_of(store: Store, inode: Inode) -> tuple[bytes, int]:
    """Return the content of a damaged file, with zeros for damaged parts, and its intact bytes.

    inode   with the extents that are known
    """
    pieces, left = [], 0
    for extent in cut(inode.extents, 0, inode.lsize):
        piece = b""
        if extent.pointer > 0:
            framed, skip = extent.skip >= FRAME, extent.skip & ~FRAME
            with contextlib.suppress(CorruptError):
                piece = store.value_at(extent.pointer, framed)[skip:][: extent.size]
        pieces.append(piece.ljust(extent.size, b"\0"))
        left += len(piece)
    return b"".join(pieces), left


def _find_inodes(store: Store) -> bool:
    """Find inodes after broken lengths by their own checksums, if entries have none -> whether
    there are any."""
    live = set(store.index.positions().tolist())
    newest: dict[bytes, int] = {}
    kv = store.kv
    for pos, key, deleted in _inodes_in(kv.storage, kv.layout, store.settings, kv.start, kv.end):
        newest[key] = 0 if deleted else pos
    new = {key: pos for key, pos in newest.items() if pos and pos not in live}
    for key, pos in new.items():
        store.index.assign(key, pos)
    return bool(new)


def _lengths_before(data: bytes, end: int) -> list[int]:
    """Return the lengths, ascending, whose lowest byte is in front of a key of that length which
    ends at an offset: of 256 lengths one."""
    most = min(end - len(INODE), LONGEST_KEY)
    before = np.frombuffer(data, np.uint8, most, end - 1 - most)[::-1]
    found: list[int] = (np.flatnonzero(before == LOWEST_BYTES[:most]) + 1).tolist()
    return [length for length in found if length > len(INODE)]


def _inodes_in(
    storage: Storage, layout: Layout, settings: Settings, start: int, stop: int
) -> Iterator[tuple[int, bytes, bool]]:
    """Yield positions, keys and delflags of all inodes whose CKSUM is right, at any offset."""
    prefix = layout.key.prefix
    for at in range(start, stop, SEARCH_WINDOW):
        data = storage.read(at, min(SEARCH_WINDOW + OVERLAP, stop - at))
        hit = data.find(INODE)
        while 0 <= hit < SEARCH_WINDOW:
            for length in _lengths_before(data, hit + len(INODE)):
                begin = hit + len(INODE) - length - prefix
                if begin < 0 or int.from_bytes(data[begin : begin + prefix], "big") != length:
                    continue
                pos, inside = at + begin - layout.delflag, begin - layout.delflag
                with contextlib.suppress(FormatError):
                    entry = layout.decode(data, max(inside, 0), pos, storage.name)
                    Inode.decode(entry.value, settings.form, file=storage.name, offset=pos)
                    yield pos, entry.key, entry.deleted
                    break
            hit = data.find(INODE, hit + 1)
