"""Commands of the CLI for its tests, in this process or as a program."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner, Result

import winkfs
from winkfs.cli import main

PROGRAM = [sys.executable, "-c", "import sys; from winkfs.__main__ import main; sys.exit(main())"]


class Done(NamedTuple):
    status: int
    out: bytes
    err: str


Run = Callable[..., Done]


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("args", nargs=-1)
def program(args: tuple[str, ...]) -> None:
    with kept_signals():
        status = main(args)
    sys.stderr.flush()  # click 8.1.0 takes what has been flushed
    raise SystemExit(status)


def invoke(*args: object, stdin: bytes | None = None) -> Result:
    """Run a command in this process and in its directory."""
    asked = "mix_stderr" in inspect.signature(CliRunner).parameters  # of click 8.1
    runner = CliRunner(**({"mix_stderr": False} if asked else {}))  # type: ignore[arg-type]
    return runner.invoke(program, [str(arg) for arg in args], input=stdin)


@pytest.fixture
def run(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Run]:
    """Run a command in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def command(*args: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([os.fspath(a) if isinstance(a, Path) else str(a) for a in args])
        out, err = capfdbinary.readouterr()
        return Done(status, out, err.decode("utf-8", "surrogateescape"))

    with kept_signals():
        yield command


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


def on_a_terminal(
    stream: str, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> bytes:
    """What a program prints where "stdout" or "stderr" is a terminal."""
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as terminal:
        with os.fdopen(slave, "wb") as end:
            subprocess.run(  # type: ignore[call-overload]
                command,
                check=True,
                cwd=cwd,
                env=os.environ | {"TERM": "xterm"} | (env or {}),
                **{stream: end},
            )
        shown = b""
        with contextlib.suppress(OSError):  # EIO: its end
            while data := terminal.read(1000):
                shown += data
    return shown


def one_line(done: Done, status: int = 1) -> str:
    """The line of an error, which must be the only one."""
    assert done.status == status
    assert done.out == b""
    assert done.err.startswith("winkfs: ")
    assert done.err.count("\n") == 1
    return done.err


def listed(done: Done) -> list[str]:
    assert (done.status, done.err) == (0, "")
    return done.out.decode("utf-8", "surrogateescape").splitlines()


def session(run: Run, text: str) -> None:
    """Run each command that stands behind "$ ". Fail unless it prints the lines below it and
    succeeds, or fails with one line that begins with "winkfs: "; "..." is any text."""
    for part in re.split(r"^\$ ", textwrap.dedent(text), flags=re.MULTILINE)[1:]:
        command, _, lines = part.partition("\n")
        done = run(*shlex.split(command))
        fails = lines.startswith("winkfs: ")
        answer = one_line(done) if fails else "".join(f"{line}\n" for line in listed(done))
        pattern = re.escape(lines).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, answer, re.DOTALL), f"{command}: {answer}"
