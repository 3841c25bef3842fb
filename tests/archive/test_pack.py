"""pack: a tree into a container, and what must not happen then."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from functools import partial
from pathlib import Path

import pytest
import stored
from folders import write_files
from seam import disk_calls, once_after
from stored import stat
from threaded import in_threads
from trees import VARIANTS, files_beside, snapshot

import winkfs
from winkformats import native
from winkfs.archive.items import STREAM_BYTES, Note
from winkfs.archive.pack import pack
from winkfs.archive.tree import Tree, listed_names
from winkfs.archive.unpack import unpack
from winkfs.dataset.packing import pack_shards
from winkfs.errors import Locked
from winkfs.names import FILES, OLD, SUFFIXES, TEMPORARIES, excluder

# --- there and back ---


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_tree_comes_back_to_the_byte_mode_and_nanosecond(
    tree: Path, tmp_path: Path, variant: dict[str, bool], notes: list[Note]
) -> None:
    report = pack(tree, tmp_path / "c", note=notes.append, **variant)
    back = unpack(tmp_path / "c", tmp_path / "back", note=notes.append)
    second = variant.get("classic", False)
    expected = snapshot(tree, second=second)
    if second:  # the founding format has no attributes: modes are the defaults
        assert {n: (v[0], v[2]) for n, v in snapshot(tmp_path / "back", second=True).items()} == {
            n: (v[0], v[2]) for n, v in expected.items()
        }
    else:
        assert snapshot(tmp_path / "back") == expected
    assert notes == []
    assert (report.files, report.directories, report.links) == (8, 3, 2)
    assert (back.files, back.directories, back.links, back.bytes) == (8, 3, 2, report.bytes)
    assert winkfs.verify(tmp_path / "c").problems == []


def test_every_directory_has_an_entry_but_the_packed_one(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        found = {e.name for e in c.scan() if e.ftype == winkfs.FileType.DIR}
    assert found == {"docs", "docs/old", "empty dir"}


def test_hard_links_become_copies(tmp_path: Path, root: Path) -> None:
    write_files(root, {"one": b"same"})
    os.link(root / "one", root / "two")
    pack(root, tmp_path / "c")
    assert stored.files(tmp_path / "c") == {"one": b"same", "two": b"same"}


def test_devices_fifos_and_sockets_are_listed_and_are_no_failure(
    tmp_path: Path, root: Path
) -> None:
    (root / "file").write_bytes(b"1")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(os.path.relpath(root / "sock"))
        notes: list[Note] = []
        report = pack(root, tmp_path / "c", note=notes.append)
    assert notes == [
        Note(b"fifo", "a fifo: left out", False),
        Note(b"sock", "a socket: left out", False),
    ]
    assert (report.files, report.left_out, report.failed) == (1, 2, 0)
    assert stored.names(tmp_path / "c") == ["file"]


def test_ao_is_in_order_of_mtime_also_before_1970(tmp_path: Path, root: Path) -> None:
    for name, mtime in {"a": 3 * 10**18, "b": -(10**18), "c": 0, "d": 5}.items():
        (root / name).write_bytes(name.encode())
        os.utime(root / name, ns=(mtime, mtime))
    pack(root, tmp_path / "c", ao=True)
    with winkfs.open(tmp_path / "c") as c:
        assert [(e.name, e.mtime_ns) for e in c.scan()] == [
            ("b", -(10**18)), ("c", 0), ("d", 5), ("a", 3 * 10**18),
        ]  # fmt: skip


# --- what changes while it is packed ---


@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("tar", [False, True])
def test_time_that_no_file_can_have_becomes_the_nearest(
    tmp_path: Path, root: Path, ao: bool, tar: bool
) -> None:
    source = root
    for name, when in (("f", 15_032_385_535), ("g", 0)):  # the last second of ext4, in 2446
        (source / name).write_text(name)
        os.utime(source / name, (0, when))
    if (source / "f").stat().st_mtime_ns < 2**63:
        pytest.skip("a file system that has no such times")
    if tar:
        with tarfile.open(tmp_path / "tar", "w") as file:
            file.add(source, "")
        source = tmp_path / "tar"
    pack(source, tmp_path / "c", ao=ao)
    assert stat(tmp_path / "c", "f").mtime_ns == 2**63 - 1


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read when they are asked for: see test_pack_ahead.py for the other way."""
    monkeypatch.setattr(native, "code", None)


@pytest.mark.usefixtures("one_by_one")
def test_file_that_vanishes_is_a_failure_and_the_rest_is_packed(
    tmp_path: Path, notes: list[Note], root: Path
) -> None:
    write_files(root, dict.fromkeys("abc", b"1"))
    items = Tree(root, notes.append, str(tmp_path)).items(by_mtime=False)
    got = [next(items)]
    (root / "b").unlink()
    got += items
    assert [item.name for item in got] == [b"a", b"c"]
    assert notes == [Note(b"b", "vanished before it was read", True)]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("size", [100, STREAM_BYTES + 100])
@pytest.mark.parametrize("change", ["grows", "shrinks", "is rewritten"])
def test_file_that_changes_while_it_is_read_is_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    change: str,
    notes: list[Note],
    root: Path,
) -> None:
    file = root / "a"
    file.write_bytes(b"1" * size)
    os.utime(file, (0, 0))
    changes = {"grows": 2 * size, "shrinks": size // 2, "is rewritten": size}
    real = os.open

    def opened(path: object, *args: object, **options: object) -> int:
        fd = real(path, *args, **options)  # type: ignore[arg-type]
        if path == b"a":
            status = os.fstat(fd)
            first = [status]
            monkeypatch.setattr(os, "fstat", lambda fd: first.pop() if first else at(fd))
            file.write_bytes(b"2" * changes[change])
        return fd

    at = os.fstat
    monkeypatch.setattr(os, "open", opened)
    report = pack(root, tmp_path / "c", note=notes.append)
    monkeypatch.undo()
    assert notes == [Note(b"a", "changed while it was read", True)]
    assert report.failed == 1
    assert stored.read(tmp_path / "c", "a") == b"2" * min(size, changes[change])


def test_pack_reports_what_is_unreadable_and_packs_the_rest(place: Path, notes: list[Note]) -> None:
    tree = place / "tree"
    (tree / "secret").chmod(0)
    (tree / "docs/old").chmod(0)
    pack(tree, place / "c", note=notes.append)
    (tree / "docs/old").chmod(0o700)
    denied = "Permission denied"
    assert notes == [Note(b"docs/old", denied, True), Note(b"secret", denied, True)]
    found = stored.names(place / "c")
    assert "docs/old" in found and "run.sh" in found


# --- whole or not at all ---


def test_pack_on_an_existing_container_is_refused(tree: Path, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    with pytest.raises(FileExistsError, match="--update"):
        pack(tree, tmp_path / "c")


@pytest.mark.parametrize("ao", [False, True])
def test_interrupted_pack_leaves_nothing(tmp_path: Path, ao: bool, root: Path) -> None:
    write_files(root, {f"f{i}": b"x" * 100 for i in range(300)})

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "c", ao=ao, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_what_a_killed_pack_left_is_overwritten(tree: Path, tmp_path: Path) -> None:
    stored.make(tmp_path / "c.partial", {"junk": b"1"}, ao=True)
    pack(tree, tmp_path / "c")
    assert "junk" not in stored.names(tmp_path / "c")
    assert files_beside(tmp_path / "c") == ["c.cat", "c.data", "c.idx"]


def test_two_packs_of_one_base_do_not_mix(tree: Path, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c.partial"), pytest.raises(Locked, match=str(os.getpid())):
        pack(tree, tmp_path / "c")


def test_a_name_being_packed_cannot_be_created_meanwhile(tmp_path: Path, root: Path) -> None:
    write_files(root, {f"f{i}": b"x" * 100 for i in range(300)})
    others: list[object] = []

    def meanwhile(done: int) -> None:
        for make in (lambda: winkfs.create(tmp_path / "c"), lambda: pack(root, tmp_path / "c")):
            with pytest.raises(Locked, match=str(os.getpid())):
                make()
            others.append(make)

    pack(root, tmp_path / "c", progress=meanwhile)
    assert others
    assert len(stored.names(tmp_path / "c")) == 300
    assert files_beside(tmp_path / "c") == ["c.cat", "c.data", "c.idx"]


def test_file_that_came_in_the_last_moment_is_not_replaced(tree: Path, tmp_path: Path) -> None:
    """Made by a program that knows no locks, between the last look and the new name."""
    other = once_after("rename", "/c.cat", lambda: (tmp_path / "c.data").write_bytes(b"mine"))
    with disk_calls(other), pytest.raises(FileExistsError, match="meanwhile"):
        pack(tree, tmp_path / "c")
    assert (tmp_path / "c.data").read_bytes() == b"mine"
    assert not [name for name in files_beside(tmp_path / "c") if "partial" in name]


def test_pack_leaves_a_dangling_link_at_the_container_path(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "c.data").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        pack(tree, tmp_path / "c")
    assert os.readlink(tmp_path / "c.data") == "nowhere"


def test_stale_derived_files_of_an_earlier_container_go(tree: Path, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c", ao=True, classic=True).close()
    (tmp_path / "c.data").unlink()
    pack(tree, tmp_path / "c", classic=True)
    assert not (tmp_path / "c.time").exists()
    assert "docs/a.html" in stored.names(tmp_path / "c")


def test_update_adds_and_replaces_and_keeps_the_rest(tree: Path, tmp_path: Path) -> None:
    stored.make(tmp_path / "c", {"kept": b"1", "docs/a.html": b"old", "large": b"old"})
    pack(tree, tmp_path / "c", update=True)
    files = {"kept": b"1", "docs/a.html": b"<p>a</p>", "large": (tree / "large").read_bytes()}
    assert files.items() <= stored.files(tmp_path / "c").items()
    assert winkfs.verify(tmp_path / "c").problems == []


def test_update_makes_a_container_that_is_not_there(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c", update=True)
    assert "docs/a.html" in stored.names(tmp_path / "c")


def test_update_of_append_only_explains_a_refused_older_file(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c", ao=True)
    os.utime(tree / "secret", (0, 0))
    with pytest.raises(PermissionError, match="mtime"):
        pack(tree, tmp_path / "c", update=True)


def test_update_cannot_change_the_variant(tree: Path, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    with pytest.raises(PermissionError, match="append only"):
        pack(tree, tmp_path / "c", update=True, ao=True)


def test_own_files_are_not_packed_but_others_of_like_names_are(tree: Path) -> None:
    base = tree / "docs/c"
    (tree / "docs/c.data.gz").write_bytes(b"mine")
    (tree / "c.data").write_bytes(b"another directory")
    pack(tree, base)
    pack(tree, base, update=True)
    own = {"docs/c.data", "docs/c.idx", "docs/c.lock", "docs/c.partial.data", "docs/c.partial.lock"}
    found = stored.names(base)
    assert not own & set(found)
    assert {"docs/c.data.gz", "c.data"} <= set(found)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_file_of_the_container_is_packed_whatever_its_kind(root: Path, suffix: str) -> None:
    """Also one that is being written, or was left by a writer that was killed."""
    own = [part + suffix + end for part in ("", ".partial") for end in ("", *TEMPORARIES)]
    others = {"c.data.gz", "c.datax", "cx.data", "c.data.tmp.tmp"}
    write_files(root, {f"c{name}": b"" if suffix == ".lock" else b"x" for name in own})
    write_files(root, dict.fromkeys(others, b"mine"))
    winkfs.create(root / "c2").close()
    (root / "c.data").unlink(missing_ok=True)
    pack(root, root / "c")
    found = set(stored.names(root / "c"))
    assert not {f"c{name}" for name in own} & found
    assert others | {"c2.data"} <= found


def test_own_files_are_not_packed_by_way_of_links(tree: Path, tmp_path: Path) -> None:
    """BASE through a linked directory, and BASE.data itself a link into the tree."""
    (tmp_path / "way").symlink_to(tree / "docs")
    pack(tree, tmp_path / "way/c")
    winkfs.reindex(tmp_path / "way/c")
    pack(tree, tmp_path / "way/c", update=True)
    assert not [name for name in stored.names(tmp_path / "way/c") if name.startswith("docs/c.")]

    winkfs.create(tree / "hold").close()
    (tmp_path / "x.data").symlink_to(tree / "hold.data")
    pack(tree, tmp_path / "x", update=True)
    assert "docs/a.html" in stored.names(tmp_path / "x")
    assert "hold.data" not in stored.names(tmp_path / "x")


def test_own_data_set_is_not_packed_by_way_of_a_link(tree: Path, tmp_path: Path) -> None:
    (tree / "docs/ds").mkdir()
    (tmp_path / "way").symlink_to(tree / "docs/ds")
    pack_shards(tree, tmp_path / "way", 2)
    pack_shards(tree, tmp_path / "way", 2, update=True)
    found = stored.names(tmp_path / "way")
    assert "docs/a.html" in found
    assert not [name for name in found if name.startswith("docs/ds")]


def test_suffixes_are_those_of_a_container_with_all_its_files(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c", ao=True)
    winkfs.reindex(tmp_path / "c")
    assert set(files_beside(tmp_path / "c")) - {"c.lock"} == {
        "c" + suffix for suffix in FILES if suffix not in OLD
    }


def test_missing_source_or_directory_of_the_container(tmp_path: Path) -> None:
    for source, base in (("no", "c"), ("", "no/c")):
        with pytest.raises(FileNotFoundError):
            pack(tmp_path / source, tmp_path / base)


# --- what to take ---


@pytest.mark.parametrize(
    ("pattern", "name", "out"),
    [
        ("*.pyc", "a.pyc", True),
        ("*.pyc", "a/b.pyc", True),
        ("*.pyc", "a/b.pyc.txt", False),
        ("*.pyc", "x.pyc/inside", True),
        ("__pycache__", "a/__pycache__/b", True),
        ("__pycache__/", "a/__pycache__", True),
        ("cache", "a/mycache", False),
        ("a/b", "a/b/c", True),
        ("a/b", "x/a/b", True),
        ("./a", "a", True),
        ("a*c", "a/b/c", True),
        ("[ab]", "b", True),
        ("a|b", "b", False),
        ("ä?", "äö", True),
    ],
)
def test_exclude_patterns(pattern: str, name: str, out: bool) -> None:
    exclude = excluder([pattern])
    assert exclude is not None
    assert bool(exclude(name)) is out


def test_excluded_directory_is_not_entered(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c", exclude=["old", "*.sh", "caf?"])
    found = stored.names(tmp_path / "c")
    assert "docs/a.html" in found
    assert not {"docs/old", "docs/old/b.html", "run.sh", "caf\udce9"} & set(found)


@pytest.mark.parametrize("end", [b"\n", b"\0"])
@pytest.mark.parametrize("last", [b"", None])
def test_listed_names_by_line_or_nul(end: bytes, last: bytes | None) -> None:
    wanted = [b"name %d" % i for i in range(20_000)] + [b"with\nnewline" if end == b"\0" else b"x"]
    data = end.join(wanted) + (end if last is None else last)
    assert list(listed_names(io.BytesIO(data))) == wanted


def test_files_from_takes_just_the_names_listed(
    tree: Path, tmp_path: Path, notes: list[Note]
) -> None:
    listed = [b"./docs/old/", b"docs/a.html", b"../tree/secret", b"/etc/passwd", b"gone", b"link"]
    pack(tree, tmp_path / "c", names=listed, note=notes.append)
    assert stored.names(tmp_path / "c") == ["docs/a.html", "docs/old", "link"]
    assert [note.name for note in notes] == [b"../tree/secret", b"/etc/passwd", b"gone"]
    assert all(note.failed for note in notes)


def test_files_from_with_a_tar_file_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "t.tar").write_bytes(b"")
    with pytest.raises(ValueError, match="directory"):
        pack(tmp_path / "t.tar", tmp_path / "c", names=[b"a"])


@pytest.mark.parametrize("size", [10_000, 2 * STREAM_BYTES])
def test_pack_onto_a_full_disk_is_an_error_and_leaves_nothing(
    small_disk: Path, size: int, root: Path
) -> None:
    write_files(root, {f"{i}": b"x" * size for i in range(3_000_000 // size)})
    with pytest.raises(OSError, match="No space left"):
        pack(root, small_disk / "c")
    assert os.listdir(small_disk) == []


def test_threads_may_pack_at_once(tree: Path, tmp_path: Path) -> None:
    bases = [tmp_path / f"c{i}" for i in range(3)]
    in_threads(*(partial(pack, tree, base) for base in bases))
    first, *others = map(stored.names, bases)
    assert others == [first, first]
