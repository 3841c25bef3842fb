"""Names that are no paths: each file is seen exactly once, with its bytes, wherever paths are."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import data_sets
import escapes
import pytest
import stored
from hypothesis import given
from hypothesis import strategies as st
from mounting import mounted, need_fuse

import winkfs
from winkfs import names
from winkfs.archive.unpack import unpack
from winkmount.binding import KERNEL

NAMES = escapes.odd_names()
EXPECTED = escapes.shown({name: name for name in NAMES}, [])
FILES = {path: data for path, data in EXPECTED.items() if data is not None}
LEFT_OUT = {name for name in NAMES if not escapes.fits(escapes.path_of(name))}

PARTS = st.sampled_from(escapes.PARTS) | st.binary(max_size=3).filter(
    lambda part: b"/" not in part and b"\0" not in part
)
SOME_NAMES = st.lists(PARTS, min_size=1, max_size=5).map(b"/".join)


# --- the rule ---


@given(SOME_NAMES)
def test_a_path_gives_its_name_back_and_leads_nowhere_else(name: bytes) -> None:
    path = names.shown(name)
    assert path == escapes.path_of(name)
    assert names.name_at(path) == names.name_below(path) == name
    for part in path.split(b"/"):
        assert part not in (b"", b".", b"..", names.SELF)
        assert not part.startswith(b"-") or part in name.split(b"/")
    assert names.is_odd(name) == (path != name) == names.any_odd([b"usual/name", name])
    if name:
        assert names.name_at(path + names.OWN) == name
        assert names.name_below(path + names.OWN) not in (name, path)
        text = winkfs.path_of(name)
        assert os.fsencode(text) == path
        assert os.fsencode(winkfs.name_of_path(text)) == name


@given(st.lists(SOME_NAMES, unique=True, max_size=20))
def test_no_two_names_meet(some: list[bytes]) -> None:
    files = escapes.shown({name: name for name in some}, [])
    inside = [path for path, name in files.items() if name is not None]
    assert sorted(map(names.name_at, inside)) == sorted(some)
    assert len({names.shown(name) for name in some}) == len(some)
    assert names.shown_all(some) == list(map(names.shown, some))


def test_the_odd_names_are_many_and_of_all_kinds() -> None:
    assert len(NAMES) == len(set(NAMES)) > 500
    assert len(FILES) + len(LEFT_OUT) == len(NAMES)
    assert len(LEFT_OUT) == 2
    assert sum(path.endswith(b"/@file") for path in FILES) > 40


# --- what shows them ---


def put_all(base: Path, some: Iterable[bytes] = NAMES) -> Path:
    return stored.make(base, ((name, name) for name in some))


@pytest.fixture(params=["container", "writer", "data set"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "data set":
        data_sets.add(tmp_path / "c", *({n: n for n in NAMES[k::5]} for k in range(5)))
    elif request.param == "container":
        put_all(tmp_path / "c")
    else:
        put_all(tmp_path / "c", NAMES[::2])
        with winkfs.open(tmp_path / "c", "a") as container:  # behind the catalog
            for name in NAMES[1::2]:
                container.put(name, name)
            container.sync()
            container.abort()
    return tmp_path / "c"


def found_in(directory: Path) -> dict[bytes, bytes | None]:
    """Path -> content; None: a directory."""
    found: dict[bytes, bytes | None] = {}
    top = os.fsencode(directory)
    for above, directories, files in os.walk(top, onerror=_raise):
        here = above[len(top) + 1 :]
        for name in (*directories, *files):
            path = here + b"/" + name if here else name
            assert path not in found
            file = Path(os.fsdecode(above), os.fsdecode(name))
            found[path] = None if name in directories else file.read_bytes()
    return found


def _raise(error: OSError) -> None:
    raise error


def test_verify_calls_them_sound(store: Path) -> None:
    assert winkfs.verify(store).problems == []


@pytest.mark.few(1)
@pytest.mark.slow
def test_walk_and_listdir_show_each_once(store: Path) -> None:
    with winkfs.open(store) as opened:
        found: dict[str, str] = {}
        for above, directories, files in opened.walk():
            assert opened.listdir(above) == sorted(directories + files)
            for file in files:
                path = f"{above}/{file}" if above else file
                assert opened.exists(path) and path not in found
                found[path] = winkfs.name_of_path(path)
        assert sorted(map(os.fsencode, found.values())) == sorted(NAMES)
        shown = {os.fsencode(path): os.fsencode(name) for path, name in found.items()}
        assert {path: name for path, name in shown.items() if name not in LEFT_OUT} == FILES
        for path in ("a/@file/x", "@file", "nothing", "a/@file/@file"):
            assert opened.exists(path) == (path.encode() in NAMES)  # it takes names, too
            with pytest.raises(FileNotFoundError):
                opened.listdir(path)
        with pytest.raises(NotADirectoryError):
            opened.listdir("a/@file")


@pytest.mark.few(1)
@pytest.mark.slow
def test_unpack_makes_each_once(store: Path, tmp_path: Path) -> None:
    notes: list[bytes] = []
    report = unpack(store, tmp_path / "out", note=lambda note: notes.append(note.name))
    assert set(notes) == LEFT_OUT and report.failed == len(notes)
    assert found_in(tmp_path / "out") == EXPECTED


@pytest.mark.few(3)
@pytest.mark.mount
@pytest.mark.parametrize("options", [(), ("--ro",), ("--ro", "--follow"), ("--binding", "fusepy")])
def test_a_mount_shows_each_once(store: Path, options: tuple[str, ...]) -> None:
    need_fuse(options[-1] if "--binding" in options else KERNEL)
    with mounted(store, *options) as there:
        assert found_in(there) == EXPECTED
        for wrong in (b"@file", b"a/@file/@file", b"\xff", b"@types/@file/@", b"http:/a.org"):
            with pytest.raises((FileNotFoundError, NotADirectoryError)):
                os.stat(os.fsencode(there) + b"/" + wrong)
    assert winkfs.verify(store).problems == []


@pytest.mark.mount
def test_a_followed_mount_shows_those_that_come(tmp_path: Path) -> None:
    base = put_all(tmp_path / "c", NAMES[::2])
    with winkfs.open(base, "a") as writer, mounted(base, "--ro", "--follow") as there:
        assert len(found_in(there)) > len(NAMES) // 2
        for name in NAMES[1::2]:
            writer.put(name, name)
        for name in NAMES[::4]:
            writer.delete(name)
        writer.sync()
        left = {name: name for i, name in enumerate(NAMES) if i % 4}
        expected = escapes.shown(left, [])
        time.sleep(2.5)  # that is how long it may take
        assert found_in(there) == expected


# --- what makes them ---


@pytest.mark.mount
def test_a_copy_of_what_was_unpacked_has_the_same_names(tmp_path: Path) -> None:
    """And what is then renamed and removed on the mount goes from the container."""
    out, base = tmp_path / "out", tmp_path / "copy"
    unpack(put_all(tmp_path / "c"), out, note=lambda note: None)
    winkfs.create(base).close()
    with mounted(base) as there:
        subprocess.run(["cp", "-r", f"{out}/.", there], check=True)
        assert found_in(there) == EXPECTED
    assert _contents(base) == {name: name for name in NAMES if name not in LEFT_OUT}
    with mounted(base) as there:
        assert found_in(there) == EXPECTED
        top = os.fsencode(there)
        moved = [path for i, path in enumerate(sorted(FILES)) if i % 7 == 0]
        for i, path in enumerate(moved):
            os.rename(top + b"/" + path, top + b"/moved-%d" % i)
        with pytest.raises(FileNotFoundError):
            os.stat(top + b"/" + moved[0])
        for i, path in enumerate(moved):
            os.rename(top + b"/moved-%d" % i, top + b"/" + path)
        assert found_in(there) == EXPECTED
        os.rename(top + b"/http:", top + b"/web")
        assert {p for p in found_in(there) if p.startswith(b"web/@/a.org")}
        os.rename(top + b"/web", top + b"/http:")
        assert found_in(there) == EXPECTED
        for entry in os.scandir(there):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        assert os.listdir(there) == []
    assert _contents(base) == {}


def _contents(base: Path) -> dict[bytes, bytes]:
    assert winkfs.verify(base).problems == []
    return {os.fsencode(name): data for name, data in stored.documents(base).items()}


@pytest.mark.mount
def test_refusals_of_a_mount(tmp_path: Path) -> None:
    base = put_all(tmp_path / "c", [b"a", b"a/b", b"c"])
    with mounted(base) as there:
        for make in (os.mkdir, lambda path: Path(path).touch()):
            with pytest.raises(PermissionError):
                make(there / "@file")  # the top directory has no name
        os.mkdir(there / "d")
        with pytest.raises(PermissionError):
            os.mkdir(there / "d/@file")
        with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOTEMPTY):
            os.unlink(there / "a/b")
            os.rmdir(there / "a")
        with pytest.raises(PermissionError):
            os.chmod(there / "a", 0o700)
        os.utime(there / "a", (5, 5))
        assert os.stat(there / "a").st_mtime == 5
    assert _contents(base) == {b"a": b"a", b"c": b"c"}
