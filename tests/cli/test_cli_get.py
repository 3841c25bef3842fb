"""The command get: files and directories of a store to a path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import stored
from commands import Run, one_line
from data_sets import put

import winkfs

DIR, LINK = winkfs.FileType.DIR, winkfs.FileType.LINK


@pytest.fixture
def base(run: Run) -> str:
    with winkfs.create("c") as c:
        c.put("a.txt", b"a", mtime=1_000, mode=0o640)
        c.put("img", b"", ftype=DIR, mode=0o750, mtime=2_000)
        c.put("img/a.png", b"png", mtime=3_000)
        c.put("img/old/b.png", b"old", mtime=4_000)
        c.put("img/l", b"a.png", ftype=LINK)
        c.put("imgx", b"no", mtime=5_000)
    return "c"


def tree(folder: str = "out") -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*")}


def test_a_file_to_a_path(run: Run, base: str) -> None:
    assert run("get", base, "a.txt", "b.txt") == (0, b"", "")
    found = Path("b.txt").stat()
    assert (found.st_mtime, found.st_mode & 0o777) == (1_000, 0o640)
    assert run("get", base, "img/a.png") == (0, b"", "")
    assert Path("a.png").read_bytes() == b"png" and not Path("img").exists()


def test_a_file_that_is_there_is_replaced(run: Run, base: str) -> None:
    for content in (b"png", b"another", b""):
        Path("a.png").write_bytes(content)
        assert run("get", base, "img/a.png", "./") == (0, b"", "")
        assert (Path("a.png").read_bytes(), Path("a.png").stat().st_mtime) == (b"png", 3_000)


@pytest.mark.parametrize("base", ["c", "set"])
def test_a_damaged_file_costs_itself(run: Run, base: str) -> None:
    files = {f"d/f{i}": b"content %d" % i for i in range(5)}
    stored.make("c", files)
    put("set", files)
    (data,) = Path("set").glob("*/*.data") if base == "set" else [Path("c.data")]
    stored.flip_text(data, b"d/f0/I0", 27)
    rest = {"f1", "f2", "f3", "f4"}
    assert run("get", base, "d", "out/").status == 1 and tree() == {"d", *(f"d/{f}" for f in rest)}
    done = run("unpack", base, "some", "--files-from", "-", stdin=b"d/f0\nd/f1\n")
    assert done.status == 1 and tree("some") == {"d", "d/f1"}
    for command in ("find", "du"):
        done = run(command, base, "d/f0", "d/f1")
        assert done.status == 1 and done.out.endswith(b"d/f1\n")


@pytest.mark.parametrize("made", [False, True])
def test_several_names_go_into_a_directory(run: Run, base: str, made: bool) -> None:
    if made:
        os.mkdir("out")
    assert run("get", base, "img/a.png", "a.txt", "img/old", "out") == (0, b"", "")
    assert tree() == {"a.png", "a.txt", "old", "old/b.png"}


IMG = {"a.png", "l", "old", "old/b.png"}
BELOW = {"img"} | {f"img/{name}" for name in IMG}


@pytest.mark.parametrize(
    ("names", "path", "made", "expected"),
    [
        (["img"], "out", False, IMG),
        (["img"], "out", True, BELOW),
        (["img/"], "out/", False, BELOW),
        (["img", "a.txt"], "out", False, BELOW | {"a.txt"}),
        (["img/*"], "out", False, IMG),
        (["img/*.png"], "out", True, {"a.png", "old", "old/b.png"}),
        (["i*/a.png"], "out", False, {"img", "img/a.png"}),
        (["./img//a.png"], "out/", False, {"a.png"}),
    ],
)
def test_directories_and_globs(
    run: Run, base: str, names: list[str], path: str, made: bool, expected: set[str]
) -> None:
    if made:
        os.mkdir("out")
    assert run("get", base, *names, path) == (0, b"", "")
    assert tree() == expected
    if expected is not IMG or "*" in names[0]:  # now there is a directory: it would go into that
        assert run("get", base, *names, path) == (0, b"", "")
        assert tree() == expected
    if "img" in expected and "img/l" in expected:
        found = Path("out/img").stat()
        assert (found.st_mtime, found.st_mode & 0o777) == (2_000, 0o750)


def test_standard_output(run: Run, base: str) -> None:
    assert run("get", base, "a.txt", "img/*.png", "-") == (0, b"apngold", "")
    done = run("get", base, "img", "-")
    assert (done.status, done.out, done.err) == (1, b"", "winkfs: img: is a directory\n")
    assert "--json" in one_line(run("get", base, "a.txt", "-", "--json"), 2)


def test_a_path_that_is_also_a_name_is_refused(run: Run, base: str) -> None:
    """As where a PATH was forgotten."""
    Path("imgx").write_bytes(b"mine")
    assert "--force" in one_line(run("get", base, "a.txt", "imgx"))
    assert Path("imgx").read_bytes() == b"mine"
    assert run("get", base, "a.txt", "imgx", "--force").status == 0
    assert Path("imgx").read_bytes() == b"a"


def test_a_directory_and_a_file_do_not_replace_each_other(run: Run, base: str) -> None:
    os.makedirs("out/a.txt")
    Path("out/img").write_bytes(b"mine")
    done = run("get", base, "a.txt", "img", "out")
    assert done.status == 1 and "directory" in done.err
    assert Path("out/a.txt").is_dir() and Path("out/img").read_bytes() == b"mine"


def test_what_is_missing_is_reported_and_the_rest_comes(run: Run, base: str) -> None:
    done = run("get", base, "no", "a.txt", "x*", "out")
    assert done.status == 1 and tree() == {"a.txt"}
    assert done.err == "winkfs: no: no such file in the store\nwinkfs: x*: no name matches\n"
    one_line(run("get", base, "a.txt", "no/where"))


def test_two_names_with_one_last_part(run: Run, base: str) -> None:
    with winkfs.open(base, "a") as c:
        c.put("img/a.txt", b"second")
    done = run("get", base, "a.txt", "img/a.txt", "a.txt", "out")
    assert done.status == 1 and "img/a.txt" in done.err
    assert Path("out/a.txt").read_bytes() == b"a"


def test_damage_costs_its_file(run: Run, base: str) -> None:
    stored.flip_text("c.data", b"png", 1)
    done = run("get", base, "img", "out", "--json")
    record = json.loads(done.out)
    assert (done.status, record["files"], record["failed"], record["path"]) == (1, 1, 1, "out")
    assert "img/a.png" in [problem["name"] for problem in record["problems"]]


def test_of_a_data_set(run: Run, tmp_path: Path) -> None:
    put(tmp_path / "set", {"d/a": b"1", "d/b": b"2", "e": b"3"})
    put(tmp_path / "set", {"d/a": b"new"})
    assert run("get", "set", "d", "e", "out").status == 0
    assert stored.read("set", "d/a") == b"new" == Path("out/d/a").read_bytes()
    assert tree() == {"d", "d/a", "d/b", "e"}
    assert run("get", "set", "d/*", "-").out == b"2new"
