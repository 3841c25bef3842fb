"""The command line: what it prints, its exit status, and that nothing but one line goes wrong."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import winkfs
from winkfs.cli import COMMANDS, cli, main
from winkfs.cli._common import explain, parse_time, printable
from winkfs.names import is_glob, literal_prefix

PROGRAM = [sys.executable, "-c", "import sys; from winkfs.cli import main; sys.exit(main())"]
HEAVY = {"numpy", "xxhash", "mmh3", "rich", "winkfs.container", "tarfile"}


class Done(NamedTuple):
    status: int
    out: bytes
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Run]:
    """Run a command in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}

    def command(*args: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([os.fspath(a) if isinstance(a, Path) else str(a) for a in args])
        out, err = capfdbinary.readouterr()
        return Done(status, out, err.decode("utf-8", "surrogateescape"))

    yield command
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def base(run: Run) -> str:
    """A container with files, a directory and a link."""
    with winkfs.create("c") as c:
        c.put("docs", b"", ftype=winkfs.FileType.DIR, mtime=10)
        c.put("docs/a.html", b"<a>", mtime=1000)
        c.put("docs/old/b.html", b"<b>\n", mtime=2000, mode=0o600)
        c.put("run.sh", b"#!", mtime=3000, mode=0o755)
        c.put("link", b"docs/a.html", mtime=4000, ftype=winkfs.FileType.LINK)
        c.put("a*b", b"star", mtime=5000)
        c.put(b"caf\xe9\n\x1b[31m", b"odd", mtime=-1.5)
    return "c"


def one_line(done: Done, status: int = 1) -> str:
    """The line of an error, which must be the only one."""
    assert done.status == status
    assert done.out == b""
    assert done.err.startswith("winkfs: ")
    assert done.err.count("\n") == 1
    return done.err


# --- help and usage ---


@pytest.mark.parametrize("args", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_that_takes_time(args: list[str]) -> None:
    code = f"import sys; from winkfs.cli import main; main({args!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, modules = done.stdout.splitlines()
    assert not HEAVY & set(modules.split())


def test_help_of_the_group_is_that_of_each_command() -> None:
    for name, (_, what) in COMMANDS.items():
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None and command.name == name
        assert what


@pytest.mark.parametrize(
    "args",
    [
        ["nothing"],
        ["ls"],
        ["ls", "c", "--what"],
        ["ls", "c", "--since", "yesterday"],
        ["create", "c", "--timemp", "0"],
        ["create", "c", "--timemp", "5"],
        ["create", "c", "--htalgo", "4"],
        ["pack", "-", "c", "--files-from", "-"],
        ["rm", "c"],
        ["cat", "c"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run: Run, args: list[str]) -> None:
    assert "--help" in one_line(run(*args), 2)


def test_no_command_shows_the_help(run: Run) -> None:
    done = run()
    assert done.status == 2
    assert "Commands:" in done.err


@pytest.mark.parametrize(
    "args",
    [
        ["ls", "no"], ["cat", "no", "a"], ["put", "no", "a"], ["append", "no", "a"],
        ["rm", "no", "a"], ["mv", "no", "a", "b"], ["stat", "no", "a"], ["info", "no"],
        ["reindex", "no"], ["verify", "no"], ["unpack", "no", "out"], ["pack", "no", "c"],
        ["create", "no/c"], ["pack", ".", "no/c"], ["pack", ".", "c", "--files-from", "no"],
    ],
)  # fmt: skip
def test_what_is_not_there_is_one_line(run: Run, args: list[str]) -> None:
    assert "no" in one_line(run(*args))


def test_what_is_no_container_is_one_line(run: Run) -> None:
    for data in (b"", b"hello" * 3000):
        Path("x.data").write_bytes(data)
        for command in (["ls"], ["info"], ["reindex"], ["cat", "x", "a"], ["put", "x", "a"]):
            line = one_line(run(command[0], "x", *command[2:]))
            assert "x.data" in line


def test_unexpected_error_is_one_line(run: Run, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(winkfs.Container, "stat", broken)
    assert "ZeroDivisionError" in one_line(run("stat", base, "docs"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (OSError(28, "No space left on device", "x"), "x: No space left on device: free some"),
        (OSError(13, "Permission denied", b"\xff"), "Permission denied: check"),
        (OSError("odd"), "odd"),
        (RuntimeError("r"), "RuntimeError: r"),
    ],
)
def test_errors_say_what_where_and_what_to_do(error: Exception, text: str) -> None:
    assert text in explain(error)


# --- names and times ---


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("-5", -5), ("+7", 7), ("1700000000", 1700000000), ("1.5", 1.5), (" 3 ", 3),
        ("20240101", 20240101),
        ("1970-01-02", datetime(1970, 1, 2).timestamp()),
        ("2024-02-29T12:00Z", 1709208000), ("2024-02-29T12:00:00+02:00", 1709200800),
        ("20240229T120000Z", 1709208000),
        ("2024-02-29 12:00:00.5+00:00", 1709208000.5),
        ("2024-07-01T12:00", datetime(2024, 7, 1, 12).timestamp()),
        ("1960-01-01T00:00Z", -315619200),
        ("2023-02-29", None), ("nan", None), ("inf", None), ("1e5", None), ("", None),
        ("tomorrow", None), ("2024-13-01", None), ("9999-12-31T23:59:59-14:00", 253402351199),
    ],
)  # fmt: skip
def test_times(text: str, seconds: float | None) -> None:
    found = parse_time(text)
    assert found == seconds
    assert seconds is None or seconds != int(seconds) or isinstance(found, int)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 漢", "plain ä 漢"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("caf\udce9", "caf\\xe9"),
        ("\u202egpj", "\\u202egpj"),
        ("\x9b", "\\x9b"),
    ],
)
def test_names_on_a_terminal_cannot_control_it(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("glob", "prefix"), [("a/b*c", "a/b"), ("*", ""), ("abc", "abc"), ("a[b]", "a"), ("?x", "")]
)
def test_prefix_of_a_glob(glob: str, prefix: str) -> None:
    assert literal_prefix(glob) == prefix
    assert is_glob(glob) is (glob != "abc")


# --- ls ---


def listed(done: Done) -> list[str]:
    assert (done.status, done.err) == (0, "")
    return done.out.decode("utf-8", "surrogateescape").splitlines()


def test_ls_lists_the_bytes_of_names(run: Run, base: str) -> None:
    assert run("ls", base).out == (
        b"docs\ndocs/a.html\ndocs/old/b.html\nrun.sh\nlink\na*b\ncaf\xe9\n\x1b[31m\n"
    )


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("docs/*", ["docs/a.html", "docs/old/b.html"]),
        ("*.html", ["docs/a.html", "docs/old/b.html"]),
        ("docs", ["docs"]),
        ("docs/?.html", ["docs/a.html"]),
        ("a*b", ["a*b"]),
        ("[rl]*", ["run.sh", "link"]),
    ],
)
def test_ls_glob(run: Run, base: str, glob: str, names: list[str]) -> None:
    assert listed(run("ls", base, glob)) == names


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
    assert lines[0].startswith(b"drwxr-xr-x 1 ")
    assert lines[2].startswith(b"-rw------- 1 ")
    assert lines[3].startswith(b"-rwxr-xr-x 1 ")
    assert lines[4].startswith(b"lrwxrwxrwx 1 ") and lines[4].endswith(b" link -> docs/a.html")
    when = datetime.fromtimestamp(2000).strftime("%Y-%m-%d %H:%M")
    assert lines[2].split()[4:] == [b"4", *when.encode().split(), b"docs/old/b.html"]


def test_ls_json_is_an_object_a_line_and_gives_odd_names_back(run: Run, base: str) -> None:
    done = run("ls", base, "--json")
    records = [json.loads(line) for line in done.out.decode("ascii").splitlines()]
    assert [os.fsencode(r["name"]) for r in records][-1] == b"caf\xe9\n\x1b[31m"
    assert records[2] == {
        "name": "docs/old/b.html", "type": "file", "size": 4, "mtime": 2000,
        "mtime_ns": 2000 * 10**9, "mode": "0600", "uid": os.getuid(), "gid": os.getgid(),
        "fileid": 3,
    }  # fmt: skip
    assert records[4]["target"] == "docs/a.html"
    assert records[-1]["mtime"] == -1.5


def test_ls_on_a_terminal_escapes(run: Run, base: str) -> None:
    master, slave = pty.openpty()
    subprocess.run([*PROGRAM, "ls", base, "caf*"], stdout=slave, check=True)
    assert os.read(master, 1000) == b"caf\\xe9\\n\\x1b[31m\r\n"
    os.close(master)
    os.close(slave)


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
    with winkfs.create(tmp_path / "c") as c:
        c.put("big", bytes(10_000_000))
    command = " ".join(f"'{word}'" for word in [*PROGRAM, "cat", str(tmp_path / "c"), "big"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_full_standard_output_is_one_line(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1")
    for command in (["ls", "c"], ["cat", "c", "a"], ["info", "c", "--json"], ["verify", "c"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*PROGRAM, *command], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "No space left" in done.stderr


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


def test_append_that_append_only_forbids_says_why(run: Run) -> None:
    run("create", "t", "--ao")
    run("put", "t", "a", stdin=b"1")
    run("put", "t", "b", stdin=b"1")
    assert "append" in one_line(run("append", "t", "a", stdin=b"2"))
    assert run("cat", "t", "a").out == b"1"


def test_failed_append_leaves_the_file_as_it_was(
    run: Run, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("f").write_bytes(bytes(3 << 20))
    real = winkfs.Container.append
    calls: list[int] = []

    def append(self: winkfs.Container, name: str, data: bytes) -> None:
        calls.append(1)
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        real(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(winkfs.Container, "append", append)
        assert run("append", base, "run.sh", "f").status == 130
    assert len(calls) == 3
    assert run("cat", base, "run.sh").out == b"#!"
    assert winkfs.verify(base).problems == []


def test_rm_by_name_and_glob(run: Run, base: str) -> None:
    assert run("rm", base, "docs*", "a*b") == (0, b"", "")
    assert listed(run("ls", base, "[a-z]*")) == ["run.sh", "link", "caf\udce9", "\x1b[31m"]
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
    assert run("mv", base, "run.sh", "new name").status == 0
    assert run("mv", base, "new name", "a*b").status == 0
    assert run("cat", base, "a*b").out == b"#!"
    assert "run.sh" not in listed(run("ls", base))


def test_mv_of_a_directory_takes_what_is_below(run: Run, base: str) -> None:
    assert run("mv", base, "docs", "d/e").status == 0
    assert listed(run("ls", base, "d*")) == ["d/e", "d/e/a.html", "d/e/old/b.html"]
    assert run("mv", base, "d/e/old", "old").status == 0  # there is no entry for it
    assert listed(run("ls", base, "old*")) == ["old/b.html"]
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize(
    ("old", "new"), [("gone", "x"), ("docs", "docs/in"), ("run.sh", "docs"), ("docs", "docs")]
)
def test_mv_that_makes_no_sense_changes_nothing(run: Run, base: str, old: str, new: str) -> None:
    before = run("ls", base, "--json").out
    one_line(run("mv", base, old, new))
    assert run("ls", base, "--json").out == before


def test_stat_of_a_file_and_a_link(run: Run, base: str) -> None:
    done = run("stat", base, "link", "--json")
    assert json.loads(done.out)["target"] == "docs/a.html"
    assert b"target:   docs/a.html" in run("stat", base, "link").out
    assert b"mode:     0600" in run("stat", base, "docs/old/b.html").out
    assert "c: gone" in one_line(run("stat", base, "gone"))


# --- create, pack, unpack ---


def test_create_says_what_variant(run: Run) -> None:
    assert run("create", "t", "--ao", "--timemp", "7", "--htalgo", "3") == (0, b"", "")
    block = json.loads(run("info", "t", "--json").out)["superblock"]
    assert (block["HAVEAO"], block["TIMEMP"], block["HTALGO"]) == (1, 7, 3)
    run("create", "k", "--classic")
    assert json.loads(run("info", "k", "--json").out)["classic"] is True
    assert "exists" in one_line(run("create", "t"))


def test_pack_and_unpack(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t/sub").mkdir(parents=True)
    (tmp_path / "t/sub/a.txt").write_bytes(b"1")
    (tmp_path / "t/b.bak").write_bytes(b"2")
    os.mkfifo(tmp_path / "t/pipe")
    done = run("pack", "t", "c", "--exclude", "*.bak", "--json")
    assert done.status == 0
    assert done.err == "winkfs: pipe: a fifo\n"
    assert json.loads(done.out) == {
        "base": "c", "files": 1, "directories": 1, "links": 0, "bytes": 1,
        "left_out": [{"name": "pipe", "reason": "a fifo"}], "failed": [],
    }  # fmt: skip
    assert "--update" in one_line(run("pack", "t", "c"))
    assert run("pack", "t", "c", "--update").status == 0
    assert run("unpack", "c", "out").status == 0
    assert sorted(p.name for p in Path("out").rglob("*")) == ["a.txt", "b.bak", "sub"]
    assert run("unpack", "c", "out").status == 1
    assert run("unpack", "c", "out", "--force") == (0, b"", "")
    assert "none*" in one_line(run("unpack", "c", "out2", "none*"))


def test_pack_of_standard_input(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a").write_bytes(b"1")
    program = " ".join(f"'{word}'" for word in PROGRAM)
    for options, ao in (("-c", ""), ("-cz", "--ao")):
        subprocess.run(
            ["bash", "-ec", f"tar {options} t | {program} pack - c{options} {ao}"],
            cwd=tmp_path, check=True,
        )  # fmt: skip
        with winkfs.open(tmp_path / f"c{options}") as c:
            assert c.read("t/a") == b"1"
    subprocess.run(
        ["bash", "-ec", f"cd t; find -print0 | {program} pack . ../l --files-from -"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    with winkfs.open(tmp_path / "l") as c:
        assert list(c.names()) == ["a"]


def test_pack_with_a_failure_has_status_1_and_packs_the_rest(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a").write_bytes(b"1")
    (tmp_path / "list").write_bytes(b"a\ngone\n")
    done = run("pack", "t", "c", "--files-from", "list")
    assert (done.status, done.err) == (1, "winkfs: gone: vanished before it was read\n")
    assert listed(run("ls", "c")) == ["a"]


# --- info, reindex, verify ---


def test_info_tells_live_from_dead_bytes(run: Run, base: str) -> None:
    before = json.loads(run("info", base, "--json").out)
    assert (before["files"], before["dead_bytes"], before["clean"]) == (7, 0, True)
    assert before["index"]["current"] is True
    assert before["content_bytes"] == 27
    with winkfs.open(base, "a") as c:
        c.put("docs/a.html", bytes(5000))
        c.delete("run.sh")
    after = json.loads(run("info", base, "--json").out)
    used = after["superblock"]["FILESIZE"] - after["superblock"]["SBSIZE"]
    assert after["live_bytes"] + after["dead_bytes"] == used
    assert 300 < after["dead_bytes"] < 1000
    assert after["files"] == 6
    assert f"dead_bytes:       {after['dead_bytes']}".encode() in run("info", base).out


def test_info_says_that_the_index_is_not_current(run: Run, base: str) -> None:
    Path("c.idx").unlink()
    record = json.loads(run("info", base, "--json").out)
    assert (record["files"], record["index"]) == (None, {"current": False})
    assert b"files:            unknown" in run("info", base).out


@pytest.mark.parametrize(
    ("file", "form", "key"),
    [("t.idx", "hindex", "load_factor"), ("t.time", "kvseq", "last_mark")],
)
def test_info_of_a_single_file(run: Run, file: str, form: str, key: str) -> None:
    with winkfs.create("t", ao=True) as c:
        c.put("a", b"1", mtime=100)
    record = json.loads(run("info", file, "--json").out)
    assert record["format"] == form
    assert record[key] is not None
    assert run("info", file).status == 0


def test_info_of_a_foreign_file_is_one_line(run: Run) -> None:
    Path("x").write_bytes(b"hello")
    assert "not a wink file" in one_line(run("info", "x"))


def test_reindex_brings_everything_back(run: Run, base: str) -> None:
    before = run("ls", base, "--json").out
    Path("c.idx").write_bytes(b"junk")
    assert run("reindex", base) == (0, b"7 files indexed\n", "")
    assert run("ls", base, "--json").out == before


def test_verify_says_what_is_wrong_and_has_status_1(run: Run, base: str) -> None:
    assert run("verify", base) == (0, b"c: 7 files, 14 entries: sound\n", "")
    data = Path("c.data")
    data.write_bytes(data.read_bytes().replace(b"star", b"stab"))
    done = run("verify", base)
    assert done.status == 1
    assert b"c.data" in done.out.splitlines()[0]
    record = json.loads(run("verify", base, "--json").out)
    assert len(record["problems"]) == len(done.out.splitlines()) - 1
    assert "checksum" in one_line(run("cat", base, "a*b"))


# --- signals ---


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")]
)
@pytest.mark.parametrize("command", [["pack", "-", "new"], ["put", "c", "a"], ["append", "c", "a"]])
def test_signal_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, number: signal.Signals, line: str, command: list[str]
) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"old")
    with subprocess.Popen(
        [*PROGRAM, *command], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(bytes(3_000_000))
        process.stdin.flush()
        time.sleep(0.5)  # it has read all of it, and waits for more
        process.send_signal(number)
        process.wait(60)
        assert process.stderr.read().decode() == f"winkfs: {line}\n"
    assert process.returncode == 128 + number
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.data", "c.idx", "c.lock"]
    with winkfs.open(tmp_path / "c") as c:
        assert c.read("a") == b"old"


def test_second_writer_is_told_who_holds_the_container(run: Run, base: str) -> None:
    with winkfs.open(base, "a"):
        line = one_line(run("put", base, "a"))
    assert str(os.getpid()) in line and line.startswith("winkfs: c: ")


def test_progress_bar_is_for_terminals_and_long_work() -> None:
    master, slave = pty.openpty()
    code = (
        "import time; from winkfs.cli import _common; _common.PATIENCE = 0.05\n"
        "with _common.Progress('packing', 'files') as bar:\n"
        "    for i in range(3): bar(1000); time.sleep(0.1)\n"
        "    bar.say('a\\nb')\n"
    )
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True)
    shown = os.read(master, 100_000)
    assert b"packing" in shown and b"3,000 files" in shown and b"winkfs: a\\nb" in shown
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert quiet.stderr == b"winkfs: a\\nb\n"
    os.close(master)
    os.close(slave)


def test_last_sync_is_in_utc(run: Run, base: str) -> None:
    text = json.loads(run("info", base, "--json").out)["last_sync"]
    age = datetime.now(UTC) - datetime.fromisoformat(text)
    assert -2 < age.total_seconds() < 600


def test_closed_standard_streams_are_empty(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    program = " ".join(f"'{word}'" for word in PROGRAM)
    for command in ("put c a <&-", "ls c >&-", "ls gone 2>&-; test $? = 1", "verify c"):
        done = subprocess.run(["bash", "-c", f"{program} {command}"], cwd=tmp_path)
        assert done.returncode == 0, command
