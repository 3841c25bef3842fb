"""The command line: usage, errors, signals, streams: never more than one line of trouble."""

from __future__ import annotations

import array
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import click
import pytest
import stored
from click.testing import CliRunner
from commands import PROGRAM, Run, on_a_terminal, one_line
from seam import disk_calls, once

import winkfs
from winkformats import native
from winkformats.version import VERSION
from winkfs.cli import COMMANDS, GROUPS, cli
from winkfs.cli._common import explain, parse_time, printable
from winkfs.cli.words import WORDS
from winkfs.names import is_glob, literal_prefix

pytestmark = pytest.mark.slow


HEAVY = {"numpy", "xxhash", "mmh3", "rich", "winkfs.container.container", "tarfile"}


# --- help and usage ---


@pytest.mark.few(4)
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
        ["create", "c", "--isz", "48"],
        ["create", "c", "--isz", "100"],
        ["create", "c", "--isz", "1048584"],
        ["create", "c", "--havedups", "--compress", "zstd"],
        ["pack", "-", "c", "--files-from", "-"],
        ["rm", "c"],
        ["cat", "c"],
        ["dataset", "vacuum", "ds", "--older-than", "soon"],
        ["dataset", "vacuum", "ds", "--keep", "0"],
        ["dataset", "compact", "ds", "--shard-size", "-1"],
        ["pack", ".", "new", "--shards", "0"],
        ["pack", ".", "new", "--shards", "2", "--classic"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run: Run, args: list[str]) -> None:
    assert "--help" in one_line(run(*args), 2)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("pak . c", "no such command: pak: did you mean pack or unpack?: see winkfs --help"),
        ("stopre", "did you mean store"), ("xyzzy", "no such command: xyzzy: see winkfs --help"),
        ("extract c out", "no such command: extract: use winkfs unpack"),
        ("vacuum s", "use winkfs dataset vacuum"),
        ("dataset vacum s", "dataset: no such command: vacum: did you mean vacuum?"),
        ("queue list q", "queue: no such command: list: use winkfs queue ls: see"),
        ("unmount m", "use winkfs umount"), ("list c", "use winkfs ls"),
        ("mount c m --rw", "mount: no such option --rw: use winkfs mount without --ro: see"),
        ("pack t c --delete", "use winkfs sync DIR BASE --delete"),
        ("rm -rf c x", "no such option -f: use winkfs rm -r"),
        ("export c --tar -", "export: no such option --tar: use winkfs unpack --tar: see"),
        ("ls c --colums a", "--columns"), ("no\nsuch", "no\\nsuch"),
    ],
)  # fmt: skip
def test_a_wrong_word_names_the_right_one(run: Run, line: str, text: str) -> None:
    words = [line] if "\n" in line else line.split()
    assert text in one_line(run(*words), 2).replace("option: ", "option ")


PLACES = [(place, use) for place, uses in WORDS.items() for use in uses]


@pytest.mark.parametrize(("place", "use"), PLACES, ids=str)
def test_words_of_other_tools_name_what_is_there(place: str, use: str) -> None:
    """And they are themselves no words of ours."""
    known = {path.strip(): command for path, command in commands_below(cli, "")}
    here = known.get(place, cli)
    for word in WORDS[place][use].split():
        if isinstance(here, click.Group):
            assert f"{place} {word}".strip() not in known
        else:
            assert not any(word in param.opts for param in here.params), word
    words = use.replace(",", "").split()
    command = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
    if use not in ("--version", "help --man"):
        options = {option for param in known[command].params for option in param.opts}
        assert options >= {word for word in words if word.startswith("-")}


def test_h_is_help_only_alone(run: Run, base: str) -> None:
    assert run("ls", "-h") == run("ls", "--help")
    assert run("-h") == run("--help") and run("dataset", "-h").status == 0
    assert run("ls", "-lh", base).out.count(b"\n") == 8
    assert run("du", "-h", "-s", base).out == b"27\t.\n"


def test_one_of_something_is_no_plural(run: Run) -> None:
    stored.make("one", {"a": b"content"})
    assert run("verify", "one").out == b"one: 1 file, 2 entries: sound\n"
    stored.flip_text("one.data", b"content")
    assert run("verify", "one").out.endswith(b": 1 file, 1 entry: 2 problems\n")


def test_a_file_below_a_superblock_is_reported_with_its_size(run: Run, base: str) -> None:
    os.truncate("c.data", 3000)
    assert "expected 8192, found 3000" in one_line(run("ls", base))


def test_no_command_shows_the_help(run: Run) -> None:
    done = run()
    assert done.status == 2
    assert "Containers:" in done.err


def commands_below(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands_below(command, f"{path} {name}")


def test_each_command_is_in_one_group_of_the_help(run: Run) -> None:
    lines = run("--help").out.decode().partition("Containers:")[2].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(COMMANDS) and len(listed) == sum(map(len, GROUPS.values()))


def test_no_help_has_a_line_that_is_cut_or_too_long() -> None:
    found = []
    for path, command in [("winkfs", cli), *commands_below(cli, "winkfs")]:
        context = click.Context(command, info_name=path, terminal_width=80)
        _, *lines = command.get_help(context).splitlines()
        cut = isinstance(command, click.Group)
        found += [f"{path}: {one}" for one in lines if len(one) > 80 or (cut and one[-3:] == "...")]
    assert found == []


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


@pytest.mark.parametrize("data", [b"", b"hello" * 3000], ids=["empty", "text"])
def test_what_is_no_container_is_one_line(run: Run, data: bytes) -> None:
    Path("x.data").write_bytes(data)
    for command in (["ls"], ["info"], ["reindex"], ["cat", "x", "a"], ["put", "x", "a"]):
        line = one_line(run(command[0], "x", *command[2:]))
        assert "x.data" in line


def test_unexpected_error_is_one_line(run: Run, base: str) -> None:
    def broken() -> None:
        raise ZeroDivisionError("oh")

    with disk_calls(once("open", ".data", broken)):
        assert "ZeroDivisionError" in one_line(run("stat", base, "docs"))


def test_a_failed_clean_up_after_a_signal_keeps_its_status(run: Run, base: str) -> None:
    def broken() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            os.close(-1)

    with disk_calls(once("open", ".data", broken)):
        done = run("stat", base, "docs")
    assert done.status == 130
    assert done.err.startswith("winkfs: SIGINT: Bad file descriptor") and done.err.count("\n") == 1


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
def test_errors_name_the_fault_the_place_and_the_remedy(error: Exception, text: str) -> None:
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


UNBUFFERED = os.environ | {"PYTHONUNBUFFERED": "1"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "command", [["ls", "c"], ["cat", "c", "a"], ["info", "c", "--json"], ["verify", "c"]]
)
def test_full_standard_output_is_one_line(tmp_path: Path, command: list[str]) -> None:
    stored.make(tmp_path / "c", {"a": b"1"})
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROGRAM, *command], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            env=UNBUFFERED if command[0] == "cat" else None,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


LIMIT = 100_000  # bytes of a file
LIMITED = [PROGRAM[0], "-c", f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({LIMIT},) * 2); "
           + PROGRAM[2]]  # fmt: skip


@pytest.mark.parametrize("command", ["cat c large", "ls c --json", "grep c n", "unpack c --tar -"])
def test_output_that_is_cut_is_an_error(tmp_path: Path, command: str) -> None:
    """The system writes what fits below the limit, and refuses the next write."""
    many = {f"{'n' * 200}{i}": b"" for i in range(900)}
    stored.make(tmp_path / "c", {"large": b"line\n" * 60_000} | many)
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [*LIMITED, *command.split()], cwd=tmp_path, stdout=out, stderr=subprocess.PIPE,
            text=True, env=UNBUFFERED,
        )  # fmt: skip
    assert (done.returncode, (tmp_path / "out").stat().st_size) == (1, LIMIT)
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("blocking", [True, False])
def test_a_small_pipe_gets_all_or_it_is_an_error(tmp_path: Path, blocking: bool) -> None:
    content = b"line\n" * 60_000
    stored.make(tmp_path / "c", {"large": content})
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, blocking)
    with os.fdopen(reader, "rb") as pipe, subprocess.Popen(
        [*PROGRAM, "cat", "c", "large"], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE,
        env=UNBUFFERED,
    ) as process:  # fmt: skip
        os.close(writer)
        assert process.stderr is not None
        if blocking:
            assert pipe.read() == content
        assert process.stderr.read().count(b"\n") == (not blocking)
    assert process.returncode == (not blocking)


# --- signals ---


def wait_until_read(pipe: IO[bytes]) -> None:
    """Until nothing is left in a pipe, and who reads it has had time to wait for more."""
    left = array.array("i", [1])
    while left[0]:
        time.sleep(0.05)
        fcntl.ioctl(pipe, termios.FIONREAD, left)
    time.sleep(0.1)


@pytest.mark.few
@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")]
)
@pytest.mark.parametrize("command", [["pack", "-", "new"], ["put", "c", "a"], ["append", "c", "a"]])
def test_signal_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, number: signal.Signals, line: str, command: list[str]
) -> None:
    stored.make(tmp_path / "c", {"a": b"old"})
    with subprocess.Popen(
        [*PROGRAM, *command], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(bytes(3_000_000))
        process.stdin.flush()
        wait_until_read(process.stdin)
        process.send_signal(number)
        process.wait(60)
        assert process.stderr.read().decode() == f"winkfs: {line}\n"
    assert process.returncode == 128 + number
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "c.cat", "c.data", "c.idx", "c.lock",
    ]  # fmt: skip
    assert stored.read(tmp_path / "c", "a") == b"old"


@pytest.mark.parametrize("line", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_interrupt_while_the_program_loads_is_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "click.py").write_text(line)  # classes are made by `exec`, which marks the process
    done = subprocess.run([sys.executable, "-m", "winkfs"], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, b"winkfs: interrupted\n")


def test_a_second_writer_gets_the_name_of_the_lock_holder(run: Run, base: str) -> None:
    with winkfs.open(base, "a"):
        line = one_line(run("put", base, "a"))
    assert str(os.getpid()) in line and line.startswith("winkfs: c: ")


def test_progress_bar_is_for_terminals_and_long_work() -> None:
    code = (
        "import time; from winkfs.cli import _common; _common.PATIENCE = 0.05\n"
        "with _common.Progress('packing', 'files') as bar:\n"
        "    for i in range(5): bar(1000); time.sleep(0.1)\n"
        "    bar.warn('a\\nb')\n"
    )
    shown = on_a_terminal("stderr", sys.executable, "-c", code)
    assert b"packing" in shown and b"5,000 files" in shown and b"winkfs: a\\nb" in shown
    assert re.search(rb"[1-9][\d,]*/s", shown) and b"left" not in shown
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert quiet.stderr == b"winkfs: a\\nb\n"


@pytest.mark.parametrize(
    ("env", "bar", "colours"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
)
def test_progress_of_known_size_has_the_time_left(
    env: dict[str, str], bar: bool, colours: bool
) -> None:
    code = (
        "import time; from winkfs.cli import _common; _common.PATIENCE = 0.05\n"
        "with _common.Progress('verifying', 'bytes', 40_000_000) as bar:\n"
        "    for i in range(4): bar(5_000_000); time.sleep(0.15)\n"
    )
    shown = on_a_terminal("stderr", sys.executable, "-c", code, env=env)
    assert (b"verifying" in shown) == bar and (b"/40.0 MB" in shown) == bar
    assert bool(re.search(rb"left \S*0?0:0\d", re.sub(rb"\x1b\[[\d;]*m", b"", shown))) == bar
    assert bool(re.search(rb"\x1b\[[\d;]*3[1-7]m", shown)) == colours


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "command", ["put c a <&-", "ls c >&-", "ls gone 2>&-; test $? = 1", "verify c"]
)
def test_closed_standard_streams_are_empty(tmp_path: Path, command: str) -> None:
    winkfs.create(tmp_path / "c").close()
    program = " ".join(f"'{word}'" for word in PROGRAM)
    done = subprocess.run(["bash", "-c", f"{program} {command}"], cwd=tmp_path)
    assert done.returncode == 0, command


# --- completion ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(
    run: Run, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("completion", shell)
    assert done.status == 0 and b"_WINKFS_COMPLETE" in done.out
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert run("completion").out == done.out
    monkeypatch.setenv("_WINKFS_COMPLETE", f"{shell}_source")
    assert run().out.strip() == done.out.strip()
    monkeypatch.delenv("_WINKFS_COMPLETE")
    monkeypatch.setenv("SHELL", "/bin/none")
    assert "bash, zsh, fish" in one_line(run("completion"), 2)


@pytest.mark.parametrize("command", [["ls"], ["dataset", "compact"], []])
def test_help_of_a_command_by_its_name(run: Run, command: list[str]) -> None:
    done = run("help", *command)
    assert done == run(*command, "--help") and done.status == 0 and b"Usage: winkfs" in done.out
    assert "nothing" in one_line(run("help", "nothing"), 2)


@pytest.mark.parametrize(("code", "name"), [(object(), "compiled"), (None, "pure Python")])
@pytest.mark.parametrize("arguments", [["--version"], ["info", "--version"]])
def test_the_version_names_the_path_that_runs(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, code: object, name: str
) -> None:
    monkeypatch.setattr(native, "code", code)
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    assert done.output == f"winkfs {VERSION} ({name})\n"
