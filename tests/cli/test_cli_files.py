"""The commands for files in a container: ls, cat, put, append, rm, mv, stat."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
import stored
from commands import PROGRAM, Run, listed, on_a_terminal, one_line, session
from folders import unchanged
from seam import disk_calls, once

import winkfs
from winkfs.cli import listing

pytestmark = pytest.mark.slow


# --- ls ---


def test_ls_lists_the_bytes_of_names(run: Run, base: str) -> None:
    assert run("ls", base).out == (
        b"a*b\ncaf\xe9\n\x1b[31m\ndocs\ndocs/a.html\ndocs/old/b.html\nlink\nrun.sh\n"
    )


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("docs/*", ["docs/a.html", "docs/old/b.html"]),
        ("*.html", ["docs/a.html", "docs/old/b.html"]),
        ("docs", ["docs/a.html", "docs/old"]),
        ("docs/?.html", ["docs/a.html"]),
        ("a*b", ["a*b"]),
        ("[rl]*", ["link", "run.sh"]),
        ("docs/", ["docs/a.html", "docs/old"]),
        ("./docs/", ["docs/a.html", "docs/old"]),
        ("docs/old", ["docs/old/b.html"]),  # without an entry of its own
        ("docs//old/", ["docs/old/b.html"]),
        ("./run.sh", ["run.sh"]),
        ("/run.sh", ["run.sh"]),
        ("docs/./a.html", ["docs/a.html"]),
    ],
)
def test_ls_of_globs_and_of_paths_as_users_write_them(
    run: Run, base: str, argument: str, names: list[str]
) -> None:
    assert listed(run("ls", base, argument)) == names


@pytest.mark.parametrize("glob", ["nothing*", "nothing"])
def test_ls_of_nothing_is_an_error(run: Run, base: str, glob: str) -> None:
    assert glob in one_line(run("ls", base, glob))


@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--since", "2000", "--until", "4000"], ["b", "c"]),
        (["--since", "1970-01-01T00:33:20Z"], ["b", "c", "d"]),
        (["--until", "-1"], []),
        (["a", "--since", "1000"], ["a"]),
        (["a", "--since", "1001"], []),
        (["a", "--until", "1000"], []),
        (["?", "--since", "99999999999999999999"], []),
    ],
)
def test_ls_by_time(run: Run, ao: bool, args: list[str], names: list[str]) -> None:
    with winkfs.create("t", ao=ao) as c:
        for i, name in enumerate("abcd", 1):
            c.put(name, b"", mtime=1000 * i)
    assert listed(run("ls", "t", *args)) == names


def test_ls_long_is_like_that_of_ls(run: Run, base: str) -> None:
    lines = run("ls", base, "-l").out.splitlines()
    lines = [line for line in lines if b"[31m" not in line]  # has two
    assert lines[2].startswith(b"drwxr-xr-x 1 ")
    assert lines[4].startswith(b"-rw------- 1 ")
    assert lines[6].startswith(b"-rwxr-xr-x 1 ")
    assert lines[5].startswith(b"lrwxrwxrwx 1 ") and lines[5].endswith(b" link -> docs/a.html")
    when = datetime.fromtimestamp(2000).strftime("%Y-%m-%d %H:%M")
    assert lines[4].split()[4:] == [b"4", *when.encode().split(), b"docs/old/b.html"]


def test_ls_json_is_an_object_a_line_and_gives_odd_names_back(run: Run, base: str) -> None:
    done = run("ls", base, "--json")
    records = [json.loads(line) for line in done.out.decode("ascii").splitlines()]
    assert [os.fsencode(r["name"]) for r in records][1] == b"caf\xe9\n\x1b[31m"
    assert records[4] == {
        "name": "docs/old/b.html", "type": "file", "size": 4, "mtime": 2000,
        "mtime_ns": 2000 * 10**9, "mode": "0600", "uid": os.getuid(), "gid": os.getgid(),
        "fileid": 3,
    }  # fmt: skip
    assert records[5]["target"] == "docs/a.html"
    assert records[1]["mtime"] == -1.5


def test_ls_long_has_seconds_where_no_calendar_has_the_year(run: Run, base: str) -> None:
    with winkfs.open(base, "a") as c:
        c.put("soon", b"", mtime_ns=61 * 10**9)
    (line,) = run("ls", base, "-l", "soon").out.splitlines()
    when = datetime.fromtimestamp(61).strftime("%Y-%m-%d %H:%M")
    assert line.split()[5:7] == when.encode().split()
    assert listing._long(ord("f"), 0o644, 0, 0, "1", 2**63 * 10**9 + 7 * 10**9).split()[-1] == str(
        2**63 + 7
    )


ZONES = ("UTC", "America/St_Johns", "Asia/Kathmandu", "Africa/Monrovia", "Pacific/Apia",
         "Australia/Lord_Howe")  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("zone", ZONES)
def test_ls_long_has_the_time_of_the_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on days when its clocks change, or are a day ahead, and in years before zones."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    listing._day.cache_clear()
    try:
        steps = [*range(-(10**10), 10**10, 7_654_321), *range(10**9, 10**9 + 34_000_000, 1741)]
        for seconds in steps:
            expected = time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
            assert listing._when(seconds) == expected
    finally:
        monkeypatch.undo()
        time.tzset()
        listing._day.cache_clear()


def test_ls_on_a_terminal_escapes(run: Run, base: str) -> None:
    shown = on_a_terminal("stdout", *PROGRAM, "ls", base, "caf*")
    assert shown == b"caf\\xe9\\n\\x1b[31m\r\n"


# --- cat, put, append, rm, mv, stat ---


def test_cat_of_names_and_globs(run: Run, base: str) -> None:
    assert run("cat", base, "run.sh", "docs*", "a*b").out == b"#!<a><b>\nstar"


def test_cat_goes_on_after_a_missing_name(run: Run, base: str) -> None:
    done = run("cat", base, "gone", "run.sh", "docs")
    assert (done.status, done.out) == (1, b"#!")
    assert done.err.splitlines() == [
        "winkfs: c: gone: no such file in the container", "winkfs: c: docs: is a directory",
    ]  # fmt: skip


def test_cat_to_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    stored.make(tmp_path / "c", {"big": bytes(10_000_000)})
    command = " ".join(f"'{word}'" for word in [*PROGRAM, "cat", str(tmp_path / "c"), "big"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize("args", [[], ["-"]])
def test_put_and_append_from_standard_input(run: Run, base: str, args: list[str]) -> None:
    data = bytes(range(256)) * 10_000
    assert run("put", base, "new", *args, stdin=data) == (0, b"", "")
    assert run("append", base, "new", *args, stdin=data) == (0, b"", "")
    assert run("append", base, "fresh", *args, stdin=b"x") == (0, b"", "")
    assert run("cat", base, "new", "fresh").out == data + data + b"x"


def test_put_and_append_a_file(run: Run, base: str) -> None:
    Path("f").write_bytes(b"file")
    Path("f").chmod(0o755)
    before = time.time()
    assert run("put", base, "docs/a.html", "f").status == 0
    assert run("append", base, "docs/a.html", "f").status == 0
    with winkfs.open(base) as c:
        assert c.read("docs/a.html") == b"filefile"
        assert c.stat("docs/a.html").mode == 0o755
        assert c.stat("docs/a.html").mtime >= before - 0.1
    assert "f: " not in one_line(run("put", base, "x", "gone"))


@pytest.mark.parametrize("name", ["", "n" * 65_001])
def test_name_that_no_container_takes_is_one_line(run: Run, base: str, name: str) -> None:
    one_line(run("put", base, name))


def test_a_forbidden_append_names_the_reason(run: Run) -> None:
    stored.make("t", {"a": b"1", "b": b"1"}, ao=True)
    assert "append" in one_line(run("append", "t", "a", stdin=b"2"))
    assert run("cat", "t", "a").out == b"1"


def test_failed_append_leaves_the_file_as_it_was(run: Run, base: str) -> None:
    Path("f").write_bytes(bytes(20 << 20))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with disk_calls(once("preallocate", ".data", interrupt, nth=3)):
        assert run("append", base, "run.sh", "f").status == 130
    assert run("cat", base, "run.sh").out == b"#!"
    assert winkfs.verify(base).problems == []


def test_rm_by_name_and_glob(run: Run, base: str) -> None:
    assert run("rm", base, "-r", "docs*", "a*b") == (0, b"", "")
    assert listed(run("ls", base, "[a-z]*")) == ["caf\udce9", "\x1b[31m", "link", "run.sh"]
    done = run("rm", base, "gone", "run.sh", "none*")
    assert done.status == 1
    assert len(done.err.splitlines()) == 2
    assert "run.sh" not in listed(run("ls", base))
    assert winkfs.verify(base).problems == []


def test_name_with_a_star_is_not_taken_for_a_glob(run: Run, base: str) -> None:
    with winkfs.open(base, "a") as c:
        c.put("a-b", b"1")
    assert run("rm", base, "a*b").status == 0
    assert "a-b" in listed(run("ls", base))


def test_mv_of_a_file_and_over_one(run: Run, base: str) -> None:
    session(run, f"$ mv {base} run.sh 'new name'\n$ mv {base} 'new name' 'a*b'\n")
    assert run("cat", base, "a*b").out == b"#!"
    assert "run.sh" not in listed(run("ls", base))


def test_mv_of_a_directory_takes_what_is_below(run: Run, base: str) -> None:
    session(
        run,
        f"""
        $ mv {base} docs d/e
        $ ls {base} 'd*'
        d/e
        d/e/a.html
        d/e/old/b.html
        $ mv {base} d/e/old old
        $ ls {base} 'old*'
        old/b.html
        """,
    )
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize(
    ("old", "new"), [("gone", "x"), ("docs", "docs/in"), ("docs", "docs/old"), ("docs", "docs")]
)
def test_mv_that_makes_no_sense_changes_nothing(run: Run, base: str, old: str, new: str) -> None:
    with unchanged(Path("c.data")):
        one_line(run("mv", base, old, new))


def test_mv_into_a_directory_replaces_a_file_there(run: Run, base: str) -> None:
    with winkfs.open(base, "a") as c:
        c.put("docs/old/run.sh", b"old")
    assert run("mv", base, "run.sh", "docs/old/") == run("mv", base, "link", "docs")
    with winkfs.open(base) as c:
        assert c.read("docs/old/run.sh") == b"#!"
        assert c.readlink("docs/link") == "docs/a.html"
        assert "run.sh" not in c and "link" not in c


def test_stat_of_a_file_and_a_link(run: Run, base: str) -> None:
    done = run("stat", base, "link", "--json")
    assert json.loads(done.out)["target"] == "docs/a.html"
    assert b"target:   docs/a.html" in run("stat", base, "link").out
    assert b"mode:     0600" in run("stat", base, "docs/old/b.html").out
    assert "c: gone" in one_line(run("stat", base, "gone"))


# --- names as paths ---


def test_ls_of_all_by_a_path_and_of_an_empty_directory(run: Run, base: str) -> None:
    assert run("ls", base, "-R", "./") == run("ls", base) == run("ls", base, "-R", "/")
    assert run("ls", base, "./") == run("ls", base, "/") != run("ls", base)
    with winkfs.open(base, "a") as c:
        c.mkdir("empty")
    assert run("ls", base, "empty/") == run("ls", base, "empty") == (0, b"", "")
    assert "run.sh/" in one_line(run("ls", base, "run.sh/"))
    assert run("cat", base, "./docs/a.html", "/run.sh").out == b"<a>#!"


@pytest.mark.parametrize("name", ["n" * 256, "@" * 255])
def test_put_and_append_refuse_what_no_mount_would_show(run: Run, base: str, name: str) -> None:
    with unchanged(Path("c.data")):
        for verb in ("put", "append"):
            assert "no mount shows" in one_line(run(verb, base, name, stdin=b"1"))
    assert run("put", base, name, "--force", stdin=b"1").status == 0
    assert stored.read(base, name) == b"1"


def test_put_over_a_directory_changes_nothing(run: Run, base: str) -> None:
    with unchanged(Path("c.data")):
        assert "is a directory" in one_line(run("put", base, "docs", stdin=b"1"))


@pytest.mark.parametrize("name", ["dir/", "../../evil", "/abs", "a//b", "./x", "run.sh/x", "@"])
def test_names_that_are_no_paths_are_taken_as_they_are(run: Run, base: str, name: str) -> None:
    assert run("put", base, name, stdin=b"1") == (0, b"", "")
    assert run("append", base, name, stdin=b"2").status == 0
    assert name in listed(run("ls", base, "*"))
    session(
        run,
        f"""
        $ cat {base} {name}
        12
        $ stat {base} {name}
        ...
        $ mv {base} {name} ../moved
        $ mv {base} ../moved {name} --force
        $ cat {base} {name}
        12
        $ rm {base} {name}
        """,
    )
    assert name not in listed(run("ls", base, "*"))


@pytest.mark.parametrize(("new", "what"), [("docs", "is a directory"), ("n" * 256, "no mount")])
def test_mv_makes_no_name_that_no_mount_would_show(
    run: Run, base: str, new: str, what: str
) -> None:
    """A file of the name of a directory that is there through the names below it hid them."""
    with winkfs.open(base, "a") as c:
        c.put("docs/link/below", b"1")
        c.delete("docs")
    with unchanged(Path("c.data")):
        assert what in one_line(run("mv", base, "link", new))
    assert run("mv", base, "link", new, "--force").status == 0
    assert new in listed(run("ls", base, "*"))


@pytest.mark.parametrize("order", [True, False])
def test_mv_finds_names_below_with_and_without_an_order(run: Run, base: str, order: bool) -> None:
    if order:
        winkfs.reindex(base)
    session(
        run,
        f"""
        $ mv {base} run.sh docs/old
        $ ls {base} docs/old
        docs/old/b.html
        docs/old/run.sh
        $ rm {base} docs/old/b.html
        $ mv {base} docs/old/run.sh run.sh
        $ mv {base} run.sh docs/old
        $ mv {base} ./docs/old x
        $ ls {base} x
        x
        """,
    )


def test_rm_refuses_a_directory_that_is_not_empty(run: Run, base: str) -> None:
    with unchanged(Path("c.data")):
        for name in ("docs", "docs/", "docs/old", "./docs/old/"):
            assert "not empty: see -r" in one_line(run("rm", base, name))
    session(run, f"$ rm {base} -r 'docs/*'\n$ rm {base} docs\n")
    assert "docs" not in listed(run("ls", base))


def test_rm_takes_directories_with_what_is_below(run: Run, base: str) -> None:
    done = run("rm", base, "-r", "-v", "docs/old", "run.sh")
    assert (done.status, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == [b"docs/old/b.html", b"run.sh"]
    assert run("rm", base, "-r", "docs/", "gone").status == 1
    assert listed(run("ls", base)) == ["a*b", "caf\udce9", "\x1b[31m", "link"]
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["-r", "docs"], {"docs", "docs/a.html", "docs/old/b.html"}),
        (["-r", "docs*"], {"docs", "docs/a.html", "docs/old/b.html"}),
        (["-r", "docs/*", "run.sh"], {"docs/a.html", "docs/old/b.html", "run.sh"}),
        (["*.html", "run.sh"], {"docs/a.html", "docs/old/b.html", "run.sh"}),
    ],
)
def test_rm_prints_what_it_would_remove(
    run: Run, base: str, args: list[str], names: set[str]
) -> None:
    with unchanged(Path("c.data")):
        assert set(listed(run("rm", base, "-n", *args))) == names
    assert set(listed(run("rm", base, "-v", *args))) == names
    assert not names & set(listed(run("ls", base)))


def test_rm_of_a_glob_takes_directories_after_what_is_in_them(run: Run) -> None:
    with winkfs.create("t") as c:
        for name in ("d", "d/e", "d/e/f", "other"):
            c.mkdir(name)
        c.put_many([("d/e/f/file", b"1"), ("other/file", b"1")])
    done = run("rm", "t", "-r", "d*")
    assert (done.status, done.err) == (0, "")
    assert "other: is a directory" in one_line(run("rm", "t", "other"))
    assert listed(run("ls", "t")) == ["other", "other/file"]


@pytest.mark.few
@pytest.mark.parametrize("dataset", [False, True])
@pytest.mark.parametrize(
    ("glob", "what"),
    [
        ("*", "matches 2 directories"), ("d*", "matches 2 directories"), ("d", None),
        ("d/*", "matches 1 directory"), ("[d]", "matches 1 directory"), ("d/e/*", None),
        ("[f]", None), ("none*", "no name matches"),
    ],
)  # fmt: skip
def test_rm_of_a_glob_with_directories_needs_r(
    run: Run, dataset: bool, glob: str, what: str | None
) -> None:
    stored.make("c", {"d/a": b"1", "d/e/b": b"2", "f": b"3"})
    base = "s" if dataset else "c"
    if dataset:
        run("dataset", "create", "s")
        assert run("dataset", "add", "s", "c").status == 0
    before = run("ls", base)
    done = run("rm", base, glob)
    assert done.status == (what is not None or glob == "d")
    if what is not None:
        assert what in done.err and done.err.count("\n") == 1 and run("ls", base) == before
    if what and "matches " in what and "no name" not in what:
        assert run("rm", base, "-n", glob).status == 0 and run("ls", base) == before
        assert run("rm", base, "-r", glob) == (0, b"", "")
        left = {"*": [], "d*": ["f"], "[d]": ["f"], "d/*": ["f"]}[glob]
        assert listed(run("ls", base)) == left


def test_rm_of_all_files_by_a_glob_needs_r(run: Run) -> None:
    stored.make("c", {"a1": b"1", "a2": b"2"})
    assert "a*: matches all 2 files: see -r" in one_line(run("rm", "c", "a*"))
    assert run("rm", "c", "-r", "a*").status == 0 and run("ls", "c").out == b""


@pytest.mark.few(1)
@pytest.mark.parametrize("answer", [b"y\n", b"n\n", b"\n"])
def test_rm_asks_on_a_terminal(tmp_path: Path, answer: bytes) -> None:
    stored.make(tmp_path / "c", {"d/a": b"1", "f": b"2"})
    master, slave = os.openpty()
    with os.fdopen(master, "r+b", buffering=0) as terminal:
        command = [*PROGRAM, "rm", "c", "d*"]
        program = subprocess.Popen(command, cwd=tmp_path, stdin=slave, stderr=slave, stdout=slave)
        os.close(slave)
        shown = b""
        while not shown.endswith(b": "):
            shown += terminal.read(1000)
        assert b"c: d*: matches 1 directory: remove 1 file?" in shown
        terminal.write(answer)
        assert program.wait(60) == (answer != b"y\n")
    assert sorted(stored.names(tmp_path / "c")) == (["f"] if answer == b"y\n" else ["d/a", "f"])


def test_rm_mv_and_put_in_a_data_set(run: Run) -> None:
    from winkfs.dataset.dataset import create

    with create("s") as d:
        d.mkdir("docs")
        d.put("docs/a", b"1")
        d.put("x", b"2")
    session(
        run,
        f"""
        $ rm s docs
        winkfs: ...not empty...
        $ mv s x docs
        $ mv s docs/x x
        $ put s {"n" * 256}
        winkfs: ...no mount...
        $ rm s -r docs
        $ ls s
        x
        """,
    )


@pytest.mark.parametrize("verb", ["put", "append"])
def test_a_container_is_not_put_into_itself(run: Run, verb: str) -> None:
    stored.make("c", {"a": b"1"})
    assert "cannot be put into itself" in one_line(run(verb, "c", "new", "c.data"))
    assert winkfs.verify(Path("c")).problems == []
