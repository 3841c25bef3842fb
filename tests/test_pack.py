"""pack and unpack: trees and tar files into containers and back, and what must not happen then."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import winkfs
from winkformats.errors import FormatError
from winkfs.errors import Locked
from winkfs.items import LARGE, Note
from winkfs.names import excluder
from winkfs.pack import pack
from winkfs.spill import SortedRecords
from winkfs.tree import Tree, listed_names
from winkfs.unpack import unpack

LINK, DIR = winkfs.FileType.LINK, winkfs.FileType.DIR
VARIANTS = [{}, {"ao": True}, {"classic": True}, {"ao": True, "classic": True}]
NS = 1_700_000_000_123_456_789


def make_tree(root: Path) -> Path:
    """A small tree with every kind of thing that a container holds."""
    (root / "docs/old").mkdir(parents=True)
    (root / "empty dir").mkdir()
    (root / "docs/a.html").write_bytes(b"<p>a</p>")
    (root / "docs/old/b.html").write_bytes(b"b" * 5000)
    (root / "empty").write_bytes(b"")
    (root / "large").write_bytes(random.Random(1).randbytes(999) * (LARGE // 500))
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0o600)
    (root / "docs/old").chmod(0o700)
    (root / "link").symlink_to("docs/a.html")
    (root / "dangling").symlink_to("../no/where")
    (root / "Grüße\n").write_bytes(b"newline")
    Path(os.fsdecode(bytes(root) + b"/caf\xe9")).write_bytes(b"latin")
    paths = sorted(root.rglob("*"), key=lambda p: -len(p.parts))
    for i, path in enumerate(paths):
        times = (NS - i * 10**9, NS - i * 10**9)
        os.utime(path, ns=times, follow_symlinks=False)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


def snapshot(root: Path, *, second: bool = False) -> dict[str, tuple[object, ...]]:
    """Everything that has to come back, by name."""
    found = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        mtime = status.st_mtime_ns // 10**9 if second else status.st_mtime_ns
        mode = stat.S_IFMT(status.st_mode) if path.is_symlink() else status.st_mode
        found[str(path.relative_to(root))] = (content, mode, mtime, status.st_uid, status.st_gid)
    return found


def names(base: Path) -> list[str]:
    with winkfs.open(base) as c:
        return sorted(c.names())


def files_beside(base: Path) -> list[str]:
    return sorted(p.name for p in base.parent.iterdir() if p.name.startswith(base.name))


# --- there and back ---


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_tree_comes_back_to_the_byte_mode_and_nanosecond(
    tree: Path, tmp_path: Path, variant: dict[str, bool]
) -> None:
    notes: list[Note] = []
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


def test_hard_links_become_copies(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/one").write_bytes(b"same")
    os.link(tmp_path / "t/one", tmp_path / "t/two")
    pack(tmp_path / "t", tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert list(c.get_many(["one", "two"])) == [b"same", b"same"]


def test_devices_fifos_and_sockets_are_listed_and_are_no_failure(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    (root / "file").write_bytes(b"1")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(os.path.relpath(root / "sock"))
        notes: list[Note] = []
        report = pack(root, tmp_path / "c", note=notes.append)
    assert notes == [Note(b"fifo", "a fifo", False), Note(b"sock", "a socket", False)]
    assert (report.files, report.left_out, report.failed) == (1, 2, 0)
    assert names(tmp_path / "c") == ["file"]


def test_ao_is_in_order_of_mtime_also_before_1970(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for name, mtime in {"a": 3 * 10**18, "b": -(10**18), "c": 0, "d": 5}.items():
        (root / name).write_bytes(name.encode())
        os.utime(root / name, ns=(mtime, mtime))
    pack(root, tmp_path / "c", ao=True)
    with winkfs.open(tmp_path / "c") as c:
        assert [(e.name, e.mtime_ns) for e in c.scan()] == [
            ("b", -(10**18)), ("c", 0), ("d", 5), ("a", 3 * 10**18),
        ]  # fmt: skip


# --- what changes while it is packed ---


def items_of(root: Path, notes: list[Note], tmp_path: Path) -> Tree:
    return Tree(root, notes.append, str(tmp_path))


def test_file_that_vanishes_is_a_failure_and_the_rest_is_packed(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for name in "abc":
        (root / name).write_bytes(b"1")
    notes: list[Note] = []
    items = items_of(root, notes, tmp_path).items(by_mtime=False)
    got = [next(items)]
    (root / "b").unlink()
    got += items
    assert [item.name for item in got] == [b"a", b"c"]
    assert notes == [Note(b"b", "vanished before it was read", True)]


@pytest.mark.parametrize("size", [100, LARGE + 100])
@pytest.mark.parametrize("change", ["grows", "shrinks", "is rewritten"])
def test_file_that_changes_while_it_is_read_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, change: str
) -> None:
    root = tmp_path / "t"
    root.mkdir()
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
    notes: list[Note] = []
    report = pack(root, tmp_path / "c", note=notes.append)
    monkeypatch.undo()
    assert notes == [Note(b"a", "changed while it was read", True)]
    assert report.failed == 1
    with winkfs.open(tmp_path / "c") as c:
        assert c.read("a") == b"2" * min(size, changes[change])


@pytest.fixture
def place(tree: Path, tmp_path: Path) -> Iterator[Path]:
    """A directory with a tree, of a user whom the modes of files bind: not root."""
    pack(tree, tmp_path / "warm")  # imports what it needs while it may
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        make_tree(Path(name, "tree"))
        if user == 0:
            for path in (Path(name), *Path(name).rglob("*")):
                os.chown(path, 65534, -1, follow_symlinks=False)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


def test_unreadable_file_and_directory_are_failures_and_the_rest_is_packed(place: Path) -> None:
    tree = place / "tree"
    (tree / "secret").chmod(0)
    (tree / "docs/old").chmod(0)
    notes: list[Note] = []
    pack(tree, place / "c", note=notes.append)
    (tree / "docs/old").chmod(0o700)
    denied = "Permission denied"
    assert notes == [Note(b"docs/old", denied, True), Note(b"secret", denied, True)]
    found = names(place / "c")
    assert "docs/old" in found and "run.sh" in found


def test_unpack_by_a_user_gives_closed_directories_and_no_set_id_of_others(place: Path) -> None:
    with winkfs.create(place / "c") as c:
        c.put("d", b"", ftype=DIR, mode=0o500, mtime=5)
        c.put("d/file", b"1", mode=0o400)
        c.put("d/root", b"1", mode=0o4755, uid=0, gid=0)
    assert unpack(place / "c", place / "out").failed == 0
    out = place / "out/d"
    assert (stat.S_IMODE(out.stat().st_mode), out.stat().st_mtime) == (0o500, 5)
    assert stat.S_IMODE((out / "root").stat().st_mode) == 0o755
    assert (out / "file").read_bytes() == b"1"
    out.chmod(0o700)


# --- whole or not at all ---


def test_pack_on_an_existing_container_is_refused(tree: Path, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    with pytest.raises(FileExistsError, match="--update"):
        pack(tree, tmp_path / "c")


@pytest.mark.parametrize("ao", [False, True])
def test_interrupted_pack_leaves_nothing(tmp_path: Path, ao: bool) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for i in range(300):
        (root / f"f{i}").write_bytes(b"x" * 100)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "c", ao=ao, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_what_a_killed_pack_left_is_overwritten(tree: Path, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c.partial", ao=True) as c:
        c.put("junk", b"1")
    pack(tree, tmp_path / "c")
    assert "junk" not in names(tmp_path / "c")
    assert files_beside(tmp_path / "c") == ["c.data", "c.idx"]


def test_two_packs_of_one_base_do_not_mix(tree: Path, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c.partial"), pytest.raises(Locked, match=str(os.getpid())):
        pack(tree, tmp_path / "c")


def test_stale_derived_files_of_an_earlier_container_go(tree: Path, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c", ao=True, classic=True).close()
    (tmp_path / "c.data").unlink()
    pack(tree, tmp_path / "c", classic=True)
    assert not (tmp_path / "c.time").exists()
    assert "docs/a.html" in names(tmp_path / "c")


def test_update_adds_and_replaces_and_keeps_the_rest(tree: Path, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many([("kept", b"1"), ("docs/a.html", b"old"), ("large", b"old")])
    pack(tree, tmp_path / "c", update=True)
    with winkfs.open(tmp_path / "c") as c:
        assert c.read("kept") == b"1"
        assert c.read("docs/a.html") == b"<p>a</p>"
        assert c.read("large") == (tree / "large").read_bytes()
    assert winkfs.verify(tmp_path / "c").problems == []


def test_update_makes_a_container_that_is_not_there(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c", update=True)
    assert "docs/a.html" in names(tmp_path / "c")


def test_update_of_append_only_says_why_an_older_file_is_refused(
    tree: Path, tmp_path: Path
) -> None:
    pack(tree, tmp_path / "c", ao=True)
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
    found = names(base)
    assert not own & set(found)
    assert {"docs/c.data.gz", "c.data"} <= set(found)


def test_missing_source_or_directory_of_the_container(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "no", tmp_path / "c")
    with pytest.raises(FileNotFoundError):
        pack(tmp_path, tmp_path / "no/c")


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
    found = names(tmp_path / "c")
    assert "docs/a.html" in found
    assert not {"docs/old", "docs/old/b.html", "run.sh", "caf\udce9"} & set(found)


@pytest.mark.parametrize("end", [b"\n", b"\0"])
@pytest.mark.parametrize("last", [b"", None])
def test_listed_names_by_line_or_nul(end: bytes, last: bytes | None) -> None:
    wanted = [b"name %d" % i for i in range(20_000)] + [b"with\nnewline" if end == b"\0" else b"x"]
    data = end.join(wanted) + (end if last is None else last)
    assert list(listed_names(io.BytesIO(data))) == wanted


def test_files_from_takes_just_the_names_listed(tree: Path, tmp_path: Path) -> None:
    notes: list[Note] = []
    listed = [b"./docs/old/", b"docs/a.html", b"../tree/secret", b"/etc/passwd", b"gone", b"link"]
    pack(tree, tmp_path / "c", names=listed, note=notes.append)
    assert names(tmp_path / "c") == ["docs/a.html", "docs/old", "link"]
    assert [note.name for note in notes] == [b"../tree/secret", b"/etc/passwd", b"gone"]
    assert all(note.failed for note in notes)


def test_files_from_with_a_tar_file_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "t.tar").write_bytes(b"")
    with pytest.raises(ValueError, match="directory"):
        pack(tmp_path / "t.tar", tmp_path / "c", names=[b"a"])


# --- tar files ---


def tar_of(tree: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        tar.add(tree, ".")
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("ao", [False, True])
def test_tar_file_gives_the_same_tree(tree: Path, tmp_path: Path, mode: str, ao: bool) -> None:
    tar = tar_of(tree, tmp_path / "t.tar", mode)
    notes: list[Note] = []
    report = pack(tar, tmp_path / "c", ao=ao, note=notes.append)
    unpack(tmp_path / "c", tmp_path / "back", note=notes.append)
    exact = snapshot(tree)
    back = snapshot(tmp_path / "back")
    assert {n: v[:2] + v[3:] for n, v in back.items()} == {
        n: v[:2] + v[3:] for n, v in exact.items()
    }
    assert all(abs(back[n][2] - exact[n][2]) < 1000 for n in exact)  # type: ignore[operator]
    assert notes == []
    assert report.files == 8


def test_tar_mtime_is_exact_to_the_nanosecond(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a")
    member.pax_headers = {"mtime": "-1.000000001"}
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.addfile(member)
    pack(tmp_path / "t.tar", tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert c.stat("a").mtime_ns == -1_000_000_001


def write_tar(path: Path, *members: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(data) if member.size else None)
    return path


def member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("size", [10, LARGE + 1])
def test_tar_hard_links_become_copies(tmp_path: Path, ao: bool, size: int) -> None:
    data = random.Random(2).randbytes(size)
    tar = write_tar(
        tmp_path / "t.tar",
        member("./a", size=size),
        member("b", tarfile.LNKTYPE, link="./a"),
        member("c", tarfile.LNKTYPE, link="gone"),
        data=data,
    )
    notes: list[Note] = []
    pack(tar, tmp_path / "c", ao=ao, note=notes.append)
    with winkfs.open(tmp_path / "c") as c:
        assert c.read("a") == c.read("b") == data
        assert "c" not in c
    assert [(n.name, n.failed) for n in notes] == [(b"c", True)]
    assert winkfs.verify(tmp_path / "c").problems == []


def test_tar_names_are_cleaned_and_those_that_climb_are_refused(tmp_path: Path) -> None:
    tar = write_tar(
        tmp_path / "t.tar",
        *map(member, ["/abs", "./dot", "a//b", "../up", "x/../../up", "n" * 65_001, "m" * 65_000]),
        member("tty", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("./", tarfile.DIRTYPE),
    )
    notes: list[Note] = []
    report = pack(tar, tmp_path / "c", note=notes.append)
    assert names(tmp_path / "c") == ["a/b", "abs", "dot", "m" * 65_000]
    assert [n.name for n in notes if n.failed] == [b"../up", b"x/../../up", b"n" * 65_001]
    assert "65,000" in notes[2].what
    assert (report.left_out, report.failed) == (2, 3)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.7, 0.95])
def test_tar_cut_short_is_an_error_and_leaves_no_container(
    tmp_path: Path, mode: str, ao: bool, part: float
) -> None:
    rng = random.Random(3)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for i in range(100):
            tar.addfile(member(f"{i}", size=3000), io.BytesIO(rng.randbytes(3000)))
    whole = file.getvalue()
    (tmp_path / "t.tar").write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(FormatError, match=r"t\.tar: not a whole tar file"):
        pack(tmp_path / "t.tar", tmp_path / "c", ao=ao)
    assert files_beside(tmp_path / "c") == []


@pytest.mark.parametrize("data", [b"", b"hello" * 300, b"\x1f\x8bjunk", b"BZhjunk", b"\xfd7zXZ\0j"])
def test_what_is_no_tar_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.tar").write_bytes(data)
    with pytest.raises(FormatError, match=r"t\.tar"):
        pack(tmp_path / "t.tar", tmp_path / "c")
    assert files_beside(tmp_path / "c") == []


@pytest.mark.parametrize("ao", [False, True])
def test_broken_header_in_the_middle_is_no_end_of_the_archive(tmp_path: Path, ao: bool) -> None:
    tar = write_tar(tmp_path / "t.tar", member("a"), member("b"), member("c"))
    data = bytearray(tar.read_bytes())
    data[512 + 20] ^= 0xFF
    tar.write_bytes(data)
    with pytest.raises(FormatError, match="byte 512"):
        pack(tar, tmp_path / "c", ao=ao)


# --- unpack stays inside ---


def container(tmp_path: Path, *files: tuple[object, ...]) -> Path:
    with winkfs.create(tmp_path / "c") as c:
        for name, data, *kind in files:
            c.put(name, data, ftype=kind[0] if kind else winkfs.FileType.FILE)  # type: ignore[arg-type]
    return tmp_path / "c"


@pytest.mark.parametrize(
    "name",
    ["../up", "/abs", "a/../../up", "a//b", "a/", "./a", "a/.", "..", ".", "a/" + "n" * 256],
)
@pytest.mark.parametrize("kind", [winkfs.FileType.FILE, LINK, DIR])
def test_names_that_are_no_path_are_left_out_and_said(
    tmp_path: Path, name: str, kind: winkfs.FileType
) -> None:
    data = b"" if kind == DIR else b"target"
    base = container(tmp_path, (name, data, kind), ("good", b"1"))
    notes: list[Note] = []
    report = unpack(base, tmp_path / "in/out", note=notes.append)
    assert [n.name for n in notes] == [name.encode()]
    assert (report.files, report.failed) == (1, 1)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == [
        "c.data", "c.idx", "in",
    ]  # fmt: skip
    assert [p.name for p in (tmp_path / "in").rglob("*")] == ["out", "good"]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_link_in_the_container_is_not_followed(tmp_path: Path, swap: bool, force: bool) -> None:
    (tmp_path / "outside").mkdir()
    files = [("a", bytes(tmp_path / "outside"), LINK), ("a/b", b"evil"), ("a/d", b"", DIR)]
    base = container(tmp_path, *(reversed(files) if swap else files))
    notes: list[Note] = []
    unpack(base, tmp_path / "out", force=force, note=notes.append)
    assert notes
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "outside").stat().st_mode & 0o777 != 0o700


@pytest.mark.parametrize("target", ["file", "missing"])
def test_link_that_was_there_is_replaced_and_not_written_through(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "out/a").symlink_to(tmp_path / target)
    base = container(tmp_path, ("a", b"new"))
    assert unpack(base, tmp_path / "out").failed == 1
    assert (tmp_path / "out/a").is_symlink()
    assert unpack(base, tmp_path / "out", force=True).failed == 0
    assert (tmp_path / "out/a").read_bytes() == b"new"
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert not (tmp_path / "missing").exists()


def test_linked_directory_that_was_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path / "outside")
    base = container(tmp_path, ("a/b", b"1"), ("a", b"", DIR))
    assert unpack(base, tmp_path / "out", force=True).failed == 2
    assert list((tmp_path / "outside").iterdir()) == []


def test_existing_files_stay_unless_forced(tmp_path: Path) -> None:
    base = container(tmp_path, ("a", b"new"), ("l", b"a", LINK), ("d", b"", DIR), ("x", b"1"))
    out = tmp_path / "out"
    (out / "d").mkdir(parents=True)
    (out / "x").mkdir()
    (out / "a").write_bytes(b"old")
    (out / "l").write_bytes(b"old")
    notes: list[Note] = []
    unpack(base, out, note=notes.append)
    assert {n.name: n.what for n in notes} == dict.fromkeys([b"a", b"l", b"x"], "is there already")
    assert (out / "a").read_bytes() == (out / "l").read_bytes() == b"old"
    notes.clear()
    unpack(base, out, force=True, note=notes.append)
    assert notes == [Note(b"x", "a directory is in its place", True)]
    assert (out / "a").read_bytes() == b"new"
    assert os.readlink(out / "l") == "a"


def test_hard_link_to_a_file_outside_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    os.link(tmp_path / "file", tmp_path / "out/a")
    unpack(container(tmp_path, ("a", b"new")), tmp_path / "out", force=True)
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        for name, mode in {"a": 0o666, "b": 0o400, "s": 0o4711}.items():
            c.put(name, b"1", mode=mode)
        c.put("d", b"", ftype=DIR, mode=0o1777)
        c.put("d/closed", b"", ftype=DIR, mode=0o555)
        c.put("d/closed/inside", b"1")
    old = os.umask(0o077)
    try:
        unpack(tmp_path / "c", tmp_path / "out")
    finally:
        os.umask(old)
    names = ["a", "b", "s", "d", "d/closed"]
    found = [stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in names]
    assert found == [0o666, 0o400, 0o4711, 0o1777, 0o555]


def test_files_in_many_directories_and_deep_ones(tmp_path: Path) -> None:
    """More directories than are kept open, and a path longer than the kernel takes at once."""
    deep = "/".join(["d" * 200] * 30) + "/end"
    wide = [f"{i:03d}/{j}/file" for j in range(3) for i in range(100)]
    base = container(tmp_path, *((name, name.encode()) for name in [*wide, deep]))
    out = tmp_path / "out"
    try:
        assert unpack(base, out).failed == 0
        assert all((out / name).read_bytes() == name.encode() for name in wide)
        notes: list[Note] = []
        pack(out, tmp_path / "again", note=notes.append)
        assert notes == []
        with winkfs.open(tmp_path / "again") as c:
            assert c.read(deep) == deep.encode()
    finally:
        subprocess.run(["rm", "-rf", out], check=True)


def test_glob_crosses_the_slash(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "c")
    report = unpack(tmp_path / "c", tmp_path / "out", "docs/*.html")
    assert report.files == 2
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*"))
    assert found == ["docs", "docs/a.html", "docs/old", "docs/old/b.html"]


def test_damaged_file_is_not_unpacked_and_the_others_are(tmp_path: Path) -> None:
    base = container(tmp_path, ("a", b"A" * 500), ("bad", b"B" * 500), ("z", b"Z" * 500))
    data = Path(f"{base}.data")
    data.write_bytes(data.read_bytes().replace(b"BBBB", b"BBXB", 1))
    notes: list[Note] = []
    unpack(base, tmp_path / "out", note=notes.append)
    assert [n.name for n in notes] == [b"bad"]
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "z"]


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A filesystem of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield disk  # type: ignore[misc]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("size", [10_000, 2 * LARGE])
def test_pack_onto_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, small_disk: Path, size: int
) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for i in range(3_000_000 // size):
        (root / f"{i}").write_bytes(b"x" * size)
    with pytest.raises(OSError, match="No space left"):
        pack(root, small_disk / "c")
    assert os.listdir(small_disk) == []


def test_unpack_onto_a_full_disk_stops_and_leaves_no_half_file(
    tmp_path: Path, small_disk: Path
) -> None:
    base = container(tmp_path, *((f"{i}", bytes([i]) * 300_000) for i in range(6)))
    with pytest.raises(OSError, match="No space left"):
        unpack(base, small_disk / "out")
    assert {p.stat().st_size for p in (small_disk / "out").iterdir()} == {300_000}


# --- sorted records ---


@pytest.mark.parametrize("run", [1, 100, 5_000, 1 << 20])
def test_sorted_records_are_sorted_however_little_fits_in_memory(tmp_path: Path, run: int) -> None:
    rng = random.Random(run)
    records = [rng.randbytes(rng.randrange(1, 30)) for _ in range(3000)]
    with SortedRecords(tmp_path, run) as spill:
        for record in records:
            spill.add(record)
        assert list(spill) == sorted(records)
    assert os.listdir(tmp_path) == []


def test_threads_may_pack_at_once(tree: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=pack, args=(tree, tmp_path / f"c{i}")) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lists = [names(tmp_path / f"c{i}") for i in range(3)]
    assert all(a == b for a, b in itertools.pairwise(lists))


@pytest.mark.skipif(not shutil.which("tar"), reason="needs GNU tar")
def test_sparse_tar_of_gnu_tar(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    with (root / "sparse").open("wb") as file:
        file.seek(300_000)
        file.write(b"end")
    subprocess.run(["tar", "-C", root, "-cSf", tmp_path / "t.tar", "."], check=True)
    pack(tmp_path / "t.tar", tmp_path / "c")
    with winkfs.open(tmp_path / "c") as c:
        assert c.read("sparse") == bytes(300_000) + b"end"
