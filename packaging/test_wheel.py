"""Test an installed wheel: the tests of the formats, and the README's Python, commands and mount.

    python packaging/test_wheel.py WHEEL [ARGUMENTS OF PYTEST]

The wheel is installed into a new virtual environment, and the tests run in a copy without sources:
both in a temporary folder. The tests are those of this checkout, of whose sources the wheel has to
be. It needs no compiler, no libfuse, no git; without /dev/fuse, or without the right to mount, the
mount is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COPIED: Final = ("tests", "docs", "examples", "scripts", "README.md", "pyproject.toml")
TOOLS: Final = ("pytest", "hypothesis")
README: Final = [
    f"tests/test_docs_blocks.py::test_the_{what}_of_a_page_run{s}[README.md]"
    for what, s in (("python", "s"), ("commands", ""), ("mounts", ""))
]


def install(wheel: Path, folder: Path) -> Path:
    """Raises CalledProcessError. -> the Python that has it"""
    venv.create(folder, with_pip=True)
    own = folder / "bin/python"
    command: list[str | Path] = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    constraints = ROOT / "packaging/constraints-dev.txt"
    subprocess.run([*command, "-c", constraints, f"{wheel}[compress,cloud]", *TOOLS], check=True)
    return own


def copy(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(source, folder / name)
    shutil.copyfile(ROOT / "packaging/installed.py", folder / "conftest.py")


def main(arguments: list[str]) -> int:
    if not arguments or not Path(arguments[0]).is_file():
        print("test_wheel.py WHEEL: no such file; make one with: make wheels", file=sys.stderr)
        return 1
    wheel = Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory(prefix="winkfs-wheel-") as folder:
        own = install(wheel, Path(folder, "venv"))
        place = Path(folder, "tests-only")
        copy(place)
        subprocess.run([own.parent / "winkfs", "--version"], check=True, cwd=folder)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        tests = [str(own), "-m", "pytest", *README, "tests/formats", *arguments[1:]]
        return subprocess.run(tests, cwd=place, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
