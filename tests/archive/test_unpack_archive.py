"""unpack --tar and --zip: what comes out is what `pack`, GNU tar and unzip read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import stored
from commands import PROGRAM, Run, one_line
from trees import DIR, LINK, snapshot

import winkfs
from winkformats import native
from winkformats.errors import FormatError
from winkfs.archive.archivewriter import CHANGED, HELD_BYTES, body_of
from winkfs.archive.items import Allowance, Note, Ratio
from winkfs.archive.pack import pack
from winkfs.archive.tarheader import pax_time, pax_time_text
from winkfs.archive.tarwriter import TarWriter
from winkfs.archive.unpack import unpack
from winkfs.archive.zipwriter import LESS

pytestmark = pytest.mark.on_disk

KB = 1 << 10


@pytest.fixture
def rich(tree: Path, tmp_path: Path) -> Path:
    """A container with all that a tar file can have."""
    with (tree / "holes").open("wb") as file:
        file.truncate(900 * KB)
        for at in (64 * KB, 512 * KB):
            file.seek(at)
            file.write(b"d" * 5000)
    with (tree / "only a hole").open("wb") as file:
        file.truncate(128 * KB)
    (tree / "long" / ("d" * 120)).mkdir(parents=True)
    (tree / "long" / ("d" * 120) / ("n" * 200)).write_bytes(b"long")
    (tree / ("h" * 100)).write_bytes(b"as long as the field")
    (tree / "far").symlink_to("/".join(["t" * 100] * 3))
    os.setxattr(tree / "run.sh", "user.a=b%", b"\0\n\xff")
    os.setxattr(tree / "run.sh", "user.empty", b"")
    os.utime(tree / "secret", ns=(0, -1_500_000_000))
    os.utime(tree / "empty", ns=(0, 1_700_000_000 * 10**9))
    pack(tree, tmp_path / "c")
    with winkfs.open(tmp_path / "c", "a") as c:
        c.put("large id", b"1", mtime=1, uid=3_000_000_000, gid=2_097_152)
    return tmp_path / "c"


def test_a_tar_that_is_packed_again_is_the_same_container(rich: Path, tmp_path: Path) -> None:
    notes: list[Note] = []
    report = unpack(rich, tar=str(tmp_path / "c.tar"), note=notes.append)
    assert (notes, report.failed) == ([], 0)
    assert report.bytes == sum(
        len(fact[0]) for fact in stored.facts(rich).values() if fact[2] != LINK
    )
    pack(tmp_path / "c.tar", tmp_path / "again", note=notes.append)
    assert notes == []
    assert stored.facts(tmp_path / "again") == stored.facts(rich)
    assert (tmp_path / "c.tar").stat().st_size % 10240 == 0


def test_gnu_tar_extracts_the_tree(tree: Path, rich: Path, tmp_path: Path) -> None:
    unpack(rich, tar=str(tmp_path / "c.tar"), exclude=["large id"])
    (tmp_path / "out").mkdir()
    command = ["tar", "xpf", tmp_path / "c.tar", "--xattrs", "-C", tmp_path / "out"]
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    assert snapshot(tmp_path / "out") == snapshot(tree)
    assert os.getxattr(tmp_path / "out/run.sh", "user.a=b%") == b"\0\n\xff"
    holes = (tmp_path / "out/holes").stat()
    assert holes.st_blocks * 512 < holes.st_size / 2
    listed = subprocess.run(["tar", "tf", tmp_path / "c.tar"], check=True, capture_output=True)
    assert listed.stdout.count(b"\n") == len(snapshot(tree))


@pytest.mark.parametrize("held", [HELD_BYTES, 1 << 20])
def test_damage_in_a_file_leaves_it_out_of_a_whole_archive(
    tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winkfs.archive.archivewriter.HELD_BYTES", held)
    large = {f"l{i}": bytes([65 + i]) * (3 << 20) for i in range(3)}
    base = stored.make(tmp_path / "c", {"a": b"A" * 500, "bad": b"BBBB" * 50} | large)
    stored.flip_text(f"{base}.data", b"BBBB")
    stored.flip_text(f"{base}.data", b"C" * 500, 1000)
    notes: list[Note] = []
    report = unpack(base, tar=str(tmp_path / "c.tar"), note=notes.append)
    assert [note.name for note in notes] == [b"bad", b"l2"] and report.failed == 2
    pack(tmp_path / "c.tar", tmp_path / "again", note=notes.append)
    assert len(notes) == 2
    assert set(stored.facts(tmp_path / "again")) == {"a", "l0", "l1"}
    report = unpack(base, zip=str(tmp_path / "c.zip"))
    assert report.failed == 2
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        assert file.testzip() is None and set(file.namelist()) == {"a", "l0", "l1"}


def test_damage_while_a_file_is_written_is_zeros_and_a_note(
    tmp_path: Path, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winkfs.archive.archivewriter.HELD_BYTES", 1 << 20)
    base = stored.make(tmp_path / "c", {"a": b"A" * (2 << 20)})
    with winkfs.open(base, "a") as c:
        c.append("a", b"B" * (2 << 20))
    with winkfs.open(base) as c:
        (entry,) = c.scan()
        body = body_of(entry, Allowance(4 << 20, 1 << 30, Ratio()), holes=False)
        with pytest.raises(FormatError, match="more content"):
            body_of(entry, Allowance(entry.size - 1, 1 << 30, Ratio()), holes=False)
        stored.flip_text(f"{base}.data", b"B" * 1000)
        data = b"".join(body.data(holes=False, note=notes.append))
    assert data == b"A" * (2 << 20) + bytes(2 << 20)
    (note,) = notes
    assert (note.name, note.failed) == (b"a", True) and note.what.startswith(CHANGED)


def test_a_hole_takes_nothing_of_the_allowance_of_contents(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1")
        c.truncate("a", 1 << 20)
        (entry,) = c.scan()
        body = body_of(entry, Allowance(4096, 1 << 30, Ratio()), holes=True)
        assert b"".join(
            body.data(holes=True, note=lambda note: pytest.fail(note.what))
        ) == b"1" + bytes((1 << 20) - 1)


def test_a_target_may_take_a_part_of_what_is_written(rich: Path) -> None:
    whole, parts = io.BytesIO(), list[bytes]()

    class Slow:
        def write(self, data: Any) -> int:
            parts.append(bytes(data[:70_000]))
            return len(parts[-1])

    unpack(rich, tar=whole)
    unpack(rich, tar=Slow())
    assert b"".join(parts) == whole.getvalue()


def test_numbers_that_do_not_fit_into_their_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that a small file reaches."""
    monkeypatch.setattr("winkfs.archive.tarheader.MOST_NUMBER", 999)
    base = stored.make(tmp_path / "c", [("a", b"1" * 5000, 7), ("b", b"2" * 5000, 4000)])
    out = io.BytesIO()
    unpack(base, tar=out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as file:
        assert [(one.name, one.size, one.mtime) for one in file] == [
            ("a", 5000, 7),
            ("b", 5000, 4000),
        ]


@pytest.mark.parametrize("how", ["zip", "contents"])
def test_a_file_that_is_too_large_costs_itself(tmp_path: Path, how: str) -> None:
    base, out, notes = tmp_path / "c", io.BytesIO(), list[Note]()
    with winkfs.create(base) as c:
        c.put("huge", b"")
        c.truncate("huge", 1 << 40)
        c.sync()
        c.put("a", b"content of a")
    report = unpack(base, **{how: out}, note=notes.append)  # type: ignore[arg-type]
    assert [note.name for note in notes if note.failed] == [b"huge"] and report.files == 1
    if how == "zip":
        assert zipfile.ZipFile(out).namelist() == ["a"]
    else:
        assert out.getvalue() == b"content of a"


@pytest.mark.few(2)
@pytest.mark.skipif(native.code is None, reason="runs are read by the compiled module")
@pytest.mark.parametrize("kind", ["plain", "damaged", "few", "names"])
def test_files_in_runs_are_written_as_one_by_one(
    kind: str, rich: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(40 if kind == "few" else 200):
        path = tree / "many" / f"d{i // 50}" / f"f{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%04d" % i * (i * 7 % 600))
        path.chmod(0o755 if i % 3 else 0o640)
        os.utime(path, ns=(0, (1_700_000_000 + i) * 10**9 + i % 2 * 123))
    if kind == "names":
        (tree / "many" / "d1" / ("n" * 99)).write_bytes(b"n")
        os.utime(tree / "many" / "d2" / "f100", ns=(0, 5))
    base = tmp_path / "many"
    pack(tree, base)
    if kind == "damaged":
        stored.flip_text(f"{base}.data", b"0123" * 50)
    whole, files = TarWriter.put_run, 0

    def counted(writer: TarWriter, run: Any, paths: list[bytes]) -> bool:
        nonlocal files
        done = whole(writer, run, paths)
        files += done * len(run.table)
        return done

    found = []
    for put_run in (counted, lambda writer, run, paths: False):
        monkeypatch.setattr(TarWriter, "put_run", put_run)
        out, notes = io.BytesIO(), list[Note]()
        report = unpack(base, tar=out, note=notes.append)
        found.append((out.getvalue(), report, notes))
    assert found[0] == found[1]
    assert found[0][1].failed == (kind == "damaged")
    assert (files > 150) == (kind != "few")


def test_an_archive_that_is_there_stays_unless_forced(run: Run, base: str) -> None:
    Path("c.tar").write_bytes(b"precious")
    assert "--force" in one_line(run("unpack", base, "--tar", "c.tar"))
    assert Path("c.tar").read_bytes() == b"precious"
    assert run("unpack", base, "--tar", "c.tar", "--force").status == 0
    assert run("pack", "c.tar", "again").status == 0
    os.mkfifo("pipe")
    for path in ("pipe", "/dev/null", "."):
        one_line(run("unpack", base, "--tar", path, "--force"))
    one_line(run("unpack", base, "--tar", "no/where.tar"))
    assert {"c.tar.tmp"}.isdisjoint(os.listdir("."))


def test_a_full_disk_leaves_no_archive(tmp_path: Path, small_disk: Path) -> None:
    base = stored.make(tmp_path / "c", {f"{i}": os.urandom(300_000) for i in range(6)})
    for kind in ("tar", "zip"):
        with pytest.raises(OSError, match="No space left"):
            unpack(base, **{kind: str(small_disk / "c")})
        assert list(small_disk.iterdir()) == []


def test_tar_to_a_pipe_is_that_to_a_file(run: Run, base: str) -> None:
    done = run("unpack", base, "--tar", "-", "docs*", "--exclude", "b.html")
    assert done.status == 0
    assert run("unpack", base, "--tar", "f.tar", "docs*", "--exclude", "b.html").status == 0
    assert done.out == Path("f.tar").read_bytes()
    listed = subprocess.run(["tar", "t"], input=done.out, capture_output=True, check=True)
    assert listed.stdout == b"docs/\ndocs/a.html\n"
    names = run("unpack", base, "--tar", "-", "docs*", "--exclude", "b.html", "-v")
    assert names == (0, done.out, "docs\ndocs/a.html\n")


def test_a_reader_that_stops_ends_the_command(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {f"{i}": bytes(1 << 20) for i in range(8)})
    with subprocess.Popen(
        [*PROGRAM, "unpack", base, "--tar", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_names_in_an_archive_are_the_paths_of_unpack(tmp_path: Path) -> None:
    names = ["a", "a/b", "a/b/c", "../up", "/abs", "x//y", "z", "z/y/x"]
    base = stored.make(tmp_path / "c", {name: name.encode() for name in names})
    unpack(base, tmp_path / "out")
    unpack(base, tar=str(tmp_path / "c.tar"))
    (tmp_path / "tar").mkdir()
    subprocess.run(["tar", "xf", tmp_path / "c.tar", "-C", tmp_path / "tar"], check=True)
    found = snapshot(tmp_path / "tar")
    assert found.keys() == snapshot(tmp_path / "out").keys()
    assert found.keys() >= {"a/@file", "a/b/@file", "@../up", "z/@file"}
    unpack(base, zip=str(tmp_path / "c.zip"))
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        assert set(file.namelist()) == {name for name, fact in found.items() if fact[0] is not None}


@pytest.mark.parametrize("ns", [0, 1, -1, 10**9, -(10**9), -1_500_000_001, (1 << 63) - 1, -1 << 63])
def test_a_time_in_a_pax_header_comes_back(ns: int) -> None:
    assert pax_time(pax_time_text(ns)) == ns


def test_a_link_without_a_valid_target_is_left_out(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"good": b"1"})
    with winkfs.open(base, "a") as c:
        c.put("nul", b"a\0b", ftype=LINK)
        c.put("nothing", b"", ftype=LINK)
    report = unpack(base, tar=str(tmp_path / "c.tar"))
    assert (report.failed, report.files, report.links) == (2, 1, 0)


# --- zip ---


def test_python_and_unzip_read_a_zip(tree: Path, tmp_path: Path, notes: list[Note]) -> None:
    (tree / "big").write_bytes(os.urandom(1 << 20) + bytes(HELD_BYTES))
    os.setxattr(tree / "run.sh", "user.a", b"1")
    pack(tree, tmp_path / "c")
    report = unpack(tmp_path / "c", zip=str(tmp_path / "c.zip"), note=notes.append)
    assert report.failed == 0
    assert {(note.what, note.failed, note.often) for note in notes} == {(LESS, False, 1)}
    with zipfile.ZipFile(tmp_path / "c.zip") as file:
        assert file.testzip() is None
        assert file.read("big") == (tree / "big").read_bytes()
        assert file.getinfo("run.sh").external_attr >> 16 == 0o100755
        assert file.getinfo("link").external_attr >> 16 == 0o120777
        assert file.read("link") == b"docs/a.html"
        assert file.getinfo("docs/").is_dir() and file.getinfo("docs/").external_attr & 0x10
        assert file.read("Grüße\n") == b"newline"
        assert file.getinfo("large").compress_size < file.getinfo("large").file_size / 10


def test_compressed_files_are_stored_in_a_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winkfs.archive.zipwriter.HELD_BYTES", 200 * KB)
    files = {
        name: head + bytes(size)
        for name, head, size in (
            ("gz", b"\x1f\x8b\x08", 5000), ("zst", b"\x28\xb5\x2f\xfd", 5000),
            ("text", b"BZh", 5000), ("large gz", b"\x1f\x8b\x08", 300 * KB),
            ("large", b"1", 300 * KB),
        )
    }  # fmt: skip
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(files.items())
    out = io.BytesIO()
    unpack(tmp_path / "c", zip=out)
    with zipfile.ZipFile(out) as file:
        assert {name: file.read(name) for name in file.namelist()} == files
        smaller = {info.filename for info in file.infolist() if info.compress_size < info.file_size}
        assert smaller == {"text", "large"}
        assert file.getinfo("gz").compress_type == zipfile.ZIP_STORED


def test_holes_are_noted_as_what_a_zip_cannot_have(tmp_path: Path, notes: list[Note]) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("whole", bytes(128 * KB), mtime=5)
        c.put("holes", b"1", mtime=5)
        c.truncate("holes", 128 * KB)
        c.utime("holes", mtime=5)
    unpack(tmp_path / "c", zip=io.BytesIO(), note=notes.append)
    assert [(note.name, note.what) for note in notes] == [(b"holes", LESS)]


def test_unzip_restores_modes_times_and_links(run: Run, tmp_path: Path) -> None:
    with winkfs.create("c") as c:
        c.put("d", b"", ftype=DIR, mode=0o750, mtime=1_600_000_000)
        c.put("d/f", b"content" * 100, mode=0o640, mtime=1_600_000_001)
        c.put("l", b"d/f", ftype=LINK, mtime=1_600_000_002)
    done = run("unpack", "c", "--zip", "-")
    assert (done.status, done.err) == (0, "")
    Path("c.zip").write_bytes(done.out)
    try:
        subprocess.run(["unzip", "-q", "c.zip", "-d", "out"], check=True)
    except FileNotFoundError:
        pytest.skip("there is no unzip")
    found = (tmp_path / "out/d/f").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (0o640, 1_600_000_001)
    assert (tmp_path / "out/d").stat().st_mode & 0o777 == 0o750
    assert os.readlink("out/l") == "d/f"


def test_a_zip_of_many_members_has_the_end_of_zip64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that a few members reach."""
    monkeypatch.setattr("winkfs.archive.zipwriter.MOST16", 100)
    base = stored.make(
        tmp_path / "c", {f"{i:03}": b"%d" % i for i in range(300)} | {"n" * 100: b""}
    )
    out, notes = io.BytesIO(), list[Note]()
    report = unpack(base, zip=out, note=notes.append)
    assert report.failed == 1 and [n.name for n in notes if n.failed] == [b"n" * 100]
    with zipfile.ZipFile(out) as file:
        assert len(file.namelist()) == 300 and file.read("299") == b"299"


def test_a_zip_has_numbers_beyond_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that a small file reaches."""
    monkeypatch.setattr("winkfs.archive.zipwriter.MOST32", 1000)
    base = stored.make(tmp_path / "c", {f"{i}": os.urandom(2000) for i in range(3)})
    out = io.BytesIO()
    unpack(base, zip=out)
    data = out.getvalue()
    assert data.count(b"PK\6\6") == data.count(b"PK\6\7") == 1


def test_archives_are_not_written_to_a_terminal_or_with_json(run: Run, base: str) -> None:
    assert "--json" in one_line(run("unpack", base, "--tar", "-", "--json"), 2)
    assert "one of" in one_line(run("unpack", base, "--tar", "a", "--zip", "b"), 2)
    code = (
        "import os, pty, sys; pid, fd = pty.fork()\n"
        "if not pid: os.execv(sys.argv[1], sys.argv[1:])\n"
        "found = b''\n"
        "while True:\n"
        "    try: data = os.read(fd, 1000)\n"
        "    except OSError: break\n"
        "    if not data: break\n"
        "    found += data\n"
        "print(found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    command = [sys.executable, "-c", code, *PROGRAM, "unpack", base, "--tar", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "terminal" in done.stdout and done.stdout.rstrip().endswith("2")
