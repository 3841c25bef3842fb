"""The JSON of the commands has the fields and types that docs/json.md lists."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from commands import invoke

from winkfs.cli import cli

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/json.md"
TYPES = {
    "string": str, "int": int, "bool": bool, "object": dict, "list": list, "null": type(None),
    "number": (int, float),
}  # fmt: skip
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
dataset create set
dataset add set c --json
dataset history set --json
dataset compact set --all --json
dataset rebalance set --shards 1 --json
dataset repair set --json
dataset vacuum set --older-than 0 --json
info set --json = info of a data set
store create box --kind message
store put box
store ls box --json
store stats box --json
store verify box --json
store salvage box box2 --json
store create log --kind log
store put log
store ls log --json
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
cache info --json
"""
FREE = {"store stats", "store salvage"}  # with further fields of the kind
ANY = " or ".join(TYPES)
ELSEWHERE = {
    "columns", "query", "tree", "report", "fct superblock",  # see the head of the page
    "fct scan", "store compact", "store migrate", "queue dlq", "mounts", "pipeline stats", "push",
    "pull", "sign", "remote check", "ring ls", "ring peek", "ring pop", "ring stats", "ring verify",
}  # fmt: skip


def tables() -> dict[str, dict[str, str]]:
    """-> heading -> field -> type"""
    found: dict[str, dict[str, str]] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
        found[heading] = dict(rows)
        assert len(rows) == len(found[heading]) > 0, heading
    return found


def is_of(value: Any, kinds: str) -> bool:
    """Return whether a value has one of the types, as "int or null" or "list of string"."""
    for kind in kinds.rstrip("?").split(" or "):
        outer, _, inner = kind.partition(" of ")
        if isinstance(value, bool) != (outer == "bool") or not isinstance(value, TYPES[outer]):
            continue
        if not inner or all(is_of(each, inner) for each in value):
            return True
    return False


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_field_is_documented_with_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t/d").mkdir(parents=True)
    (tmp_path / "t/a").write_bytes(b"1")
    (tmp_path / "t/d/b").write_bytes(b"22")
    (tmp_path / "t/l").symlink_to("a")
    documented, seen, wrong = tables(), defaultdict[str, set[str]](set), []
    for line in SESSION.strip().splitlines():
        command, _, heading = line.partition(" = ")
        done = invoke(*shlex.split(command), stdin=b"body")
        assert done.exit_code == (command.startswith("diff")), (line, done.stderr)
        if "--json" not in command:
            continue
        heading = heading or next(h for h in sorted(documented, reverse=True)
                                  if command.startswith(h))  # fmt: skip
        found = objects(done.stdout)
        assert found, line
        for record in found:
            seen[heading] |= record.keys()
            for field, value in record.items():
                kinds = documented[heading].get(field, ANY if heading in FREE else "")
                if not kinds or not is_of(value, kinds):
                    wrong.append(f"{heading}: {field} is no {kinds or 'field'}: {value!r}")
        always = {f for f, kind in documented[heading].items() if not kind.endswith("?")}
        wrong += [f"{heading}: no {field}" for record in found for field in always - record.keys()]
    assert wrong == []
    assert seen.keys() == documented.keys()


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
