"""The commands that list names: the options of ls, find, du, tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import stored
from commands import PROGRAM, Run, listed, on_a_terminal, one_line
from folders import write_files

import winkfs
from winkformats import native
from winkfs.cli import tree as tree_command
from winkfs.container import select
from winkfs.dataset import reading
from winkfs.units import short_size

pytestmark = pytest.mark.slow
ODD = "caf\udce9\n\x1b[31m"


FILES: list[tuple[str, bytes, dict[str, Any]]] = [
    ("docs", b"", {"ftype": winkfs.FileType.DIR, "mtime": 10}),
    ("docs/a.html", b"<a>", {"mtime": 1000}),
    ("docs/old/b.html", b"<b>\n", {"mtime": 2000, "mode": 0o600}),
    ("docs-old/big.txt", bytes(400_000), {"mtime": 2500}),
    ("docs-old/z/y/x.TXT", bytes(5000), {"mtime": 2600}),
    ("empty", b"", {"ftype": winkfs.FileType.DIR, "mtime": 20}),
    ("link", b"docs/a.html", {"ftype": winkfs.FileType.LINK, "mtime": 4000}),
    ("run.sh", b"#!", {"mtime": 3000, "mode": 0o755}),
    (ODD, b"odd", {"mtime": -1.5}),
]


def make(base: str, which: slice = slice(None)) -> str:
    """A container with directories of both sorts, a link, and different sizes and times."""
    with winkfs.create(base) as c:
        for name, data, options in FILES[which]:
            c.put(name, data, **options)
    return base


@pytest.fixture
def tree(run: Run) -> str:
    return make("t")


@pytest.fixture(params=["container", "data set", "scanned"])
def store(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same files, in a container, in a data set, and in one that is scanned shard by shard."""
    if request.param == "container":
        return make("t")
    assert run("dataset", "create", "set").status == 0
    parts = [make("x", slice(0, None, 2)), make("y", slice(1, None, 2))]
    assert run("dataset", "add", "set", *parts).status == 0
    if request.param == "scanned":
        monkeypatch.setattr(reading, "MAX_OPEN", 1)
    return "set"


# --- ls ---


LISTED = [
    (["docs"], ["docs/a.html", "docs/old"]),
    (["docs/"], ["docs/a.html", "docs/old"]),
    (["/"], [*ODD.split("\n"), "docs", "docs-old", "empty", "link", "run.sh"]),
    (["docs-old/z"], ["docs-old/z/y"]),
    (["-R", "docs-old", "--sort", "name"], ["docs-old/big.txt", "docs-old/z/y/x.TXT"]),
    (["empty"], []),
    (["-d", "docs"], ["docs"]),
    (["-d", "docs-old/z/"], ["docs-old/z"]),
    (["-d", "run.sh"], ["run.sh"]),
    (["docs", "--since", "1500"], []),
    (["-S", "--limit", "2"], ["docs-old/big.txt", "docs-old/z/y/x.TXT"]),
    (["-S", "-r", "--limit", "3"], ["empty", "docs", "run.sh"]),
    (["-t", "--limit", "3"], ["link", "run.sh", "docs-old/z/y/x.TXT"]),
    (["-tr", "--limit", "2"], [*ODD.split("\n"), "docs"]),
    (["--sort", "name", "-r", "--limit", "2"], ["run.sh", "link"]),
    (["--sort", "size", "docs*", "--limit", "1"], ["docs-old/big.txt"]),
    (["-t", "/"], ["link", "run.sh", "empty", "docs", *ODD.split("\n"), "docs-old"]),
    (["--limit", "0"], []),
    (["-d", "docs", "--where", "size >= 0"], ["docs"]),
    (["--until", "-1.2"], ODD.split("\n")),
    (["-R", "docs", "--since", "1000.5"], ["docs/old/b.html"]),
]


def test_ls_lists_one_level_and_sorts(run: Run, store: str) -> None:
    for args, names in LISTED:
        assert listed(run("ls", store, *args)) == names, args


def test_ls_limit_takes_the_first_as_they_are_listed(run: Run, tree: str) -> None:
    assert listed(run("ls", tree, "docs*", "--limit", "2")) == ["docs", "docs-old/big.txt"]


def test_ls_of_a_level_passes_over_what_is_below(run: Run) -> None:
    """Also where tables begin and end within a directory."""
    with winkfs.create("m") as c:
        c.put_many([(f"d{i % 3}/{i:06}", b"") for i in range(60_000)] + [("e", b""), ("d1!", b"")])
    assert listed(run("ls", "m", "/")) == ["d0", "d1", "d1!", "d2", "e"]
    assert len(listed(run("ls", "m", "d1"))) == 20_000


def test_ls_of_a_level_makes_one_catalog_where_there_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with winkfs.create("m") as c:
        c.put_many([(f"d{i // 9000}/{i:06}", b"") for i in range(60_000)])
    Path("m.cat").unlink(missing_ok=True)
    made = list[object]()
    build = select.build
    monkeypatch.setattr(select, "build", lambda *a, **k: made.append(a) or build(*a, **k))
    assert len(listed(run("ls", "m", "/"))) == 7 and len(made) == 1


def test_ls_h_shows_sizes_for_people(run: Run, tree: str) -> None:
    (line,) = listed(run("ls", "-lh", tree, "docs-old/big.txt"))
    assert line.split()[4] == "391K"
    assert run("ls", "-h", tree) == run("ls", tree)
    sizes = (0, 1023, 1024, 1025, 10239, 10240, 10241, 1048575, 1 << 20, (1 << 63) - 1)
    assert [short_size(size) for size in sizes] == [
        "0", "1023", "1.0K", "1.1K", "10K", "10K", "11K", "1.0M", "1.0M", "8.0E",
    ]  # fmt: skip


def test_ls_long_of_a_directory_without_an_entry(run: Run, tree: str) -> None:
    (line,) = listed(run("ls", "-ld", tree, "docs-old"))
    assert line.startswith("drwxr-xr-x 1 ") and line.split()[4:] == ["0", "-", "docs-old"]
    record = json.loads(run("ls", "--json", "-d", tree, "docs-old").out)
    assert record["type"] == "dir" and record["mtime"] is record["fileid"] is None


def test_ls_null_keeps_the_bytes(tmp_path: Path, run: Run, tree: str) -> None:
    done = run("ls", "-0", tree, "caf*")
    assert done.out == os.fsencode(ODD) + b"\0"
    shown = on_a_terminal("stdout", *PROGRAM, "ls", "-0", tree, "caf*")
    assert shown.replace(b"\r", b"") == os.fsencode(ODD) + b"\0"


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("{path} {size}{NL}", b"docs-old/big.txt 400000\n"),
        ("{size:>8}{TAB}{type}{NUL}", b"  400000\tfile\0"),
        ("{mode} {mtime} {mtime_ns} {uid}", b"-rw-r--r-- 1970-01-01T00:41:40Z 2500000000000 0"),
        ("{{}}", b"{}"), ("", b""),
    ],
)  # fmt: skip
def test_ls_format(run: Run, tree: str, text: str, out: bytes) -> None:
    done = run("ls", tree, "docs-old/big.txt", "--format", text)
    uid = str(os.getuid()).encode()
    assert (done.status, done.out) == (0, out[:-1] + uid if "uid" in text else out)


def test_ls_format_has_targets(run: Run, tree: str) -> None:
    assert run("ls", tree, "link", "--format", "{path}>{target}").out == b"link>docs/a.html"


@pytest.mark.parametrize(
    "text", ["{foo}", "{}", "{path!r}", "{path.x}", "{path[0]}", "{size:{path}}", "{", "{path:d}",
             "{size:zz}"]
)  # fmt: skip
def test_ls_format_that_is_none_is_refused(run: Run, tree: str, text: str) -> None:
    assert "--format" in one_line(run("ls", tree, "--format", text), 2)


MANY = "import sys; from winkfs.cli import main; [main(line.split()) for line in sys.argv[1:]]"


def test_a_terminal_gets_escaped_names_from_each_command(run: Run, tmp_path: Path) -> None:
    """Targets of links and values of columns, too."""
    with winkfs.create("o", columns={"word": "string"}) as c:
        c.put("e\x1b/a\x1b", b"", columns={"word": "w\x1b"})
        c.put("e\x1b/l", b"t\x1b", ftype=winkfs.FileType.LINK)
    format_ = "{path}>{target}{NL}"
    commands = [
        "ls o", "ls -l o", f"ls o --format {format_}", "ls o --columns word", "find o", "du -a o",
        "tree o", "cp -n o new", "unpack -n o new",
    ]  # fmt: skip
    for command in commands:
        assert b"\x1b" in run(*command.split()).out
    shown = on_a_terminal("stdout", PROGRAM[0], "-c", MANY, *commands, cwd=tmp_path)
    assert b"\x1b" not in shown and shown.count(b"a\\x1b") == len(commands)
    assert shown.count(b"t\\x1b") == 2 and b"\tw\\x1b\r\n" in shown


def test_a_damaged_link_is_listed_without_its_target(run: Run) -> None:
    with winkfs.create("d") as c:
        c.put("a", b"target of it", ftype=winkfs.FileType.LINK)
        c.put("b", b"other target", ftype=winkfs.FileType.LINK)
    stored.flip_text("d.data", b"target of it")
    done = run("ls", "-l", "d")
    assert done.status == 1 and "d: a: " in done.err and done.err.count("\n") == 1
    first, second = done.out.decode().splitlines()
    assert first.endswith(" a") and second.endswith(" b -> other target")


@pytest.mark.parametrize(
    "args", [["-t", "-S"], ["-t", "--sort", "size"], ["-l", "--json"], ["-0", "--json"], ["-d"],
             ["--sort", "color"], ["--limit", "-1"]]
)  # fmt: skip
def test_ls_options_that_exclude_each_other(run: Run, tree: str, args: list[str]) -> None:
    one_line(run("ls", tree, *args), 2)


# --- find ---


FOUND = [
    (["-name", "*.html"], ["docs/a.html", "docs/old/b.html"]),
    (["--name", "*.html", "-name", "a*"], ["docs/a.html"]),
    (["-name", "docs*"], ["docs", "docs-old"]),
    (["-name", "*.txt", "-size", "+10k"], ["docs-old/big.txt"]),
    (["-iname", "*.txt"], ["docs-old/big.txt", "docs-old/z/y/x.TXT"]),
    (["-type", "d"], ["docs", "docs-old", "docs-old/z", "docs-old/z/y", "docs/old", "empty"]),
    (["-type", "l"], ["link"]),
    (["-type", "d,l", "-maxdepth", "1"], ["docs", "docs-old", "empty", "link"]),
    (["-size", "2c"], ["run.sh"]), (["-size", "-5000c", "-size", "+4c"], ["link"]),
    (["-size", "10"], ["docs-old/z/y/x.TXT"]), (["-size", "5k"], ["docs-old/z/y/x.TXT"]),
    (["-newer", "run.sh"], ["link"]),
    (["-newer", "2550"], ["docs-old/z/y/x.TXT", "link", "run.sh"]),
    (["-path", "docs-old/*", "-type", "f"], ["docs-old/big.txt", "docs-old/z/y/x.TXT"]),
    (["-path", "./docs/*"], ["docs/a.html", "docs/old", "docs/old/b.html"]),
    (["-regex", r".*/[ab]\.html"], ["docs/a.html", "docs/old/b.html"]),
    (["docs"], ["docs", "docs/a.html", "docs/old", "docs/old/b.html"]),
    (["docs-old/", "-mindepth", "2"], ["docs-old/z/y", "docs-old/z/y/x.TXT"]),
    (["docs-old", "-maxdepth", "0"], ["docs-old"]),
    (["run.sh", "empty"], ["run.sh", "empty"]),
    (["--where", "size > 100"], ["docs-old/big.txt", "docs-old/z/y/x.TXT"]),
    (["-mtime", "-1"], []),
]  # fmt: skip


@pytest.mark.few(2)
def test_find_by_one_test_and_by_several(run: Run, store: str) -> None:
    for args, names in FOUND:
        assert listed(run("find", store, *args)) == names, args


NOTHING = [
    (["nothing"], "nothing: no such file in the"),
    (["doc*"], "doc*: no such file: for a pattern"),
    (["-newer", "gone"], "-newer gone: no such file"),
]  # fmt: skip


def test_find_knows_how_old_the_oldest_file_is(run: Run) -> None:
    with winkfs.create("c") as c:
        c.put("old", b"", mtime_ns=-(1 << 63))
        c.put("new", b"")
    assert run("find", "c", "-mtime", "-1").out == b"new\n"
    assert run("find", "c", "-mtime", "+99999").out == b"old\n"


def test_find_of_nothing_is_an_error(run: Run, store: str) -> None:
    for args, what in NOTHING:
        assert what in one_line(run("find", store, *args))


@pytest.mark.parametrize(
    "args", [["-size", "ten"], ["-size", "1x"], ["-type", "x"], ["-regex", "("],
             ["!", "-name", "a"], ["-name", "a", "-o", "-name", "b"], ["-mtime", "1k"],
             ["-maxdepth", "-1"]]
)  # fmt: skip
def test_find_refuses_a_wrong_test_in_one_line(run: Run, tree: str, args: list[str]) -> None:
    one_line(run("find", tree, *args), 2)


EXPRESSIONS = [
    "", "-name *.txt", "-iname *.TXT", "-type d", "-type f -size +1k", "-type f -size -2k",
    "-type f -size 0", "-type f -size 3c", "-maxdepth 1", "-mindepth 2", "-mindepth 1 -maxdepth 2",
    "-type f -mtime +1", "-type f -mtime -1", "-type f -mtime 3", "-type f -mtime 0",
    "-type f -newer a.txt",
    "-name *", "-name *c*t", "-name *.t?t", "-name *e", "-name *[t]",
    "-path */b/*", "-name b", "-path ./b/*", "-type l", "-type f,l -name [!a]*",
]  # fmt: skip


def test_find_finds_what_gnu_find_does(run: Run, tmp_path: Path) -> None:
    names = ("a.txt", "b/a.txt", "b/b/c.TXT", "b-c/d", "b/e/f/g.txt", "z")
    write_files(tmp_path / "t", {name: bytes(512 * i) for i, name in enumerate(names)})
    (tmp_path / "t/three").write_bytes(b"123")
    (tmp_path / "t/hollow").mkdir()
    (tmp_path / "t/to").symlink_to("z")
    now = time.time()
    for days, name in enumerate(names):
        os.utime(tmp_path / "t" / name, (now, now - 86_400 * days - 600))
    os.utime(tmp_path / "t/three", (now, now + 10_000))
    assert run("pack", "t", "c").status == 0
    for expression in EXPRESSIONS:
        words = expression.split()
        done = subprocess.run(
            ["find", ".", *words], cwd="t", capture_output=True, text=True, check=True
        )
        wanted = sorted(line.removeprefix("./") for line in done.stdout.splitlines() if line != ".")
        assert sorted(listed(run("find", "c", *words))) == wanted, expression


def test_find_by_days_of_the_earliest_time(run: Run) -> None:
    with winkfs.create("c") as c:
        c.put("a", b"", mtime_ns=-1 << 63)
    assert listed(run("find", "c", "-mtime", "+90000")) == ["a"]


def test_find_print0_on_a_terminal_escapes_nothing(run: Run, tree: str) -> None:
    assert run("find", tree, "-name", "caf*", "-print0").out == os.fsencode(ODD) + b"\0"
    shown = on_a_terminal("stdout", *PROGRAM, "find", tree, "-name", "caf*")
    assert shown == b"caf\\xe9\\n\\x1b[31m\r\n"


# --- du, tree ---


def test_du_sums_each_directory_after_what_is_in_it(run: Run, store: str) -> None:
    assert listed(run("du", store)) == [
        "4\tdocs/old", "7\tdocs", "5000\tdocs-old/z/y", "5000\tdocs-old/z", "405000\tdocs-old",
        "0\tempty", "405023\t.",
    ]  # fmt: skip


SUMMED = [
    (["-d", "1", "-h"], ["7\tdocs", "396K\tdocs-old", "0\tempty", "396K\t."]),
    (["-s"], ["405023\t."]), (["-sh", "docs", "empty"], ["7\tdocs", "0\tempty"]),
    (["-a", "docs"], ["3\tdocs/a.html", "4\tdocs/old/b.html", "4\tdocs/old", "7\tdocs"]),
    (["docs/a.html"], ["3\tdocs/a.html"]), (["./docs-old/z/", "-d", "0"], ["5000\tdocs-old/z"]),
]  # fmt: skip


def test_du_options(run: Run, store: str) -> None:
    for args, lines in SUMMED:
        assert listed(run("du", store, *args)) == lines, args


def test_du_json_has_bytes_and_files(run: Run, tree: str) -> None:
    records = [json.loads(line) for line in listed(run("du", "--json", "-d", "1", tree))]
    assert records[1] == {"name": "docs-old", "type": "dir", "bytes": 405_000, "files": 2}
    assert records[-1] == {"name": ".", "type": "dir", "bytes": 405_023, "files": 7}


def test_du_ncdu_is_the_tree_as_lists(run: Run, tree: str) -> None:
    done = run("du", "--ncdu", tree)
    major, minor, head, root = json.loads(done.out.decode("utf-8", "surrogateescape"))
    assert (major, minor, head["progname"]) == (1, 2, "winkfs")

    def pair(node: Any) -> tuple[str, Any]:
        if isinstance(node, dict):
            return node["name"], node["asize"]
        return node[0]["name"], dict(map(pair, node[1:]))

    assert pair(root) == ("t", {
        ODD: 3, "docs": {"a.html": 3, "old": {"b.html": 4}},
        "docs-old": {"big.txt": 400_000, "z": {"y": {"x.TXT": 5000}}}, "empty": {}, "link": 11,
        "run.sh": 2,
    })  # fmt: skip
    assert os.fsencode("caf\udce9") in done.out


@pytest.mark.skipif(shutil.which("ncdu") is None, reason="no ncdu")
def test_ncdu_reads_the_export(run: Run, tree: str) -> None:
    done = subprocess.run(
        ["ncdu", "-f", "-", "-o", "-"], input=run("du", "--ncdu", tree, "docs").out,
        capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)[3][1]["name"] == "a.html"


def test_du_and_tree_of_nothing_are_errors(run: Run, tree: str) -> None:
    assert "gone: no such file" in one_line(run("du", tree, "gone"))
    assert "gone: no such file" in one_line(run("tree", tree, "gone"))
    assert "takes a directory" in one_line(run("du", "--ncdu", tree, "run.sh"))
    for args in ("-s -a", "-s -d 1", "--ncdu --json", "--ncdu docs empty"):
        one_line(run("du", tree, *args.split()), 2)


def test_du_of_a_file_beside_a_missing_one(run: Run, tree: str) -> None:
    done = run("du", tree, "gone", "run.sh")
    assert (done.status, done.out) == (1, b"2\trun.sh\n") and done.err.count("\n") == 1


def test_tree_draws_branches(run: Run, store: str) -> None:
    done = run("tree", store, "docs-old")
    assert done.out.decode() == (
        "docs-old\n├── big.txt\n└── z\n    └── y\n        └── x.TXT\n\n2 directories, 2 files\n"
    )
    done = run("tree", store, "-L", "1", "--du", "-h", "docs")
    assert done.out.decode() == (
        "[   7]  docs\n├── [   3]  a.html\n└── [   4]  old\n\n7 used in 1 directory, 1 file\n"
    )
    done = run("tree", store, "-d")
    assert done.out.decode() == (
        f"{store}\n├── docs\n│   └── old\n├── docs-old\n│   └── z\n│       └── y\n└── empty\n"
        "\n6 directories\n"
    )


def test_tree_json_is_that_of_tree(run: Run, tree: str) -> None:
    root, report = json.loads(run("tree", "--json", "--du", tree, "docs").out)
    assert report == {"type": "report", "directories": 1, "files": 2}
    old = {"type": "directory", "name": "old", "size": 4, "contents": [
        {"type": "file", "name": "b.html", "size": 4}]}  # fmt: skip
    assert root == {"type": "directory", "name": "docs", "size": 7, "contents": [
        {"type": "file", "name": "a.html", "size": 3}, old]}  # fmt: skip
    whole = json.loads(run("tree", "--json", tree).out)
    assert whole[1] == {"type": "report", "directories": 6, "files": 7}


def test_empty_container_has_no_files(run: Run) -> None:
    winkfs.create("e").close()
    assert run("ls", "e", "/") == run("ls", "e", "-S") == run("find", "e") == (0, b"", "")
    assert run("du", "e").out == b"0\t.\n"
    assert run("tree", "e").out == b"e\n\n0 directories, 0 files\n"


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("more", ["", "l" * 40_000])
def test_a_tree_is_that_with_sizes_without_them(
    run: Run, monkeypatch: pytest.MonkeyPatch, compiled: bool, more: str
) -> None:
    """Also names with signs before the slash, slashes at odd places, and a long one."""
    if not compiled:
        monkeypatch.setattr(native, "code", None)
    monkeypatch.setattr(tree_command, "ROWS", 5)
    names = ["a", "a!/x", "a!b", "a-/y/z", "a/-", "a/x/1", "a/x/2", "b//c", "/abs/x", "dir/", "é/ü",
             "x.y", "x/y/z/w", "x/y/v", ODD, f"{ODD}d/{ODD}", more or "m"]  # fmt: skip
    stored.make("c", dict.fromkeys(names, b"1"))
    plain, sized = (run("tree", *args, "c").out for args in ([], ["--du"]))
    assert re.sub(rb"\[ *\d+\]  ", b"", sized).replace(b"17 used in ", b"") == plain
    assert b"\xe2\x94\x82   \xe2\x94\x94\xe2\x94\x80\xe2\x94\x80 x\n" in plain
    assert plain.splitlines()[-1] == b"15 directories, 17 files"
    if not more:
        names = [line.split(b"\x80 ")[-1] for line in run("tree", "c", "x").out.splitlines()]
        assert names[:6] == [b"x", b"y", b"v", b"z", b"w", b""]


def test_odd_names_are_listed_as_they_are(run: Run) -> None:
    """A name with empty parts, one that is a directory of others, and a long one."""
    names = ["a", "a/b", "u//v", "/abs", "dir/", "l" * 255 + "/" + "m" * 255]
    with winkfs.create("o") as c:
        c.put_many([(name, b"1") for name in names])
    assert listed(run("ls", "o", "/")) == ["/", "a", "a", "dir", "l" * 255, "u"]
    assert sorted(listed(run("find", "o", "-type", "f"))) == sorted(names)
    assert run("du", "-s", "o").out == b"6\t.\n"
    assert run("tree", "o").out.endswith(b"files\n") and run("du", "--ncdu", "o").status == 0
