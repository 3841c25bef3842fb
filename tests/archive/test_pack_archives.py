"""pack: zip files, SquashFS images, SQLite archives, tar with zstd; all other kinds are refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sqlite3
import stat
import struct
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Done, Run
from commands import run as run
from trees import snapshot

import winkfs
from winkfs.archive import decompress, squashfs
from winkfs.archive import zip as zips
from winkfs.archive.items import STREAM_BYTES, Note
from winkfs.archive.pack import pack
from winkfs.archive.unpack import unpack

zstandard = pytest.importorskip("zstandard")
SQUASHED = Path(__file__).parent / "squashfs"
HOUR = 3600
BIG = b"".join(b"%d\n" % i for i in range(STREAM_BYTES // 6))


def files(base: Path) -> dict[str, bytes]:
    with winkfs.open(base) as c:
        return {
            entry.name: entry.read() for entry in c.scan() if entry.ftype != winkfs.FileType.DIR
        }


@contextlib.contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Have a pipe with these bytes as standard input."""
    read, write = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)
    os.close(read)

    def fill() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as file:
            file.write(data[:100])
            file.flush()
            file.write(data[100:])

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        thread.join()


def piped(run: Run, data: bytes, *args: object) -> Done:
    with standard_input(data):
        return run(*args)


def problems(notes: list[Note]) -> dict[bytes, str]:
    return {note.name: note.what for note in notes if note.failed}


# --- zip ---


def member(name: str, mode: int = 0o100644, **facts: Any) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (2020, 1, 2, 3, 4, 6))
    info.create_system, info.external_attr = 3, mode << 16
    for key, value in facts.items():
        setattr(info, key, value)
    return info


def zipped(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for info, data in members:
            file.writestr(info, data)
    return path


def field(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


@pytest.mark.parametrize("ao", [False, True])
def test_zip_keeps_types_modes_and_contents(tmp_path: Path, ao: bool, notes: list[Note]) -> None:
    path = zipped(
        tmp_path / "z.zip",
        (member("dir/", 0o040750), b""),
        (member("dir/run", 0o100755, compress_type=zipfile.ZIP_DEFLATED), b"#!" * 500),
        (member("dir/bz", compress_type=zipfile.ZIP_BZIP2), b"b" * 5000),
        (member("dir/lz", compress_type=zipfile.ZIP_LZMA), b"l" * 5000),
        (member("big", 0o100600, compress_type=zipfile.ZIP_DEFLATED), BIG),
        (member("link", 0o120777), b"dir/run"),
        (member("empty"), b""),
    )
    report = pack(path, tmp_path / "c", ao=ao, note=notes.append)
    assert (report.files, report.directories, report.links, notes) == (5, 1, 1, [])
    unpack(tmp_path / "c", tmp_path / "out", note=notes.append)
    out = tmp_path / "out"
    assert (out / "big").read_bytes() == BIG and os.readlink(out / "link") == "dir/run"
    assert (out / "dir/bz").read_bytes() == b"b" * 5000 == (out / "dir/bz").read_bytes()
    assert (out / "dir/lz").read_bytes() == b"l" * 5000
    modes = {name: stat.S_IMODE((out / name).stat().st_mode) for name in ("dir", "dir/run", "big")}
    assert modes == {"dir": 0o750, "dir/run": 0o755, "big": 0o600}


def test_zip_times_and_owners_of_extra_fields(tmp_path: Path) -> None:
    ns = 1_600_000_000_123_456_700
    ntfs = struct.pack("<4xHHQQQ", 1, 24, ns // 100 + 116_444_736_000_000_000, 0, 0)
    path = zipped(
        tmp_path / "z.zip",
        (member("dos"), b"1"),
        (member("unix", extra=field(0x5455, b"\1" + struct.pack("<i", -5))), b"1"),
        (member("even", extra=field(0x5455, b"\1" + struct.pack("<i", 1 << 20))), b"1"),
        (member("atime", extra=field(0x5455, b"\2" + struct.pack("<i", -7))), b"1"),
        (member("ntfs", extra=field(0x000A, ntfs)), b"1"),
        (member("owner", extra=field(0x7875, b"\1\4" + struct.pack("<IBI", 70_000, 4, 7))), b"1"),
    )
    pack(path, tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        local = int(time.mktime((2020, 1, 2, 3, 4, 6, 0, 0, -1)))
        times = {name: c.stat(name).mtime_ns for name in ("dos", "unix", "ntfs", "even", "atime")}
        assert times == {
            "dos": local * 10**9, "unix": -5 * 10**9, "ntfs": ns, "even": (1 << 20) * 10**9,
            "atime": local * 10**9,
        }  # fmt: skip
        assert (c.stat("owner").uid, c.stat("owner").gid) == (70_000, 7)
        assert c.stat("dos").uid == os.geteuid()


def test_zip_modes_of_other_systems(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "z.zip", (member("d/", 0, create_system=0), b""),
        (member("f", 0o100777, create_system=0), b""),
        (member("ro", 0, create_system=0, external_attr=1), b""),
        (member("odd", 0, external_attr=1), b""),
    )  # fmt: skip
    pack(path, tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert {name: oct(c.stat(name).mode) for name in c} == {
            "d": "0o755", "f": "0o644", "ro": "0o444", "odd": "0o644",
        }  # fmt: skip


def test_zip_names_of_each_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, dos = b"\xff\xc3\xa4".decode("cp437"), b"\x84".decode("cp437")
    checked = zlib.crc32(b"\x81")
    path = tmp_path / "z.zip"
    odd = [
        (raw, 3, b"", b"\xff\xc3\xa4"),  # bytes of a system of Unix
        (dos, 0, b"", "ä".encode()),  # CP437
        (
            b"\x81".decode("cp437"),
            0,
            field(0x7075, b"\1" + struct.pack("<I", checked) + b"u"),
            b"u",
        ),
        ("日本", 0, b"", "日本".encode()),  # marked as UTF-8
        ("./a//b", 3, b"", b"a/b"),
        ("/root", 3, b"", b"root"),
    ]
    monkeypatch.setattr(zipfile.ZipInfo, "_encodeFilenameFlags", encoded)
    with zipfile.ZipFile(path, "w") as file:
        for text, system, extra, _ in odd:
            file.writestr(member(text, create_system=system, extra=extra), b"1")
    pack(path, tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert {os.fsencode(name) for name in c} == {name for *_, name in odd}


def encoded(info: zipfile.ZipInfo) -> tuple[bytes, int]:
    """Return a name in CP437 where that has its letters, and flags."""
    try:
        return info.filename.encode("cp437"), info.flag_bits & ~0x800
    except UnicodeEncodeError:
        return info.filename.encode(), info.flag_bits | 0x800


def test_zip_bad_members_cost_themselves(run: Run, tmp_path: Path, notes: list[Note]) -> None:
    good = [(member(f"good{i}"), b"%d" % i * 100) for i in range(3)]
    path = zipped(
        tmp_path / "z.zip", good[0], (member("crc"), b"CONTENT"), (member("../up"), b"1"),
        (member("secret"), b"S"), (member("method"), b"M"), (member("fifo", 0o010644), b""),
        (member("nothing"), b"N"),
        *good[1:],
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[data.index(b"CONTENT")] ^= 1
    data[data.rindex(b"nothing") - 46 + 24] = 0  # its size
    for name, at, value in ((b"secret", 8, 1), (b"method", 10, 95)):
        entry = data.rindex(name) - 46
        data[entry + at] = value
        data[data.index(name) - 30 + at - 2] = value
    path.write_bytes(data)
    report = pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {f"good{i}": b"%d" % i * 100 for i in range(3)}
    found = problems(notes)
    assert found.keys() == {b"crc", b"../up", b"secret", b"method", b"nothing"}
    assert report.left_out == 1 and "no bytes" in found[b"nothing"]
    assert "CRC" in found[b"crc"] and '".."' in found[b"../up"] and "7z x" in found[b"secret"]
    assert "bsdtar" in found[b"method"]
    done = run("pack", str(path), str(tmp_path / "d"))
    assert done.status == 1 and done.err.count("\n") == 7


def test_zip_large_member_with_a_wrong_checksum_is_not_stored(
    tmp_path: Path, notes: list[Note]
) -> None:
    path = zipped(tmp_path / "z.zip", (member("big"), BIG), (member("b"), b"1"))
    data = bytearray(path.read_bytes())
    data[STREAM_BYTES // 2] ^= 1
    path.write_bytes(data)
    pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {"b": b"1"} and problems(notes).keys() == {b"big"}


def test_zip_small_members_are_read_as_by_zipfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deflated = zipfile.ZIP_DEFLATED
    path = zipped(
        tmp_path / "z.zip", (member("stored"), b"S" * 99), (member("empty"), b""),
        (member("deflated", compress_type=deflated), b"D" * 70_000),
        (member("fields", extra=field(0x9999, bytes(300))), b"F"), (member("grün"), b"G"),
        (member("crc"), b"CONTENT"), (member("head"), b"H"), (member("flag"), b"L"),
        (member("data", compress_type=deflated), os.urandom(50)),
        (member("long", compress_type=deflated), b"1" * 999), (member("last"), b"1"),
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[data.index(b"CONTENT")] ^= 1
    data[data.index(b"head") + 1] ^= 1
    data[data.rindex(b"flag") - 46 + 8] ^= 0x20  # patched
    data[data.index(b"data") + 4] ^= 7
    data[data.rindex(b"long") - 46 + 24] -= 1  # its size: the stream has more
    path.write_bytes(data)
    small, taken, found = zips.read_small, list[str](), []

    def counted(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes | None:
        content = small(archive, info)
        taken.extend([info.filename] * (content is not None))
        return content

    for i, read in enumerate((counted, lambda archive, info: None)):
        monkeypatch.setattr(zips, "read_small", read)
        notes = list[Note]()
        report = pack(path, tmp_path / f"c{i}", note=notes.append)
        found.append((files(tmp_path / f"c{i}"), report, notes))
    assert found[0] == found[1]
    assert taken == ["stored", "deflated", "last"]
    assert problems(notes).keys() == {b"crc", b"head", b"flag", b"data", b"long"}


def test_zip_members_before_the_start_cost_themselves(tmp_path: Path, notes: list[Note]) -> None:
    path = zipped(tmp_path / "z.zip", (member("a"), b"A" * 50), (member("b"), b"B" * 50))
    data = bytearray(path.read_bytes())
    data[-6] += 9  # the offset of the directory: members seem to be 9 bytes before their places
    path.write_bytes(data)
    pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {} and problems(notes).keys() == {b"a", b"b"}


def test_zip_members_that_share_bytes_and_bombs(tmp_path: Path, notes: list[Note]) -> None:
    path = zipped(tmp_path / "z.zip", (member("a"), b"A" * 50), (member("b"), b"B" * 50))
    data = bytearray(path.read_bytes())
    second = data.rindex(b"b") - 46
    data[second + 42 : second + 46] = bytes(4)  # its offset: that of a
    path.write_bytes(data)
    pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {} and "another member" in problems(notes)[b"a"]
    notes.clear()
    path = zipped(tmp_path / "y.zip", (member("a", compress_type=zipfile.ZIP_DEFLATED), b"A" * 50))
    whole = path.read_bytes()
    for at, what in (20, "another member"), (24, "end early"):  # bytes of data; of content
        data = bytearray(whole)
        data[data.rindex(b"a") - 46 + at] += 5
        path.write_bytes(data)
        notes.clear()
        pack(path, tmp_path / f"y{at}", note=notes.append)
        assert files(tmp_path / f"y{at}") == {} and what in problems(notes)[b"a"]
    notes.clear()
    bomb = zipped(
        tmp_path / "bomb.zip",
        (member("bomb", compress_type=zipfile.ZIP_DEFLATED), bytes(3 << 20)),
        (member("good"), b"1"),
    )
    limit = winkfs.archive.items.Ratio(10, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("winkfs.archive.pack.Ratio", lambda most: limit)
        pack(bomb, tmp_path / "d", note=notes.append)
    assert files(tmp_path / "d") == {"good": b"1"}
    assert "--max-ratio" in problems(notes)[b"bomb"]


def test_zip64_descriptors_and_what_is_before(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open(member("large"), "w", force_zip64=True) as large:
            large.write(BIG)
        file.writestr(member("small"), b"1")
    for name, before in (("z.zip", b""), ("program", b"MZ" + bytes(600))):
        (tmp_path / name).write_bytes(before + pipe.getvalue())
        pack(tmp_path / name, tmp_path / f"{name}.c")
        assert files(tmp_path / f"{name}.c") == {"large": BIG, "small": b"1"}


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_zip_that_is_cut_is_refused_in_one_line(run: Run, tmp_path: Path, keep: float) -> None:
    path = zipped(tmp_path / "z.zip", *[(member(f"f{i}"), b"1" * 99) for i in range(20)])
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    done = run("pack", str(path), str(tmp_path / "c"))
    assert done.status == 1 and "not a whole zip file" in done.err
    assert done.err.count("\n") == 1 and not list(tmp_path.glob("c*"))


# --- SquashFS ---


@pytest.mark.parametrize("kind", ["gzip", "lzo", "lz4", "xz", "zstd", "lzma"])
def test_squashfs_of_each_compression(tmp_path: Path, kind: str, notes: list[Note]) -> None:
    pytest.importorskip("dissect.squashfs")
    pack(SQUASHED / f"{kind}.sqfs", tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {
        "a/x.txt": b"hello\n", "hole": bytes(200_000) + b"end", "link": b"a/x.txt",
        "text": b"".join(b"line %d\n" % i for i in range(3000)), "\udcff": b"x",
    }  # fmt: skip
    with winkfs.open(tmp_path / "c") as c:
        one = c.stat("a/x.txt")
        assert (one.mode, one.uid, one.gid, one.mtime_ns) == (0o640, 1000, 100, 10**18)
        assert any(extent.pointer == 0 for extent in c.extents("hole"))
    reported = {note.name: note.what for note in notes}
    assert reported.keys() == {b"fifo", b"text"} and "sqfs2tar" in reported[b"text"]
    assert problems(notes) == {}


def test_squashfs_damage_is_reported(tmp_path: Path, every: Callable[[str], slice]) -> None:
    pytest.importorskip("dissect.squashfs")
    whole = (SQUASHED / "gzip.sqfs").read_bytes()
    for at in range(0, len(whole), 97)[every("archive bytes")]:
        data = bytearray(whole)
        data[at] ^= 0x55
        (tmp_path / "i.sqfs").write_bytes(data)
        with contextlib.suppress(winkfs.FormatError):
            pack(tmp_path / "i.sqfs", tmp_path / f"c{at}")


def test_squashfs_names_and_directories_that_cannot_be() -> None:
    def node(name: str, mode: int, at: int, *below: SimpleNamespace) -> SimpleNamespace:
        header = SimpleNamespace(mtime=1, file_size=0)
        return SimpleNamespace(
            name=name, mode=mode, header=header, uid=0, gid=0, block=at, offset=0,
            iterdir=lambda: iter(below),
        )  # fmt: skip

    again = node("again", 0o040755, 0)
    below = node("d", 0o040755, 5, node("f", 0o100644, 6), again)
    root = node("", 0o040755, 0, node("a/b", 0o100644, 1), node("", 0o100644, 2), below)
    again.iterdir = root.iterdir
    entries = squashfs._entries(SimpleNamespace(root=root))
    found = [(one.name, one.fault) for one in islice(entries, 20)]
    wrong = "damaged: no file can have this name"
    assert found == [
        (b"a/b", wrong), (b"", wrong), (b"d", None), (b"d/f", None), (b"d/again", None),
        (b"d/again", "damaged: a directory that was read already"),
    ]  # fmt: skip


def test_squashfs_without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dissect.squashfs", None)
    with pytest.raises(winkfs.WinkError, match=r"pip install 'winkfs\[archives\]'"):
        pack(SQUASHED / "gzip.sqfs", tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# --- SQLite archives ---


def sqlar(path: Path, *rows: tuple[Any, ...]) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(
            "CREATE TABLE sqlar(name TEXT PRIMARY KEY, mode INT, mtime INT, sz INT, data BLOB)"
        )
        file.executemany("INSERT INTO sqlar VALUES (?, ?, ?, ?, ?)", rows)
        file.commit()
    return path


@pytest.mark.parametrize("ao", [False, True])
def test_sqlar_keeps_what_it_has(tmp_path: Path, ao: bool, notes: list[Note]) -> None:
    text = b"text " * 1000
    path = sqlar(
        tmp_path / "a.sqlar",
        ("d", 0o040755, 7, 0, None),
        ("d/big", 0o100600, 9, len(BIG), zlib.compress(BIG)),
        ("d/text", 0o100644, 8, len(text), zlib.compress(text)),
        ("d/plain", 0o100755, 6, 3, b"abc"),
        ("link", 0o120777, 5, -1, "d/text"),
        ("fifo", 0o010644, 5, 0, None),
    )
    report = pack(path, tmp_path / "c", ao=ao, note=notes.append)
    assert (report.files, report.directories, report.links, report.left_out) == (3, 1, 1, 1)
    assert files(tmp_path / "c") == {
        "d/big": BIG, "d/text": text, "d/plain": b"abc", "link": b"d/text"
    }  # fmt: skip
    with winkfs.open(tmp_path / "c") as c:
        assert c.stat("d/big").mode == 0o600 and c.stat("d/text").mtime_ns == 8 * 10**9
    again = pack(path, tmp_path / "c", update=True, note=notes.append, ao=ao)
    assert again.unchanged == 5 and again.files == 0


def test_sqlar_bad_rows_cost_themselves(tmp_path: Path, notes: list[Note]) -> None:
    path = sqlar(
        tmp_path / "a.sqlar",
        ("short", 0o100644, 1, 50, zlib.compress(b"1" * 20)),
        ("long", 0o100644, 1, 15, zlib.compress(b"1" * 60)),
        ("none", 0o100644, 1, 500, b"no zlib"),
        ("odd", "mode", 1, 5, b"12345"),
        ("../up", 0o100644, 1, 1, b"1"),
        ("more", 0o100644, 1, 1, b"12"),
        ("a\0b", 0o100644, 1, 1, b"1"),
        ("cut", 0o100644, 1, 60, zlib.compress(b"1" * 60)[:-1]),
        ("large", 0o100644, 1, 5, zlib.compress(b"12345")),
        (None, 0o100644, 1, 1, b"1"),
        ("good", 0o100644, 1, 1, b"1"),
    )
    pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {"good": b"1"}
    bad = {b"short", b"long", b"none", b"odd", b"../up", b"more", b"a\0b", b"cut", b"large",
           b"row 10"}  # fmt: skip
    assert problems(notes).keys() == bad


def test_sqlar_numbers_that_no_file_has(tmp_path: Path, notes: list[Note]) -> None:
    path = sqlar(
        tmp_path / "a.sqlar",
        ("ever", 0o100644, float("inf"), 1, b"1"),
        ("never", 0o100644, -1e300, 1, b"2"),
        ("wide", 1 << 40 | 0o100600, 1, 1, b"3"),
        ("below", -1, 1, 1, b"4"),
    )
    report = pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {"ever": b"1", "never": b"2", "wide": b"3"}
    assert (report.clamped, report.left_out, report.failed) == (2, 1, 0)
    with winkfs.open(tmp_path / "c") as c:
        assert c.stat("wide").mode == 0o600
        assert [c.stat(name).mtime_ns for name in ("ever", "never")] == [2**63 - 1, -(2**63)]


def test_sqlite_files_that_are_no_archives(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE t(x)")
        file.commit()
    assert "without a table sqlar" in refused(run, path)
    sqlar(tmp_path / "b.sqlar", ("a", 0o100644, 1, 1, b"1"))
    (tmp_path / "b.sqlar-wal").write_bytes(b"x")
    assert "b.sqlar-wal" in refused(run, tmp_path / "b.sqlar")
    (tmp_path / "b.sqlar-wal").write_bytes(b"")
    with contextlib.closing(sqlite3.connect(tmp_path / "b.sqlar")) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert run("pack", tmp_path / "b.sqlar", tmp_path / "b").status == 0
    damaged = bytearray(path.read_bytes())
    damaged[100:110] = b"\xff" * 10
    path.write_bytes(damaged)
    assert "SQLite" in refused(run, path)


def refused(run: Run, path: Path) -> str:
    """Return the one line with which pack refuses a file."""
    done = run("pack", str(path), str(path.parent / "none"))
    assert done.status == 1 and done.err.count("\n") == 1, done.err
    assert not list(path.parent.glob("none*"))
    return done.err


# --- tar with zstd ---


def tarred(**contents: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_tar_with_zstd_from_a_file_and_a_pipe(run: Run, tmp_path: Path) -> None:
    plain = tarred(big=BIG, a=b"1")
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    half = len(plain) // 2
    frames = [zstandard.compress(plain[:half]), zstandard.compress(plain[half:])]
    for i, data in enumerate(
        [zstandard.compress(plain), skipped + frames[0] + skipped + frames[1]]
    ):
        path = tmp_path / f"{i}.tar.zst"
        path.write_bytes(data)
        pack(path, tmp_path / f"c{i}")
        assert files(tmp_path / f"c{i}") == {"big": BIG, "a": b"1"}
        done = piped(run, data, "pack", "-", tmp_path / f"p{i}")
        assert done.status == 0 and files(tmp_path / f"p{i}") == {"big": BIG, "a": b"1"}


@pytest.mark.parametrize("compress", [zstandard.compress, lambda data: gzip.compress(data, 0)])
def test_a_zip_file_in_a_compressed_tar_is_a_member(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    inner = zipped(tmp_path / "inner.zip", (member("a"), os.urandom(5000))).read_bytes()
    (tmp_path / "x.tar.z").write_bytes(compress(tarred(inner=inner)))
    pack(tmp_path / "x.tar.z", tmp_path / "c")
    assert files(tmp_path / "c") == {"inner": inner}


def test_what_a_tar_with_hard_links_would_store(tmp_path: Path, notes: list[Note]) -> None:
    out = io.BytesIO(tarred(a=b"12345"))
    with tarfile.open(fileobj=out, mode="a") as tar:
        for name, target in (("b", "a"), ("c", "b"), ("d", "gone")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE, target
            tar.addfile(info)
    (tmp_path / "x.tar").write_bytes(out.getvalue())
    tried = pack(tmp_path / "x.tar", tmp_path / "c", dry_run=True, note=notes.append)
    assert [(note.name, note.failed) for note in notes] == [(b"d", True)]
    assert tried == pack(tmp_path / "x.tar", tmp_path / "c") and tried.bytes == 15


def test_zstd_damage_cuts_and_bombs(tmp_path: Path, notes: list[Note]) -> None:
    data = zstandard.ZstdCompressor(write_checksum=True).compress(tarred(a=b"1", big=BIG * 3))
    path = tmp_path / "t.tar.zst"
    path.write_bytes(data[: len(data) // 2])
    pack(path, tmp_path / "c", note=notes.append)
    assert files(tmp_path / "c") == {"a": b"1"} and "cut" in problems(notes)[b"big"]
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(winkfs.FormatError, match="damaged zstd data"):
        pack(path, tmp_path / "d")
    bomb = zstandard.compress(bytes(1 << 28))
    found = decompress.compression_of(bomb)
    assert found is not None
    tracemalloc.start()
    assert found.make().decompress(bomb, 1000) == bytes(1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


# --- all other kinds ---

OTHERS = {
    "7z": (b"7z\xbc\xaf\x27\x1c", "7z file: bsdtar"), "rar": (b"Rar!\x1a\7\1\0", "bsdtar"),
    "cpio": (b"070701" + b"0" * 104, "bsdtar"), "warc": (b"WARC/1.0\r\n", "pipeline ingest"),
    "parquet": (b"PAR1" + bytes(60), "pipeline ingest"), "arrow": (b"ARROW1\0", "Parquet"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "HDF5"), "seq": (b"SEQ\6\x19org", "SequenceFile"),
    "text": ("Hällo, world\n".encode(), "not a tar file, but text: winkfs put"),
    "binary": (b"\x80\x81\0\1", "not a tar file: winkfs put"),
    "iso": (bytes(0x8000) + b"\1CD001\1", "ISO 9660 image: bsdtar"),
    "zstd": (zstandard.compress(b"text"), "a zstd file of"),
    "lz4": (b"\x04\x22\x4d\x18abc", "lz4 -dc"), "empty": (b"", "empty"),
}  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("more", [0, 40_000])
def test_other_kinds_are_refused_with_what_to_do(
    run: Run, tmp_path: Path, name: str, more: int
) -> None:
    start, what = OTHERS[name]
    data = start + start[-1:] * more if name not in ("iso", "zstd") else start
    (tmp_path / "x").write_bytes(data)
    assert what in refused(run, tmp_path / "x")
    done = piped(run, data, "pack", "-", tmp_path / "none")
    assert done.status == 1 and what in done.err and done.err.count("\n") == 1


def test_zip_from_a_pipe_is_refused(run: Run, tmp_path: Path) -> None:
    path = zipped(tmp_path / "z.zip", (member("a"), b"1"))
    done = piped(run, path.read_bytes(), "pack", "-", tmp_path / "none")
    assert done.status == 1 and "not from a pipe" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("update", [False, True])
def test_a_data_set_takes_zip_files_too(run: Run, tmp_path: Path, update: bool) -> None:
    path = zipped(tmp_path / "z.zip", *[(member(f"f{i}"), b"%d" % i) for i in range(50)])
    pack_set = ["pack", "--shards", "3", str(path), str(tmp_path / "set")]
    assert run(*pack_set).status == 0
    if update:
        zipped(path, *[(member(f"f{i}"), b"%d" % i) for i in range(60)])
        assert run(*pack_set, "--update").status == 0
    assert files(tmp_path / "set") == {f"f{i}": b"%d" % i for i in range(60 if update else 50)}


def test_tree_to_zip_and_back_is_equal(run: Run, tree: Path, tmp_path: Path) -> None:
    """Tree, container, tar, container, zip, container, tree."""
    for i, form in enumerate(("--tar", "--zip")):
        source = tree if not i else tmp_path / "0"
        assert run("pack", source, tmp_path / f"c{i}").status == 0
        assert run("unpack", form, tmp_path / f"{i}", tmp_path / f"c{i}").status == 0
    assert run("pack", tmp_path / "1", tmp_path / "c2").status == 0
    unpack(tmp_path / "c2", tmp_path / "back", same_permissions=True)
    here, there = snapshot(tree, second=True), snapshot(tmp_path / "back", second=True)
    assert {name: facts[:3] for name, facts in here.items()} == {
        name: facts[:3] for name, facts in there.items()
    }
