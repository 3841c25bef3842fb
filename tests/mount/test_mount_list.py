"""winkfs mounts, and winkfs info of a mounted directory."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import datetime
from pathlib import Path

import commands
import pytest
from commands import Run, listed, one_line
from json_page import faults
from memory_source import MemorySource
from mounting import leave_dead, mounted, need_fuse, request, server_of, watched
from stored import make

import winkfs
from winkfs.cli import mount as mounts
from winkmount.mounts import Mount, canonical, mount_at, unmount
from winkmount.service import serve_in_background

pytestmark = pytest.mark.in_memory

run = commands.run  # fixture


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    make(tmp_path / "my corpus\n", {"f": b"x"})
    return tmp_path / "my corpus\n"


def record(run: Run, directory: Path) -> dict[str, object]:
    """The line of `winkfs mounts --json` for one mount."""
    records = [json.loads(line) for line in listed(run("mounts", "--json"))]
    assert faults("mounts", records) == []
    [found] = [line for line in records if line["directory"] == canonical(directory)]
    assert isinstance(found, dict)
    return found


@pytest.mark.mount
def test_each_mount_is_a_line(run: Run, corpus: Path) -> None:
    with mounted(corpus) as one, mounted(corpus, "--ro") as two:
        # cells are padded, also for mounts of other workers: by an odd number of blanks, too
        lines = [[c.strip() for c in line.split("  ")] for line in listed(run("mounts"))]
        assert [cell for cell in lines[0] if cell] == ["BASE", "DIR", "MODE", "PID", "SINCE"]
        for there, mode in ((one, "rw"), (two, "ro")):
            pid = server_of(there)
            [line] = [line for line in lines if str(there) in line]
            assert [cell for cell in line if cell][:4] == [
                f"{corpus.parent}/my corpus\\n",
                str(there),
                mode,
                str(pid),
            ]
            found = record(run, there)
            assert (found["base"], found["mode"]) == (str(corpus), mode)
            assert (found["state"], found["pid"]) == ("serving", pid)
    assert not any(str(one) in line for line in listed(run("mounts")))


@pytest.mark.mount
def test_hung_server_is_no_answer_within_a_second(run: Run, corpus: Path) -> None:
    with mounted(corpus) as there:
        server = server_of(there)
        os.kill(server, signal.SIGSTOP)
        try:
            began = time.monotonic()
            found = record(run, there)
            assert (found["state"], found["pid"]) == ("no answer", None)
            assert listed(run("info", there))[3].split() == ["state:", "no", "answer"]
            assert (
                time.monotonic() - began < 9
            )  # one second each, on a quiet machine; the patience of umount is 10
        finally:
            os.kill(server, signal.SIGCONT)


@pytest.mark.mount
def test_killed_server_is_dead(run: Run, corpus: Path) -> None:
    with mounted(corpus) as there:
        leave_dead(there)
        assert record(run, there)["state"] == "dead"


@pytest.mark.mount
def test_mount_of_another_kind_is_not_listed(run: Run, tmp_path: Path) -> None:
    need_fuse()
    assert serve_in_background(request(tmp_path, MemorySource)) == ""
    with watched(tmp_path):
        assert not any(str(tmp_path) in line for line in listed(run("mounts")))
        unmount(tmp_path, "memory")


def test_server_of_another_user_is_listed_without_its_word(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "getxattr", refuse)
    found = mounts.mount_record(Mount("0:1", "/mnt", "fuse.winkfs", "/base", True))
    assert found == {
        "base": "/base", "directory": "/mnt", "mode": "ro", "state": "another user's",
        "pid": None, "since": None,
    }  # fmt: skip
    table = b"1 2 0:1 / /mnt ro - fuse.winkfs /base ro\n"
    monkeypatch.setattr(Path, "read_bytes", lambda _: table)
    assert [line.split() for line in listed(run("mounts"))][-1] == [
        "/base", "/mnt", "ro", "another", "user's"
    ]  # fmt: skip


@pytest.mark.mount
def test_info_of_a_mounted_directory_is_that_of_its_server(run: Run, corpus: Path) -> None:
    with mounted(corpus) as there:
        [line] = listed(run("info", "--json", there))
        found = json.loads(line)
        assert found["base"] == str(corpus)
        assert found["pid"] == server_of(there)
        since = datetime.fromisoformat(found["since"]).timestamp()
        assert abs(since - time.time()) < 60
        assert found["files"] == 1
        text = listed(run("info", there))
        assert f"directory: {there}" in [" ".join(line.split()) for line in text]
        assert "unsynced_since" in found and "unknown" not in "".join(text)
        (there / "new").touch()
        [line] = listed(run("info", "--json", there))
        unsynced = datetime.fromisoformat(json.loads(line)["unsynced_since"]).timestamp()
        assert abs(unsynced - time.time()) < 60


@pytest.mark.mount
def test_info_of_a_base_is_not_that_of_its_directory(run: Run, tmp_path: Path) -> None:
    need_fuse()
    winkfs.create(tmp_path / "same").close()
    (tmp_path / "same").mkdir()
    assert run("mount", "same", "same").status == 0
    with watched(tmp_path / "same"):
        assert json.loads(listed(run("info", "--json", "same"))[0])["variant"] == "plain"
        assert "directory" in json.loads(listed(run("info", "--json", "same/"))[0])
        assert run("umount", "same").status == 0
    assert "no container is mounted" in one_line(run("info", "same/"))


def test_name_of_the_mount_table_with_odd_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        "1 2 0:5 / /mnt/a\\040b\u00a0c\u0085 rw,nosuid shared:1 - fuse.winkfs /c\\012\u2028d rw\n"
        "3 4 0:6 / /mnt/e ro - fuse.winkfs  rw\n"
    )
    monkeypatch.setattr(Path, "read_bytes", lambda _: os.fsencode(table))
    found = mount_at("/mnt/a b\u00a0c\u0085")
    assert found == Mount("0:5", "/mnt/a b\u00a0c\u0085", "fuse.winkfs", "/c\n\u2028d", False)
    assert mount_at("/mnt/e") == Mount("0:6", "/mnt/e", "fuse.winkfs", "", True)
