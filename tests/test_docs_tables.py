"""The tables of offsets and sizes in the module docstrings, held against what the code writes."""

import math
import re
import struct
from itertools import pairwise
from pathlib import Path

import oracle_format
import pytest
import stored

from winkformats import hashing, perm
from winkformats.disk.memory import MemoryStorage
from winkformats.hindex import hindex
from winkformats.hindex.hindex import HIndex
from winkformats.kv import entry, superblock
from winkformats.kv.entry import Field, Layout
from winkformats.kv.superblock import Superblock
from winkformats.perm import Perm
from winkfs.container.ondisk import compressed, inode
from winkfs.container.ondisk import time as timeindex
from winkfs.container.ondisk.inode import Attrs, Extent, Inode, InodeForm
from winkfs.entry import FileType

UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}


def table(module, header: str) -> list[list[str]]:
    """The rows below a header line of a docstring, cut at two or more spaces."""
    lines = module.__doc__.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.split() == header.split()]
    rows = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        rows.append(re.split(r" {2,}", line.strip()))
    assert rows, header
    return rows


def at(expression: str, **names: int) -> int:
    """The value of an offset such as "8 + 16 i"."""
    for name, value in names.items():
        expression = re.sub(rf"\b{name}\b", str(value), expression)
    products = (map(int, term.split()) for term in expression.split("+"))  # "8 2 3" is 48
    return sum(map(math.prod, products))


# --- superblock --------------------------------------------------------------------------------


def test_superblock_table():
    rows = table(superblock, "offset size field")
    block = Superblock.new(0x10, "ABC", {"ONE": 1, "TWO": -2}, sbsize=256)
    data, n = block.encode(), len(block)
    (magic, name, value, end, rest) = rows
    assert data[at(magic[0]) :][: int(magic[1])] == superblock.MAGIC == b"#!WINKME"
    for i, (key, number) in enumerate(block.items()):
        stored = data[at(name[0], i=i) :][: int(name[1])]
        assert stored == key.encode().ljust(8)
        stored = data[at(value[0], i=i) :][: int(value[1])]
        assert int.from_bytes(stored, "big", signed=True) == number
    assert at(name[0], i=1) - at(name[0], i=0) == superblock.PAIR.size
    assert at(value[0], i=0) - at(name[0], i=0) == int(name[1])
    assert data[at(end[0], n=n) :][: int(end[1])] == bytes(8)
    assert at(end[0], n=n) == at(name[0], i=n)
    assert rest[2] == "zeros up to SBSIZE"
    assert not any(data[at(end[0], n=n) :])


def test_a_sector_holds_the_documented_number_of_variables():
    (most, sector) = re.search(
        r"at most (\d+) variables .* first (\d+)", superblock.__doc__
    ).groups()
    assert 8 + 16 * int(most) + 8 == int(sector)


# --- entry -------------------------------------------------------------------------------------


def test_entry_table():
    rows = table(entry, "part size present")
    assert [row[0] for row in rows[:3]] == ["delflag", "key", "value"]
    sizes = {row[0]: row[1] for row in rows if len(row) > 1}
    variables = {"KEYREPR": 0, "VALREPR": 0}
    bare = len(Layout.of(variables).encode(0, b"k", b"v"))
    flag = len(Layout.of(variables | {"KVDELFL": 1}).encode(0, b"k", b"v"))
    summed = len(Layout.of(variables | {"KVCKSUM": 1}).encode(0, b"k", b"v"))
    assert (flag - bare, summed - bare) == (int(sizes["delflag"]), int(sizes["checksum"]))
    code = Layout.of(variables | {"KVDELFL": 1, "KVCKSUM": 1})
    data = code.encode(0, b"k", b"v", deleted=True)
    assert data[0] == 1 and data[1:5] == b"\1k\1v" and len(data) == 9


def test_representation_table():
    prefixes, fixed, limited = table(entry, "KEYREPR / VALREPR r layout")
    codes = [int(code) for code in prefixes[0].split(",")]
    bits = [int(number) for number in re.findall(r"\d+", prefixes[1])]
    assert len(codes) == len(bits) == 4
    for code, width in zip(codes, bits, strict=True):
        field = Field.of(code)
        assert (field.prefix * 8, field.room) == (width, -1)
        assert entry.PREFIXES[code].format == ">" + UNSIGNED[field.prefix]
    (first, last), subtract = span(fixed[0]), number_after(fixed[1], "r - ")
    for code in (first, last):
        assert Field.of(code) == Field(code, 0, code - subtract, code - subtract)
    assert first == codes[-1] + 1 == subtract
    (first_limited, last_limited), subtract = span(limited[0]), number_after(limited[1], "r - ")
    for code in (first_limited, last_limited):
        assert Field.of(code) == Field(code, 1, code - subtract, code - subtract)
    assert first_limited == last + 1
    with pytest.raises(entry.FormatError):
        Field.of(last_limited + 1)


def span(text: str) -> tuple[int, int]:
    first, last = text.split("..")
    return int(first), int(last)


def number_after(text: str, words: str) -> int:
    return int(re.search(re.escape(words) + r"(\d+)", text).group(1))


# --- hashes ------------------------------------------------------------------------------------


def test_hash_table_names_every_algorithm():
    rows = table(hashing, "HTALGO hash of the key slot bits S")
    named = {int(row[0]): row[1] for row in rows}
    assert named == {1: "MD5", 2: "XXH3-64, seed 0", 3: "MurmurHash3 x64 128, seed 0"}
    assert set(named) == {hashing.MD5, hashing.XXH3, hashing.MURMUR3}
    for algorithm in named:
        low63, s = oracle_format.hash_key("f", algorithm, b"some key")
        assert hashing.hash_key(algorithm, b"some key") == (s, low63)


# --- hindex and perm ---------------------------------------------------------------------------


@pytest.mark.parametrize("cellsz", [1, 2, 3, 5])
def test_hindex_table(cellsz):
    pointer, s, words = table(hindex, "offset size type field meaning")
    storage = MemoryStorage()
    index = HIndex.create(storage, htsize=5, cellsz=cellsz, sbsize=512, key_of=lambda _: b"key")
    user = tuple(range(-7, -7 + max(cellsz - 2, 0)))
    slot = index.insert(b"key", 4096, user)
    index.sync()
    names = {"SBSIZE": 512, "CELLSZ": cellsz, "i": slot}
    offset = at(pointer[0], **names)
    data = bytes(storage.data)
    assert (int(pointer[1]), pointer[2]) == (8, "q")
    assert struct.unpack_from(">" + pointer[2], data, offset) == (4096,)
    if cellsz >= 2:
        there = offset + number_after(s[0], ".. + ")
        assert struct.unpack_from(">" + s[2], data, there) == hashing.hash_key(2, b"key")[:1]
    for number, word in enumerate(user):
        there = offset + number_after(words[0], ".. + ") + number * int(words[1])
        assert struct.unpack_from(">" + words[2], data, there) == (word,)
    assert len(data) == index.superblock["FILESIZE"] == 512 + 8 * cellsz * 5
    assert "FILESIZE = SBSIZE + 8 * CELLSZ * HTSIZE" in hindex.__doc__


def test_perm_table():
    left, right = table(perm, "offset size type field meaning")
    assert perm.PAIR.format == ">" + left[2] + right[2]
    assert perm.PAIR.size == int(left[1]) + int(right[1])
    storage = MemoryStorage()
    with Perm.create(storage, sbsize=256) as pairs:
        pairs.append_many([1, 2, -3], [4, -5, 6])
    for i, expected in enumerate([(1, 4), (2, -5), (-3, 6)]):
        offset = at(left[0], SBSIZE=256, i=i)
        assert perm.PAIR.unpack_from(storage.data, offset) == expected
    assert len(storage.data) == 256 + perm.PAIR.size * 3
    assert "FILESIZE = SBSIZE + 16 * PERMSIZE" in perm.__doc__


# --- inode -------------------------------------------------------------------------------------


def test_inode_table():
    rows = table(inode, "offset size type field meaning")
    head, (pairs, triples) = rows[:7], rows[7:]
    assert inode.HEAD.size == struct.calcsize(">" + "".join(row[2] for row in head))
    assert len(inode.HEAD.unpack(bytes(inode.HEAD.size))) == len(head)
    assert re.sub(r"(\d+)(\w)", lambda m: m[2] * int(m[1]), inode.HEAD.format[1:]) == "".join(
        row[2] for row in head
    )
    for row in head:
        assert struct.calcsize(">" + row[2]) == int(row[1])
    for row, following in pairwise(head):
        assert int(row[0]) + int(row[1]) == int(following[0])
    assert int(pairs[0]) == int(triples[0]) == inode.HEAD.size
    for row, pairoff in ((pairs, False), (triples, True)):
        width = InodeForm(pairoff, inode.CK_XXH3).pair
        assert row[1] == f"{width}n" and struct.calcsize(">" + row[2]) == width


@pytest.mark.parametrize("pairoff", [False, True])
def test_inode_fields_are_laid_out_as_documented(pairoff):
    rows = table(inode, "offset size type field meaning")
    offsets = {row[3]: (int(row[0]), ">" + row[2]) for row in rows}
    form = InodeForm(pairoff, inode.CK_MD5)
    extents = (Extent(4096, 3 if pairoff else 0, 70), Extent(0, 0, 30))
    value = Inode(77, 99, FileType.EXEC, -5, extents, attrs=(5000, 24)).encode(form, 128)
    fields = {"nexti": 0, "fileid": 77, "lsize": 99, "ftype": 112, "fmtime": -5, "dcount": 3}
    for name, number in fields.items():
        offset, code = offsets[name]
        assert struct.unpack_from(code, value, offset) == (number,), name
    offset, code = offsets["triples" if pairoff else "pairs"]
    width = struct.calcsize(code)
    attrs, first, hole = (struct.unpack_from(code, value, offset + width * i) for i in range(3))
    assert attrs == ((5000, 0, -24) if pairoff else (5000, -24))
    assert first == ((4096, 3, 70) if pairoff else (4096, 70))
    assert hole == ((0, 0, 30) if pairoff else (0, 30))
    end = offset + 3 * width
    assert offsets["cksum"] == (0, ">Q")
    assert struct.unpack_from(">Q", value) == (form.sum(value[8:end]),)
    assert len(value) % 8 == 0 and not any(value[end:])


def test_attributes_table():
    data = Attrs(0o640, 7, 8, {b"user.x": b"yz"}).encode()
    text = inode.__doc__
    row = next(line for line in text.splitlines() if "mode (permission bits)" in line)
    offset, size, code, _ = re.split(r" {2,}", row.strip())
    assert inode.ATTRS.format == ">" + code and inode.ATTRS.size == int(size)
    assert struct.unpack_from(">" + code, data, int(offset)) == (0o640, 7, 8)
    (more,) = [line for line in text.splitlines() if "extended attributes:" in line]
    assert int(more.split()[0]) == int(size)
    assert "uint16 length, name, uint32 length, value" in more
    assert data[int(size) :] == b"\0\6user.x" + b"\0\0\0\2yz"


# --- time index --------------------------------------------------------------------------------


def test_time_marks_are_fixed_keys_and_values():
    assert "fixed 8-byte keys and values" in timeindex.__doc__
    code = Layout.of({"KEYREPR": 12, "VALREPR": 12})
    assert (code.key.room, code.value.room) == (8, 8)
    mark = timeindex.MARK.pack(-60, 4096)
    assert code.encode(0, mark[:8], mark[8:]) == mark
    assert timeindex.MARK.size == code.size(8, 8)


# --- numbers that reach the disk ---------------------------------------------------------------


def test_file_types_are_never_renumbered():
    assert {kind.name: kind.value for kind in FileType} == {
        "FILE": ord("f"), "EXEC": ord("p"), "DIR": ord("d"), "LINK": ord("l"),
        "GZIP": ord("c"), "ARCHIVE": ord("a"), "UNKNOWN": ord("x"), "ZSTD": ord("z"),
    }  # fmt: skip


def test_bits_and_formats_are_never_renumbered():
    assert superblock.INCOMPAT_BITS == {
        1: "KVCKSUM", 2: "MTIMENS", 4: "hole pairs", 8: "PAIROFF", 16: "ATTRS",
        32: "compressed content", 64: "INCHAIN",
    }  # fmt: skip
    assert superblock.FORMAT_NAMES == {0x10: "kvseq", 0x20: "hindex", 0x30: "perm"}
    assert (inode.CK_MD5, inode.CK_XXH3) == (1, 2)
    assert (hashing.MD5, hashing.XXH3, hashing.MURMUR3) == (1, 2, 3)


# --- docs/formats.md ---------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/formats.md").read_text()


def test_the_page_has_every_variable_that_winkfs_writes(tmp_path):
    pytest.importorskip("zstandard")
    written: set[str] = set()
    variants = ({}, {"ao": True}, {"classic": True}, {"compress": "zstd"})
    for number, options in enumerate(variants):
        base = tmp_path / f"c{number}"
        stored.make(base, {"a": b"b"}, **options)
        for path in tmp_path.glob(f"{base.name}.*"):
            if path.suffix != ".lock":
                written |= set(Superblock.decode(path.read_bytes(), file=path.name))
    written |= set(Perm.create(MemoryStorage()).superblock)
    unknown = {name for name in written if not re.search(rf"\b{name}\b", PAGE)}
    assert len(written) > 35 and not unknown


def test_the_page_has_the_inode_as_the_docstring_has_it():
    for offset, size, _, field, *_ in table(inode, "offset size type field meaning")[:7]:
        assert re.search(rf"^\| {offset} \| {size} \| {field.upper()} \|", PAGE, re.MULTILINE), (
            field
        )


def test_compression_table_and_the_page():
    assert compressed.HEAD.format == ">5q"
    value = compressed.Compression(5, True, 7, b"dictionary").encode()
    numbers = [compressed.ZSTD, 5, 1, 7, len(b"dictionary")]
    rows = table(compressed, "offset size type field meaning")
    for (offset, size, kind, field, _), number in zip(rows[:5], numbers, strict=True):
        assert int.from_bytes(value[int(offset) :][: int(size)], "big") == number
        assert kind == "q"
        assert re.search(rf"^\| {offset} \| {size} \| {field.upper()} \|", PAGE, re.MULTILINE)
    assert rows[5][:2] == [str(compressed.HEAD.size), "dsize"]
    assert value[compressed.HEAD.size :] == b"dictionary"
    assert (inode.FRAME, compressed.COMPRESSED) == (1 << 62, 32)
    assert f"`{compressed.KEY.decode()}`" in PAGE


def test_the_modules_that_the_page_points_to_exist():
    pointers = PAGE[PAGE.index("## Source modules") :]
    folder = ""
    for path in re.findall(r"`([\w/]+\.py)`", pointers):
        folder = path.rpartition("/")[0] or folder
        full = path if "/" in path else f"{folder}/{path}"
        places = (ROOT / full, ROOT / "formats" / full)
        assert any(place.is_file() for place in places), path
