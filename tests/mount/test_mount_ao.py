"""Append-only containers, mounted: what goes, and what is refused without a trace."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import (
    WINKFS,
    all_refused,
    mounted,
    not_by_libfuse,
    refused,
    run,
    server_of,
    wait_for_the_end,
)
from stored import read

import winkfs
from winkfs import FileType

pytestmark = pytest.mark.mount
OLD = 1_500_000_000


@pytest.fixture
def base(tmp_path: Path) -> str:
    name = str(tmp_path / "log")
    with winkfs.create(name, ao=True) as container:
        container.put("first", b"first", mtime=OLD)
        container.put("d/second", b"second", mtime=OLD + 100)
    return name


@pytest.fixture
def there(base: str) -> Iterator[Path]:
    with mounted(base, "-o", "sync_every=1000") as directory:
        yield directory
    assert winkfs.verify(base).problems == []


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


def stored(base: str, there: Path, name: str) -> bytes | None:
    """What other processes see after a sync."""
    run("sync", there)
    with winkfs.open(base) as container:
        return container.read(name) if name in container else None


def test_file_enters_the_container_when_it_is_closed(base: str, there: Path) -> None:
    with (there / "new").open("wb", buffering=0) as file:
        file.write(b"x" * 3_000_000)
        file.seek(10)
        file.write(b"yy")  # before it is stored it can be written anywhere
        assert (there / "new").stat().st_size == 3_000_000
        assert stored(base, there, "new") is None
    expected = b"x" * 10 + b"yy" + b"x" * 2_999_988
    assert (there / "new").read_bytes() == expected
    assert stored(base, there, "new") == expected


def test_copies_go_in(base: str, there: Path) -> None:
    run("cp", "-r", "/etc/default", there / "copy")
    run("diff", "-r", "/etc/default", there / "copy")
    run("cp", "/bin/true", there / "runs")
    run(there / "runs")
    assert stored(base, there, "runs") == Path("/bin/true").read_bytes()
    with winkfs.open(base) as container:
        assert container.stat("runs").ftype == FileType.EXEC
        times = [entry.mtime_ns for entry in container.scan()]
        assert times == sorted(times)


def test_shell_redirection_of_several_programs(base: str, there: Path) -> None:
    run("sh", "-c", "{ /bin/echo a; /bin/echo b; } > log; : > empty", cwd=there)
    assert (there / "log").read_text() == "a\nb\n"
    assert stored(base, there, "log") == b"a\nb\n"
    assert stored(base, there, "empty") == b""


def test_fsync_stores_what_is_there(base: str, there: Path) -> None:
    with (there / "f").open("wb", buffering=0) as file:
        file.write(b"one")
        os.fsync(file.fileno())
        assert read(base, "f") == b"one"
        file.write(b" two")
    assert stored(base, there, "f") == b"one two"


def test_writing_anew_replaces_a_file(base: str, there: Path) -> None:
    with (there / "first").open("wb", buffering=0) as file:
        file.write(b"other")
        assert (there / "first").read_bytes() == b"other"
        assert stored(base, there, "first") == b"first"
    assert stored(base, there, "first") == b"other"
    assert (there / "d/second").read_bytes() == b"second"


def test_last_file_can_grow_and_be_renamed_until_it_is_synced(base: str, there: Path) -> None:
    (there / "new").write_bytes(b"a")
    (there / "new").rename(there / "named")
    append(there / "named", b"b")
    assert (there / "named").read_bytes() == b"ab"
    assert stored(base, there, "named") == b"ab"
    all_refused(
        errno.EPERM,
        lambda: (there / "named").rename(there / "again"),
        lambda: append(there / "named", b"c"),
    )
    assert stored(base, there, "named") == b"ab"


def test_forbidden_changes_are_refused_at_once(base: str, there: Path) -> None:
    def overwrite() -> None:
        with (there / "first").open("r+b", buffering=0) as file:
            file.write(b"X")

    before = Path(base + ".data").stat().st_size
    all_refused(
        errno.EPERM,
        overwrite,
        lambda: append(there / "first", b"X"),
        lambda: os.truncate(there / "first", 2),
        lambda: os.utime(there / "first"),
        lambda: (there / "first").chmod(0o600),
        lambda: os.setxattr(there / "first", "user.x", b"1"),
        lambda: (there / "first").rename(there / "other"),
        lambda: (there / "d").rename(there / "e"),
    )
    assert (there / "first").read_bytes() == b"first"
    assert sorted(os.listdir(there)) == ["d", "first"]
    run("sync", there)
    assert Path(base + ".data").stat().st_size == before


def test_times_of_new_files(base: str, there: Path) -> None:
    def write_at(name: str, seconds: int) -> None:
        with (there / name).open("wb", buffering=0) as file:
            file.write(b"x")
            os.utime(file.fileno(), (seconds, seconds))

    with refused(errno.EPERM):
        write_at("older", OLD + 50)
    write_at("later", 4_000_000_000)
    assert (there / "later").stat().st_mtime == 4_000_000_000
    with refused(errno.EPERM):
        write_at("now", int(time.time()))
    (there / "now").write_bytes(b"y")  # its time is that of the last file
    assert (there / "now").stat().st_mtime >= 4_000_000_000


def test_files_can_be_removed_also_while_they_are_open(base: str, there: Path) -> None:
    with (there / "first").open("rb", buffering=0) as kept:
        (there / "first").unlink()
        assert stored(base, there, "first") is None
        assert kept.read() == b"first"
    run("rm", "-r", there / "d")
    assert os.listdir(there) == []
    with (there / "never").open("wb", buffering=0) as file:
        file.write(b"x")
        (there / "never").unlink()
        assert os.fstat(file.fileno()).st_size == 1
    assert stored(base, there, "never") is None


def test_file_can_move_before_it_is_stored(base: str, there: Path) -> None:
    with (there / "temporary").open("wb", buffering=0) as file:
        file.write(b"x")
        (there / "temporary").rename(there / "first")
        assert (there / "first").read_bytes() == b"x"
        assert stored(base, there, "first") == b"first"
    assert stored(base, there, "first") == b"x"
    assert stored(base, there, "temporary") is None
    assert sorted(os.listdir(there)) == ["d", "first"]


def test_file_still_open_at_the_end_is_kept(base: str) -> None:
    with mounted(base) as there:
        file = os.open(there / "f", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"not closed")
        server = os.pidfd_open(server_of(there))
        run("umount", "-l", there)  # lazily: the server ends when the file is closed
        os.close(file)
        wait_for_the_end(server)
        assert read(base, "f", mode="a") == b"not closed"
        run(*WINKFS, "mount", base, there)


@not_by_libfuse("cannot have the pages of one file dropped")
def test_a_refused_mapped_write_is_not_seen_by_the_next_reader(there: Path) -> None:
    with (there / "first").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:2] = b"XX"
        with pytest.raises(PermissionError):
            mapped.flush()
    assert (there / "first").read_bytes() == b"first"


def test_a_file_keeps_the_time_shown_before_it_was_stored(base: str) -> None:
    with mounted(base, "-o", "sync_every=1000") as there, (there / "slow").open("wb") as file:
        file.write(b"x")
        file.flush()
        shown = os.fstat(file.fileno()).st_mtime_ns
        time.sleep(0.05)
    with mounted(base, "--ro") as there:
        assert (there / "slow").stat().st_mtime_ns == shown
