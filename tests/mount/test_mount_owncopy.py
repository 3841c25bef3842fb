"""The data file of a container that is copied into the mount of the container."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from mounting import mounted, run
from stored import make

import winkfs
from winkmount.binding import BINDINGS

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]
KINDS = {"plain": {}, "classic": {"classic": True}}
LIMIT = 60 << 20  # bytes that a program may write: it ends when all else fails


def container(base: Path, files: int, **kind: bool) -> Path:
    make(base, ((f"f{i}", os.urandom(1 << 20)) for i in range(files)), **kind)
    return base


def copy(source: Path, to: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = f"ulimit -f {LIMIT >> 10}; exec {program} {source} {to}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)


@pytest.mark.few
@pytest.mark.parametrize("program", ["cp", "cp --sparse=always", "dd-like"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_its_own_data_file_ends(tmp_path: Path, kind: str, program: str) -> None:
    base = container(tmp_path / "c", 5, **KINDS[kind])
    data = Path(f"{base}.data")
    if program == "dd-like":
        program = "python3 -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])'"
    with mounted(base) as there:
        size, head = data.stat().st_size, data.read_bytes()
        done = copy(data, there / "copy", program)
        assert done.returncode == 1 and "File too large" in done.stderr
        held = (there / "copy").stat().st_size
        assert data.stat().st_size < size + held + (8 << 20)
        assert size - (1 << 20) <= held < size + (9 << 20)
        with (there / "copy").open("rb") as file:
            file.seek(8192)
            assert file.read(size - (1 << 21)) == head[8192:][: size - (1 << 21)]
        (there / "other").write_bytes(b"goes on")
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("binding", BINDINGS)
def test_other_copies_of_containers_are_whole(tmp_path: Path, binding: str) -> None:
    base, later = container(tmp_path / "c", 3), tmp_path / "later.data"
    small, large = container(tmp_path / "small", 1), container(tmp_path / "large", 8)
    earlier = shutil.copyfile(f"{base}.data", tmp_path / "earlier.data")
    shutil.copytree(tmp_path, tmp_path / "kept", ignore=lambda *_: {"kept"})
    with winkfs.open(tmp_path / "kept/c", "a") as grown:  # same CONTID, more files
        grown.put_many((f"more{i}", os.urandom(1 << 20)) for i in range(6))
    shutil.copyfile(tmp_path / "kept/c.data", later)
    with mounted(base, "--binding", binding) as there:
        for source in (earlier, later, Path(f"{small}.data"), Path(f"{large}.data")):
            run("cp", source, there / "copy")
            assert (there / "copy").read_bytes() == source.read_bytes(), source
            (there / "copy").unlink()
