"""unpack: which files, under which names, and what becomes of files that are there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import stored
from commands import PROGRAM, Run, on_a_terminal, one_line
from data_sets import put
from trees import DIR

import winkfs
from winkfs.archive.items import Note
from winkfs.archive.renaming import renaming, transform
from winkfs.archive.unpack import SAME_PATH, unpack
from winkfs.archive.unpacker import Existing

NAMES = ("a.txt", "docs/a.html", "docs/old/b.html", "docs/old/c.txt", "img/x.png")
OLD, NEW = 1_500_000_000, 1_600_000_000


@pytest.fixture
def some(run: Run) -> str:
    """A container of NAMES, each with its name as content."""
    with winkfs.create("c") as c:
        for name in NAMES:
            c.put(name, name.encode(), mtime=NEW)
    return "c"


def paths(folder: str | Path) -> set[str]:
    found = Path(folder).rglob("*")
    return {str(path.relative_to(folder)) for path in found if not path.is_dir()}


CHOICES = [
    (["docs/*"], {"docs/a.html", "docs/old/b.html", "docs/old/c.txt"}),
    (["*.png", "a.txt"], {"img/x.png", "a.txt"}),
    (["--exclude", "docs"], {"a.txt", "img/x.png"}),
    (["--exclude", "*.txt", "--exclude", "x.*"], {"docs/a.html", "docs/old/b.html"}),
    (["docs/*", "--exclude", "old"], {"docs/a.html"}),
    (["--strip-components", "1"], {"a.html", "old/b.html", "old/c.txt", "x.png"}),
    (["docs/old/*", "--strip-components", "2"], {"b.html", "c.txt"}),
    (["--transform", "s/^docs/pages/", "docs/*"],
     {"pages/a.html", "pages/old/b.html", "pages/old/c.txt"}),
    (["--transform", "s,.*/,,", "--transform", "s/A/z/i"],
     {"z.txt", "z.html", "b.html", "c.txt", "x.png"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), CHOICES)
def test_which_files_and_under_which_names(
    run: Run, some: str, options: list[str], expected: set[str]
) -> None:
    assert run("unpack", some, "out", *options) == (0, b"", "")
    assert paths("out") == expected
    listed = run("unpack", some, "new", *options, "-n")
    assert set(listed.out.decode().split()) == expected and not Path("new").exists()
    assert set(run("unpack", some, "v", *options, "-v").out.decode().split()) == expected
    tar = subprocess.run(
        ["tar", "t"], input=run("unpack", some, "--tar", "-", *options).out, capture_output=True,
        check=True,
    )  # fmt: skip
    assert set(tar.stdout.decode().split()) == expected


def test_the_same_choices_of_a_data_set(run: Run, tmp_path: Path) -> None:
    put(tmp_path / "set", {name: name.encode() for name in NAMES})
    for options, expected in CHOICES[:5]:
        assert run("unpack", "set", "out", *options).status == 0
        assert paths("out") == expected
        subprocess.run(["rm", "-r", "out"], check=True)


def test_names_from_a_list(run: Run, some: str) -> None:
    done = run("unpack", some, "out", "--files-from", "-", stdin=b"./a.txt\nimg/x.png\n")
    assert done == (0, b"", "")
    assert paths("out") == {"a.txt", "img/x.png"}
    done = run("unpack", some, "two", "--files-from", "-", stdin=b"a.txt\0no\0")
    assert (done.status, done.err) == (1, "winkfs: no: no such file in the store\n")
    assert paths("two") == {"a.txt"}
    assert "globs" in one_line(run("unpack", some, "x", "a*", "--files-from", "-"), 2)


def test_each_glob_without_a_match_is_reported(run: Run, some: str) -> None:
    done = run("unpack", some, "out", "img/*", "no*", "nothing")
    assert done.status == 1 and paths("out") == {"img/x.png"}
    assert done.err == "winkfs: no*: no name matches\nwinkfs: nothing: no such file in the store\n"


def test_contents_go_to_standard_output(run: Run, some: str, tmp_path: Path) -> None:
    done = run("unpack", some, "-O", "docs/old/*")
    assert (done.status, done.out) == (0, b"docs/old/b.htmldocs/old/c.txt")
    assert {name.partition(".")[0] for name in os.listdir(tmp_path)} == {"c"}


def test_two_files_of_one_new_name_are_not_both_written(
    run: Run, some: str, notes: list[Note]
) -> None:
    report = unpack(some, "out", transforms=["s/.*/same/"], note=notes.append)
    assert (report.files, report.failed) == (1, len(NAMES) - 1)
    assert {note.what for note in notes} == {SAME_PATH}
    assert unpack(some, "out", transforms=["s/.*/same/"], note=notes.append).failed == 4


def test_a_renamed_file_is_below_the_directory(run: Run, some: str, tmp_path: Path) -> None:
    assert run("unpack", some, "out/in", "--transform", "s,^,../../,").status == 0
    assert set(os.listdir(tmp_path / "out")) == {"in"}


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("s/a/b/", "banana", "bbnana"),
        ("s/a/b/g", "banana", "bbnbnb"),
        ("s/a/b/2", "banana", "banbna"),
        ("s/a/b/2g", "banana", "banbnb"),
        ("s/A/b/gi", "banana", "bbnbnb"),
        ("s,a/b,x,", "a/b/c", "x/c"),
        (r"s/a\/b/x/", "a/b/c", "x/c"),
        (r"s/\(.*\)\.txt/\1.md/", "a.txt", "a.md"),
        (r"s/(a)+/<&>/", "b(a)+", "b<(a)+>"),
        (r"s/(a)+/<&\1>/x", "baac", "b<aaa>c"),
        (r"s/a\+/x/", "baac", "bxc"),
        (r"s/a\{2\}/x/", "aaa", "xa"),
        (r"s/a{2}/x/", "a{2}", "x"),
        ("s/^*/x/", "*a", "xa"),
        ("s/a^b$c/x/", "a^b$c", "x"),
        ("s/c$/x/", "cc", "cx"),
        ("s/[[:digit:]]\\+/N/g", "a12b3", "aNbN"),
        ("s/[]a]/x/g", "a]b", "xxb"),
        (r"s/[\.]/x/g", r"a.\b", "axxb"),
        ("s/[^/]*$/x/", "a/b", "a/x"),
        (r"s/a/\&\\/", "a", "&\\"),
        ("s/./x/g", "é\n", "xx"),
        ("s/a//", "a", ""),
    ],
)
def test_an_expression_of_sed(expression: str, name: str, expected: str) -> None:
    assert transform(expression)(name) == expected
    if "\n" not in name and not expression.endswith(("x", "[^/]*$/x/")):
        done = subprocess.run(["sed", expression], input=name, capture_output=True, text=True,
                              check=True, env=os.environ | {"LC_ALL": "C.UTF-8"})  # fmt: skip
        assert done.stdout.rstrip("\n") == expected


@pytest.mark.parametrize(
    "expression",
    ["", "s", "s/a", "s/a/b", "y/a/b/", "s/a/b/q", "s/a/b/0", r"s/\(a/b/", r"s/a/\1/", "s/[a/b/",
     "s/[[:no:]]/b/", r"s/a/\Ub/", "s/a/b/g/", "a"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(run: Run, some: str, expression: str) -> None:
    assert repr(expression) in one_line(run("unpack", some, "out", "--transform", expression))
    assert not Path("out").exists()


def test_names_without_a_change_have_no_renaming() -> None:
    assert renaming(0, []) is None


# --- what is there ---


@pytest.fixture
def there(run: Run, some: str) -> str:
    """A directory with an older and a newer file."""
    os.makedirs("out/docs")
    for name, data, mtime in ("a.txt", b"older", OLD), ("docs/a.html", b"newer", NEW + 9):
        Path("out", name).write_bytes(data)
        os.utime(Path("out", name), (mtime, mtime))
    return "out"


@pytest.mark.parametrize(
    ("option", "status", "a", "html"),
    [
        ("", 1, b"older", b"newer"),
        ("--skip-existing", 0, b"older", b"newer"),
        ("--keep-newer", 0, b"a.txt", b"newer"),
        ("--force", 0, b"a.txt", b"docs/a.html"),
    ],
)
def test_what_becomes_of_files_that_are_there(
    run: Run, some: str, there: str, option: str, status: int, a: bytes, html: bytes
) -> None:
    options = [option] if option else []
    preview = json.loads(run("unpack", some, there, *options, "-n", "--json").out)
    done = run("unpack", some, there, *options, "--json")
    record = json.loads(done.out)
    assert (done.status, record["directory"]) == (status, there)
    assert preview == record
    assert record["kept"] == {"--skip-existing": 2, "--keep-newer": 1}.get(option, 0)
    assert (Path(there, "a.txt").read_bytes(), Path(there, "docs/a.html").read_bytes()) == (a, html)
    assert Path(there, "img/x.png").read_bytes() == b"img/x.png"
    assert "one of" in one_line(run("unpack", some, "x", "--force", "--keep-newer"), 2)


def test_a_directory_in_the_place_of_a_file_stays(run: Run, some: str) -> None:
    os.makedirs("out/a.txt")
    Path("out/img").write_bytes(b"a file")
    for existing in Existing:
        assert unpack(some, "out", existing=existing).failed == 2
    assert Path("out/a.txt").is_dir() and Path("out/img").read_bytes() == b"a file"


def test_unpack_ends_with_a_line_on_a_terminal(some: str, tmp_path: Path) -> None:
    shown = on_a_terminal("stderr", *PROGRAM, "unpack", some, "out", cwd=tmp_path)
    assert b"5 files: 54 B in" in shown
    shown = on_a_terminal("stderr", *PROGRAM, "unpack", some, "out", cwd=tmp_path)
    assert b"0 files, 5 unchanged: 0 B in" in shown
    assert on_a_terminal("stderr", *PROGRAM, "unpack", "-q", some, "out", cwd=tmp_path) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owners_are_given_unless_they_are_not_wanted(run: Run) -> None:
    with winkfs.create("c") as c:
        c.put("f", b"1", uid=7, gid=8)
    for command in (["unpack", "c", "out"], ["get", "c", "f", "new/"]):
        for options, uid in (["--no-same-owner"], 0), ([], 7):
            assert run(*command, *options).status == 0
            (path,) = Path(command[-1]).iterdir()
            assert path.stat().st_uid == uid
            path.unlink()


def test_excluded_files_are_not_read(run: Run, some: str) -> None:
    stored.flip_text("c.data", b"img/x.png/I0", 40)
    assert run("unpack", some, "out", "--exclude", "img").status == 0
    assert run("unpack", some, "out").status == 1


def test_a_directory_entry_alone_from_a_list(run: Run) -> None:
    with winkfs.create("c") as c:
        c.put("d", b"", ftype=DIR, mode=0o700)
        c.put("d/f", b"1")
    assert run("unpack", "c", "out", "-n").out == b"d\nd/f\n"
    assert run("unpack", "c", "all", "-v").out == b"d\nd/f\n"
    assert run("unpack", "c", "out", "--files-from", "-", stdin=b"d/\n").status == 0
    assert os.listdir("out/d") == [] and Path("out/d").stat().st_mode & 0o777 == 0o700
