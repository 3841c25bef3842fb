"""The command sync: a container becomes equal to a directory, a tar file or a store."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import stored
import trees
from commands import Done, Run, one_line

import winkfs

pytestmark = pytest.mark.slow

tree = trees.tree  # a fixture
NOTHING = Done(0, b"", "")


def size(base: str = "c") -> int:
    return os.path.getsize(f"{base}.data")


def test_a_tree_is_synced_and_again_nothing_is_written(run: Run, tree: Path) -> None:
    assert run("sync", tree, "c") == NOTHING
    assert run("diff", tree, "c", "-c") == NOTHING
    assert run("sync", tree, "c", "-n") == NOTHING  # maybe reads what is new
    before = size()
    assert run("sync", tree, "c", "--delete", "-v") == NOTHING
    assert size() == before
    assert winkfs.verify("c").problems == []


def test_changes_are_carried_out_and_printed(run: Run, tree: Path) -> None:
    assert run("sync", tree, "c") == NOTHING
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")  # as long as before
    (tree / "secret").chmod(0o640)
    (tree / "empty").unlink()
    (tree / "new").write_bytes(b"new")
    (tree / "link").unlink()
    (tree / "link").mkdir()
    expected = (
        b"M docs/a.html\tcontent, mtime\n- empty\nT link\tlink -> directory\n+ new\n"
        b"M secret\tmode\n"
    )
    before = size()
    assert run("sync", tree, "c", "--delete", "-n").out == expected
    assert size() == before
    assert run("sync", tree, "c", "--delete", "-v") == Done(0, expected, "")
    assert run("diff", tree, "c", "-c") == NOTHING
    assert run("sync", tree, "c", "--delete", "-v") == NOTHING


@pytest.mark.parametrize("made", [("sync",), ("pack", "--shards", "2")])
def test_a_change_that_keeps_size_and_mtime_is_found(
    run: Run, tree: Path, made: tuple[str, ...]
) -> None:
    assert run(*made, tree, "c") == NOTHING
    path = tree / "docs/a.html"
    status = path.stat()
    path.write_bytes(b"<p>c</p>")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run("sync", tree, "c", "-v").out == b"M docs/a.html\tcontent\n"
    assert stored.read("c", "docs/a.html") == b"<p>c</p>"


def test_names_stay_without_delete_and_what_is_left_out(run: Run, tree: Path) -> None:
    assert run("sync", tree, "c", "--exclude", "docs") == NOTHING
    names = stored.names("c")
    assert "large" in names and "docs" not in names
    stored.change("c", {"mine": b"1", "docs/mine": b"2"})
    assert run("sync", tree, "c") == NOTHING
    assert {"mine", "docs/mine", "docs/a.html"} <= set(stored.names("c"))
    assert run("sync", tree, "c", "--delete", "--exclude", "docs", "-v").out == b"- mine\n"
    assert run("sync", tree, "c", "--delete", "--include", "*.mine", "-v") == NOTHING
    assert run("sync", tree, "c", "--delete", "-v").out == b"- docs/mine\n"


def test_another_type_is_in_the_way_without_delete(run: Run, tree: Path) -> None:
    assert run("sync", tree, "c") == NOTHING
    (tree / "secret").unlink()
    (tree / "secret").symlink_to("large")
    done = run("sync", tree, "c", "-v")
    assert (done.status, done.out) == (1, b"")
    assert "secret: a file is in the place of this link: --delete removes it" in done.err
    assert run("sync", tree, "c", "--delete", "-v").out == b"T secret\tfile -> link\n"


def test_nothing_is_deleted_for_an_empty_source(run: Run, tree: Path, tmp_path: Path) -> None:
    assert run("sync", tree, "c") == NOTHING
    (tmp_path / "none").mkdir()
    assert "--force removes all files" in one_line(run("sync", "none", "c", "--delete"))
    assert len(stored.names("c")) > 9
    assert run("sync", "none", "c", "--delete", "--force") == NOTHING
    assert stored.names("c") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
def test_nothing_is_deleted_after_an_error(run: Run, tree: Path) -> None:
    assert run("sync", tree, "c") == NOTHING
    (tree / "empty").unlink()
    (tree / "docs").chmod(0)
    assert run("sync", tree, "c", "--delete").status == 1
    (tree / "docs").chmod(0o755)
    assert {"empty", "docs/a.html"} <= set(stored.names("c"))


def test_a_tar_is_synced(run: Run, tree: Path) -> None:
    os.link(tree / "large", tree / "zlarge")
    command = ["tar", "--format=pax", "-cf", "t.tar", "-C", str(tree), "."]
    subprocess.run(command, check=True)
    assert run("sync", "t.tar", "c") == NOTHING
    assert run("diff", "t.tar", "c", "-c") == run("diff", tree, "c", "-c") == NOTHING
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")
    (tree / "empty").unlink()
    subprocess.run(command, check=True)
    done = run("sync", "t.tar", "c", "-v", "--delete")
    assert done.out == b"M docs/a.html\tcontent, mtime\n- empty\n"
    assert run("diff", tree, "c", "-c") == NOTHING


def test_a_store_is_synced_with_its_columns_and_holes(run: Run, tree: Path) -> None:
    assert run("pack", tree, "a").status == 0
    with winkfs.open("a", "a") as a:
        a.add_columns({"lang": "string"})
        a.setcolumns("docs/a.html", {"lang": "de"})
        a.put("hole", b"")
        a.truncate("hole", 9 << 20)
        a.write("hole", 5 << 20, b"x")
    assert run("sync", "a", "b") == NOTHING
    assert run("diff", "a", "b", "-c") == NOTHING
    with winkfs.open("b") as b:
        assert b.getcolumns("docs/a.html") == {"lang": "de"}
    assert size("b") < 9 << 20
    stored.change("a", {"empty": None, "new": b"1"})
    assert run("sync", "a", "b", "-v", "--delete").out == b"- empty\n+ new\n"
    assert run("diff", "a", "b", "-c") == NOTHING
    assert run("pack", tree, "set", "--shards", "2").status == 0
    assert run("sync", "set", "d").status == 0
    assert run("diff", "set", "d", "-c") == NOTHING


def test_json_has_the_counts(run: Run, tree: Path) -> None:
    record = json.loads(run("sync", tree, "c", "--json").out)
    assert record["source"] == str(tree) and record["base"] == "c"
    assert record["files"] == 8 and record["links"] == 2 and record["failed"] == 0


def test_append_only_containers_take_what_is_newer(run: Run, tree: Path) -> None:
    assert run("pack", "--ao", tree, "c").status == 0
    (tree / "new").write_bytes(b"1")
    (tree / "newer").write_bytes(b"2")
    assert run("sync", tree, "c", "--exclude", "tree").status == 0
    assert run("diff", tree, "c", "-c") == NOTHING


def test_a_container_far_away_is_refused_in_one_line(run: Run, tree: Path) -> None:
    assert one_line(run("sync", tree, "s3://bucket/c"))
