"""mount(8), umount(8), fstab and systemd with a container."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import data_sets
import pytest
from mounting import WINKFS, serving, watched
from mounting import there as there  # a fixture
from private import ROOT, Private, programs
from stored import make, read

import winkfs
from winkfs.cli import COMMANDS, helper
from winkmount.mounts import canonical, mount_at, unmount

pytestmark = pytest.mark.in_memory

UNIT = ROOT / "winkfs" / "winkfs@.service"


@pytest.fixture
def private(tmp_path: Path) -> Private:
    """With a container `my corpus`, a directory `mnt` and the program `winkfs`."""
    found = Private(tmp_path)
    programs(tmp_path)
    shutil.move(tmp_path / "winkfs", found.sbin)
    make(tmp_path / "my corpus", {"f": b"content\n"})
    (tmp_path / "mnt").mkdir()
    return found


def done_by(private: Private, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script, which must exit with 0."""
    done = private.run(script)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def installed(private: Private) -> Private:
    """With the helpers of mount(8), as docs/mount.md describes it."""
    shutil.move(private.directory / "mount.winkfs", private.sbin)
    shutil.move(private.directory / "umount.winkfs", private.sbin)
    (private.sbin / "umount.fuse.winkfs").symlink_to("umount.winkfs")
    return private


CHECK = 'cat mnt/f; grep " fuse.winkfs " /proc/mounts; umount mnt; ! mountpoint -q mnt'


@pytest.mark.few(2)
@pytest.mark.mount
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("mount -t fuse.winkfs 'my corpus' mnt", "rw,nosuid,nodev"),
        ("mount -t fuse.winkfs 'my corpus.data' mnt -r", "ro,nosuid,nodev"),
        ("mount -t fuse 'winkfs#my corpus' mnt -o ro,noexec", "ro,nosuid,nodev,noexec"),
    ],
)
def test_mount_fuse_is_enough(private: Private, command: str, shown: str) -> None:
    done = done_by(private, f"{command}\n{CHECK}")
    assert done.stdout.startswith(
        f"content\n{private.directory}/my\\040corpus {private.directory}/mnt fuse.winkfs {shown},"
    )


@pytest.mark.long
@pytest.mark.mount
def test_line_in_fstab_for_a_data_set(installed: Private) -> None:
    data_sets.add(installed.directory / "set", {"f": b"old\n"})
    data_sets.add(installed.directory / "set", {"f": b"new\n"})
    line = f"{installed.directory}/set {installed.directory}/mnt winkfs ro,as_of=1,noauto 0 0"
    (installed.directory / "fstab").write_text(line + "\n")
    done = done_by(installed, f"mount --bind fstab /etc/fstab && mount mnt && {CHECK}")
    assert done.stdout.startswith("old\n")


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("kind", ["winkfs", "fuse.winkfs"])
def test_line_in_fstab(installed: Private, kind: str) -> None:
    (installed.directory / "fstab").write_text(
        f"{installed.directory}/my\\040corpus {installed.directory}/mnt {kind} "
        "defaults,ro,nofail,_netdev,relatime,x-systemd.automount,comment=a,uid=12,umask=027 0 0\n"
    )
    script = f"mount -T fstab -a\nstat -c '%a %u' mnt/f\n{CHECK}"
    done = done_by(installed, script)
    assert done.stdout.startswith("750 12\ncontent\n")


@pytest.mark.mount
def test_umount_returns_when_the_container_is_closed(installed: Private) -> None:
    done_by(
        installed,
        """
        mount -t winkfs 'my corpus' mnt
        head -c 50000000 /dev/zero > mnt/new
        pid=$(cat 'my corpus.lock')
        umount mnt
        ! kill -0 $pid
        """,
    )
    with winkfs.open(installed.directory / "my corpus", "a") as container:
        assert container.stat("new").size == 50_000_000


@pytest.mark.mount
def test_a_lazy_umount_keeps_open_directories(installed: Private) -> None:
    done = done_by(
        installed,
        """
        mount -t winkfs 'my corpus' mnt
        exec 9< mnt/f
        if umount mnt; then exit 7; fi
        umount -l mnt
        ! mountpoint -q mnt
        cat <&9
        """,
    )
    assert done.stdout == "content\n" and "busy" in done.stderr


@pytest.mark.few(3)
@pytest.mark.mount
@pytest.mark.parametrize(
    ("command", "status", "answer"),
    [
        ("mount -t winkfs nothing mnt", 32, "nothing: no such container"),
        ("mount -t winkfs 'my corpus' mnt -o bogus", 1, "unknown mount option 'bogus'"),
        ("mount -f -t winkfs 'my corpus' mnt -o bogus", 1, "unknown mount option 'bogus'"),
        ("mount.winkfs 'my corpus'", 1, "usage: mount.winkfs BASE DIR"),
        ("mount.winkfs 'my corpus' mnt --bogus", 1, "usage: mount.winkfs BASE DIR"),
        ("umount.winkfs mnt", 32, "mnt: nothing is mounted here"),
        ("mount -t fuse.winkfs nothing mnt", 1, "nothing: no such container"),
    ],
)
def test_failure_has_a_status_of_mount_and_one_line(
    installed: Private, command: str, status: int, answer: str
) -> None:
    done = installed.run(command)
    assert (done.returncode, done.stdout) == (status, "")
    assert answer in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.mount
def test_trial_and_sloppy_mounts(installed: Private) -> None:
    done = done_by(
        installed,
        """
        mount -f -n -v -t winkfs 'my corpus' mnt
        ! mountpoint -q mnt
        mount -s -t winkfs 'my corpus' mnt -o bogus,of=another
        cat mnt/f
        if mount mnt -o remount,ro; then exit 7; fi
        """,
    )
    assert done.stdout.endswith("content\n")
    assert "remount: a mount cannot be changed" in done.stderr


def test_no_command_is_taken_for_a_call_of_mount_fuse() -> None:
    from winkfs.cli import arguments

    called = arguments(["corpus", "mnt", "-o", "rw"])
    assert called == ["mount", "-o", "rw", "--", "corpus", "mnt"]
    assert arguments(["-x", "mnt", "-o", "rw"])[-2:] == ["-x", "mnt"]
    for name in COMMANDS:
        assert arguments([name, "mnt", "-o", "rw"]) == [name, "mnt", "-o", "rw"]
    assert arguments(["corpus", "mnt"]) == ["corpus", "mnt"]


def test_wrong_call_of_a_helper_mounts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["c"], ["c", "d", "e"], ["c", "d", "-q"], ["c", "d", "-o"]):
        monkeypatch.setattr("sys.argv", ["mount.winkfs", *arguments])
        assert helper.mount() == 1
        reported = capsys.readouterr().err
        assert "usage: mount.winkfs" in reported and reported.count("\n") == 1


# --- systemd ---


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("abstract", [True, False])
def test_systemd_is_notified_when_the_mount_answers(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    winkfs.create(tmp_path / "corpus").close()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0winkfs-{os.getpid()}@1" if abstract else "notify@1")
        manager.settimeout(20)
        address = f"@winkfs-{os.getpid()}@1" if abstract else str(tmp_path / "notify@1")
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with serving([*WINKFS, "mount", "-f", "corpus", "there"], there):
            assert manager.recv(100) == b"READY=1"
            assert list(there.iterdir()) == []


@pytest.mark.mount
def test_unit_starts_serves_and_stops(
    tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path)
    settings = dict(
        line.split("=", 1)
        for line in UNIT.read_text().splitlines()
        if "=" in line and line[0] != "#"
    )
    assert (settings["Type"], settings["KillMode"]) == ("notify", "mixed")
    make(tmp_path / "my corpus", {"f": b"x"})
    values = {
        "${BASE}": str(tmp_path / "my corpus"), "${DIR}": str(there),
        "${OPTIONS}": settings["Environment"].partition("=")[2],
        "/usr/local/bin/winkfs": str(tmp_path / "winkfs"),
    }  # fmt: skip
    start = [values.get(word, word) for word in settings["ExecStart"].split()]
    assert set(values.values()) < set(start)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody listens"))
    with serving(start, there) as server:
        (there / "new").write_bytes(b"kept")
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert read(tmp_path / "my corpus", "new", mode="a") == b"kept"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    programs(tmp_path)
    text = UNIT.read_text().replace("/usr/local/bin/winkfs", str(tmp_path / "winkfs"))
    (tmp_path / "winkfs@.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "winkfs@.service"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.mount
def test_options_of_mount_fuse_alone_reach_the_server(tmp_path: Path, there: Path) -> None:
    winkfs.create(tmp_path / "corpus").close()
    command = [*WINKFS, str(tmp_path / "corpus"), str(there), "-o", "ro,dev,suid"]
    assert subprocess.run(command, capture_output=True, timeout=60).stderr == b""
    with watched(there):
        found = mount_at(canonical(there))
        assert found is not None and found.ro
        unmount(there, "winkfs")
