"""A file that a later version wrote: each command refuses it in one line, and changes nothing."""

from pathlib import Path

import commands
import pytest
from commands import Run

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.superblock import (
    WRITER,
    read_superblock,
    text_value,
    write_first,
    write_second,
)

run = commands.run  # a fixture

LINE = "needs extension 256 (unknown), which this version of winkfs cannot read: install winkfs 7.0"
COMMANDS = (
    "ls c", "cat c a", "stat c a", "info c", "verify c", "put c b", "append c a", "rm c a",
    "mv c a b", "pack --update d c", "unpack c out", "reindex c", "repair c", "repair --apply c",
    "rollback c", "salvage c out", "compact c", "backup c copy", "mount c d", "mount --ro c d",
    "fct list c.data",
)  # fmt: skip


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def made_newer(data: Path) -> None:
    with FileStorage(data, "w") as storage:
        block = read_superblock(storage)
        block |= {"INCOMPAT": block["INCOMPAT"] | 256, WRITER: text_value("7.0")}
        write_first(storage, block)
        write_second(storage, block)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"content")
    made_newer(tmp_path / "c.data")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_container_is_refused_by_each_command(run: Run, newer: Path, command: str) -> None:
    before = bytes_of(newer)
    done = run(*command.split())
    assert done.status == 1
    assert LINE in done.err + done.out.decode()
    assert "Traceback" not in done.err
    assert bytes_of(newer) == before


@pytest.mark.parametrize(
    "command", ["ls set", "cat set a", "verify set", "pack --update d set", "dataset rebalance set"]
)
def test_so_is_a_shard_of_a_data_set(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"content")
    winkfs.pack(tmp_path / "d", tmp_path / "set", shards=1)
    (shard,) = tmp_path.glob("set/*/*.data")
    made_newer(shard)
    before = bytes_of(tmp_path)
    done = run(*command.split())
    assert done.status == 1
    assert LINE in done.err + done.out.decode()
    assert bytes_of(tmp_path) == before
