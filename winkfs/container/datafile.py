"""DataFile: BASE.data of an open container: entries and inodes by position, counters, sync, lock.

Derived files, which find inodes by their keys, are handled by `store`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, Self

from winkformats.disk.paths import locate
from winkformats.disk.storage import Directory, Storage, replacing
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.kv.entry import KVEntry
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock
from winkfs.container.frames import Frames
from winkfs.container.index import Index
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.compressed import COMPRESS, Compression
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import (
    CHAINS,
    INCHAIN,
    LAST_BYTES,
    SANE,
    Settings,
    catalog_names,
    make_room,
)
from winkfs.container.ondisk.inode import ExtentArray, Inode
from winkfs.container.ondisk.lock import SUFFIX, WriterLock
from winkfs.container.ondisk.typed import (
    COLUMNS,
    KEY,
    UNDECLARED,
    Declared,
    Schema,
    later_words,
    parse_schema,
)
from winkfs.errors import FileExists, Locked, NoSuchFile, NotAllowed
from winkfs.names import DERIVED, SUFFIXES
from winkfs.remote import refuse_far

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
MAX_NOTES: Final = 100
KEPT_INODES: Final = 4  # of many extents
KEY_READ_BYTES: Final = 512  # read first for a key of unknown length


class DataFile:
    """An open data file. A `with` statement closes it without a sync.

    pending_deletes  positions whose delflags are to be set after the next sync
    notes    messages about damage that was skipped
    remarks  messages about damage that costs no file: of derived files, and of superblocks, as a
             power cut leaves it
    index    the live files by their keys; set by `Store`
    catalog_from  the least DATAEND of a BASE.cat that is valid
    kept     position -> key and inode, a few of many extents; none that is a pending delete
    """

    index: Index
    catalog_from = 0
    lock: WriterLock | None = None  # also if an opening is interrupted before it has one

    def __init__(
        self, base: str, *, writable: bool, mapped: bool = True, lock: WriterLock | None = None
    ) -> None:
        """Open a data file. Raises NoSuchFile, Locked, FormatError, OSError.

        mapped  False, for servers: nothing is mapped, all is read by pread, one more system call a
                file. A truncated file or a failing disk is then an error and does not kill the
                process
        lock    the lock that a writer has already; None: it takes one
        """
        self.base, self.writable, self.mapped = base, writable, mapped
        self.notes: list[str] = []
        self.remarks: list[str] = []
        self.pending_deletes: list[int] = []
        self._far: dict[str, Storage] = {}  # derived files of a container that is far
        self.recoveries = 0  # number of recoveries and reopenings, each of which counts anew
        self._syncing = 0  # bytes up to which the file is being synced
        self.lock = lock
        if writable:
            refuse_far(base)
        self.directory, self.name = locate(base)
        if self.directory.info(self.name + ".data", follow=True) is None:
            raise NoSuchFile("no such container (there is no BASE.data)", base)
        if writable and lock is None:
            self.lock = WriterLock(base, (self.directory, self.name))
        self._open_data()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abandon()

    def _open_data(self) -> None:
        mode = "w" if self.writable else "r"
        storage = self.directory.open(self.name + ".data", mode, uncached=True)
        self.mapped = self.mapped and not storage.far
        storage.mapped = self.mapped
        try:
            info = storage.info()
            if self.lock and self.lock.identity != info.identity:
                raise Locked("another file took the place of BASE.data: try again", self.base)
            if self.writable:  # a compaction whose last sync failed may have renamed it
                self.directory.sync()
            self.kv = KVSeq.open(storage, writable=self.writable)
        except CorruptError as error:
            storage.close()
            what = f"{error.what} (winkfs repair mends it)"
            raise CorruptError(what, file=error.file, offset=error.offset,
                               expected=error.expected, found=error.found) from None  # fmt: skip
        except BaseException:
            storage.close()
            raise
        self.settings = Settings.of(self.kv.superblock, self.kv.storage.name)
        self.keeps_older = self.settings.havedups
        self._want_chains, self.kept = False, dict[int, tuple[bytes, Inode]]()
        if self.kv.truncated:
            self.note(
                f"{self.kv.storage.name}: cut short, only {self.kv.end} of its "
                f"{self.kv.superblock['FILESIZE']} bytes are there: put a whole copy in its place, "
                "or run winkfs repair"
            )
        block = self.kv.superblock
        if block.damage is not None:  # a power cut may do that
            which = "second" if block.second else "first"
            self.remarks.append(f"{block.damage}; the {which} superblock is good")
        self._places: dict[str, int] = {}
        self.frames = Frames(self.kv, partial(self.place, COMPRESS))
        self.itotsz, self.dtotsz = block.get("ITOTSZ", 0), block.get("DTOTSZ", 0)
        self.nextfid = block.get("NEXTFID", 0)  # 0: not known yet
        if not 0 <= self.nextfid < SANE:
            self.nextfid = 0
        self._declared: tuple[int, Declared] = (0, UNDECLARED)
        self._shown: Declared | None = None
        if self.writable:
            self._need_lengths()
        self.synced = block.get("FILESIZE", self.kv.end)
        names = list(block)
        self.filesize_at = 16 + 16 * names.index("FILESIZE") if "FILESIZE" in block else 0
        self._remember_filesize()
        self.owner, self._identity = (info.uid, info.gid), info.identity

    # --- compression of content ---

    def place(self, name: str) -> int:
        """Return the position of the entry that the variable COLUMNS or COMPRESS of the superblock
        names, for a writer as of the next sync. 0: there is none."""
        return self._places.get(name, self.kv.superblock.get(name, 0))

    def compress(self, compression: Compression) -> None:
        """Set the compression of new content, published by the next sync. Raises OSError."""
        value = compression.encode()
        self.kv.reserve(len(value) + 64)
        # The old entry stays until the next compaction: frames may still need it.
        self._places[COMPRESS] = self.kv.append(COMPRESSION, value)

    # --- columns of the user ---

    @property
    def schema(self) -> Schema:
        """The columns of the user that files may have: name -> type."""
        return self.declared.schema

    @property
    def shown(self) -> Declared:
        """The columns with which attributes of files are shown."""
        return self._shown or self.declared

    def show_types(self, columns: Schema) -> None:
        """Show attributes with the types that columns have in a data set, from now on."""
        types = {name: columns.get(name, kind) for name, kind in self.schema.items()}
        self._shown = Declared(types) if types != self.schema else None

    @property
    def declared(self) -> Declared:
        """The columns of the user as they were declared."""
        at = self.place(COLUMNS)
        if self._declared[0] != at:
            self._declared = at, self._read_declared(at)
        return self._declared[1]

    def _read_declared(self, at: int) -> Declared:
        if not at:  # no columns were ever declared
            return UNDECLARED
        try:
            entry = self.entry_at(at)
            if entry.key != KEY:
                raise CorruptError("not the columns", file=self.kv.storage.name, offset=at)
            declared = Declared(parse_schema(entry.value), later=later_words(entry.value))
        except (CorruptError, ValueError) as error:
            self.note(f"{self.base}: its columns cannot be read ({error}): winkfs columns add "
                      "declares them anew")  # fmt: skip
            return UNDECLARED
        if declared.later:
            what = f"its columns {' '.join(declared.later)} need a later version of winkfs"
            self.remark(f"{self.base}: {what}")
        return declared

    def declare(self, schema: Schema) -> None:
        """Declare these columns, and no others, from the next sync on. Raises OSError.

        The caller drops the catalog; the next one finds the values that files already have.
        """
        names = {name.lower() for name in schema}
        later = [word for word in self.declared.later if word.split(":")[0].lower() not in names]
        text = Declared(schema, later=later).record
        self.kv.reserve(len(text) + 64)
        at, before = self.kv.append(KEY, text), self.place(COLUMNS)
        if before and self.kv.layout.delflag:
            self.pending_deletes.append(before)
            self.kv.aentries -= 1
        self._places[COLUMNS] = at

    def _need_lengths(self) -> None:
        """Raise NotAllowed if keys or values have a fixed length: those of files vary."""
        for name, field in (("KEYREPR", self.kv.layout.key), ("VALREPR", self.kv.layout.value)):
            if not field.prefix:
                what = f"{name} {field.code} takes {field.room} bytes exactly: no file fits"
                raise NotAllowed(what, self.base)

    def note(self, problem: CorruptError | str) -> None:
        """Record damage of the data file, once, in `notes`."""
        if len(self.notes) < MAX_NOTES and (text := str(problem)) not in self.notes:
            self.notes.append(text)

    def remark(self, what: DerivedDamage | str) -> None:
        """Record damage of a derived file, or a message, in `remarks`."""
        if len(self.remarks) < MAX_NOTES:
            more = "" if isinstance(what, str) else f": {self.kv.storage.name} is asked instead"
            self.remarks.append(f"{what}{more}")

    # --- entries and inodes by position ---

    def entry_at(self, pos: int, least: int = 0) -> KVEntry:
        """Return the verified entry at a position. `least`: see `KVSeq.get`.

        raises  CorruptError
        """
        return self.kv.get(pos, least)

    def value_at(self, pos: int, framed: bool) -> bytes:
        """Return the verified value of an entry, decompressed if it is `framed`."""
        value = self.entry_at(pos).value
        return self.frames.content(value, pos) if framed else value

    def key_at(self, pos: int) -> bytes:
        """Return the key of the entry at a position, unverified except for its bounds."""
        kv = self.kv
        if not kv.superblock["SBSIZE"] <= pos < kv.end:
            return b""  # a cell that points outside of the file names none
        kv.show(pos)
        data = kv.storage.read(pos, KEY_READ_BYTES)
        span = kv.layout.locate(data, 0)
        if span.value > len(data) == KEY_READ_BYTES:  # a long key
            data = kv.storage.read(pos, KEY_READ_BYTES + kv.layout.key.limit)
            span = kv.layout.locate(data, 0)
        if span.value > len(data) or pos + span.end > kv.end:
            return b""
        return data[span.key : span.key + span.key_len]

    def is_bad(self, pos: int) -> bool:
        """Return whether the entry at a position is damaged; a position outside of the file has
        none."""
        if not self.kv.superblock["SBSIZE"] <= pos < self.kv.end:
            return False
        try:
            self.entry_at(pos)
        except CorruptError:
            return True
        return False

    def inode_at(
        self, pos: int, problem: Callable[[CorruptError], None] | None = None
    ) -> tuple[bytes, Inode, bool]:
        """Return (key, inode with all its extents, whether it is marked deleted).

        problem  called with damage that hides extents, which are left out: see `whole`; None: it is
                 raised
        raises   CorruptError
        cost     one read; the last few inodes of many extents are kept in memory
        """
        kept = self.kept.get(pos)
        if kept is not None:
            if self.writable:  # see `kept`
                return *kept, False
            return *kept, bool(self.kv.layout.delflag) and self.kv.storage.read(pos, 1) == b"\1"
        form, file = self.settings.form, self.kv.storage.name
        entry = self.entry_at(pos, self.inode_size if self.kv.storage.far else 0)
        stored = Inode.decode(entry.value, form, file=file, offset=pos)
        inode = whole(stored, pos, self.entry_at, form, file, problem)
        if isinstance(inode.extents, ExtentArray) and not entry.deleted and problem is None:
            self.keep_inode(pos, entry.key, inode)
        return entry.key, inode, entry.deleted

    def keep_inode(self, pos: int, key: bytes, inode: Inode) -> None:
        """Keep an inode of many extents in memory for `inode_at`."""
        if len(self.kept) >= KEPT_INODES:
            del self.kept[next(iter(self.kept))]
        self.kept[pos] = key, inode

    def need_chains(self) -> bool:
        """Return whether the superblock on disk allows inodes that build on others (chains); if
        not, the next sync allows them."""
        layout = self.kv.layout
        if self.settings.pairoff and layout.checksum and layout.delflag and not self.settings.ao:
            self._want_chains = True
        return self.settings.chains

    @property
    def inode_size(self) -> int:
        """Bytes of the inodes that put and put_many write for a file of one extent."""
        return -(-max(self.settings.isz, 56 + self.settings.form.pair) // 8) * 8

    # --- staying current ---

    def note_chains(self) -> None:
        """Accept chains once the superblock allows them."""
        if self.kv.superblock.get(INCHAIN) == 1 and not self.settings.chains:
            self.settings = replace(self.settings, chains=True)

    def moved(self) -> bool:
        """Return whether FILESIZE in the file has changed. Cost: a read of 8 bytes."""
        at = self.filesize_at
        return at > 0 and self.kv.storage.read(at, 8) != self.filesize

    def _remember_filesize(self) -> None:
        """Remember the bytes of FILESIZE in the first superblock, for `moved`."""
        self.filesize = self.synced.to_bytes(8, "big")
        if self.kv.superblock.damage is not None:  # the first superblock may have any bytes there
            self.filesize = self.kv.storage.read(self.filesize_at, 8)

    # --- derived files ---

    def open_derived(self, suffix: str) -> Storage:
        """Open a derived file for reading; where that is far, what was read of it stays in memory
        for the next time. Raises OSError."""
        if not self.kv.storage.far:
            return self.directory.open(self.name + suffix)
        if suffix not in self._far:
            self._far[suffix] = self._open_far(suffix)
        return self._far[suffix].duplicate()

    def _open_far(self, suffix: str) -> Storage:
        likely, *others = (
            catalog_names(self.name, self.kv.superblock)
            if suffix == ".cat"
            else [self.name + suffix]
        )
        if others:  # it asks for the object at once
            storage = self.directory.open(likely)
            with suppress(FileNotFoundError):
                storage.begin(LAST_BYTES)
                return storage
            (likely,) = others
        return self.directory.open(likely)

    def deriving(
        self,
        suffix: str,
        *,
        uncached: bool = False,
        unsure: Callable[[], object] | None = None,
    ) -> AbstractContextManager[Storage]:
        """Return a context that writes a new derived file, see `replacing`.

        The file gets mode and owner of the data file, and stays open.
        """
        name, like = self.name + suffix, self.kv.storage
        return replacing(
            self.directory, name, like=like, uncached=uncached, unsure=unsure, keep=True
        )

    def record_unwritten(self, error: OSError) -> None:
        """Record that a derived file could not be written, unless the disk is full.

        No data is lost by that: the file is derived anew.
        """
        if error.errno not in NO_ROOM:
            self.note(f"{error.filename or self.base}: {error.strerror}: a derived file was not "
                      "written, reindex makes it anew")  # fmt: skip

    # --- durability ---

    def need_delflag(self, what: str) -> None:
        """Raise NotAllowed for an operation that needs delflags, in a container without them."""
        if not self.kv.layout.delflag:
            raise NotAllowed(
                f"{what} needs KVDELFL 1: without delflags it would not outlive a reindex",
                self.base,
            )

    def sync_data(self) -> None:
        """Make data, then the superblock durable; then set the delflags of pending deletes."""
        for _ in self.syncing_data():
            self.kv.sync_storage()

    def syncing_data(self) -> Iterator[None]:
        """Do `sync_data` in steps, see `KVSeq.syncing`."""
        block = self.kv.superblock
        nextfid = self.nextfid or block.get("NEXTFID", 0)
        variables = {"ITOTSZ": self.itotsz, "DTOTSZ": self.dtotsz, "NEXTFID": nextfid}
        known = {name: value for name, value in variables.items() if name in block}
        known |= self._places
        if self._want_chains and not self.settings.chains and "INCOMPAT" in block:
            known |= {INCHAIN: 1, "INCOMPAT": block["INCOMPAT"] | CHAINS}
        make_room(block, known)
        if not self.settings.classic:
            block.note_writer(known)
        now = int(time.time())
        if self.settings.classic:  # an equal SYNCTIME would make the index of the last close valid
            last = block.get("SYNCTIME", 0)
            now = max(now, last + 1) if last < SANE else now
        # No reader has seen the entries after the last sync, and they are published together, so
        # their flags may be set before. A data entry without inode can be marked only now.
        fixed = self.fixed
        synced = [pos for pos in self.pending_deletes if pos < fixed]
        self._set_delflags([pos for pos in self.pending_deletes if pos >= fixed], synced)
        end, pending_deletes, recoveries = self.kv.end, self.pending_deletes, self.recoveries
        self.pending_deletes, self._syncing = [], end
        try:
            yield from self.kv.syncing(known, now=now)
        except BaseException:
            self.pending_deletes = pending_deletes + self.pending_deletes
            raise
        finally:
            self._syncing = 0
        self.note_chains()
        if recoveries == self.recoveries:  # otherwise a recovery found them all anew
            self.synced = max(self.synced, end)
            later = self.pending_deletes
            self.pending_deletes = pending_deletes + later
            self._set_delflags(pending_deletes, later)

    @property
    def fixed(self) -> int:
        """Byte offset below which entries are synced or being synced, so that nothing but delflags
        is changed in place."""
        return max(self.synced, self._syncing)

    def _set_delflags(self, chosen: list[int], rest: list[int]) -> None:
        """Set the delflags of some pending deletes; `rest`: the others, which stay pending."""
        if chosen:
            self.kv.mark_deleted(chosen)
            self.pending_deletes = rest  # only after all flags are written

    def close(self) -> None:
        """Release preallocated space and close everything. The caller has synced."""
        try:
            self.kv.release()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close everything without a sync."""
        if hasattr(self, "kv"):
            self.kv.stop()
            self.kv.storage.close()
            self.kv.drop_view()
        if self.lock:
            self.lock.release()


def end_of(kv: KVSeq, covered: int = 0) -> int:
    """Return the end of the entries of a data file; it is after FILESIZE if the superblock has lost
    a sync.

    covered  the end that an index records
    """
    size = kv.storage.size()
    if size <= kv.end or not kv.layout.checksum:
        return kv.end
    if kv.superblock.first_lost:
        # The entries were synced before the superblock that is lost.
        return kv.whole_until(kv.end, size)
    if any(kv.storage.read(size - 8, 8)) and kv.whole_until(kv.end, size) == size:
        # Only a close leaves no reserve after the last entry, and it has synced that entry.
        return size
    known = kv.end < covered <= size and kv.whole_until(kv.end, covered) == covered
    return covered if known else kv.end


def create_files(base: str, block: Superblock, like: Storage | None = None) -> None:
    """Create the files of an empty container. `like`: a file whose mode and owner they get.

    raises  FileExists; Locked; OSError
    """
    directory, name = locate(base)
    lock = WriterLock(base)
    try:
        for suffix in DERIVED:
            if directory.exists(name + ".data"):
                break
            directory.unlink(name + suffix)  # of an earlier container of that name
        with replacing(directory, name + ".data", like=like, new=True) as storage:
            storage.write(0, block.images())
    except FileExistsError:
        what = "the container exists already"
        if _has_no_data(directory, name):
            what = "BASE.data is a symbolic link that leads nowhere: remove it"
        raise FileExists(what, base) from None
    finally:
        if _has_no_data(directory, name):
            directory.unlink(name + SUFFIX)  # while the lock is held: no other writer can take it
        lock.release()


def _has_no_data(directory: Directory, name: str) -> bool:
    """Return whether there is no data file of that name, or only a dangling link."""
    return directory.info(name + ".data", follow=True) is None


def remove_files(base: str) -> None:
    """Remove the files of a container; missing ones are ignored."""
    directory, name = locate(base)
    for suffix in SUFFIXES:
        directory.unlink(name + suffix)
