"""The JSON of the commands has the fields and types that docs/json.md lists."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from commands import invoke
from json_page import Fields, faults, objects, tables
from simulated.objectstore import ObjectStore

from winkfs.cli import cli
from winkfs.stores.ledgerq import Queue, create

pytestmark = pytest.mark.slow

SESSION = """
pack t c --json
columns c add lang=string
put c late
ls c -R --json --columns lang
ls c --json
stat c l --json
du c --json
info c --json = info of a container
verify c --json
verify c --part 1/2 --json
verify c --checksum md5 --json = verify --checksum
reindex c --json
cp c c9 --json
put c a
split c part --files 2 --json
diff t c --json
diff t c --json --stat = diff --stat
sync t c --json
get c a out --json
unpack c un --json
unpack c --tar un.tar --json
unpack c --zip un.zip --json
export c --mds m --json
compact c --json -n
backup c b --json
repair c --json
rollback c -n --json
salvage c.data s --json
fct list c.data --json
push c URL/c --json
sign URL/c late --json
pull URL/c back --json
remote check URL/set --json
dataset create set
dataset add set c --json
dataset history set --json
dataset compact set --all --json
dataset rebalance set --shards 1 --json
dataset repair set --json
dataset vacuum set --older-than 0 --json
dataset compact set --all --compress zstd
info set --json = info of a data set
pack t small --compress zstd
info small --json = info of a container
store create box --kind message
store put box
store ls box --json
store stats box --json
store verify box --json
store salvage box box2 --json
store compact box --json
store migrate box --json
fct scan box/0.sqs --json
fct scan bad.sqs --json = fct scan of a damaged segment
store create log --kind log
store put log
store ls log --json
store compact log --json
queue create q
queue push q
queue push q
queue ls q --json
queue peek q --json = queue peek, queue pop
queue stats q --json
queue verify q --json
queue pop q --json = queue peek, queue pop
queue compact q --json
queue repair q --json
queue dlq failing --json
queue dlq failing --requeue --json = queue dlq --requeue
queue create first --by-priority
queue push first --priority high --ttl 1h
queue ls first --json
ring create r --pages 4
ring push r
ring push r
ring ls r --json
ring peek r --json = ring peek, ring pop
ring stats r --json
ring verify r --json
ring pop r --json = ring peek, ring pop
cache info --json
"""
FAILING = ("diff", "fct scan bad.sqs")  # with status 1
RARE = {"info of a data set": {"problems"}, "queue verify": {"more_problems"}}
OWN = {"mounts", "pipeline stats"}  # have a test beside their others
ELSEWHERE = {"columns", "query", "tree", "report", "fct superblock"}  # see the head of the page


def test_each_field_is_documented_with_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t/d").mkdir(parents=True)
    (tmp_path / "t/a").write_bytes(b"1")
    (tmp_path / "t/d/b").write_bytes(b"22")
    (tmp_path / "t/l").symlink_to("a")
    (tmp_path / "bad.sqs").write_bytes(b"RSQS\2".ljust(64, b"\0") + b"\x09")
    create("failing")
    with Queue("failing", "a", dead_letters="failing.dlq", retries=1) as queue:
        queue.push(b"body")
        assert queue.nack(queue.pop().id, "no luck")
    documented, seen, wrong = tables(), defaultdict[str, set[str]](set), []
    with ObjectStore() as store:
        for line in SESSION.strip().splitlines():
            command, _, heading = line.replace("URL", store.url).partition(" = ")
            done = invoke(*shlex.split(command), stdin=b"body")
            assert done.exit_code == command.startswith(FAILING), (line, done.stderr)
            if "--json" not in command:
                continue
            heading = heading or next(h for h in sorted(documented, reverse=True)
                                      if command.startswith(h))  # fmt: skip
            found = objects(done.stdout)
            assert found, line
            seen[heading].update(*found)
            wrong += faults(heading, found)
    assert wrong == []
    assert seen.keys() == documented.keys() - OWN
    assert unseen(documented, seen) == {}


def unseen(documented: dict[str, Fields], seen: dict[str, set[str]]) -> dict[str, set[str]]:
    """Fields that no command has printed."""
    return {h: left for h in seen if (left := documented[h].keys() - seen[h] - RARE.get(h, set()))}


def test_each_command_has_a_table() -> None:
    known = {each for heading in tables() for each in heading.split(", ")}
    known |= {re.split(" --| of ", heading)[0] for heading in known}
    assert set(with_json(cli, "")) - known == ELSEWHERE


def with_json(command: click.Command, path: str) -> Iterator[str]:
    """Yield the commands that have --json."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from with_json(found, f"{path} {name}".strip())
    elif any("--json" in param.opts for param in command.params):
        yield path
