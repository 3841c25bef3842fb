"""What programs expect of any file system, and a mount does, or cannot do and says so."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from container_checks import names_of
from mounting import base as base  # a fixture
from mounting import mounted, not_by_libfuse, refused, run
from sources import kept, tree_of
from sources import sources_end as sources_end  # a fixture
from xxh3_clash import clash

import winkfs
from winkfs.container.container import Container
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.ids import Places

pytestmark = pytest.mark.in_memory


# --- ids of directories ---


def clashing_names() -> tuple[bytes, bytes]:
    """Two names with one hash, as somebody makes them who knows the seed."""
    pairs = (clash(number) for number in count())
    return next((a, b) for a, b in pairs if not {0, ord("/")} & {*a, *b})


def test_names_made_to_have_one_id_are_two_directories(tmp_path: Path) -> None:
    """A classic container has no CONTID to seed the ids with."""
    view = kept(ContainerSource(winkfs.create(tmp_path / "c", classic=True)))
    ids = []
    for name in clashing_names():
        id = view.mkdir(view.root, name, 0o755, 0, 0).id
        view.create(id, b"f" + name[:1], 0o644, 0, 0)
        ids.append(id)
    assert len(set(ids)) == 2
    one, two = clashing_names()
    with refused(errno.ENOENT):
        view.unlink(view.lookup(view.root, one).id, b"f" + two[:1])
    view.unlink(view.lookup(view.root, one).id, b"f" + one[:1])
    assert view.lookup(view.lookup(view.root, two).id, b"f" + two[:1])
    assert [view.lookup(view.root, name).id for name in (one, two)] == ids


def test_ids_of_directories_are_seeded_by_the_container_and_stay(tmp_path: Path) -> None:
    found = []
    for name in "ab":
        base = tmp_path / name
        winkfs.create(base).close()
        for _ in range(2):
            view = ContainerSource(Container(str(base), "a"))
            if not found or len(found) == 2:
                view.mkdir(view.root, b"d", 0o755, 0, 0)
            found.append(view.lookup(view.root, b"d").id)
            view.close()
    assert found[0] == found[1] != found[2] == found[3]


def test_places_distinguish_paths_with_one_hash_for_good() -> None:
    places = Places(0)
    one, two = clashing_names()
    first = places.directory_id(one)
    places.note(first, one)
    second = places.directory_id(two)
    places.note(second, two)
    assert (places[first], places[second]) == (one, two)
    places.forget_recent(first)
    assert places.directory_id(two) == second


# --- times that are none ---


def test_times_beyond_what_64_bits_hold_are_the_nearest(tmp_path: Path) -> None:
    """Classic containers keep seconds: one such file is no reason to refuse a listing."""
    with winkfs.create(tmp_path / "c", classic=True) as container:
        for i in range(200):
            container.put(f"f{i:03}", b"x", mtime=i)
        for name, pos in (("far", 1), ("past", -1)):
            container.put(name, b"x", mtime=100_007 * pos)
    data = (tmp_path / "c.data").read_bytes()
    for seconds in (100_007, -100_007):  # FMTIME, 40 bytes into an inode, whose checksum is MD5
        data = with_time(data, seconds, seconds << 40)
    (tmp_path / "c.data").write_bytes(data)
    view = kept(ContainerSource(Container(str(tmp_path / "c"), "r")))
    for _ in range(2):
        times = {path: attr.mtime_ns for path, attr in tree_of(view).items()}
        assert len(times) == 202
        assert (times[b"far"], times[b"past"]) == (2**63 - 1, -(2**63))
        assert times[b"f150"] == 150 * 10**9


def with_time(data: bytes, old: int, new: int) -> bytes:
    """An inode of file type f with another time, and its checksum."""
    at = data.index(struct.pack(">qq", ord("f"), old)) - 32
    end = at + 56 + 16 * struct.unpack_from(">q", data, at + 48)[0]
    body = bytearray(data[at + 8 : end])
    struct.pack_into(">q", body, 32, new)
    return data[:at] + hashlib.md5(body).digest()[:8] + bytes(body) + data[end:]


# --- through the kernel ---


@pytest.mark.mount
def test_links_of_a_directory_are_one_for_not_known(base: str) -> None:
    with mounted(base) as there:
        (there / "d/sub/deeper").mkdir(parents=True)
        for path in (there, there / "d", there / "d/sub"):
            assert path.stat().st_nlink == 1
        assert {entry.name: entry.stat().st_nlink for entry in os.scandir(there)} == {
            "d": 1, "f": 1,
        }  # fmt: skip
        assert run("find", there, "-type", "d").split("\n")[-2].endswith("deeper")


@pytest.mark.mount
def test_owner_and_attributes_of_the_top_last_while_mounted(base: str) -> None:
    with mounted(base, "-o", "allow_other") as there:
        os.chown(there, 65534, 65533)
        os.setxattr(there, "user.x", b"1")
        there.chmod(0o2751)
        found = there.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65533, 0o2751)
        assert os.listxattr(there) == ["user.x"]
        (there / "new").touch()
        assert (there / "new").stat().st_gid == 65533
        os.removexattr(there, "user.x")
        assert os.listxattr(there) == []
    with mounted(base) as there:
        assert there.stat().st_uid == os.getuid()
    assert sorted(names_of(base)) == ["d/g", "f", "new"]


@pytest.mark.mount
@not_by_libfuse("has no lseek")
@pytest.mark.parametrize("synced", [False, True])
def test_holes_are_found_on_a_write_only_descriptor(base: str, synced: bool) -> None:
    with mounted(base) as there:
        file = os.open(there / "sparse", os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, b"x" * 100, 1 << 20)
        if synced:
            os.fsync(file)
        assert os.lseek(file, 0, os.SEEK_HOLE) == 0
        assert os.lseek(file, 0, os.SEEK_DATA) == 1 << 20
        assert os.lseek(file, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 100
        both = os.open(there / "sparse", os.O_RDWR)
        assert os.lseek(both, 0, os.SEEK_DATA) == 0  # it may have written through a mapping
        os.close(both)
        os.close(file)


@pytest.mark.mount
def test_a_directory_removed_while_open_leaves_others_alone(base: str) -> None:
    """fstat and listing of it are ESTALE or ENOENT: libfuse has no path for it."""
    with mounted(base) as there:
        (there / "x").mkdir()
        (there / "y").mkdir()
        (there / "y/kept").touch()
        gone = os.open(there / "x", os.O_RDONLY)
        (there / "y").rename(there / "x")
        for ask in (lambda: os.fstat(gone), lambda: os.listdir(gone)):
            try:
                found = ask()
            except OSError as error:
                assert error.errno in (errno.ESTALE, errno.ENOENT)
            else:
                assert found == [] or found.st_nlink == 0  # type: ignore[union-attr]
        os.close(gone)
        assert os.listdir(there / "x") == ["kept"]


@pytest.mark.few
@pytest.mark.mount
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6700, 0o2644])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.chown(path, -1, -1),
        lambda path: os.chown(path, 0, -1),
        lambda path: os.chown(path, 1, 1),
        lambda path: os.truncate(path, 3),
        lambda path: path.open("wb").close(),
        lambda path: path.write_bytes(b"other"),
    ],
    ids=["chown nothing", "chown", "chown both", "truncate", "O_TRUNC", "write"],
)
def test_set_user_id_bits_go_when_they_do_on_a_disk(
    base: str, tmp_path: Path, mode: int, change: Callable[[Path], None]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("changes owners")
    with mounted(base) as there:
        found = []
        for path in (there / "f", tmp_path / "f"):
            path.write_bytes(b"content")
            path.chmod(mode)
            change(path)
            found.append(path.stat().st_mode)
    assert found[0] == found[1]


@pytest.mark.mount
def test_a_directory_is_found_after_a_call_on_a_removed_file(base: str) -> None:
    """The server has forgotten where both are, and looks both up again."""
    with mounted(base) as there:
        (there / "a/b/c").mkdir(parents=True)
        with (there / "a/gone").open("wb") as file:
            (there / "a/gone").unlink()
            (there / "a/b").rename(there / "a/moved")
            (there / "a/moved").rename(there / "a/b")  # ids of what is not open are forgotten
            os.fchmod(file.fileno(), 0o600)
            (there / "a/b/c/new").mkdir()
            assert os.listdir(there / "a/b/c") == ["new"]
