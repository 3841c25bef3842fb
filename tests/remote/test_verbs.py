"""What each command does with a URL: docs/remote.md has the list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke
from simulated.objectstore import ObjectStore

import winkfs
from winkfs.cli import COMMANDS

pytestmark = pytest.mark.in_memory
ROOT = Path(__file__).resolve().parents[2]
ONLY = "can only be read"
YES = {
    "unpack": ["URL", "out"],
    "info": ["URL"],
    "ls": ["URL", "d/000*"],
    "cat": ["URL", "d/0007"],
    "stat": ["URL", "d/0007"],
    "query": ["URL", "select count(*) from files"],
    "verify": ["URL"],
    "backup": ["URL", "copy"],
    "push": ["c", "URL"],
    "pull": ["URL", "pulled"],
    "sign": ["URL", "d/0007"],
    "salvage": ["URL", "copy"],
    "fct": ["list", "URL.data"],
}
NO = {
    "create": (["URL2"], ONLY),
    "pack": (["folder", "URL2"], ONLY),
    "columns": (["URL", "add", "a=int64"], ONLY),
    "put": (["URL", "n", "file"], ONLY),
    "append": (["URL", "n", "file"], ONLY),
    "rm": (["URL", "d/0001"], ONLY),
    "mv": (["URL", "d/0001", "x"], ONLY),
    "reindex": (["URL"], ONLY),
    "compact": (["URL"], ONLY),
    "repair": (["URL", "--apply"], ONLY),
    "rollback": (["URL"], ONLY),
    "dataset": (["create", "URL2"], "winkfs remote check"),
    "store": (["create", "URL2", "--kind", "log"], ONLY),
    "queue": (["create", "URL2"], ONLY),
    "ring": (["create", "URL2"], ONLY),
    "pipeline": (["stats", "URL"], "paths of a file system"),
}
ELSEWHERE = {"mount": "test_far_mount",
    "cache": "test_far_cache", "remote": "test_check", "umount": "a directory", "mounts": "nothing",
             "completion": "nothing"}  # fmt: skip


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    with winkfs.create("c") as c:
        c.put_many((f"d/{i:04}", b"%d" % i) for i in range(300))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    with ObjectStore() as store:
        yield store.put_container(tmp_path / "c")


def test_the_list_has_all_commands() -> None:
    assert YES.keys() | NO.keys() | ELSEWHERE.keys() == COMMANDS.keys()


def test_the_page_has_the_list() -> None:
    page = (ROOT / "docs/remote.md").read_text()
    shown = re.findall(r"^\| `([a-z`, ]+)` \| (yes|no)", page, re.MULTILINE)
    found = {name: answer for names, answer in shown for name in names.split("`, `")}
    assert found == dict.fromkeys([*YES, "mount"], "yes") | dict.fromkeys(NO, "no")


@pytest.mark.parametrize("verb", YES)
def test_it_reads(url: str, verb: str) -> None:
    if verb == "query":
        pytest.importorskip("duckdb")
    done = invoke(verb, *(word.replace("URL", url) for word in YES[verb]))
    assert done.exit_code == 0, done.stderr
    if verb in ("unpack", "backup", "salvage"):
        found = Path("out/d/0007") if verb == "unpack" else Path("copy.data")
        assert found.exists()


@pytest.mark.parametrize("verb", NO)
def test_it_refuses_in_one_line(url: str, verb: str) -> None:
    arguments, line = NO[verb]
    done = invoke(verb, *(word.replace("URL", url) for word in arguments))
    assert done.exit_code == 1 and line in done.stderr and done.stderr.count("\n") == 1, done.stderr
