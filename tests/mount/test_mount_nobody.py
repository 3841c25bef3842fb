"""A mount of an ordinary user, by fusermount3."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mounting
import pytest
from private import NOBODY, Private, packages

import winkfs

base, there = mounting.base, mounting.there  # fixtures


def _python_of_everybody() -> str | None:
    """A Python that another user may run, and that finds what we import."""
    modules = "numpy.strings, click, xxhash, mmh3, winkfs, winkmount"
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [python, "-c", f"import {modules}"], capture_output=True, cwd="/",
                user=NOBODY, group=NOBODY, extra_groups=[],
                env={"PYTHONPATH": os.pathsep.join([*packages(), *sys.path])},
            )  # fmt: skip
            if done.returncode == 0:
                return python
    return None


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="winkfs-nobody-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.mount
def test_ordinary_user_mounts_and_unmounts(open_directory: Path) -> None:
    if not Path("/etc/mtab").exists():
        pytest.skip("no /etc/mtab, which fusermount3 wants to see for an ordinary user")
    private = Private(open_directory)
    python = _python_of_everybody()
    if python is None:
        pytest.skip("no Python that an ordinary user may run")
    (open_directory / "winkfs").write_text(
        f"#!{python}\nimport sys\nsys.path[:0] = {[*packages(), *sys.path]!r}\n"
        "from winkfs.cli import main\nsys.exit(main())\n"
    )
    (open_directory / "winkfs").chmod(0o755)
    (open_directory / "script").write_text(USER)
    done = private.run(
        f"""
        mkdir dev; mount -t tmpfs -o dev tmpfs dev
        mknod dev/fuse c 10 229; chmod 666 dev/fuse; mount --bind dev/fuse /dev/fuse
        user="setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
        mkdir root
        $user ./winkfs create shared
        rm shared.lock
        ./winkfs mount shared root
        ! $user ./winkfs umount root 2>&1
        ./winkfs umount root
        $user ./winkfs put shared x < script  # the lock that root has left is its own
        exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -eu script
        """
    )
    assert done.returncode == 0, done.stderr
    refused, *others = done.stdout.splitlines()
    assert refused.endswith("/root: mounted by another user: that user or root can unmount it")
    assert others == ["hi", "rw", "dead", "again", "hi"]
    assert done.stderr == ""
    with winkfs.open(open_directory / "corpus") as container:
        assert container.stat("new").uid == NOBODY


USER = """
./winkfs create corpus
mkdir mnt
./winkfs mount corpus mnt
echo hi > mnt/new
cat mnt/new
./winkfs mounts | grep -o ' rw ' | tr -d ' '
sync mnt/new
kill -9 $(cat corpus.lock)
while ls mnt 2> /dev/null; do sleep 0.1; done
./winkfs mounts | grep -o dead
./winkfs mount corpus mnt
echo again
cat mnt/new
./winkfs umount mnt
./winkfs verify corpus > /dev/null
"""
