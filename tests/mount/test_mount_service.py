"""winkfs mount and umount as commands: how they start, end, and say what is wrong."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from constants import shrink
from memory_source import MemorySource
from mount_requests import Asker
from mounting import (
    WINKFS,
    all_refused,
    command,
    libraries,
    mounted,
    mounted_on,
    need_fuse,
    request,
    server_of,
    serving,
    watched,
)
from mounting import base as base  # fixtures
from mounting import there as there
from stored import read

import winkfs
from winkmount.binding import BINDINGS, ENVIRONMENT, MountError
from winkmount.mounts import canonical, mount_at, mounts, unmount
from winkmount.service import check, serve_in_background
from winkmount.source import DirEntry, Steps

pytestmark = pytest.mark.in_memory


@pytest.mark.mount
def test_wrong_places_are_named(base: str, there: Path, tmp_path: Path) -> None:
    (tmp_path / "text.data").write_text("no container\n" * 1000)
    cases = [
        (("mount", tmp_path / "nothing", there), "nothing: no such container"),
        (("mount", tmp_path / "text", there), "text.data: not a wink file"),
        (("mount", base, tmp_path / "nowhere"), "nowhere: no such directory: mkdir"),
        (("mount", base, tmp_path / "text.data"), "text.data: not a directory"),
        (("mount", base, tmp_path), "which it would hide"),
        (("mount", base, "/"), "which it would hide"),
        (("mount", "", there), "BASE is a path with a name at its end"),
        (("umount", there), "there: nothing is mounted here"),
        (("umount", tmp_path / "nowhere"), "nowhere: nothing is mounted here"),
        (("umount", "/proc"), "/proc: a proc mount, not one of winkfs"),
    ]
    for arguments, answer in cases:
        status, text = command(*arguments)
        assert (status, answer in text, text.count("\n")) == (1, True, 0), (arguments, text)
    for name, *arguments in (("mount", base, ""), ("umount", "")):
        text = f"{name}: DIR is empty: see winkfs {name} --help"
        assert command(name, *arguments) == (2, text)
    assert mount_at(canonical(there)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("-oro,nonsense", "nonsense"),
        ("-ouid=me", "uid=me"),
        ("--sync-every=-1", "sync_every=-1"),
        ("--cache=disk", "disk"),
        ("--follow", "add ro"),
        ("-oremount", "remount"),
    ],
)
def test_wrong_option_is_wrong_usage(base: str, tmp_path: Path, option: str, answer: str) -> None:
    status, text = command("mount", base, tmp_path, option)
    assert status == 2
    assert answer in text and "\n" not in text


@pytest.mark.mount
def test_locked_container_names_the_holder(base: str, there: Path) -> None:
    with winkfs.open(base, "a"):
        status, text = command("mount", base, there)
    assert status == 1
    assert f"process {os.getpid()}" in text and "\n" not in text


@pytest.mark.mount
def test_mount_holds_the_lock_in_its_server(base: str) -> None:
    with mounted(base) as there:
        pid = server_of(there)
        with pytest.raises(BlockingIOError, match=f"process {pid}"):
            winkfs.open(base, "a")
        assert command("mount", base, there)[1].endswith("corpus is already mounted here")


@pytest.mark.mount
def test_relative_paths_are_those_of_the_caller(base: str, there: Path, tmp_path: Path) -> None:
    assert command("mount", "corpus.data", "there", cwd=tmp_path) == (0, "")
    with watched(there):
        assert (there / "f").read_bytes() == b"x"
        [mount] = [mount for mount in mounts() if mount.point == canonical(there)]
        assert (mount.kind, mount.origin) == ("fuse.winkfs", base)
        assert command("umount", "there/", cwd=tmp_path) == (0, "")


@pytest.mark.mount
def test_odd_characters_in_paths(tmp_path: Path) -> None:
    name = 'a b,c\\d"\té\n'
    (tmp_path / name).mkdir()
    base, there = tmp_path / name / "corpus", tmp_path / "m, n\\ o\té"
    there.mkdir()
    winkfs.create(base).close()
    with mounted_on(there, base):
        (there / "f").write_bytes(b"x")
        found = mount_at(canonical(there))
        assert found is not None and found.origin == str(base)


@pytest.mark.mount
def test_mount_through_a_symbolic_link(base: str, there: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(there)
    assert command("mount", base, tmp_path / "link") == (0, "")
    with watched(there):
        assert (tmp_path / "link/f").read_bytes() == b"x"
        assert command("umount", tmp_path / "link") == (0, "")


@pytest.mark.mount
def test_a_busy_mount_reports_it_and_goes_on(base: str) -> None:
    with mounted(base) as there:
        with (there / "f").open("rb"):
            status, text = command("umount", there)
            reason = f"{there}: busy: `fuser -vm {there}` lists its users"
            assert (status, text.startswith(reason), text.count("\n")) == (1, True, 0)
        assert (there / "f").read_bytes() == b"x"


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_foreground_ends_by_a_signal_with_all_synced(
    base: str, there: Path, number: signal.Signals
) -> None:
    with serving([*WINKFS, "mount", "-f", base, str(there)], there) as server:
        assert server.poll() is None
        (there / "g").write_bytes(b"kept")
        server.send_signal(number)
        assert server.wait(20) == 0
        assert read(base, "g", mode="a") == b"kept"


@pytest.mark.mount
def test_foreground_ends_by_umount(base: str, there: Path) -> None:
    with serving([*WINKFS, "mount", "-f", base, str(there)], there) as server:
        how = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*how, there], check=True)
        assert server.wait(20) == 0


@pytest.mark.mount
def test_the_server_keeps_nothing_of_its_starter(base: str, there: Path) -> None:
    held = there.parent / "held"
    script = 'exec 9> "$1"; shift; exec "$@"'
    mount = [*WINKFS, "mount", base, str(there)]
    done = subprocess.run(["sh", "-c", script, "sh", held, *mount], capture_output=True, timeout=60)
    assert done.returncode == 0  # and capture_output came to its end: stdout is let go, too
    with watched(there):
        pid = server_of(there)
        open_files = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        assert str(held) not in open_files
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(pid) not in (os.getsid(0), pid)
        assert command("umount", there) == (0, "")


@pytest.mark.mount
@pytest.mark.parametrize("binding", BINDINGS)
def test_refusal_of_a_mount_is_passed_on(there: Path, binding: str) -> None:
    need_fuse(binding)
    asked = replace(request(there, nonsense=True), binding=binding)
    with pytest.raises(MountError, match=r"cannot mount on .*nonsense"):
        serve_in_background(asked)


@pytest.mark.mount
def test_libfuse_warnings_are_not_the_reason_of_its_refusal(there: Path) -> None:
    need_fuse("fusepy")

    class Talking(MemorySource):
        def close(self) -> None:
            os.write(2, b"something else\n")
            super().close()

    (there / "hidden").touch()  # a warning before
    with pytest.raises(MountError, match=r"libfuse cannot mount on .*nonsense"):
        serve_in_background(replace(request(there, Talking, nonsense=True), binding="fusepy"))


@pytest.mark.mount
def test_the_server_collects_no_garbage_of_its_starter(there: Path) -> None:
    """What is garbage there has files with numbers that the server has for others."""

    class Held:
        pass

    held = Held()
    held.itself = held  # type: ignore[attr-defined]
    closed = [weakref.finalize(held, os.close, number) for number in range(3, 8)]

    def collecting() -> MemorySource:
        gc.collect()
        return MemorySource()

    gc.disable()
    try:
        del held
        with pytest.raises(MountError, match=r"cannot mount on .*nonsense"):
            serve_in_background(request(there, collecting, nonsense=True))
    finally:
        for finalizer in closed:
            finalizer.detach()
        gc.enable()


@pytest.mark.mount
def test_source_that_cannot_be_opened_is_one_line(there: Path) -> None:

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    def crash() -> None:
        raise KeyError("unexpected")

    with pytest.raises(MountError, match=r"^/some/file: Permission denied$"):
        serve_in_background(request(there, refuse))
    with pytest.raises(MountError, match="KeyError: 'unexpected'"):
        serve_in_background(request(there, crash))
    with pytest.raises(MountError, match="ended before the mount was there"):
        serve_in_background(request(there, lambda: os.kill(os.getpid(), signal.SIGKILL)))


@pytest.mark.mount
def test_any_source_mounts_in_the_background(there: Path) -> None:
    assert serve_in_background(request(there)) == ""
    with watched(there):
        (there / "f").write_bytes(b"x")
        assert (there / "f").read_bytes() == b"x"
        with pytest.raises(MountError, match="not one of winkfs"):
            unmount(there, "winkfs")
        unmount(there, "memory")


def with_device(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    libraries(monkeypatch, {"libfuse3.so.3": 314})
    shrink(monkeypatch, "a mount", device=path)


def test_a_missing_device_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_device(monkeypatch, "/dev/no-fuse")
    with pytest.raises(MountError, match=r"^/dev/no-fuse is missing: modprobe fuse \(in a cont"):
        check(request(tmp_path))


def test_missing_helper_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_device(monkeypatch, "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MountError, match=r"^fusermount3 is not installed: apt install fuse3$"):
        check(request(tmp_path))


class Broken(MemorySource):
    def stat(self, id: int) -> object:  # type: ignore[override]
        raise ValueError("checksum is wrong")

    def readlink(self, id: int) -> bytes:
        raise OSError("no errno")

    def readdir(self, handle: object, offset: int) -> Iterator[DirEntry]:
        raise ValueError("block 3 is damaged")


def test_unexpected_errors_become_eio_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    asker = Asker(Broken())
    all_refused(errno.EIO, lambda: asker.getattr("/"), lambda: asker.readlink("/"))
    assert caplog.messages == ["getattr of number 1: checksum is wrong", "readlink of number 1"]


@pytest.mark.parametrize("verb", ["readdir", "readdirplus"])
def test_a_failed_listing_is_logged_by_its_request(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    asker = Asker(Broken())
    with pytest.raises(OSError):
        asker.entries(asker.opendir("/"), plus=verb == "readdirplus")
    assert caplog.messages == [f"{verb} of number 1: block 3 is damaged"]


def test_read_only_source_is_never_asked_for_a_change() -> None:
    class Untouchable(MemorySource):
        def __getattribute__(self, name: str) -> object:
            assert name not in ("mkdir", "unlink", "rename", "chmod", "create", "set_xattrs")
            return super().__getattribute__(name)

    asker = Asker(Untouchable(writable=False))
    all_refused(
        errno.EROFS,
        lambda: asker.mkdir("/d", 0o755),
        lambda: asker.unlink("/f"),
        lambda: asker.rename("/f", "/g"),
        lambda: asker.chmod("/", 0o700),
        lambda: asker.setxattr("/", "user.x", b"", 0),
    )
    assert not asker.served.changed.is_set()


def test_failed_background_sync_is_tried_again() -> None:
    class Full(MemorySource):
        def syncing(self, id: int | None) -> Steps:
            yield from super().syncing(id)
            if self.syncs == 1:
                raise OSError(errno.ENOSPC, "full")

    source = Full()
    asker = Asker(source)
    asker.mkdir("/d", 0o755)
    with pytest.raises(OSError):
        asker.served.sync()
    assert asker.served.changed.is_set()
    asker.served.sync()
    assert not asker.served.changed.is_set()


@pytest.mark.mount
def test_machine_that_cannot_mount_is_an_error_on_ci_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/fuse")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI must be able to mount"):
        need_fuse()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        need_fuse()
