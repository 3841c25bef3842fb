"""Completion in bash, zsh and fish: what is typed into the shells, on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import data_sets
import pytest
import stored

import winkfs
from winkfs.cli import cli, complete
from winkfs.cli.complete import SCRIPTS, answer

pytestmark = pytest.mark.slow

START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
PREPARE = {
    "bash": "PS1='ready> '; bind 'set enable-bracketed-paste off'; ",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; ",
    "fish": "function fish_prompt; echo 'ready> '; end; ",
}
SOURCE = {
    "bash": "source ./script",
    "zsh": "source ./script",
    "fish": "source ./script",
}
NAMES = [
    "docs/a b/it's.txt", "docs/a b/x$y\"z", "docs/index.html", "bananas", "a,b:c=d", "\u00fcber",
]  # fmt: skip
TAKES = f"""#!{sys.executable}
import json, os, sys
if "_WINKFS_COMPLETE" in os.environ:
    from winkfs.cli import main
    sys.exit(main())
with open("typed", "w") as file:
    json.dump(sys.argv[1:], file)
os.rename("typed", "args")
"""


class Shell:
    """An interactive shell on a terminal."""

    def __init__(self, shell: str, program: str, folder: Path) -> None:
        self.folder = folder
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder),
                   "TERM": "xterm", "LANG": "C.UTF-8"}  # fmt: skip
            os.execve(program, [program, *START[shell]], env)
        self.pid, self.shown = pid, b""
        self.type(f"{PREPARE[shell]}{SOURCE[shell]}\n")
        self.wait(lambda: self.shown.count(b"ready> ") >= 2)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not done():
            assert time.monotonic() < until, self.shown
            if select.select([self.terminal], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    self.shown += os.read(self.terminal, 4096)

    def runs(self, text: str) -> list[str]:
        """Return the arguments of the program after a line was typed."""
        path = self.folder / "args"
        self.shown = b""
        self.type(f"{text}\n")
        self.wait(lambda: path.exists() and b"ready> " in self.shown)
        args: list[str] = json.loads(path.read_text())
        path.unlink()
        return args

    def close(self) -> None:
        os.close(self.terminal)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a container, a data set and the program."""
    stored.make(tmp_path / "corpus", dict.fromkeys(NAMES, b""), columns={"lang": "string"})
    data_sets.add(tmp_path / "set", {"seta/one": b""})
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "winkfs"
    program.write_text(TAKES)
    program.chmod(0o755)
    return tmp_path


# bash is the one that each machine has
@pytest.fixture(
    params=[pytest.param(one, marks=[pytest.mark.long] if one != "bash" else []) for one in SCRIPTS]
)
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shell]:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param}")
    (folder / "script").write_text(SCRIPTS[request.param])
    found = Shell(request.param, program, folder)
    yield found
    found.close()


def test_what_a_tab_completes_in_a_real_shell(shell: Shell) -> None:
    line = "winkfs grep corp\td\ta\ti\t --where=la\t 'docs/a b/x\t a\t"
    names = [NAMES[0], "--where=lang", NAMES[1], NAMES[4]]
    assert shell.runs(line) == ["grep", "corpus", *names]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("winkfs re", ["report", "reindex", "repair", "remote"]),
        ("winkfs reindex --j", ["--json"]),
        ("winkfs ls c", ["c", "corpus"]), ("winkfs ls ", ["c", "corpus", "sub/"]),
        ("winkfs ls sub/", ["sub/deep"]), ("winkfs ls su", ["dir"]),
        ("winkfs put c name ", ["file"]), ("winkfs ls nowhere/x", ["dir"]),
    ],
)  # fmt: skip
def test_commands_options_and_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("c", "sub/deep", "corpus", "odd\nname"):
        winkfs.create(tmp_path / name).close()
    monkeypatch.setenv("_WINKFS_LINE", line)
    monkeypatch.setenv("_WINKFS_CUT", str(len(line.split(" ")[-1])))
    lines = [text.split("\t") for text in answer(cli, "bash").splitlines()]
    assert [value if kind == "plain" else kind for kind, value, _ in lines] == offered


def offers(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("_WINKFS_LINE", line)
    monkeypatch.setenv("_WINKFS_CUT", "0")
    return [text.split("\t")[1] for text in answer(cli, "fish").splitlines()]


def test_words_and_what_completes_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for line, offered in [
        ("winkfs cat corpus ", [NAMES[4], "bananas", "docs/", NAMES[5]]),
        ("winkfs cat corpus docs/", ["docs/a b/", "docs/index.html"]),
        ("winkfs mv corpus bananas do", ["docs/"]),
        ("winkfs grep corpus x b", ["bananas"]),
        ("winkfs cat gone ", []),
        ("winkfs cat s3://none/there b", []),
        ("winkfs cat script b", []),
        ("winkfs ls corpus --columns lang,", []),
        ("winkfs ls corpus --where 'size > 3 and l", ["size > 3 and lang"]),
        ("winkfs ls corpus --format '{path} {si", ["{path} {size}"]),
        ("winkfs tree corpus d", ["docs/"]),
        ("winkfs unpack corpus out d", ["docs/"]),
        ("winkfs ls set ", ["seta/"]),
        ("winkfs compact corpus --order ", ["disk", "name"]),
    ]:
        assert offers(line, monkeypatch) == offered, line


def test_large_directories_are_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(complete, "MOST", 3)
    with winkfs.open("corpus", "a") as c:
        c.put_many([(f"docs/many/{i:05}", b"") for i in range(3000)])
        c.put("docs/empty", b"", ftype=winkfs.FileType.DIR)
        c.put("docs/odd\n", b"")
    for _ in range(2):
        assert offers("winkfs ls corpus docs/m", monkeypatch) == ["docs/many/"]
        many = [f"docs/many/0000{i}" for i in range(3)]
        assert offers("winkfs ls corpus docs/many/", monkeypatch) == many
        assert offers("winkfs ls corpus docs/e", monkeypatch) == ["docs/empty/"]
        assert offers("winkfs ls corpus docs/o", monkeypatch) == []
        winkfs.reindex("corpus")  # now there is a catalog
