"""pack and unpack: holes and extended attributes, there and back."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import stored
from catalog_checks import store_of
from folders import write_files
from trees import DIR, LINK

import winkfs
from winkfs.archive.items import SPARSE_BYTES, Note, Ratio
from winkfs.archive.pack import pack
from winkfs.archive.packer import NO_HOLES, NO_XATTRS
from winkfs.archive.unpack import unpack
from winkfs.archive.unpacker import NOT_USER
from winkfs.dataset.compaction import compact
from winkfs.dataset.packing import pack_shards

pytestmark = pytest.mark.slow

MIB = 1 << 20
SHAPES = {
    "all": (4 * MIB, []),
    "start": (5 * MIB, [(3 * MIB, 2 * MIB)]),
    "end": (3 * MIB, [(0, 100_000)]),
    "middle": (9 * MIB, [(0, MIB), (4 * MIB, 5000), (8 * MIB, MIB)]),
    "small": (SPARSE_BYTES, [(4096, 4096)]),
    "many": (6 * MIB, [(i * 8192, 4096) for i in range(700)]),
    "odd": (5 * MIB + 17, [(3 * MIB + 5, 7), (5 * MIB, 17)]),
}


def write_sparse(path: Path, size: int, parts: Sequence[tuple[int, int]]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for at, length in parts:
            file.seek(at)
            file.write(random.Random(at).randbytes(length))
    return path


def holes_of(path: Path) -> list[tuple[int, int]]:
    """(offset, bytes) of each."""
    found, at = [], 0
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        while at < size:
            start = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            if start >= size:
                break
            try:
                at = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                at = size
            found.append((start, at - start))
    return found


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A directory with a file of each shape."""
    root = tmp_path / "sparse"
    root.mkdir()
    for name, (size, parts) in SHAPES.items():
        write_sparse(root / name, size, parts)
    if not holes_of(root / "all"):
        pytest.skip("a file system without holes")
    return root


def assert_same(root: Path, back: Path) -> None:
    for name in SHAPES:
        assert (back / name).read_bytes() == (root / name).read_bytes(), name
        assert holes_of(back / name) == holes_of(root / name), name
        # ext4 counts blocks of its own of a file with many extents, once that is written.
        assert abs(_blocks(back / name) - _blocks(root / name)) <= 64, name


def _blocks(path: Path) -> int:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_blocks


def by_tar(root: Path, tmp_path: Path, *options: str) -> Path:
    """Take a directory through a tar file and a container -> what comes back."""
    subprocess.run(["tar", "-C", root, "-c", *options, "-f", tmp_path / "t.tar", "."], check=True)
    pack(tmp_path / "t.tar", tmp_path / "c")
    unpack(tmp_path / "c", tmp_path / "back")
    return tmp_path / "back"


def by_data_set(root: Path, tmp_path: Path, **options: bool) -> Path:
    """Take a directory through a data set that is compacted -> what comes back."""
    pack_shards(root, tmp_path / "ds", 2, **options)
    compact(tmp_path / "ds", everything=True)
    unpack(tmp_path / "ds", tmp_path / "back")
    return tmp_path / "back"


def test_holes_are_kept_from_directory_to_directory(
    sparse: Path, tmp_path: Path, notes: list[Note]
) -> None:
    pack(sparse, tmp_path / "c", note=notes.append)
    content = sum((sparse / name).stat().st_blocks * 512 for name in SHAPES)
    assert (tmp_path / "c.data").stat().st_size < content + MIB
    report = unpack(tmp_path / "c", tmp_path / "back", note=notes.append)
    assert_same(sparse, tmp_path / "back")
    assert report.bytes == sum(size for size, _ in SHAPES.values())
    assert notes == []
    assert winkfs.verify(tmp_path / "c").problems == []


@pytest.mark.few(2)
@pytest.mark.in_memory
@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
@pytest.mark.parametrize(
    "options", [["--format=gnu"], *(["--format=pax", f"--sparse-version={v}"]
                                    for v in ("0.0", "0.1", "1.0"))], ids=" ".join,
)  # fmt: skip
def test_holes_of_a_tar_file_are_kept(sparse: Path, tmp_path: Path, options: list[str]) -> None:
    assert_same(sparse, by_tar(sparse, tmp_path, "-S", *options))
    assert (tmp_path / "c.data").stat().st_size < 15 * MIB


@pytest.mark.in_memory
def test_holes_are_kept_in_a_data_set_and_by_its_compaction(sparse: Path, tmp_path: Path) -> None:
    back = by_data_set(sparse, tmp_path)
    for name in set(SHAPES) - {"small"}:
        assert (back / name).read_bytes() == (sparse / name).read_bytes()
        assert holes_of(back / name) == holes_of(sparse / name), name


@pytest.mark.in_memory
@pytest.mark.parametrize("variant", [{"ao": True}, {"classic": True}], ids=str)
def test_holes_are_stored_as_zeros_with_a_note(
    sparse: Path, tmp_path: Path, variant: dict[str, bool], notes: list[Note]
) -> None:
    report = pack(sparse, tmp_path / "c", note=notes.append, **variant)
    assert {(note.what, note.failed, note.often) for note in notes} == {(NO_HOLES, False, True)}
    assert (report.files, report.failed) == (len(SHAPES), 0)
    unpack(tmp_path / "c", tmp_path / "back")
    for name in SHAPES:
        assert (tmp_path / "back" / name).read_bytes() == (sparse / name).read_bytes()


def test_hard_link_in_a_tar_file_keeps_holes_and_attributes(
    sparse: Path, root: Path, tmp_path: Path
) -> None:
    write_sparse(root / "a", *SHAPES["middle"])
    os.setxattr(root / "a", "user.note", b"1")
    os.link(root / "a", root / "b")
    back = by_tar(root, tmp_path, "-S", "--xattrs", "--format=pax")
    for name in "ab":
        assert holes_of(back / name) == holes_of(root / "a")
        assert os.getxattr(back / name, "user.note") == b"1"


# --- extended attributes ---


def attributes(path: Path) -> dict[str, bytes]:
    names = os.listxattr(path, follow_symlinks=False)
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """Files, a large one too, and directories with extended attributes."""
    root = tmp_path / "marked"
    (root / "dir/closed").mkdir(parents=True)
    write_files(root, {"small": b"1", "empty": b"", "large": bytes(3 * MIB), "bare": b"2"})
    (root / "link").symlink_to("small")
    for i, name in enumerate(("small", "empty", "large", "dir", "dir/closed")):
        os.setxattr(root / name, "user.note", b"%d" % i)
        os.setxattr(root / name, "user.=%\xfc", bytes(range(256)))
        os.setxattr(root / name, "user.none", b"")
    (root / "small").chmod(0o400)
    (root / "dir/closed").chmod(0o500)
    return root


def compare(root: Path, back: Path) -> None:
    for path in [root, *root.rglob("*")]:
        if path != root:
            assert attributes(back / path.relative_to(root)) == attributes(path), path


@pytest.mark.parametrize("ao", [False, True])
def test_extended_attributes_of_the_user_are_kept(
    marked: Path, tmp_path: Path, ao: bool, notes: list[Note]
) -> None:
    pack(marked, tmp_path / "c", ao=ao, note=notes.append)
    unpack(tmp_path / "c", tmp_path / "back", note=notes.append)
    compare(marked, tmp_path / "back")
    assert notes == []
    assert winkfs.verify(tmp_path / "c").problems == []


@pytest.mark.parametrize("ao", [False, True])
def test_a_data_set_and_its_compaction_keep_extended_attributes(
    marked: Path, tmp_path: Path, ao: bool
) -> None:
    compare(marked, by_data_set(marked, tmp_path, ao=ao))


@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
def test_extended_attributes_of_a_tar_file_are_kept(marked: Path, tmp_path: Path) -> None:
    compare(marked, by_tar(marked, tmp_path, "--xattrs", "--format=pax"))


def test_a_classic_container_warns_once_about_lost_attributes(
    marked: Path, tmp_path: Path, notes: list[Note]
) -> None:
    report = pack(marked, tmp_path / "c", classic=True, note=notes.append)
    assert {(note.what, note.failed, note.often) for note in notes} == {(NO_XATTRS, False, True)}
    assert (len(notes), report.left_out, report.failed) == (5, 5, 0)


def test_foreign_attributes_are_archived_only_on_request(tmp_path: Path, notes: list[Note]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = tmp_path / "t"
    (root / "d").mkdir(parents=True)
    (root / "a").write_bytes(b"1")
    (root / "l").symlink_to("a")
    for name in ("a", "l", "d"):
        os.setxattr(root / name, "trusted.x", b"2", follow_symlinks=False)
    os.setxattr(root / "a", "user.x", b"3")
    pack(root, tmp_path / "few")
    pack(root, tmp_path / "all", xattrs=True)
    with winkfs.open(tmp_path / "few") as few, winkfs.open(tmp_path / "all") as all_:
        assert few.getxattrs("a") == {b"user.x": b"3"}
        assert all_.getxattrs("a") == {b"user.x": b"3", b"trusted.x": b"2"}
        assert few.getxattrs("l") == few.getxattrs("d") == {}
        assert all_.getxattrs("l") == all_.getxattrs("d") == {b"trusted.x": b"2"}
    unpack(tmp_path / "all", tmp_path / "out", note=notes.append)
    assert attributes(tmp_path / "out/a") == {"user.x": b"3"}
    assert sorted(n.name for n in notes) == [b"a", b"d", b"l"]
    assert {(n.what, n.failed, n.often) for n in notes} == {(NOT_USER, False, True)}
    unpack(tmp_path / "all", tmp_path / "same", same_permissions=True)
    for name in ("a", "l", "d"):
        assert attributes(tmp_path / "same" / name) == attributes(root / name)


def test_unpack_reports_a_file_system_without_attributes(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "ramfs", "ramfs", disk], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("cannot mount a ramfs here")
    try:
        with winkfs.create(tmp_path / "c") as c:
            for name in "ab":
                c.put(name, b"1")
                c.setxattrs(name, {b"user.x": b"2"})
            c.put("d", b"", ftype=DIR)
            c.put("l", b"a", ftype=LINK)
        notes: list[Note] = []
        report = unpack(tmp_path / "c", disk / "out", note=notes.append)
        assert (report.files, report.failed, len(notes)) == (2, 2, 2)
        assert {(n.failed, n.often) for n in notes} == {(True, True)}
        assert sorted(p.name for p in (disk / "out").iterdir()) == ["a", "b", "d", "l"]
        pack(disk, tmp_path / "again", note=notes.append)
        assert len(notes) == 2
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# --- containers that claim more than they hold ---


def test_a_huge_hole_is_refused_as_a_read_and_unpacked_sparsely(tmp_path: Path) -> None:
    claimed = 1 << 43  # what ext4 takes
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1")
        c.put("bomb", b"start")
        c.truncate("bomb", claimed)
        c.put("z", b"2")
    with winkfs.open(tmp_path / "c") as c:
        reads = {
            "read": lambda: c.read("bomb"),
            "part": lambda: c.read("bomb", 5, 1 << 42),
            "get_many": lambda: list(c.get_many(["a", "bomb"])),
            "scan": lambda: [entry.read() for entry in c.scan()],
        }
        for way, read in reads.items():
            with pytest.raises(OSError, match="in parts") as caught:
                read()
            assert caught.value.errno == errno.EFBIG, way
        assert c.read("bomb", claimed - 3, 10) == bytes(3)
        assert c.read("bomb", 0, MIB) == b"start".ljust(MIB, b"\0")
    report = unpack(tmp_path / "c", tmp_path / "out")
    assert (report.files, report.failed) == (3, 0)
    status = (tmp_path / "out/bomb").stat()
    assert (status.st_size, status.st_blocks) == (claimed, 8)
    pack(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again.data").stat().st_size < MIB


def test_hole_within_reason_is_read_at_once(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"")
        c.truncate("a", 20 * MIB)
        assert c.read("a") == next(c.get_many(["a"])) == bytes(20 * MIB)


def test_hole_that_the_file_system_cannot_have_is_left_out(
    tmp_path: Path, notes: list[Note]
) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("bomb", b"")
        c.truncate("bomb", 1 << 62)
        c.put("link", b"", ftype=LINK)
        c.truncate("link", 1 << 50)
        c.put("z", b"2")
    report = unpack(tmp_path / "c", tmp_path / "out", note=notes.append)
    left_out = ["link"] if _can_have(tmp_path / "hole", 1 << 62) else ["bomb", "link"]  # tmpfs can
    assert sorted(note.name.decode() for note in notes) == left_out
    assert (report.files, report.failed) == (3 - len(left_out), len(left_out))
    assert sorted(os.listdir(tmp_path / "out")) == sorted({"bomb", "link", "z"} - {*left_out})


def _can_have(path: Path, size: int) -> bool:
    """Whether the file system has files of so many bytes."""
    path.touch()
    try:
        os.truncate(path, size)
    except OSError:
        return False
    return True


def claim_again_and_again(base: Path, often: int) -> int:
    """Have the file `bomb`, of 1 MiB, claim its content so often -> the size of the data file."""
    with store_of(base, writable=True) as store:
        _, inode, _ = store.inode_at(store.index.lookup(b"bomb/I0"))
        bomb = replace(inode, extents=[*inode.extents] * often, lsize=often * MIB)
        store.kv.append(b"bomb/I0", bomb.encode(store.settings.form, 0))
        store.sync_data()
        return store.kv.end


def test_entry_that_is_claimed_again_and_again_fills_no_disk(
    tmp_path: Path, notes: list[Note]
) -> None:
    stored.make(tmp_path / "c", {"bomb": random.Random(1).randbytes(MIB), "z": b"2"})
    claim_again_and_again(tmp_path / "c", 3000)
    with winkfs.open(tmp_path / "c") as c:
        assert c.stat("bomb").size == 3000 * MIB
        with pytest.raises(OSError, match="in parts"):
            c.read("bomb")
    report = unpack(tmp_path / "c", tmp_path / "out", note=notes.append)
    assert [note.name for note in notes] == [b"bomb"]
    assert (report.files, report.failed) == (1, 1)
    assert os.listdir(tmp_path / "out") == ["z"]


@pytest.mark.parametrize(("most", "is_taken"), [(1000, False), (10_000, True), (0, True)])
def test_a_frame_claimed_many_times_exceeds_the_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_taken: bool, notes: list[Note]
) -> None:
    """Of a compressed container, whose content may be larger than it is."""
    pytest.importorskip("zstandard")
    monkeypatch.setattr("winkfs.archive.unpack.Ratio", lambda most: Ratio(most, MIB))
    stored.make(tmp_path / "c", {"bomb": b"text" * (MIB // 4), "z": b"2"}, compress="zstd:1")
    size = claim_again_and_again(tmp_path / "c", 20)
    assert 1000 < 20 * MIB / size < 10_000
    report = unpack(tmp_path / "c", tmp_path / "out", note=notes.append, max_ratio=most)
    assert (report.files, report.failed) == ((2, 0) if is_taken else (1, 1))
    assert [(note.name, "--max-ratio" in note.what) for note in notes] == (
        [] if is_taken else [(b"bomb", True)]
    )
    assert sorted(os.listdir(tmp_path / "out")) == (["bomb", "z"] if is_taken else ["z"])
    if is_taken:
        assert (tmp_path / "out/bomb").read_bytes() == b"text" * (20 * MIB // 4)
