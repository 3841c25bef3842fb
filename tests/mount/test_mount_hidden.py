"""What libfuse hides before it asks for what was meant: the engine alone, without a kernel."""

from __future__ import annotations

import errno
import time
from types import SimpleNamespace

import pytest
from memory_source import MemorySource

from winkmount.operations import Operations

HIDDEN = "/.fuse_hidden0000000200000001"
ID = 2  # of the open file


@pytest.fixture
def operations() -> Operations:
    """With /new and the open file /target."""
    made = Operations(MemorySource(), "memory")
    made.create("/target", 0o644, SimpleNamespace(flags=1, fh=0, direct_io=0))
    made.mknod("/new", 0o100644, 0)
    return made


def names(operations: Operations) -> set[bytes]:
    return set(operations.source.nodes[1].names)  # type: ignore[attr-defined]


def test_sync_between_the_two_calls_of_a_rename_takes_no_name_away(operations: Operations) -> None:
    operations.rename("/target", HIDDEN)
    operations.sync()
    assert names(operations) == {b"new", b"target"}
    assert operations.changed.is_set()
    operations.rename("/new", "/target")
    assert names(operations) == {b"target"}
    assert operations.lookup(HIDDEN)[1] == 0


def test_a_later_sync_carries_an_unlink_out(operations: Operations) -> None:
    operations.rename("/target", HIDDEN)
    time.sleep(0.11)  # the rest of the unlink would have come
    operations.sync()
    assert names(operations) == {b"new"}
    assert operations.lookup(HIDDEN)[1] == 0


def test_the_end_carries_an_unlink_out(operations: Operations) -> None:
    operations.rename("/target", HIDDEN)
    operations.close()
    assert names(operations) == {b"new"}


@pytest.mark.parametrize("refused", [False, True])
def test_rename_to_another_name_behind_an_unlink(operations: Operations, refused: bool) -> None:
    operations.rename("/target", HIDDEN)
    if refused:
        with pytest.raises(OSError):
            operations.rename("/nothing", "/other")
    else:
        operations.rename("/new", "/other")
    assert names(operations) == {b"new" if refused else b"other"}


def test_file_of_a_refused_rename_is_found_by_both_its_paths(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError(errno.EPERM, "refused")

    operations.rename("/target", HIDDEN)
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(operations.source, "rename", rename)
        operations.rename("/new", "/target")
    for path in (HIDDEN, "/target"):
        attr, links = operations.lookup(path)
        assert (attr.id, links) == (ID, 1)
    operations.rename("/target", "/moved")
    assert operations.lookup(HIDDEN)[0].id == ID
    operations.unlink(HIDDEN)  # as libfuse does when the file is closed for the last time
    assert names(operations) == {b"new", b"moved"}
    operations.rename("/new", "/moved")
    assert operations.lookup(HIDDEN)[1] == 0


def test_unlink_that_would_be_refused_is_refused_while_the_user_waits(
    operations: Operations,
) -> None:
    operations.source.room = -1  # type: ignore[attr-defined]
    with pytest.raises(OSError) as refused:
        operations.rename("/target", HIDDEN)
    assert refused.value.errno == errno.ENOSPC
    operations.sync()
    assert names(operations) == {b"new", b"target"}
