"""Run the tests with each Python that winkfs is for, with the lowest versions of its dependencies,
and without what it can do without.

    python -m scripts.versions [NAME ...]       all: 3.11 3.12 3.13 3.14 lowest hf ray bare

    3.11 ...   that Python, newest dependencies, PySpark too
    lowest     Python 3.11, each dependency in the lowest version that pyproject.toml declares
    hf, ray    the same for this extra alone, whose lowest version excludes those of others
    bare       no compiler, no PySpark, no pyarrow, no zstandard, no FastWARC: `pip install .` alone

Each runs FAST, the tests of the whole tree that need no mount, no Spark and little time, without
those of very many cases (each byte damaged, a stop at each call): what these find depends on no
version. What does is used all over the others: the standard library, numpy's types, click, pyarrow.
MOUNT mounts through each binding; SPARK goes through sources, sinks, streams, pandas and a job.
`bare` skips what needs an extra. All together take half an hour on two cores.

Each has a clone and a virtual environment of its own in build/versions, which are kept: a second
run is faster. A Python that is not there is left out, and named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / "build/versions"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
ALONE: Final = {"hf": "tests/tools/test_hugging_face.py", "ray": "tests/tools/test_ray.py"}
"""Extras whose lowest versions exclude those of others, and their tests."""
NAMES: Final = (*PYTHONS, "lowest", *ALONE, "bare")
DEVELOPMENT: Final = ("dev", "bench", "tools")  # extras of which the newest will do
TOOLS: Final = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100")
FAST: Final = ["-m", "not mount and not spark and not slow and not soak"]
MOUNT: Final = "tests/mount/test_mount_container.py"
SPARK: Final = (
    "tests/spark/test_spark_columns.py", "tests/spark/test_jobs_ingest.py",
    "tests/spark/test_spark_private.py",
)  # fmt: skip


def python_of(version: str) -> str | None:
    """Return a Python of this version: of the PATH, or of pyenv; None where there is none."""
    if found := shutil.which(f"python{version}"):
        done = subprocess.run([found, "-c", "import ensurepip"], capture_output=True)
        if done.returncode == 0:
            return found
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    made = sorted(folder.glob(f"{version}.*/bin/python"))
    return str(made[-1]) if made else None


def lowest(name: str) -> list[str]:
    """Return "name==version" for the lower bound of each dependency, also those of an extra of
    ALONE, or for another name of all other extras; of several bounds the lowest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    some = ["arrow", name] if name in ALONE else extras.keys() - {*DEVELOPMENT, *ALONE}
    wanted = project["dependencies"] + [one for extra in some for one in extras[extra]]
    found: dict[str, str] = {}
    for requirement in wanted:
        package, bound, rest = requirement.partition(">=")
        least = rest.partition(",")[0]
        if bound:
            both = least, found.get(package, least)
            found[package] = min(both, key=lambda each: [int(part) for part in each.split(".")])
    return [f"{package}=={version}" for package, version in found.items()]


def clone(name: str) -> Path:
    """Make, or renew, the clone of what is committed; return its folder."""
    source = PLACE / name / "source"
    if not source.exists():
        subprocess.run(["git", "clone", "-q", ROOT, source], check=True)
    subprocess.run(["git", "-C", source, "fetch", "-q", ROOT, "HEAD"], check=True)
    subprocess.run(["git", "-C", source, "checkout", "-q", "FETCH_HEAD"], check=True)
    return source


def prepare(name: str, python: str, source: Path) -> Path:
    """Make the virtual environment; return its Python."""
    venv = PLACE / name / "venv"
    own = venv / "bin/python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", venv], check=True)
    environment = dict(os.environ)
    for built in source.glob("formats/winkformats/_native.*.so"):
        built.unlink()  # one of an earlier build may come first
    extras, exact = "[all]", list(TOOLS)
    if name == "bare":
        extras, environment["CC"] = "", "false"  # setup.py leaves the compiled part out
    if name in ALONE:
        extras = f"[{name},polars]"
    if name in ("lowest", *ALONE):
        exact += lowest(name)
    install = [
        str(own),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--use-pep517",
    ]
    subprocess.run([*install, "--editable", f".{extras}", *exact], cwd=source, env=environment,
                   check=True)  # fmt: skip
    packages = subprocess.run(
        [own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    link = Path(packages, "pyspark_winkfs")  # as scripts/venv makes it
    if not link.exists():
        link.symlink_to(source / "pyspark_winkfs")
    return own


def run(name: str) -> str:
    """Run the tests of one; return "passed", "failed" or why it was left out."""
    python = python_of(name if name in PYTHONS else "3.11")
    if python is None:
        return "left out: no such Python here"
    source = clone(name)
    try:
        own = prepare(name, python, source)
    except subprocess.CalledProcessError:
        return "failed: its dependencies cannot be installed"
    native = "import winkformats.native as n; print('compiled' if n.code else 'pure Python')"
    found = subprocess.run([own, "-c", native], capture_output=True, text=True, cwd=source)
    print(f"== {name}: {python}, {found.stdout.strip()}", flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    failed = 0
    parts = [FAST, ["-m", "mount or spark", MOUNT, *(SPARK if name != "bare" else ())]]
    if name in ALONE:
        parts = [["--all", ALONE[name], "tests/arrow/test_names_in.py"]]
    for part in parts:
        tests = [str(own), "-m", "pytest", "-q", "-n", "2", *part]
        failed |= subprocess.run(tests, cwd=source, env=environment).returncode
    return "failed" if failed else "passed"


def main(names: list[str]) -> int:
    if unknown := set(names) - set(NAMES):
        print(f"no such version: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    results = {name: run(name) for name in names or NAMES}
    for name, result in results.items():
        print(f"{name:8} {result}")
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
