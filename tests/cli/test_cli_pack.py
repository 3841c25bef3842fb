"""pack: which files it takes, dry runs, names on standard output."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from commands import Run
from commands import run as run

import winkfs

NAMES = ["a", "a/1.txt", "a/2.py", "b", "b/c", "b/c/3.txt", "b/4"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "tree" / name
        if name in ("a", "b", "b/c"):
            path.mkdir(parents=True)
        else:
            path.write_text(name)
    return tmp_path / "tree"


def names(base: str) -> list[str]:
    with winkfs.open(base) as c:
        return sorted(c)


@pytest.mark.parametrize("more", [[], ["--shards", "2"], ["--ao"]])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--include", "*.txt"], ["a/1.txt", "b/c/3.txt"]),
        (["--include", "c"], ["b/c", "b/c/3.txt"]),
        (["--include", "a", "--include", "4", "--exclude", "*.py"], ["a", "a/1.txt", "b/4"]),
        (["--include", "nothing"], []),
    ],
)
def test_include(run: Run, tree: Path, more: list[str], given: list[str], found: list[str]) -> None:
    listed = run("pack", "-n", *more, *given, tree, "c")
    assert sorted(listed.out.decode().split()) == found and not list(Path().glob("c*"))
    done = run("pack", "-v", *more, *given, tree, "c")
    assert done.status == 0 and sorted(done.out.decode().split()) == found
    assert names("c") == found


def test_include_of_an_archive(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        for name in NAMES:
            file.writestr(name, name)
    done = run("pack", "-v", "z.zip", "c", "--include", "*.txt", "--exclude", "b")
    assert done.out == b"a/1.txt\n" and names("c") == ["a/1.txt"]


@pytest.mark.parametrize("kind", [[], ["--shards", "2"]])
def test_dry_run_of_an_update_lists_what_is_stored(run: Run, tree: Path, kind: list[str]) -> None:
    run("pack", *kind, tree, "c")
    (tree / "b/4").write_text("other content")
    (tree / "new").write_text("1")
    for _ in range(2):
        done = run("pack", "-n", "--update", tree, "c")
        assert {"b/4", "new"} <= set(done.out.decode().split()) <= {"b/4", "new", "b"}
        assert names("c") == sorted(NAMES)
    counts = json.loads(run("pack", "-n", "--update", "--json", tree, "c").out)
    assert counts["files"] == 2
    assert run("pack", "-v", "--update", tree, "c").out.decode().split() >= ["b/4", "new"]
    assert names("c") == sorted([*NAMES, "new"])


def test_dry_run_writes_nothing_and_reports(run: Run, tree: Path) -> None:
    (tree / "odd").symlink_to("a")
    assert run("pack", "-n", tree, "c").out.count(b"\n") == len(NAMES) + 1
    assert run("pack", tree, "c").status == 0
    before = Path("c.data").read_bytes()
    done = run("pack", "-n", tree, "c")
    assert done.status == 1 and "exists already" in done.err
    assert Path("c.data").read_bytes() == before


def test_null_ends_the_names_of_a_list(run: Run, tree: Path) -> None:
    (tree / "line\nfeed").write_text("1")
    Path("list").write_bytes(b"line\nfeed\0a/1.txt\0")
    assert run("pack", "-0", "--files-from", "list", tree, "c").status == 0
    assert names("c") == ["a/1.txt", "line\nfeed"]
    Path("one").write_bytes(b"line\nfeed")  # without an end
    assert run("pack", "--null", "--files-from", "one", tree, "d").status == 0
    assert names("d") == ["line\nfeed"]
    assert run("pack", "-0", tree, "e").status == 2


def test_verbose_is_quiet_in_json(run: Run, tree: Path) -> None:
    assert json.loads(run("pack", "-v", "--json", tree, "c").out)["files"] == 4
