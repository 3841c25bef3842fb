"""Man pages: those in docs/man are made from the commands, and read well."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from commands import Run, one_line

from scripts import manual
from winkfs.cli import COMMANDS
from winkfs.cli.manual import page

BETTER = "run python -m scripts.manual"


def test_the_pages_are_those_of_the_commands() -> None:
    made = manual.pages()
    assert sorted(path.name for path in manual.FOLDER.iterdir()) == sorted(made), BETTER
    assert [name for name in made if (manual.FOLDER / name).read_text() != made[name]] == [], BETTER


def test_help_prints_a_page(run: Run) -> None:
    for words in [], ["verify"], ["dataset"]:
        name = "-".join(["winkfs", *words])
        assert (
            run("help", "--man", *words).out.decode() == (manual.FOLDER / f"{name}.1").read_text()
        )
    sub = run("help", "--man", "dataset", "compact").out.decode()
    assert ".TH WINKFS-DATASET-COMPACT 1" in sub and r"\fB\-\-all\fR" in sub
    assert "did you mean verify" in one_line(run("help", "--man", "verfy"), 2)
    assert "no commands" in one_line(run("help", "--man", "ls", "x"), 2)
    assert r"\fBwinkfs\-verify\fR(1)" in run("help", "--man").out.decode()
    assert len(re.findall("^.TP$", run("help", "--man").out.decode(), re.MULTILINE)) >= len(
        COMMANDS
    )


def test_text_cannot_be_a_request() -> None:
    @click.group()
    def root() -> None: ...

    @root.command(name="x")
    @click.option("--a", help=".B not a request 'quoted' \\fB")
    def x(a: str) -> None:
        """Do.

        .so /etc/passwd

        \b
        .kept  as it is
        """

    text = page(root, ["x"])
    assert r"\&.so /etc/passwd" in text and r"\&.kept  as it is" in text
    assert r"\&.B not a request \(aqquoted\(aq \efB" in text


@pytest.mark.skipif(not shutil.which("mandoc"), reason="no mandoc")
def test_mandoc_finds_nothing() -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *sorted(map(str, manual.FOLDER.iterdir()))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_groff_warns_of_nothing() -> None:
    some = [Path(manual.FOLDER / f"winkfs{name}.1") for name in ("", "-verify", "-queue", "-find")]
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *map(str, some)], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == "" and "--checksum" in done.stdout
