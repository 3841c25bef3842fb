"""pack: odd tar files. One odd member costs itself, and nothing is lost without a line.

Where the inputs come from: `tars/*.gz`, made by the tools of this table (commands: tars/README.md),
are compared with what GNU tar 1.34 extracts of them (tars/expected.json); those of HAND were
written byte by byte (tests/tars.py), as tools write them or as damage makes them.

| inputs | tool |
|---|---|
| gnu-*, posix-*, oldgnu, ustar, v7, joined, cut | GNU tar 1.34 |
| bsdtar-* | bsdtar 3.6.2 (libarchive) |
| mirpax-ustar | MirBSD pax 20201030 |
| cpio-* | GNU cpio 2.13 |
| HAND, and all that is made in a test | Python, by hand |
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import Run
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import stat
from tars import END, OLD_GNU, around, header, member, padded, pax, signed, summed
from trees import files_beside

import winkfs
from winkfs.archive.items import STREAM_BYTES, Note, Ratio
from winkfs.archive.pack import pack
from winkfs.archive.packer import PackReport
from winkfs.archive.tar import UNKNOWN_OWNER, Tarball
from winkfs.container.bulk import Row
from winkfs.errors import FormatError
from winkfs.names import to_str
from winkfs.units import CLAMPED, LAST

pytestmark = pytest.mark.in_memory
HERE = Path(__file__).parent / "tars"
EXPECTED = json.loads((HERE / "expected.json").read_text())
STAR_TIMES = b"15302141156 " * 2
TIMES = b"15302141156\0" * 2  # atime, ctime of an old GNU header
BIG = 2**40
MB = b"1" * 10**6


class Packed(NamedTuple):
    files: dict[str, bytes | None]  # None: a directory
    notes: list[Note]
    report: PackReport

    @property
    def failed(self) -> dict[str, str]:
        return {note.name.decode(): note.what for note in self.notes if note.failed}


def packed(tmp_path: Path, data: bytes, **options: bool | int) -> Packed:
    (tmp_path / "case.tar").write_bytes(data)
    notes: list[Note] = []
    report = pack(tmp_path / "case.tar", tmp_path / "c", note=notes.append, **options)  # type: ignore[arg-type]
    with winkfs.open(tmp_path / "c") as c:
        folder = winkfs.FileType.DIR
        files = {e.name: None if e.ftype == folder else e.read() for e in c.scan()}
    return Packed(files, notes, report)


# --- what tools make ---


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_archives_of_tools_are_packed_as_gnu_tar_extracts_them(
    tmp_path: Path, name: str, notes: list[Note]
) -> None:
    wanted, failed = EXPECTED[name]["files"], EXPECTED[name]["failed"]
    path = tmp_path / name
    path.write_bytes(gzip.decompress((HERE / f"{name}.gz").read_bytes()))
    joined = name == "joined.tar"
    pack(path, tmp_path / "c", note=notes.append, ignore_zeros=joined)
    found = {}
    with winkfs.open(tmp_path / "c") as c:
        for entry in c.scan():
            digest = hashlib.sha256(entry.read()).hexdigest()[:16]
            kind = {winkfs.FileType.DIR: "d", winkfs.FileType.LINK: "l"}.get(entry.ftype, "f")
            found[entry.name] = [kind, digest, entry.mtime_ns // 10**9]
    assert found == wanted
    assert sorted(note.name.decode() for note in notes if note.failed) == failed
    assert winkfs.verify(tmp_path / "c").problems == []
    assert by_mtime(path, ignore_zeros=joined) == (set(wanted), set(failed))


def by_mtime(path: Path, *, ignore_zeros: bool = False) -> tuple[set[str], set[str]]:
    """The names that an append-only container is given, which are not those that fail."""
    notes: list[Note] = []
    ball = Tarball(str(path), notes.append, str(path.parent), ignore_zeros=ignore_zeros)
    times, names = [], set()
    for item in ball.items(by_mtime=True):
        times.append(item.mtime_ns if isinstance(item, Row) else item.meta.mtime_ns)
        names.add(to_str(item.name))
    assert times == sorted(times)  # type: ignore[type-var]
    return names, {note.name.decode() for note in notes if note.failed}


def test_a_cpio_archive_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(gzip.decompress((HERE / "cpio-newc.cpio.gz").read_bytes()))
    with pytest.raises(FormatError, match="a cpio file: bsdtar -cf -"):
        pack(path, tmp_path / "c")


# --- the cases of the review, and their kinds ---

HAND: dict[str, tuple[bytes, dict[str, bytes | None], dict[str, str]]] = {
    # name: the archive, the files between `before` and `after`, what failed
    "large-uid-base256": (
        member(b"f", b"x", uid=b"\x80" + BIG.to_bytes(7, "big")), {"f": b"x"}, {"f": "its owner"},
    ),
    "negative-gid": (pax((b"gid", b"-5")) + member(b"f", b"x"), {"f": b"x"}, {"f": "its owner"}),
    "negative-uid-base256": (
        member(b"f", b"x", uid=b"\xff" * 8), {"f": b"x"}, {"f": "its owner"},
    ),
    "uid-of-a-million-digits": (
        pax((b"uid", MB)) + member(b"f", b"x"), {"f": b"x"}, {"f": "its owner"},
    ),
    "mtime-nan": (pax((b"mtime", b"nan")) + member(b"f", b"x"), {"f": b"x"}, {"f": "mtime"}),
    "mtime-1e999000": (
        pax((b"mtime", b"1e999000")) + member(b"f", b"x"), {"f": b"x"}, {"f": "mtime"},
    ),
    "bad-numbers": (
        pax((b"mtime", b"1x"), (b"uid", b""), (b"gid", b"0x1"), (b"size", b"1_0"))
        + member(b"f", b"x"),
        {"f": b"x"},
        {"f": "the size of its pax header is no number: 1_0"},
    ),
    "size-of-a-million-digits": (
        pax((b"size", MB)) + member(b"f", b"x"), {"f": b"x"}, {"f": "size of 9,999"},
    ),
    "size-below-zero": (pax((b"size", b"-1")) + member(b"f", b"x"), {"f": b"x"}, {"f": "-1 bytes"}),
    "size-that-overflows": (
        pax((b"size", b"%d" % LAST)) + member(b"f", b"x"), {"f": b"x"}, {"f": "not taken"},
    ),
    "header-size-that-overflows": (
        header(b"f", b"\x80" + b"\xff" * 11) + padded(b"x"), {},
        {"f": "its size is", "byte 1024": "no header of a member: skipped up to byte 2,048"},
    ),
    "header-size-below-zero": (
        header(b"f", b"\xff" * 12), {}, {"f": "its size is -1 bytes", "byte 1024": "no header"},
    ),
    "header-size-no-number": (
        header(b"f", b"zzzzzzzzzzz\0"), {},
        {"f": "its size is no number", "byte 1024": "no header"},
    ),
    "header-numbers": (
        member(b"f", b"x", uid=b"zzzzzzz\0", mode=b"9999999\0", mtime=b"0x123456789\0"),
        {"f": b"x"},
        {"f": "its mtime is no number; its uid is no number; its mode is no number"},
    ),
    "nul-path": (pax((b"path", b"a\0b")) + member(b"f", b"x"), {"f": b"x"}, {"f": "has a NUL"}),
    "nul-path-of-a-name-that-may-be-longer": (
        pax((b"path", b"a\0b")) + member(b"n" * 100, b"x"), {}, {"n" * 100: "may be longer"},
    ),
    "nul-linkpath": (
        pax((b"linkpath", b"a\0b")) + member(b"f", b"", b"2", link=b"to"), {"f": b"to"},
        {"f": "linkpath of its pax header has a NUL"},
    ),
    "no-name": (member(b"", b"x"), {}, {"byte 1024": "no name"}),
    "name-of-slashes": (member(b"//", b"x"), {}, {}),
    "link-to-nothing": (member(b"f", b"", b"2"), {}, {"f": "a symbolic link to nothing"}),
    "hard-link-to-what-was-left-out": (
        member(b"../up", b"x") + member(b"f", b"", b"1", link=b"../up"), {},
        {"../up": '".."', "f": "a hard link to ../up, which was not packed"},
    ),
    "hard-link-to-itself": (
        member(b"f", b"", b"1", link=b"f"), {}, {"f": "which was not packed"},
    ),
    "bad-sparse-size": (
        pax((b"GNU.sparse.size", b"x")) + member(b"f", b"x"), {"f": b"x"}, {"f": "GNU.sparse.size"},
    ),
    "bad-sparse-map": (
        pax((b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"0,x")) + member(b"f", b"x"), {},
        {"f": "its map of holes is damaged"},
    ),
    "sparse-map-of-odd-length": (
        pax((b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"0,1,2")) + member(b"f", b"x"), {},
        {"f": "its map of holes is damaged"},
    ),
    "sparse-map-beyond-the-size": (
        pax((b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"9,1")) + member(b"f", b"x"), {},
        {"f": "its map of holes is damaged"},
    ),
    "sparse-map-in-the-data": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9")) + member(b"f", b"x"), {},
        {"f": "its map of holes is damaged"},
    ),
    "sparse-map-in-the-data-with-a-huge-count": (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9"))
        + member(b"f", b"9" * 18 + b"\n" + bytes(600)), {},
        {"f": "its map of holes is damaged"},
    ),
    "old-sparse-map": (
        member(b"f", b"x", b"S", magic=OLD_GNU, prefix=bytes(41) + b"9" * 24), {},
        {"f": "its map of holes is damaged"},
    ),
    "attribute-name-too-long": (
        pax((b"SCHILY.xattr.user." + b"n" * 70_000, b"v")) + member(b"f", b"x"), {"f": b"x"},
        {"f": "its name has 70,005 bytes, at most 255"},
    ),
    "attribute-name-with-nul": (
        pax((b"SCHILY.xattr.user.a\0b", b"v")) + member(b"f", b"x"), {"f": b"x"}, {"f": "left out"},
    ),
    "pax-header-cut-short": (
        member(b"x", b"30 path=abc", b"x") + member(b"f", b"x"), {"f": b"x"}, {"f": "damaged"},
    ),
    "pax-length-of-many-digits": (
        member(b"x", MB, b"x") + member(b"f", b"x"), {"f": b"x"}, {"f": "damaged"},
    ),
    "pax-header-too-large": (
        member(b"x", bytes(17 << 20), b"x") + member(b"f", b"x"), {"f": b"x"}, {"f": "not read"},
    ),
    "global-pax-header-damaged": (
        member(b"g", b"x=y", b"g") + member(b"f", b"x"), {"f": b"x"}, {"byte 1024": "a global"},
    ),
    "header-with-a-flipped-bit": (
        bytes([member(b"f")[0] ^ 1]) + member(b"f", b"x")[1:], {},
        {"byte 1024": "up to byte 2,048"},
    ),
    "no-header": (b"A" * 1024 + member(b"f", b"x"), {"f": b"x"}, {"byte 1024": "byte 2,048"}),
    "multi-volume": (member(b"f", b"x", b"M"), {}, {"f": "continued from another volume"}),
    "dumpdirs": (
        member(b"d/", b"Yf\0\0", b"D", magic=OLD_GNU, prefix=TIMES)
        + member(b"d/f", b"x", magic=OLD_GNU, prefix=TIMES),
        {"d": None, "d/f": b"x"}, {},
    ),
    "directory-with-data": (member(b"d", b"x" * 600, b"5"), {"d": None}, {}),
    "directory-with-a-size-only": (header(b"d", 600, b"5"), {"d": None}, {}),
    "hard-link-with-data": (
        member(b"g", b"x") + member(b"f", b"x", b"1", link=b"g"), {"g": b"x", "f": b"x"}, {},
    ),
    "file-called-as-a-directory": (member(b"d/", b""), {"d": None}, {}),
    "unknown-type": (member(b"f", b"x", b"Z"), {"f": b"x"}, {}),
    "signed-checksum": (signed(header("ä".encode())), {"ä": b""}, {}),
    "star-prefix": (
        summed(header(b"f", prefix=b"d".ljust(131, b"\0") + STAR_TIMES)[:508] + b"tar\0"),
        {"d/f": b""}, {},
    ),
    "prefix-of-ustar": (member(b"f", b"x", prefix=b"d/e"), {"d/e/f": b"x"}, {}),
    "mtime-and-size-of-a-global-header": (
        pax((b"mtime", b"7"), (b"uid", b"5"), kind=b"g") + member(b"f", b"x"), {"f": b"x"}, {},
    ),
    "long-name-of-a-megabyte": (
        member(b"@LongLink", b"n" * (2 << 20), b"L", magic=OLD_GNU) + member(b"f", b"x"),
        {"f": b"x"}, {"f": "its long name has 2,097,152 bytes"},
    ),
    "two-pax-headers": (
        pax((b"path", b"a")) + pax((b"path", b"b")) + member(b"f", b"x"), {"b": b"x"}, {},
    ),
    "empty-pax-header": (pax() + member(b"f", b"x"), {"f": b"x"}, {"f": "pax header is empty"}),
    "device-and-fifo": (member(b"d", b"", b"3") + member(b"p", b"", b"6"), {}, {}),
    "contiguous-file": (member(b"f", b"x", b"7"), {"f": b"x"}, {}),
    "file-of-old-tar": (member(b"f", b"x", b"\0", magic=bytes(8)), {"f": b"x"}, {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HAND)
def test_an_odd_member_costs_itself(tmp_path: Path, name: str) -> None:
    middle, files, failed = HAND[name]
    start = time.process_time()
    found = packed(tmp_path, around(middle))
    assert time.process_time() - start < 5
    assert found.files == {"before": b"bb", "after": b"aa"} | files
    assert set(found.failed) == set(failed)
    for key, what in failed.items():
        assert what in found.failed[key]
    assert found.report.failed == len([note for note in found.notes if note.failed])
    assert winkfs.verify(tmp_path / "c").problems == []
    links = {name for name, what in failed.items() if "was not packed" in what}
    names, failed_too = by_mtime(tmp_path / "case.tar")
    assert (names - links, failed_too) == (set(found.files), set(failed) - links)


def test_an_owner_that_does_not_fit_is_never_root(tmp_path: Path) -> None:
    odd = pax((b"uid", b"%d" % BIG), (b"gid", b"-5"))
    found = packed(tmp_path, around(odd, member(b"f"), odd, member(b"g")))
    status = stat(tmp_path / "c", "f")
    assert (status.uid, status.gid) == (UNKNOWN_OWNER, UNKNOWN_OWNER)
    assert [note.often for note in found.notes] == [1, 1]  # one line for all


def test_a_member_without_its_mark_keeps_its_own_mtime(tmp_path: Path) -> None:
    odd = pax((b"mtime", b"inf")) + member(b"f", b"x", mtime=b"00000000017\0")
    packed(tmp_path, around(odd))
    assert stat(tmp_path / "c", "f").mtime_ns == 15 * 10**9


def test_a_volume_label_is_counted(tmp_path: Path) -> None:
    found = packed(tmp_path, around(member(b"Vol", b"", b"V")))
    assert found.files == {"before": b"bb", "after": b"aa"}
    assert (found.report.left_out, found.report.failed) == (1, 0)
    assert [(note.name, note.failed) for note in found.notes] == [(b"Vol", False)]


def test_times_beyond_64_bits_are_clamped_and_counted(tmp_path: Path) -> None:
    times = [b"9" * 30, b"-" + b"9" * 30, MB, b"9223372036.854775808", b"-9223372036.8547758081"]
    odd = [pax((b"mtime", when)) + member(b"f%d" % i) for i, when in enumerate(times)]
    odd.append(member(b"f5", mtime=b"\x80" + b"\x3f" * 11))
    found = packed(tmp_path, around(*odd))
    ends = [LAST, -LAST - 1, LAST, LAST, -LAST - 1, LAST]
    assert [stat(tmp_path / "c", f"f{i}").mtime_ns for i in range(6)] == ends
    assert (found.report.clamped, found.report.left_out, found.report.failed) == (6, 0, 0)
    assert {(note.what, note.often) for note in found.notes} == {(CLAMPED, 3)}


@pytest.mark.parametrize("ns", [LAST, -LAST - 1, -1, 1_700_000_000_123_456_789])
def test_times_within_64_bits_are_exact(tmp_path: Path, ns: int) -> None:
    sign, value = ("-" if ns < 0 else ""), abs(ns)
    text = f"{sign}{value // 10**9}.{value % 10**9:09}".encode()
    assert packed(tmp_path, around(pax((b"mtime", text)) + member(b"f"))).notes == []
    assert stat(tmp_path / "c", "f").mtime_ns == ns


# --- the end ---

TWO = member(b"one", b"1") + END, member(b"two", b"2") + END
ONE, BOTH = {"one": b"1"}, {"one": b"1", "two": b"2"}
READ_ON: dict[str, bool] = {"ignore_zeros": True}
CUT = [(member(b"one", b"1") + member(b"big", b"x" * size))[:-600]
       for size in (1000, STREAM_BYTES + 1)]  # fmt: skip
# The archive, how it is packed, what is in it, parts of the line of each failure.
ENDS: list[tuple[bytes, dict[str, bool], dict[str, bytes], list[str]]] = [
    *((TWO[0] + bytes(padding), {}, ONE, []) for padding in (0, 1, 511, 512, 9 << 20)),
    *(
        (
            TWO[0] + bytes(n) + TWO[1], {}, ONE,
            [f": bytes {2048 + n:,} to {4096 + n:,} behind the end.*--ignore-zeros"],
        )
        for n in (0, 512, 10240)
    ),
    *(
        (TWO[0] + bytes(n) + TWO[1], READ_ON | {"ao": ao}, BOTH, [])
        for n in (0, 512, 10240) for ao in (False, True)
    ),
    (b"".join(map(gzip.compress, TWO)), READ_ON, BOTH, []),
    (gzip.compress(TWO[0]) + bytes(512) + b"junk", {}, ONE, ["behind the gzip data"]),
    (member(b"one", b"1"), {}, ONE, ["without its mark of the end"]),
    *((data, {"ao": ao}, ONE, ["^big: .*cut"]) for data in CUT for ao in (False, True)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("data", "options", "files", "failed"), ENDS, ids=range(len(ENDS)))
def test_the_end_is_taken_for_what_it_is(
    tmp_path: Path, data: bytes, options: dict[str, bool], files: dict[str, bytes],
    failed: list[str],
) -> None:  # fmt: skip
    found = packed(tmp_path, data, **options)
    assert found.files == files
    assert found.report.failed == len(failed)
    for note, line in zip(found.notes, failed, strict=True):
        assert re.search(line, f"{note.name.decode()}: {note.what}")
        assert note.failed
    assert winkfs.verify(tmp_path / "c").problems == []


@pytest.mark.parametrize("end", [0, 100, 700])
def test_an_extended_header_without_a_member_is_reported(tmp_path: Path, end: int) -> None:
    data = member(b"one", b"1") + pax((b"path", b"p"))
    found = packed(tmp_path, data + header(b"f")[:end] + bytes(max(end - 512, 0)))
    assert found.files.keys() - {"p"} == {"one"}
    assert found.report.failed >= 1


def test_damaged_gzip_data_make_no_container(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(around(member(b"f", bytes(range(256)) * 40))))
    data[-6] ^= 1  # its checksum
    (tmp_path / "t.tar.gz").write_bytes(data)
    with pytest.raises(FormatError, match=r"t\.tar\.gz: damaged gzip data .* gunzip -c FILE"):
        pack(tmp_path / "t.tar.gz", tmp_path / "c")
    assert files_beside(tmp_path / "c") == []


def test_an_attribute_that_is_empty_is_taken(tmp_path: Path) -> None:
    data = around(pax((b"SCHILY.xattr.user.empty", b"")) + member(b"f", b"x"))
    packed(tmp_path, data)
    with winkfs.open(tmp_path / "c") as container:
        assert container.getxattrs("f") == {b"user.empty": b""}


# --- bombs ---


def bomb(mode: str, size: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in (("small", b"s"), ("bomb", bytes(size)), ("after", b"a")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB may be unpacked freely, in place of 1 GiB."""
    for module in ("pack.Ratio", "unpack.Ratio"):
        monkeypatch.setattr(f"winkfs.archive.{module}", lambda most: Ratio(most, 65536))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_bomb_is_left_out_and_named(tmp_path: Path, mode: str, little: None) -> None:
    found = packed(tmp_path, bomb(mode, 2 << 20), max_ratio=100)
    assert found.files == {"small": b"s"}
    assert "--max-ratio" in found.failed["bomb"]


@pytest.mark.parametrize("most", [0, 10**6])
def test_max_ratio_takes_it(tmp_path: Path, most: int, little: None) -> None:
    found = packed(tmp_path, bomb("w:xz", 2 << 20), max_ratio=most)
    assert found.files == {"small": b"s", "bomb": bytes(2 << 20), "after": b"a"}
    assert found.notes == []


def test_hard_links_are_in_proportion_to_the_archive(tmp_path: Path, little: None) -> None:
    links = b"".join(member(b"l%d" % i, b"", b"1", link=b"big") for i in range(200))
    found = packed(tmp_path, around(member(b"big", bytes(1 << 20)), links), max_ratio=50)
    assert found.report.files == 3 + 200 - len(found.failed)
    assert 40 < found.report.files < 80
    assert all("--max-ratio" in what for what in found.failed.values())


def test_holes_of_a_container_that_knows_none_are_in_proportion(
    tmp_path: Path, little: None
) -> None:
    holes = pax((b"GNU.sparse.size", b"%d" % 2**40), (b"GNU.sparse.map", b"0,512"))
    data = around(holes + member(b"f", b"x" * 512))
    assert "--max-ratio" in packed(tmp_path, data, classic=True).failed["f"]


# --- the command ---


def test_the_command_names_archive_member_and_reason(run: Run, tmp_path: Path) -> None:
    odd = [pax((b"uid", b"%d" % BIG)) + member(b"o%d" % i) for i in range(3)]
    far = [pax((b"mtime", MB)) + member(b"t%d" % i) for i in range(5)]
    odd.append(pax((b"mtime", b"inf")) + member(b"n" * 90 + b"\n"))
    (tmp_path / "case.tar").write_bytes(around(*odd, *far, member(b"V", b"", b"V")))
    done = run("pack", "case.tar", "c", "--bad-list", "bad", "--json")
    assert done.status == 1
    assert done.err.splitlines() == [
        "winkfs: case.tar: " + "n" * 90 + "\\n: the mtime of its pax header is no number: inf",
        "winkfs: case.tar: V: the label of the volume: left out",
        "winkfs: case.tar: o0 and 2 more: its owner does not fit into 32 bits: 4294967294 is "
        "stored",
        "winkfs: case.tar: t0, t1, t2 and 2 more: " + CLAMPED,
        "winkfs: case.tar: 4 files are not packed, or not as they were",
    ]
    bad = [json.loads(line) for line in Path("bad").read_text().splitlines()]
    assert [line["name"] for line in bad] == ["o0", "o1", "o2", "n" * 90 + "\n"]
    assert all(line["where"] == "case.tar" and line["reason"] for line in bad)
    counts = json.loads(done.out)
    assert [len(counts[kind]) for kind in ("failed", "left_out", "clamped")] == [4, 1, 5]


def test_the_command_reads_on_and_cuts_long_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "case.tar").write_bytes(TWO[0] + TWO[1])
    assert run("pack", "case.tar", "c").status == 1
    assert run("pack", "case.tar", "d", "--ignore-zeros") == (0, b"", "")
    assert run("pack", "case.tar", "e", "--ignore-zeros", "--shards", "2").status == 0
    assert run("ls", "e").out == b"one\ntwo\n"
    long = member(b"@LongLink", b"n" * 70_000, b"L", magic=OLD_GNU) + member(b"n")
    (tmp_path / "long.tar").write_bytes(around(long))
    done = run("pack", "long.tar", "f")
    assert done.status == 1
    assert "n" * 200 + "...: its name has 70,000 bytes" in done.err
    assert "--bad-list FILE lists it" in done.err


# --- no tar file ---


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"PK\3\4", "not a whole zip file"), (b"Rar!", "a rar file"),
        (b"WARC/1.0\r\n", "a WARC file: winkfs pipeline ingest"),
        (b"\x28\xb5\x2f\xfd", "damaged zstd data"),
        (b"#!WINKME", "a file of a container"), (b"\x1f\x8bjunk", "gunzip"),
        (b"BZhjunk", "bunzip2"), (b"\xfd7zXZ\0j", "unxz"),
        (b"PAR1", "a Parquet file"), (b"7z\xbc\xaf\x27\x1c", "a 7z file"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"), (b"ARROW1\0\0", "an Arrow file"),
        (b"SEQ\6", "a SequenceFile"), (b"070707", "a cpio file"), (b"\xc7\x71", "a cpio file"),
        (b"hello", "not a tar file"), (b"", "empty: not a tar file"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [100, 600])
def test_what_is_no_tar_file_is_called_by_its_name(
    tmp_path: Path, start: bytes, what: str, size: int
) -> None:
    (tmp_path / "t").write_bytes(start + b"x" * size if start else b"")
    with pytest.raises(FormatError, match=what):
        pack(tmp_path / "t", tmp_path / "c")
    assert files_beside(tmp_path / "c") == []


# --- any bytes ---

GOOD = around(
    pax((b"mtime", b"1.5"), (b"path", b"long"), (b"SCHILY.xattr.user.a", b"b")),
    member(b"f", b"x" * 700),
    member(b"l", b"", b"2", link=b"f"),
    member(b"h", b"", b"1", link=b"f"),
    pax((b"GNU.sparse.size", b"2000"), (b"GNU.sparse.map", b"1000,512")),
    member(b"s", b"y" * 512),
    member(b"d/", b"Yf\0\0", b"D", magic=OLD_GNU, prefix=TIMES),
    member(b"@LongLink", b"n" * 300, b"L", magic=OLD_GNU),
    member(b"n", b"z"),
)


changes = st.lists(
    st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(changes, st.booleans(), st.integers(0, len(GOOD)))
def test_no_bytes_of_headers_are_a_fault_of_ours(
    changed: list[tuple[int, int]], sums: bool, size: int
) -> None:
    """What does not come is noted, or an error ends it; where the checksum of a changed header is
    right, its size may well hide the members behind it."""
    data = bytearray(GOOD)
    for at, value in changed:
        data[at] = value
        if sums and len(data[at // 512 * 512 :]) >= 512:
            start = at // 512 * 512
            data[start : start + 512] = summed(bytes(data[start : start + 512]))
    data = data[: size or len(data)]
    notes: list[Note] = []
    names = []
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    path = folder / "winkfs-odd.tar"
    path.write_bytes(data)
    try:
        for item in Tarball(str(path), notes.append, str(folder)).items(by_mtime=False):
            names.append(item.name)
            if hasattr(item, "file"):
                item.file.read(100)
    except FormatError as error:
        notes.append(Note(b"", str(error), True))
    finally:
        path.unlink()
    if data == GOOD:
        assert notes == []
    if len(names) < 8 and not sums:
        assert notes
