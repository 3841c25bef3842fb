"""unpack after a kill, a signal or a power cut: files are whole or not there, and the same command
finishes the work."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import stored
from commands import Run
from trees import LINK, snapshot

import winkfs
from winkfs.archive import unpacker
from winkfs.archive.items import Note
from winkfs.archive.pack import pack
from winkfs.archive.unpack import unpack
from winkfs.archive.unpacker import THERE

FILES, SIZE = 300, 5000
pytestmark = pytest.mark.in_memory  # syncs of a busy disk take long
LEFT = ".winkfs-0123456789abcdef"
PROGRAM = """
import sys, time
from winkfs.__main__ import main
from winkfs.archive import unpacker
unpacker.BATCH_FILES = 40
unpacker.PROC = sys.argv.pop(1)
name = unpacker.Unpacker._name
def slow(*args):
    time.sleep(0.001)
    return name(*args)
unpacker.Unpacker._name = slow
sys.exit(main())
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container of files, directories and links."""
    folder = tmp_path_factory.mktemp("many")
    with winkfs.create(folder / "c") as c:
        for i in range(FILES):
            if i % 100 == 0:
                c.put(f"d{i // 100}", b"", ftype=winkfs.FileType.DIR, mode=0o750, mtime=i + 1)
            c.put(f"d{i // 100}/{i:04}", b"%04d" % i * (SIZE // 4), mtime=i + 1, mode=0o640)
            c.put(f"d{i // 100}/{i:04}.l", b"%04d" % i, mtime=i + 1, ftype=LINK)
    unpack(folder / "c", folder / "all")
    return folder


def stopped(base: Path, out: Path, proc: str, number: int, least: int, *options: str) -> int:
    """Stop an unpack when so many files have their names -> its status."""
    command = [sys.executable, "-c", PROGRAM, proc, "unpack", *options, base, out]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while len(files_in(out)) < least:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.001)
        process.send_signal(number)
        assert process.stderr is not None
        process.stderr.read()
    return process.returncode


def files_in(out: Path) -> list[Path]:
    return [path for path in out.glob("*/????") if path.suffix != ".l"]


def temporaries(out: Path) -> list[Path]:
    return list(out.rglob(".winkfs-*"))


@pytest.mark.few(2)
@pytest.mark.parametrize("proc", ["/proc/self/fd", "/nowhere"])
@pytest.mark.parametrize(
    ("number", "least"), [(signal.SIGKILL, 1), (signal.SIGKILL, 130), (signal.SIGTERM, 70)]
)
def test_a_stopped_unpack_is_finished_by_the_next(
    many: Path, tmp_path: Path, proc: str, least: int, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    killed = number == signal.SIGKILL
    assert stopped(many / "c", out, proc, number, least) == (-9 if killed else 143)
    found = files_in(out)
    assert least <= len(found) < FILES
    for path in found:
        i, status = int(path.name), path.stat()
        assert path.read_bytes() == b"%04d" % i * (SIZE // 4)
        assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (i + 1, 0o640)
    assert killed or temporaries(out) == []
    notes: list[Note] = []
    report = unpack(many / "c", out, note=notes.append)
    assert (notes, report.failed) == ([], 0)
    assert report.unchanged >= len(found)
    assert report.files + report.links + report.unchanged == 2 * FILES
    assert snapshot(out) == snapshot(many / "all")


@pytest.mark.few(1)
@pytest.mark.parametrize("proc", ["/proc/self/fd", "/nowhere"])
def test_a_stopped_force_keeps_the_old_file_or_has_the_new_one(
    many: Path, tmp_path: Path, proc: str
) -> None:
    out = tmp_path / "out"
    unpack(many / "c", out)
    for path in files_in(out):
        path.write_bytes(b"old")
        os.utime(path, (9, 9))
    command = [sys.executable, "-c", PROGRAM, proc, "unpack", "--force", many / "c", out]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not any(path.stat().st_size > 3 for path in files_in(out)):
            time.sleep(0.001)
        process.kill()
    found = {path.name: path.read_bytes() for path in files_in(out)}
    assert len(found) == FILES
    for name, data in found.items():
        assert data in (b"old", name.encode() * (SIZE // 4))
    assert unpack(many / "c", out, force=True).failed == 0
    assert snapshot(out) == snapshot(many / "all")


@pytest.mark.parametrize("proc", ["/proc/self/fd", "/nowhere"])
def test_a_second_run_writes_nothing(
    many: Path, tmp_path: Path, proc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "PROC", proc)
    out = tmp_path / "out"
    unpack(many / "c", out)
    inodes = {path: path.lstat().st_ino for path in out.glob("*/*")}
    report = unpack(many / "c", out)
    assert (report.files, report.links, report.unchanged, report.failed) == (0, 0, 2 * FILES, 0)
    assert {path: path.lstat().st_ino for path in out.glob("*/*")} == inodes
    assert snapshot(out) == snapshot(many / "all")


def test_files_have_no_name_before_their_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "BATCH_FILES", 10)
    out, seen = tmp_path / "out", list[int]()
    base = stored.make(tmp_path / "c", {f"{i}": b"1" for i in range(35)})
    monkeypatch.setattr(unpacker, "sync_all", lambda fd: seen.append(len(os.listdir(out))))
    unpack(base, out)
    assert seen == [0, 10, 20] and len(os.listdir(out)) == 35
    base, out = stored.make(tmp_path / "few", {f"{i}": b"1" for i in range(5)}), tmp_path / "two"
    monkeypatch.setattr(os, "fdatasync", lambda fd: seen.append(-len(os.listdir(out)) - 1))
    unpack(base, out)
    assert seen[3:] == [-1] * 5 and len(os.listdir(out)) == 5


def test_files_on_several_filesystems_are_synced_by_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(unpacker.Directories("/")) as directories:
        assert not directories.mixed
        directories.get(b"proc")
        assert directories.mixed
    called = list[str]()
    monkeypatch.setattr(os, "sync", lambda: called.append("sync"))
    monkeypatch.setattr(unpacker, "sync_all", lambda fd: called.append("sync_all"))
    batch = [unpacker.Written(-1, b"", b"", "", 0, False)] * (unpacker.FEW + 1)
    for mixed in (True, False):
        unpacker.Syncing(batch, -1, mixed=mixed).run()
    assert called == ["sync", "sync_all"]


def test_a_file_that_replaces_another_is_locked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out, linked = stored.make(tmp_path / "c", {"a": b"1"}), tmp_path / "out", list[bytes]()
    out.mkdir()
    (out / "a").write_bytes(b"old")
    real = unpacker.link_open

    def link(fd: int, name: bytes, parent: int) -> None:
        real(fd, name, parent)
        with (out / os.fsdecode(name)).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        linked.append(name)

    monkeypatch.setattr(unpacker, "link_open", link)
    unpack(base, out, force=True)
    assert len(linked) == 1 and (out / "a").read_bytes() == b"1"


@pytest.mark.parametrize("proc", ["/proc/self/fd", "/nowhere"])
def test_damage_at_the_end_of_a_file_leaves_nothing(
    tmp_path: Path, proc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacker, "PROC", proc)
    base = stored.make(tmp_path / "c", {"a": b"A" * (2 << 20), "b": b"1"})
    with winkfs.open(base, "a") as c:
        c.append("a", b"B" * (2 << 20))
    stored.flip_text(f"{base}.data", b"B" * 1000)
    (tmp_path / "out").mkdir()
    before = os.listdir("/proc/self/fd")
    assert unpack(base, tmp_path / "out").failed == 1
    assert os.listdir(tmp_path / "out") == ["b"]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(unpacker, "sync_all", fails)
    base = stored.make(tmp_path / "c", {f"{i}": b"1" for i in range(35)})
    with pytest.raises(OSError, match="Input/output"):
        unpack(base, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_few_open_files_make_small_batches(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {f"{i}": b"1" for i in range(500)})
    command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-m", "winkfs",
               "unpack", base, tmp_path / "out"]  # fmt: skip
    subprocess.run(command, check=True)
    assert len(os.listdir(tmp_path / "out")) == 500


def test_a_file_that_is_written_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[Note]
) -> None:
    """The limit of open files is reached after its content was written."""
    base = stored.make(tmp_path / "c", {"a": b"1", "b": b"2" * 100_000})
    chmod, left = os.fchmod, [OSError(errno.EMFILE, "Too many open files")]

    def failing(fd: int, mode: int) -> None:
        if os.fstat(fd).st_size == 100_000 and left:
            raise left.pop()
        chmod(fd, mode)

    monkeypatch.setattr(os, "fchmod", failing)
    unpack(base, tmp_path / "out", note=notes.append)
    assert (notes, left) == ([], [])
    assert (tmp_path / "out/b").read_bytes() == b"2" * 100_000


# --- what is there ---


@pytest.mark.parametrize(
    ("data", "mode", "mtime", "replaced"),
    [
        (b"", 0o600, 1, True),  # a signal
        (b"", 0o644, 77, True),  # a power cut
        (b"", 0o644, 1, False),
        (b"cut", 0o600, 1, False),
        (b"whole", 0o644, 1, False),
    ],
)
def test_an_empty_leftover_is_replaced_and_no_other_file(
    tmp_path: Path, data: bytes, mode: int, mtime: int, replaced: bool, notes: list[Note]
) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"whole", mtime=77)
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(data)
    (out / "a").chmod(mode)
    os.utime(out / "a", (mtime, mtime))
    report = unpack(tmp_path / "c", out, note=notes.append)
    assert (report.failed, report.files) == ((0, 1) if replaced else (1, 0))
    assert (out / "a").read_bytes() == (b"whole" if replaced else data)
    assert [note.what for note in notes] == ([] if replaced else [THERE])


def test_an_empty_file_of_an_empty_entry_is_there(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"a": b""})
    unpack(base, tmp_path / "out")
    (tmp_path / "out/a").chmod(0o600)
    assert unpack(base, tmp_path / "out").unchanged == 1


def test_metadata_of_a_file_that_was_there_stay(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1", mtime=5, mode=0o640)
    unpack(tmp_path / "c", tmp_path / "out")
    (tmp_path / "out/a").chmod(0o444)
    assert unpack(tmp_path / "c", tmp_path / "out").unchanged == 1
    assert stat.S_IMODE((tmp_path / "out/a").stat().st_mode) == 0o444


def test_a_link_is_there_if_its_target_is(tmp_path: Path, notes: list[Note]) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"target", ftype=LINK, mtime=5)
        c.put("b", b"target", ftype=LINK, mtime=5)
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to("target")
    (out / "b").symlink_to("another")
    report = unpack(tmp_path / "c", out, note=notes.append)
    assert (report.unchanged, report.failed, [note.name for note in notes]) == (1, 1, [b"b"])


def test_temporary_files_are_removed_unless_they_are_in_use(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"d/f": b"1", f"d/{LEFT[:-1]}0": b"of a user"})
    out = tmp_path / "out"
    unpack(base, out)
    for folder in (out, out / "d"):
        (folder / LEFT).write_bytes(b"left")
        (folder / f"{LEFT[:-1]}1").symlink_to("left")
        (folder / f"{LEFT}0").write_bytes(b"another name")
        (folder / f"{LEFT[:-1]}e").write_bytes(b"in use")
    with (out / "d" / f"{LEFT[:-1]}e").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert unpack(base, out).failed == 0
        kept = [f"{LEFT[:-1]}0", f"{LEFT[:-1]}e", f"{LEFT}0", "f"]
        assert sorted(os.listdir(out / "d")) == kept
        assert sorted(os.listdir(out)) == [f"{LEFT}0", "d"]


def test_pack_leaves_temporary_files_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / LEFT).write_bytes(b"left")
    (tmp_path / "t/.winkfs-x").write_bytes(b"a file")
    done = run("pack", "t", "c")
    assert (done.status, done.err) == (0, f"winkfs: {LEFT}: a temporary file of unpack: left out\n")
    assert stored.names("c") == [".winkfs-x"]
    pack(tmp_path / "t", tmp_path / "d", names=[LEFT.encode()])
    assert stored.names("d") == []


def test_a_time_that_the_filesystem_rounds_is_that_of_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FAT keeps only even seconds."""
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1", mtime_ns=1_700_000_001_500_000_000)
    real = os.utime

    def rounded(*args: object, ns: tuple[int, int], **options: object) -> None:
        even = ns[1] // (2 * 10**9) * 2 * 10**9
        real(*args, ns=(even, even), **options)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "utime", rounded)
    unpack(tmp_path / "c", tmp_path / "out")
    assert (tmp_path / "out/a").stat().st_mtime == 1_700_000_000
    assert unpack(tmp_path / "c", tmp_path / "out").unchanged == 1
    real(tmp_path / "out/a", (1_700_000_002, 1_700_000_002))
    assert unpack(tmp_path / "c", tmp_path / "out").failed == 1
