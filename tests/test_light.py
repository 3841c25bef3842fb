"""`import winkfs` is light: what a tool, a command or a worker pays before it does anything."""

from __future__ import annotations

import subprocess
import sys

MOST_MS = 40
HEAVY = ("numpy", "pyarrow", "fsspec", "polars", "duckdb", "pandas", "asyncio", "click", "rich")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options], capture_output=True, text=True, check=True)


def test_it_imports_no_library() -> None:
    code = "import sys, winkfs, winkfs.polars, winkfs.fsspec; print(*sys.modules)"
    found = set(run("-c", code).stdout.split())
    assert "winkfs.fsspec" in found and not found & set(HEAVY)


def test_it_takes_little_time() -> None:
    """The best of some, for other tests run beside it."""
    found: list[float] = []
    while len(found) < 20 and min(found, default=MOST_MS + 1) > MOST_MS:
        lines = run("-X", "importtime", "-c", "import winkfs").stderr.splitlines()
        microseconds, name = lines[-1].split("|")[1:]
        assert name.strip() == "winkfs"
        found.append(int(microseconds) / 1000)
    assert min(found) <= MOST_MS, found
