"""Salvage: what is intact in a damaged data file, as a new container.

The file is read as it lies there, through a superblock that is made up where its own is lost, and
by nothing but its own bytes: no index, no counters. What cannot be believed is told.
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
from winkformats.disk.storage import Info, Kind, Storage
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
from winkfs.errors import NoSuchFile
from winkfs.names import DERIVED, INODE, base_of, name_of, to_str

LOST: Final = "lost+found"
WINDOW: Final = 8 << 20  # bytes searched at a time
OVERLAP: Final = 128 << 10  # bytes read beyond, for an inode that begins in a window
LONGEST: Final = 4096  # bytes of a key that is searched for
MAGIC: Final = b"\x28\xb5\x2f\xfd"  # of a zstd frame
SAMPLE: Final = 1000  # entries by which a guess is judged
NEAR: Final = 64 << 20  # bytes searched for one good entry, to tell whether a guess is right
SANE_NUMBERS: Final[dict[str, Sequence[int]]] = {
    "ISZ": range(80, 1 << 20, 8), "HTALGO": (1, 2, 3), "CELLSZ": (1, 2), "HAVEDUPS": (0, 1),
    "TIMEMP": range(1, 1 << 31),
}  # fmt: skip
First = Callable[[Layout], int]  # where the first good entry stands


@dataclass
class Salvaged:
    """What a salvage found.

    files     that are whole; partial: of which only a part is, below lost+found
    orphans   entries of content whose inode is lost, below lost+found
    problems  a line for each damaged range and each file that is not whole
    guessed   what the superblock was made up from, "": it was good
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
    """Copy every intact file of a data file, whatever else is damaged in it, to a new container.

    file      a data file, by any name, or BASE
    contid    CONTID of the container, where nothing tells it any more
    progress  called with the number of bytes done since the last call
    raises    NoSuchFile; FileExists (out); FormatError where nothing says how to read it; OSError
    OUT gets its name when it is whole: see `building`.
    cost      two passes over the file; memory: as `reindex`, and 100 bytes an entry
    """
    path = _data_file(os.fspath(file))
    head, guessed = superblock_for(path, contid)
    found = Salvaged(guessed=guessed)
    with served(path, head) as store:
        store.load()
        # Of inodes that only a search finds two may have one FILEID.
        searched = not store.kv.layout.checksum and _find_inodes(store)
        ao, columns = store.settings.ao, dict(store.schema)
        settings: dict[str, Any] = {"timemp": head.get("TIMEMP", 60), "columns": columns}
        compression = None
        if store.settings.compressed:
            with contextlib.suppress(CorruptError):  # nothing says it any more
                compression = store.frames.compression
        if compression is not None:
            settings["compress"] = word_of(compression.level or LEVEL)
        with building(base_of(out), ao=ao, **settings) as made:
            if compression is not None:
                made.change(made.changes.compress, compression)
            found.problems += store.notes + store.remarks
            keep_ids = not searched and store.nextfid < SANE // 2  # there is room for lost+found
            run = _Salvage(store, made, found, keep_ids=keep_ids)
            run.files(progress)
            if not ao:
                run.orphans()
    return found


def _data_file(path: str) -> str:
    for name in (path, path + ".data"):
        directory, last = locate(name)
        info = directory.info(last, follow=True) if last else None
        if info is not None and info.kind is Kind.FILE:
            return name
    raise NoSuchFile("no such file", path)


# --- the superblock ---


def superblock_for(path: str, contid: int | None = None) -> tuple[Superblock, str]:
    """A superblock that a data file can be read by -> it, and what it was made up from, "": none.

    raises  FormatError where nothing says it
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
            return resynchronise(storage, layout, min(SECTOR, size), size, min(NEAR, size))

        guesses = list(_guesses(storage, path, contid, first))
        read = [_reads(storage, block, first) for block, _ in guesses]
    if any(read):
        return guesses[read.index(max(read))]
    raise FormatError(
        f"{path}: its superblock is lost, and nothing has the CONTID any more: put an index of the "
        "container beside it under the same name, or give the CONTID"
    )


def _guesses(
    storage: Storage, path: str, contid: int | None, first: First
) -> Iterator[tuple[Superblock, str]]:
    """Superblocks that may be right, and where they come from, the most likely first: as winkfs
    makes them, with what is readable of the numbers that may be others; then what is readable."""
    known: dict[str, Mapping[str, int]] = {}
    if contid is not None:
        known["the CONTID that was given"] = {"CONTID": contid}
    for suffix in DERIVED:
        name = path.removesuffix(".data") + suffix
        with contextlib.suppress(FormatError, OSError), open_file(name) as derived:
            known[name] = read_superblock(derived)
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
            if first(Layout.of(block)) < block["SBSIZE"]:  # old versions made one half
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
    """Superblocks as of new containers, the usual before what reads more: the first of equals is
    taken. `timed`: it is most likely append-only."""
    append_only = [
        new_superblock(ao=True, timemp=60, classic=False, htalgo=None, compressed=compressed)
        for compressed in (False, True)
    ]
    plain = new_superblock(ao=False, timemp=60, classic=False, htalgo=None)
    plain |= {INCHAIN: 1, "INCOMPAT": plain["INCOMPAT"] | CHAINS}  # inodes without are the same
    yield from [*append_only, plain] if timed else [plain, *append_only]


def _readable(data: bytes) -> dict[str, int]:
    """The variables of a superblock, as far as they can be made out."""
    found: dict[str, int] = {}
    for raw, value in PAIR.iter_unpack(data.ljust(512, b"\0")[8:504]):
        name = raw.rstrip(b" \0").decode("ascii", "replace")
        if name and name.isascii() and name.isprintable():
            found.setdefault(name, value)
    return found


def _reads(storage: Storage, block: Superblock, first: First) -> int:
    """How many inodes decode, of the first entries that can be found with a superblock."""
    layout, settings = Layout.of(block), Settings.of(block, storage.name)
    stop, good = storage.size(), 0
    if not layout.checksum:
        stop = min(WINDOW, stop)
        return sum(1 for _ in _inodes_in(storage, layout, settings, block["SBSIZE"], stop))
    with contextlib.suppress(FormatError):
        batches = scan_intact(storage, layout, first(layout), stop, problem=lambda _: None)
        for batch in islice(batches, 1):
            for entry in map(batch.entry, range(min(len(batch), SAMPLE))):
                if entry.key.endswith(INODE) and entry.value:
                    Inode.decode(entry.value, settings.form, file=storage.name, offset=entry.pos)
                    good += 1
    return good


# --- the file as a container ---


@contextlib.contextmanager
def served(
    path: str, block: Superblock, end: int | None = None, *, mapped: bool = False
) -> Iterator[Store]:
    """A container that is the file behind another superblock, and nothing else; to be read, without
    an index as yet.

    end     where its entries end; None: with the file
    mapped  see `DataFile`
    """
    with open_file(path) as storage:
        size = storage.size() if end is None else end
    head = Superblock(block)
    for name in ("SYNCSIZE", "ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ", "NEXTFID"):
        head.pop(name, None)  # nothing that could vouch for anything
    head["FILESIZE"] = max(size, head["SBSIZE"])
    scheme, start = f"salvage-{secrets.token_hex(8)}", b"".join(head.images())
    with (
        registered(scheme, partial(_OneFile, path, start)),
        Store(f"{scheme}:/file", writable=False, load=False, mapped=mapped) as store,
    ):
        yield store


class _OneFile(PosixDirectory):
    """A directory in which there is a data file only, with another start than it has."""

    def __init__(self, file: str, head: bytes, path: str) -> None:
        self._file, self._head = file, head
        super().__init__(path)

    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> FileStorage:
        if name != "file.data" or mode != "r":
            raise FileNotFoundError(2, "no such file", name)
        return PatchedStorage.behind(self._file, self._head)

    def info(self, name: str = "", *, follow: bool = False) -> Info:
        """Of the data file: nothing else is asked for."""
        with open_file(self._file) as storage:
            return storage.info()


# --- copying ---


class _Salvage:
    """One run: what of `store` is intact goes to `made`."""

    def __init__(self, store: Store, made: Container, found: Salvaged, *, keep_ids: bool) -> None:
        self._store, self._made, self._found = store, made, found
        self._content = Content(store)
        self._copier, self._keep_ids = FileCopier(store, made), keep_ids
        if keep_ids:
            made.store.nextfid = max(made.store.nextfid, store.nextfid)
        self._owned: set[int] = set()  # entries that files name

    def files(self, progress: Callable[[int], None] | None) -> None:
        """All files whose inode is good, or what is left of them."""
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
        """The attributes of a file, None where they are damaged: it gets the default ones."""
        store = self._store
        try:
            attrs = self._content.attrs(inode)
        except CorruptError as error:
            self._found.problems.append(f"{name}: {error}")
            return None
        shown = replace(attrs, xattrs=store.shown.shown(attrs.xattrs)) if attrs.xattrs else attrs
        return None if store.settings.classic else shown

    def _put_part(self, inode: Inode, attrs: Attrs | None, name: str) -> None:
        """Put what is left of a file below lost+found."""
        content, left = left_of(self._store, inode)
        if left and not self._store.settings.ao:
            ns = self._store.settings.ns_of(inode.mtime)
            kept = (attrs.mode, attrs.uid, attrs.gid, attrs.xattrs) if attrs is not None else ()
            self._made.put_rows([Row(f"{LOST}/{name}", content, ns, inode.ftype, *kept)])
            self._found.partial += 1

    def orphans(self) -> None:
        """Content that no inode names and nobody has deleted."""
        kv, compressed = self._store.kv, self._store.settings.compressed
        owned = np.array(sorted(self._owned), np.int64)
        with contextlib.suppress(FormatError):  # no checksums: up to where the chain breaks
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
                        with contextlib.suppress(CorruptError):  # else a document begins so
                            value = self._store.frames.content(value, entry.pos)
                    self._made.put(f"{LOST}/content-{to_str(owner)}-{entry.pos}", value)
                    self._found.orphans += 1


def left_of(store: Store, inode: Inode) -> tuple[bytes, int]:
    """-> the content of a file with zeros in the place of what is damaged, bytes that are not.

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
    """Where entries have no checksums, find inodes behind broken lengths by their own ones ->
    whether there are any."""
    live = set(store.index.positions().tolist())
    newest: dict[bytes, int] = {}
    kv = store.kv
    for pos, key, deleted in _inodes_in(kv.storage, kv.layout, store.settings, kv.start, kv.end):
        newest[key] = 0 if deleted else pos
    new = {key: pos for key, pos in newest.items() if pos and pos not in live}
    for key, pos in new.items():
        store.index.assign(key, pos)
    return bool(new)


def _inodes_in(
    storage: Storage, layout: Layout, settings: Settings, start: int, stop: int
) -> Iterator[tuple[int, bytes, bool]]:
    """Positions, keys and delflags of all inodes whose CKSUM is right, wherever they stand."""
    prefix = layout.key.prefix
    for at in range(start, stop, WINDOW):
        data = storage.read(at, min(WINDOW + OVERLAP, stop - at))
        hit = data.find(INODE)
        while 0 <= hit < WINDOW:
            for length in range(len(INODE) + 1, min(hit, LONGEST) + 1):  # of the key ending here
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
