"""Programs in namespaces of their own: of mounts, so that /sbin, /etc/fstab and /dev/fuse can be
what a test needs; of processes, so that all of them, servers too, die with the script.

    private = Private(tmp_path)       # skips where the machine cannot
    done = private.run("mount -t winkfs corpus mnt; ...")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from mounting import need_fuse

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534
# mounts of others that were copied into the namespace would outlive their umount
PREPARE = "umount -a -i -l -t fuse.winkfs,fuse.memory || true\n"
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def packages() -> list[str]:
    """Where the packages under test lie, for sys.path of another Python."""
    found = [find_spec(name) for name in ("winkfs", "winkformats", "winkmount")]
    return [str(Path(spec.origin).parent.parent) for spec in found if spec and spec.origin]


def programs(directory: Path) -> None:
    """The programs that an installation makes from pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, function = entry.split(":")
        (directory / name).write_text(
            f"#!{sys.executable}\nimport sys\nsys.path[:0] = {packages()!r}\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        (directory / name).chmod(0o755)


class Private:
    """A directory `sbin`, whose programs come before those of /sbin, and a way to run scripts."""

    def __init__(self, directory: Path) -> None:
        need_fuse()
        if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("mount.fuse3"):
            pytest.skip("needs root, unshare and mount.fuse3")
        self.directory = directory
        self.sbin = directory / "sbin"
        self.sbin.mkdir()
        probe = self._run("true", 20)
        if probe.returncode:
            pytest.skip(f"no namespaces here: {probe.stderr.strip()}")

    def run(self, script: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell script in `directory`; nothing it started is left behind."""
        return self._run(f"{PREPARE}set -e\n{script}", seconds)

    def _run(self, script: str, seconds: float) -> subprocess.CompletedProcess[str]:
        sbin = os.path.realpath("/sbin")
        overlay = f"mount -t overlay overlay -o lowerdir={self.sbin}:{sbin} {sbin} || exit 9\n"
        return subprocess.run(
            [*UNSHARE, "sh", "-uc", overlay + script],
            capture_output=True, text=True, timeout=seconds, cwd=self.directory,
        )  # fmt: skip
