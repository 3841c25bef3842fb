"""Oracle, layer 4: a whole container, BASE.data with its derived files, held against the rules."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from oracle_columns import parse_schema
from oracle_derived import (
    Appended,
    Hindex,
    Row,
    check_catalog,
    check_index,
    check_time,
)
from oracle_format import (
    KVSEQ,
    Entry,
    OracleError,
    Superblock,
    check_entry_counters,
    equal,
    expect,
    read_entries,
    read_superblock,
)
from oracle_frames import content_of, dictionary_of
from oracle_inode import (
    FileView,
    Inode,
    Key,
    Pair,
    all_pairs,
    check_pairs,
    read_attributes,
    read_inode,
    read_key,
)

NANO = 1_000_000_000


@dataclass
class InodeEntry:
    entry: Entry
    name: bytes
    inode: Inode | None  # None: a tombstone
    pairs: tuple[Pair, ...] = ()  # of the file, whichever inodes they stand in


@dataclass
class Tree:
    """A container that keeps all the rules."""

    files: dict[bytes, FileView]
    superblock: Superblock
    entries: list[Entry]
    inodes: list[InodeEntry]  # all of them in file order, tombstones and dead ones too
    index: Hindex | None = None
    time_marks: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what clean=False or missing_ok let pass


@dataclass
class DataFile:
    sb: Superblock
    entries: list[Entry]
    keys: list[Key]  # one per entry
    inodes: list[InodeEntry]

    @cached_property
    def by_pos(self) -> dict[int, Entry]:
        return {entry.pos: entry for entry in self.entries}

    def where(self, entry: Entry) -> str:
        return f"{self.sb.label} entry {entry.key!r} at {entry.pos}"


def check(base: Path | str, clean: bool = True, missing_ok: bool = False) -> Tree:
    """Read BASE.data, BASE.idx, BASE.time, BASE.cat; OracleError on any deviation.

    clean=False    what an unclean end may leave passes: stale or missing derived files, counters,
                   NEXTFID, delflags of superseded entries, SYNCSIZE below FILESIZE
    missing_ok     derived files may be missing (somebody dropped them), else all as after a close
    """
    base = Path(base)
    data = read_data(base.with_name(base.name + ".data"))
    live = decide(data.inodes)
    tree = Tree({}, data.sb, data.entries, data.inodes)
    for name, found in live.items():
        tree.files[name] = view(data, found)
    check_data_numbers(data)
    check_append_only_order(data)
    if clean:
        check_clean_data(data, live)
    else:
        note(tree, lambda: check_clean_data(data, live))
    check_derived(base, data, tree, clean, missing_ok)
    return tree


def note(tree: Tree, test: Callable[[], object]) -> None:
    try:
        test()
    except OracleError as error:
        tree.notes.append(str(error))


def read_data(path: Path) -> DataFile:
    """Every entry and every inode, dead ones too, each by itself and its pairs."""
    sb = read_superblock(path.name, path.read_bytes(), KVSEQ, "FSYSDATA")
    check_incompat(sb)
    if "HTALGO" in sb.variables:
        expect(sb.need("HTALGO") in (1, 2, 3), "HTALGO", sb.label, "1 to 3", sb.need("HTALGO"))
    entries = read_entries(sb)
    data = DataFile(sb, entries, [], [])
    for entry in entries:
        key = read_key(data.where(entry), entry.key)
        data.keys.append(key)
        if key.kind == "I":
            inode = None
            if entry.value != b"":
                inode = read_inode(sb, entry)
            else:
                equal("tombstone delflag", data.where(entry), 1, entry.delflag)
            data.inodes.append(InodeEntry(entry, key.name, inode))
    by_pos = data.by_pos
    for found in data.inodes:
        if found.inode is not None:
            check_pairs(sb, found.entry, found.inode, by_pos)
            found.pairs = all_pairs(sb, found.entry, found.inode, by_pos)
    dictionary_of(sb, by_pos)
    return data


def check_incompat(sb: Superblock) -> None:
    """The bit says what the variable says; holes (4) and ATTRS (16) are checked where used."""
    incompat = sb.get("INCOMPAT", 0)
    for bit, name in ((1, "KVCKSUM"), (2, "MTIMENS"), (8, "PAIROFF")):
        wanted = bit * sb.get(name, 0)
        equal("INCOMPAT", f"{sb.label} bit {bit}, {name}", wanted, incompat & bit)
    if incompat & 16:
        equal("INCOMPAT", f"{sb.label} bit 16, ATTRS", 1, sb.get("ATTRS", 0))
    equal("INCOMPAT", f"{sb.label} bit 64, INCHAIN", 64 * sb.get("INCHAIN", 0), incompat & 64)
    if incompat & 64:
        equal("INCHAIN", f"{sb.label} PAIROFF", 1, sb.get("PAIROFF", 0))


def decide(inodes: list[InodeEntry]) -> dict[bytes, InodeEntry]:
    """Rule R1: the highest position of a name decides, and the highest of a FILEID."""
    by_name: dict[bytes, InodeEntry] = {}
    by_fileid: dict[int, InodeEntry] = {}
    for found in inodes:
        by_name[found.name] = found
        if found.inode is not None:
            by_fileid[found.inode.fileid] = found
    live = {}
    for name, found in by_name.items():
        if found.inode is None or found.entry.delflag == 1:
            continue
        if by_fileid[found.inode.fileid] is found:
            live[name] = found
    return live


def decide_then(inodes: list[InodeEntry], end: int) -> dict[bytes, InodeEntry]:
    """The same when the data file ended at `end`; what came later may have set delflags before."""
    later = [found for found in inodes if found.entry.pos >= end]
    names = {found.name for found in later}
    fileids = {found.inode.fileid for found in later if found.inode is not None}
    before = []
    for found in inodes:
        if found.entry.pos >= end:
            continue
        if found.inode and (found.name in names or found.inode.fileid in fileids):
            found = replace(found, entry=replace(found.entry, delflag=0))
        before.append(found)
    return decide(before)


def schema_of(data: DataFile) -> dict[str, str]:
    """The columns of the user."""
    at = data.sb.get("COLUMNS", 0)
    if not at:
        return {}
    entry = data.by_pos[at]
    equal("columns", data.sb.label, (b"columns/C0", 0), (entry.key, entry.delflag))
    return parse_schema(entry.value)


def catalog_rows(data: DataFile) -> dict[bytes, Row]:
    """What a catalog says of all files."""
    return {name: catalog_row(data, found) for name, found in decide(data.inodes).items()}


def catalog_row(data: DataFile, found: InodeEntry) -> Row:
    """What a catalog says of a live inode."""
    inode, file = found.inode, view(data, found)
    assert inode is not None
    pairs = [pair for pair in inode.pairs if pair.size >= 0]
    pointer = -1 if inode.lsize else 0
    if inode.lsize and len(pairs) == 1 and pairs[0].pointer and not inode.nexti:
        whole = len(data.by_pos[pairs[0].pointer].value) == pairs[0].size == inode.lsize
        first = whole and not pairs[0].skip and not pairs[0].framed
        pointer = pairs[0].pointer if first else -1
    mtime = min(max(file.mtime_ns, -(2**63)), 2**63 - 1)
    kind, owner, ctime = inode.ftype or 102, 0, mtime
    kind |= 1 << 10 if mtime != file.mtime_ns else 0
    if file.mode is not None and file.uid is not None and file.gid is not None:
        kind |= 1 << 9 | file.mode << 16
        owner = file.uid | (file.gid - (file.gid >> 31 << 32)) << 32
        if b"system.winkfs.ctime" in file.xattrs:
            ctime = int.from_bytes(file.xattrs[b"system.winkfs.ctime"], "big", signed=True)
    return [found.entry.pos, inode.fileid, inode.lsize, mtime, pointer, ctime, kind, owner]


def view(data: DataFile, found: InodeEntry) -> FileView:
    inode, by_pos = found.inode, data.by_pos
    assert inode is not None
    ns = 1 if data.sb.get("MTIMENS", 0) == 1 else NANO
    values = {pair.pointer: by_pos[pair.pointer].value for pair in found.pairs if pair.pointer}
    for pair in found.pairs:
        if pair.framed:
            value = by_pos[pair.pointer].value
            values[pair.pointer] = content_of(data.where(found.entry), data.sb, by_pos, value)
    file = FileView(
        name=found.name,
        fileid=inode.fileid,
        lsize=inode.lsize,
        ftype=inode.ftype,
        mtime_ns=inode.fmtime * ns,
        inode_pos=found.entry.pos,
        pairs=found.pairs,
        values=values,
    )
    if inode.pairs and inode.pairs[0].is_attributes:
        pair = inode.pairs[0]
        attributes = read_attributes(data.where(found.entry), values[pair.pointer][: -pair.size])
        file.mode, file.uid, file.gid = attributes.mode, attributes.uid, attributes.gid
        file.xattrs = attributes.xattrs
    return file


def check_data_numbers(data: DataFile) -> None:
    """D<n> of a FILEID is not used twice among the entries that are not deleted."""
    seen: set[tuple[int, int]] = set()
    for entry, key in zip(data.entries, data.keys, strict=True):
        if key.kind == "D" and entry.delflag == 0:
            again = (key.fileid, key.number) in seen
            expect(not again, "D<n> used twice", data.where(entry), "a new number", entry.key)
            seen.add((key.fileid, key.number))


# --- what must be so after a clean close -------------------------------------------------------


def check_clean_data(data: DataFile, live: dict[bytes, InodeEntry]) -> None:
    sb = data.sb
    equal("SYNCSIZE", sb.label, sb.filesize, sb.get("SYNCSIZE", sb.filesize))
    check_entry_counters(sb, data.entries)
    itotsz = sum(len(found.entry.value) for found in live.values())
    dtotsz = sum(found.inode.lsize for found in live.values() if found.inode)
    equal("ITOTSZ", sb.label, itotsz, sb.get("ITOTSZ", itotsz))
    equal("DTOTSZ", sb.label, dtotsz, sb.get("DTOTSZ", dtotsz))
    if "NEXTFID" in sb.variables:
        used = [found.inode.fileid for found in data.inodes if found.inode]
        highest = max(used + [key.fileid for key in data.keys], default=0)
        good = sb.need("NEXTFID") > highest
        expect(good, "NEXTFID", sb.label, f"more than {highest}", sb.need("NEXTFID"))
    check_live_delflags(data, live)
    if sb.get("KVDELFL", 0) == 1 and sb.get("HAVEDUPS", 0) == 0:
        check_dead_delflags(data, live)
    if "CONTID" in sb.variables:
        check_tombstones(data)


def check_live_delflags(data: DataFile, live: dict[bytes, InodeEntry]) -> None:
    by_pos = data.by_pos
    for found in live.values():
        for pair in found.pairs:
            if not pair.is_hole:
                target = by_pos[pair.pointer]
                equal("delflag of live data", data.where(target), 0, target.delflag)


def check_dead_delflags(data: DataFile, live: dict[bytes, InodeEntry]) -> None:
    """Superseded inodes, and the data of files that are no more, carry delflag 1.

    Of a deleted file only what its last inode points to: a writer finds nothing else of it.
    """
    living = {found.inode.fileid for found in live.values() if found.inode}
    last = {found.inode.fileid: found for found in data.inodes if found.inode}
    owned = {
        pair.pointer
        for fileid, found in last.items()
        if fileid not in living
        for pair in found.pairs
    }
    for found in data.inodes:
        if live.get(found.name) is not found:
            where = data.where(found.entry)
            equal("delflag of superseded inode", where, 1, found.entry.delflag)
    for entry, key in zip(data.entries, data.keys, strict=True):
        if key.kind in ("D", "A") and entry.pos in owned:
            equal("delflag of dead data", data.where(entry), 1, entry.delflag)


def check_tombstones(data: DataFile) -> None:
    """Rule R2: a delete is seen by a tombstone, not only by a delflag."""
    last_of_name = {found.name: found for found in data.inodes}
    last_of_fileid = {found.inode.fileid: found for found in data.inodes if found.inode}
    for found in last_of_name.values():
        if found.inode is None or last_of_fileid[found.inode.fileid] is not found:
            continue
        where = data.where(found.entry)
        expect(found.entry.delflag == 0, "R2 tombstone", where, "a tombstone above it", "none")


# --- append only -------------------------------------------------------------------------------


def appended_files(data: DataFile, end: int) -> list[Appended]:
    """Every file that was appended before `end`, deleted ones too, in file order."""
    seconds: dict[int, int] = {}
    inodes = [found for found in data.inodes if found.entry.pos < end]
    scale = NANO if data.sb.get("MTIMENS", 0) == 1 else 1
    for found in inodes:
        if found.inode is not None:
            seconds.setdefault(found.inode.fileid, found.inode.fmtime // scale)
    first = {found.inode.fileid: found.entry.pos for found in reversed(inodes) if found.inode}
    for entry, key in zip(data.entries, data.keys, strict=True):
        if key.fileid in first:
            first[key.fileid] = min(first[key.fileid], entry.pos)
    return [Appended(seconds[fileid], first[fileid]) for fileid in seconds]


def check_append_only_order(data: DataFile) -> None:
    if data.sb.get("HAVEAO", 0) != 1:
        return
    last: int | None = None
    for found in data.inodes:
        if found.inode is None:
            continue
        mtime = found.inode.fmtime
        good = last is None or mtime >= last
        expect(good, "FMTIME order", data.where(found.entry), f">= {last}", mtime)
        last = mtime


# --- derived files -----------------------------------------------------------------------------


def check_derived(base: Path, data: DataFile, tree: Tree, clean: bool, missing_ok: bool) -> None:
    ends = {entry.end for entry in data.entries} | {data.sb.filesize}
    append_only = data.sb.get("HAVEAO", 0) == 1

    def index(raw: bytes, label: str) -> None:
        def keys_then(end: int) -> dict[int, bytes]:
            found = decide_then(data.inodes, end)
            return {one.entry.pos: name + b"/I0" for name, one in found.items()}

        tree.index = check_index(data.sb, raw, label, keys_then, ends)

    def time(raw: bytes, label: str) -> None:
        expect(append_only, "time index", label, "only with HAVEAO 1", "the file")
        tree.time_marks = check_time(data.sb, raw, label, partial(appended_files, data), ends)

    def catalog(raw: bytes, label: str) -> None:
        def rows_then(end: int) -> dict[bytes, tuple[Row, dict[bytes, bytes]]]:
            return {
                name: (catalog_row(data, one), view(data, one).xattrs)
                for name, one in decide_then(data.inodes, end).items()
            }

        check_catalog(data.sb, raw, label, rows_then, schema_of(data))

    for suffix, wanted, test in (
        (".idx", True, index),
        (".time", append_only, time),
        (".cat", False, catalog),
    ):
        path = base.with_name(base.name + suffix)
        if not path.exists():
            if wanted and clean and not missing_ok:
                raise OracleError("derived file", path.name, "the file", "none")
            if wanted:
                tree.notes.append(f"{path.name} is missing")
        elif clean:
            test(path.read_bytes(), path.name)
        else:
            note(tree, partial(test, path.read_bytes(), path.name))
