"""A mount of a store of records: files by id, in directories where there are many, and what another
process writes meanwhile."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import shelf
from mounting import grep, mounted, soon
from shelf import COUNTING, REAL, WRITER, made, writing

from winkfs.stores.general import FLAT_RECORDS

pytestmark = [pytest.mark.mount, pytest.mark.in_memory, pytest.mark.usefixtures("installed")]

installed, shelves = shelf.installed, shelf.shelves  # fixtures
MANY = FLAT_RECORDS + 5


@pytest.fixture(params=REAL)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_records_are_files_by_id(tmp_path: Path, kind: str) -> None:
    bodies = [b"alpha\n", b"", os.urandom(1 << 20)]
    ids = made(tmp_path / "s", kind, bodies)
    with mounted(tmp_path / "s", "--ro") as there:
        assert sorted(os.listdir(there)) == sorted(ids)
        for id, body in zip(ids, bodies, strict=True):
            assert (there / id).read_bytes() == body
            assert (there / id).stat().st_size == len(body)
            assert (there / id).stat().st_mtime > 1.7e9
            assert int(os.getxattr(there / id, "user.winkfs.offset")) >= 0
        with (there / ids[2]).open("rb") as file:
            file.seek(1000)
            assert file.read(10) == bodies[2][1000:1010]
        for name in ("nope", "0", ids[0] + "0", "-1", "0" * 32, "zz" * 16):
            assert not (there / name).exists(), name
        with pytest.raises(OSError, match="Read-only"):
            (there / ids[0]).write_bytes(b"x")


def test_a_number_has_one_name(tmp_path: Path) -> None:
    (id,) = made(tmp_path / "s", "log", [b"x"])
    with mounted(tmp_path / "s", "--ro") as there:
        assert not (there / f"0{id}").exists()
        assert not (there / f"+{id}").exists()


def test_many_records_are_in_directories(tmp_path: Path, kind: str) -> None:
    ids = made(tmp_path / "s", kind, [b"%d" % number for number in range(MANY)])
    with mounted(tmp_path / "s", "--ro") as there:
        found = dict(itertools.chain(*(listing(folder) for folder in there.iterdir())))
        assert sorted(found) == sorted(ids)
        for number in (0, 77, MANY - 1):
            id = ids[number]
            assert found[id].read_bytes() == b"%d" % number
            assert (there / id).read_bytes() == b"%d" % number
            assert (there / id).stat().st_ino == found[id].stat().st_ino
            folder = id[:2] if kind in COUNTING else f"{int(id) // 1000 * 1000}-"
            assert found[id].parent.name.startswith(folder)
        elsewhere = next(path.parent for path in found.values() if path.parent != found[id].parent)
        assert not (elsewhere / id).exists()
        for name in ("zz", "zz/x", "123-456", "0-998", "1000000-1000999", elsewhere.name + "0"):
            assert not (there / name).exists(), name
        assert sum(path.is_file() for path in there.rglob("*")) == MANY


def listing(folder: Path) -> list[tuple[str, Path]]:
    return [(path.name, path) for path in folder.iterdir()]


def test_the_directories_stay_as_the_store_grows(tmp_path: Path, kind: str) -> None:
    """Flat at the mount, flat for ever; and new ones are there by their names at once."""
    ids = made(tmp_path / "s", kind, [b"x"] * 10)
    with mounted(tmp_path / "s", "--ro", "--follow") as there:
        assert len(os.listdir(there)) == 10
        with writing(tmp_path / "s") as store:
            ids += [store.put(None, b"y") for _ in range(MANY)]
            store.sync()
        soon(lambda: len(os.listdir(there)) == len(ids))
        assert sorted(os.listdir(there)) == sorted(ids)


def test_changes_of_another_process_come_through(tmp_path: Path, kind: str) -> None:
    ids = made(tmp_path / "s", kind, [b"%d" % number for number in range(10)])
    with mounted(tmp_path / "s", "--ro", "--follow") as there:
        assert sorted(os.listdir(there)) == sorted(ids)
        with writing(tmp_path / "s") as store:
            store.remove(ids[3])
            new = store.put(None, b"new")
            if kind not in COUNTING:
                store.put(ids[4], b"another version")
            store.sync()
            soon(lambda: (there / new).exists() and not (there / ids[3]).exists())
            soon(lambda: sorted(os.listdir(there)) == sorted({*ids, new} - {ids[3]}))
            assert (there / new).read_bytes() == b"new"
            if kind not in COUNTING:
                soon(lambda: (there / ids[4]).read_bytes() == b"another version")
            store.compact()
            store.sync()
            for number in (0, 9):
                assert (there / ids[number]).read_bytes() == b"%d" % number


def test_an_open_record_is_one_version(tmp_path: Path) -> None:
    old, new = os.urandom(300_000), os.urandom(400_000)
    (id,) = made(tmp_path / "s", "log", [old])
    with mounted(tmp_path / "s", "--ro", "--follow") as there, (there / id).open("rb", 0) as file:
        assert file.read(1000) == old[:1000]
        with writing(tmp_path / "s") as store:
            store.put(id, new)
            store.sync()
        soon(lambda: (there / id).stat().st_size == len(new))
        assert b"".join(iter(lambda: file.read(1 << 16), b"")) == old[1000:]
        assert (there / id).read_bytes() == old  # as long as it is open
        file.close()
        assert (there / id).read_bytes() == new


def test_without_follow_it_is_as_of_the_mount(tmp_path: Path, kind: str) -> None:
    ids = made(tmp_path / "s", kind, [b"x"] * 3)
    with mounted(tmp_path / "s", "--ro") as there, writing(tmp_path / "s") as store:
        new = store.put(None, b"new")
        store.sync()
        time.sleep(1.5)
        assert sorted(os.listdir(there)) == sorted(ids)
        assert not (there / new).exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("count", [200, MANY])
def test_grep_goes_through_it_while_a_writer_goes_on(
    tmp_path: Path, kind: str, count: int, installed: str
) -> None:
    ids = made(tmp_path / "s", kind, [b"needle %d\n" % number * 20 for number in range(count)])
    (tmp_path / "ids").write_text("\n".join([*ids[:100], ""]))  # the others stay
    with mounted(tmp_path / "s", "--ro", "--follow") as there:
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path / "s", tmp_path / "ids", "", "1.5"],
            env=os.environ | {"PYTHONPATH": installed},
        ) as writer:  # fmt: skip
            rounds = 0
            while writer.poll() is None:
                assert grep(there) >= set(ids[100:])
                rounds += 1
            assert writer.returncode == 0 and rounds
        left = (tmp_path / "ids").read_text().split()
        soon(lambda: {name for _, _, names in os.walk(there) for name in names}
             == {*left, *ids[100:]})  # fmt: skip
        assert grep(there) == {*ids[100:], *left}
