"""examples/train.py: a run that was stopped ends as one that was not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from folders import write_files

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/train.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_goes_on_exactly(tmp_path: Path) -> None:
    texts = {f"{i}/copyright": b"GPL, version %d\n" % i * 9 for i in range(40)}
    pages = {f"{i}/index.html": b"<p>page</p>" * (i + 1) for i in range(40)}
    write_files(tmp_path / "doc", {**texts, **pages})
    found = run(tmp_path / "doc", "--workers", 1)
    assert found.returncode == 0, found.stderr
    first, whole, _, last = found.stdout.splitlines()
    assert first.startswith("80 files")
    assert "9 batches" in whole
    assert last == "went on for 5 batches with 0 workers: equal losses and weights"


def test_no_files(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.returncode == 1
    assert found.stderr == f"{tmp_path}: there are no files of at most 64 KiB\n"
