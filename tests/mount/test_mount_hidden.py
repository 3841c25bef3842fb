"""What libfuse hides before it asks for what was meant: the adapter alone, without a kernel."""

from __future__ import annotations

import errno

import pytest
from memory_source import MemorySource
from mount_requests import Asker, info
from mounting import soon

HIDDEN = "/.fuse_hidden0000000200000001"
ID = 2  # of the open file


@pytest.fixture
def asker() -> Asker:
    """With /new and the open file /target."""
    made = Asker(MemorySource())
    made.create("/target", 0o644, info())
    made.mknod("/new", 0o100644, 0)
    return made


def names(asker: Asker) -> set[bytes]:
    return set(asker.source.nodes[1].names)  # type: ignore[attr-defined]


def test_a_sync_between_the_two_calls_of_a_rename_keeps_the_name(asker: Asker) -> None:
    asker.rename("/target", HIDDEN)
    asker.served.sync()
    assert names(asker) == {b"new", b"target"}
    asker.rename("/new", "/target")
    assert names(asker) == {b"target"}
    assert asker.getattr(HIDDEN)["st_nlink"] == 0


def test_the_next_call_carries_an_unlink_out(asker: Asker) -> None:
    asker.rename("/target", HIDDEN)
    asker("fsyncdir", "/", 0, 0)
    assert names(asker) == {b"new"}
    assert asker.getattr(HIDDEN)["st_nlink"] == 0


def test_time_carries_an_unlink_out(asker: Asker) -> None:
    asker.rename("/target", HIDDEN)
    soon(lambda: names(asker) == {b"new"})
    assert asker.served.changed.is_set()


def test_the_end_carries_an_unlink_out(asker: Asker) -> None:
    asker.rename("/target", HIDDEN)
    asker.close()
    assert names(asker) == {b"new"}


@pytest.mark.parametrize("refused", [False, True])
def test_rename_to_another_name_behind_an_unlink(asker: Asker, refused: bool) -> None:
    asker.rename("/target", HIDDEN)
    if refused:
        with pytest.raises(OSError):
            asker.rename("/nothing", "/other")
    else:
        asker.rename("/new", "/other")
    assert names(asker) == {b"new" if refused else b"other"}


def test_file_of_a_refused_rename_is_found_by_both_its_paths(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError(errno.EPERM, "refused")

    asker.rename("/target", HIDDEN)
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(asker.source, "rename", rename)
        asker.rename("/new", "/target")
    for path in (HIDDEN, "/target"):
        found = asker.getattr(path)
        assert (found["st_ino"], found["st_nlink"]) == (ID, 1)
    asker.rename("/target", "/moved")
    assert asker.getattr(HIDDEN)["st_ino"] == ID
    asker.unlink(HIDDEN)  # as libfuse does when the file is closed for the last time
    assert names(asker) == {b"new", b"moved"}
    asker.rename("/new", "/moved")
    assert asker.getattr(HIDDEN)["st_nlink"] == 0
