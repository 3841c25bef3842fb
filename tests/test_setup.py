"""The set-up scripts: what cannot be had is reported in one line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def fake(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def run(
    script: str, *arguments: str, path: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", SCRIPTS / script, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": str(path), **environment},
        cwd=path,
        check=False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH on which next to nothing is installed; its user is not root."""
    for name in ("grep", "sed"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / name).symlink_to(program)
    fake(tmp_path, "id", "echo 1000")
    fake(tmp_path, "ldconfig", "true")
    return tmp_path


@pytest.mark.parametrize("parts", ["run", "test"])
def test_packages_missing_without_root_are_one_line(machine: Path, parts: str) -> None:
    done = run("system-packages", parts, path=machine)
    wanted = "python3-venv fuse3 openjdk-17-jre-headless"
    if parts == "test":
        wanted += " libfuse2 rsync file attr git sqlite3 vim make patch zip unzip gcc libc6-dev"
        wanted += " e2fsprogs strace btrfs-progs"
    assert done.stderr == f"missing: {wanted}; get it with: sudo apt-get install {wanted}\n"
    assert (done.returncode, done.stdout) == (0, "")


def test_only_packages_that_apt_cannot_get_are_reported(machine: Path) -> None:
    fake(machine, "id", "echo 0")
    fake(machine, "apt-get", '[ "$1" = update ] || [[ "$*" == *-21-* || "$*" == *fuse3 ]]')
    done = run("system-packages", "run", path=machine)
    assert done.stderr.splitlines() == [
        "system packages: installing python3-venv fuse3 openjdk-17-jre-headless",
        "missing: python3-venv; get it with: sudo apt-get install python3-venv",
    ]


def test_nothing_missing_asks_nothing(machine: Path) -> None:
    for name in ("python3", "fusermount3"):
        fake(machine, name, "true")
    fake(machine, "ldconfig", "echo libfuse3.so.3; echo libfuse.so.2")
    fake(machine, "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    done = run("system-packages", "run", path=machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_too_old_python_is_one_line(machine: Path) -> None:
    fake(machine, "python3", "exit 1")
    done = run("venv", ".venv", "spark", path=machine)
    assert done.returncode == 1
    assert done.stderr.startswith("set-up: python3 is not Python 3.11 or newer")
    assert done.stderr.count("\n") == 1
