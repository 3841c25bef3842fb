"""Ctrl-C in the midst of a large pack: the end comes at once, without a pass over the container."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stored

import winkfs

MB = 1 << 20
FILES = 120
PROGRAM = """
import atexit, os, sys
from winkfs.__main__ import main
read = lambda: int(open("/proc/self/io").read().split()[1])
start = read()
atexit.register(lambda: print("read", read() - start, file=sys.stderr))
sys.exit(main())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for i in range(FILES):
        (folder / f"{i:03}").write_bytes(bytes([i]) * MB)
    return folder


def bytes_read(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("update", [False, True])
def test_an_interrupted_pack_does_not_read_its_output(
    update: bool, source: Path, tmp_path: Path
) -> None:
    base = tmp_path / "c"
    if update:
        stored.make(base, {"old": b"1"} | {f"old{i}": bytes(MB) for i in range(60)})
    command = ["pack", *(["--update"] if update else []), str(source), str(base)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command], stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while bytes_read(process.pid) < FILES * MB * 0.7:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err, err
    read = int(err.split()[err.split().index("read") + 1])
    assert read < FILES * MB * 1.15
    if update:
        assert winkfs.verify(base).problems == []
        with winkfs.open(base) as c:
            assert c.read("old") == b"1" and len(c) >= 61
    else:
        assert list(tmp_path.iterdir()) == []
