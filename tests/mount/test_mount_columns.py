"""Columns are attributes of a mount: any program reads, sets, copies and packs them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import pytest
from container_checks import path_of
from mounting import mounted, need, refused, run, winkfs_command
from typed_files import SCHEMA, assert_answers, known, make, nulls, same

import winkfs

pytestmark = pytest.mark.mount

RECORD = "user.winkfs_columns"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "c"


def values_of(base: Path) -> dict[str, Any]:
    with winkfs.open(base) as c:
        found = known(c)
    return {name: one for name, one in found.items() if any(v is not None for v in one.values())}


def assert_same(base: Path, other: Path) -> None:
    """Equal values, types and nulls."""
    with winkfs.open(base) as one, winkfs.open(other) as two:
        assert two.columns == one.columns == SCHEMA
    left, right = values_of(base), values_of(other)
    assert right.keys() == left.keys()
    for name, value in left.items():
        assert same(right[name], value), name
    assert winkfs.verify(other).problems == []


def test_programs_read_set_and_remove_values(base: Path) -> None:
    need("getfattr", "setfattr")
    make(base, 20)
    with mounted(base) as there:
        file = there / "d1/f00001"
        run("setfattr", "-n", "user.n", "-v", "0012", file)
        assert 'user.n="12"\n' in run("getfattr", "-d", "-m", "-", "--absolute-names", file)
        os.setxattr(file, "user.at", b"2026-01-01T01:00+01:00")
        assert os.getxattr(file, "user.at") == b"2026-01-01T00:00:00.000000Z"
        run("setfattr", "-x", "user.lang", there / "d2/f00002")
        with refused(errno.ENODATA):
            os.getxattr(there / "d2/f00002", "user.lang")
        (there / "new").write_bytes(b"1")
        os.setxattr(there / "new", "user.good", b"1")
        assert os.getxattr(there / "new", RECORD).startswith(b"lang:string raw:binary")
    with winkfs.open(base) as c:
        assert c.getcolumns("d1/f00001")["n"] == 12
        assert c.getcolumns("d2/f00002")["lang"] is None
        assert c.getcolumns("new") == nulls() | {"good": True}
        assert_answers(c)
        assert "new" in c.names(where="good and n is null")


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", b"x"), ("n", b""), ("n", b"9223372036854775808"), ("good", b"yes"), ("lang", b"\xff"),
     ("at", b"noon"), ("tags", b"[1]"), ("tags", b"[" * 5000), ("tags", b'["\\ud800"]'),
     ("score", b"1,5")],
)  # fmt: skip
def test_a_wrong_value_is_einval_and_changes_nothing(name: str, value: bytes, base: Path) -> None:
    with winkfs.create(base, columns=SCHEMA) as c:
        c.put("f", b"1", columns={"n": 5})
    with mounted(base) as there:
        before = {key: os.getxattr(there / "f", key) for key in os.listxattr(there / "f")}
        with refused(errno.EINVAL):
            os.setxattr(there / "f", f"user.{name}", value)
        assert {key: os.getxattr(there / "f", key) for key in os.listxattr(there / "f")} == before
        os.setxattr(there / "f", "user.other", value)  # which is no column
        (there / "f").chmod(0o600)
    with winkfs.open(base) as c:
        assert c.getcolumns("f") == nulls() | {"n": 5}


def copy_with_cp(there: Path, to: Path) -> None:
    need("cp")
    for item in there.iterdir():
        run("cp", "-a", item, to)


def copy_with_tar(there: Path, to: Path) -> None:
    need("tar")
    with folders.in_memory() as folder:
        run("tar", "--xattrs", "-cf", folder / "t", "-C", there, ".")
        run("tar", "--xattrs", "--xattrs-include=user.*", "-xf", folder / "t", "-C", to)


def copy_with_python(there: Path, to: Path) -> None:
    shutil.copytree(there, to, dirs_exist_ok=True)


COPIES: dict[str, Callable[[Path, Path], None]] = {
    "cp -a": copy_with_cp, "tar --xattrs": copy_with_tar, "copytree": copy_with_python,
}  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("declared", [False, True])
def test_copies_onto_another_mount_have_equal_values(how: str, declared: bool, base: Path) -> None:
    make(base, 40)
    other = base.with_name("other")
    winkfs.create(other, columns=SCHEMA if declared else {}).close()
    with mounted(base, "-o", "ro") as there, mounted(other) as to:
        COPIES[how](there, to)
    assert_same(base, other)
    with winkfs.open(other) as c:
        assert_answers(c)


def test_a_mount_is_packed_and_unpacked_and_packed_again(base: Path) -> None:
    make(base, 40)
    folder = base.parent
    with mounted(base, "-o", "ro") as there:
        winkfs_command("pack", there, folder / "packed")
    assert_same(base, folder / "packed")
    winkfs_command("unpack", folder / "packed", folder / "out")
    winkfs_command("pack", folder / "out", folder / "again")
    assert_same(base, folder / "again")
    assert path_of(folder / "again", ".cat").exists()
    run("tar", "--xattrs", "-cf", folder / "t.tar", "-C", folder / "out", ".")
    winkfs_command("pack", folder / "t.tar", folder / "tarred")
    assert_same(base, folder / "tarred")
    winkfs_command("pack", folder / "out", folder / "again", "--update")
    assert_same(base, folder / "again")


@pytest.mark.parametrize("kinds", [("int64", "float64"), ("float64", "int64")])
def test_a_mounted_data_set_shows_types_that_hold_all_values(
    kinds: tuple[str, str], base: Path
) -> None:
    """The shards have different types of one column."""
    for kind in kinds:
        with winkfs.create(base.parent / kind, columns={"n": kind}) as c:
            c.put(kind, b"", columns={"n": 2 if kind == "int64" else 1.5})
        winkfs_command("dataset", "add", base, base.parent / kind)
    with mounted(base) as there:
        for kind in kinds:
            assert os.getxattr(there / kind, RECORD) == b"n:float64"
        winkfs_command("pack", there, base.parent / "packed")
    with winkfs.open(base.parent / "packed") as c:
        assert c.columns == {"n": "float64"}
        assert known(c) == {"int64": {"n": 2.0}, "float64": {"n": 1.5}}


@pytest.mark.few(3)
@pytest.mark.parametrize("way", [*COPIES, "pack", "unpack"])
def test_a_dropped_column_stays_dropped_in_copies_of_a_container(way: str, base: Path) -> None:
    make(base, 20)
    left = {name: kind for name, kind in SCHEMA.items() if name not in ("n", "tags")}
    with winkfs.open(base, "a") as c:
        c.drop_columns(["n", "tags"])
    other, folder = base.with_name("other"), base.with_name("folder")
    if way == "unpack":
        winkfs_command("unpack", base, folder)
        winkfs_command("pack", folder, other)
    else:
        with mounted(base) as there:
            assert b"tags" not in os.getxattr(there / "d1/f00001", RECORD)
            run("cp", "-a", there / "d1/f00001", there / "copy")
            (there / "copy").unlink()
            if way == "pack":
                winkfs_command("pack", there, other)
            else:
                winkfs.create(other).close()
                with mounted(other) as to:
                    COPIES[way](there, to)
    for path in (base, other):
        with winkfs.open(path) as c:
            assert c.columns == left
            assert c.getcolumns("d1/f00001").keys() == left.keys()
            assert b"user.n" in c.getxattrs("d1/f00001")
    with winkfs.open(base) as one, winkfs.open(other) as two:
        wanted, found = known(one), known(two)
        assert all(same(found[name], value) for name, value in wanted.items())


def test_an_update_writes_nothing_for_additional_columns(base: Path) -> None:
    tree = base.with_name("tree")
    tree.mkdir()
    (tree / "a").write_bytes(b"1")
    os.setxattr(tree / "a", RECORD, b"n:int64")
    os.setxattr(tree / "a", "user.n", b"7")
    winkfs.pack(tree, base)
    with winkfs.open(base, "a") as c:
        c.add_columns({"m": "string"})
        assert c.getxattrs("a")[RECORD.encode()] == b"n:int64 m:string"
    report = winkfs.pack(tree, base, update=True, checksum=True)
    assert (report.updated, report.unchanged) == (0, 1)
    with winkfs.open(base, "a") as c:
        c.drop_columns(["n"])
    report = winkfs.pack(tree, base, update=True, checksum=True)
    assert (report.updated, report.unchanged) == (1, 0)  # the directory declares it again
    with winkfs.open(base) as c:
        assert c.columns == {"m": "string", "n": "int64"}


def test_an_attribute_that_is_no_value_is_packed_and_is_null(base: Path) -> None:
    tree = base.with_name("tree")
    tree.mkdir()
    (tree / "a").write_bytes(b"1")
    (tree / "b").write_bytes(b"2")
    for name, value in (("a", b"07"), ("b", b"abc")):
        os.setxattr(tree / name, RECORD, b"n:int64")
        os.setxattr(tree / name, "user.n", value)
    winkfs_command("pack", tree, base)
    os.setxattr(tree / "a", "user.n", b"no number")
    for wanted, update in ((7, True), (None, False)):
        with winkfs.open(base) as c:
            assert c.columns == {"n": "int64"}
            assert (c.getcolumns("a"), c.getcolumns("b")) == ({"n": wanted}, {"n": None})
            assert c.getxattrs("b")[b"user.n"] == b"abc"
        if update:
            winkfs_command("pack", tree, base, "--update")
    assert winkfs.verify(base).problems == []


def test_an_append_only_mount_shows_values_and_changes_none(base: Path) -> None:
    make(base, 10, ao=True)
    with mounted(base) as there:
        file = next(path for path in there.rglob("f00001"))
        assert os.getxattr(file, RECORD).startswith(b"lang:string")
        with pytest.raises(OSError):
            os.setxattr(file, "user.n", b"5")
    with winkfs.open(base) as c:
        assert c.columns == SCHEMA


def test_columns_declared_beside_a_mount_are_seen_by_a_new_one(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("f", b"1")
    with mounted(base) as there:
        os.setxattr(there / "f", "user.n", b"07")
        assert os.getxattr(there / "f", "user.n") == b"07"
    with winkfs.open(base, "a") as c:
        c.add_columns({"n": "int64"})
        assert c.getcolumns("f") == {"n": 7}
    with mounted(base) as there:
        with pytest.raises(OSError):
            os.setxattr(there / "f", "user.n", b"x")
        os.setxattr(there / "f", "user.n", b"08")
        assert os.getxattr(there / "f", "user.n") == b"8"
