"""Oracle, layer 3: the files that can be rebuilt: hindex, perm, time index, names."""

from collections.abc import Callable
from dataclasses import dataclass

import xxhash
from oracle_format import (
    HINDEX,
    KVSEQ,
    LOW63,
    LOW64,
    PERM,
    OracleError,
    Superblock,
    check_entry_counters,
    equal,
    expect,
    hash_key,
    int64,
    read_entries,
    read_superblock,
)


def check_page_sums(sb: Superblock) -> None:
    """The table behind FILESIZE, if PAGESUMS says that there is one."""
    at, contid = sb.get("PAGESUMS", 0), sb.get("CONTID", 0)
    if at == 0:
        return
    equal("PAGESUMS", sb.label, sb.filesize + -sb.filesize % 8, at)
    sums = b""
    for start in range(0, sb.filesize, 4096):
        page = sb.raw[start : min(start + 4096, sb.filesize)]
        sums += xxhash.xxh3_64_digest(page, (contid + start) & LOW64)
    sums += xxhash.xxh3_64_digest(sums, (contid + at) & LOW64)
    equal("page sums", sb.label, sums.hex(), sb.raw[at:].hex())


@dataclass
class Hindex:
    superblock: Superblock
    cells: list[list[int]]  # HTSIZE cells of CELLSZ signed words
    free: int
    deleted: int

    def used(self, slot: int) -> bool:
        return self.cells[slot][0] not in (self.free, self.deleted)


def read_hindex(label: str, raw: bytes, purpose: str | None = None) -> Hindex:
    """An hindex by itself: sizes, counters, and what free and deleted cells hold."""
    sb = read_superblock(label, raw, HINDEX, purpose)
    htsize, cellsz = sb.need("HTSIZE"), sb.get("CELLSZ", 1)
    expect(htsize >= 1, "HTSIZE", label, "1 or more", htsize)
    expect(cellsz >= 1, "CELLSZ", label, "1 or more", cellsz)
    equal("FILESIZE", label, sb.sbsize + htsize * cellsz * 8, sb.filesize)
    expect(sb.need("HTALGO") in (1, 2, 3), "HTALGO", label, "1, 2 or 3", sb.need("HTALGO"))
    free, deleted = sb.get("HTFREE", 0), sb.get("HTDEL", 1)
    expect(free != deleted, "HTDEL", label, "another value than HTFREE", deleted)
    cells = []
    for slot in range(htsize):
        start = sb.sbsize + slot * cellsz * 8
        cells.append([int64(raw, start + 8 * word) for word in range(cellsz)])
    index = Hindex(sb, cells, free, deleted)
    for slot, cell in enumerate(cells):
        if not index.used(slot):
            zero = [0] * (cellsz - 1)
            equal("words of free and deleted cells", f"{label} slot {slot}", zero, cell[1:])
    entries = sum(cell[0] != free for cell in cells)
    aentries = sum(index.used(slot) for slot in range(htsize))
    equal("ENTRIES", label, entries, sb.get("ENTRIES", entries))
    equal("AENTRIES", label, aentries, sb.get("AENTRIES", aentries))
    check_page_sums(sb)
    return index


def check_cells(index: Hindex, keys: dict[int, bytes]) -> None:
    """The used cells are exactly these kv_pointers, each found by linear probing from its key."""
    sb = index.superblock
    for slot, cell in enumerate(index.cells):
        if index.used(slot):
            where = f"{sb.label} slot {slot}"
            expect(cell[0] in keys, "stale cell", where, "the position of a live entry", cell[0])
    for pointer, key in keys.items():
        low63, stored = hash_key(sb.label, sb.need("HTALGO"), key)
        start = low63 % len(index.cells)
        found = probe(index, start, pointer)
        where = f"{sb.label} key {key!r} from slot {start}"
        if found is None:
            raise OracleError("missing cell", where, f"a cell with {pointer}", "none")
        cell = index.cells[found]
        if len(cell) >= 2:
            equal("S word", f"{where} in slot {found}", hex(stored), hex(cell[1] & LOW64))
    used = sum(index.used(slot) for slot in range(len(index.cells)))
    equal("one cell per key", sb.label, len(keys), used)


def probe(index: Hindex, start: int, pointer: int) -> int | None:
    for step in range(len(index.cells)):
        slot = (start + step) % len(index.cells)
        if index.cells[slot][0] == index.free:
            return None
        if index.used(slot) and index.cells[slot][0] == pointer:
            return slot
    return None


@dataclass
class Perm:
    superblock: Superblock
    pairs: list[tuple[int, int]]  # (kv_pointer, slot number)


def read_perm(label: str, raw: bytes, purpose: str | None = None) -> Perm:
    sb = read_superblock(label, raw, PERM, purpose)
    count = sb.need("PERMSIZE")
    expect(count >= 0, "PERMSIZE", label, "0 or more", count)
    equal("FILESIZE", label, sb.sbsize + 16 * count, sb.filesize)
    expect(sb.need("HTALGO") in (1, 2, 3), "HTALGO", label, "1, 2 or 3", sb.need("HTALGO"))
    check_page_sums(sb)
    starts = [sb.sbsize + 16 * i for i in range(count)]
    return Perm(sb, [(int64(raw, start), int64(raw, start + 8)) for start in starts])


def check_perm_hashes(perm: Perm, keys: dict[int, bytes]) -> None:
    sb = perm.superblock
    htsize = sb.get("HTSIZE", 0)
    for i, (pointer, hashed) in enumerate(perm.pairs):
        where = f"{sb.label} pair {i}"
        expect(pointer in keys, "perm pointer", where, "the position of an entry", pointer)
        low63, _ = hash_key(sb.label, sb.need("HTALGO"), keys[pointer])
        equal("perm hash", where, low63 % htsize if htsize > 0 else low63 & LOW63, hashed)


# --- derived files of one container ------------------------------------------------------------


def check_belongs(data: Superblock, derived: Superblock, end: int | None = None) -> None:
    """CONTID, DATAEND (`end`, or all of the data file)."""
    equal("CONTID", derived.label, data.variables.get("CONTID"), derived.variables.get("CONTID"))
    if "CONTID" in data.variables or "DATAEND" in derived.variables:
        wanted = data.filesize if end is None else end
        equal("DATAEND", derived.label, wanted, derived.need("DATAEND"))
    equal("SYNCSIZE", derived.label, derived.filesize, derived.get("SYNCSIZE", derived.filesize))


def check_index(data: Superblock, raw: bytes, label: str, keys: dict[int, bytes]) -> Hindex:
    index = read_hindex(label, raw, "FSYSIDX")
    sb = index.superblock
    check_belongs(data, sb)
    here = {
        "HTALGO": sb.need("HTALGO"),
        "CELLSZ": sb.get("CELLSZ", 1),
        "HTFREE": index.free,
        "HTDEL": index.deleted,
    }
    for name, value in here.items():
        equal(f"{name} as in the data superblock", label, data.get(name, value), value)
    if "CONTID" not in data.variables and "SYNCTIME" in data.variables:
        equal("SYNCTIME", label, data.variables["SYNCTIME"], sb.variables.get("SYNCTIME"))
    check_cells(index, keys)
    return index


def check_names(
    data: Superblock,
    raw: bytes,
    label: str,
    then: Callable[[int], dict[int, bytes]],
    is_directory: Callable[[int], bool],
) -> Perm:
    """BASE.names: the inodes that were live at its DATAEND, in byte order of names.

    then          DATAEND -> inode position -> name
    is_directory  inode position -> whether it is that of a directory
    """
    perm = read_perm(label, raw, "FSYSNAME")
    end = perm.superblock.need("DATAEND")
    expect(end <= data.filesize, "DATAEND", label, f"at most {data.filesize}", end)
    check_belongs(data, perm.superblock, end)
    names = then(end)
    order = [pos for pos, name in sorted(names.items(), key=lambda item: item[1])]
    equal("names order", label, order, [pointer for pointer, _ in perm.pairs])
    check_perm_hashes(perm, {pos: name + b"/I0" for pos, name in names.items()})
    directories = set()
    for name in names.values():
        parts = name.split(b"/")
        directories |= {b"/".join(parts[:n]) for n in range(1, len(parts))}
    clashes = sum(name in directories and not is_directory(pos) for pos, name in names.items())
    equal("CLASHES", label, clashes, perm.superblock.get("CLASHES", clashes))
    return perm


@dataclass(frozen=True)
class Appended:
    """A file of an append-only container as it was appended, deleted since or not."""

    seconds: int  # FMTIME, floor division
    first: int  # position of its first entry


def check_time(data: Superblock, raw: bytes, label: str, files: list[Appended]) -> dict[int, int]:
    """The time marks of BASE.time: mark -> position."""
    sb = read_superblock(label, raw, KVSEQ, "FSYSTIME")
    equal("KEYREPR", label, 12, sb.need("KEYREPR"))
    equal("VALREPR", label, 12, sb.need("VALREPR"))
    expect(sb.get("KVDELFL", 0) != 1, "KVDELFL", label, "none", 1)
    expect(sb.get("KVCKSUM", 0) != 1, "KVCKSUM", label, "none", 1)
    check_belongs(data, sb)
    check_page_sums(sb)
    entries = read_entries(sb)
    check_entry_counters(sb, entries)
    timemp = sb.need("TIMEMP")
    expect(timemp >= 1, "TIMEMP", label, "1 or more", timemp)
    equal("TIMEMP as in the data superblock", label, data.get("TIMEMP", timemp), timemp)
    found = [(int64(entry.key, 0), int64(entry.value, 0)) for entry in entries]
    marks, unmarked = expected_marks(files, timemp)
    equal("time marks", label, marks, found)
    if files:
        equal("TIMEMARK", label, marks[-1][0], sb.need("TIMEMARK"))
        equal("TIMEMN", label, unmarked, sb.need("TIMEMN"))
        equal("LASTMT", label, files[-1].seconds, sb.need("LASTMT"))
    return dict(found)


def expected_marks(files: list[Appended], timemp: int) -> tuple[list[tuple[int, int]], int]:
    """(marks, number of files appended since the last mark, the marked one not counted)."""
    marks: list[tuple[int, int]] = []
    unmarked = 0
    for file in files:
        if not marks or file.seconds >= marks[-1][0] + timemp:
            marks.append((file.seconds // timemp * timemp, file.first))
            unmarked = 0
        else:
            unmarked += 1
    return marks, unmarked
