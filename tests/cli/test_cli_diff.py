"""The command diff: stores, generations, directories and tar files, compared."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import data_sets
import pytest
import stored
import trees
from commands import PROGRAM, Done, Run, on_a_terminal, one_line

import winkfs
import winkfs.dataset
from winkfs.archive.compare import Comparison, _digested
from winkfs.archive.items import Content, Large, Meta, Note, Unreadable
from winkfs.container.bulk import Row
from winkfs.container.table import FileTable
from winkfs.entry import FileType
from winkfs.tables import table_by_name

pytestmark = pytest.mark.slow

tree = trees.tree  # a fixture
FILES: dict[str | bytes, bytes] = {f"d/{i:03}": b"%d" % i for i in range(40)}


def lines(done: Done) -> list[str]:
    return done.out.decode("utf-8", "surrogateescape").splitlines()


def same(one: str, other: str) -> None:
    """Make two containers of the same files, at the same time."""
    for base in one, other:
        stored.make(base, [(name, data, 1000) for name, data in FILES.items()])


def test_each_kind_of_difference_is_a_line(run: Run) -> None:
    same("a", "b")
    with winkfs.open("b", "a") as b:
        b.delete("d/000")
        b.put("d/001", b"longer", mtime=1000)
        b.utime("d/002", mtime=2000)
        b.chmod("d/003", 0o600)
        b.chown("d/004", 7, 8)
        b.setxattrs("d/005", {b"user.a": b"1"})
        b.put("d/006", b"target", ftype=winkfs.FileType.LINK, mtime=1000)
        b.put("d/007", b"x", mtime=1000)  # as long as before
        b.put("e\n", b"new", mtime=1000)
    done = run("diff", "a", "b")
    expected = [
        "- d/000", "M d/001\tsize", "M d/002\tmtime", "M d/003\tmode", "M d/004\towner",
        "M d/005\txattrs", "T d/006\tfile -> link", "+ e", "",
    ]  # fmt: skip
    assert (done.status, lines(done), done.err) == (1, expected, "")
    assert "M d/007\tcontent" in lines(run("diff", "a", "b", "-c"))
    only = run("diff", "a", "b", "-c", "--content-only", "--exclude", "e*")
    assert lines(only) == ["- d/000", "M d/001\tsize", "T d/006\tfile -> link", "M d/007\tcontent"]
    assert lines(run("diff", "b", "a", "--include", "000", "--include", "e*")) == [
        "+ d/000", "- e", "",
    ]  # fmt: skip


def test_equal_sides_print_nothing_and_status_is_0(run: Run) -> None:
    same("a", "b")
    assert run("diff", "a", "b", "-c") == Done(0, b"", "")
    assert run("diff", "a", "a.data") == Done(0, b"", "")


def test_stat_counts_files_and_bytes(run: Run) -> None:
    same("a", "b")
    stored.change("b", {"d/000": None, "d/001": b"longer", "e": b"12345"})
    assert run("diff", "a", "b", "--stat").out == (
        b"1 added (5 B), 1 removed (1 B), 1 modified (6 B), 38 equal\n"
    )
    done = run("diff", "a", "b", "--stat", "--json")
    assert done.status == 1
    assert json.loads(done.out) == {
        "added": 1, "removed": 1, "modified": 1, "type": 0, "equal": 38,
        "added_bytes": 5, "removed_bytes": 1, "modified_bytes": 6,
    }  # fmt: skip


def test_json_is_an_object_a_line(run: Run) -> None:
    same("a", "b")
    with winkfs.open("b", "a") as b:
        b.utime("d/002", mtime_ns=1)
        b.put(b"\xff", b"1", mode=0o600, uid=1, gid=2, mtime=3)
    first, second = map(json.loads, run("diff", "a", "b", "--json").out.splitlines())
    mine = {"type": "file", "size": 1, "mode": "0644", "uid": os.getuid(), "gid": os.getgid()}
    assert first == {
        "change": "modified", "name": "d/002", "what": ["mtime"],
        "a": mine | {"mtime_ns": 1000 * 10**9}, "b": mine | {"mtime_ns": 1},
    }  # fmt: skip
    assert os.fsencode(second["name"]) == b"\xff"
    assert second["change"] == "added" and "a" not in second
    assert second["b"] == {"type": "file", "size": 1, "mtime_ns": 3 * 10**9, "mode": "0600",
                           "uid": 1, "gid": 2}  # fmt: skip


def test_a_tree_its_containers_its_tar_and_a_copy_are_equal(run: Run, tree: Path) -> None:
    assert run("pack", tree, "c").status == 0
    assert run("pack", tree, "set", "--shards", "2").status == 0
    subprocess.run(["tar", "--format=pax", "-czf", "t.tgz", "-C", tree, "."], check=True)
    assert run("unpack", "c", "again", "-p").status == 0
    sides = [tree, "c", "set", "t.tgz", "again"]
    for one in sides:
        for other in sides:
            assert run("diff", one, other, "-c") == Done(0, b"", ""), (one, other)
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")
    os.utime(tree / "docs/a.html", ns=(1, 1))
    (tree / "empty dir").rmdir()
    for other in sides[1:]:
        assert lines(run("diff", other, tree, "-c", "--exclude", "Gr*")) == [
            "M docs/a.html\tcontent, mtime", "- empty dir",
        ]  # fmt: skip


def test_a_tar_on_standard_input_and_with_hard_links(run: Run, tree: Path) -> None:
    os.link(tree / "large", tree / "zlarge")
    assert run("pack", tree, "c").status == 0
    data = subprocess.run(
        ["tar", "--format=pax", "-c", "-C", tree, "."], check=True, capture_output=True
    ).stdout
    assert run("diff", "c", "-", "-c", stdin=b"").status == 1
    done = subprocess.run([*PROGRAM, "diff", "c", "-", "-c"], input=data, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with winkfs.open("c", "a") as c:
        old = c.stat("zlarge")
        c.put("zlarge", bytes(old.size), mtime_ns=old.mtime_ns)
    Path("t.tar").write_bytes(data)
    assert lines(run("diff", "c", "t.tar", "-c")) == ["M zlarge\tcontent"]


def test_the_last_member_of_a_name_counts(run: Run) -> None:
    stored.make("c", [("a", b"new", 7)])
    with tarfile.open("t.tar", "w", format=tarfile.PAX_FORMAT) as file:
        for data, headers in (b"old", {"SCHILY.xattr.user.a": "1"}), (b"new", {}):
            member = tarfile.TarInfo("a")
            member.size, member.mtime, member.pax_headers = len(data), 7, headers
            member.mode, member.uid, member.gid = 0o644, os.getuid(), os.getgid()
            file.addfile(member, io.BytesIO(data))
    assert run("diff", "c", "t.tar", "-c") == Done(0, b"", "")


def test_attributes_at_equal_places_of_two_containers(run: Run) -> None:
    for base in "a", "b":
        with winkfs.create(base) as c:
            c.put("f", b"", mtime=1)
            c.setxattrs("f", {b"user.a": base.encode()})
    assert lines(run("diff", "a", "b")) == ["M f\txattrs"]
    assert run("backup", "a", "d").status == 0
    with winkfs.open("a", "a") as c:
        c.setxattrs("f", {b"user.a": b"c"})
    assert lines(run("diff", "a", "d")) == ["M f\txattrs"]


def test_a_change_in_the_moment_of_the_last_pack_is_doubted() -> None:
    """A file whose ctime is that moment may have changed after it was read."""
    names, size, mtime = [b"a", b"b", b"c", b"d"], 5, 10

    class Plain:
        unit, attrs, columns = 1, True, frozenset[str]()

        def __init__(self, content: bytes) -> None:
            self._content = content

        def tables(self) -> Iterator[FileTable]:
            facts = [(size, mtime, ctime, FileType.FILE, 0o644, 0, 0) for ctime in (7, 8, 9, 1)]
            yield table_by_name(names, facts)

        def has_below(self, directory: bytes) -> bool:
            return False

        def xattrs(self, rows: FileTable) -> dict[bytes, dict[bytes, bytes]]:
            return {}

        def digests(self, rows: FileTable) -> dict[bytes, bytes]:
            return dict.fromkeys(rows.names, self._content)

    comparison = Comparison(Plain(b"old"), Plain(b"new"), doubt=(8, 3))
    assert [change.name for change in comparison.changes()] == [b"b", b"c", b"d"]
    assert comparison.doubts == 3


def test_a_hard_link_to_nothing_in_a_tar_is_reported(run: Run) -> None:
    with tarfile.open("t.tar", "w") as tar:
        info = tarfile.TarInfo("b")
        info.type, info.linkname = tarfile.LNKTYPE, "gone"
        tar.addfile(info)
    assert run("pack", "t.tar", "c").status == 1
    assert "b: a hard link to gone" in one_line(run("diff", "t.tar", "c"))


def test_classic_containers_are_compared_by_what_they_keep(run: Run, tree: Path) -> None:
    assert run("pack", tree, "c", "--classic").status == 0
    assert run("diff", tree, "c") == Done(0, b"", "")
    (tree / "docs/a.html").chmod(0o755)
    (tree / "docs/old/b.html").chmod(0o600)
    assert lines(run("diff", tree, "c")) == ["M docs/a.html\tmode"]


def test_generations_of_a_data_set(run: Run) -> None:
    data_sets.put("ds", {"a": b"1", "b": b"1"})
    data_sets.put("ds", {"b": b"22", "c": b"1"})
    generation = winkfs.open("ds").generation  # type: ignore[attr-defined]
    old = str(generation - 1)
    expected = ["M b\tsize, mtime", "+ c"]
    for args in ["ds", "--as-of", f"{old}..{generation}"], ["ds", "--as-of", old]:
        assert lines(run("diff", *args)) == expected
    assert lines(run("diff", "ds", "ds", "--as-of", f"{old}..")) == expected
    assert run("diff", "ds", "ds", "--as-of", f"{old}..{old}").status == 0
    stored.make("c", {"a": b"1"})
    assert lines(run("diff", "ds", "c", "--as-of", old, "--content-only")) == ["- b"]
    assert "generations" in one_line(run("diff", "c", "--as-of", "1..2"))


def test_columns_and_attributes_of_data_sets(run: Run) -> None:
    typed = {"lang": "string"}
    for base in "a", "b":
        with winkfs.create(base, columns=typed) as c:
            c.put_many((f"{i}", b"", 1, {"lang": "de"}) for i in range(9))
        winkfs.dataset.create(f"{base}s").close()
        rows = [(f"{i}", b"", 1, {"lang": "de"}) for i in range(9)]
        data_sets.commit(f"{base}s", [lambda c, rows=rows: c.put_many(rows)], columns=typed)
    assert run("diff", "a", "b").status == run("diff", "as", "bs").status == 0
    assert run("diff", "as", "b") == Done(0, b"", "")

    def change(c: winkfs.Container) -> None:
        c.put_many([("3", b"", 1, {"lang": "fr"}), ("4", b"", 1, {"lang": "de"})])
        c.setxattrs("4", {**c.getxattrs("4"), b"trusted.a": b"1"})

    with winkfs.open("b", "a") as b:
        change(b)
    data_sets.commit("bs", [change], columns=typed)
    assert lines(run("diff", "a", "b")) == ["M 3\tcolumns", "M 4\txattrs"]
    assert lines(run("diff", "a", "bs")) == ["M 3\tcolumns", "M 4\txattrs"]


def test_directories_without_an_entry_are_not_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t/d/e").mkdir(parents=True)
    (tmp_path / "t/d/e/f").write_bytes(b"1")
    (tmp_path / "t/d/empty").mkdir()
    os.utime(tmp_path / "t/d/e/f", (1, 1))
    stored.make("c", [("d/e/f", b"1", 1)])
    assert lines(run("diff", "c", "t")) == ["+ d/empty"]
    assert lines(run("diff", "t", "c")) == ["- d/empty"]


def test_damage_is_reported_and_the_rest_compared(run: Run) -> None:
    same("a", "b")
    stored.make("a", [("d/041", b"content of it", 1)], exist_ok=True)
    stored.make("b", [("d/041", b"content of it", 1), ("f", b"", 1)], exist_ok=True)
    stored.flip_text("b.data", b"content of it")
    done = run("diff", "a", "b", "-c")
    assert (done.status, lines(done)) == (1, ["+ f"])
    assert "d/041" in done.err and done.err.count("\n") == 1
    stored.change("b", {"f": None})
    assert run("diff", "a", "b", "-c").status == 1


def test_a_truncated_tar_is_status_1(run: Run, tree: Path) -> None:
    subprocess.run(["tar", "-cf", "t.tar", "-C", tree, "."], check=True)
    os.truncate("t.tar", os.path.getsize("t.tar") // 2)
    done = run("diff", "t.tar", "t.tar")
    assert done.status == 1 and done.out == b"" and "t.tar: " in done.err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["a"], "--as-of 3..5"),
        (["a", "both"], "both/ or both.data"),
        (["a", "-", "--as-of", "x..y"], ""),
        (["t/", "a", "--as-of", "1"], "--as-of is for data sets"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, tmp_path: Path, args: list[str], text: str) -> None:
    same("a", "both")
    (tmp_path / "both").mkdir()
    (tmp_path / "t").mkdir()
    done = run("diff", *args)
    assert done.status in (1, 2) and text in done.err and done.err.count("\n") == 1
    assert run("diff", "both/", "t") == Done(0, b"", "")
    assert run("diff", "both.data", "a") == Done(0, b"", "")


def test_what_is_not_there_is_one_line(run: Run) -> None:
    same("a", "b")
    assert "nothing" in one_line(run("diff", "a", "nothing"))
    Path("text").write_text("no tar file at all\n" * 99)
    assert "not a tar file" in one_line(run("diff", "a", "text"))


def test_a_terminal_gets_escaped_names(run: Run, tmp_path: Path) -> None:
    stored.make("a")
    stored.make("b", {"\x1b[31m\n": b""})
    code = "import sys; from winkfs.cli import main; main(sys.argv[1:])"
    shown = on_a_terminal("stdout", PROGRAM[0], "-c", code, "diff", "a", "b", cwd=tmp_path)
    assert shown == b"+ \\x1b[31m\\n\r\n"


def test_many_names_that_differ_here_and_there(run: Run) -> None:
    """Merged in parts; some names are longer than those that arrays hold."""
    names = [f"{i % 7}/{i:06}" + "x" * (300 if i % 1000 == 0 else i % 50) for i in range(20_000)]
    stored.make("a", [(name, b"1", 1) for i, name in enumerate(names) if i % 11])
    stored.make("b", [(name, b"1", 1 + (i % 13 == 0)) for i, name in enumerate(names) if i % 17])
    expected = []
    for i, name in sorted(enumerate(names), key=lambda pair: pair[1].encode()):
        if i % 11 and i % 17:
            expected += [f"M {name}\tmtime"] if i % 13 == 0 else []
        elif i % 11 or i % 17:
            expected.append(f"{'-' if i % 11 else '+'} {name}")
    assert lines(run("diff", "a", "b")) == expected


def test_contents_that_cannot_be_read_to_the_end_are_noted() -> None:
    def ended(count: int) -> bytes:
        raise Unreadable("became shorter")

    notes: list[Note] = []
    meta = Meta(0, 0o644, 0, 0, None)
    torn = Large(b"torn", Content(ended, 2, None), 2, meta)
    row = Row(b"whole", b"1", 0)
    assert [name for name, _ in _digested([torn, row], notes.append)] == [b"whole"]
    assert notes == [Note(b"torn", "became shorter", True)]
