"""Mount options, seen through the kernel."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import mounting
import pytest
from container_checks import put
from mounting import (
    command,
    mounted,
    mounted_on,
    need_fuse,
    soon,
    stored,
)
from private import NOBODY

import winkfs
from winkmount.binding import BINDINGS

pytestmark = pytest.mark.in_memory

base, there = mounting.base, mounting.there  # fixtures


@pytest.mark.mount
@pytest.mark.parametrize("binding", BINDINGS)
def test_owner_and_umask_options_hold_for_every_request(base: str, binding: str) -> None:
    need_fuse(binding)
    with mounted(base, "-ouid=12,gid=34,umask=027", "--binding", binding) as there:

        def shown(found: os.stat_result) -> tuple[int, int, int]:
            return found.st_uid, found.st_gid, found.st_mode & 0o7777

        wanted = (12, 34, 0o750)
        assert shown(os.stat(there / "f")) == wanted
        for entry in os.scandir(there):  # attributes come with the listing
            assert shown(entry.stat()) == wanted
        (there / "new").write_bytes(b"x")
        os.chmod(there / "new", 0o600)
        assert shown(os.stat(there / "new")) == wanted
        with (there / "new").open("rb") as opened:
            assert shown(os.fstat(opened.fileno())) == wanted
        assert shown(os.stat(there / "d" / "g")) == shown(os.stat(there / "d")) == wanted
    with winkfs.open(base) as container:
        assert (container.stat("new").mode, container.stat("new").uid) == (0o600, os.getuid())


@pytest.mark.mount
def test_others_enter_only_where_allowed(base: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    put(base, "secret", b"x", mode=0o600)

    def as_nobody(directory: Path, name: str) -> str:
        done = subprocess.run(
            ["cat", directory / name], user=NOBODY, group=NOBODY, extra_groups=[],
            capture_output=True, text=True, cwd="/",
        )  # fmt: skip
        return done.stdout or done.stderr

    for options, name, answer in [
        ("ro", "d/g", "Permission denied"),
        ("ro,allow_other", "d/g", "y"),
        ("ro,allow_other", "secret", "Permission denied"),
        (f"ro,allow_other,uid={NOBODY}", "secret", "x"),
        ("ro,allow_other,umask=077", "d/g", "Permission denied"),
    ]:
        with mounted(base, "-o", options) as there:
            there.stat()
            assert answer in as_nobody(there, name), (options, name)


@pytest.mark.mount
def test_written_data_is_durable_within_the_interval(base: str) -> None:
    with (
        mounted(base, "--sync-every", "0.5") as there,
        (there / "open").open("wb", buffering=0) as still_open,
    ):
        still_open.write(b"open")
        (there / "closed").write_bytes(b"closed")
        soon(lambda: (stored(base, "open"), stored(base, "closed")) == (b"open", b"closed"), 4)


@pytest.mark.mount
@pytest.mark.parametrize(
    ("options", "at_once"), [("sync_every=3600", None), ("sync,sync_every=3600", b"new")]
)
def test_each_write_is_durable_with_sync_and_else_by_fsync(
    base: str, options: str, at_once: bytes | None
) -> None:
    with (
        mounted(base, "-o", options) as there,
        (there / "new").open("wb", buffering=0) as opened,
    ):
        opened.write(b"new")
        assert stored(base, "new") == at_once
        time.sleep(0.3)
        assert stored(base, "new") == at_once
        os.fsync(opened)
        assert stored(base, "new") == b"new"


@pytest.mark.mount
def test_the_sync_option_is_refused_if_each_write_stores_a_file(
    there: Path, tmp_path: Path
) -> None:
    winkfs.create(tmp_path / "log", ao=True).close()
    status, text = command("mount", tmp_path / "log", there, "-osync")
    assert (status, "leave out sync" in text, "\n" in text) == (1, True, False)
    with mounted_on(there, tmp_path / "log"):
        assert os.listdir(there) == []
