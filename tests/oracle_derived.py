"""Oracle, layer 3: the files that can be rebuilt: hindex, perm, time index, catalog."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import xxhash
from oracle_columns import Value, read_columns, value_of
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


def check_belongs(data: Superblock, derived: Superblock, ends: set[int] | None = None) -> int:
    """CONTID, DATAEND (one of `ends`, or all of the data file) -> DATAEND."""
    equal("CONTID", derived.label, data.variables.get("CONTID"), derived.variables.get("CONTID"))
    if "CONTID" in data.variables or "DATAEND" in derived.variables:
        end, all_ends = derived.need("DATAEND"), ends or {data.filesize}
        expect(end in all_ends, "DATAEND", derived.label, "the end of an entry", end)
    else:
        end = data.filesize
    equal("SYNCSIZE", derived.label, derived.filesize, derived.get("SYNCSIZE", derived.filesize))
    return end


def check_index(
    data: Superblock,
    raw: bytes,
    label: str,
    then: Callable[[int], dict[int, bytes]],
    ends: set[int] | None = None,
) -> Hindex:
    """BASE.idx: the inodes that were live at its DATAEND, one of `ends`.

    then  DATAEND -> the keys of these, by position
    """
    index = read_hindex(label, raw, "FSYSIDX")
    sb = index.superblock
    keys = then(check_belongs(data, sb, ends))
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


Row = list[int]  # pos, fileid, size, mtime, pointer, ctime, kind, owner


Texts = dict[bytes, bytes]  # extended attributes


def check_catalog(
    data: Superblock,
    raw: bytes,
    label: str,
    then: Callable[[int], dict[bytes, tuple[Row, Texts]]],
    schema: dict[str, str],
) -> dict[bytes, Row]:
    """BASE.cat: what the inodes that were live at its DATAEND said.

    then    DATAEND -> the row and the extended attributes of each file
    schema  columns of the container
    """
    sb = read_superblock(label, raw, KVSEQ, "FSYSCAT")
    equal("KEYREPR", label, 12, sb.need("KEYREPR"))
    equal("VALREPR", label, 3, sb.need("VALREPR"))
    equal("ALIGN", label, 8, sb.need("ALIGN"))
    expect(sb.get("KVDELFL", 0) != 1, "KVDELFL", label, "none", 1)
    end = sb.need("DATAEND")
    expect(end <= data.filesize, "DATAEND", label, f"at most {data.filesize}", end)
    check_belongs(data, sb, {end})
    check_entry_counters(sb, read_entries(sb))
    where = [sb.need("RUNS"), sb.need("RUNBYTES"), sb.need("RUNHASH")]
    listed = _words(_hashed(sb, *where))
    found: dict[bytes, Row] = {}
    values: dict[bytes, dict[str, tuple[str, Value]]] = {}
    for at in range(0, len(listed), 4):
        rows, typed = _run(sb, listed[at : at + 4])
        if at == 0:
            expect(
                not any(row[6] & 256 for row in rows.values()), "first run", label, "live", "GONE"
            )
        found |= rows
        values |= typed
    live = {name: row for name, row in found.items() if not row[6] & 256}
    wanted = then(end)
    equal("names of the catalog", label, sorted(wanted), sorted(live))
    if len(listed) == 4:
        above = {name[:i] for name in live for i, byte in enumerate(name) if byte == 0x2F}
        clashes = sum(row[6] & 255 != 100 for name, row in live.items() if name in above)
        equal("CLASHES", label, clashes, sb.need("CLASHES"))
    for name, (row, texts) in wanted.items():
        where_it_is = f"{label} {name!r}"
        equal("row of the catalog", where_it_is, row, live[name])
        # A catalog that lacks a column is not used: a writer removes it, and a crash may not.
        for column, kind in schema.items() if schema.keys() <= values[name].keys() else ():
            answer = kind, value_of(kind, texts.get(b"user." + column.encode()))
            equal("value of a column", f"{where_it_is} {column}", answer, values[name].get(column))
    return live


def _hashed(sb: Superblock, pos: int, size: int, wanted: int) -> bytes:
    value = sb.raw[pos : pos + size]
    found = int.from_bytes(xxhash.xxh3_64_digest(value), "little", signed=True)
    equal("hash", f"{sb.label} byte {pos}", wanted, found)
    equal("size", f"{sb.label} byte {pos}", size, len(value))
    return value


def _words(raw: bytes) -> list[int]:
    parts = range(0, len(raw), 8)
    return [int.from_bytes(raw[at : at + 8], "little", signed=True) for at in parts]


def _run(
    sb: Superblock, listed: list[int]
) -> tuple[dict[bytes, Row], dict[bytes, dict[str, tuple[str, Value]]]]:
    """The rows of a run, and the values of their columns with their types."""
    pos, size, hashed, count = listed
    value = _hashed(sb, pos, size, hashed)
    blocks = _words(value[:16])[0]
    words, lengths = value[16 : 16 + 128 * blocks], value[16 + 128 * blocks :]
    texts, at, found, last = lengths[4 * blocks :], 0, dict[bytes, Row](), b""
    counts = list[int]()
    for number in range(blocks):
        part = _words(words[128 * number : 128 * number + 128])
        rows = _block(_hashed(sb, *part[:3]))
        length = int.from_bytes(lengths[4 * number : 4 * number + 4], "little")
        equal("first name", sb.label, texts[at : at + length], rows[0][0])
        at += length
        equal("rows of a block", sb.label, part[3], len(rows))
        counts.append(len(rows))
        for name, row in rows:
            expect(name > last, "order of names", sb.label, f"after {last!r}", name)
            found[name], last = row, name
        live = [row for _, row in rows if not row[6] & 256]
        equal("gone", sb.label, part[4], len(rows) - len(live))
        for low, number_of in ((6, 0), (8, 2), (10, 3)):
            values = [row[number_of] for row in live] or [0]
            equal("zone", sb.label, part[low : low + 2], [min(values), max(values)])
        equal("content", sb.label, part[5], min(sum(row[2] for row in live), 2**63 - 1))
    equal("rows of a run", sb.label, count, len(found))
    end = 16 + 128 * blocks + 4 * blocks + at
    typed = read_columns(value[end + -end % 8 :], counts, partial(_hashed, sb), sb.label)
    values = {
        name: {column: (kind, cells[i]) for column, (kind, cells) in typed.items()}
        for i, name in enumerate(found)
    }
    return found, values


def _block(value: bytes) -> list[tuple[bytes, Row]]:
    count, tails = _words(value[:16])
    at, columns = 16 + 160, list[list[int]]()
    for base, width in zip(*[iter(_words(value[16:176]))] * 2, strict=True):
        cells = [value[at + i * width : at + i * width + width] for i in range(count)]
        sums = [base + int.from_bytes(cell, "little") & LOW64 for cell in cells]
        columns.append([number - (number >> 63 << 64) for number in sums])
        at += -(-count * width // 8) * 8
    equal("size of a block", "", at + tails, len(value))
    name, rows = b"", list[tuple[bytes, Row]]()
    for numbers in zip(*columns, strict=True):
        *row, shared, rest = numbers
        name = name[:shared] + value[at : at + rest]
        at += rest
        row[5] = (row[5] + row[3] + 2**63) % 2**64 - 2**63
        if row[4] not in (0, -1):
            row[4] = row[0] - row[4] - row[2]
        rows.append((name, row))
    return rows


@dataclass(frozen=True)
class Appended:
    """A file of an append-only container as it was appended, deleted since or not."""

    seconds: int  # FMTIME, floor division
    first: int  # position of its first entry


def check_time(
    data: Superblock,
    raw: bytes,
    label: str,
    then: Callable[[int], list[Appended]],
    ends: set[int] | None = None,
) -> dict[int, int]:
    """The time marks of BASE.time: mark -> position. `then`: DATAEND -> files appended."""
    sb = read_superblock(label, raw, KVSEQ, "FSYSTIME")
    equal("KEYREPR", label, 12, sb.need("KEYREPR"))
    equal("VALREPR", label, 12, sb.need("VALREPR"))
    expect(sb.get("KVDELFL", 0) != 1, "KVDELFL", label, "none", 1)
    expect(sb.get("KVCKSUM", 0) != 1, "KVCKSUM", label, "none", 1)
    files = then(check_belongs(data, sb, ends))
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
