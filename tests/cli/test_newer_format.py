"""A file that a later version wrote: each command refuses it in one line, and changes nothing."""

from pathlib import Path

import pytest
import stored
from commands import Run
from folders import unchanged, write_files

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.superblock import (
    WRITER,
    read_superblock,
    text_value,
    write_first,
    write_second,
)

LINE = "needs extension 256 (unknown), which this version of winkfs cannot read: install winkfs 7.0"
COMMANDS = (
    "ls c", "cat c a", "stat c a", "info c", "verify c", "put c b", "append c a", "rm c a",
    "mv c a b", "pack --update d c", "unpack c out", "reindex c", "repair c", "repair --apply c",
    "rollback c", "salvage c out", "compact c", "backup c copy", "mount c d", "mount --ro c d",
    "fct list c.data",
    "ls set", "cat set a", "verify set", "pack --update source set", "dataset rebalance set",
)  # fmt: skip


def made_newer(data: Path) -> None:
    with FileStorage(data, "w") as storage:
        block = read_superblock(storage)
        block |= {"INCOMPAT": block["INCOMPAT"] | 256, WRITER: text_value("7.0")}
        write_first(storage, block)
        write_second(storage, block)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A directory with a container and a data set that a later version wrote."""
    (tmp_path / "d").mkdir()
    winkfs.pack(write_files(tmp_path / "source", {"a": b"content"}), tmp_path / "set", shards=1)
    stored.make(tmp_path / "c", {"a": b"content"})
    for data in (tmp_path / "c.data", *tmp_path.glob("set/*/*.data")):
        made_newer(data)
    return tmp_path


@pytest.mark.few(10)
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_newer_file_is_refused_by_each_command(run: Run, newer: Path, command: str) -> None:
    with unchanged(newer):
        done = run(*command.split())
    assert done.status == 1
    assert LINE in done.err + done.out.decode()
    assert "Traceback" not in done.err
